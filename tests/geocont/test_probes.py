import itertools
import math

import numpy as np
import pytest
import torch
from geocont import spectra
from geocont.ablations import probes
from geocont.ablations.experiment import Probes
from hypothesis import given
from hypothesis import strategies as st

LAYERS, SIZE = 5, 24


def leading(matrices: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left, sigma, right = np.linalg.svd(matrices.double().numpy())
    return left.swapaxes(-1, -2), sigma, right


def cosines(vectors: np.ndarray) -> list[float]:
    return [abs(float(np.dot(a, b))) for a, b in zip(vectors[:-1, 0], vectors[1:, 0], strict=True)]


def stack(seed: int, shared: float) -> torch.Tensor:
    """Noise with a direction shared by all layers, of this strength."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(1, LAYERS, SIZE, SIZE, generator=generator) / math.sqrt(SIZE)
    u = torch.nn.functional.normalize(torch.randn(SIZE, generator=generator), dim=0)
    v = torch.nn.functional.normalize(torch.randn(SIZE, generator=generator), dim=0)
    return noise + shared * u[:, None] * v[None, :]


def follower(initial: torch.Tensor, settings: Probes | None = None) -> probes.Follower:
    return probes.Follower(initial, spectra.exact(initial), [1] * len(initial), settings or Probes(leading=4))


@pytest.mark.parametrize("exact", [True, False])
def test_every_number_agrees_with_float64_decompositions(exact):
    initial, gradient, cumulative = stack(0, 0.0), 1e-3 * stack(1, 3.0), stack(2, 4.0)
    measuring = follower(initial)
    measuring.measure(initial, gradient, cumulative, torch.tensor([math.nan]), exact=True)
    weights = initial + 0.9 * stack(3, 4.0)
    [found] = measuring.measure(weights, gradient, cumulative, torch.tensor([0.75]), exact=exact)

    for name, matrices in (
        ("weight", weights),
        ("gradient", gradient),
        ("cumulative", cumulative),
        ("update", weights - initial),
    ):
        left, _, right = leading(matrices[0])
        np.testing.assert_allclose(found.alignments[name].v1, cosines(right), atol=0.01, err_msg=name)
        np.testing.assert_allclose(found.alignments[name].u1, cosines(left), atol=0.01, err_msg=name)
    left, sigma, right = leading(weights[0])
    scalars = found.scalars
    assert scalars["sigma_ratio"] == pytest.approx((sigma[:, 0] / sigma[:, 1]).mean(), rel=1e-3)
    chance = 4 / SIZE
    for side, vectors in (("v", right), ("u", left)):
        raw = [np.linalg.norm(a[:4] @ b[:4].T) ** 2 / 4 for a, b in itertools.pairwise(vectors)]
        assert scalars[f"top_overlap_{side}"] == pytest.approx(
            (np.mean(raw) - chance) / (1 - chance), abs=1e-6 if exact else 0.05
        )
    ratios = torch.linalg.matrix_norm(weights - initial) / torch.linalg.matrix_norm(initial)
    assert scalars["update_ratio"] == pytest.approx(float(ratios.mean()), rel=1e-4)
    assert scalars["gradient_norm"] == pytest.approx(float(torch.linalg.vector_norm(gradient)), rel=1e-4)
    traces = [float(torch.trace(w)) ** 2 / (SIZE * float(torch.linalg.vector_norm(w)) ** 2) for w in weights[0]]
    assert scalars["identity_share"] == pytest.approx(np.mean(traces), rel=1e-3)
    total = leading(cumulative[0])[2]
    match = [abs(float(np.dot(a, b))) for a, b in zip(right[:, 0], total[:, 0], strict=True)]
    assert scalars["cumulative_match"] == pytest.approx(np.mean(match), abs=0.01)
    before = leading(initial[0])[2]
    drift = [1 - abs(float(np.dot(a, b))) for a, b in zip(right[:, 0], before[:, 0], strict=True)]
    assert scalars["drift"] == pytest.approx(np.mean(drift), abs=0.01)
    assert scalars["activation_factor"] == pytest.approx(0.75)
    if exact:
        share = (sigma**2 / (sigma**2).sum(-1, keepdims=True)).reshape(LAYERS, SIZE)
        weight = (share[:-1] + share[1:]) / 2
        for side, vectors in (("v", right), ("u", left)):
            index_cosines = np.abs((vectors[:-1] * vectors[1:]).sum(-1))
            expected = (weight * index_cosines).sum(-1).mean()
            assert scalars[f"weight_{side}_weighted"] == pytest.approx(expected, abs=1e-3)
    else:
        for side in ("v", "u"):
            assert scalars[f"weight_{side}_weighted"] is None
            assert "exact snapshots" in found.missing[f"weight_{side}_weighted"]


def test_before_any_update_what_does_not_exist_is_missing_with_its_reason():
    initial = stack(0, 2.0)
    [found] = follower(initial).measure(
        initial, stack(1, 1.0), torch.zeros_like(initial), torch.tensor([math.nan]), exact=True
    )
    assert found.alignments["update"].v1 == (None,) * (LAYERS - 1)
    assert found.missing["update"] == f"{LAYERS} layers: zero or not finite"
    assert found.missing["drift"] == "no earlier snapshot"
    assert found.missing["activation_factor"] == "the activation is not radial"
    assert found.scalars["cumulative_match"] is None
    assert found.scalars["update_ratio"] == 0
    assert all(value is not None for value in found.alignments["weight"].v1)


def test_a_layer_whose_v1_is_not_unique_is_left_out_of_its_pairs():
    weights = stack(0, 3.0)
    left, sigma, right = torch.linalg.svd(weights[0, 2])
    sigma[1] = sigma[0]
    weights[0, 2] = left @ torch.diag(sigma) @ right
    [found] = follower(weights).measure(weights, weights, weights, torch.tensor([math.nan]), exact=True)
    present = [value is not None for value in found.alignments["weight"].v1]
    assert present == [True, False, False, True]
    assert "not unique" in found.missing["weight"]
    [found] = follower(weights, Probes(leading=4, gap_tolerance=0)).measure(
        weights, weights, weights, torch.tensor([math.nan]), exact=True
    )
    # Whether the bound lets the value through or not, the reason is no longer the gap.
    assert "not unique" not in found.missing.get("weight", "")


def test_a_network_measured_in_a_stack_gives_the_numbers_it_gives_alone():
    settings = Probes(leading=4)
    initial = torch.cat([stack(0, 1.0), stack(5, 2.0)])
    weights = initial + torch.cat([stack(1, 1.0), stack(6, 2.0)])
    gradient = torch.cat([stack(2, 1.0), stack(7, 2.0)])
    factors = torch.tensor([math.nan, math.nan])
    together = follower(initial, settings)
    together.measure(initial, gradient, gradient, factors, exact=True)
    both = together.measure(weights, gradient, gradient, factors, exact=False)
    for index in range(2):
        row = slice(index, index + 1)
        alone = follower(initial[row], settings)
        alone.measure(initial[row], gradient[row], gradient[row], factors[row], exact=True)
        [found] = alone.measure(weights[row], gradient[row], gradient[row], factors[row], exact=False)
        np.testing.assert_allclose(found.alignments["weight"].v1, both[index].alignments["weight"].v1, atol=0.02)
        assert found.scalars["sigma_ratio"] == pytest.approx(both[index].scalars["sigma_ratio"], rel=1e-3)
    together.keep([1])
    [kept] = together.measure(weights[1:], gradient[1:], gradient[1:], factors[1:], exact=True)
    assert kept.scalars["drift"] == pytest.approx(0, abs=1e-3)


@given(
    steps=st.integers(1, 5000),
    dense=st.integers(0, 30),
    growth=st.floats(1.01, 4),
    interval=st.integers(1, 500),
    exact=st.integers(2, 9),
)
def test_the_schedule_is_dense_then_growing_then_even_and_holds_both_ends(steps, dense, growth, interval, exact):
    settings = Probes(dense=dense, growth=growth, interval=interval, exact=exact)
    found = probes.schedule(steps, settings)
    assert found[0] == 0
    assert found[-1] == steps
    assert found[: dense + 1] == list(range(min(dense, steps) + 1))
    gaps = np.diff(found)
    assert (gaps > 0).all()
    assert (gaps <= max(interval, 1)).all()
    assert (np.diff(gaps[:-1]) >= 0).all()
    chosen = probes.exact_steps(steps, settings)
    assert {0, steps} <= chosen <= set(found)
    assert len(chosen) <= exact
