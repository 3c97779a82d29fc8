import math

import numpy as np
import pytest
import torch
from geocont import chance, continuity
from hypothesis import given, settings
from hypothesis import strategies as st


def rotation(size: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(
        torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ).Q


def test_cosine_of_equal_opposite_and_orthogonal_directions():
    vectors = torch.tensor([[1.0, 0], [-1, 0], [0, 1]])
    assert continuity.adjacent_cosines(vectors).tolist() == [1.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4, 40), seed=st.integers(0, 10**6), data=st.data())
def test_overlap_is_one_for_equal_subspaces_whatever_the_basis_and_matches_its_definition(size, seed, data):
    k = data.draw(st.integers(1, size - 1))
    basis, other, inside = rotation(size, seed)[:k], rotation(size, seed + 1)[:k], rotation(k, seed + 2)
    found = continuity.subspace_overlap(torch.stack([basis, inside @ basis, other]))
    assert float(found[0]) == pytest.approx(1.0, abs=1e-9)
    raw = np.linalg.norm((basis @ other.T).numpy()) ** 2 / k
    assert float(found[1]) == pytest.approx((raw - k / size) / (1 - k / size), abs=1e-9)


def test_overlap_of_random_subspaces_is_zero_on_average():
    values = [
        float(continuity.subspace_overlap(torch.stack([rotation(32, seed)[:4], rotation(32, seed + 1000)[:4]]))[0])
        for seed in range(200)
    ]
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(200)


def test_overlap_of_whole_spaces_does_not_exist():
    assert math.isnan(float(continuity.subspace_overlap(torch.stack([rotation(5, 1), rotation(5, 2)]))[0]))


def test_weighted_alignment_is_one_for_equal_layers_and_zero_for_swapped_indices():
    basis = rotation(6, 1)
    sigma = torch.tensor([[3.0, 2, 1, 0.5, 0.2, 0.1], [3.0, 2, 1, 0.5, 0.2, 0.1]])
    assert float(continuity.weighted_alignment(torch.stack([basis, basis]), sigma)[0]) == pytest.approx(1.0)
    swapped = basis[[1, 0, 3, 2, 5, 4]]
    assert float(continuity.weighted_alignment(torch.stack([basis, swapped]), sigma)[0]) == pytest.approx(0.0, abs=1e-9)


def test_weighted_alignment_matches_its_definition_term_by_term():
    first, second = rotation(5, 3), rotation(5, 4)
    sigma = torch.tensor([[4.0, 3, 2, 1, 0.5], [5.0, 1, 1, 1, 0.1]], dtype=torch.float64)
    share = (sigma**2 / (sigma**2).sum(1, keepdim=True)).numpy().mean(0)
    expected = sum(share[i] * abs(np.dot(first[i].numpy(), second[i].numpy())) for i in range(5))
    assert float(continuity.weighted_alignment(torch.stack([first, second]), sigma)[0]) == pytest.approx(expected)


def test_identity_share():
    assert float(continuity.identity_share(-0.3 * torch.eye(7))) == pytest.approx(1.0)
    assert float(continuity.identity_share(torch.tensor([[0.0, 1], [-1, 0]]))) == pytest.approx(0.0)
    noise = torch.randn(400, 20, 20, generator=torch.Generator().manual_seed(0))
    assert float(continuity.identity_share(noise).mean()) == pytest.approx(1 / 400, rel=0.3)


@pytest.mark.parametrize("dimension", [2, 3, 16, 256, 4096])
def test_chance_levels_match_simulation(dimension):
    draws = np.random.default_rng(0).standard_normal((20000, dimension)) if dimension < 300 else None
    if draws is None:
        assert chance.mean_cosine(dimension) == pytest.approx(math.sqrt(2 / (math.pi * dimension)), rel=1e-3)
        return
    # By symmetry the cosine with a random direction is distributed as the one with a fixed axis.
    cosines = np.abs(draws[:, 0]) / np.linalg.norm(draws, axis=1)
    assert chance.mean_cosine(dimension) == pytest.approx(cosines.mean(), rel=0.03)
    assert chance.standard_deviation_of_cosine(dimension) == pytest.approx(cosines.std(), rel=0.03)
    means = cosines.reshape(-1, 10).mean(1)
    low, high = chance.band_of_mean(dimension, 10)
    assert 0.92 < np.mean((means >= low) & (means <= high)) < 0.98


@settings(max_examples=40, deadline=None)
@given(size=st.integers(3, 40), seed=st.integers(0, 10**6), data=st.data())
def test_overlap_curve_is_the_overlap_for_every_k(size, seed, data):
    k = data.draw(st.integers(1, size))
    first, second = rotation(size, seed)[:k], rotation(size, seed + 1)[:k]
    curve = continuity.overlap_curve(first, second)
    assert len(curve) == min(k, size - 1)
    for leading, value in enumerate(curve, 1):
        pair = torch.stack([first[:leading], second[:leading]])
        assert value == pytest.approx(float(continuity.subspace_overlap(pair)[0]), abs=1e-9)


def test_overlap_curve_shows_where_layers_agree():
    basis, other = rotation(64, 0), rotation(64, 1)
    swapped = basis[[1, 0, 3, 2, 5, 4, 7, 6]]
    assert continuity.overlap_curve(basis[:8], swapped)[::7] == pytest.approx([-1 / 63, 1.0])
    assert continuity.overlap_curve(basis[:8], swapped)[1] == pytest.approx(1.0)
    only_first = torch.linalg.qr(torch.cat([basis[:1], other[:7]]).mT).Q.mT
    curve = continuity.overlap_curve(basis[:8], only_first)
    assert curve[0] == pytest.approx(1.0)
    assert curve[7] < 0.35


def test_share_covered():
    sigma = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    assert float(continuity.share_covered(sigma, torch.tensor([10.0, 10.0]))[0]) == pytest.approx((0.25 + 1) / 2)
    assert float(continuity.share_covered(sigma * 1e25, torch.tensor([1e26, 1e26]))[0]) == pytest.approx((0.25 + 1) / 2)
