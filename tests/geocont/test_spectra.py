import math

import numpy as np
import pytest
import torch
from geocont import chance, continuity, spectra
from hypothesis import given, settings
from hypothesis import strategies as st


def planted(rows: int, columns: int, singular_values: list[float], seed: int) -> torch.Tensor:
    """A float64 matrix with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, len(singular_values), generator=generator, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, len(singular_values), generator=generator, dtype=torch.float64)).Q
    return (left * torch.tensor(singular_values, dtype=torch.float64)) @ right.T


def start(stack: tuple[int, ...], rows: int, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn((*stack, rows, size), generator=generator).mT).Q.mT


def sine(found: torch.Tensor, true: np.ndarray) -> float:
    direction = found.double().numpy()
    direction = direction / np.linalg.norm(direction)
    # The length of what is orthogonal: √(1 − cos²) would lose half the digits.
    return float(np.linalg.norm(direction - np.dot(direction, true) * true))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(12, 80),
    columns=st.integers(12, 80),
    gap=st.sampled_from([1.01, 1.02, 1.05, 1.2, 2.0, 10.0, 100.0]),
    scale=st.sampled_from([1e-30, 1e-12, 1.0, 1e12, 1e30]),
    seed=st.integers(0, 10**6),
)
def test_followed_vectors_agree_with_lapack_in_float64_and_respect_their_bound(rows, columns, gap, scale, seed):
    bulk = [scale * value for value in np.linspace(1.0, 0.05, min(rows, columns) - 1)]
    matrix = planted(rows, columns, [scale * gap, *bulk], seed).float()
    found = spectra.follow(matrix[None], start((1,), 8, columns, seed + 1), tolerance=1e-3, passes=60)
    left, sigma, right = np.linalg.svd(matrix.double().numpy())
    # Rounding in float32 moves v1 by about eps over the relative gap.
    rounding = 1e-6 + 2e-6 / (gap - 1)
    assert float(found.v1_error_bound[0]) <= 1e-3 + rounding
    assert sine(found.right[0, 0], right[0]) <= float(found.v1_error_bound[0]) + rounding
    assert sine(found.left[0, 0], left[:, 0]) <= 2e-3 + rounding
    assert float(found.singular_values[0, 0]) == pytest.approx(sigma[0], rel=1e-5)
    assert float(found.frobenius[0]) == pytest.approx(np.linalg.norm(sigma), rel=1e-5)
    assert bool(found.regular[0])


@pytest.mark.parametrize(("decompose", "tolerance"), [(spectra.exact, 1e-6), (spectra.from_gram, 3e-4)])
@pytest.mark.parametrize(("rows", "columns"), [(40, 40), (64, 20), (20, 64)])
def test_full_decompositions_agree_with_lapack_in_float64(decompose, tolerance, rows, columns):
    matrix = planted(rows, columns, list(np.geomspace(1, 1e-3, 20)), seed=3)
    found = decompose(matrix.float()[None])
    left, sigma, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    np.testing.assert_allclose(found.singular_values[0].numpy()[:20], sigma[:20], atol=tolerance)
    for index in range(10):
        assert sine(found.right[0, index], right[index]) < 1e-3
        assert sine(found.left[0, index], left[:, index]) < 1e-3


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    rank=st.integers(1, 40),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    seed=st.integers(0, 10**6),
)
def test_what_is_weighed_by_the_spectrum_is_as_good_from_the_gram_matrix(rows, columns, rank, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    rank = min(rank, rows, columns)
    factors = [torch.randn(2, *shape, generator=generator) for shape in ((rows, rank), (rank, columns))]
    matrices = factors[0] @ factors[1] * scale
    found, exact = spectra.from_gram(matrices), spectra.exact(matrices)
    largest = exact.singular_values[..., :1]
    torch.testing.assert_close(found.singular_values / largest, exact.singular_values / largest, rtol=0, atol=2e-3)
    products = (found.left.mT * found.singular_values[..., None, :]) @ found.right
    torch.testing.assert_close(products / largest[..., None], matrices / largest[..., None], rtol=0, atol=1e-5)
    known = exact.v1_error_bound < 1e-3
    same = (found.right[..., 0, :] * exact.right[..., 0, :]).sum(-1).abs()
    assert (same[known] > 1 - 1e-5).all()
    assert (found.v1_error_bound >= 0).all()


@pytest.mark.parametrize("decompose", [spectra.exact, spectra.from_gram])
def test_where_rounding_alone_orders_the_singular_values_nothing_is_promised(decompose):
    generator = torch.Generator().manual_seed(0)
    rotations = torch.linalg.qr(torch.randn(200, 8, 8, generator=generator)).Q
    assert (decompose(rotations).v1_error_bound > 1).all()


def test_a_gram_matrix_on_which_lapack_fails_is_not_the_end(monkeypatch):
    def fail(*_):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    matrix = planted(16, 16, [3.0, 1.0, 0.5], seed=0).float()[None]
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    found, exact = spectra.from_gram(matrix), spectra.exact(matrix)
    torch.testing.assert_close(found.right, exact.right, rtol=0, atol=0)


def test_zero_and_non_finite_matrices_are_marked_and_do_not_disturb_the_others():
    good = planted(16, 16, [3.0, 1.0, 0.5], seed=0).float()
    broken = good.clone()
    broken[2, 3] = math.nan
    endless = good.clone()
    endless[0, 0] = math.inf
    stack = torch.stack([torch.zeros(16, 16), good, broken, endless])
    for found in (spectra.exact(stack), spectra.from_gram(stack), spectra.follow(stack, start((4,), 6, 16, 1))):
        assert found.regular.tolist() == [False, True, False, False]
        assert float(found.singular_values[1, 0]) == pytest.approx(3.0, rel=1e-5)
        assert torch.isfinite(found.right[1]).all()


def test_a_rank_one_matrix_has_a_gap_of_one():
    matrix = planted(10, 12, [2.0], seed=5).float()
    found = spectra.follow(matrix[None], start((1,), 4, 12, 2))
    assert float(found.relative_gap[0]) == pytest.approx(1.0, abs=1e-5)
    assert float(found.v1_error_bound[0]) < 1e-4


def test_equal_leading_values_are_not_unique_whatever_the_iteration_returns():
    matrix = planted(30, 30, [1.0, 1.0, 0.5, 0.2], seed=7).float()
    for found in (
        spectra.exact(matrix[None]),
        spectra.follow(matrix[None], start((1,), 6, 30, 2), gap_tolerance=0.005),
    ):
        assert not bool(continuity.unique(found, 0.005)[0])


def test_a_warm_start_from_the_vectors_of_a_nearby_matrix_needs_few_passes():
    matrix = planted(60, 60, [1.1, *np.linspace(1, 0.1, 50)], seed=9).float()
    cold = spectra.follow(matrix[None], start((1,), 8, 60, 3), tolerance=1e-3, passes=60)
    nearby = matrix + 1e-4 * torch.randn(60, 60, generator=torch.Generator().manual_seed(1))
    warm = spectra.follow(nearby[None], cold.right, tolerance=1e-2, passes=1)
    assert float(warm.v1_error_bound[0]) < 1e-2


def test_independent_noise_shows_chance_level_cosines():
    layers, size = 40, 64
    noise = torch.randn(layers, size, size, generator=torch.Generator().manual_seed(0))
    found = spectra.follow(noise, start((layers,), 8, size, 4), passes=40)
    low, high = chance.band_of_mean(size, layers - 1)
    for vectors in (found.right, found.left):
        mean = float(continuity.adjacent_cosines(vectors[:, 0, :]).mean())
        # Three times the 95 % half-width: this must not fail one run in twenty.
        assert low - (high - low) < mean < high + (high - low)


def test_concatenate_keeps_the_order():
    first = spectra.exact(planted(8, 8, [2.0, 1.0], seed=1).float()[None])
    second = spectra.exact(planted(8, 8, [5.0, 1.0], seed=2).float()[None])
    joined = spectra.concatenate([first, second], torch.device("cpu"))
    assert [round(float(value), 3) for value in joined.singular_values[:, 0]] == [2.0, 5.0]
