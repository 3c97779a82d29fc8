"""What is measured of a stack of networks at one step, and at which steps.

Of the weights W of a projection, the gradient of that step, the cumulative gradient Σ_{s<t} ∂L/∂W_s and the update
W_t − W_0: leading singular vectors and what they say of adjacent layers. Full decompositions at the exact snapshots;
between them the leading vectors are followed by block iteration started from the previous probe's.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from geocont import continuity, spectra
from geocont.ablations.experiment import Probes
from geocont.events import Alignment, Probe

KINDS = ("weight", "gradient", "cumulative", "update")
# Where only v1 is wanted, a block of a few rows converges in fewer products than a thinner one.
_FOLLOWED_ROWS = 6
# A v1 that is known no better than this (sine of the angle) is not reported.
_LARGEST_ERROR = 0.02


def schedule(steps: int, probes: Probes) -> list[int]:
    """The steps at which a network of `steps` updates is measured: dense, then growing intervals, then `interval`.

    Always holds 0 (before any update) and `steps` (after the last).
    """
    found = list(range(min(probes.dense, steps) + 1))
    gap = 1.0
    while found[-1] < steps:
        gap = min(gap * probes.growth, probes.interval)
        found.append(min(found[-1] + max(int(gap), 1), steps))
    return found


def exact_steps(steps: int, probes: Probes) -> set[int]:
    """Which of the scheduled steps are exact snapshots: the first, the last, and others evenly between."""
    scheduled = schedule(steps, probes)
    last = len(scheduled) - 1
    wanted = probes.exact - 1
    return {scheduled[0]} | {scheduled[round(last * index / wanted)] for index in range(1, wanted + 1)}


# Why a number of a probe does not exist, where no better reason is known.
_REASONS = {
    "sigma_ratio": "a weight is zero or not finite",
    "top_overlap_v": "the leading subspace is the whole space, or a weight is not finite",
    "top_overlap_u": "the leading subspace is the whole space, or a weight is not finite",
    "update_ratio": "an initial weight is zero or a weight is not finite",
    "identity_share": "the weights are not square, or one is zero or not finite",
    "gradient_norm": "the gradient is not finite",
    "cumulative_match": "no cumulative gradient yet, or v1 is not unique in any layer",
    "activation_factor": "the activation is not radial",
    "drift": "v1 is not unique in any layer of this snapshot and the one before",
    "weight_v_weighted": "needs the whole spectrum: measured at exact snapshots",
    "weight_u_weighted": "needs the whole spectrum: measured at exact snapshots",
}


@dataclass(frozen=True)
class Measurement:
    """Everything measured of one network at one step. `dimensions` are those of v1 and u1."""

    alignments: dict[str, Alignment]
    scalars: dict[str, float | None]
    missing: dict[str, str]
    exact: bool
    dimensions: tuple[int, int]

    def event(
        self,
        *,
        variant: str,
        seed: int,
        step: int,
        loss: float | None,
        accuracy: float | None,
        projection: str = "hidden",
        held_out_loss: float | None = None,
    ) -> Probe:
        """The measurement as an event of the run."""
        return Probe(
            variant=variant,
            seed=seed,
            step=step,
            projection=projection,
            v_dim=self.dimensions[0],
            u_dim=self.dimensions[1],
            loss=loss,
            accuracy=accuracy,
            held_out_loss=held_out_loss,
            exact=self.exact,
            missing=self.missing,
            weight=self.alignments["weight"],
            gradient=self.alignments["gradient"],
            cumulative=self.alignments["cumulative"],
            update=self.alignments["update"],
            **self.scalars,
        )


class Follower:
    """Measures a stack of networks again and again; keeps the vectors that the next measurement starts from."""

    def __init__(
        self,
        initial: Float[Tensor, "network layer m n"],
        initial_triplets: spectra.Triplets | None,
        seeds: list[int],
        probes: Probes,
    ) -> None:
        """`initial` are the weights before any update and their full decompositions, where those are wanted.

        One seed a network draws the random directions that the iterations start from.
        """
        self.initial = initial
        self._initial_triplets = initial_triplets
        self.probes = probes
        self._initial_norms = torch.linalg.vector_norm(initial, dim=(-2, -1))
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._rows = dict.fromkeys(KINDS, _FOLLOWED_ROWS) | {"weight": max(probes.leading, _FOLLOWED_ROWS)}
        self._rows = {kind: min(rows + spectra.SPARE_ROWS, *initial.shape[-2:]) for kind, rows in self._rows.items()}
        self._blocks: dict[str, Float[Tensor, "network layer b n"]] = {}
        self._previous_v1: Float[Tensor, "network layer n"] | None = None

    def keep(self, rows: list[int]) -> None:
        """Go on with these networks of the stack only."""
        self.initial = self.initial[rows]
        self._initial_triplets = None
        self._initial_norms = self._initial_norms[rows]
        self._generators = [self._generators[row] for row in rows]
        self._blocks = {kind: block[rows] for kind, block in self._blocks.items()}
        if self._previous_v1 is not None:
            self._previous_v1 = self._previous_v1[rows]

    def state(self) -> dict[str, Tensor]:
        """What the next measurement starts from, by name; `restore` takes it."""
        found = {f"block.{kind}": block for kind, block in self._blocks.items()}
        if self._previous_v1 is not None:
            found["previous_v1"] = self._previous_v1
        return found | {"generators": torch.stack([generator.get_state() for generator in self._generators])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on as the follower of the same networks that had this state."""
        device = self.initial.device
        self._blocks = {
            kind: state[f"block.{kind}"].to(device, copy=True) for kind in KINDS if f"block.{kind}" in state
        }
        self._previous_v1 = state["previous_v1"].to(device, copy=True) if "previous_v1" in state else None
        for generator, numbers in zip(self._generators, state["generators"], strict=True):
            generator.set_state(numbers.clone())

    def measure(
        self,
        weights: Float[Tensor, "network layer m n"],
        gradients: Float[Tensor, "network layer m n"],
        cumulative: Float[Tensor, "network layer m n"],
        factors: Float[Tensor, " network"],
        exact: bool,
        rows: list[int] | None = None,
    ) -> list[Measurement]:
        """Measure the networks `rows`, or all; at an exact snapshot with full decompositions of the weights.

        The tensors hold all networks. `factors` is the mean activation factor of each, NaN where it has none. The first
        measurement must be of all.
        """
        if rows is not None and len(rows) < len(self.initial):
            part = self._part(rows)
            measured = part.measure(weights[rows], gradients[rows], cumulative[rows], factors[rows], exact)
            self._take(part, rows)
            return measured
        tolerance = self.probes.gap_tolerance
        full = self._decompose(weights) if exact else None
        found = {
            "weight": self._follow("weight", weights) if full is None else self._leading(full),
            "gradient": self._follow("gradient", gradients),
            "cumulative": self._follow("cumulative", cumulative),
            "update": self._follow("update", weights - self.initial),
        }
        weight, total = found["weight"], found["cumulative"]
        certain = continuity.unique(weight, tolerance)
        v1 = weight.right[..., 0, :]
        leading = slice(0, self.probes.leading)
        scalars = {
            "sigma_ratio": _mean(weight.singular_values[..., 0] / weight.singular_values[..., 1], weight.regular),
            "top_overlap_v": continuity.subspace_overlap(weight.right[..., leading, :]).mean(-1),
            "top_overlap_u": continuity.subspace_overlap(weight.left[..., leading, :]).mean(-1),
            "update_ratio": (found["update"].frobenius / self._initial_norms).mean(-1),
            "identity_share": _mean(continuity.identity_share(weights), weight.regular)
            if weights.shape[-1] == weights.shape[-2]
            else torch.full_like(factors, torch.nan),
            "gradient_norm": found["gradient"].frobenius.double().square().sum(-1).sqrt(),
            "cumulative_match": _mean(
                (v1 * total.right[..., 0, :]).sum(-1).abs(), certain & continuity.unique(total, tolerance)
            ),
            "activation_factor": factors,
            "drift": torch.full_like(factors, torch.nan)
            if self._previous_v1 is None
            else _mean(1 - (v1 * self._previous_v1).sum(-1).abs().clamp_max(1), certain),
        }
        reasons = dict(_REASONS)
        if self._previous_v1 is None:
            reasons["drift"] = "no earlier snapshot"
        # A layer without a unique v1 leaves its next drift undefined: NaN is carried on, not a stale vector.
        self._previous_v1 = torch.where(certain[..., None], v1, torch.nan).contiguous()
        if full is not None:
            scalars["weight_v_weighted"] = continuity.weighted_alignment(full.right, full.singular_values).mean(-1)
            scalars["weight_u_weighted"] = continuity.weighted_alignment(full.left, full.singular_values).mean(-1)

        columns = {name: scalar.tolist() for name, scalar in scalars.items()}
        alignments = {kind: _alignments(triplets, tolerance) for kind, triplets in found.items()}
        measurements = []
        for network in range(weights.shape[0]):
            numbers = {name: column[network] for name, column in columns.items()}
            values = {name: numbers[name] if math.isfinite(numbers.get(name, math.nan)) else None for name in _REASONS}
            missing = {name: reasons[name] for name, value in values.items() if value is None}
            missing |= {kind: reason for kind in KINDS if (reason := alignments[kind][network][1])}
            measurements.append(
                Measurement(
                    alignments={kind: alignments[kind][network][0] for kind in KINDS},
                    scalars=values,
                    missing=missing,
                    exact=exact,
                    dimensions=(weights.shape[-1], weights.shape[-2]),
                )
            )
        return measurements

    def _part(self, rows: list[int]) -> "Follower":
        """A follower of some of the networks, which goes on from what is known of them."""
        part = copy.copy(self)
        part._blocks = dict(self._blocks)
        part.keep(rows)
        return part

    def _take(self, part: "Follower", rows: list[int]) -> None:
        """Keep what a part has found (its generators are shared)."""
        for kind, block in part._blocks.items():
            self._blocks[kind][rows] = block
        if self._previous_v1 is not None and part._previous_v1 is not None:
            self._previous_v1[rows] = part._previous_v1

    def _follow(self, kind: str, matrices: Float[Tensor, "network layer m n"]) -> spectra.Triplets:
        layers, size = matrices.shape[1], matrices.shape[-1]
        rows = self._rows[kind]
        # A few rows are drawn anew each time: they find a direction which has grown outside the followed subspace.
        fresh = rows if kind not in self._blocks else spectra.SPARE_ROWS
        drawn = torch.stack(
            [torch.randn((layers, fresh, size), generator=generator) for generator in self._generators]
        ).to(matrices.device)
        known = self._blocks[kind][..., : rows - fresh, :] if fresh < rows else drawn[..., :0, :]
        start = torch.linalg.qr(torch.cat([known, drawn], dim=-2).mT).Q.mT
        triplets = spectra.follow(matrices, start, gap_tolerance=self.probes.gap_tolerance)
        self._blocks[kind] = triplets.right
        return triplets

    def _decompose(self, weights: Float[Tensor, "network layer m n"]) -> spectra.Triplets:
        """Full decompositions; those of the initial weights are known and used once."""
        known, self._initial_triplets = self._initial_triplets, None
        if known is not None and torch.equal(weights, self.initial):
            return known
        return spectra.from_gram(weights)

    def _leading(self, full: spectra.Triplets) -> spectra.Triplets:
        self._blocks["weight"] = full.right[..., : self._rows["weight"], :]
        return full


def _mean(values: Float[Tensor, "network layer"], valid: Bool[Tensor, "network layer"]) -> Float[Tensor, " network"]:
    """Mean over the layers that are valid and finite; NaN where there is none."""
    return torch.where(valid, values, torch.nan).nanmean(-1)


def _alignments(triplets: spectra.Triplets, gap_tolerance: float) -> list[tuple[Alignment, str]]:
    """The pairs' |cos| of each network, None where a layer's v1 is not unique or known, and why ("" if all exist)."""
    unique = continuity.unique(triplets, gap_tolerance)
    known = triplets.v1_error_bound <= _LARGEST_ERROR
    usable = unique & known
    pair_usable = usable[..., :-1] & usable[..., 1:]
    sides = [
        torch.where(pair_usable, continuity.adjacent_cosines(vectors[..., 0, :]), torch.nan).tolist()
        for vectors in (triplets.right, triplets.left)
    ]
    counts = zip(
        (~triplets.regular).sum(-1).tolist(),
        (triplets.regular & ~unique).sum(-1).tolist(),
        (unique & ~known).sum(-1).tolist(),
        strict=True,
    )
    words = ("zero or not finite", f"σ1/σ2 − 1 under {gap_tolerance:g}: v1 not unique", "v1 not converged")
    found = []
    for v1, u1, layers in zip(*sides, counts, strict=True):
        reason = "; ".join(f"{count} layers: {word}" for count, word in zip(layers, words, strict=True) if count)
        found.append((Alignment(v1=_finite(v1), u1=_finite(u1)), reason))
    return found


def _finite(values: list[float]) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values)
