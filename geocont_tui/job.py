"""A run that is being pulled in one thread and looked at from another.

`Job.run` may be called in a worker thread under a screen, or in the main thread when the screen has gone: it pulls
events, folds them into a state and judges what they show. Everybody else asks for the latest `Snapshot`, which never
changes. Pausing is not pulling. A `WatchedRun` has the same face, and follows what another process writes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from geocont import run_control
from geocont.ablations.experiment import AnyExperiment
from geocont.claims import Finding
from geocont.errors import GeocontError, InputError
from geocont.events import AnalysisStarted, Event, RunFinished, RunPaused, RunResumed
from geocont.journal import follow, has_journal, thinned_events
from geocont.run_control import Control
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
    def paused(self) -> bool: ...
    @property
    def progress(self) -> float: ...
    @property
    def eta(self) -> float | None: ...


State = TypeVar("State", bound=RunState)
AnyState = AblationState | AnalysisState


@dataclass(frozen=True)
class Snapshot(Generic[State]):
    """What is known of a run. `version` grows with every change."""

    version: int
    state: State
    findings: tuple[Finding, ...] = ()


class FoldedRun(Generic[State]):
    """The latest snapshot of a run, as one thread makes it; safe to look at from any other.

    Args:
        folder: where the run is kept.
        state: what is known before the first event.
        fold: the state after an event.
        judge: what the measurements of a state say, in words; it may take a while.
    """

    def __init__(
        self,
        folder: Path,
        state: State,
        fold: Callable[[State, Event], State],
        judge: Callable[[State], tuple[Finding, ...]],
    ) -> None:
        self.folder = folder
        self.error: GeocontError | None = None
        self._snapshot = Snapshot(0, state)
        self._fold_event = fold
        self._findings_of = judge
        self._lock = threading.Lock()
        self._judged_at = 0.0
        self._judged = (0, False)

    @property
    def snapshot(self) -> Snapshot[State]:
        with self._lock:
            return self._snapshot

    @property
    def over(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self.snapshot.state.status in ("done", "stopped", "failed")

    def _fold(self, event: Event) -> None:
        self._publish(replace(self._snapshot, state=self._fold_event(self._snapshot.state, event)))
        self._judge(at_once=isinstance(event, RunFinished))

    def _judge(self, at_once: bool) -> None:
        """Judge again if there are new measurements; now and then only, because it reads all of them."""
        state = self._snapshot.state
        # The end tells more than the last measurement: whether a network has done all its steps.
        known = (state.measurements, self.over)
        if known == self._judged:
            return
        if at_once or time.monotonic() - self._judged_at > _JUDGE_SECONDS:
            self._judged = known
            self._publish(replace(self._snapshot, findings=self._findings_of(state)))
            self._judged_at = time.monotonic()

    def _fail(self, error: GeocontError, ended: RunFinished | None = None) -> None:
        self.error = error
        if ended is None or ended.status != "failed":
            ended = RunFinished(status="failed", time=time.time(), problem=str(error), remedy=error.remedy)
        self._publish(replace(self._snapshot, state=self._fold_event(self._snapshot.state, ended)))

    def _publish(self, snapshot: Snapshot[State]) -> None:
        with self._lock:
            self._snapshot = replace(snapshot, version=self._snapshot.version + 1)


class Job(FoldedRun[State]):
    """Pulls `recording` and keeps the latest snapshot; it also does what watching screens ask for.

    Args:
        recording: the run's events.
        state, fold, judge: as for any `FoldedRun`.

    Attributes:
        has_begun: whether the job has given an event.
    """

    def __init__(
        self,
        recording: Recording,
        state: State,
        fold: Callable[[State, Event], State],
        judge: Callable[[State], tuple[Finding, ...]],
    ) -> None:
        super().__init__(recording.folder, state, fold, judge)
        self.recording = recording
        self._control = Control(recording.folder)
        self.has_begun = False
        self._going = threading.Event()
        self._going.set()
        self._leave = threading.Event()

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

    def run(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        told: Callable[[State, Event], None] = lambda _state, _event: None,
    ) -> None:
        """Pull until the run ends or `stop` is called; then the journal is closed.

        Where `is_cancelled` says so first, the run stays open, and another thread can call `run` and go on with it.
        Never raises an Exception: what goes wrong ends up in the snapshot's state as problem and remedy, and in
        `error`.

        Args:
            is_cancelled: asked before each event.
            told: called with each event and the state after it.
        """
        try:
            self._pull(is_cancelled, told)
        except GeocontError as error:
            self._fail(error, self.recording.finished)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            remedy = "this is a bug, please report it; the journal up to there is complete"
            self._fail(GeocontError(problem, remedy), self.recording.finished)
        if self.over:
            self.close()

    def close(self) -> None:
        """Close the journal, of a run that is not over as one that was stopped."""
        # What went wrong first is what counts.
        with suppress(GeocontError):
            self.recording.close()

    def _pull(self, is_cancelled: Callable[[], bool], told: Callable[[State, Event], None]) -> None:
        # A journal begins with how the run began, also that of one which was stopped at once.
        while not (self._leave.is_set() and self.has_begun):
            if is_cancelled():
                return
            if self._is_held_up():
                continue
            event = next(self.recording, None)
            if event is None:
                return
            self.has_begun = True
            self._fold(event)
            told(self._snapshot.state, event)
        if not self.over:
            self._fold(self.recording.stop())

    def _is_held_up(self) -> bool:
        """Do what other screens ask for; whether the run is paused or about to stop, after waiting for a moment."""
        match self._control.take():
            case "pause":
                self.pause()
            case "resume":
                self.resume()
            case "stop":
                self.stop()
                return True
        is_paused = not self._going.is_set()
        if self.has_begun and is_paused != self._snapshot.state.paused:
            event = RunPaused(time=time.time()) if is_paused else RunResumed(time=time.time())
            self.recording.note(event)
            self._fold(event)
        if is_paused:
            self._going.wait(_WAIT_SECONDS)
            self._judge(at_once=True)
        return is_paused


class WatchedRun(FoldedRun[State]):
    """A run that another process writes, or that is over; pause, resume and stop ask that process.

    Args:
        folder: where the run is kept.
        events: its events from the journal, and None where nothing is new (see `journal.follow`).
        state, fold, judge: as for any `FoldedRun`.
    """

    def __init__(
        self,
        folder: Path,
        events: Iterator[Event | None],
        state: State,
        fold: Callable[[State, Event], State],
        judge: Callable[[State], tuple[Finding, ...]],
    ) -> None:
        super().__init__(folder, state, fold, judge)
        self._events = events
        self.is_abandoned = False

    @property
    def paused(self) -> bool:
        return self.snapshot.state.paused and not self.over

    @property
    def over(self) -> bool:
        """Whether the run has ended, or nobody writes it any more."""
        return super().over or self.is_abandoned

    def pause(self) -> None:
        """Ask for a pause. Raises InputError where the run's folder cannot be written."""
        run_control.ask(self.folder, "pause")

    def resume(self) -> None:
        """Ask for the end of a pause. Raises InputError where the run's folder cannot be written."""
        run_control.ask(self.folder, "resume")

    def stop(self) -> None:
        """Ask for the end of the run. Raises InputError where the run's folder cannot be written."""
        run_control.ask(self.folder, "stop")

    def run(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        told: Callable[[State, Event], None] = lambda _state, _event: None,
    ) -> None:
        """Follow the run until nobody writes it any more, or `is_cancelled` says so. Never raises an Exception."""
        try:
            for event in self._events:
                if is_cancelled():
                    return
                if event is None:
                    self._judge(at_once=True)
                else:
                    self._fold(event)
                    told(self._snapshot.state, event)
            self.is_abandoned = not self.over
            self._judge(at_once=True)
            self._publish(self._snapshot)
        except GeocontError as error:
            self._fail(error)
        except Exception as error:
            self._fail(GeocontError(f"{type(error).__name__}: {error}", "this is a bug, please report it"))


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


def ablation_job(experiment: AnyExperiment, recording: Recording, device: str = "") -> Job[AblationState]:
    """The job of training `experiment`; its plan is known before the first event."""
    return Job(recording, states.planned(experiment, device), states.fold, states.findings)


def analysis_job(model: str, recording: Recording) -> Job[AnalysisState]:
    """The job of analysing `model`."""
    return Job(recording, analysis_state.opening(model), analysis_state.fold, analysis_state.findings)


def resumed_job(recording: Recording, first: Event) -> Job[AnyState]:
    """The job of going on with an interrupted run: `recording` resumes it, `first` is the first event of what does.

    Raises:
        InputError: the journal cannot be read.
    """
    folder = recording.folder
    state: AnyState | None = None
    if has_journal(folder):
        for event in thinned_events(folder):
            state = fold(state, event)
    # Whatever ended it before.
    begun = fold(None, first) if state is None else replace(state, problem=None, remedy=None)
    return Job(recording, replace(begun, status="starting"), fold, findings)


def watched_run(folder: Path) -> WatchedRun[AnyState]:
    """A run that another process writes, or that is over. Waits for its first event.

    Raises:
        InputError: the journal cannot be read, or is empty.
    """
    events = follow(folder, thin=True)
    first = next((event for event in events if event is not None), None)
    if first is None:
        raise InputError(
            f"the journal in {folder} is empty", f"start the run again: `geocont-tui resume {folder.name}`"
        )
    return WatchedRun(folder, events, fold(None, first), fold, findings)


def where_kept(recording: Recording) -> str:
    """Where a run that is over is kept, or how much of it."""
    if recording.lost is not None:
        return f"the run is kept in part only: {recording.lost}"
    return f"the run is kept in {recording.folder}"


def fold(state: AnyState | None, event: Event) -> AnyState:
    """The state after `event`, for the kind of run that the first event tells.

    Raises:
        ValueError: the first event is none that begins a run.
    """
    if isinstance(state, AnalysisState) or (state is None and isinstance(event, AnalysisStarted)):
        return analysis_state.fold(state, event)
    return states.fold(state, event)


def findings(state: AnyState) -> tuple[Finding, ...]:
    """What the measurements of a run of either kind say."""
    return analysis_state.findings(state) if isinstance(state, AnalysisState) else states.findings(state)
