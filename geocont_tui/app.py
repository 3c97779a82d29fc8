"""The Textual app: runs a job in a worker thread, paints its snapshots at its own rate, and does what the screen asks.

    run_ablation(experiment, recording, settings) -> exit code
    run_analysis(model, recording, settings) -> exit code
    resume_run(recording, first, settings) -> exit code
    watch_run(run_folder, settings) -> exit code

The worker never touches a widget. A timer on the UI thread asks for the job's latest snapshot and hands it to the
screen: status and curves at `settings.fps`, tables, bars and texts once a second.
"""

import asyncio
import gc
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from geocont import tables
from geocont.ablations.experiment import AnyExperiment
from geocont.atomic import atomic_file
from geocont.errors import GeocontError, InputError
from geocont.events import Event, Message
from geocont.run_lock import holder
from geocont.runs import Recording, read_events
from rich.console import RenderableType
from textual import work
from textual.await_complete import AwaitComplete
from textual.screen import Screen
from textual.worker import get_current_worker

from geocont_tui.analysis_state import AnalysisState
from geocont_tui.background import leave_terminal, watch_name
from geocont_tui.job import (
    AnyState,
    Job,
    WatchedRun,
    ablation_job,
    analysis_job,
    resumed_job,
    watched_run,
    where_kept,
)
from geocont_tui.run_tables import run_tables
from geocont_tui.screen_app import ScreenApp
from geocont_tui.screens.ablation import AblationScreen
from geocont_tui.screens.analysis import AnalysisScreen
from geocont_tui.screens.dialogs import ExportDialog, Leaving, QuitQuestion, StopQuestion
from geocont_tui.screens.run import Phase, RunScreen
from geocont_tui.state import Status
from geocont_tui.terminal import ExitCode, Settings
from geocont_tui.terminal_guard import TerminalGuard
from geocont_tui.widgets.status_line import clock


class RunApp(ScreenApp[None]):
    """One run on the screen. `job` is pulled while the app runs; who made it goes on with it, or closes it, after.

    A screen that fails leaves a job that is not over to go on, as one that was left.
    """

    def __init__(self, job: Job[Any] | WatchedRun[Any], settings: Settings) -> None:
        super().__init__(settings)
        self.job = job
        self.run_screen = self._make_screen()
        self.goes_on = False
        self._is_leaving = False
        self._is_stopping = False
        self._has_said_how_to_resume = False
        self._ticks = 0
        self._rest_is_due = False
        self._painted: tuple[int, Phase] | None = None
        self._painted_rest: tuple[int, Phase] | None = None

    @property
    def phase(self) -> Phase:
        """What the job is doing, in the words of the title line."""
        status: Status = self.job.snapshot.state.status
        if status in ("done", "stopped", "failed"):
            return status
        if self.job.over:
            return "interrupted"
        if self._is_stopping:
            return "stopping"
        return "paused" if self.job.paused else status

    @property
    def is_watching(self) -> bool:
        """Whether another process writes the run, or none does, so that leaving is nothing to it."""
        return isinstance(self.job, WatchedRun)

    @property
    def exit_code(self) -> int:
        """What the process says if it ends now. Having watched is no success and no failure of the run's."""
        if self.is_watching:
            return ExitCode.DONE
        if isinstance(self.job.error, InputError):
            return ExitCode.WRONG_USAGE
        codes = {"done": ExitCode.DONE, "failed": ExitCode.FAILED}
        return codes.get(self.job.snapshot.state.status, ExitCode.INTERRUPTED)

    def _make_screen(self) -> RunScreen:
        """The screen for the kind of run."""
        raise NotImplementedError

    def get_default_screen(self) -> Screen[None]:
        return self.run_screen

    def on_mount(self) -> None:
        if self._is_called_off:
            return
        self.app_resume_signal.subscribe(self, self._repaint_all)
        writer = holder(self.job.folder) if self.is_watching else None
        if writer is not None:
            said = f"process {writer.pid} on {writer.host} writes this run; leaving does not stop it"
            self.call_after_refresh(self._answer, said, "leaving does not stop the run")
        self.pull()
        self.set_interval(1 / self.settings.fps, self._tick)
        # What the program is made of stays to the end. Looking through all of it for garbage, again and again, takes
        # a fifth of a second each time, and keys wait for it.
        self.call_after_refresh(gc.freeze)

    @work(thread=True, exclusive=True, group="job", exit_on_error=False)
    def pull(self) -> None:
        """Run the job in a thread of its own."""
        worker = get_current_worker()
        self.job.run(lambda: worker.is_cancelled)

    def _tick(self) -> None:
        # The timer still runs while the app shuts down and its widgets go one by one.
        if not self.is_running:
            return
        self._ticks += 1
        self._rest_is_due = self._rest_is_due or self._ticks % self.settings.fps == 0
        self.paint_held()
        # A frame that the line has no room for is left out, and the next one shows what is true then.
        if self.line_is_idle:
            self.paint(everything=self._rest_is_due)
            self._rest_is_due = False
        self._leave_if_over()

    def paint(self, everything: bool = True) -> None:
        """Hand the latest snapshot to the screen if it is new; a change of phase is always shown everywhere."""
        snapshot, phase = self.job.snapshot, self.phase
        if phase == "interrupted" and not self._has_said_how_to_resume:
            self._has_said_how_to_resume = True
            command = f"geocont-tui resume {shlex.quote(watch_name(self.job.folder))}"
            said = f"nobody writes this run any more; `{command}` goes on with it"
            self.call_after_refresh(self._answer, said, "the run was interrupted")
        if isinstance(self.job, Job) and self.job.recording.lost is not None:
            self.run_screen.lose_journal()
        new = (snapshot.version, phase)
        everything = (everything or self._painted is None or self._painted[1] != phase) and new != self._painted_rest
        if everything or new != self._painted:
            self.run_screen.paint(snapshot, phase, everything=everything)
            self._painted = new
        if everything:
            self._painted_rest = new
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        if self._is_leaving and self.job.over:
            self.exit(return_code=self.exit_code)

    def pop_screen(self) -> AwaitComplete:
        """Close a dialog, and let go of what it has drawn: Textual 8 keeps what drew the last thousand widgets."""
        for widget in (self.screen, *self.screen.walk_children()):
            widget.refresh()
        return super().pop_screen()

    def _repaint_all(self, _: object) -> None:
        """After a suspension: somebody else had the terminal."""
        self.refresh(layout=True)

    # Leaving

    async def action_quit(self) -> None:
        """Leave at once when the run is over or only watched; else ask."""
        if self.job.over or self.is_watching:
            self.exit(return_code=self.exit_code)
        elif not isinstance(self.screen, StopQuestion | QuitQuestion):
            self.push_screen(QuitQuestion(self.palette, self.job.folder.name, self._position()), self._leave)

    def _leave(self, answer: Leaving | None) -> None:
        if answer == "stop":
            self._is_leaving = True
            self._stop()
        elif answer == "go on":
            self.job.resume()
            self.goes_on = True
            self.exit(return_code=self.exit_code)

    def on_run_screen_stop_asked(self) -> None:
        def answered(stops: bool | None) -> None:
            if stops:
                self._stop()

        if not self.job.over and not isinstance(self.screen, StopQuestion | QuitQuestion):
            text = f"{self._position()} What was measured so far is kept."
            self.push_screen(StopQuestion(self.palette, f"stop the {self.run_screen.WORK}?", text), answered)

    def _position(self) -> str:
        state = self.job.snapshot.state
        left = f", about {clock(state.eta)} left" if state.eta is not None else ""
        return f"The {self.run_screen.WORK} is at {100 * state.progress:.0f} %{left}."

    def _stop(self) -> None:
        self._is_stopping = self._asked_for(self.job.stop)
        self.paint()

    def _asked_for(self, request: Callable[[], None]) -> bool:
        """Make a request of the run; what is in the way is answered."""
        try:
            request()
        except GeocontError as error:
            self._answer(f"{error}; {error.remedy}", "it cannot be asked for", "error")
            return False
        return True

    @property
    def error_log(self) -> Path:
        return self.job.folder / ("watch-error.log" if self.is_watching else "error.log")

    def explain(self, problem: str, remedy: str, brief: str) -> None:
        self._answer(f"{problem}; {remedy}", brief, "error")

    def panic(self, *renderables: RenderableType) -> None:
        super().panic(*renderables)
        # A bug of the screen's is none of the run's.
        self.goes_on = self.goes_on or not (self.is_watching or self.job.over)

    # What the screen asks

    def on_run_screen_pause_asked(self) -> None:
        if not self.job.over:
            self._asked_for(self.job.resume if self.job.paused else self.job.pause)
        self.paint()

    def on_run_screen_theme_asked(self) -> None:
        if self.settings.colours == "none":
            self._answer("there are no colours here (NO_COLOR), so there is one theme only")
            return
        family = "ansi" if self.settings.colours == "16" else "textual"
        self.theme = f"{family}-{'light' if self.current_theme.dark else 'dark'}"
        self.run_screen.set_palette(self.palette)

    def on_run_screen_picture_asked(self) -> None:
        folder = self.job.folder
        number = 1
        path = folder / f"screen-{number}.svg"
        try:
            while path.exists():
                number += 1
                path = folder / f"screen-{number}.svg"
            with atomic_file(path) as file:
                file.write(self.export_screenshot().encode())
        except OSError as error:
            self._answer(f"{path} cannot be written: {error.strerror}", "the picture cannot be written", "error")
            return
        self._answer(f"picture: {path}", f"the picture is {path.name} in the run's folder")

    def on_run_screen_export_asked(self) -> None:
        def answered(folder: Path | None) -> None:
            if folder is not None:
                self.write_tables(folder)

        self.push_screen(ExportDialog(self.palette, self.job.folder.name, self.run_screen.TABLE_FILES), answered)

    @work(exclusive=True, group="export", exit_on_error=False)
    async def write_tables(self, folder: Path) -> None:
        """Write the tables of what is in the journal so far."""
        job = self.job

        def write() -> list[Path]:
            events = job.recording.events() if isinstance(job, Job) else read_events(job.folder)
            return tables.write_csv(run_tables(events), folder)

        try:
            files = await asyncio.to_thread(write)
        except GeocontError as error:
            self._answer(f"{error}; {error.remedy}", "the tables were not written", "error")
            return
        self._answer(f"{len(files)} tables are in {folder.absolute()}", f"{len(files)} tables are written")

    def _answer(self, text: str, brief: str = "", level: Literal["info", "error"] = "info") -> None:
        self.run_screen.answer(Message(level=level, text=text, time=time.time()), brief)


class AblationApp(RunApp):
    """A run of ablations on the screen."""

    def __init__(self, job: Job[Any] | WatchedRun[Any], settings: Settings) -> None:
        super().__init__(job, settings)
        self.title = f"geocont-tui: {job.snapshot.state.experiment.name}"

    def _make_screen(self) -> AblationScreen:
        return AblationScreen(self.job.snapshot, self.palette, self.job.folder.name)


class AnalysisApp(RunApp):
    """The analysis of a model on the screen."""

    def __init__(self, job: Job[Any] | WatchedRun[Any], settings: Settings) -> None:
        super().__init__(job, settings)
        self.title = f"geocont-tui: {job.snapshot.state.model}"

    def _make_screen(self) -> AnalysisScreen:
        return AnalysisScreen(self.job.snapshot, self.palette, self.job.folder.name)


def run_ablation(experiment: AnyExperiment, recording: Recording, settings: Settings) -> int:
    """Show the training of `experiment` on the screen; the exit code of the process.

    Says on stderr where the run is kept, and what was wrong if it failed.
    """
    return _show(AblationApp(ablation_job(experiment, recording), settings))


def run_analysis(model: str, recording: Recording, settings: Settings) -> int:
    """Show the analysis of `model` on the screen; the exit code of the process.

    Says on stderr where the run is kept, and what was wrong if it failed.
    """
    return _show(AnalysisApp(analysis_job(model, recording), settings))


def resume_run(recording: Recording, first: Event, settings: Settings) -> int:
    """Show a run that goes on; `first` is the first event of the job that does. The exit code of the process.

    Says on stderr what `run_ablation` says.

    Raises:
        InputError: the journal cannot be read.
    """
    return _show(_app_for(resumed_job(recording, first), settings))


def watch_run(run_folder: Path, settings: Settings) -> int:
    """Show a run that another process writes, or that is over; 0 unless a signal or the loss of the line ends it.

    Raises:
        InputError: the journal cannot be read, or is empty.
    """
    app = _app_for(watched_run(run_folder), settings)
    with TerminalGuard(app.call_off, app.call_off) as guard:
        app.run()
    number = guard.signal or (signal.SIGHUP if guard.is_lost else None)
    return app.return_code or ExitCode.DONE if number is None else 128 + number


def _app_for(job: Job[AnyState] | WatchedRun[AnyState], settings: Settings) -> RunApp:
    return (AnalysisApp if isinstance(job.snapshot.state, AnalysisState) else AblationApp)(job, settings)


def _show(app: RunApp) -> int:
    job = app.job
    assert isinstance(job, Job)

    def end() -> None:
        job.stop()
        app.call_off()

    try:
        with TerminalGuard(end, app.call_off) as guard:
            app.run()
            if app.goes_on and not guard.is_lost:
                command = f"geocont-tui watch {shlex.quote(watch_name(job.folder))}"
                # The line may be lost without the guard's having seen it yet.
                with suppress(OSError):
                    print(
                        f"{job.folder.name} goes on in the background; `{command}` shows it",
                        file=sys.stderr,
                        flush=True,
                    )
                leave_terminal()
            if app.goes_on or guard.is_lost:
                guard.leave()
            if app.goes_on or guard.is_lost or guard.signal:
                # Without the screen the same job goes on, or comes to its end.
                job.run()
    finally:
        job.close()
    state = job.snapshot.state
    # After a hang-up there is nobody to say it to.
    with suppress(OSError):
        if state.status == "failed":
            print(f"{state.problem}\n{state.remedy}", file=sys.stderr)
        print(where_kept(job.recording), file=sys.stderr)
    if guard.signal:
        return 128 + guard.signal
    return app.exit_code if app.return_code is None or app.goes_on or guard.is_lost else app.return_code
