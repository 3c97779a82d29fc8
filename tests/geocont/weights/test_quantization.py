"""Quantised weights are decoded to what their makers decode them to, or refused; never handed out raw."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from geocont.errors import JobError
from geocont.weights.checkpoint import Slice, StoredTensor, name_of
from geocont.weights.quantization import Weights
from geocont.weights.safetensors_file import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

WORDS = {dtype: word for word, dtype in DTYPES.items()}
FP8 = torch.float8_e4m3fn


class InMemory:
    """A checkpoint of given tensors, which hands them out in one reused buffer as the real ones do."""

    model, revision, source = "m", None, "memory"
    warnings: tuple[str, ...] = ()

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> None:
        self.held = tensors
        self.config = config
        self.tensors = {
            name: StoredTensor(name, tuple(tensor.shape), WORDS[tensor.dtype], "f", tensor.nbytes)
            for name, tensor in tensors.items()
        }
        self.buffer = torch.empty(max((tensor.nbytes for tensor in tensors.values()), default=0), dtype=torch.uint8)
        self.asked: list[tuple[str | Slice, str | Slice | None]] = []

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Tensor:
        self.asked.append((wanted, following))
        tensor = self.held[name_of(wanted)]
        if isinstance(wanted, Slice):
            tensor = tensor.chunk(wanted.count)[wanted.index]
        self.buffer.fill_(0xAA)
        return self.buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def identity(self, name: str) -> str:
        return name

    def close(self) -> None:
        pass


BLOCKS_OF_32 = {"quantization_config": {"weight_block_size": [32, 32]}}


def fp8(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(FP8)


def scales(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    block=st.sampled_from([32, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e8m0fnu]),
)
def test_block_fp8_is_what_transformers_makes_of_it(rows: int, columns: int, block: int, dtype: torch.dtype) -> None:
    weight = fp8(rows, columns)
    scale = scales(-(-rows // block), -(-columns // block)).to(dtype)
    config = {"quantization_config": {"weight_block_size": [block, block]}}
    weights = Weights(InMemory({"a.weight": weight, "a.weight_scale_inv": scale}, config))
    assert list(weights.items) == ["a.weight"]
    item = weights.items["a.weight"]
    assert (item.shape, item.quantized, item.refused) == ((rows, columns), True, "")
    assert item.bytes == weight.nbytes + scale.nbytes
    expected = _dequantize_fp8_weight(weight, scale.float(), [block, block], torch.float32)
    assert torch.equal(weights.read("a.weight"), expected)


def test_blocks_of_128_are_recognised_without_a_config() -> None:
    weights = Weights(InMemory({"a.weight": fp8(300, 200), "a.weight_scale_inv": scales(3, 2)}))
    assert weights.items["a.weight"].dtype == "FP8 in blocks of 128×128"
    weights = Weights(InMemory({"a.weight": fp8(300, 200), "a.weight_scale_inv": scales(5, 4)}))
    assert weights.items["a.weight"].dtype == "FP8 in blocks of 64×64"


def test_a_stack_of_experts_in_blocks() -> None:
    weight, scale = fp8(3, 140, 130), scales(3, 2, 2)
    weights = Weights(InMemory({"experts.up_proj": weight, "experts.up_proj_scale_inv": scale}))
    expected = torch.stack(
        [_dequantize_fp8_weight(weight[e], scale[e], [128, 128], torch.float32) for e in range(len(weight))]
    )
    assert torch.equal(weights.read("experts.up_proj"), expected)


@pytest.mark.parametrize(
    ("shape", "scale", "aligned", "words"),
    [
        ((6, 4), (), (1, 1), "FP8, one scale a tensor"),
        ((6, 4), (1,), (1, 1), "FP8, one scale a tensor"),
        ((6, 4), (6, 1), (6, 1), "FP8, one scale a row"),
        ((6, 4), (6,), (6, 1), "FP8, one scale a row"),
        ((4, 4), (4,), (4, 1), "FP8, one scale a row"),
        ((6, 4), (1, 4), (1, 4), "FP8, one scale a column"),
        ((3, 6, 4), (3,), (3, 1, 1), "FP8, one scale a matrix"),
        ((3, 6, 4), (3, 6, 1), (3, 6, 1), "FP8, one scale a row"),
        ((3, 6, 4), (3, 1, 4), (3, 1, 4), "FP8, one scale a column"),
        ((6,), (1,), (1,), "FP8, one scale a tensor"),
    ],
)
@pytest.mark.parametrize("ending", ["weight_scale", "scale_weight", "scale"])
def test_fp8_with_scales_that_stretch(
    shape: tuple[int, ...], scale: tuple[int, ...], aligned: tuple[int, ...], words: str, ending: str
) -> None:
    weight, factor = fp8(*shape), scales(*scale).bfloat16()
    tensors = {"a.weight": weight, f"a.{ending}": factor, "a.input_scale": torch.tensor(0.5)}
    weights = Weights(InMemory(tensors, {"quantization_config": {"quant_method": "fp8"}}))
    assert list(weights.items) == ["a.weight"]
    assert weights.items["a.weight"].dtype == words
    assert torch.equal(weights.read("a.weight"), weight.float() * factor.float().reshape(aligned))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1, 1), (1, 1, 1), (3, 64, 1), (1, 1, 96), (3, 2, 3)])
def test_slices_of_fp8_experts_take_their_own_scales(shape: tuple[int, ...]) -> None:
    weight, scale = fp8(3, 64, 96), scales(*shape)
    weights = Weights(InMemory({"experts.up_proj": weight, "experts.up_proj_scale_inv": scale}, BLOCKS_OF_32))
    assert not weights.items["experts.up_proj"].refused
    whole = weights.read("experts.up_proj").clone()
    assert weights.can_slice("experts.up_proj", 3)
    for index in range(3):
        assert torch.equal(weights.read(Slice("experts.up_proj", index, 3)), whole[index : index + 1])


def test_slices_of_mxfp4_experts() -> None:
    generator = torch.Generator().manual_seed(3)
    stored = InMemory(
        {
            "x.down_proj_blocks": torch.randint(0, 256, (4, 6, 2, 16), generator=generator, dtype=torch.uint8),
            "x.down_proj_scales": torch.randint(120, 130, (4, 6, 2), generator=generator, dtype=torch.uint8),
        }
    )
    weights = Weights(stored)
    whole = weights.read("x.down_proj").clone()
    assert weights.can_slice("x.down_proj", 4)
    assert not weights.can_slice("x.down_proj", 2)
    for index in range(4):
        assert torch.equal(weights.read(Slice("x.down_proj", index, 4)), whole[index : index + 1])
    stored.asked.clear()
    weights.read(Slice("x.down_proj", 0, 4), Slice("x.down_proj", 1, 4))
    assert [(wanted, following) for wanted, following in stored.asked] == [
        (Slice("x.down_proj_scales", 0, 4), Slice("x.down_proj_blocks", 0, 4)),
        (Slice("x.down_proj_blocks", 0, 4), Slice("x.down_proj_scales", 1, 4)),
    ]


def test_what_cannot_be_cut_without_its_scales_is_not_cut() -> None:
    scaled = Weights(InMemory({"e.proj": fp8(192, 96), "e.proj_scale_inv": scales(6, 3)}, BLOCKS_OF_32))
    assert not scaled.can_slice("e.proj", 3)
    plain = Weights(InMemory({"e.proj": torch.ones(192, 96)}))
    assert plain.can_slice("e.proj", 3)
    assert not plain.can_slice("e.proj", 5)


def test_scales_are_read_first_and_the_next_weight_is_announced() -> None:
    tensors = {"a.weight": fp8(4, 4), "a.weight_scale": scales(4), "b.weight": torch.ones(2, 2)}
    checkpoint = InMemory(tensors)
    weights = Weights(checkpoint)
    weights.read("a.weight", "b.weight")
    weights.read("b.weight", "a.weight")
    assert checkpoint.asked == [
        ("a.weight_scale", "a.weight"),
        ("a.weight", "b.weight"),
        ("b.weight", "a.weight_scale"),
    ]


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({"a.weight": fp8(4, 4), "a.weight_scale": scales(3, 3)}, None, "scales [3, 3] do not fit its shape [4, 4]"),
        ({"a.weight": fp8(4, 4), "a.weight_scale": scales(4).to(torch.uint8)}, None, "scales of dtype U8"),
        ({"a.weight": fp8(4, 4), "a.odd_scales": scales(4)}, None, "scales of an unknown kind (a.odd_scales)"),
        ({"a.weight": fp8(4, 4)}, {"quantization_config": {"quant_method": "fp8"}}, "without the scales"),
        ({"a.weight": fp8(4, 4), "b.weight": fp8(4, 4), "b.weight_scale": scales(4)}, None, "without the scales"),
    ],
)
def test_fp8_that_cannot_be_scaled_is_refused(tensors: dict[str, Tensor], config: Any, words: str) -> None:
    weights = Weights(InMemory(tensors, config))
    assert words in weights.items["a.weight"].refused
    with pytest.raises(JobError, match=r"a\.weight"):
        weights.read("a.weight")


def test_fp8_that_was_only_cast_is_read_as_it_stands() -> None:
    weights = Weights(InMemory({"a.weight": fp8(4, 5), "a.bias": torch.ones(4)}))
    item = weights.items["a.weight"]
    assert (item.dtype, item.quantized, item.refused) == ("FP8 without scales", True, "")
    assert torch.equal(weights.read("a.weight"), fp8(4, 5).float())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_mxfp4_is_what_transformers_makes_of_it(experts: int, out: int, groups: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, out, groups, 16), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(0, 255, (experts, out, groups), dtype=torch.uint8, generator=generator)
    tensors = {
        "x.gate_up_proj_blocks": blocks,
        "x.gate_up_proj_scales": exponents,
        "x.gate_up_proj_bias": torch.ones(2),
    }
    weights = Weights(InMemory(tensors))
    assert set(weights.items) == {"x.gate_up_proj", "x.gate_up_proj_bias"}
    assert weights.items["x.gate_up_proj"].shape == (experts, out, 32 * groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geocont.weights.quantization._GROUPS_AT_ONCE", 5)
        values = weights.read("x.gate_up_proj")
    assert values.dtype is torch.bfloat16
    assert torch.equal(values, convert_moe_packed_tensors(blocks, exponents).mT)


def test_mxfp4_that_does_not_fit_is_refused() -> None:
    tensors = {"x_blocks": torch.zeros(2, 3, 16, dtype=torch.uint8), "x_scales": torch.zeros(2, 4, dtype=torch.uint8)}
    assert "do not fit" in Weights(InMemory(tensors)).items["x"].refused


def integers(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


WIDE = torch.int32


@pytest.mark.parametrize(
    ("kind", "tensors", "shape"),
    [
        (
            "GPTQ",
            {
                "qweight": integers(8, 48, dtype=WIDE),
                "qzeros": integers(2, 6, dtype=WIDE),
                "scales": scales(2, 48).half(),
                "g_idx": integers(64, dtype=WIDE),
            },
            (48, 64),
        ),
        (
            "AWQ",
            {
                "qweight": integers(64, 6, dtype=WIDE),
                "qzeros": integers(2, 6, dtype=WIDE),
                "scales": scales(2, 48).half(),
            },
            (48, 64),
        ),
        (
            "bitsandbytes 4-bit",
            {
                "weight": integers(32, 1),
                "weight.absmax": integers(4),
                "weight.quant_map": scales(16),
                "weight.nested_absmax": scales(1),
                "weight.quant_state.bitsandbytes__nf4": integers(80),
            },
            (32, 1),
        ),
        ("bitsandbytes int8", {"weight": integers(6, 4, dtype=torch.int8), "SCB": scales(6)}, (6, 4)),
        (
            "NVFP4",
            {"weight": integers(6, 16), "weight_scale": fp8(6, 2), "weight_scale_2": scales(), "input_scale": scales()},
            (6, 32),
        ),
        (
            "NVFP4",
            {"weight_packed": integers(6, 16), "weight_scale": fp8(6, 2), "weight_global_scale": scales(1)},
            (6, 32),
        ),
        ("HQQ", {"W_q": integers(6, 4), "scale": scales(6), "zero": scales(6)}, (6, 4)),
        ("integer", {"weight": integers(6, 4, dtype=torch.int8), "weight_scale": scales(6, 1)}, (6, 4)),
        ("MLX", {"weight": integers(6, 4, dtype=torch.uint32), "scales": scales(6, 1), "biases": scales(6, 1)}, (6, 4)),
        (
            "AQLM",
            {"codes": integers(6, 4, 1), "codebooks": scales(1, 256, 1, 8), "scales": scales(6, 1, 1, 1)},
            (6, 4, 1),
        ),
    ],
)
def test_packed_weights_are_refused_under_their_own_name(
    kind: str, tensors: dict[str, Tensor], shape: tuple[int, ...]
) -> None:
    held = {f"layers.0.q_proj.{name}": tensor for name, tensor in tensors.items()}
    held["layers.0.q_proj.bias"] = torch.ones(3)
    weights = Weights(InMemory(held, {"_name_or_path": "who/base"}))
    assert set(weights.items) == {"layers.0.q_proj.weight", "layers.0.q_proj.bias"}
    item = weights.items["layers.0.q_proj.weight"]
    assert (item.dtype, item.shape, item.quantized) == (kind, shape, True)
    assert item.refused == f"{kind} weights are not decoded; analyse the unquantised model (who/base)"
    with pytest.raises(JobError):
        weights.read("layers.0.q_proj.weight")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool, torch.float8_e8m0fnu])
def test_numbers_of_unknown_meaning_are_refused(dtype: torch.dtype) -> None:
    weights = Weights(InMemory({"a.weight": torch.ones(3, 4).to(dtype)}))
    assert "unknown meaning" in weights.items["a.weight"].refused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_floating_point_weights_come_as_they_are(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 4, dtype=dtype)
    weights = Weights(InMemory({"a.weight": tensor}))
    item = weights.items["a.weight"]
    assert (item.dtype, item.quantized, item.refused, item.bytes) == (WORDS[dtype], False, "", tensor.nbytes)
    values = weights.read("a.weight")
    assert values.dtype is (torch.float32 if dtype is torch.float64 else dtype)
    assert torch.equal(values, tensor.to(values.dtype))
