"""Leading singular triplets of a stack of matrices, each with a bound on the error of its first right vector.

W = Σ σ_i u_i v_iᵀ; W is [out, in] = [m, n], v_i lives in the input space, u_i in the output space. Vectors are stored as
rows: a block of b right vectors is [b, n]. Two ways to get them: `exact`, a full decomposition by LAPACK, and `follow`,
block subspace iteration on WᵀW with Rayleigh–Ritz projection (Halko, Martinsson & Tropp 2011), which costs a few thin
products when it is started from the vectors of a slightly older W.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Outside these limits the square of a Frobenius norm leaves the comfortable range of float32.
_SMALLEST_NORM, _LARGEST_NORM = 1e-15, 1e15


@dataclass(frozen=True)
class Triplets:
    """Leading singular triplets of a stack of matrices, largest first.

    Attributes:
        left: u_i as rows, unit length (zero rows where σ_i = 0).
        singular_values: σ_i ≥ 0.
        right: v_i as rows, orthonormal.
        frobenius: ‖W‖_F.
        v1_error_bound: upper estimate of sin∠(v1, computed v1), by Davis–Kahan from the residual and the Ritz values:
            ‖WᵀW v − σ² v‖ / (σ1² − σ2²). Infinite where there is no gap.
        regular: the matrix is finite and not zero. Where False, the other values mean nothing.
    """

    left: Float[Tensor, "*stack k m"]
    singular_values: Float[Tensor, "*stack k"]
    right: Float[Tensor, "*stack k n"]
    frobenius: Float[Tensor, "*stack"]
    v1_error_bound: Float[Tensor, "*stack"]
    regular: Bool[Tensor, "*stack"]

    @property
    def relative_gap(self) -> Float[Tensor, "*stack"]:
        """(σ1 − σ2)/σ1; 1 when there is a single triplet."""
        sigma = self.singular_values
        if sigma.shape[-1] < 2:
            return torch.ones_like(self.frobenius)
        return (sigma[..., 0] - sigma[..., 1]) / sigma[..., 0].clamp_min(torch.finfo(sigma.dtype).tiny)


def frobenius_norms(
    matrices: Float[Tensor, "*stack m n"],
) -> tuple[Float[Tensor, "*stack"], Float[Tensor, "*stack"], Bool[Tensor, "*stack"]]:
    """Frobenius norms in float64, a power-free scale that brings each matrix near norm 1, and which are regular.

    A matrix is regular when all its entries are finite and not all are zero; the scale of the others is 1.
    """
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1)).double()
    doubtful = ~((norms > _SMALLEST_NORM) & (norms < _LARGEST_NORM))
    if doubtful.any():
        largest = torch.linalg.vector_norm(matrices[doubtful], ord=float("inf"), dim=(-2, -1)).double()
        usable = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
        scaled = matrices[doubtful].double() / usable[..., None, None]
        norms[doubtful] = torch.linalg.vector_norm(scaled, dim=(-2, -1)) * usable
    regular = (norms > 0) & norms.isfinite()
    return norms, torch.where(regular, norms, 1.0), regular


def exact(matrices: Float[Tensor, "*stack m n"], leading: int | None = None) -> Triplets:
    """All (or the `leading`) singular triplets by a full decomposition in the precision of `matrices`.

    The error bound is the rounding error of a backward stable decomposition, min(m, n)·ε·σ1/(σ1 − σ2).
    Zero and non-finite matrices never reach LAPACK.
    """
    norms, scale, regular = frobenius_norms(matrices)
    scaled = torch.where(regular[..., None, None], matrices / scale[..., None, None].to(matrices.dtype), 0.0)
    left, sigma, right = torch.linalg.svd(scaled, full_matrices=False)
    count = sigma.shape[-1] if leading is None else min(leading, sigma.shape[-1])
    gap = sigma[..., 0] - sigma[..., 1] if sigma.shape[-1] > 1 else sigma[..., 0]
    rounding = min(matrices.shape[-2:]) * torch.finfo(matrices.dtype).eps
    return Triplets(
        left=left[..., :count].mT.contiguous(),
        singular_values=(sigma[..., :count].double() * scale[..., None]).to(matrices.dtype),
        right=right[..., :count, :].contiguous(),
        frobenius=norms.to(matrices.dtype),
        v1_error_bound=rounding * sigma[..., 0] / gap,
        regular=regular,
    )


def random_block(stack: tuple[int, ...], count: int, size: int, generator: torch.Generator) -> Float[Tensor, "*stack b n"]:
    """Orthonormal random rows to start from, different for every matrix of the stack.

    One start for all layers would fake alignment between them before the iteration has converged.
    """
    block = torch.randn((*stack, count, size), generator=generator, dtype=torch.float32)
    return torch.linalg.qr(block.mT).Q.mT.contiguous()


def follow(
    matrices: Float[Tensor, "*stack m n"],
    start: Float[Tensor, "*stack b n"],
    tolerance: float = 2e-3,
    gap_tolerance: float = 0.0,
    iterations: int = 40,
) -> Triplets:
    """The leading b triplets by block subspace iteration on WᵀW, from the orthonormal rows of `start`.

    Iterates until every v1 is known to `tolerance` (sine of the angle, by the bound in `Triplets`), or has a relative gap
    certainly under `gap_tolerance`, or `iterations` are done; the bound says what was reached. Products in the precision
    of `matrices`, the small projected problem in float64.
    """
    norms, scale, regular = frobenius_norms(matrices)
    inverse = (1 / scale).to(matrices.dtype)[..., None, None]
    if not bool(regular.all()):
        matrices = torch.where(regular[..., None, None], matrices, 0.0)
    block = start.to(matrices)
    for iteration in range(iterations):
        image = (block @ matrices.mT) * inverse
        back = (image @ matrices) * inverse
        values, rotation = torch.linalg.eigh((image @ image.mT).double())
        values, rotation = values.flip(-1).clamp_min(0), rotation.flip(-1).mT.to(matrices.dtype)
        ritz, back = rotation @ block, rotation @ back
        residual = torch.linalg.vector_norm(
            back[..., :2, :] - values[..., :2, None].to(matrices.dtype) * ritz[..., :2, :], dim=-1
        ).double()
        if values.shape[-1] > 1:
            gap = values[..., 0] - values[..., 1] - residual[..., 1]
            upper = (values[..., 0] - values[..., 1] + residual[..., 0]) / (2 * values[..., 0])
        else:
            gap, upper = values[..., 0] - residual[..., 0], torch.ones_like(values[..., 0])
        bound = torch.where(gap > 0, residual[..., 0] / gap, torch.inf)
        settled = (bound <= tolerance) | (upper < gap_tolerance) | ~regular
        block = torch.linalg.qr(back.mT).Q.mT
        if bool(settled.all()) or iteration == iterations - 1:
            break
    image = rotation @ image
    sigma = torch.linalg.vector_norm(image, dim=-1)
    # One multiplication by WᵀW is already paid for: it turns the Ritz vectors into better ones than the bound speaks of.
    return Triplets(
        left=image / sigma[..., None].clamp_min(torch.finfo(sigma.dtype).tiny),
        singular_values=(sigma.double() * scale[..., None]).to(matrices.dtype),
        right=_aligned(block, ritz),
        frobenius=norms.to(matrices.dtype),
        v1_error_bound=bound.to(matrices.dtype),
        regular=regular,
    )


def _aligned(block: Float[Tensor, "*stack b n"], ritz: Float[Tensor, "*stack b n"]) -> Float[Tensor, "*stack b n"]:
    """The rows of `block` with the sign that matches the Ritz vectors (QR is free to flip them)."""
    signs = torch.where((block * ritz).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    return block * signs.to(block.dtype)
