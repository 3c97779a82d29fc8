"""What the source claims (arXiv 2605.04971), and what the numbers so far say about it.

A verdict comes from the measured values, their spread over seeds and the chance level of the dimension; nothing here
knows what should come out. "confounded" means that the numbers look right or wrong for another reason than the claim's,
which is named: an activation that never acts, a network that does not train, a gap that has closed.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from geocont import chance
from geocont.ablations.experiment import ELEMENTWISE_ACTIVATIONS, RADIAL_ACTIVATIONS, AnyVariant, Experiment, Variant
from geocont.events import Alignment, NetworkFinished, Probe, mean_of_pairs

Verdict = Literal["supported", "not yet", "confounded", "contradicted"]

# A radial factor this near to 1, on average over the steps, leaves a linear network.
ACTS = 0.02
# Weights that have moved by less than this part of their norm have not been trained.
_MOVED = 0.05
# Weights whose update is smaller than this part of the initial norm still look like the random start.
_OUTGROWN = 0.5


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of the source, the numbers so far, and one word for how they stand to each other.

    variants: whose networks were asked; empty where the claim is about no variants.
    """

    claim: str
    verdict: Verdict
    numbers: str
    reason: str = ""
    variants: tuple[str, ...] = ()

    def about(self, *variants: AnyVariant) -> "Finding":
        """The same, said of these variants."""
        return msgspec.structs.replace(self, variants=tuple(variant.name for variant in variants))


@dataclass(frozen=True)
class Sample:
    """One number from every seed of a variant that has it; as text mean ± standard deviation over the seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __bool__(self) -> bool:
        return bool(self.values)

    def __str__(self) -> str:
        if not self.values:
            return "n/a"
        return f"{self.mean:z.2f}±{self.std:.2f}" if len(self.values) > 1 else f"{self.mean:z.2f}"


class _Results:
    """The probes of an experiment by variant: what the claims below ask for."""

    def __init__(
        self,
        experiment: Experiment,
        probes: Mapping[tuple[str, int], Sequence[Probe]],
        finished: Mapping[tuple[str, int], NetworkFinished],
    ) -> None:
        self.variants = experiment.variants
        self.seeds = range(experiment.seed, experiment.seed + experiment.seeds)
        self._probes = probes
        self._finished = finished

    def runs(self, variant: Variant) -> list[Sequence[Probe]]:
        found = (self._probes.get((variant.name, seed), ()) for seed in self.seeds)
        return [run for run in found if run]

    def done(self, variant: Variant) -> bool:
        return all((variant.name, seed) in self._finished for seed in self.seeds)

    def at_start(self, variant: Variant, value: Callable[[Probe], float | None]) -> Sample:
        return _sample(value(run[0]) for run in self.runs(variant) if run[0].step == 0)

    def latest(self, variant: Variant, value: Callable[[Probe], float | None]) -> Sample:
        """The value at the last step that every seed with probes has reached."""
        runs = self.runs(variant)
        if not runs:
            return Sample(())
        step = min(run[-1].step for run in runs)
        return _sample(value(probe) for run in runs for probe in run if probe.step == step)

    def trajectory(self, variant: Variant, value: Callable[[Probe], float | None]) -> dict[int, Sample]:
        """The value by step, where every seed with probes has it."""
        runs = self.runs(variant)
        by_step: dict[int, list[float | None]] = defaultdict(list)
        for run in runs:
            for probe in run:
                by_step[probe.step].append(value(probe))
        samples = {step: _sample(values) for step, values in sorted(by_step.items())}
        return {step: sample for step, sample in samples.items() if len(sample.values) == len(runs)}

    def band(self, variant: Variant, side: str = "v") -> tuple[float, float]:
        """Where 95 % of the means over pairs and seeds lie by chance."""
        runs = self.runs(variant)
        first = runs[0][0]
        pairs = sum(len(run[0].gradient.v1) for run in runs)
        return chance.band_of_mean(first.v_dim if side == "v" else first.u_dim, pairs)


def judge(
    experiment: Experiment,
    probes: Mapping[tuple[str, int], Sequence[Probe]],
    finished: Mapping[tuple[str, int], NetworkFinished],
) -> tuple[Finding, ...]:
    """Judge every claim that `experiment` puts to the test. Both mappings are keyed by (variant, seed)."""
    results = _Results(experiment, probes, finished)
    residual = [variant for variant in results.variants if variant.residual]
    plain = [variant for variant in results.variants if not variant.residual]
    findings: list[Finding] = []
    if residual:
        findings.append(_coherent_gradients(results, residual).about(*residual))
    if plain:
        findings.append(_chance_gradients(results, plain).about(*plain))
        findings.append(_no_continuity(results, plain).about(*plain))
    for linear, elementwise in _twins(residual):
        kept = _kept(results, linear, elementwise, several=len(_twins(residual)) > 1)
        findings.append(kept.about(linear, *elementwise))
    findings += [_rise_and_fall(results, v).about(v) for v in residual if _rotation_equivariant(v)]
    findings += _normalization(results, residual)
    return tuple(findings)


def _coherent_gradients(results: _Results, variants: Sequence[Variant]) -> Finding:
    claim = "gradients coherent at step 0 with residuals"
    samples = {variant.name: results.at_start(variant, _v1("gradient")) for variant in variants}
    known = {name: sample for name, sample in samples.items() if sample}
    if not known:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    measured = [variant for variant in variants if variant.name in known]
    at_chance = [v.name for v in measured if known[v.name].mean <= results.band(v)[1]]
    means = [sample.mean for sample in known.values()]
    level = chance.mean_cosine(results.runs(measured[0])[0][0].v_dim)
    numbers = f"v1 {min(means):z.2f}…{max(means):z.2f}, chance {level:.3f}"
    if at_chance:
        return Finding(
            claim=claim, verdict="contradicted", numbers=numbers, reason=f"at chance: {', '.join(at_chance)}"
        )
    return Finding(
        claim=claim, verdict="supported", numbers=numbers, reason=f"{len(known)} of {len(variants)} variants"
    )


def _chance_gradients(results: _Results, variants: Sequence[Variant]) -> Finding:
    claim = "gradients at chance at step 0 without residuals"
    texts, above, one_sided = [], [], []
    for variant in variants:
        v1, u1 = results.at_start(variant, _v1("gradient")), results.at_start(variant, _u1("gradient"))
        if not v1 or not u1:
            continue
        high_v, high_u = results.band(variant, "v")[1], results.band(variant, "u")[1]
        texts.append(f"{variant.name} v1 {v1.mean:z.3f} (95 % ≤ {high_v:.3f}), u1 {u1.mean:z.3f}")
        if v1.mean > high_v and u1.mean > high_u:
            above.append(variant.name)
        elif v1.mean > high_v or u1.mean > high_u:
            one_sided.append(f"{variant.name} on the {'input' if v1.mean > high_v else 'output'} side")
    if not texts:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    numbers = "; ".join(texts)
    if above:
        return Finding(claim=claim, verdict="contradicted", numbers=numbers, reason=f"above chance: {', '.join(above)}")
    if one_sided:
        reason = (
            f"above chance only {', '.join(one_sided)}: activations with a mean of their own share it between layers"
        )
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=reason)
    return Finding(claim=claim, verdict="supported", numbers=numbers)


def _no_continuity(results: _Results, variants: Sequence[Variant]) -> Finding:
    claim = "no weight continuity without residuals"
    texts, above, still, unfinished = [], [], [], []
    for variant in variants:
        v1, moved = results.latest(variant, _v1("weight")), results.latest(variant, lambda p: p.update_ratio)
        if not v1 or not moved:
            continue
        accuracy = results.latest(variant, lambda p: p.accuracy)
        texts.append(f"{variant.name} v1 {v1}, accuracy {accuracy}")
        if moved.mean < _MOVED:
            still.append(f"{variant.name} does not train: ‖ΔW‖/‖W0‖ {moved.mean:.1e}")
        if v1.mean > results.band(variant)[1]:
            above.append(variant.name)
        if not results.done(variant):
            unfinished.append(variant.name)
    numbers = "; ".join(texts) or "not measured yet"
    if above:
        return Finding(claim=claim, verdict="contradicted", numbers=numbers, reason=f"above chance: {', '.join(above)}")
    if unfinished or not texts:
        return Finding(claim=claim, verdict="not yet", numbers=numbers)
    if still:
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason="; ".join(still))
    return Finding(claim=claim, verdict="supported", numbers=numbers)


def _kept(results: _Results, linear: Variant, elementwise: Sequence[Variant], *, several: bool) -> Finding:
    claim = "an elementwise activation keeps continuity" + (f" ({linear.name})" if several else "")
    without = results.latest(linear, _v1("weight"))
    kept = {variant.name: results.latest(variant, _v1("weight")) for variant in elementwise}
    if not without or not all(kept.values()):
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    name, weakest = min(kept.items(), key=lambda item: item[1].mean)
    numbers = f"{', '.join(f'{n} {s}' for n, s in kept.items())} against {linear.name} {without}"
    if min(len(weakest.values), len(without.values)) < 2:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="one seed: no spread to judge by")
    spread = (weakest.std**2 + without.std**2) ** 0.5
    finished = results.done(linear) and all(results.done(variant) for variant in elementwise)
    lost = _lost(results, linear)
    fallen = [
        variant.name for variant in elementwise if _lost(results, variant) > 2 * max(kept[variant.name].std, 0.02)
    ]
    if weakest.mean - without.mean > 2 * spread and lost > without.std and not fallen:
        return Finding(claim=claim, verdict="supported", numbers=numbers, reason=f"{name} is the lowest")
    if not finished:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="training goes on")
    if without.mean - weakest.mean > 2 * spread:
        return Finding(claim=claim, verdict="contradicted", numbers=numbers, reason=f"{name} ends below {linear.name}")
    if fallen:
        return Finding(
            claim=claim, verdict="contradicted", numbers=numbers, reason=f"lost from its peak: {', '.join(fallen)}"
        )
    return Finding(
        claim=claim, verdict="not yet", numbers=numbers, reason="the difference is within the spread of the seeds"
    )


def _rise_and_fall(results: _Results, variant: Variant) -> Finding:
    claim = f"{variant.name} rises, then falls"
    curve = results.trajectory(variant, _v1("weight"))
    if not curve:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    peak_step = max(curve, key=lambda step: curve[step].mean)
    last_step = max(curve)
    peak, last = curve[peak_step], curve[last_step]
    numbers = f"peak {peak} at {peak_step}, {last} at {last_step}"
    factor = results.latest(variant, lambda p: p.activation_factor)
    if factor and variant.activation in RADIAL_ACTIVATIONS:
        numbers += f"; factor {factor.mean:.3f}"
        away = 1 - mean_over_steps(results.trajectory(variant, lambda p: p.activation_factor))
        if away < ACTS:
            reason = (
                f"the radial factor is within {away:.1g} of 1 on average: it hardly acts, the network is nearly linear"
            )
            return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=reason)
    if peak.mean <= results.band(variant)[1]:
        moved = results.latest(variant, lambda p: p.update_ratio)
        if not results.done(variant):
            return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="not above chance")
        if moved and moved.mean < _OUTGROWN:
            reason = f"‖ΔW‖/‖W0‖ is {moved}: what was learnt does not show in the weights"
            return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=reason)
        return Finding(claim=claim, verdict="contradicted", numbers=numbers, reason="not above chance")
    if len(last.values) < 2:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="one seed: no spread to judge by")
    if peak.mean - last.mean <= max(peak.std, last.std):
        reason = "ended before a fall beyond the spread of the seeds" if results.done(variant) else "no fall yet"
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason=reason)
    ratio, ratio_at_start = results.latest(variant, _sigma_ratio), results.at_start(variant, _sigma_ratio)
    if ratio and ratio_at_start and ratio.mean <= ratio_at_start.mean:
        at_start = f"as in the random start ({ratio_at_start.mean:.3f})"
        reason = f"σ1/σ2 is {ratio.mean:.3f}, {at_start}: v1 falls because the gap has closed"
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=reason)
    return Finding(claim=claim, verdict="supported", numbers=numbers, reason=f"σ1/σ2 {ratio} at the end")


def _normalization(results: _Results, residual: Sequence[Variant]) -> list[Finding]:
    """LayerNorm spreads continuity over several directions; with an activation beside it the activation's mode wins."""
    findings = []
    for normalized in residual:
        if normalized.normalization == "none" or normalized.activation != "none":
            continue
        for activated in residual:
            if activated.normalization != "none" or activated.activation not in ELEMENTWISE_ACTIVATIONS:
                continue
            combined = [
                v
                for v in residual
                if v.normalization == normalized.normalization
                and v.activation == activated.activation
                and _same(v, activated)
            ]
            if not combined or not _same(normalized, activated):
                continue
            findings.append(_spread(results, normalized, activated).about(normalized, activated))
            findings += [
                _mode(results, both, normalized, activated).about(both, normalized, activated) for both in combined
            ]
    return findings


def _spread(results: _Results, normalized: Variant, activated: Variant) -> Finding:
    claim = f"{normalized.name} spreads continuity over several directions"

    def overlap_per_v1(probe: Probe) -> float | None:
        v1 = mean_of_pairs([value**2 for value in probe.weight.v1 if value is not None])
        return probe.top_overlap_v / v1 if v1 and probe.top_overlap_v is not None else None

    texts = []
    for variant in (normalized, activated):
        v1, top = results.latest(variant, _v1("weight")), results.latest(variant, lambda p: p.top_overlap_v)
        if not v1 or not top:
            return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
        texts.append(f"{variant.name} top overlap {top} at v1 {v1}, σ1/σ2 {results.latest(variant, _sigma_ratio)}")
    numbers = "; ".join(texts)
    wide, narrow = results.latest(normalized, overlap_per_v1), results.latest(activated, overlap_per_v1)
    flat, steep = results.latest(normalized, _sigma_ratio), results.latest(activated, _sigma_ratio)
    if min(len(wide.values), len(narrow.values)) < 2:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="one seed: no spread to judge by")
    if results.latest(normalized, _v1("weight")).mean <= results.band(normalized)[1]:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="v1 is at chance")
    reason = f"top overlap over squared v1: {wide} against {narrow}"
    if wide.mean - narrow.mean > _joint_std(wide, narrow) and steep.mean - flat.mean > _joint_std(steep, flat):
        return Finding(claim=claim, verdict="supported", numbers=numbers, reason=reason)
    done = results.done(normalized) and results.done(activated)
    if done and narrow.mean - wide.mean > _joint_std(wide, narrow) and flat.mean - steep.mean > _joint_std(steep, flat):
        return Finding(claim=claim, verdict="contradicted", numbers=numbers, reason=reason)
    return Finding(claim=claim, verdict="not yet", numbers=numbers, reason=reason)


def _mode(results: _Results, both: Variant, normalized: Variant, activated: Variant) -> Finding:
    claim = f"{both.name}: the activation's mode wins"
    samples = [results.latest(variant, _v1("weight")) for variant in (both, activated, normalized)]
    if not all(samples):
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    joint, active, normal = samples
    numbers = f"v1 {joint}, between {activated.name} {active} and {normalized.name} {normal}"
    if len(joint.values) < 2:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="one seed: no spread to judge by")
    if abs(active.mean - normal.mean) <= _joint_std(active, normal):
        return Finding(
            claim=claim, verdict="not yet", numbers=numbers, reason="the two modes do not differ beyond the spread"
        )
    margin = abs(joint.mean - normal.mean) - abs(joint.mean - active.mean)
    noise = (joint.std**2 + active.std**2 + normal.std**2) ** 0.5
    if margin > noise:
        return Finding(claim=claim, verdict="supported", numbers=numbers)
    if margin < -noise and all(results.done(variant) for variant in (both, normalized, activated)):
        return Finding(claim=claim, verdict="contradicted", numbers=numbers)
    return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="not nearer to one than to the other yet")


def mean_over_steps(curve: Mapping[int, Sample]) -> float:
    """Mean over the steps of a curve that was not measured evenly (trapezoids)."""
    points = sorted((step, sample.mean) for step, sample in curve.items())
    if len(points) < 2:
        return points[0][1]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(points))
    return area / (points[-1][0] - points[0][0])


def _lost(results: _Results, variant: Variant) -> float:
    """How far the mean trajectory of weight v1 is below its own peak."""
    means = [sample.mean for sample in results.trajectory(variant, _v1("weight")).values()]
    return max(means) - means[-1] if means else 0.0


def _twins(residual: Sequence[Variant]) -> list[tuple[Variant, list[Variant]]]:
    """Linear variants, each with the elementwise ones that differ from it in nothing else but name and length."""
    found = []
    for linear in residual:
        if linear.activation == "none" and linear.normalization == "none":
            others = [
                v
                for v in residual
                if v.activation in ELEMENTWISE_ACTIVATIONS and v.normalization == "none" and _same(v, linear)
            ]
            if others:
                found.append((linear, others))
    return found


def _same(first: Variant, second: Variant) -> bool:
    """Equal but for name, length, activation and normalisation."""
    free = {"name": "", "steps": 1, "activation": "none", "normalization": "none"}
    return msgspec.structs.replace(first, **free) == msgspec.structs.replace(second, **free)


def _rotation_equivariant(variant: Variant) -> bool:
    return variant.normalization == "none" and (
        variant.activation == "none" or variant.activation in RADIAL_ACTIVATIONS
    )


def _joint_std(first: Sample, second: Sample) -> float:
    return float((first.std**2 + second.std**2) ** 0.5)


def _sample(values: Iterable[float | None]) -> Sample:
    return Sample(tuple(value for value in values if value is not None))


def _sigma_ratio(probe: Probe) -> float | None:
    return probe.sigma_ratio


def _v1(kind: str) -> Callable[[Probe], float | None]:
    def value(probe: Probe) -> float | None:
        alignment: Alignment = getattr(probe, kind)
        return mean_of_pairs(alignment.v1)

    return value


def _u1(kind: str) -> Callable[[Probe], float | None]:
    def value(probe: Probe) -> float | None:
        alignment: Alignment = getattr(probe, kind)
        return mean_of_pairs(alignment.u1)

    return value
