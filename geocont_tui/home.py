"""The home screen as an app of its own: it ends with what is to be done next.

    run_home(settings, parent=None, said=None) -> Left(choice, code, settings)
    Choice      Open(folder), Start(arguments)

Whoever called it does what was chosen, and comes back. The runs are read again every few seconds, in a thread.
"""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs
from geocont import run_list, tables
from geocont.ablations import experiment
from geocont.errors import GeocontError
from geocont.runs import read_events
from textual import work
from textual.screen import Screen

from geocont_tui import completion, terminal
from geocont_tui.home_state import HomeReader, HomeRun, HomeState
from geocont_tui.run_tables import run_tables
from geocont_tui.screen_app import ScreenApp
from geocont_tui.screens.deletion import DeletionQuestion
from geocont_tui.screens.dialogs import ExportDialog
from geocont_tui.screens.entry import Entry
from geocont_tui.screens.home import HomeScreen
from geocont_tui.screens.reader import Reader
from geocont_tui.terminal import ExitCode, Settings
from geocont_tui.terminal_guard import TerminalGuard
from geocont_tui.widgets.run_list import brief_size
from geocont_tui.widgets.text_pane import Paragraph

_READ_SECONDS = 3.0
_HELD_SECONDS = 0.25


@dataclass(frozen=True)
class Open:
    """Show a run: live, it is watched; else replayed."""

    folder: Path


@dataclass(frozen=True)
class Start:
    """Start a command in the background, and show its run: ("ablate", "mlp"), ("resume", "/…")."""

    arguments: tuple[str, ...]


Choice = Open | Start


class HomeApp(ScreenApp[Choice]):
    """The runs of `parent` (default: the user's). `said` is what went wrong since: a problem and a remedy."""

    def __init__(self, settings: Settings, parent: Path | None = None, said: tuple[str, str] | None = None) -> None:
        super().__init__(settings)
        self.title = "geocont-tui"
        self._reader = HomeReader(parent)
        self._said = said
        self.home = HomeScreen(HomeState(self._reader.folder, is_read=False), self.palette)

    def get_default_screen(self) -> Screen[None]:
        return self.home

    def on_mount(self) -> None:
        self.read()
        self.set_interval(_READ_SECONDS, self.read)
        self.set_interval(_HELD_SECONDS, self.paint_held)
        if self._said is not None:
            self._tell(*self._said)

    @work(exclusive=True, group="read", exit_on_error=False)
    async def read(self) -> None:
        """Read the runs in a thread, and show them."""
        state = await asyncio.to_thread(self._reader.read)
        self.home.show(state)

    async def action_quit(self) -> None:
        self.exit()

    @property
    def error_log(self) -> Path:
        return platformdirs.user_log_path("geocont-tui", appauthor=False) / "error.log"

    def explain(self, problem: str, remedy: str, brief: str) -> None:
        self._tell(problem, remedy)

    def _tell(self, problem: str, remedy: str) -> None:
        said = (Paragraph(problem, "selected"), Paragraph(""), Paragraph(remedy))
        self.push_screen(Reader(self.palette, "that did not work", said))

    # What the screen asks

    def on_home_screen_asked(self, event: HomeScreen.Asked) -> None:
        run = event.run
        match event.what:
            case "open":
                self.exit(Open(run.folder))
            case "resume":
                self.exit(Start(("resume", str(run.folder))))
            case "export":
                self._ask_where_to_export(run)
            case "rename":
                self._ask_for_a_name(run)
            case "delete":
                self._ask_to_delete(run)

    def on_home_screen_started(self, event: HomeScreen.Started) -> None:
        self.exit(Start(event.arguments))

    def on_home_screen_model_asked(self) -> None:
        state = self.home.state

        def complete(text: str) -> list[completion.Suggestion]:
            return completion.models(text, state.recent, state.cached)

        def check(text: str) -> str:
            if not text:
                return "type the name of a model, a folder or a file of weights"
            return "no model has a name that begins with -" if text.startswith("-") else ""

        def answered(text: str | None) -> None:
            if text is not None:
                path = completion.expanded(text)
                self.exit(Start(("analyze", str(path) if text.startswith("~") else text)))

        explanation = "an id on the hub (org/name), a folder, or a .safetensors or .gguf file; only headers and single "
        explanation += "matrices are read, one at a time"
        self.push_screen(Entry(self.palette, "analyse a model", "", explanation, check, complete), answered)

    def on_home_screen_file_asked(self) -> None:
        def check(text: str) -> str:
            try:
                experiment.read(str(completion.expanded(text)))
            except GeocontError as error:
                return f"{error}; {error.remedy}"
            return ""

        def answered(text: str | None) -> None:
            if text is not None:
                self.exit(Start(("ablate", str(completion.expanded(text)))))

        explanation = "an experiment as TOML; the presets are good ones to start from"
        dialog = Entry(self.palette, "start an experiment", "", explanation, check, completion.toml_files)
        self.push_screen(dialog, answered)

    def on_home_screen_theme_asked(self) -> None:
        if self.settings.colours == "none":
            self.home.say("there are no colours here (NO_COLOR), so there is one theme only")
            return
        # The next screen is to look the same.
        self.settings = msgspec.structs.replace(self.settings, dark=not self.current_theme.dark, theme=None)
        self.theme = self.settings.textual_theme
        self.home.set_palette(self.palette)

    def _ask_for_a_name(self, run: HomeRun) -> None:
        def answered(text: str | None) -> None:
            if text is None:
                return
            try:
                folder = run_list.rename(run.folder, text)
            except GeocontError as error:
                self._tell(str(error), error.remedy)
            else:
                self.home.say(f"{run.title} is now called {run_list.title(folder.name)}")
            self.read()

        explanation = "the time that the run's name begins with stays"
        self.push_screen(Entry(self.palette, "rename the run", run.title, explanation, lambda _: ""), answered)

    def _ask_to_delete(self, run: HomeRun) -> None:
        def answered(deletes: bool | None) -> None:
            if not deletes:
                return
            try:
                run_list.delete(run.folder)
            except GeocontError as error:
                self._tell(str(error), error.remedy)
            else:
                self.home.say(f"{run.title} is deleted")
            self.read()

        size = brief_size(run.summary.size)
        self.push_screen(DeletionQuestion(self.palette, run.folder.name, size), answered)

    def _ask_where_to_export(self, run: HomeRun) -> None:
        # They bring the charts, which take a quarter of a second to import.
        from geocont_tui.screens.ablation import AblationScreen
        from geocont_tui.screens.analysis import AnalysisScreen

        files = AnalysisScreen.TABLE_FILES if run.summary.kind == "analysis" else AblationScreen.TABLE_FILES

        def answered(folder: Path | None) -> None:
            if folder is not None:
                self.write_tables(run.folder, folder)

        self.push_screen(ExportDialog(self.palette, run.folder.name, files), answered)

    @work(exclusive=True, group="export", exit_on_error=False)
    async def write_tables(self, run: Path, folder: Path) -> None:
        """Write the tables of a run."""
        try:
            files = await asyncio.to_thread(lambda: tables.write_csv(run_tables(read_events(run)), folder))
        except GeocontError as error:
            self._tell(str(error), error.remedy)
        else:
            self.home.say(f"{len(files)} tables are in {folder.absolute()}")


@dataclass(frozen=True)
class Left:
    """How the home screen was left: for `choice`, or to quit with exit code `code`; and the settings by then."""

    choice: Choice | None
    code: int
    settings: Settings


def run_home(settings: Settings, parent: Path | None = None, said: tuple[str, str] | None = None) -> Left:
    """Show the home screen until the user chooses something, or quits."""
    app = HomeApp(settings, parent, said)
    with TerminalGuard(app.call_off, app.call_off) as guard:
        choice = app.run()
        if guard.is_lost:
            guard.leave()
    # Textual has taken NO_COLOR out of the environment, where the next screen looks for it.
    terminal.prepare(app.settings)
    if guard.is_lost or guard.signal:
        return Left(None, 128 + (guard.signal or signal.SIGHUP), app.settings)
    return Left(choice, app.return_code or ExitCode.DONE, app.settings)
