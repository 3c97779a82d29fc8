"""Leading singular triplets of a stack of matrices, each with a bound on the error of its first right vector.

W = Σ σ_i u_i v_iᵀ; W is [out, in] = [m, n], v_i lives in the input space, u_i in the output space. Vectors are stored
as rows: a block of b right vectors is [b, n]. Three ways to get them: `exact`, a full decomposition by LAPACK;
`from_gram`, from the eigenvectors of WᵀW; and `follow`, block subspace iteration on WᵀW with Rayleigh–Ritz projection
(Halko, Martinsson & Tropp 2011), which costs a few thin products when it starts from the vectors of a slightly older W.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Outside these limits the square of a Frobenius norm leaves the comfortable range of float32.
_SMALLEST_NORM, _LARGEST_NORM = 1e-15, 1e15
# The last rows of a block are the least settled: what a polynomial may damp begins above them.
SPARE_ROWS = 2
_LARGEST_DEGREE = 10


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


def concatenate(parts: Sequence[Triplets], device: torch.device) -> Triplets:
    """Join stacks of triplets along their first dimension, on `device`."""
    return Triplets(
        *(torch.cat([getattr(part, field.name) for part in parts]).to(device) for field in fields(Triplets))
    )


def frobenius_norms(
    matrices: Float[Tensor, "*stack m n"],
) -> tuple[Float[Tensor, "*stack"], Float[Tensor, "*stack"], Bool[Tensor, "*stack"]]:
    """Frobenius norms in float64, a power-free scale that brings each matrix near norm 1, and which are regular.

    A matrix is regular when all its entries are finite and not all are zero; the scale of the others is 1.
    """
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1)).double()
    doubtful = ~((norms > _SMALLEST_NORM) & (norms < _LARGEST_NORM))
    if doubtful.any():
        # Not the norm of order inf, which takes twenty times as long.
        largest = torch.maximum(matrices.amax((-2, -1)), -matrices.amin((-2, -1))).double()
        norms = torch.where(largest == 0, 0.0, norms)
        doubtful &= largest > 0
        usable = torch.where(largest[doubtful].isfinite(), largest[doubtful], 1.0)
        scaled = matrices[doubtful].double() / usable[..., None, None]
        norms[doubtful] = torch.linalg.vector_norm(scaled, dim=(-2, -1)) * usable
    regular = (norms > 0) & norms.isfinite()
    return norms, torch.where(regular, norms, 1.0), regular


def exact(matrices: Float[Tensor, "*stack m n"]) -> Triplets:
    """All singular triplets by a full decomposition in the precision of `matrices`.

    The error bound is the rounding error of a backward stable decomposition, min(m, n)·ε·σ1/(σ1 − σ2).
    Zero and non-finite matrices never reach LAPACK.
    """
    return _decomposed(matrices, _svd)


def from_gram(matrices: Float[Tensor, "*stack m n"]) -> Triplets:
    """All singular triplets from the eigenvectors of WᵀW and their images, in three fifths of the time of `exact`.

    As good where it is weighed by σ²: v_i are orthonormal, and v1 has the bound that `exact` gives. Only σ_i under
    about √ε·σ1 are lost in rounding, and their u_i with them.
    """
    # Of a wide matrix WᵀW would be the larger of the two Gram matrices.
    return _decomposed(matrices, _svd if matrices.shape[-2] < matrices.shape[-1] else _from_gram)


_Decomposition = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def _svd(matrices: Float[Tensor, "*stack m n"]) -> tuple[Tensor, Tensor, Tensor]:
    left, sigma, right = torch.linalg.svd(matrices, full_matrices=False)
    return left.mT, sigma, right


def _from_gram(matrices: Float[Tensor, "*stack m n"]) -> tuple[Tensor, Tensor, Tensor]:
    try:
        vectors = torch.linalg.eigh(matrices.mT @ matrices).eigenvectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # LAPACK's divide and conquer may fail where many eigenvalues are one up to rounding.
        return _svd(matrices)
    right = vectors.flip(-1).mT
    images = right @ matrices.mT
    sigma = torch.linalg.vector_norm(images, dim=-1)
    return images / sigma[..., None].clamp_min(torch.finfo(sigma.dtype).tiny), sigma, right


def _decomposed(matrices: Float[Tensor, "*stack m n"], decomposition: _Decomposition) -> Triplets:
    norms, scale, regular = frobenius_norms(matrices)
    scaled = torch.where(regular[..., None, None], matrices / scale[..., None, None].to(matrices.dtype), 0.0)
    left, sigma, right = decomposition(scaled)
    gap = (sigma[..., 0] - sigma[..., 1]).clamp_min(0) if sigma.shape[-1] > 1 else sigma[..., 0]
    rounding = min(matrices.shape[-2:]) * torch.finfo(matrices.dtype).eps
    return Triplets(
        left=left.contiguous(),
        singular_values=(sigma.double() * scale[..., None]).to(matrices.dtype),
        right=right.contiguous(),
        frobenius=norms.to(matrices.dtype),
        v1_error_bound=rounding * sigma[..., 0] / gap,
        regular=regular,
    )


def follow(
    matrices: Float[Tensor, "*stack m n"],
    start: Float[Tensor, "*stack b n"],
    tolerance: float = 1e-2,
    gap_tolerance: float = 0.0,
    passes: int = 12,
) -> Triplets:
    """The leading b triplets by block subspace iteration on WᵀW, from the orthonormal rows of `start`.

    Give every matrix its own start: one start for all layers fakes alignment between them until it has converged.

    After a first product by WᵀW each pass projects (Rayleigh–Ritz) and multiplies the block by WᵀW, or, where the gap
    is small, by a Chebyshev polynomial of it that damps what lies under the block's settled Ritz values (Zhou & Saad
    2007). Stops when every v1 is known to `tolerance` (sine of the angle, by the bound in `Triplets`) or has a relative
    gap certainly under `gap_tolerance`, or after `passes`; the bound says what was reached. Products in the precision
    of `matrices`, the small projected problem in float64.
    """
    norms, scale, regular = frobenius_norms(matrices)
    found = Triplets(
        left=matrices.new_zeros((*norms.shape, start.shape[-2], matrices.shape[-2])),
        singular_values=matrices.new_zeros((*norms.shape, start.shape[-2])),
        right=start.to(matrices, copy=True),
        frobenius=norms.to(matrices.dtype),
        v1_error_bound=torch.full_like(norms, torch.inf, dtype=matrices.dtype),
        regular=regular,
    )
    # The matrices that are not done, side by side; those that are have been put into `found` and cost no more.
    places = regular.flatten().nonzero().squeeze(-1)
    matrices, block = matrices.reshape(-1, *matrices.shape[-2:]), start.to(matrices).reshape(-1, *start.shape[-2:])
    scale = scale.flatten()
    if len(places) < len(matrices):
        matrices, block, scale = matrices[places], block[places], scale[places]
    inverse = (1 / scale).to(matrices.dtype)[:, None, None]

    def multiply(block: Tensor) -> tuple[Tensor, Tensor]:
        image = (block @ matrices.mT) * inverse
        return image, (image @ matrices) * inverse

    # A start is too old to be good enough as it is: a projection would cost more than it says.
    if len(places):
        block = torch.linalg.qr(multiply(block)[1].mT).Q.mT
    number = 0
    while len(places):
        number += 1
        image, back = multiply(block)
        values, rotation = torch.linalg.eigh((image @ image.mT).double())
        values, rotation = values.flip(-1).clamp_min(0), rotation.flip(-1).mT.to(matrices.dtype)
        ritz, back = rotation @ block, rotation @ back
        bound, widest_gap = _angle_bound(values, ritz, back)
        done = (bound <= tolerance) | (widest_gap < gap_tolerance) | (number == passes)
        if bool(done.any()):
            _keep(found, places[done], ritz[done], (rotation @ image)[done], scale[done], bound[done])
            rest = ~done
            places, matrices, inverse, scale = places[rest], matrices[rest], inverse[rest], scale[rest]
            values, ritz, back, bound = values[rest], ritz[rest], back[rest], bound[rest]
        if len(places):
            degree = _degree(values, bound, tolerance)
            if degree > 1:
                edges = _edges(values).to(matrices.dtype)
                back = _chebyshev(lambda x: multiply(x)[1], ritz, back, edges, degree)
            block = torch.linalg.qr(back.mT).Q.mT
    return found


def _keep(
    found: Triplets,
    places: Int[Tensor, " done"],
    right: Float[Tensor, "done b n"],
    images: Float[Tensor, "done b m"],
    scale: Float[Tensor, " done"],
    bound: Float[Tensor, " done"],
) -> None:
    """Put finished triplets to their places in the flattened stack; `images` are W v, divided by `scale`."""
    sigma = torch.linalg.vector_norm(images, dim=-1)
    left = images / sigma[..., None].clamp_min(torch.finfo(sigma.dtype).tiny)
    found.right.view(-1, *right.shape[1:])[places] = right
    found.left.view(-1, *left.shape[1:])[places] = left
    found.singular_values.view(-1, sigma.shape[-1])[places] = (sigma.double() * scale[:, None]).to(sigma.dtype)
    found.v1_error_bound.view(-1)[places] = bound.to(sigma.dtype)


def _angle_bound(
    values: Float[Tensor, "*stack b"], ritz: Float[Tensor, "*stack b n"], back: Float[Tensor, "*stack b n"]
) -> tuple[Float[Tensor, "*stack"], Float[Tensor, "*stack"]]:
    """Davis–Kahan bound on sin∠(v1, ritz[0]) from the residuals of `back` = WᵀW ritz, and the widest relative gap.

    The gap is the widest that those residuals allow. λ2 is not known; θ2 plus its residual stands in for it, which is
    why the block has at least two rows.
    """
    residual = torch.linalg.vector_norm(
        back[..., :2, :] - values[..., :2, None].to(ritz.dtype) * ritz[..., :2, :], dim=-1
    ).double()
    if values.shape[-1] < 2:
        gap, widest = values[..., 0] - residual[..., 0], torch.ones_like(values[..., 0])
    else:
        gap = values[..., 0] - values[..., 1] - residual[..., 1]
        widest = (values[..., 0] - values[..., 1] + residual[..., 0]) / (2 * values[..., 0])
    return torch.where(gap > 0, residual[..., 0] / gap, torch.inf), widest


def _edges(values: Float[Tensor, "*stack b"]) -> Float[Tensor, "*stack 2"]:
    """Ends of the Ritz values worth keeping: what lies under the first is damped, the second is the largest."""
    last = max(values.shape[-1] - 1 - SPARE_ROWS, min(1, values.shape[-1] - 1))
    return values[..., [last, 0]]


def _degree(values: Float[Tensor, "*stack b"], bound: Float[Tensor, "*stack"], tolerance: float) -> int:
    """The degree of the polynomial that brings every v1 to the tolerance; 1 where plain products do as well.

    A product shrinks the error by θ_edge/θ1, T_d(2x − 1) at x = θ1/θ_edge by about exp(−d·acosh(2x − 1)).
    """
    edge, largest = _edges(values).clamp_min(1e-300).unbind(-1)
    wanted = (2 * bound.clamp_max(1.0) / tolerance).clamp_min(1.5).log()
    ratio = (largest / edge).clamp_min(1 + 1e-6)
    if bool((wanted <= 2 * ratio.log()).all()):
        return 1
    degree = (wanted / torch.acosh(2 * ratio - 1)).max().item()
    return max(2, min(math.ceil(degree), _LARGEST_DEGREE))


def _chebyshev(
    multiply: Callable[[Tensor], Tensor],
    block: Float[Tensor, "*stack b n"],
    product: Float[Tensor, "*stack b n"],
    edges: Float[Tensor, "*stack 2"],
    degree: int,
) -> Float[Tensor, "*stack b n"]:
    """T_degree(A) block, scaled to 1 at the largest Ritz value; `product` = A block, [0, edges[0]] is damped.

    The scaled three-term recurrence of Zhou & Saad (2007), so that nothing overflows for a dominant leading value.
    """
    damped, largest = edges[..., :1, None], edges[..., 1:, None].clamp_min(torch.finfo(block.dtype).tiny)
    half = (damped / 2).maximum(largest * 1e-4)
    first = half / (largest - half)
    factor = first
    previous, current = block, (product - half * block) * (first / half)
    for _ in range(degree - 1):
        following = 1 / (2 / first - factor)
        previous, current = (
            current,
            (2 * following / half) * (multiply(current) - half * current) - factor * following * previous,
        )
        factor = following
    return current
