"""What the screens and the final table show, as a pure fold over the events of a run.

A live run, a journal read back and a run that another process writes go through the same `fold`, so their views cannot
differ. An `AblationState` is frozen; `fold` returns a new one that shares what did not change.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from geocont import chance, claims
from geocont.ablations.experiment import AnyExperiment, AnyVariant, Experiment, plain
from geocont.events import (
    Alignment,
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
)

Status = Literal["starting", "running", "done", "stopped", "failed"]


@dataclass(frozen=True)
class Network:
    """One network: where it is and everything measured of it so far."""

    variant: str
    seed: int
    steps: int
    step: int = 0
    loss: float | None = None
    probes: tuple[Probe, ...] = ()
    finished: NetworkFinished | None = None
    diverged: NetworkDiverged | None = None

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
    probe_share: float | None = None
    probe_count: int = 0

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
    """One variant in a row: where it is, and its numbers at its latest common probe, as spreads over seeds."""

    variant: str
    step: int
    steps: int
    status: str
    loss: Spread | None
    accuracy: Spread | None
    test_accuracy: Spread | None
    weight_v1: Spread | None
    weight_u1: Spread | None
    gradient_v1: Spread | None
    gradient_v1_at_start: Spread | None
    gradient_u1_at_start: Spread | None
    peak_v1: Spread | None
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
                probe_share=event.probe_share,
            )
        case Probe():
            network = state.networks[event.variant, event.seed]
            measured = replace(network, step=max(event.step, network.step), probes=(*network.probes, event))
            return replace(_with(state, {(event.variant, event.seed): measured}), probe_count=state.probe_count + 1)
        case NetworkFinished():
            network = replace(state.networks[event.variant, event.seed], step=event.step, finished=event)
            return _with(state, {(event.variant, event.seed): network})
        case NetworkDiverged():
            network = replace(state.networks[event.variant, event.seed], step=event.step, diverged=event)
            return _with(state, {(event.variant, event.seed): network})
        case Message():
            return replace(state, messages=(*state.messages, event))
        case RunPaused():
            return replace(state, paused=True)
        case RunResumed():
            return replace(state, paused=False)
        case RunContinued():
            return replace(
                state,
                device=event.device,
                versions=MappingProxyType(dict(event.versions)),
                status="running",
                paused=False,
                problem=None,
                remedy=None,
            )
        case RunFinished():
            training, probing = event.training_seconds, event.probe_seconds
            said = [text for text in (event.problem, event.remedy) if text]
            return replace(
                state,
                messages=(*state.messages, *(Message(level="error", text=text, time=event.time) for text in said)),
                status=event.status,
                paused=False,
                problem=event.problem,
                remedy=event.remedy,
                elapsed=state.elapsed if event.elapsed is None else event.elapsed,
                probe_share=probing / (training + probing) if training and probing is not None else state.probe_share,
            )
        case _:
            raise ValueError(f"{type(event).__name__} is no event of an ablation")


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


def trajectory(state: AblationState, variant: str, quantity: Quantity) -> Trajectory:
    """How a quantity went, at every step at which at least one seed was measured.

    A step that some seeds have not reached yet is left out of the mean as soon as another seed has: a mean over fewer
    seeds would jump when the rest arrive.
    """
    networks = [network for network in state.of(variant) if network.probes]
    by_step: dict[int, list[float | None]] = {}
    for network in networks:
        for probe in network.probes:
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
                    tuple(probe.step for probe in network.probes),
                    tuple(quantity.mean(probe) for probe in network.probes),
                )
                for network in networks
            }
        ),
    )


def now(state: AblationState, variant: str, quantity: Quantity) -> tuple[float | None, ...]:
    """The current |cos| of each adjacent pair: mean over the seeds' values at their latest common probe."""
    rows = [quantity.pairs(probe) for probe in _latest(state.of(variant))]
    return tuple(mean_of_pairs(column) for column in zip(*rows, strict=True))


def missing(state: AblationState, variant: str, field: str) -> str | None:
    """Why a value of the latest probe does not exist, in the words of the probe; None if nothing is said."""
    reasons = [probe.missing[field] for probe in _latest(state.of(variant)) if field in probe.missing]
    return reasons[0] if reasons else None


def dimension(state: AblationState, variant: str, quantity: Quantity) -> int:
    """Dimension of the space that the singular vectors live in."""
    for network in state.of(variant):
        if network.probes:
            return network.probes[0].v_dim if quantity.side == "v1" else network.probes[0].u_dim
    return variant_of(state, variant).width


def chance_level(state: AblationState, variant: str, quantity: Quantity) -> tuple[float, float]:
    """What independent random directions would give: the mean |cos|, and the upper end of the 95 % band of the mean
    over the pairs and seeds of the variant."""
    width = dimension(state, variant, quantity)
    pairs = variant_of(state, variant).depth - 1
    return chance.mean_cosine(width), chance.band_of_mean(width, pairs * state.experiment.seeds)[1]


def findings(state: AblationState) -> tuple[claims.Finding, ...]:
    """What the numbers so far say about the claims of the source."""
    if not isinstance(state.experiment, Experiment):
        return ()
    return claims.judge(
        state.experiment,
        {key: network.probes for key, network in state.networks.items()},
        {key: network.finished for key, network in state.networks.items() if network.finished is not None},
    )


def summary(state: AblationState, variant: str) -> Summary:
    """A variant in a row: see `Summary`."""
    networks = state.of(variant)
    latest = _latest(networks)
    started = [network.probes[0] for network in networks if network.probes and network.probes[0].step == 0]
    curve = trajectory(state, variant, WEIGHT_V1)
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
        weight_v1=spread([WEIGHT_V1.mean(probe) for probe in latest]),
        weight_u1=spread([WEIGHT_U1.mean(probe) for probe in latest]),
        gradient_v1=spread([GRADIENT_V1.mean(probe) for probe in latest]),
        gradient_v1_at_start=spread([GRADIENT_V1.mean(probe) for probe in started]),
        gradient_u1_at_start=spread([Quantity("gradient", "u1").mean(probe) for probe in started]),
        peak_v1=spread([WEIGHT_V1.mean(probe) for n in networks for probe in n.probes if probe.step == peak_step]),
        peak_step=peak_step,
        below_peak=known[-1][0] - peak if peak is not None else None,
        sigma_ratio=spread([probe.sigma_ratio for probe in latest]),
        top_overlap=spread([probe.top_overlap_v for probe in latest]),
        update_ratio=spread([probe.update_ratio for probe in latest]),
        identity_share=spread([probe.identity_share for probe in latest]),
        drift=spread([probe.drift for probe in latest]),
        cumulative_match=spread([probe.cumulative_match for probe in latest]),
        activation_factor=spread([probe.activation_factor for probe in latest]),
    )


def _latest(networks: Sequence[Network]) -> list[Probe]:
    """The probes at the last step that all networks with probes share."""
    measured = [network for network in networks if network.probes]
    common = (
        set.intersection(*({probe.step for probe in network.probes} for network in measured)) if measured else set()
    )
    return [probe for network in measured for probe in network.probes if common and probe.step == max(common)]


def _status(networks: Sequence[Network]) -> str:
    diverged = [network for network in networks if network.diverged is not None]
    if diverged:
        first = min(network.diverged.step for network in diverged if network.diverged is not None)
        return f"diverged at step {first}" + (f" ({len(diverged)} of {len(networks)})" if len(networks) > 1 else "")
    if all(network.finished for network in networks):
        return "done"
    return "training" if any(network.step or network.probes for network in networks) else "waiting"
