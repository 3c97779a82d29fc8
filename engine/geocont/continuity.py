"""Continuity between layers: cosines of leading singular vectors, subspace overlap, σ²-weighted alignment.

Definitions as in arXiv 2605.04971; what independent random directions would give stands in `geocont.chance`.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from geocont import chance
from geocont.spectra import Triplets


def adjacent_cosines(vectors: Float[Tensor, "*stack layer n"]) -> Float[Tensor, "*stack pair"]:
    """|<x_l, x_{l+1}>| of unit vectors of adjacent layers, at most 1."""
    return (vectors[..., :-1, :] * vectors[..., 1:, :]).sum(-1).abs().clamp_max(1.0)


def unique(triplets: Triplets, gap_tolerance: float) -> Bool[Tensor, "*stack"]:
    """Where v1 means something: a regular matrix whose relative gap (σ1 − σ2)/σ1 is at least `gap_tolerance`."""
    return triplets.regular & (triplets.relative_gap >= gap_tolerance)


def subspace_overlap(blocks: Float[Tensor, "*stack layer k n"]) -> Float[Tensor, "*stack pair"]:
    """Overlap of the leading k-dimensional subspaces of adjacent layers, normalised to chance: 0 chance, 1 equal.

    (‖V_k V'_kᵀ‖²_F / k − k/n) / (1 − k/n), rows orthonormal. n/a (NaN) when k = n: every subspace is the whole space.
    """
    count, size = blocks.shape[-2:]
    products = blocks[..., :-1, :, :] @ blocks[..., 1:, :, :].mT
    raw = products.square().sum((-2, -1)) / count
    level = chance.overlap(size, count)
    return (raw - level) / (1 - level) if level < 1 else torch.full_like(raw, torch.nan)


def overlap_curve(first: Float[Tensor, "k n"], second: Float[Tensor, "j n"]) -> tuple[float, ...]:
    """`subspace_overlap` of two layers for the leading 1, 2, … min(k, j) vectors; less than n, where it ends to exist.

    Raw overlaps ‖V_k V'_kᵀ‖²_F / k are 1 for equal subspaces and k/n by chance, here 1 and 0.
    """
    size = first.shape[1]
    count = min(len(first), len(second), size - 1)
    squares = (first[:count] @ second[:count].mT).double().square().cumsum(0).cumsum(1).diagonal()
    levels = [chance.overlap(size, leading) for leading in range(1, count + 1)]
    return tuple(
        (square / leading - level) / (1 - level)
        for leading, (square, level) in enumerate(zip(squares.tolist(), levels, strict=True), 1)
    )


def share_covered(
    singular_values: Float[Tensor, "*stack layer k"], frobenius: Float[Tensor, "*stack layer"]
) -> Float[Tensor, "*stack pair"]:
    """The part of ‖W‖²_F that the given singular values cover, Σσ²/‖W‖²_F, mean of adjacent layers; 0…1."""
    # The square of a large or small σ leaves the range of float32.
    shares = (singular_values.double() / frobenius.double()[..., None]).square().sum(-1)
    mean: Tensor = ((shares[..., :-1] + shares[..., 1:]) / 2).clamp_max(1.0)
    return mean


def weighted_alignment(
    vectors: Float[Tensor, "*stack layer k n"], singular_values: Float[Tensor, "*stack layer k"]
) -> Float[Tensor, "*stack pair"]:
    """Index-matched, σ²-weighted alignment over the given spectrum, whole or leading: Σ_i w_i |<x_i, x'_i>|.

    w_i is the mean of the two layers' shares σ_i²/Σσ² (sums over what is given; `share_covered` says how much of ‖W‖²
    that is). The literal reading of the source; swapped indices count as mismatch and bulk vectors are individually
    meaningless, so it stays low where subspaces agree.
    """
    share = singular_values.double().square()
    share = share / share.sum(-1, keepdim=True)
    weight = (share[..., :-1, :] + share[..., 1:, :]) / 2
    cosines: Tensor = (vectors[..., :-1, :, :] * vectors[..., 1:, :, :]).sum(-1).abs()
    return (weight.to(vectors.dtype) * cosines).sum(-1)


def identity_share(matrices: Float[Tensor, "*stack d d"]) -> Float[Tensor, "*stack"]:
    """The part of ‖W‖²_F that is c·I: (tr W)²/(d ‖W‖²_F), 0…1; 1/d² is its mean for independent normal entries."""
    trace = torch.diagonal(matrices, dim1=-2, dim2=-1).sum(-1).double()
    size = matrices.shape[-1]
    norm = torch.linalg.vector_norm(matrices, dim=(-2, -1)).double()
    share: Tensor = (trace.square() / (size * norm.square())).to(matrices.dtype)
    return share
