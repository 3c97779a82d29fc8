import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from geocont import chance, lanczos
from geocont.lanczos import leading
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def planted(rows: int, columns: int, singular_values, seed: int) -> torch.Tensor:
    """A float64 matrix with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, len(singular_values), generator=generator, dtype=torch.float64)).Q
    right = torch.linalg.qr(torch.randn(columns, len(singular_values), generator=generator, dtype=torch.float64)).Q
    return (left * torch.as_tensor(singular_values, dtype=torch.float64)) @ right.T


def noise(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def sine(found: torch.Tensor, true: np.ndarray) -> float:
    direction = found.double().numpy()
    # The length of what is orthogonal: √(1 − cos²) would lose half the digits.
    return float(np.linalg.norm(direction - np.dot(direction, true) * true) / np.linalg.norm(direction))


def assert_bounds_hold(found: lanczos.Leading, left: np.ndarray, right: np.ndarray) -> None:
    assert sine(found.right[0], right[0]) <= found.v1_error_bound
    assert sine(found.left[0], left[:, 0]) <= found.u1_error_bound


SIDES = st.one_of(st.integers(1, 40), st.integers(129, 230))


@settings(max_examples=60, deadline=None)
@given(
    rows=SIDES,
    columns=SIDES,
    ratio=st.sampled_from([1.001, 1.01, 1.05, 1.2, 2.0, 10.0, 100.0]),
    scale=st.sampled_from([1e-30, 1e-9, 1.0, 1e30]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    count=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_triplets_agree_with_lapack_in_float64(rows, columns, ratio, scale, dtype, count, seed):
    bulk = np.linspace(1.0, 0.05, min(rows, columns))[1:]
    matrix = planted(rows, columns, scale * np.array([ratio, 1.0, *bulk[1:]])[: min(rows, columns)], seed).to(dtype)
    left, sigma, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    gap = sigma[0] / sigma[1] - 1 if len(sigma) > 1 else math.inf
    found = leading(matrix, count, seed=seed + 1)
    assert_bounds_hold(found, left, right)
    assert found.status == ("ok" if gap > 0.005 else "not_unique")
    if found.status == "ok":
        assert max(found.v1_error_bound, found.u1_error_bound) <= 1e-3
        assert float(found.singular_values[0]) / sigma[0] == pytest.approx(1, abs=2e-6)
    if found.status == "ok" and count > 1:
        assert found.gap == pytest.approx(gap, rel=0.02)
    kept = min(count, rows, columns)
    assert found.left.shape == (kept, rows)
    assert found.right.shape == (kept, columns)
    assert (found.singular_values / sigma[0]).tolist() == pytest.approx(sigma[:kept] / sigma[0], rel=0.02)
    assert found.frobenius / np.linalg.norm(sigma) == pytest.approx(1, abs=1e-5)
    assert found.stable_rank == pytest.approx((np.linalg.norm(sigma) / sigma[0]) ** 2, rel=0.01)
    for vectors in (found.left, found.right):
        torch.testing.assert_close(vectors @ vectors.mT, torch.eye(kept), atol=2e-4, rtol=0)


@pytest.mark.parametrize("ratio", [1.006, 1.02, 1.2, 3.0])
@pytest.mark.parametrize(("rows", "columns"), [(240, 160), (160, 240), (180, 180), (140, 600)])
@pytest.mark.parametrize("tail", ["linear", "power"])
def test_the_true_error_is_under_the_bound_whatever_the_start(rows, columns, ratio, tail):
    size = min(rows, columns)
    bulk = np.linspace(1, 0.1, size - 1) if tail == "linear" else np.arange(1.0, size) ** -0.5
    matrix = planted(rows, columns, [ratio, *bulk], seed=rows + size).bfloat16()
    left, _, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    for seed in range(12):
        found = leading(matrix, 1, seed=seed, tolerance=[1e-1, 1e-2, 1e-3][seed % 3], gap_tolerance=0)
        assert found.status == "ok"
        assert_bounds_hold(found, left, right)


@pytest.mark.parametrize(("rows", "columns"), [(1, 500), (500, 1), (1, 1), (128, 128), (129, 129)])
def test_thin_and_small_matrices(rows, columns):
    matrix = noise(rows, columns, 3)
    left, sigma, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    found = leading(torch.nn.Parameter(matrix), 3, seed=0, gap_tolerance=0)
    assert found.status == "ok"
    assert_bounds_hold(found, left, right)
    assert found.singular_values.tolist() == pytest.approx(sigma[:3], rel=1e-3)
    assert (found.gap == math.inf) == (min(rows, columns) == 1)


@pytest.mark.parametrize(("rows", "columns"), [(300, 200), (200, 700), (40, 30)])
@pytest.mark.parametrize("rank", [1, 3])
def test_vectors_beyond_the_rank_are_zero(rows, columns, rank):
    found = leading(planted(rows, columns, [3.0, 2.0, 1.0][:rank], seed=4).float(), 5, seed=0)
    assert found.status == "ok"
    assert found.singular_values.tolist() == pytest.approx([3.0, 2.0, 1.0][:rank] + [0.0] * (5 - rank), abs=1e-5)
    for vectors in (found.left, found.right):
        assert torch.linalg.vector_norm(vectors, dim=1).tolist() == pytest.approx([1.0] * rank + [0.0] * (5 - rank))
    assert found.gap == (math.inf if rank == 1 else pytest.approx(0.5, rel=1e-5))


@pytest.mark.parametrize("size", [30, 200])
def test_equal_singular_values_are_not_unique_even_without_a_gap_tolerance(size):
    found = leading(torch.eye(size), 10, seed=0, gap_tolerance=0)
    assert found.status == "not_unique"
    assert found.v1_error_bound == 1.0
    assert found.singular_values.tolist() == pytest.approx([1.0] * 10)
    torch.testing.assert_close(found.right @ found.right.mT, torch.eye(10))


@pytest.mark.parametrize(
    ("dtype", "magnitude"),
    [(torch.float64, -310), (torch.float64, 300), (torch.float32, -42), (torch.float32, 37), (torch.bfloat16, 37)],
)
def test_entries_at_the_ends_of_the_range(dtype, magnitude):
    matrix = (planted(150, 140, [2.0, *np.linspace(1, 0.1, 139)], seed=6) * 10.0**magnitude).to(dtype)
    found = leading(matrix, 2, seed=0)
    assert found.status == "ok"
    _, sigma, right = np.linalg.svd(matrix.double().numpy() / 10.0**magnitude)
    assert sine(found.right[0], right[0]) <= found.v1_error_bound <= 1e-3
    assert (found.singular_values / 10.0**magnitude).tolist() == pytest.approx(sigma[:2], rel=1e-3)
    assert found.frobenius / 10.0**magnitude == pytest.approx(np.linalg.norm(sigma), rel=1e-5)


def test_an_ill_conditioned_matrix():
    matrix = planted(300, 200, np.geomspace(1, 1e-12, 200), seed=8).float()
    left, sigma, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    found = leading(matrix, 12, seed=0, tolerance=1e-4)
    assert_bounds_hold(found, left, right)
    assert found.singular_values.tolist() == pytest.approx(sigma[:12], rel=1e-3)
    for i in range(12):
        assert sine(found.right[i], right[i]) < 0.02


REFUSED = """
import torch
from geocont.lanczos import leading
for shape in ((20, 30), (200, 300)):
    for dtype in (torch.float32, torch.bfloat16):
        good = torch.randn(shape).to(dtype)
        for value in (float("nan"), float("inf"), -float("inf")):
            bad = good.clone()
            bad[3, 4] = value
            found = leading(bad, 3, seed=0)
            assert found.status == "not_finite", found
            assert found.singular_values.shape == (0,) and found.right.shape == (0, shape[1]), found
            assert found.gap is found.v1_error_bound is found.frobenius is found.stable_rank is None, found
        found = leading(torch.zeros(shape, dtype=dtype), 3, seed=0)
        assert found.status == "zero", found
        assert found.singular_values.tolist() == [0, 0, 0] and found.frobenius == 0, found
        assert not found.left.any() and found.left.shape == (3, shape[0]), found
        assert found.gap is found.v1_error_bound is found.stable_rank is None, found
"""


def test_zero_and_non_finite_matrices_get_a_status_and_print_nothing():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_noise_is_not_unique():
    for seed in range(12):
        matrix = noise(300, 260, seed)
        sigma = np.linalg.svd(matrix.double().numpy(), compute_uv=False)
        assert leading(matrix, 1, seed=seed, gap_tolerance=0.2).status == "not_unique"
        if abs(sigma[0] / sigma[1] - 1.005) > 2e-4:
            expected = "not_unique" if sigma[0] / sigma[1] < 1.005 else "ok"
            assert leading(matrix, 2, seed=seed).status == expected
    large = leading(noise(3000, 2000, 1).bfloat16(), 1, seed=1)
    assert large.status == "not_unique"
    assert large.passes < 40


def test_independent_noise_shows_chance_level_cosines_even_where_the_iteration_was_cut_short():
    layers, size = 60, 200
    found = [leading(noise(size, size, layer), 1, seed=1000 + layer, max_vectors=1) for layer in range(layers)]
    low, high = chance.band_of_mean(size, layers - 1)
    for vectors in (torch.cat([one.right for one in found]), torch.cat([one.left for one in found])):
        mean = float((vectors[:-1] * vectors[1:]).sum(1).abs().mean())
        # Three times the 95 % half-width: this must not fail one run in twenty.
        assert low - (high - low) < mean < high + (high - low)


def test_the_same_seed_gives_the_same_bits_and_another_seed_another_start():
    matrix = planted(200, 150, [1.2, *np.linspace(1, 0.1, 149)], seed=2).bfloat16()
    first, second, other = (leading(matrix, 4, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.right, second.right)
    assert torch.equal(first.left, second.left)
    assert not torch.equal(first.right, other.right)


@pytest.mark.parametrize("dim", [0, 1])
def test_joined_matrices_count_as_one(dim):
    whole = planted(360, 340, [1.3, *np.linspace(1, 0.1, 300)], seed=3).bfloat16()
    parts = torch.split(whole, [150, 20, 170] if dim == 1 else [150, 30, 180], dim)
    left, _, right = np.linalg.svd(whole.double().numpy(), full_matrices=False)
    for matrices in (parts, [part.clone() for part in parts]):
        found = leading(matrices, 3, seed=0, dim=dim)
        assert found.left.shape == (3, 360)
        assert found.status == "ok"
        assert_bounds_hold(found, left, right)


def test_small_matrices_are_joined_too():
    whole = noise(60, 50, 1)
    for dim in (0, 1):
        found = leading(torch.split(whole, 20, dim), 2, seed=0, dim=dim)
        assert torch.equal(found.right, leading(whole, 2, seed=0).right)


@pytest.mark.parametrize("view", ["transposed", "strided", "columns"])
def test_views_are_read_as_they_are(view):
    matrix = planted(200, 180, [1.3, *np.linspace(1, 0.1, 179)], seed=5).float()
    if view == "transposed":
        matrix = matrix.T.contiguous().T
    elif view == "strided":
        matrix = torch.stack([matrix, matrix], dim=2)[:, :, 0]
    else:
        matrix = torch.cat([noise(200, 30, 0), matrix, noise(200, 30, 1)], dim=1)[:, 30:210]
    left, _, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    for dtype in (torch.float32, torch.float64):
        found = leading(matrix.to(dtype), 1, seed=0, tolerance=1e-2)
        assert found.status == "ok"
        assert_bounds_hold(found, left, right)
        # The side that the iteration works on is the less certain one.
        assert (found.u1_error_bound > found.v1_error_bound) == (view == "transposed")


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(lanczos, "_HAS_ONEDNN", False)
    monkeypatch.setattr(lanczos, "_BLOCK", 2)
    matrix = planted(300, 200, [1.2, *np.linspace(1, 0.1, 199)], seed=2).bfloat16()
    left, _, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    found = leading(matrix, 3, seed=0)
    assert found.status == "ok"
    assert_bounds_hold(found, left, right)


def test_what_does_not_converge_says_so_and_its_bound_holds():
    matrix = planted(300, 200, [1.02, *np.linspace(1, 0.5, 199)], seed=2).float()
    left, _, right = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    found = leading(matrix, 1, seed=0, max_vectors=40)
    assert found.status == "not_converged"
    assert found.v1_error_bound > 1e-3
    assert_bounds_hold(found, left, right)


def test_a_clear_gap_needs_few_passes():
    matrix = planted(600, 500, [1.2, *np.arange(1.0, 500) ** -0.5], seed=2).bfloat16()
    assert leading(matrix, 1, seed=0).passes <= 8
