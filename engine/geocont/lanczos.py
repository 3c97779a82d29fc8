"""Leading singular triplets of one large matrix, in about ten passes over it and with an error bound that was checked.

Block Lanczos on AᵀA (Golub & Underwood 1977) with full reorthogonalisation, float64 Rayleigh–Ritz projection and a stop
by the Davis–Kahan theorem, then one more pass which measures the residual that the reported bound is made of. What
decides the time is reading A: a step multiplies the whole block of vectors by A and by Aᵀ while a few rows of A, turned
into float32, stay in the cache. The vectors are kept as rows on the CPU; only the products run where the matrix is.

One seed per matrix: a start block shared by the layers of a model would make independent layers look aligned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from geocont import blocks, spectra

# The smaller dimension up to which LAPACK in float64 takes milliseconds; the answer then is as good as exact.
_LARGEST_EXACT = 128
# Rows turned into float32 at a time: few enough to stay in the cache, many enough to feed the kernel.
_CPU_ROWS, _CPU_ENTRIES, _GPU_ENTRIES = 256, 1 << 21, 1 << 25
# Frobenius norms between which no product of a step leaves the comfortable range of float32.
_SMALLEST_NORM, _LARGEST_NORM = 1e-5, 1e5
_LARGEST_EXPONENT = 1000
# Relative rounding of a product in float32, as it shows in residuals.
_ROUNDING = 8 * torch.finfo(torch.float32).eps
# The iteration stops this much under the tolerance, so that verification, which sees rounding, confirms it.
_SAFETY = 0.8
# What the later triplets are resolved to: a part of this size may lie in vectors whose σ² differs by more than the
# given fraction. What lies closer is told apart only if the iteration does it by the way.
_LATER_TOLERANCE, _LATER_WINDOW = 1e-2, 0.05

_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
# oneDNN serves four vectors in the time of two; where several are wanted, more vectors make fewer passes.
_BLOCK, _LARGEST_BLOCK = (4, 8) if _HAS_ONEDNN else (2, 4)

Status = Literal["ok", "not_unique", "zero", "not_finite", "not_converged"]


@dataclass(frozen=True)
class Leading:
    """Leading singular triplets of one matrix [m, n], largest first; all tensors on the CPU.

    Attributes:
        singular_values: σ_i in float64.
        left: u_i as rows, float32; a row of zeros where σ_i is zero to rounding.
        right: v_i as rows, float32; likewise.
        gap: σ1/σ2 − 1, infinite where σ2 is zero to rounding or there is none; None without a σ1. With a single triplet
            σ2 is only as good as v1 needed it, and the gap an estimate from above.
        v1_error_bound, u1_error_bound: bounds on the sine of the angle to the true vector; 1 where nothing is known.
        frobenius: ‖W‖_F. None where W is not finite.
        stable_rank: ‖W‖²_F/σ1². None without a σ1.
        passes: how often the whole matrix was read.
        status: `ok` (v1 and u1 are known to the tolerance), `not_unique` (the gap is under the gap tolerance),
            `not_converged` (the tolerance was not reached; the bounds hold), `zero`, `not_finite` (no triplets).
    """

    singular_values: Float64[Tensor, " k"]
    left: Float[Tensor, "k m"]
    right: Float[Tensor, "k n"]
    gap: float | None
    v1_error_bound: float | None
    u1_error_bound: float | None
    frobenius: float | None
    stable_rank: float | None
    passes: int
    status: Status


@torch.no_grad()
def leading(
    matrices: Float[Tensor, "m n"] | Sequence[Float[Tensor, "_ _"]],
    count: int = 1,
    *,
    seed: int,
    dim: Literal[0, 1] = 0,
    tolerance: float = 1e-3,
    gap_tolerance: float = 0.005,
    max_vectors: int = 400,
) -> Leading:
    """The `count` leading singular triplets of a matrix of any floating dtype, on a CPU, CUDA or MPS device.

    Several matrices count as one, joined as `torch.cat(matrices, dim)` would; that is never built. With dim=0 the right
    vectors are the ones they share, with dim=1 the left ones.

    v1 is known to `tolerance` (sine of the angle) when the status is `ok`. The iteration also stops when σ1/σ2 − 1 is
    certainly under `gap_tolerance`; with 0 only rounding makes a v1 not unique. Later triplets are resolved as far as
    subspaces need it: all but 1e-2 of each lies in singular vectors whose σ is within 2.5 %. A start block of random
    normal vectors from `seed`; the same seed gives the same result. The iteration gives up at `max_vectors` vectors.

    The bound is ‖AᵀA v − σ² v‖/(σ1² − σ2²) from Davis & Kahan (1970). It is rigorous but for σ2, of which only a lower
    bound can be known: σ2² is taken as the second Ritz value plus its residual, and the block start makes it unlikely
    that a larger one was missed.
    """
    parts = [matrices] if isinstance(matrices, Tensor) else list(matrices)
    rows, columns = _joined_shape(parts, dim)
    count = min(count, rows, columns)
    if min(rows, columns) <= _LARGEST_EXACT:
        return _decompose(torch.cat([part.cpu().double() for part in parts], dim), count, tolerance, gap_tolerance)
    # Rows that lie together in memory make the quicker blocks, even of a matrix 256 times as wide as tall.
    transposed = dim == 1 or (len(parts) == 1 and parts[0].stride(0) < parts[0].stride(1))
    if transposed:
        parts = [part.mT for part in parts]
    found = _iterate(_Gram(parts), count, seed, tolerance, gap_tolerance, max_vectors)
    return _transpose(found) if transposed else found


def _joined_shape(parts: list[Tensor], dim: int) -> tuple[int, int]:
    joined = sum(part.shape[dim] for part in parts)
    return (joined, parts[0].shape[1]) if dim == 0 else (parts[0].shape[0], joined)


def _transpose(found: Leading) -> Leading:
    return replace(
        found,
        left=found.right,
        right=found.left,
        v1_error_bound=found.u1_error_bound,
        u1_error_bound=found.v1_error_bound,
    )


def _decompose(matrix: Float64[Tensor, "m n"], count: int, tolerance: float, gap_tolerance: float) -> Leading:
    """The triplets of a small matrix by LAPACK in float64."""
    if matrix.isfinite().all():
        full = spectra.exact(matrix)
        if full.regular:
            sigma = full.singular_values
            # What is handed out is rounded to float32.
            bound = float(full.v1_error_bound) + torch.finfo(torch.float32).eps
            return _conclude(
                sigma[:count],
                full.left[:count],
                full.right[:count],
                second=float(sigma[1]) if len(sigma) > 1 else 0.0,
                certainly_close=False,
                bounds=(bound, bound),
                frobenius=float(full.frobenius),
                passes=1,
                tolerance=tolerance,
                gap_tolerance=gap_tolerance,
                rounding=min(matrix.shape) * torch.finfo(torch.float64).eps,
            )
        return _without_triplets("zero", count, matrix.shape, passes=1)
    return _without_triplets("not_finite", count, matrix.shape, passes=1)


def _without_triplets(
    status: Literal["zero", "not_finite"], count: int, shape: tuple[int, ...], passes: int
) -> Leading:
    kept = count if status == "zero" else 0
    return Leading(
        torch.zeros(kept, dtype=torch.float64),
        torch.zeros(kept, shape[0]),
        torch.zeros(kept, shape[1]),
        gap=None,
        v1_error_bound=None,
        u1_error_bound=None,
        frobenius=0.0 if status == "zero" else None,
        stable_rank=None,
        passes=passes,
        status=status,
    )


def _conclude(
    sigma: Float64[Tensor, " k"],
    left: Float[Tensor, "k m"],
    right: Float[Tensor, "k n"],
    *,
    second: float,
    certainly_close: bool,
    bounds: tuple[float, float],
    frobenius: float,
    passes: int,
    tolerance: float,
    gap_tolerance: float,
    rounding: float,
) -> Leading:
    """What is reported: a vector where σ_i is zero to rounding means nothing and becomes zero."""
    first = float(sigma[0])
    gap = first / second - 1 if second > _ROUNDING * first else math.inf
    status: Status = "ok"
    if certainly_close or gap < max(gap_tolerance, rounding):
        status = "not_unique"
    elif not max(bounds) <= tolerance:
        status = "not_converged"
    exists = (sigma > _ROUNDING * first)[:, None]
    return Leading(
        sigma,
        left=torch.where(exists, left, 0.0).float(),
        right=torch.where(exists, right, 0.0).float(),
        gap=gap,
        v1_error_bound=min(bounds[0], 1.0),
        u1_error_bound=min(bounds[1], 1.0),
        frobenius=frobenius,
        stable_rank=(frobenius / first) ** 2,
        passes=passes,
        status=status,
    )


def _product(a: Float[Tensor, "row n"], b: Float[Tensor, "m n"]) -> Float[Tensor, "row m"]:
    """A Bᵀ for an A of a few rows.

    oneDNN uses AVX-512 wherever it exists; the MKL that torch is built with does so on Intel's processors only.
    """
    if _HAS_ONEDNN and len(a) > 1 and a.device.type == "cpu":
        return torch.ops.mkldnn._linear_pointwise.default(a, b, None, "none", [], "")  # type: ignore[no-any-return]
    return torch.mm(a, b.t())


class _Gram:
    """The operator x ↦ AᵀA x and its by-product A x, for a matrix given in parts that lie on top of each other.

    `scale` is the power of two that brings ‖A‖ into the range of float32; `frobenius`, known after the first pass, is
    the norm of the scaled matrix.
    """

    def __init__(self, parts: Sequence[Float[Tensor, "_ n"]]) -> None:
        self.rows, self.columns = sum(len(part) for part in parts), parts[0].shape[1]
        self.scale, self.frobenius, self.passes = 1.0, math.nan, 0
        self._device = parts[0].device
        entries = _CPU_ENTRIES if self._device.type == "cpu" else _GPU_ENTRIES
        step = max(16, entries // self.columns)
        if self._device.type == "cpu":
            step = min(step, _CPU_ROWS)
        self._blocks = [block for part in parts for block in torch.split(part, step)]
        self._scratch = torch.empty(step * self.columns, device=self._device)

    def largest_entry(self) -> float:
        """The largest magnitude of an entry; NaN or infinite where there is one that is."""
        self.passes += 1
        return float(torch.stack([block.abs().max() for block in self._blocks]).max())

    def __call__(self, x: Float[Tensor, "b n"]) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b n"]]:
        """A x and AᵀA x for the rows of x: one pass over A."""
        self.passes += 1
        first_time = math.isnan(self.frobenius)
        x = x.to(self._device)
        images, product, norms = [], torch.zeros_like(x), []
        for block in self._blocks:
            rows = self._float32(block)
            image = _product(x, rows)
            product += _product(image, rows.t())
            images.append(image)
            if first_time:
                norms.append(torch.linalg.vector_norm(rows))
        if first_time:
            self.frobenius = math.sqrt(float(torch.stack(norms).cpu().double().square().sum()))
        return torch.cat(images, dim=1).cpu(), product.cpu()

    def rescale(self, scale: float) -> None:
        self.scale, self.frobenius = scale, math.nan

    def _float32(self, block: Float[Tensor, "row n"]) -> Float[Tensor, "row n"]:
        dense = block.is_contiguous() or block.t().is_contiguous()
        if self.scale == 1.0 and block.dtype == torch.float32 and dense:
            return block
        # Without holes, for products with those are slow.
        rows = blocks.laid_out_as(block, self._scratch)
        if self.scale == 1.0:
            return rows.copy_(block)
        # Neither the entries nor the scale need fit into float32. MPS has nothing wider.
        wide = block.float() if block.device.type == "mps" else block.double()
        return rows.copy_(wide * self.scale)


@dataclass(frozen=True)
class _Ritz:
    """The leading eigenpairs of AᵀA as the basis sees them: θ_i, ‖AᵀA v_i − θ_i v_i‖ and v_i in terms of the basis."""

    values: list[float]
    residuals: list[float]
    rotation: Float64[Tensor, "kept i"]

    @staticmethod
    def of(projected: Float64[Tensor, "kept kept"], coupling: Float[Tensor, "next b"], number: int) -> "_Ritz":
        values, rotation = torch.linalg.eigh((projected + projected.mT) / 2)
        values, rotation = values.flip(0)[:number].clamp_min(0), rotation.flip(1)[:, :number]
        residuals = torch.linalg.vector_norm(coupling.double() @ rotation[-coupling.shape[1] :], dim=0)
        return _Ritz(values.tolist(), residuals.tolist(), rotation)

    def least_gap(self) -> float:
        """σ1² − σ2² if the residual of the second value is all to its disadvantage."""
        return self.values[0] - self.values[1] - self.residuals[1]

    def closer_than(self, gap_tolerance: float) -> bool:
        """Is σ1/σ2 − 1 certainly smaller? σ2² is at least the second Ritz value."""
        return self.values[0] + self.residuals[0] < (1 + gap_tolerance) ** 2 * self.values[1]

    def settled(self, tolerance: float, gap_tolerance: float) -> bool:
        first = _angle(self.residuals[0], self.least_gap()) <= tolerance or self.closer_than(gap_tolerance)
        return first and all(self._resolved(i) for i in range(1, len(self.values) - 1))

    def _resolved(self, i: int) -> bool:
        before, value, after = self.values[i - 1 : i + 2]
        apart = min(before - value, value - after - self.residuals[i + 1])
        window = max(apart, _LATER_WINDOW * value)
        return self.residuals[i] <= max(_LATER_TOLERANCE * window, _ROUNDING * self.values[0])


def _angle(residual: float, gap: float) -> float:
    """The Davis–Kahan bound on a sine; infinite where there is no gap."""
    return residual / gap if gap > 0 else math.inf


def _iterate(gram: _Gram, count: int, seed: int, tolerance: float, gap_tolerance: float, max_vectors: int) -> Leading:
    """Block Lanczos from a random block until the leading `count` triplets are known, then a pass that verifies."""
    generator = torch.Generator().manual_seed(seed)
    width = max(_BLOCK, min(count, _LARGEST_BLOCK))
    block = _orthonormal(torch.randn(width, gram.columns, generator=generator))[0]
    product = gram(block)[1]
    if not _SMALLEST_NORM < gram.frobenius < _LARGEST_NORM:
        largest = gram.largest_entry()
        if largest == 0 or not math.isfinite(largest):
            status: Literal["zero", "not_finite"] = "zero" if largest == 0 else "not_finite"
            return _without_triplets(status, count, (gram.rows, gram.columns), gram.passes)
        gram.rescale(2.0 ** min(-math.frexp(largest)[1], _LARGEST_EXPONENT))
        product = gram(block)[1]

    limit = min(gram.columns, max(max_vectors, count + 2 * width))
    basis = torch.empty(limit, gram.columns)
    projected = torch.zeros(limit, limit, dtype=torch.float64)
    kept, look_at, largest = 0, count + 1, 0.0
    while True:
        known = basis[: kept + len(block)]
        known[kept:] = block
        largest = max(largest, float(torch.linalg.vector_norm(product, dim=1).max()))
        block, coefficients, coupling = _extend(product, known, _ROUNDING * largest, generator)
        projected[kept : len(known), : len(known)] = coefficients.double()
        projected[: len(known), kept : len(known)] = coefficients.double().mT
        kept = len(known)
        last = len(block) == 0 or kept + len(block) > limit
        if kept >= look_at or last:
            ritz = _Ritz.of(projected[:kept, :kept], coupling, count + 1)
            if last or ritz.settled(_SAFETY * tolerance, gap_tolerance):
                break
            # The small problem grows with the cube of the basis.
            look_at = math.ceil(kept * 1.1)
        product = gram(block)[1]

    vectors = ritz.rotation[:, :count].mT.float() @ basis[:kept]
    return _verify(gram, ritz, vectors, tolerance, gap_tolerance)


def _verify(gram: _Gram, ritz: _Ritz, vectors: Float[Tensor, "k n"], tolerance: float, gap_tolerance: float) -> Leading:
    """One more pass: σ_i = ‖A v_i‖, u_i = A v_i/σ_i, and the residual of v1 as it is, not as the recurrence has it."""
    vectors = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    images, products = gram(vectors)
    sigma = torch.linalg.vector_norm(images.double(), dim=1)
    order = sigma.argsort(descending=True, stable=True)
    sigma, images, vectors, products = sigma[order], images[order], vectors[order], products[order]
    square = float(sigma[0]) ** 2
    residual = float(torch.linalg.vector_norm(products[0].double() - square * vectors[0].double()))
    v_bound = _angle(max(residual, ritz.residuals[0]) + _ROUNDING * square, ritz.least_gap())
    # The square root of a θ2 which is mere rounding would pass for a σ2.
    second = sigma[1] if len(sigma) > 1 else math.sqrt(ritz.values[1] if ritz.values[1] > _ROUNDING * square else 0.0)
    # A shrinks what v has beside v1 by σ2/σ1 at least.
    shrinking = math.sqrt(max(ritz.values[1] + ritz.residuals[1], 0.0) / square)
    u_bound = math.tan(math.asin(v_bound)) * shrinking + _ROUNDING if v_bound < 1 else math.inf
    return _conclude(
        sigma / gram.scale,
        images / sigma.float().clamp_min(torch.finfo(torch.float32).tiny)[:, None],
        vectors,
        second=float(second) / gram.scale,
        certainly_close=ritz.closer_than(gap_tolerance),
        bounds=(v_bound, u_bound),
        frobenius=gram.frobenius / gram.scale,
        passes=gram.passes,
        tolerance=tolerance,
        gap_tolerance=gap_tolerance,
        rounding=_ROUNDING,
    )


def _orthonormal(rows: Float[Tensor, "b n"]) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b b"]]:
    """Q and R of rowsᵀ = Qᵀ R, with Q as rows."""
    q, r = torch.linalg.qr(rows.mT)
    return q.mT.contiguous(), r


def _extend(
    rows: Float[Tensor, "b n"], basis: Float[Tensor, "kept n"], negligible: float, generator: torch.Generator
) -> tuple[Float[Tensor, "next n"], Float[Tensor, "b kept"], Float[Tensor, "next b"]]:
    """Orthonormal directions that `rows` adds to the basis, the coefficients of `rows` in the basis and in those.

    Gram–Schmidt and QR, both twice (Barlow & Smoktunowicz 2013). Where a row adds nothing but rounding the Krylov space
    is exhausted; a random direction goes on from there. Fewer directions than rows come when the basis becomes full.
    """
    coefficients = rows @ basis.mT
    block, coupling = _orthonormal(rows - coefficients @ basis)
    spent = coupling.diagonal().abs() <= negligible
    coupling = torch.where(spent[:, None], 0.0, coupling)
    if spent.any():
        fresh = torch.nn.functional.normalize(torch.randn(block.shape, generator=generator), dim=1)
        block = torch.where(spent[:, None], fresh, block)
    again = block @ basis.mT
    coefficients += coupling.mT @ again
    block, correction = _orthonormal((block - again @ basis)[: basis.shape[1] - len(basis)])
    return block, coefficients, correction @ coupling[: len(correction)]
