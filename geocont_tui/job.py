"""A run that is being pulled in one thread and looked at from another.

`Job.run` may be called in a worker thread under a screen, or in the main thread when the screen has gone: it pulls
events, folds them into a state and judges what they show. Everybody else asks for the latest `Snapshot`, which never
changes. Pausing is not pulling.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from geocont.ablations.experiment import Experiment
from geocont.claims import Finding
from geocont.errors import GeocontError
from geocont.events import Event, RunFinished
from geocont.runs import Recording

from geocont_tui import analysis_state
from geocont_tui import state as states
from geocont_tui.analysis_state import AnalysisState
from geocont_tui.state import AblationState

_JUDGE_SECONDS = 2.0
_WAIT_SECONDS = 0.2


class RunState(Protocol):
    """What the states of all kinds of runs say alike. `measurements` counts what the findings are made from."""

    @property
    def status(self) -> states.Status: ...
    @property
    def measurements(self) -> int: ...
    @property
    def progress(self) -> float: ...
    @property
    def eta(self) -> float | None: ...


State = TypeVar("State", bound=RunState)


@dataclass(frozen=True)
class Snapshot(Generic[State]):
    """What is known of a run. `version` grows with every change."""

    version: int
    state: State
    findings: tuple[Finding, ...] = ()


class Job(Generic[State]):
    """Pulls `recording` and keeps the latest snapshot; safe to use from any thread.

    Args:
        recording: the run's events.
        state: what is known before the first event.
        fold: the state after an event.
        judge: what the measurements of a state say, in words; it may take a while.
    """

    def __init__(
        self,
        recording: Recording,
        state: State,
        fold: Callable[[State, Event], State],
        judge: Callable[[State], tuple[Finding, ...]],
    ) -> None:
        self.recording = recording
        self.error: GeocontError | None = None
        self._snapshot = Snapshot(0, state)
        self._fold_event = fold
        self._findings_of = judge
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._leave = threading.Event()
        self._judged_at = 0.0
        self._judged_measurements = 0

    @property
    def snapshot(self) -> Snapshot[State]:
        with self._lock:
            return self._snapshot

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self.recording.folder

    @property
    def over(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self.snapshot.state.status in ("done", "stopped", "failed")

    @property
    def paused(self) -> bool:
        return not self._going.is_set() and not self.over

    def pause(self) -> None:
        """Pull no more events until `resume`. The job's workers stand still after what they have in hand."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    def stop(self) -> None:
        """Ask `run` to end the job, close the journal and return; it does so within about half a second."""
        self._leave.set()
        self._going.set()

    def run(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Pull until the run ends or `stop` is called; then the journal is closed.

        Where `is_cancelled` says so first, the run stays open, and another thread can call `run` and go on with it.
        Never raises an Exception: what goes wrong ends up in the snapshot's state as problem and remedy.
        """
        try:
            self._pull(is_cancelled)
        except GeocontError as error:
            self._fail(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._fail(GeocontError(problem, "this is a bug, please report it; the journal up to there is complete"))
        if self.over:
            self.close()

    def close(self) -> None:
        """Close the journal, of a run that is not over as one that was stopped."""
        # What went wrong first is what counts.
        with suppress(GeocontError):
            self.recording.close()

    def _pull(self, is_cancelled: Callable[[], bool]) -> None:
        while not self._leave.is_set():
            if is_cancelled():
                return
            if not self._going.wait(_WAIT_SECONDS):
                self._judge(at_once=True)
                continue
            event = next(self.recording, None)
            if event is None:
                return
            self._fold(event)
        if not self.over:
            self._fold(self.recording.stop())

    def _fold(self, event: Event) -> None:
        self._publish(replace(self._snapshot, state=self._fold_event(self._snapshot.state, event)))
        self._judge(at_once=isinstance(event, RunFinished))

    def _judge(self, at_once: bool) -> None:
        """Judge again if there are new measurements; now and then only, because it reads all of them."""
        state = self._snapshot.state
        if state.measurements == self._judged_measurements:
            return
        if at_once or time.monotonic() - self._judged_at > _JUDGE_SECONDS:
            self._judged_measurements = state.measurements
            self._publish(replace(self._snapshot, findings=self._findings_of(state)))
            self._judged_at = time.monotonic()

    def _fail(self, error: GeocontError) -> None:
        self.error = error
        ended = self.recording.finished
        if ended is None or ended.status != "failed":
            ended = RunFinished(status="failed", time=time.time(), problem=str(error), remedy=error.remedy)
        self._publish(replace(self._snapshot, state=self._fold_event(self._snapshot.state, ended)))

    def _publish(self, snapshot: Snapshot[State]) -> None:
        with self._lock:
            self._snapshot = replace(snapshot, version=self._snapshot.version + 1)


class Begun(Iterator[Event]):
    """A job whose first event has been taken, and comes first again.

    With the first event a job has refused what it can refuse, before anything is kept of it.

    Raises:
        GeocontError: what the job raised.
    """

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events
        self.first = next(events)
        self._is_fresh = True

    def __next__(self) -> Event:
        if self._is_fresh:
            self._is_fresh = False
            return self.first
        return next(self._events)

    def close(self) -> None:
        """Close the job, which releases everything."""
        self._is_fresh = False
        close: Callable[[], None] | None = getattr(self._events, "close", None)
        if close is not None:
            close()


def ablation_job(experiment: Experiment, recording: Recording, device: str = "") -> Job[AblationState]:
    """The job of training `experiment`; its plan is known before the first event."""
    return Job(recording, states.planned(experiment, device), states.fold, states.findings)


def analysis_job(model: str, recording: Recording) -> Job[AnalysisState]:
    """The job of analysing `model`."""
    return Job(recording, analysis_state.opening(model), analysis_state.fold, analysis_state.findings)
