"""What is measured on an Apple GPU, which has no float64: shown on a CPU that refuses such numbers."""

from typing import Any

import pytest
import torch
from geocont import analysis, measurement
from geocont.measurement import Parts, Settings
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps")


class OnMps(torch.Tensor):
    """A tensor of the CPU that says it is on an Apple GPU."""


class AppleGpu(TorchFunctionMode):
    """Whatever is made of tensors "there", or made there, is there, and may not be float64, until it is moved back."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function == torch.Tensor.device.__get__:
            return MPS if isinstance(args[0], OnMps) else function(*args)
        given = tree_leaves((args, kwargs))
        there = any(isinstance(one, OnMps) or (isinstance(one, torch.device) and one == MPS) for one in given)
        with torch._C.DisableTorchFunction():
            found = function(*tree_map(self._here, args), **tree_map(self._here, kwargs))
            return tree_map(self._there, found) if there and function != torch.Tensor.cpu else found

    @staticmethod
    def _here(one: Any) -> Any:
        if isinstance(one, OnMps):
            return one.as_subclass(torch.Tensor)
        return torch.device("cpu") if isinstance(one, torch.device) and one == MPS else one

    @staticmethod
    def _there(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if one.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return one.as_subclass(OnMps)


def measured(matrices: list[torch.Tensor], settings: Settings) -> tuple[Any, ...]:
    parts = [Parts((matrix,)) for matrix in matrices]
    results = [measurement.measure(one, settings, seed=3) for one in parts]
    spectra = [measurement.spectra(one, settings, result) for one, result in zip(parts, results, strict=True)]
    summed = measurement.SummedGram("v")
    for matrix in matrices:
        summed.add(matrix)
    experts = summed.measure(settings, seed=4)
    return results[0].singular_values, measurement.compare(*spectra), experts.singular_values, experts.fingerprint


def test_the_stand_in_refuses_float64_and_nothing_else():
    with AppleGpu():
        there = analysis._Memory(MPS).copy(torch.ones(3, 2, dtype=torch.float64))
        assert there.device == (there @ there.mT).device == torch.zeros(2, device=MPS).device == MPS
        assert there.dtype == torch.float32
        assert there.cpu().double().device == torch.device("cpu")
        for forbidden in (there.double, lambda: torch.linalg.vector_norm(there, dtype=torch.float64)):
            with pytest.raises(TypeError, match="float64"):
                forbidden()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (150, 140), (150, 800)])
def test_an_apple_gpu_gives_the_numbers_of_a_cpu(shape, dtype, exact):
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    settings = Settings(top_k=3, gap_tolerance=0, exact_gram=exact)
    sigma, pair, experts, _ = measured([matrix.float() for matrix in matrices], settings)
    with AppleGpu():
        memory = analysis._Memory(MPS)
        found_sigma, found, found_experts, _ = measured([memory.copy(matrix) for matrix in matrices], settings)
    assert found_sigma == pytest.approx(sigma, rel=1e-3)
    assert found_experts == pytest.approx(experts, rel=1e-3)
    for side in ("v", "u"):
        value, error = getattr(pair, f"{side}_gram"), getattr(pair, f"{side}_gram_error")
        assert getattr(found, f"{side}_gram") == pytest.approx(value, abs=1e-3 + 5 * error)
