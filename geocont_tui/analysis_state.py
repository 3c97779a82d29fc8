"""What the screen and the final table show of an analysis, as a pure fold over its events.

    state = opening("org/model")            before the first event
    state = fold(state, event)              a new one that shares what did not change
    summary(row, "v")                       mean, least and greatest |cos| of the adjacent pairs, and their chance level

A live analysis, a journal read back and one that another process writes go through the same `fold`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from geocont import chance, pattern
from geocont.claims import Finding
from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    MatrixPlan,
    Message,
    PairMeasured,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    SkippedTensors,
)
from geocont.events import Status as MeasurementStatus

from geocont_tui.state import Status, log_of

Side = Literal["v", "u"]
SIDES: tuple[Side, ...] = ("v", "u")
NAMES: Mapping[Side, str] = {"v": "v1", "u": "u1"}

REASONS: Mapping[MeasurementStatus, str] = {
    "not_unique": "not unique",
    "shape_mismatch": "shapes differ",
    "zero": "zero",
    "not_finite": "not finite",
    "shared": "shared",
    "unsplit": "not split",
    "quantized_refused": "quantised, refused",
    "not_converged": "not converged",
}
"""Why a pair has no cosine, in few words."""

_NO_COSINE = {None: REASONS["shape_mismatch"], 1: "one dimension only"}
"""Why a pair has no cosine on a side of this dimension, where nothing else is wrong with it."""

PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True)
class Row:
    """One projection of one stack: what is planned and what is measured of it, by layer and by pair of layers."""

    stack: str
    projection: str
    label: str
    plans: Mapping[int, MatrixPlan]
    matrices: Mapping[int, MatrixMeasured]
    pairs: Mapping[tuple[int, int], PairMeasured]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have the projection, ascending."""
        return tuple(self.plans)

    @property
    def side(self) -> Literal["v", "u", "both", "none"]:
        """Where the projection meets the residual stream."""
        return next(iter(self.plans.values())).side

    @property
    def shown_side(self) -> Side:
        """The side that is shown where there is room for one: the residual side, v where that is not known."""
        return "u" if self.side == "u" else "v"

    @property
    def adjacent(self) -> tuple[tuple[int, int], ...]:
        """All pairs of consecutive layers that have the projection."""
        layers = self.layers
        return tuple(itertools.pairwise(layers))

    def is_residual(self, side: Side) -> bool:
        """Whether `side` meets the residual stream."""
        return self.side in (side, "both")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """How the weights are stored, the commonest first."""
        return tuple(dtype for dtype, _ in Counter(plan.dtype for plan in self.plans.values()).most_common())

    @property
    def is_quantized(self) -> bool:
        """Whether any layer that is measured was stored in fewer bits than its numbers have: it carries that error."""
        return any(plan.status == "ok" and plan.dtype not in PLAIN_DTYPES for plan in self.plans.values())


@dataclass(frozen=True)
class AnalysisState:
    """An analysis as known so far. `rows` is keyed by (stack, projection), in the order of the plan."""

    model: str
    revision: str | None = None
    source: str = ""
    device: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0
    rows: Mapping[tuple[str, str], Row] = field(default_factory=dict)
    skipped: tuple[SkippedTensors, ...] = ()
    bytes: int = 0
    messages: tuple[Message, ...] = ()
    status: Status = "starting"
    paused: bool = False
    problem: str | None = None
    remedy: str | None = None
    elapsed: float = 0.0
    bytes_read: int = 0
    bytes_per_second: float | None = None
    measured: int = 0
    cached: int = 0
    pairs: int = 0
    latest: tuple[str, str, int] | None = None

    @property
    def measurements(self) -> int:
        """How many matrices and pairs are measured so far."""
        return self.measured + self.pairs

    @property
    def planned(self) -> int:
        """How many matrices there are, those that will be refused too."""
        return sum(len(row.plans) for row in self.rows.values())

    @property
    def over(self) -> int:
        """How many matrices are measured, or refused before anything was read."""
        return sum(_is_over(row, layer) for row in self.rows.values() for layer in row.plans)

    @property
    def progress(self) -> float:
        """The part of what is to be read that is behind us, 0…1."""
        if not self.rows:
            return 0.0
        plans = [(plan, _is_over(row, layer)) for row in self.rows.values() for layer, plan in row.plans.items()]
        total = sum(plan.bytes for plan, _ in plans)
        if not total:
            return self.over / self.planned
        return sum(plan.bytes for plan, is_over in plans if is_over) / total

    @property
    def eta(self) -> float | None:
        """Seconds left at the present rate; None while no rate is known or nothing is running."""
        if self.status != "running" or not self.bytes_per_second:
            return None
        return (1 - self.progress) * self.bytes / self.bytes_per_second

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer that any row has, ascending."""
        return tuple(sorted({layer for row in self.rows.values() for layer in row.plans}))


@dataclass(frozen=True)
class Cosines:
    """The adjacent pairs of a row on one side: mean, least, greatest, how many, and what chance would give.

    `chance` is the mean |cos| of random directions, `limit` where 97.5 % of the means over so many pairs lie below.
    """

    mean: float
    low: float
    high: float
    count: int
    chance: float | None
    limit: float | None


def opening(model: str) -> AnalysisState:
    """What can be shown before the first event."""
    return AnalysisState(model=model)


def fold(state: AnalysisState | None, event: Event) -> AnalysisState:
    """The state after `event`. The first event must be AnalysisStarted; the given state is left as it is.

    Raises:
        ValueError: another event comes first, or one that is none of an analysis.
    """
    if isinstance(event, AnalysisStarted):
        return _started(event)
    if state is None:
        raise ValueError("an analysis begins with AnalysisStarted")
    match event:
        case AnalysisProgress():
            return replace(
                state,
                elapsed=event.elapsed,
                bytes_read=event.bytes_read,
                bytes_per_second=event.bytes_per_second,
            )
        case MatrixMeasured():
            row = state.rows[event.stack, event.projection]
            row = replace(row, matrices=MappingProxyType({**row.matrices, event.layer: event}))
            return replace(
                _with(state, row),
                measured=state.measured + 1,
                cached=state.cached + event.cached,
                latest=(event.stack, event.projection, event.layer),
            )
        case PairMeasured():
            row = state.rows[event.stack, event.projection]
            row = replace(row, pairs=MappingProxyType({**row.pairs, (event.layer_a, event.layer_b): event}))
            return replace(_with(state, row), pairs=state.pairs + 1)
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
            return replace(
                state,
                messages=(*state.messages, *log_of(event)),
                status=event.status,
                paused=False,
                problem=event.problem,
                remedy=event.remedy,
                elapsed=state.elapsed if event.elapsed is None else event.elapsed,
            )
        case _:
            raise ValueError(f"{type(event).__name__} is no event of an analysis")


def cosine(pair: PairMeasured | None, side: Side) -> float | None:
    """|cos| of the pair's leading singular vectors on one side; None where it does not exist."""
    value = None if pair is None else pair.v1_cosine if side == "v" else pair.u1_cosine
    return value if value is not None and math.isfinite(value) else None


def dimension(row: Row, side: Side) -> int:
    """Dimension of the space in which the row's vectors live, of its first layer."""
    plan = next(iter(row.plans.values()))
    return plan.cols if side == "v" else plan.rows


def summary(row: Row, side: Side) -> Cosines | None:
    """The adjacent pairs measured so far on one side; None while none has a cosine there."""
    found = [(value, pair) for pair in row.pairs.values() if (value := cosine(pair, side)) is not None]
    if not found:
        return None
    values = [value for value, _ in found]
    sizes = [size for _, pair in found if (size := pair.v_dim if side == "v" else pair.u_dim)]
    level = limit = None
    if len(sizes) == len(values):
        level = sum(map(chance.mean_cosine, sizes)) / len(sizes)
        variance = sum(chance.standard_deviation_of_cosine(size) ** 2 for size in sizes)
        limit = level + 1.96 * math.sqrt(variance) / len(sizes)
    return Cosines(
        mean=sum(values) / len(values),
        low=min(values),
        high=max(values),
        count=len(values),
        chance=level,
        limit=limit,
    )


def done_pairs(row: Row) -> int:
    """How many of the adjacent pairs are measured, or known never to be."""
    return sum(pair in row.pairs or _refusal(row, pair) is not None for pair in row.adjacent)


def left_out(row: Row, side: Side) -> Mapping[str, int]:
    """Of the adjacent pairs that are over: how many have no cosine on one side, by the reason in words."""
    counts: Counter[str] = Counter()
    for adjacent in row.adjacent:
        pair = row.pairs.get(adjacent)
        status: MeasurementStatus | None = _refusal(row, adjacent)
        if pair is not None:
            status = pair.status if cosine(pair, side) is None else None
        if pair is not None and status == "ok":
            dimension = pair.v_dim if side == "v" else pair.u_dim
            counts[_NO_COSINE.get(dimension, "no basis in common")] += 1
        elif status is not None:
            counts[REASONS.get(status, status)] += 1
    return dict(counts)


def flagged(row: Row) -> int:
    """How many of the adjacent pairs that are over have a status other than ok."""
    return sum(
        row.pairs[pair].status != "ok" if pair in row.pairs else _refusal(row, pair) is not None
        for pair in row.adjacent
    )


def all_cosines(row: Row, side: Side) -> dict[tuple[int, int], float | None]:
    """|cos| of every pair of layers measured so far, (lower layer, higher layer); None where it does not exist."""
    found: dict[tuple[int, int], float | None] = {}
    for layer, matrix in row.matrices.items():
        for other, value in zip(matrix.others, matrix.v1_cosines if side == "v" else matrix.u1_cosines, strict=False):
            found[min(layer, other), max(layer, other)] = value
    for layers, pair in row.pairs.items():
        found[layers] = cosine(pair, side)
    return found


def chance_of(row: Row, side: Side, layer: int) -> float:
    """Mean |cos| of random directions in the space of a layer's vectors."""
    plan = row.plans[layer]
    return chance.mean_cosine(plan.cols if side == "v" else plan.rows)


def all_pairs(state: AnalysisState) -> Iterator[tuple[Row, PairMeasured]]:
    """Every adjacent pair that has been measured, by row and layer."""
    for row in state.rows.values():
        for layers in row.adjacent:
            if layers in row.pairs:
                yield row, row.pairs[layers]


def findings(state: AnalysisState) -> tuple[Finding, ...]:
    """What the numbers so far say about the pattern of the source."""
    return pattern.judge(tuple(plan for row in state.rows.values() for plan in row.plans.values()), _measured(state))


def _measured(state: AnalysisState) -> tuple[PairMeasured, ...]:
    return tuple(pair for _, pair in all_pairs(state))


def _started(event: AnalysisStarted) -> AnalysisState:
    plans: dict[tuple[str, str], dict[int, MatrixPlan]] = {}
    for plan in event.matrices:
        plans.setdefault((plan.stack, plan.projection), {})[plan.layer] = plan
    has_stacks = len({stack for stack, _ in plans}) > 1
    rows = {
        (stack, projection): Row(
            stack=stack,
            projection=projection,
            label=f"{stack} {projection}" if has_stacks else projection,
            plans=MappingProxyType(dict(sorted(layers.items()))),
            matrices=MappingProxyType({}),
            pairs=MappingProxyType({}),
        )
        for (stack, projection), layers in plans.items()
    }
    return AnalysisState(
        model=event.model,
        revision=event.revision,
        source=event.source,
        device=event.device,
        parameters=MappingProxyType(dict(event.parameters)),
        versions=MappingProxyType(dict(event.versions)),
        started=event.time,
        rows=MappingProxyType(rows),
        skipped=event.skipped,
        bytes=event.bytes,
        messages=log_of(event),
        status="running",
    )


def _with(state: AnalysisState, row: Row) -> AnalysisState:
    return replace(state, rows=MappingProxyType({**state.rows, (row.stack, row.projection): row}))


def _is_over(row: Row, layer: int) -> bool:
    return layer in row.matrices or row.plans[layer].status != "ok"


def _refusal(row: Row, pair: tuple[int, int]) -> MeasurementStatus | None:
    """Why one of the two layers will not be measured, if that was known from the plan."""
    for layer in pair:
        if layer not in row.matrices and row.plans[layer].status != "ok":
            return row.plans[layer].status
    return None
