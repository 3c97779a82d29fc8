"""Slices of work as the workers hand them over, and the events of a run made of them."""

import time
from collections import deque
from collections.abc import Iterator

import msgspec

from geocont.events import Event, NetworkDiverged, NetworkFinished, NetworkProgress, Progress, RunFinished

_REPORT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
AHEAD = 2
"""So many slices a worker may be ahead of who pulls."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """What one slice of work did: events in order, where its networks are now, and seconds and steps that it took.

    `tokens` were trained on in it, where it is text. `earlier_steps` are those that an interrupted process did.
    """

    events: tuple[Event, ...]
    positions: tuple[NetworkProgress, ...]
    training_seconds: float
    probe_seconds: float
    network_steps: int
    earlier_steps: int = 0
    tokens: int | None = None


def report(
    slices: Iterator[Slice | None],
    *,
    training_seconds: float = 0.0,
    probe_seconds: float = 0.0,
    earlier_steps: int = 0,
) -> Iterator[Event]:
    """The events of all slices, a Progress about every second and wherever None asks for one, and RunFinished.

    The numbers are what was there before the slices.
    """
    clock = _Clock()
    rates: deque[tuple[float, int, int]] = deque(maxlen=16)
    moved: dict[tuple[str, int], NetworkProgress] = {}
    training, probing, reported = training_seconds, probe_seconds, 0.0
    steps = tokens = 0
    is_text = False

    def progress() -> Progress:
        elapsed = clock.elapsed
        rates.append((elapsed, steps, tokens))
        (earlier, steps_then, tokens_then), (now, steps_now, tokens_now) = rates[0], rates[-1]
        span = now - earlier
        return Progress(
            networks=tuple(moved.values()),
            elapsed=elapsed,
            steps_per_second=(steps_now - steps_then) / span if span > 0 else None,
            tokens_per_second=(tokens_now - tokens_then) / span if span > 0 and is_text else None,
            probe_share=probing / (training + probing) if training else None,
            training_seconds=training,
            probe_seconds=probing,
        )

    for part in slices:
        pending: list[Event] = []
        if part is not None:
            training += part.training_seconds
            probing += part.probe_seconds
            steps += part.network_steps
            tokens += part.tokens or 0
            is_text |= part.tokens is not None
            earlier_steps += part.earlier_steps
            moved |= {(position.variant, position.seed): position for position in part.positions}
            for event in part.events:
                if isinstance(event, NetworkFinished | NetworkDiverged):
                    moved.pop((event.variant, event.seed), None)
            pending += part.events
        if part is None or clock.elapsed - reported >= _REPORT_SECONDS:
            pending.append(progress())
            reported = clock.elapsed
            moved = {}
        for event in pending:
            clock.leave()
            yield event
            clock.enter()
    # What is said of a run that is over is said of all of it.
    rates.clear()
    rates.append((0.0, 0, 0))
    yield progress()
    yield RunFinished(
        status="done",
        time=time.time(),
        elapsed=clock.elapsed,
        training_seconds=training,
        probe_seconds=probing,
        network_steps=earlier_steps + steps,
    )


class _Clock:
    """Seconds since the start without pauses: a consumer that holds an event for longer than a moment has paused us."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._left = self._start
        self._paused = 0.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start - self._paused

    def leave(self) -> None:
        self._left = time.perf_counter()

    def enter(self) -> None:
        away = time.perf_counter() - self._left
        if away > _PAUSE_SECONDS:
            self._paused += away
