"""What an analysis measures of one matrix, and of two that follow each other.

A matrix may be the experts of a layer: several parts that count as one, joined on their outputs (readers: they share
the input space) or on their inputs (writers). Only the shared side has vectors then: experts have no common basis on
the other one.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from geocont import continuity, gram, lanczos
from geocont.results import MatrixResult, PairResult, Vectors

VERSION = 1
"""Grows when the same matrix would be measured differently."""

# Where a space has at most so many dimensions, its Gram matrix costs little more than probing it would.
_LARGEST_EXACT_GRAM = 768

Spectrum = gram.Gram | gram.Sketch


@dataclass(frozen=True)
class Settings:
    """How to measure: vectors a side, when v1 counts as unique (σ1/σ2 − 1), and whether Gram cosines are exact."""

    top_k: int = 8
    gap_tolerance: float = 0.005
    exact_gram: bool = False


@dataclass(frozen=True)
class Spectra:
    """What is needed of a matrix to compare its whole spectrum with the next layer's, in each space that it has."""

    v: Spectrum | None = None
    u: Spectrum | None = None


@dataclass(frozen=True)
class Parts:
    """The matrices of one projection of one layer. `shared` is the side on which several of them meet, else None."""

    matrices: tuple[Float[Tensor, "_ _"], ...]
    shared: gram.Side | None = None

    @property
    def sides(self) -> tuple[gram.Side, ...]:
        return ("v", "u") if self.shared is None else (self.shared,)


class SummedGram:
    """The Gram matrix of many parts on the side that they share, from one part at a time."""

    def __init__(self, side: gram.Side) -> None:
        self._side = side
        self._total: Tensor | None = None
        self._fingerprints: list[str] = []

    def add(self, matrix: Float[Tensor, "m n"]) -> None:
        rows = (matrix if self._side == "v" else matrix.mT).float()
        if self._total is None:
            self._total = torch.zeros(rows.shape[1], rows.shape[1], device=matrix.device)
        self._total.addmm_(rows.mT, rows)
        self._fingerprints.append(fingerprint(matrix))

    def gram(self) -> gram.Gram:
        """The sum so far."""
        assert self._total is not None
        return gram.Gram(len(self._total), float(gram.wide(self._total.diagonal()).sum()), matrix=self._total)

    def measure(self, settings: Settings, seed: int) -> MatrixResult:
        """As `measure`: the sum's eigenvectors are the singular vectors of the joined parts, its eigenvalues σ²."""
        whole = self.gram()
        assert whole.matrix is not None
        squared = (1 + settings.gap_tolerance) ** 2 - 1
        found = lanczos.leading(whole.matrix, settings.top_k, seed=seed, gap_tolerance=squared)
        frobenius = math.sqrt(whole.trace) if math.isfinite(whole.trace) else None
        sigma = found.singular_values.clamp_min(0).sqrt()
        bound = found.v1_error_bound
        return MatrixResult(
            singular_values=tuple(sigma.tolist()),
            left=_vectors(found.right, self._side == "u"),
            right=_vectors(found.right, self._side == "v"),
            gap=None if found.gap is None else _finite(math.sqrt(1 + found.gap) - 1),
            stable_rank=_stable_rank(sigma, frobenius),
            frobenius=_finite(frobenius),
            v1_error_bound=_finite(bound) if self._side == "v" else None,
            u1_error_bound=_finite(bound) if self._side == "u" else None,
            status=found.status,
            fingerprint=" ".join(self._fingerprints),
        )

    def spectra(self, settings: Settings, result: MatrixResult) -> Spectra:
        """As `spectra`, on the shared side."""
        if not _is_regular(result):
            return Spectra()
        whole = self.gram()
        if settings.exact_gram or whole.dimension <= _LARGEST_EXACT_GRAM:
            return Spectra(**{self._side: whole})
        assert whole.matrix is not None
        signs = gram.probes(whole.dimension).to(whole.matrix.device)
        return Spectra(**{self._side: _sketch((signs / whole.trace) @ whole.matrix, signs, result, self._side)})


def measure(parts: Parts, settings: Settings, seed: int) -> MatrixResult:
    """The leading singular triplets of a matrix, or of several joined on the side that they do not share."""
    count = min(settings.top_k, *(min(matrix.shape) for matrix in parts.matrices))
    joined = list(parts.matrices) if len(parts.matrices) > 1 else parts.matrices[0]
    dim: Literal[0, 1] = 1 if parts.shared == "u" else 0
    found = lanczos.leading(joined, count, seed=seed, dim=dim, gap_tolerance=settings.gap_tolerance)
    return MatrixResult(
        singular_values=tuple(found.singular_values.tolist()),
        left=_vectors(found.left, "u" in parts.sides),
        right=_vectors(found.right, "v" in parts.sides),
        gap=_finite(found.gap),
        stable_rank=_finite(found.stable_rank),
        frobenius=_finite(found.frobenius),
        v1_error_bound=_finite(found.v1_error_bound) if "v" in parts.sides else None,
        u1_error_bound=_finite(found.u1_error_bound) if "u" in parts.sides else None,
        status=found.status,
        fingerprint=" ".join(fingerprint(matrix) for matrix in parts.matrices),
    )


def spectra(parts: Parts, settings: Settings, result: MatrixResult) -> Spectra:
    """What is kept of the whole spectrum; nothing of a zero or non-finite matrix."""
    if not _is_regular(result):
        return Spectra()
    return Spectra(**{side: _spectrum(parts, side, settings, result) for side in parts.sides})


def compare(first: Spectra, second: Spectra) -> PairResult:
    """The centred Gram cosines of two layers in each space that both have, with their standard errors."""
    v, u = _gram_cosine(first.v, second.v), _gram_cosine(first.u, second.u)
    return PairResult(v_gram=v[0], v_gram_error=v[1], u_gram=u[0], u_gram_error=u[1])


def cosine(first: Float[Tensor, " n"] | None, second: Float[Tensor, " n"] | None) -> float | None:
    """|<x, x'>| of two unit vectors, at most 1; None where one is missing or their lengths differ."""
    if first is None or second is None or first.shape != second.shape:
        return None
    return min(abs(float(first.double() @ second.double())), 1.0)


@dataclass(frozen=True)
class Leading:
    """What the leading k vectors of two layers say beside their first cosine; empty where a space differs."""

    v_overlap: tuple[float, ...]
    u_overlap: tuple[float, ...]
    v_weighted: float | None
    u_weighted: float | None
    weighted_share: float | None


def compare_leading(first: MatrixResult, second: MatrixResult) -> Leading:
    """Subspace overlaps for k = 1…K and σ²-weighted alignments over the leading K of two layers."""
    count = min(len(first.singular_values), len(second.singular_values))
    if not (count and _is_regular(first) and _is_regular(second)):
        return Leading((), (), None, None, None)
    # Relative to ‖W‖, because the square of a large or a small σ leaves the range of numbers.
    sigma = torch.tensor(
        [[value / (one.frobenius or 1.0) for value in one.singular_values[:count]] for one in (first, second)],
        dtype=torch.float64,
    )
    overlaps: dict[str, tuple[float, ...]] = {}
    weighted: dict[str, float | None] = {}
    for side in ("v", "u"):
        blocks = [torch.from_numpy((one.right if side == "v" else one.left).rows()) for one in (first, second)]
        if blocks[0].shape[1] == blocks[1].shape[1] and all(len(block) for block in blocks):
            overlaps[side] = continuity.overlap_curve(*blocks)
            pair = torch.stack([block[:count] for block in blocks])
            weighted[side] = min(float(continuity.weighted_alignment(pair, sigma)[0]), 1.0)
    share = float(continuity.share_covered(sigma, torch.ones(2))[0])
    return Leading(
        overlaps.get("v", ()), overlaps.get("u", ()), weighted.get("v"), weighted.get("u"), share if weighted else None
    )


def fingerprint(matrix: Float[Tensor, "m n"]) -> str:
    """What tells whether two matrices hold the same bytes: a sum over all of them, and a hash of some of the rows."""
    matrix, _ = _by_rows(matrix, "v")
    whole = matrix.contiguous().flatten().view(torch.uint8)
    even = len(whole) // 8 * 8
    total = int(whole[:even].view(torch.int64).sum()) + int(whole[even:].sum(dtype=torch.int64))
    some = matrix[:: max(len(matrix) // 16, 1)].contiguous().flatten().view(torch.uint8).cpu()
    digest = hashlib.blake2b(some.numpy().tobytes(), digest_size=12)
    digest.update(f"{total} {tuple(matrix.shape)} {matrix.dtype}".encode())
    return digest.hexdigest()


def _spectrum(parts: Parts, side: gram.Side, settings: Settings, result: MatrixResult) -> Spectrum:
    first = parts.matrices[0]
    dimension = first.shape[1] if side == "v" else first.shape[0]
    if settings.exact_gram or dimension <= _LARGEST_EXACT_GRAM:
        if len(parts.matrices) == 1:
            return gram.exact(*_by_rows(first, side))
        summed = SummedGram(side)
        for matrix in parts.matrices:
            summed.add(matrix)
        return summed.gram()
    signs = gram.probes(dimension)
    frobenius = result.frobenius or 1.0
    products = torch.stack([gram.probe(*_by_rows(matrix, side), signs, frobenius) for matrix in parts.matrices]).sum(0)
    return _sketch(products, signs, result, side)


def _by_rows(matrix: Tensor, side: gram.Side) -> tuple[Tensor, gram.Side]:
    """A matrix that is stored by columns, seen as the transposed one, whose other side is meant: rows lie together."""
    if abs(matrix.stride(0)) >= abs(matrix.stride(1)):
        return matrix, side
    return matrix.mT, "u" if side == "v" else "v"


def _sketch(products: Tensor, signs: Tensor, result: MatrixResult, side: gram.Side) -> gram.Sketch:
    vectors = torch.from_numpy((result.right if side == "v" else result.left).rows())
    shares = torch.tensor([(sigma / (result.frobenius or 1.0)) ** 2 for sigma in result.singular_values])
    return gram.sketch(products.cpu(), signs.cpu(), shares, vectors)


def _gram_cosine(first: Spectrum | None, second: Spectrum | None) -> tuple[float | None, float | None]:
    match first, second:
        case gram.Sketch(), gram.Sketch() if first.vectors.shape[1] == second.vectors.shape[1]:
            value, error = gram.estimated_cosine(first, second)
        case gram.Gram(), gram.Gram() if first.dimension == second.dimension:
            value, error = gram.cosine(first, second), 0.0
        case _:
            return None, None
    return (value, error) if math.isfinite(value) else (None, None)


def _is_regular(result: MatrixResult) -> bool:
    return result.status not in ("zero", "not_finite")


def _vectors(rows: Float[Tensor, "k n"], wanted: bool) -> Vectors:
    return Vectors.of((rows if wanted else rows[:0]).float().cpu().numpy())


def _stable_rank(sigma: Tensor, frobenius: float | None) -> float | None:
    if frobenius is None or not len(sigma) or not float(sigma[0]) > 0:
        return None
    return _finite((frobenius / float(sigma[0])) ** 2)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
