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


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=True, kw_only=True):
    pass


class NetworkPlan(msgspec.Struct, frozen=True, kw_only=True):
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


class NetworkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one network is: `step` updates done, `loss` of the latest mini-batch."""

    variant: str
    seed: int
    step: int
    loss: float | None


class Progress(_Event, frozen=True, kw_only=True):
    """A heartbeat: the networks that moved since the last one. `elapsed` leaves out pauses.

    `steps_per_second` counts network-steps over all networks, recently; `probe_share` is the part of the computing time
    so far that went into probes (0…1).
    """

    networks: tuple[NetworkProgress, ...]
    elapsed: float
    steps_per_second: float | None
    probe_share: float | None


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """|cos| between the leading singular vectors of adjacent layers, one value a pair (layer l, layer l+1).

    v1 lives in the input space, u1 in the output space. None where v1 is not unique, the matrix is zero or not finite.
    """

    v1: tuple[float | None, ...]
    u1: tuple[float | None, ...]


def mean_of_pairs(values: Iterable[float | None]) -> float | None:
    """Mean over the values that exist and are finite; None where none is."""
    present = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(present) if present else None


class Probe(_Event, frozen=True, kw_only=True):
    """One measurement of one projection of one network after `step` updates.

    Means are over layers or adjacent pairs, leaving out what does not exist. `loss` and `accuracy` are the training
    mini-batches' since the previous probe. `missing` maps a field that is None (or partly None) to the reason.
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


class NetworkFinished(_Event, frozen=True, kw_only=True):
    """A network has done all its steps. Loss and accuracy on the whole test set."""

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


class RunFinished(_Event, frozen=True, kw_only=True):
    """Last event of a run. `problem` and `remedy` are set when it failed.

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


Event = RunStarted | Progress | Probe | NetworkFinished | NetworkDiverged | Message | RunFinished
