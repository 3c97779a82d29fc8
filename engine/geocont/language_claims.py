"""What the source claims about transformers (arXiv 2605.04971), and what the numbers so far say about it.

The words are those of `geocont.claims`. A projection stands against chance with every seed on its own, so that one
lucky network supports nothing. Two things stand against each other by their differences seed by seed: the mean must
exceed what 95 % of such means between equals would be (Student's t), and what either of the two differs by from seed to
seed. One seed decides nothing.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from geocont import chance
from geocont.ablations.experiment import (
    ELEMENTWISE_ACTIVATIONS,
    RADIAL_ACTIVATIONS,
    LanguageExperiment,
    LanguageVariant,
)
from geocont.claims import ACTS, Finding, Sample, Verdict, mean_over_steps
from geocont.events import RESIDUAL_SIDES, Alignment, NetworkFinished, Probe, mean_of_pairs

Side = Literal["v", "u"]
_BySeed = dict[int, float]

READERS = ("q", "k", "gate", "up")
WRITERS = ("o", "down")
# A loss that has come down by less than this, in nats a token, is that of a network which does not train.
_TRAINS = 0.01
# σ1/σ2 − 1 below so many times that of the random start is a gap that has not opened, or has closed again.
_OPEN = 2.0
_ONE_SEED = "one seed: no spread to judge by"
_UNFINISHED = "not all networks have finished"
# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_WORST_FIRST: tuple[Verdict, ...] = ("contradicted", "confounded", "not yet", "supported")


@dataclass(frozen=True)
class _Part:
    """What one of several comparisons says, and why; `subject` is whom or what the reason is about."""

    verdict: Verdict
    reason: str = ""
    subject: str = ""


@dataclass(frozen=True)
class _Measured:
    """One alignment of one projection of a variant: the mean over pairs by seed, and what chance shows there."""

    by_seed: _BySeed
    dimension: int
    pairs: int

    def __bool__(self) -> bool:
        return bool(self.by_seed)

    def __str__(self) -> str:
        return _text(self.by_seed)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.by_seed.values())

    @property
    def level(self) -> float:
        return chance.mean_cosine(self.dimension)

    @property
    def is_above_chance_in_every_seed(self) -> bool:
        return min(self.by_seed.values()) > chance.band_of_mean(self.dimension, self.pairs)[1]

    def is_at_chance(self, comparisons: int = 1) -> bool:
        """Whether the mean over seeds lies where 95 % of such means lie by chance, all of `comparisons` together."""
        high = chance.band_of_mean(self.dimension, self.pairs * len(self.by_seed))[1]
        # Bonferroni's bound; the lower end is of no interest: nothing is less aligned than chance.
        widened = statistics.NormalDist().inv_cdf(1 - 0.025 / comparisons) / 1.96
        return self.mean <= self.level + (high - self.level) * widened


_NOTHING = _Measured({}, 2, 1)


class _Results:
    """The probes of an experiment by variant, seed and projection: what the claims below ask for."""

    def __init__(
        self,
        experiment: LanguageExperiment,
        probes: Mapping[tuple[str, int], Mapping[str, Sequence[Probe]]],
        finished: Mapping[tuple[str, int], NetworkFinished],
    ) -> None:
        self.variants = experiment.variants
        self.seeds = range(experiment.seed, experiment.seed + experiment.seeds)
        self._probes = probes
        self._finished = finished

    def done(self, variant: LanguageVariant) -> bool:
        return all((variant.name, seed) in self._finished for seed in self.seeds)

    def runs(self, variant: LanguageVariant, projection: str) -> dict[int, Sequence[Probe]]:
        """By seed, what was measured of a projection; seeds without it are left out."""
        found = {seed: self._probes.get((variant.name, seed), {}).get(projection, ()) for seed in self.seeds}
        return {seed: run for seed, run in found.items() if run}

    def first(self, variant: LanguageVariant, projection: str) -> dict[int, Probe]:
        return {seed: run[0] for seed, run in self.runs(variant, projection).items() if run[0].step == 0}

    def latest(self, variant: LanguageVariant, projection: str) -> dict[int, Probe]:
        """By seed, the last probe at or before the step that every seed with probes has reached."""
        runs = self.runs(variant, projection)
        step = min((run[-1].step for run in runs.values()), default=0)
        return {
            seed: next(probe for probe in reversed(run) if probe.step <= step)
            for seed, run in runs.items()
            if run[0].step <= step
        }

    def untrained(self, variant: LanguageVariant) -> list[str]:
        """The networks whose loss is no better than at the start."""
        found = []
        for seed in self.seeds:
            by_projection = self._probes.get((variant.name, seed), {})
            run: Sequence[Probe] = next((run for run in by_projection.values() if run), ())
            losses = [loss for _, loss in _losses(run, held_out=_has_held_out(run))]
            if len(losses) > 1 and losses[-1] > losses[0] - _TRAINS:
                found.append(f"{variant.name} (seed {seed})")
        return found


def judge(
    experiment: LanguageExperiment,
    probes: Mapping[tuple[str, int], Mapping[str, Sequence[Probe]]],
    finished: Mapping[tuple[str, int], NetworkFinished],
) -> tuple[Finding, ...]:
    """Judge every claim that `experiment` puts to the test.

    Args:
        probes: by (variant, seed), by projection ("q", "k", "v", "o", "gate", "up", "down"; some may be missing), the
            probes in the order of their steps.
        finished: the networks that have done all their steps, by (variant, seed).
    """
    results = _Results(experiment, probes, finished)
    residual = [variant for variant in results.variants if variant.residual]
    # The activation's own claims follow; the others are about the network as it is usually built.
    usual = [variant for variant in residual if variant.activation in ELEMENTWISE_ACTIVATIONS] or residual
    findings: list[Finding] = []
    if residual:
        findings += [
            _coherent_gradients(results, residual).about(*residual),
            _continuous(results, usual, "readers Q, K, Gate, Up continuous in v1", READERS).about(*usual),
            _continuous(results, usual, "writers O, Down continuous in u1", WRITERS).about(*usual),
            _low_on_both_sides(results, usual).about(*usual),
            _rise_and_fall(results, usual).about(*usual),
        ]
    for variant, partners in _without_activation(residual):
        findings += [_lost(results, variant, partners, side).about(variant, *partners) for side in ("v", "u")]
    return tuple(findings)


def _coherent_gradients(results: _Results, variants: Sequence[LanguageVariant]) -> Finding:
    claim = "gradients coherent at step 0 on the residual side"
    gradients: dict[str, _Measured] = {}
    others: list[float] = []
    weights: dict[str, _Measured] = {}
    for variant in variants:
        for projection, side in RESIDUAL_SIDES.items():
            first = results.first(variant, projection)
            gradient = _measured(first, "gradient", side)
            if gradient:
                name = f"{_title(projection)} of {variant.name}"
                gradients[name], weights[name] = gradient, _measured(first, "weight", side)
                other = _measured(first, "gradient", "u" if side == "v" else "v")
                others += [other.mean] if other else []
    if not gradients:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    numbers = f"gradients {_range(g.mean for g in gradients.values())}"
    numbers += f", other side {_range(others)}" if others else ""
    numbers += f", weights {_range(w.mean for w in weights.values() if w)}, chance {_levels(gradients.values())}"
    parts: list[_Part] = []
    for name, gradient in gradients.items():
        weight = weights[name]
        if len(gradient.by_seed) < 2:
            parts.append(_Part("not yet", _ONE_SEED))
        elif gradient.is_at_chance():
            parts.append(_Part("contradicted", "at chance", name))
        elif not gradient.is_above_chance_in_every_seed:
            parts.append(_Part("not yet", "not above chance in every seed", name))
        elif weight and not weight.is_at_chance(len(gradients)):
            parts.append(_Part("confounded", "the weights are aligned from the start", f"{name} {weight}"))
        else:
            parts.append(_Part("supported"))
    return _together(claim, numbers, parts)


def _continuous(
    results: _Results, variants: Sequence[LanguageVariant], claim: str, projections: Sequence[str]
) -> Finding:
    parts: list[_Part] = []
    texts: list[str] = []
    known: list[_Measured] = []
    for variant in variants:
        described = []
        for projection in projections:
            side = RESIDUAL_SIDES[projection]
            latest = _measured(results.latest(variant, projection), "weight", side)
            if not latest:
                if projection != "gate" or variant.gate:
                    parts.append(_Part("not yet", "not measured", f"{_title(projection)} of {variant.name}"))
                continue
            known.append(latest)
            described.append(f"{_title(projection)} {latest}")
            parts.append(_against_chance(results, variant, projection, latest))
        if described:
            texts.append(f"{variant.name}: {', '.join(described)}")
    if not known:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    return _together(claim, f"{'; '.join(texts)}; chance {_levels(known)}", parts)


def _against_chance(results: _Results, variant: LanguageVariant, projection: str, latest: _Measured) -> _Part:
    name = f"{_title(projection)} of {variant.name}"
    if len(latest.by_seed) < 2:
        return _Part("not yet", _ONE_SEED)
    if latest.is_above_chance_in_every_seed:
        return _untrained(results, variant) or _Part("supported")
    if not latest.is_at_chance():
        return _Part("not yet", "not above chance in every seed", name)
    return _still_at_chance(results, variant, projection, "at chance", name)


def _untrained(results: _Results, *variants: LanguageVariant) -> _Part | None:
    """The verdict where a network's loss has not come down; None where all have."""
    names = ", ".join(itertools.chain.from_iterable(map(results.untrained, variants)))
    if not names:
        return None
    if all(map(results.done, variants)):
        return _Part("confounded", "does not train", names)
    return _Part("not yet", "the loss has not come down yet", names)


def _still_at_chance(
    results: _Results, variant: LanguageVariant, projection: str, contradiction: str, subject: str
) -> _Part:
    """What it means that a projection shows no more than chance."""
    if not results.done(variant):
        return _Part("not yet", "at chance so far", f"{_title(projection)} of {variant.name}")
    if untrained := _untrained(results, variant):
        return untrained
    closed = _closed_gap(results, variant, projection, results.latest(variant, projection))
    if closed:
        return _Part("confounded", f"{contradiction}: {subject}; {closed}")
    return _Part("contradicted", contradiction, subject)


def _low_on_both_sides(results: _Results, variants: Sequence[LanguageVariant]) -> Finding:
    claim = "V low on both sides"
    parts: list[_Part] = []
    texts: list[str] = []
    for variant in variants:
        latest = results.latest(variant, "v")
        v1, u1 = _measured(latest, "weight", "v"), _measured(latest, "weight", "u")
        readers = {p: _measured(results.latest(variant, p), "weight", "v") for p in READERS}
        readers = {projection: measured for projection, measured in readers.items() if measured}
        if not v1 or not u1 or not readers:
            continue
        lowest = min(readers.values(), key=lambda measured: measured.mean)
        top = _value(latest, lambda probe: probe.top_overlap_v)
        texts.append(
            f"{variant.name}: v1 {v1} (chance {v1.level:.2f}), other readers from {lowest}, "
            f"u1 {u1} (chance {u1.level:.2f}), σ1/σ2 {_text(_value(latest, _sigma_ratio))}, top overlap {_text(top)}"
        )
        parts.append(_low(results, variant, v1, u1, readers))
    if not parts:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    return _together(claim, "; ".join(texts), parts)


def _low(
    results: _Results, variant: LanguageVariant, v1: _Measured, u1: _Measured, readers: Mapping[str, _Measured]
) -> _Part:
    signs = {projection: _sign(reader.by_seed, v1.by_seed) for projection, reader in readers.items()}
    down = _measured(results.latest(variant, "down"), "weight", "u")
    u1_is_low = u1.is_at_chance() or _sign(down.by_seed, u1.by_seed) > 0
    if len(v1.by_seed) < 2:
        return _Part("not yet", _ONE_SEED)
    if not results.done(variant):
        return _Part("not yet", _UNFINISHED)
    if untrained := _untrained(results, variant):
        return untrained
    lower = [_title(projection) for projection, sign in signs.items() if sign < 0]
    if lower:
        return _Part("contradicted", f"lower than V in v1: {', '.join(lower)}", variant.name)
    equal = [_title(projection) for projection, sign in signs.items() if sign == 0]
    if equal:
        return _Part("not yet", f"V is within the spread of the seeds of {', '.join(equal)}", variant.name)
    if not u1_is_low:
        if _sign(u1.by_seed, down.by_seed) > 0:
            return _Part("contradicted", "V is above Down in u1", variant.name)
        return _Part("not yet", "u1 is neither at chance nor below that of Down", variant.name)
    closed = _closed_gap(results, variant, "v", results.latest(variant, "v"))
    if closed and not _has_lower_overlap(results, variant, readers):
        return _Part("confounded", f"{closed}, and the leading subspaces are not lower than those of the other readers")
    place = "at chance" if v1.is_at_chance() else "above chance"
    return _Part("supported", f"lowest of the readers, and {place}", variant.name)


def _has_lower_overlap(results: _Results, variant: LanguageVariant, readers: Iterable[str]) -> bool:
    def overlap(projection: str) -> _BySeed:
        return _value(results.latest(variant, projection), lambda probe: probe.top_overlap_v)

    return all(_sign(overlap(projection), overlap("v")) > 0 for projection in readers)


def _rise_and_fall(results: _Results, variants: Sequence[LanguageVariant]) -> Finding:
    claim = "O rises, then falls in u1"
    parts: list[_Part] = []
    texts: list[str] = []
    for variant in variants:
        runs = {
            seed: {probe.step: value for probe in run if (value := _mean(probe.weight, "u")) is not None}
            for seed, run in results.runs(variant, "o").items()
        }
        steps = sorted(set.intersection(*map(set, runs.values()))) if runs else []
        if not steps:
            continue
        peak = max(steps, key=lambda step: statistics.fmean(run[step] for run in runs.values()))
        start, top, now = ({seed: run[step] for seed, run in runs.items()} for step in (steps[0], peak, steps[-1]))
        dimension = next(iter(results.runs(variant, "o").values()))[0].u_dim
        latest = results.latest(variant, "o")
        texts.append(
            f"{variant.name}: {_text(start)} at {steps[0]}, peak {_text(top)} at {peak}, {_text(now)} at {steps[-1]} "
            f"(chance {chance.mean_cosine(dimension):.2f}), σ1/σ2 {_text(_value(latest, _sigma_ratio))}"
        )
        parts.append(_rise_and_fall_of(results, variant, runs, steps))
    if not parts:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    return _together(claim, "; ".join(texts), parts)


def _rise_and_fall_of(
    results: _Results, variant: LanguageVariant, runs: Mapping[int, Mapping[int, float]], steps: Sequence[int]
) -> _Part:
    if len(runs) < 2:
        return _Part("not yet", _ONE_SEED)
    # The highest of many noisy values is high by selection: each seed is looked at where the other seeds peak.
    sums = {step: sum(run[step] for run in runs.values()) for step in steps}
    peaks = {seed: max((sums[step] - run[step], -step) for step in steps)[1] for seed, run in runs.items()}
    probes = {
        seed: next(probe for probe in run if probe.step == -peaks[seed])
        for seed, run in results.runs(variant, "o").items()
        if seed in peaks
    }
    top = _measured(probes, "weight", "u")
    if not top.is_above_chance_in_every_seed:
        if top.is_at_chance():
            return _still_at_chance(results, variant, "o", "O does not rise above chance", variant.name)
        return _Part("not yet", "not above chance in every seed", variant.name)
    start = _measured(results.first(variant, "o"), "weight", "u")
    now = {seed: run[steps[-1]] for seed, run in runs.items()}
    if start and not start.is_at_chance() and _sign(top.by_seed, start.by_seed) <= 0:
        return _Part("not yet", "the rise is within the spread of the seeds", variant.name)
    if _sign(top.by_seed, now) <= 0:
        word = "ended before a fall beyond the spread of the seeds" if results.done(variant) else "no fall yet"
        return _Part("not yet", word, variant.name)
    if untrained := _untrained(results, variant):
        return untrained
    closed = _closed_gap(results, variant, "o", results.latest(variant, "o"))
    if closed and not _closed_gap(results, variant, "o", probes):
        return _Part("confounded", f"{closed}: u1 falls because the gap has closed")
    return _Part("supported")


def _lost(results: _Results, variant: LanguageVariant, partners: Sequence[LanguageVariant], side: Side) -> Finding:
    """The gate without an elementwise activation against each network with one, seed by seed, at equal loss."""
    claim = f"Gate loses {side}1 continuity: {variant.name}"
    parts: list[_Part] = []
    texts: list[str] = []
    signs = set()
    for partner in partners:
        comparison = _compare(results, variant, partner, side)
        if comparison is not None:
            texts.append(comparison.text)
            parts.append(_loss(results, variant, partner, side, comparison))
            signs.add(comparison.sign)
    if not parts:
        return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
    latest = results.latest(variant, "gate")
    factor = _value(latest, lambda probe: probe.activation_factor)
    if factor:
        texts.append(f"factor {statistics.fmean(factor.values()):.3f}")
    probe = next(iter(latest.values()))
    texts.append(f"chance {chance.mean_cosine(probe.v_dim if side == 'v' else probe.u_dim):.2f}")
    numbers = "; ".join(texts)
    if {1, -1} <= signs and all(part.verdict in ("supported", "contradicted") for part in parts):
        reason = "below one of the networks with an activation, above another"
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason=reason)
    return _together(claim, numbers, parts)


@dataclass(frozen=True)
class _Comparison:
    """Two variants' gates at equal loss where they have one, else at the end: how they differ, and in words."""

    kept: _BySeed
    sign: int
    equal_loss: bool
    text: str


def _compare(results: _Results, variant: LanguageVariant, partner: LanguageVariant, side: Side) -> _Comparison | None:
    ours, theirs = results.runs(variant, "gate"), results.runs(partner, "gate")
    seeds = sorted(ours.keys() & theirs.keys())
    last = [_measured({seed: runs[seed][-1] for seed in seeds}, "weight", side).by_seed for runs in (theirs, ours)]
    if not last[0].keys() & last[1].keys():
        return None
    runs = [run[seed] for run in (theirs, ours) for seed in seeds]
    held_out = all(_has_held_out(run) for run in runs)
    records = [_records(run, held_out=held_out) for run in runs]
    end = f"{partner.name} {_text(last[0])}, {variant.name} {_text(last[1])}"
    if all(records):
        loss = max(record[-1][1] for record in records)
        if loss <= min(record[0][1] for record in records):
            values = [_at_loss(record, loss, side) for record in records]
            count = len(seeds)
            kept = {s: v for s, v in zip(seeds, values[:count], strict=True) if v is not None}
            left = {s: v for s, v in zip(seeds, values[count:], strict=True) if v is not None}
            paired = _paired(kept, left)
            if paired:
                perplexity = f"{'held-out' if held_out else 'training'} perplexity {math.exp(min(loss, 700)):.4g}"
                text = (
                    f"at {perplexity} {partner.name} {_text(kept)}, {variant.name} {_text(left)}, "
                    f"difference {_difference(paired)}; at the end {end}"
                )
                return _Comparison(kept, _sign(kept, left), True, text)
    paired = _paired(*last)
    text = f"at the end, at unequal perplexity: {end}, difference {_difference(paired)}"
    return _Comparison(last[0], _sign(*last), False, text)


def _loss(
    results: _Results, variant: LanguageVariant, partner: LanguageVariant, side: Side, comparison: _Comparison
) -> _Part:
    if len(comparison.kept) < 2:
        return _Part("not yet", _ONE_SEED)
    # Looking again and again until a difference shows would find one: the end decides.
    if not (results.done(variant) and results.done(partner)):
        return _Part("not yet", _UNFINISHED)
    if untrained := _untrained(results, variant, partner):
        return untrained
    linear = _hardly_acts(results, variant)
    if linear:
        return _Part("confounded", linear)
    if comparison.sign == 0:
        return _Part("not yet", "the difference is within the spread of the seeds", f"from {partner.name}")
    if not comparison.equal_loss:
        return _Part("confounded", "no perplexity in common", f"with {partner.name}")
    if comparison.sign < 0:
        return _Part("contradicted", f"{variant.name} is above", partner.name)
    closed = _closed_gap(results, variant, "gate", results.latest(variant, "gate"))
    if closed and not _closed_gap(results, partner, "gate", results.latest(partner, "gate")):
        return _Part("confounded", f"{closed}: {side}1 falls because the gap has closed")
    return _Part("supported")


def _hardly_acts(results: _Results, variant: LanguageVariant) -> str:
    """Why a radial variant is nearly linear; empty where it is not."""
    if variant.activation not in RADIAL_ACTIVATIONS:
        return ""
    curves = [
        {probe.step: Sample((f,)) for probe in run if (f := probe.activation_factor) is not None and math.isfinite(f)}
        for run in results.runs(variant, "gate").values()
    ]
    means = [mean_over_steps(curve) for curve in curves if curve]
    if not means:
        return ""
    away = abs(1 - statistics.fmean(means))
    if away >= ACTS:
        return ""
    return f"the radial factor is within {away:.1g} of 1 on average: it hardly acts, the gate is nearly linear"


def _closed_gap(results: _Results, variant: LanguageVariant, projection: str, probes: Mapping[int, Probe]) -> str:
    """What to say where σ1/σ2 is about that of the random start; empty where it is not, or is not known."""
    ratio, start = _value(probes, _sigma_ratio), _value(results.first(variant, projection), _sigma_ratio)
    if not ratio or not start:
        return ""
    now, before = statistics.fmean(ratio.values()), statistics.fmean(start.values())
    if now - 1 >= _OPEN * (before - 1):
        return ""
    return f"σ1/σ2 of {_title(projection)} of {variant.name} is {now:.3f}, near the random start's {before:.3f}"


def _without_activation(
    variants: Sequence[LanguageVariant],
) -> list[tuple[LanguageVariant, list[LanguageVariant]]]:
    """Gates that are linear or radial, each with the elementwise ones that differ in nothing but name and length."""
    gated = [variant for variant in variants if variant.gate]
    found = []
    for variant in gated:
        if variant.activation not in ELEMENTWISE_ACTIVATIONS:
            partners = [v for v in gated if v.activation in ELEMENTWISE_ACTIVATIONS and _same(v, variant)]
            if partners:
                found.append((variant, partners))
    return found


def _same(first: LanguageVariant, second: LanguageVariant) -> bool:
    free = {"name": "", "steps": 1, "tokens": None, "activation": "none"}
    return msgspec.structs.replace(first, **free) == msgspec.structs.replace(second, **free)


def _together(claim: str, numbers: str, parts: Sequence[_Part]) -> Finding:
    """One finding from several: the worst verdict, and the reasons of those who have it, each said once."""
    verdict = next(v for v in _WORST_FIRST if any(part.verdict == v for part in parts))
    subjects: dict[str, list[str]] = {}
    for part in parts:
        if part.verdict == verdict and part.reason:
            subjects.setdefault(part.reason, []).append(part.subject)
    reasons = []
    for reason, found in subjects.items():
        about = ", ".join(dict.fromkeys(filter(None, found)))
        reasons.append(f"{reason}: {about}" if about else reason)
    return Finding(claim=claim, verdict=verdict, numbers=numbers, reason="; ".join(reasons))


def _measured(probes: Mapping[int, Probe], kind: str, side: Side) -> _Measured:
    values: _BySeed = {}
    pairs: list[int] = []
    for seed, probe in probes.items():
        alignment: Alignment = getattr(probe, kind)
        mean = _mean(alignment, side)
        if mean is not None:
            values[seed] = mean
            pairs.append(sum(_is_number(value) for value in (alignment.v1 if side == "v" else alignment.u1)))
    if not values:
        return _NOTHING
    probe = probes[next(iter(values))]
    return _Measured(values, probe.v_dim if side == "v" else probe.u_dim, min(pairs))


def _mean(alignment: Alignment, side: Side) -> float | None:
    return mean_of_pairs(alignment.v1 if side == "v" else alignment.u1)


def _value(probes: Mapping[int, Probe], value: Callable[[Probe], float | None]) -> _BySeed:
    found = {seed: value(probe) for seed, probe in probes.items()}
    return {seed: number for seed, number in found.items() if number is not None and math.isfinite(number)}


def _sigma_ratio(probe: Probe) -> float | None:
    return probe.sigma_ratio


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _has_held_out(run: Sequence[Probe]) -> bool:
    return sum(_is_number(probe.held_out_loss) for probe in run) > 1


def _losses(run: Sequence[Probe], *, held_out: bool) -> list[tuple[Probe, float]]:
    found = ((probe, probe.held_out_loss if held_out else probe.loss) for probe in run)
    return [(probe, loss) for probe, loss in found if loss is not None and math.isfinite(loss)]


def _records(run: Sequence[Probe], *, held_out: bool) -> list[tuple[Probe, float]]:
    """Where the loss was lower than ever before: by these a loss is reached once."""
    records: list[tuple[Probe, float]] = []
    for probe, loss in _losses(run, held_out=held_out):
        if not records or loss < records[-1][1]:
            records.append((probe, loss))
    return records


def _at_loss(records: Sequence[tuple[Probe, float]], loss: float, side: Side) -> float | None:
    """The gate's weight alignment where the loss first came down to `loss`, between two records by the line."""
    place = next(index for index, (_, reached) in enumerate(records) if reached <= loss)
    probe, below = records[place]
    value = _mean(probe.weight, side)
    if place == 0 or below == loss:
        return value
    earlier, above = records[place - 1]
    before = _mean(earlier.weight, side)
    if value is None or before is None:
        return None
    return before + (value - before) * (above - loss) / (above - below)


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """first − second, for every seed that has both."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def _half_width(differences: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more differences."""
    freedom = len(differences) - 1
    # Beyond the table, the first terms of Fisher's expansion about the normal distribution; off by less than 0.003.
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.372 / freedom + 2.82 / freedom**2
    return student * statistics.stdev(differences) / math.sqrt(len(differences))


def _sign(first: _BySeed, second: _BySeed) -> int:
    """1 where `first` is above `second` beyond the spread of the seeds, −1 where it is below, else 0."""
    paired = _paired(first, second)
    if len(paired) < 2:
        return 0
    mean = statistics.fmean(paired)
    # Few differences agree by luck more often than the two sets of numbers they come from do.
    spread = max(_half_width(paired), statistics.stdev(first.values()), statistics.stdev(second.values()))
    if abs(mean) <= spread + 1e-9:
        return 0
    return 1 if mean > 0 else -1


def _difference(differences: Sequence[float]) -> str:
    if not differences:
        return "n/a"
    text = f"{statistics.fmean(differences):+z.2f}"
    return f"{text}±{_half_width(differences):.2f} (95 %)" if len(differences) > 1 else text


def _text(values: Mapping[int, float]) -> str:
    return str(Sample(tuple(values[seed] for seed in sorted(values))))


def _range(values: Iterable[float]) -> str:
    found = list(values)
    return f"{min(found):z.2f}…{max(found):z.2f}" if found else "n/a"


def _levels(measured: Iterable[_Measured]) -> str:
    levels = sorted({f"{each.level:.2f}" for each in measured})
    return levels[0] if len(levels) == 1 else f"{levels[0]}…{levels[-1]}"


def _title(projection: str) -> str:
    return projection.capitalize()
