"""Chance levels: what alignment two independent random directions show, so that no cosine stands without its null."""

import math


def mean_cosine(dimension: int) -> float:
    """Mean of |cos| between two independent uniformly random directions in R^dimension.

    E|cos| = Γ(d/2) / (√π · Γ((d+1)/2)), about √(2/(π·d)): 0.050 at d = 256, 0.0125 at d = 4096.
    """
    return math.exp(math.lgamma(dimension / 2) - math.lgamma((dimension + 1) / 2)) / math.sqrt(math.pi)


def standard_deviation_of_cosine(dimension: int) -> float:
    """Standard deviation of |cos| between two independent random directions in R^dimension: √(1/d − E|cos|²)."""
    return math.sqrt(max(1 / dimension - mean_cosine(dimension) ** 2, 0.0))


def band_of_mean(dimension: int, count: int) -> tuple[float, float]:
    """Where 95 % of the means over `count` independent |cos| in R^dimension lie: mean ± 1.96 σ/√count, at least 0.

    Adjacent pairs share a layer, but for random directions their cosines are uncorrelated, so the pairs of one network
    count as independent here.
    """
    mean = mean_cosine(dimension)
    half = 1.96 * standard_deviation_of_cosine(dimension) / math.sqrt(count)
    return max(mean - half, 0.0), mean + half


def overlap(dimension: int, leading: int) -> float:
    """Mean of ‖V_kᵀ V'_k‖²_F / k for two independent random k-dimensional subspaces of R^dimension: k/d."""
    return min(leading / dimension, 1.0)
