"""What the screens and the final table show, as a pure fold over the events of a run.

A live run, a journal read back and a run that another process writes go through the same `fold`, so their views cannot
differ. An `AblationState` is frozen; `fold` returns a new one that shares what did not change.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from geocont import chance, claims, language_claims
from geocont.ablations.experiment import AnyExperiment, AnyVariant, LanguageExperiment, LanguageVariant, plain
from geocont.events import (
    RESIDUAL_SIDES,
    Alignment,
    AnalysisStarted,
    Event,
    Message,
    NetworkDiverged,
    NetworkFinished,
    Probe,
    Progress,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    mean_of_pairs,
    perplexity,
)

Status = Literal["starting", "running", "done", "stopped", "failed"]

HIDDEN = "hidden"
"""The one projection of a residual MLP."""

_KEPT = 400


@dataclass(frozen=True)
class Series:
    """What was measured of one projection of a network, in the order of the steps.

    However many are added, `probes` has some 400 at most: the first, the peak (see `peak_quantity`), the latest, and
    of the others every `stride`-th. Counted like this, networks measured at the same steps keep the same steps.
    """

    probes: tuple[Probe, ...] = ()
    kept: tuple[Probe, ...] = ()
    peak: Probe | None = None
    count: int = 0
    stride: int = 1

    def added(self, probe: Probe) -> "Series":
        """The series with a later measurement."""
        kept, stride = self.kept, self.stride
        if self.count % stride == 0:
            kept = (*kept, probe)
            if len(kept) > _KEPT:
                kept, stride = kept[::2], 2 * stride
        peak = probe if _height(probe) > _height(self.peak) else self.peak
        probes = list(kept)
        if peak is not None:
            place = bisect_left(probes, peak.step, key=_step)
            if place == len(probes) or probes[place].step != peak.step:
                probes.insert(place, peak)
        if not probes or probes[-1].step != probe.step:
            probes.append(probe)
        return Series(tuple(probes), kept, peak, self.count + 1, stride)


def _step(probe: Probe) -> int:
    return probe.step


def _height(probe: Probe | None) -> float:
    mean = peak_quantity(probe.projection).mean(probe) if probe is not None else None
    return -1.0 if mean is None else mean


@dataclass(frozen=True)
class Network:
    """One network: where it is and what was measured of it so far, by projection. `held_out_loss`: the latest."""

    variant: str
    seed: int
    steps: int
    step: int = 0
    loss: float | None = None
    series: Mapping[str, Series] = field(default_factory=lambda: MappingProxyType({}))
    held_out_loss: float | None = None
    finished: NetworkFinished | None = None
    diverged: NetworkDiverged | None = None

    def probes(self, projection: str = HIDDEN) -> tuple[Probe, ...]:
        """What is kept of the measurements of a projection, in the order of the steps."""
        series = self.series.get(projection)
        return series.probes if series is not None else ()

    @property
    def over(self) -> bool:
        return self.finished is not None or self.diverged is not None


@dataclass(frozen=True)
class AblationState:
    """A run as known so far. `networks` is keyed by (variant, seed); durations are seconds."""

    experiment: AnyExperiment
    device: str
    versions: Mapping[str, str]
    started: float
    networks: Mapping[tuple[str, int], Network]
    messages: tuple[Message, ...] = ()
    status: Status = "running"
    paused: bool = False
    problem: str | None = None
    remedy: str | None = None
    elapsed: float = 0.0
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    probe_share: float | None = None
    probe_count: int = 0

    @property
    def projections(self) -> tuple[str, ...]:
        """The projections that are measured, in the order in which they are shown."""
        return tuple(RESIDUAL_SIDES) if isinstance(self.experiment, LanguageExperiment) else (HIDDEN,)

    @property
    def measurements(self) -> int:
        """How many probes there are so far."""
        return self.probe_count

    @property
    def steps_planned(self) -> int:
        return sum(network.steps for network in self.networks.values())

    @property
    def steps_left(self) -> int:
        return sum(network.steps - network.step for network in self.networks.values() if not network.over)

    @property
    def progress(self) -> float:
        """The part of all network-steps that is done or will not be done any more, 0…1."""
        return 1 - self.steps_left / self.steps_planned if self.steps_planned else 1.0

    @property
    def eta(self) -> float | None:
        """Seconds left at the present rate; None while no rate is known or nothing is running."""
        if self.status != "running" or not self.steps_per_second:
            return None
        return self.steps_left / self.steps_per_second

    def of(self, variant: str) -> list[Network]:
        """The networks of a variant, by seed."""
        return [network for (name, _), network in sorted(self.networks.items()) if name == variant]


@dataclass(frozen=True)
class Quantity:
    """An alignment that can be shown: which matrices, and which side."""

    kind: Literal["weight", "gradient", "cumulative", "update"]
    side: Literal["v1", "u1"]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.side}"

    def pairs(self, probe: Probe) -> tuple[float | None, ...]:
        alignment: Alignment = getattr(probe, self.kind)
        values: tuple[float | None, ...] = getattr(alignment, self.side)
        return values

    def mean(self, probe: Probe) -> float | None:
        """Mean over the adjacent pairs that exist."""
        return mean_of_pairs(self.pairs(probe))


WEIGHT_V1 = Quantity("weight", "v1")
WEIGHT_U1 = Quantity("weight", "u1")
GRADIENT_V1 = Quantity("gradient", "v1")
QUANTITIES = (
    WEIGHT_V1,
    WEIGHT_U1,
    GRADIENT_V1,
    Quantity("gradient", "u1"),
    Quantity("cumulative", "v1"),
    Quantity("cumulative", "u1"),
    Quantity("update", "v1"),
    Quantity("update", "u1"),
)


def residual_side(projection: str) -> Literal["v1", "u1"] | None:
    """Where a projection of a transformer meets the residual stream; None for residual MLPs, which do on both sides."""
    side = RESIDUAL_SIDES.get(projection)
    return None if side is None else "u1" if side == "u" else "v1"


def peak_quantity(projection: str) -> Quantity:
    """The weight alignment whose rise and fall is followed: on the residual side, v1 for residual MLPs."""
    return WEIGHT_U1 if residual_side(projection) == "u1" else WEIGHT_V1


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and their sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Trajectory:
    """A quantity over the steps at which it was measured: mean over seeds, the band mean ± std, and every seed.

    `low` and `high` are None where only one seed has been measured.
    """

    steps: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    seeds: Mapping[int, tuple[tuple[int, ...], tuple[float | None, ...]]]


@dataclass(frozen=True)
class Summary:
    """One variant in a row: where it is, and one projection's numbers at its latest common probe, over seeds.

    The peak and the top overlap are those of the side of `peak_quantity`; `perplexity` is exp of the latest loss on
    text that is not trained on.
    """

    variant: str
    step: int
    steps: int
    status: str
    loss: Spread | None
    accuracy: Spread | None
    test_accuracy: Spread | None
    perplexity: Spread | None
    weight_v1: Spread | None
    weight_u1: Spread | None
    gradient_v1: Spread | None
    gradient_v1_at_start: Spread | None
    gradient_u1_at_start: Spread | None
    peak: Spread | None
    peak_step: int | None
    below_peak: float | None
    sigma_ratio: Spread | None
    top_overlap: Spread | None
    update_ratio: Spread | None
    identity_share: Spread | None
    drift: Spread | None
    cumulative_match: Spread | None
    activation_factor: Spread | None


def planned(experiment: AnyExperiment, device: str) -> AblationState:
    """What can be shown of an experiment before its first event."""
    networks = {
        (variant.name, seed): Network(variant=variant.name, seed=seed, steps=variant.steps)
        for variant in experiment.variants
        for seed in range(experiment.seed, experiment.seed + experiment.seeds)
    }
    return AblationState(
        experiment=experiment,
        device=device,
        versions=MappingProxyType({}),
        started=0.0,
        networks=MappingProxyType(networks),
        status="starting",
    )


def fold(state: AblationState | None, event: Event) -> AblationState:
    """The state after `event`. The first event must be RunStarted; the given state is left as it is.

    Raises:
        ValueError: another event comes first.
    """
    if isinstance(event, RunStarted):
        return AblationState(
            experiment=plain(event.experiment),
            device=event.device,
            versions=MappingProxyType(dict(event.versions)),
            started=event.time,
            networks=MappingProxyType(
                {
                    (plan.variant, plan.seed): Network(variant=plan.variant, seed=plan.seed, steps=plan.steps)
                    for plan in event.networks
                }
            ),
            messages=log_of(event),
        )
    if state is None:
        raise ValueError("a run begins with RunStarted")
    match event:
        case Progress():
            changed = {}
            for position in event.networks:
                key = (position.variant, position.seed)
                network = state.networks[key]
                changed[key] = replace(network, step=max(position.step, network.step), loss=position.loss)
            return replace(
                _with(state, changed),
                elapsed=event.elapsed,
                steps_per_second=event.steps_per_second,
                tokens_per_second=event.tokens_per_second,
                probe_share=event.probe_share,
            )
        case Probe():
            network = state.networks[event.variant, event.seed]
            series = network.series.get(event.projection, Series()).added(event)
            measured = replace(
                network,
                step=max(event.step, network.step),
                series=MappingProxyType({**network.series, event.projection: series}),
                held_out_loss=network.held_out_loss if event.held_out_loss is None else event.held_out_loss,
            )
            return replace(_with(state, {(event.variant, event.seed): measured}), probe_count=state.probe_count + 1)
        case NetworkFinished():
            network = replace(state.networks[event.variant, event.seed], step=event.step, finished=event)
            if isinstance(state.experiment, LanguageExperiment) and event.test_loss is not None:
                network = replace(network, held_out_loss=event.test_loss)
            return _with(state, {(event.variant, event.seed): network})
        case NetworkDiverged():
            network = replace(state.networks[event.variant, event.seed], step=event.step, diverged=event)
            return _with(state, {(event.variant, event.seed): network})
        case Message():
            return replace(state, messages=(*state.messages, event))
        case RunPaused():
            return replace(state, messages=(*state.messages, *log_of(event)), paused=True)
        case RunResumed():
            return replace(state, messages=(*state.messages, *log_of(event)), paused=False)
        case RunContinued():
            return replace(
                state,
                device=event.device,
                versions=MappingProxyType(dict(event.versions)),
                messages=(*state.messages, *log_of(event)),
                status="running",
                paused=False,
                problem=None,
                remedy=None,
            )
        case RunFinished():
            training, probing = event.training_seconds, event.probe_seconds
            return replace(
                state,
                messages=(*state.messages, *log_of(event)),
                status=event.status,
                paused=False,
                problem=event.problem,
                remedy=event.remedy,
                elapsed=state.elapsed if event.elapsed is None else event.elapsed,
                probe_share=probing / (training + probing) if training and probing is not None else state.probe_share,
            )
        case _:
            raise ValueError(f"{type(event).__name__} is no event of an ablation")


def log_of(
    event: RunStarted | AnalysisStarted | RunPaused | RunResumed | RunContinued | RunFinished,
) -> tuple[Message, ...]:
    """What the log says of the beginning of a run, its end, and where it stood still."""
    match event:
        case RunStarted() | AnalysisStarted():
            said = f"started on {event.device}"
        case RunContinued():
            said = f"resumed on {event.device}"
        case RunPaused():
            said = "paused"
        case RunResumed():
            said = "went on"
        case RunFinished(status="failed"):
            said = "; ".join(text for text in (event.problem, event.remedy) if text)
            return (Message(level="error", text=said, time=event.time),) if said else ()
        case RunFinished():
            said = event.status
    return (Message(level="info", text=said, time=event.time),)


def _with(state: AblationState, changed: Mapping[tuple[str, int], Network]) -> AblationState:
    return replace(state, networks=MappingProxyType({**state.networks, **changed})) if changed else state


def variant_of(state: AblationState, name: str) -> AnyVariant:
    """The settings of a variant."""
    return next(variant for variant in state.experiment.variants if variant.name == name)


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and sample standard deviation of the values that exist; None when there is none."""
    present = [value for value in values if value is not None and math.isfinite(value)]
    if not present:
        return None
    # Scaled, and hypot scales by itself, so that huge losses do not overflow.
    largest = max(map(abs, present)) or 1.0
    mean = largest * (math.fsum(value / largest for value in present) / len(present))
    std = math.hypot(*(value - mean for value in present)) / math.sqrt(len(present) - 1) if len(present) > 1 else None
    return Spread(mean=mean, std=std, count=len(present))


def measured_projections(variant: AnyVariant) -> tuple[str, ...]:
    """The projections that a variant has, in the order in which they are shown."""
    if not isinstance(variant, LanguageVariant):
        return (HIDDEN,)
    return tuple(name for name in RESIDUAL_SIDES if variant.gate or name != "gate")


def trajectory(state: AblationState, variant: str, quantity: Quantity, projection: str = HIDDEN) -> Trajectory:
    """How a quantity of a projection went, at every step at which at least one seed was measured.

    A step that some seeds have not reached yet is left out of the mean as soon as another seed has: a mean over fewer
    seeds would jump when the rest arrive.
    """
    networks = [network for network in state.of(variant) if network.probes(projection)]
    by_step: dict[int, list[float | None]] = {}
    for network in networks:
        for probe in network.probes(projection):
            by_step.setdefault(probe.step, []).append(quantity.mean(probe))
    steps = tuple(step for step, values in sorted(by_step.items()) if len(values) == len(networks))
    spreads = [spread(by_step[step]) for step in steps]
    return Trajectory(
        steps=steps,
        mean=tuple(found.mean if found else None for found in spreads),
        low=tuple(found.mean - found.std if found and found.std is not None else None for found in spreads),
        high=tuple(found.mean + found.std if found and found.std is not None else None for found in spreads),
        seeds=MappingProxyType(
            {
                network.seed: (
                    tuple(probe.step for probe in network.probes(projection)),
                    tuple(quantity.mean(probe) for probe in network.probes(projection)),
                )
                for network in networks
            }
        ),
    )


def now(state: AblationState, variant: str, quantity: Quantity, projection: str = HIDDEN) -> tuple[float | None, ...]:
    """The current |cos| of each adjacent pair: mean over the seeds' values at their latest common probe."""
    rows = [quantity.pairs(probe) for probe in _latest(state.of(variant), projection)]
    return tuple(mean_of_pairs(column) for column in zip(*rows, strict=True))


def mean_now(state: AblationState, variant: str, quantity: Quantity, projection: str = HIDDEN) -> Spread | None:
    """The current mean over the pairs: a spread over the seeds at their latest common probe."""
    return spread([quantity.mean(probe) for probe in _latest(state.of(variant), projection)])


def missing(state: AblationState, variant: str, field: str, projection: str = HIDDEN) -> str | None:
    """Why a value of the latest probe does not exist, in the words of the probe; None if nothing is said."""
    reasons = [probe.missing[field] for probe in _latest(state.of(variant), projection) if field in probe.missing]
    return reasons[0] if reasons else None


def dimension(state: AblationState, variant: str, quantity: Quantity, projection: str = HIDDEN) -> int:
    """Dimension of the space that the singular vectors live in."""
    for network in state.of(variant):
        probes = network.probes(projection)
        if probes:
            return probes[0].v_dim if quantity.side == "v1" else probes[0].u_dim
    return variant_of(state, variant).width


def chance_level(
    state: AblationState, variant: str, quantity: Quantity, projection: str = HIDDEN
) -> tuple[float, float]:
    """What independent random directions would give: the mean |cos|, and the upper end of the 95 % band of the mean
    over the pairs and seeds of the variant."""
    width = dimension(state, variant, quantity, projection)
    pairs = variant_of(state, variant).depth - 1
    return chance.mean_cosine(width), chance.band_of_mean(width, pairs * state.experiment.seeds)[1]


def findings(state: AblationState) -> tuple[claims.Finding, ...]:
    """What the numbers so far say about the claims of the source."""
    finished = {key: network.finished for key, network in state.networks.items() if network.finished is not None}
    if isinstance(state.experiment, LanguageExperiment):
        probes = {
            key: {name: series.probes for name, series in network.series.items()}
            for key, network in state.networks.items()
        }
        return language_claims.judge(state.experiment, probes, finished)
    return claims.judge(state.experiment, {key: network.probes() for key, network in state.networks.items()}, finished)


def summary(state: AblationState, variant: str, projection: str = HIDDEN) -> Summary:
    """A variant in a row: see `Summary`."""
    networks = state.of(variant)
    latest = _latest(networks, projection)
    started = [probes[0] for probes in (network.probes(projection) for network in networks) if probes]
    started = [probe for probe in started if probe.step == 0]
    followed = peak_quantity(projection)
    curve = trajectory(state, variant, followed, projection)
    known = [(mean, step) for mean, step in zip(curve.mean, curve.steps, strict=True) if mean is not None]
    peak, peak_step = max(known, default=(None, None), key=lambda pair: pair[0])
    return Summary(
        variant=variant,
        step=min(network.step for network in networks),
        steps=max(network.steps for network in networks),
        status=_status(networks),
        loss=spread([probe.loss for probe in latest]),
        accuracy=spread([probe.accuracy for probe in latest]),
        test_accuracy=spread([network.finished.test_accuracy for network in networks if network.finished]),
        perplexity=spread([perplexity(network.held_out_loss) for network in networks]),
        weight_v1=spread([WEIGHT_V1.mean(probe) for probe in latest]),
        weight_u1=spread([WEIGHT_U1.mean(probe) for probe in latest]),
        gradient_v1=spread([GRADIENT_V1.mean(probe) for probe in latest]),
        gradient_v1_at_start=spread([GRADIENT_V1.mean(probe) for probe in started]),
        gradient_u1_at_start=spread([Quantity("gradient", "u1").mean(probe) for probe in started]),
        peak=spread(
            [followed.mean(probe) for n in networks for probe in n.probes(projection) if probe.step == peak_step]
        ),
        peak_step=peak_step,
        below_peak=known[-1][0] - peak if peak is not None else None,
        sigma_ratio=spread([probe.sigma_ratio for probe in latest]),
        top_overlap=spread([probe.top_overlap_u if followed.side == "u1" else probe.top_overlap_v for probe in latest]),
        update_ratio=spread([probe.update_ratio for probe in latest]),
        identity_share=spread([probe.identity_share for probe in latest]),
        drift=spread([probe.drift for probe in latest]),
        cumulative_match=spread([probe.cumulative_match for probe in latest]),
        activation_factor=spread([probe.activation_factor for probe in latest]),
    )


def _latest(networks: Sequence[Network], projection: str) -> list[Probe]:
    """The probes at the last step that all networks with probes share."""
    measured = [probes for probes in (network.probes(projection) for network in networks) if probes]
    common = set.intersection(*({probe.step for probe in probes} for probes in measured)) if measured else set()
    return [probe for probes in measured for probe in probes if common and probe.step == max(common)]


def _status(networks: Sequence[Network]) -> str:
    diverged = [network for network in networks if network.diverged is not None]
    if diverged:
        first = min(network.diverged.step for network in diverged if network.diverged is not None)
        return f"diverged at step {first}" + (f" ({len(diverged)} of {len(networks)})" if len(networks) > 1 else "")
    if all(network.finished for network in networks):
        return "done"
    return "training" if any(network.step or network.series for network in networks) else "waiting"
