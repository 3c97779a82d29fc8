"""The centred Gram cosine: how alike the whole spectra of two layers lie in one space, whatever the bases inside.

For a matrix W, y = W x, and its side v (input space, A = WᵀW, d = columns) or u (output space, A = W Wᵀ, d = rows) it
is the cosine of A₀ = A − (tr A/d)·I and B₀ in the Frobenius product: 1 for equal layers, 0 for independent ones with a
standard deviation of √(2/((d−1)(d+2))) over random rotations, for any spectra. Large singular values count most: σ⁴.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from geocont import blocks

Side = Literal["v", "u"]

# Probes of a large space; smaller ones get more, for the same work.
_FEWEST_PROBES, _PROBE_ENTRIES = 32, 1 << 17
# Rows turned into float32 at a time: the block stays near the core.
_ROWS = 256
# Rows at a time where two tall matrices meet: here what counts is how often the other one is turned into float32.
_LARGE_ROWS = 1024


def standard_deviation_by_chance(dimension: int) -> float:
    """Standard deviation of the centred Gram cosine of independent layers, whose mean is 0: √(2/((d−1)(d+2)))."""
    return math.sqrt(2 / ((dimension - 1) * (dimension + 2))) if dimension > 1 else 0.0


@dataclass(frozen=True)
class Gram:
    """A matrix A = XᵀX, exactly: as itself, or as its factor X [r, d] where that is smaller. `trace` = ‖X‖²_F."""

    dimension: int
    trace: float
    matrix: Float[Tensor, "d d"] | None = None
    factor: Float[Tensor, "r d"] | None = None


def exact(matrix: Float[Tensor, "m n"], side: Side) -> Gram:
    """The Gram matrix of one side, computed in float32 from any float type.

    Where it would be larger than `matrix`, a copy of that one is kept instead.
    """
    rows = matrix if side == "v" else matrix.mT
    dimension = rows.shape[1]
    if rows.shape[0] < dimension:
        return Gram(dimension, sum(_square_sum(block) for block in blocks.in_float32(rows, _ROWS)), factor=rows.clone())
    total = torch.zeros(dimension, dimension, device=matrix.device)
    for block in blocks.in_float32(rows, _LARGE_ROWS):
        total.addmm_(block.mT, block)
    return Gram(dimension, float(wide(total.diagonal()).sum()), matrix=total)


def cosine(first: Gram, second: Gram) -> float:
    """Centred Gram cosine of two layers in one space, −1…1. NaN where one of them is a multiple of a rotation.

    <A₀, B₀> = <A, B> − tr A·tr B/d; for two factors <XᵀX, YᵀY> = ‖X Yᵀ‖²_F.
    """

    def centred(one: Gram, other: Gram) -> float:
        return _inner(one, other) - one.trace * other.trace / one.dimension

    if first is second:
        return 1.0
    norms = max(centred(first, first), 0.0) * max(centred(second, second), 0.0)
    # What rounding leaves of a flat spectrum is no direction.
    if norms <= (1e-6 * first.trace * second.trace / first.dimension) ** 2:
        return math.nan
    return min(max(centred(first, second) / math.sqrt(norms), -1.0), 1.0)


@dataclass(frozen=True)
class Sketch:
    """What ±1 probes z show of A/tr A = V(D)Vᵀ + c·I + H, split so that little is left to chance.

    The leading eigenpairs are taken out exactly, and c is the mean of the other eigenvalues, so that H has trace 0.

    Attributes:
        vectors: V, the leading eigenvectors as rows, orthonormal.
        excess: D, the leading eigenvalues less c.
        probed: z·V for each probe.
        remainder: H z for each probe.
    """

    vectors: Float[Tensor, "k d"]
    excess: Float[Tensor, " k"]
    probed: Float[Tensor, "b k"]
    remainder: Float[Tensor, "b d"]


def probes(dimension: int) -> Float[Tensor, "b d"]:
    """The ±1 probes of a space: the same ones for every layer, so that equal layers have the cosine 1.

    32 of them from 4096 dimensions on, more in smaller spaces.
    """
    generator = torch.Generator().manual_seed(dimension)
    count = max(_FEWEST_PROBES, _PROBE_ENTRIES // dimension)
    return torch.randint(0, 2, (count, dimension), generator=generator).float().mul_(2).sub_(1)


def probe(
    matrix: Float[Tensor, "m n"], side: Side, signs: Float[Tensor, "b d"], frobenius: float
) -> Float[Tensor, "b d"]:
    """A z/tr A for each probe z, with A = WᵀW (side v) or W Wᵀ (side u), without ever forming A.

    bfloat16 weights are multiplied as they are where the hardware can: rounding the products to bfloat16 moves the
    cosine by about 1e-4 at d = 200 and less above, well under its standard error.
    """
    scale = 1 / frobenius
    if matrix.dtype == torch.bfloat16 and _multiplies_bfloat16(matrix.device):
        factor = matrix if side == "v" else matrix.mT
        image = (signs.to(matrix) @ factor.mT) * scale
        return ((image @ factor) * scale).float()
    signs = signs.to(matrix.device, torch.float32)
    result = torch.zeros_like(signs)
    if side == "v":
        for block in blocks.in_float32(matrix, _ROWS):
            result.addmm_((signs @ block.mT) * scale, block)
        return result * scale
    image = torch.zeros(len(signs), matrix.shape[1], device=matrix.device)
    for part, block in zip(torch.split(signs, _ROWS, 1), blocks.in_float32(matrix, _ROWS), strict=True):
        image.addmm_(part, block)
    image *= scale
    return torch.cat([image @ block.mT for block in blocks.in_float32(matrix, _ROWS)], 1) * scale


def sketch(
    products: Float[Tensor, "b d"],
    signs: Float[Tensor, "b d"],
    shares: Float[Tensor, " k"],
    vectors: Float[Tensor, "k d"],
) -> Sketch:
    """Take what is known out of probed products.

    Args:
        products: A z/tr A, from `probe`.
        signs: the probes z.
        shares: the leading eigenvalues over the trace, σ_i²/‖W‖²_F.
        vectors: their eigenvectors as rows. They need not be accurate: an error only leaves more to the probes.
    """
    signs, vectors = signs.to(products), vectors.to(products)
    shares = shares.to(products)
    dimension, known = vectors.shape[1], vectors.shape[0]
    rest = (1 - float(shares.double().sum())) / (dimension - known) if dimension > known else 0.0
    excess = shares - rest
    probed = signs @ vectors.mT
    return Sketch(vectors, excess, probed, products - (probed * excess) @ vectors - rest * signs)


def estimated_cosine(first: Sketch, second: Sketch) -> tuple[float, float]:
    """Centred Gram cosine of two sketched layers, and its standard error from the scatter over the probes.

    Hutchinson's estimator <A, B> = E (A z)·(B z) (Hutchinson 1990), deflated by the leading eigenvectors of each layer
    (in the spirit of Hutch++, Meyer et al. 2021); the error of the quotient is that of its linear expansion.
    """
    if first is second:
        return 1.0, 0.0
    inner, square, other_square = _probed(first, second), _probed(first, first), _probed(second, second)
    norms = float(square.mean() * other_square.mean())
    if not norms > 0:
        return math.nan, math.nan
    value = float(inner.mean()) / math.sqrt(norms)
    scatter = inner / math.sqrt(norms) - value / 2 * (square / square.mean() + other_square / other_square.mean())
    error = float(scatter.std()) / math.sqrt(len(scatter))
    return min(max(value, -1.0), 1.0), error


def _probed(first: Sketch, second: Sketch) -> Float[Tensor, " b"]:
    """<A₀, B₀> of two layers as each probe shows it, in float64."""
    dimension = first.vectors.shape[1]
    overlap = (first.vectors @ second.vectors.mT).double().square()
    excess, other_excess = first.excess.double(), second.excess.double()
    known = excess @ overlap @ other_excess - excess.sum() * other_excess.sum() / dimension
    crossed = first.probed * first.excess * (second.remainder @ first.vectors.mT)
    crossed_back = second.probed * second.excess * (first.remainder @ second.vectors.mT)
    rest = (first.remainder * second.remainder).double().sum(1)
    return known + crossed.double().sum(1) + crossed_back.double().sum(1) + rest


def wide(values: Tensor) -> Tensor:
    """In float64, on the device where that has it."""
    return _with_float64(values).double()


def _with_float64(values: Tensor) -> Tensor:
    return values.cpu() if values.device.type == "mps" else values


def _square_sum(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(_with_float64(values), dtype=torch.float64)) ** 2


def _inner(first: Gram, second: Gram) -> float:
    """<A, B> in the Frobenius product."""
    if first.matrix is not None and second.matrix is not None:
        pairs = zip(torch.split(first.matrix, _ROWS), torch.split(second.matrix, _ROWS), strict=True)
        return math.fsum(float((wide(one) * wide(other)).sum()) for one, other in pairs)
    if first.matrix is None and second.matrix is None:
        assert first.factor is not None
        assert second.factor is not None
        return math.fsum(
            _square_sum(one @ other.mT)
            for one in blocks.in_float32(first.factor, _LARGE_ROWS)
            for other in blocks.in_float32(second.factor, _LARGE_ROWS)
        )
    whole, factor = (first.matrix, second.factor) if first.matrix is not None else (second.matrix, first.factor)
    assert whole is not None
    assert factor is not None
    return math.fsum(float(wide((block @ whole) * block).sum()) for block in blocks.in_float32(factor, _LARGE_ROWS))


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type != "cpu":
        return True
    # Elsewhere on a CPU such products are emulated, at a hundredth of the speed.
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(supported and supported())
