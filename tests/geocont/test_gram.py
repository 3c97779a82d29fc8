import math

import pytest
import torch
from geocont import gram
from hypothesis import given, settings
from hypothesis import strategies as st


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotation(size: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator(seed), dtype=torch.float64)).Q


def layer(right: torch.Tensor, sigma: torch.Tensor, seed: int) -> torch.Tensor:
    """W with the given right singular vectors (rows) and singular values, and random left ones."""
    return (rotation(len(right), seed)[:, : len(sigma)] * sigma) @ right[: len(sigma)]


def truth(first: torch.Tensor, second: torch.Tensor, side: str) -> float:
    """By the definition, in float64."""
    centred = []
    for matrix in (first, second):
        rows = matrix.double() if side == "v" else matrix.double().mT
        whole = rows.mT @ rows
        centred.append(whole - whole.trace() / len(whole) * torch.eye(len(whole), dtype=torch.float64))
    return float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))


def exact(first: torch.Tensor, second: torch.Tensor, side: str) -> float:
    return gram.cosine(gram.exact(first, side), gram.exact(second, side))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _few_probes(monkeypatch):
    """As few as a large space has, which leaves something to see of their scatter."""
    monkeypatch.setattr(gram, "_PROBE_ENTRIES", 0)


Decomposition = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def decompose(matrix: torch.Tensor) -> Decomposition:
    return torch.linalg.svd(matrix.double(), full_matrices=False)


def sketched(
    matrix: torch.Tensor, side: str, leading: int = 8, seed: int | None = None, known: Decomposition | None = None
) -> gram.Sketch:
    left, sigma, right = known or decompose(matrix)
    frobenius = float(sigma.square().sum().sqrt())
    vectors = right[:leading] if side == "v" else left[:, :leading].mT
    signs = gram.probes(vectors.shape[1])
    if seed is not None:
        signs = torch.randint(0, 2, signs.shape, generator=generator(seed)).float() * 2 - 1
    products = gram.probe(matrix, side, signs, frobenius)
    return gram.sketch(products, signs, (sigma[:leading] / frobenius).square(), vectors)


SIZE = 128
HEAVY = torch.arange(1, SIZE + 1, dtype=torch.float64).rsqrt()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 30),
    other_rows=st.integers(1, 30),
    cols=st.integers(2, 30),
    seed=st.integers(0, 10**6),
    side=st.sampled_from(["v", "u"]),
)
def test_exact_cosine_is_its_definition_for_every_shape(rows, other_rows, cols, seed, side):
    first = torch.randn(rows, cols, generator=generator(seed))
    second = torch.randn(other_rows, cols, generator=generator(seed + 1))
    if side == "u":
        first, second = first.mT.contiguous(), second.mT.contiguous()
    assert exact(first, second, side) == pytest.approx(truth(first, second, side), abs=2e-5)


@pytest.mark.parametrize("side", ["v", "u"])
def test_both_forms_of_one_gram_matrix_agree(side, monkeypatch):
    monkeypatch.setattr(gram, "_ROWS", 7)
    monkeypatch.setattr(gram, "_LARGE_ROWS", 11)
    tall, wide = torch.randn(40, 24, generator=generator(0)), torch.randn(16, 24, generator=generator(1))
    if side == "u":
        tall, wide = tall.mT.contiguous(), wide.mT.contiguous()
    assert gram.exact(tall, side).matrix is not None
    assert gram.exact(wide, side).factor is not None
    for first, second in ((tall, wide), (wide, tall), (wide, wide + 1)):
        assert exact(first, second, side) == pytest.approx(truth(first, second, side), abs=2e-5)


def test_constructed_pairs():
    """The rows of the table of constructed pairs: what moves the cosine and what does not."""
    basis = rotation(SIZE, 0)
    base = layer(basis, HEAVY, 1)
    order = [index ^ 1 for index in range(SIZE)]
    cases = {
        "identical but for the other space": (layer(basis, HEAVY, 2), 1.0, 1e-4),
        "independent": (layer(rotation(SIZE, 3), HEAVY, 2), 0.0, 5 * gram.standard_deviation_by_chance(SIZE)),
        "neighbours swapped": (layer(basis[order], HEAVY, 2), 0.8, 0.2),
    }
    for name, (other, expected, within) in cases.items():
        value, error = gram.estimated_cosine(sketched(base, "v"), sketched(other, "v"))
        assert value == pytest.approx(expected, abs=within + 4 * error), name
        assert exact(base, other, "v") == pytest.approx(truth(base, other, "v"), abs=1e-5), name
        assert abs(value - truth(base, other, "v")) <= 4 * error + 1e-5, name


@pytest.mark.parametrize("turned", [False, True])
def test_what_leads_in_one_layer_alone_is_not_lost(turned, monkeypatch):
    monkeypatch.setattr(gram, "_PROBE_ENTRIES", 1 << 18)
    basis = rotation(SIZE, 0)
    first, second = layer(basis, HEAVY, 1), layer(basis[[1, 0, *range(2, SIZE)]], HEAVY, 2)
    if turned:
        first, second = second, first
    value, error = gram.estimated_cosine(sketched(first, "v", leading=1), sketched(second, "v", leading=3))
    assert abs(value - truth(first, second, "v")) <= 4 * error + 1e-5
    assert error < 0.03


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    spike=st.sampled_from([1.0, 3.0, 30.0]),
    side=st.sampled_from(["v", "u"]),
    scale=st.sampled_from([1.0, 1e-30, 1e30]),
)
def test_the_estimate_is_within_its_error_of_the_truth(seed, noise, spike, side, scale):
    sigma = HEAVY.clone()
    sigma[0] *= spike
    base = layer(rotation(SIZE, seed), sigma, seed + 1)
    other = math.sqrt(1 - noise**2) * base + noise * layer(rotation(SIZE, seed + 2), sigma, seed + 3)
    first, second = (matrix.float() * scale for matrix in (base, other))
    value, error = gram.estimated_cosine(sketched(first, side), sketched(second, side))
    # Five standard errors: 32 probes know their scatter only roughly.
    assert abs(value - truth(base, other, side)) <= 5 * error + 2e-5
    assert error < 0.03


def test_the_standard_error_is_the_scatter_over_probes():
    first, second = layer(rotation(SIZE, 0), HEAVY, 1).float(), layer(rotation(SIZE, 2), HEAVY, 3).float()
    known = decompose(first), decompose(second)
    found = [
        gram.estimated_cosine(
            sketched(first, "v", seed=seed, known=known[0]), sketched(second, "v", seed=seed, known=known[1])
        )
        for seed in range(60)
    ]
    values, errors = torch.tensor(found, dtype=torch.float64).unbind(1)
    assert float(values.std() / errors.mean()) == pytest.approx(1.0, abs=0.3)
    assert float(values.mean()) == pytest.approx(truth(first, second, "v"), abs=4 * float(values.std()) / math.sqrt(60))


def test_deflation_takes_a_spike_out_of_the_noise():
    sigma = HEAVY.clone()
    sigma[0] *= 5
    first, second = layer(rotation(SIZE, 0), sigma, 1).float(), layer(rotation(SIZE, 2), sigma, 3).float()
    _, with_it = gram.estimated_cosine(sketched(first, "v"), sketched(second, "v"))
    _, without = gram.estimated_cosine(sketched(first, "v", leading=0), sketched(second, "v", leading=0))
    assert with_it < without / 5


@pytest.mark.parametrize("side", ["v", "u"])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_those_of_the_gram_matrix_in_every_type(side, native, dtype, monkeypatch):
    monkeypatch.setattr(gram, "_multiplies_bfloat16", lambda _: native)
    monkeypatch.setattr(gram, "_ROWS", 32)
    matrix = torch.randn(100, 72, generator=generator(0)).to(dtype)
    rows = matrix.double() if side == "v" else matrix.double().mT
    signs = gram.probes(rows.shape[1])
    products = gram.probe(matrix, side, signs, float(rows.norm()))
    expected = signs.double() @ (rows.mT @ rows) / rows.norm() ** 2
    rounding = 1e-2 if dtype == torch.bfloat16 and native else 1e-5
    assert float((products - expected).norm() / expected.norm()) < rounding
    assert products.dtype == torch.float32


def test_bfloat16_products_hardly_move_the_cosine(monkeypatch):
    sigma = HEAVY.clone()
    sigma[0] *= 10
    matrices = [layer(rotation(SIZE, seed), sigma, seed + 1).bfloat16() for seed in (0, 2)]
    found = []
    for native in (True, False):
        monkeypatch.setattr(gram, "_multiplies_bfloat16", lambda _, native=native: native)
        found.append(gram.estimated_cosine(*(sketched(matrix, "v") for matrix in matrices))[0])
    assert found[0] == pytest.approx(found[1], abs=3e-4)


def test_probes_are_signs_and_the_same_for_every_layer_of_a_dimension(monkeypatch):
    monkeypatch.setattr(gram, "_PROBE_ENTRIES", 1 << 17)
    signs = gram.probes(50)
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(signs, gram.probes(50))
    assert signs.shape == ((1 << 17) // 50, 50)
    assert gram.probes(8192).shape == (32, 8192)


def test_equal_layers_have_the_cosine_one_and_no_error():
    matrix = torch.randn(90, 60, generator=generator(0))
    value, error = gram.estimated_cosine(sketched(matrix, "v"), sketched(matrix.clone(), "v"))
    assert value == pytest.approx(1.0, abs=1e-6)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert exact(matrix, matrix.clone(), "v") == pytest.approx(1.0, abs=1e-6)


def test_a_flat_spectrum_has_no_centred_cosine():
    rotated = rotation(16, 0).float()
    assert math.isnan(exact(rotated, torch.randn(16, 16, generator=generator(1)), "v"))


def test_chance_level_is_the_scatter_of_independent_layers():
    values = [
        exact(layer(rotation(24, s), HEAVY[:24], 0), layer(rotation(24, s + 500), HEAVY[:24], 0), "v")
        for s in range(300)
    ]
    scatter = torch.tensor(values)
    assert float(scatter.mean()) == pytest.approx(0.0, abs=4 * float(scatter.std()) / math.sqrt(300))
    assert float(scatter.std()) == pytest.approx(gram.standard_deviation_by_chance(24), rel=0.15)
