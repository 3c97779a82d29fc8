"""The events that every long job yields: small frozen structs, one JSON object a line in the journal of a run.

A number that does not exist is None, and `Probe.missing` says why. Times are seconds since the epoch, durations
seconds.
"""

import math
import statistics
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

JOURNAL_VERSION = 1

RESIDUAL_SIDES: dict[str, Literal["v", "u"]] = {
    "q": "v",
    "k": "v",
    "v": "v",
    "o": "u",
    "gate": "v",
    "up": "v",
    "down": "u",
}
"""Where the projections of a transformer meet the residual stream: readers at their input, writers at their output."""


class _Event(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag=True, kw_only=True):
    pass


class NetworkPlan(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One network of an experiment: a variant trained from one seed for `steps` steps."""

    variant: str
    seed: int
    steps: int


class RunStarted(_Event, frozen=True, kw_only=True):
    """First event of a run. `experiment`: the resolved experiment as plain data; `versions`: package to version."""

    version: int = JOURNAL_VERSION
    kind: Literal["ablation"] = "ablation"
    name: str
    experiment: dict[str, Any]
    networks: tuple[NetworkPlan, ...]
    device: str
    versions: dict[str, str]
    time: float


class NetworkProgress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where one network is: `step` updates done, `loss` of the latest mini-batch."""

    variant: str
    seed: int
    step: int
    loss: float | None


class Progress(_Event, frozen=True, kw_only=True):
    """A heartbeat: the networks that moved since the last one. `elapsed` leaves out pauses.

    `steps_per_second` counts network-steps over all networks, `tokens_per_second` their tokens (None where they are not
    trained on text): recently, in the last Progress of a run since its process began. `probe_share` is the part of the
    computing time so far that went into probes (0…1). `training_seconds` and `probe_seconds` as in RunFinished.
    """

    networks: tuple[NetworkProgress, ...]
    elapsed: float
    steps_per_second: float | None
    probe_share: float | None
    training_seconds: float | None = None
    probe_seconds: float | None = None
    tokens_per_second: float | None = None


class Alignment(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """|cos| between the leading singular vectors of adjacent layers, one value a pair (layer l, layer l+1).

    v1 lives in the input space, u1 in the output space. None where v1 is not unique, the matrix is zero or not finite.
    """

    v1: tuple[float | None, ...]
    u1: tuple[float | None, ...]


def mean_of_pairs(values: Iterable[float | None]) -> float | None:
    """Mean over the values that exist and are finite; None where none is."""
    present = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(present) if present else None


def perplexity(loss: float | None) -> float | None:
    """exp of a loss in nats a token; None where it does not exist or is too large for a number."""
    try:
        return math.exp(loss) if loss is not None and math.isfinite(loss) else None
    except OverflowError:
        return None


class Probe(_Event, frozen=True, kw_only=True):
    """One measurement of one projection of one network after `step` updates.

    Means are over layers or adjacent pairs, leaving out what does not exist. `loss` and `accuracy` are the training
    mini-batches' since the previous probe, `held_out_loss` that of text which is not trained on (per token, in nats),
    where it was evaluated at this step. `missing` maps a field that is None (or partly None) to the reason.
    """

    variant: str
    seed: int
    step: int
    projection: str
    v_dim: int
    u_dim: int
    loss: float | None
    accuracy: float | None
    weight: Alignment
    gradient: Alignment
    cumulative: Alignment
    update: Alignment
    weight_v_weighted: float | None
    weight_u_weighted: float | None
    update_ratio: float | None
    sigma_ratio: float | None
    top_overlap_v: float | None
    top_overlap_u: float | None
    cumulative_match: float | None
    drift: float | None
    identity_share: float | None
    activation_factor: float | None
    gradient_norm: float | None
    exact: bool
    missing: dict[str, str] = {}
    held_out_loss: float | None = None


class NetworkFinished(_Event, frozen=True, kw_only=True):
    """A network has done all its steps. Loss and accuracy on the whole test set; of text the held-out loss alone."""

    variant: str
    seed: int
    step: int
    test_loss: float | None
    test_accuracy: float | None


class NetworkDiverged(_Event, frozen=True, kw_only=True):
    """A network was frozen: `reason` says what was not finite at update `step`. The others go on."""

    variant: str
    seed: int
    step: int
    reason: str


class Message(_Event, frozen=True, kw_only=True):
    """A line for the log pane."""

    level: Literal["info", "warning", "error"]
    text: str
    time: float


class RunPaused(_Event, frozen=True, kw_only=True):
    """The run stands still until RunResumed."""

    time: float


class RunResumed(_Event, frozen=True, kw_only=True):
    """A pause has ended."""

    time: float


class RunContinued(_Event, frozen=True, kw_only=True):
    """Another process has taken up a run that was interrupted, stopped or failed. A RunFinished before it is undone."""

    time: float
    device: str
    versions: dict[str, str]


class RunFinished(_Event, frozen=True, kw_only=True):
    """Last event of a run, unless it is continued. `problem` and `remedy` are set when it failed.

    `training_seconds` and `probe_seconds` are summed over the workers and share no time.
    """

    status: Literal["done", "stopped", "failed"]
    time: float
    elapsed: float | None = None
    training_seconds: float | None = None
    probe_seconds: float | None = None
    network_steps: int | None = None
    problem: str | None = None
    remedy: str | None = None


Status = Literal[
    "ok",
    "not_unique",
    "shape_mismatch",
    "zero",
    "not_finite",
    "shared",
    "unsplit",
    "quantized_refused",
    "not_converged",
]


class MatrixPlan(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One projection of one layer of a checkpoint: which tensors hold it, and its shape as y = W x sees it.

    `side` is where it meets the residual stream: its input ("v", a reader), its output ("u", a writer), both (square
    and of unknown orientation), or neither. A status other than "ok" says that it will not be measured, `note` why.
    """

    stack: str
    projection: str
    layer: int
    tensors: tuple[str, ...]
    rows: int
    cols: int
    dtype: str
    bytes: int
    side: Literal["v", "u", "both", "none"]
    rule: str
    status: Status = "ok"
    note: str = ""


class SkippedTensors(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Tensors of a checkpoint that are left out: the name with # for the layer, how many, and why."""

    name: str
    count: int
    reason: str


class AnalysisStarted(_Event, frozen=True, kw_only=True):
    """First event of an analysis: what will be read. `revision` is the commit on the hub, `bytes` all that is read."""

    version: int = JOURNAL_VERSION
    kind: Literal["analysis"] = "analysis"
    model: str
    revision: str | None
    source: str
    parameters: dict[str, Any]
    matrices: tuple[MatrixPlan, ...]
    skipped: tuple[SkippedTensors, ...]
    bytes: int
    device: str
    versions: dict[str, str]
    time: float


class AnalysisProgress(_Event, frozen=True, kw_only=True):
    """A heartbeat: `matrices` done (measured, cached or refused) of all planned. `elapsed` leaves out pauses."""

    matrices: int
    bytes_read: int
    elapsed: float
    bytes_per_second: float | None


class MatrixMeasured(_Event, frozen=True, kw_only=True):
    """The leading singular values of one projection of one layer and its |cos| with every layer measured before.

    `gap` is σ1/σ2 − 1; None where it is infinite or does not exist. The error bounds are sines of angles. `v1_cosines`
    and `u1_cosines` run along `others`, layers of the same stack and projection; None where a v1 is not unique or the
    shapes differ. `same_as` is an earlier layer that holds the same numbers.
    """

    stack: str
    projection: str
    layer: int
    singular_values: tuple[float, ...]
    gap: float | None
    stable_rank: float | None
    frobenius: float | None
    v1_error_bound: float | None
    u1_error_bound: float | None
    status: Status
    note: str = ""
    cached: bool = False
    same_as: int | None = None
    others: tuple[int, ...] = ()
    v1_cosines: tuple[float | None, ...] = ()
    u1_cosines: tuple[float | None, ...] = ()


class PairMeasured(_Event, frozen=True, kw_only=True):
    """Two consecutive layers of a stack that have the projection, compared.

    `v_overlap` and `u_overlap` are normalised to chance (0) and identity (1), one for each k = 1…K. The weighted
    alignments cover the part `weighted_share` of ‖W‖². Chance levels are E|cos| of independent random directions.
    """

    stack: str
    projection: str
    layer_a: int
    layer_b: int
    v1_cosine: float | None
    u1_cosine: float | None
    v_dim: int | None
    u_dim: int | None
    v1_chance: float | None
    u1_chance: float | None
    residual_side: Literal["v", "u", "both", "none"]
    v_gram: float | None = None
    u_gram: float | None = None
    v_gram_error: float | None = None
    u_gram_error: float | None = None
    v_weighted: float | None = None
    u_weighted: float | None = None
    weighted_share: float | None = None
    v_overlap: tuple[float, ...] = ()
    u_overlap: tuple[float, ...] = ()
    v_error_bound: float | None = None
    u_error_bound: float | None = None
    status: Status = "ok"
    note: str = ""


AblationEvent = RunStarted | Progress | Probe | NetworkFinished | NetworkDiverged
AnalysisEvent = AnalysisStarted | AnalysisProgress | MatrixMeasured | PairMeasured
RunEvent = RunPaused | RunResumed | RunContinued | RunFinished
Event = AblationEvent | AnalysisEvent | Message | RunEvent
