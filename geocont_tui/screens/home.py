"""The home screen: the runs, experiments to start, models to analyse.

It shows a `HomeState` and holds what the user chose; what is to be done is asked of the app.
"""

import re
from pathlib import Path

from geocont import __version__
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen

from geocont_tui import keys
from geocont_tui.home_state import HomeRun, HomeState
from geocont_tui.palette import Palette
from geocont_tui.screens.commands import Commands
from geocont_tui.screens.help import help_text
from geocont_tui.screens.reader import Reader
from geocont_tui.screens.run import NORMAL, SMALLEST, WIDE, Pane
from geocont_tui.widgets.cells import CellWidget
from geocont_tui.widgets.choice_list import ChoiceList
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.run_list import RunList, RunListData
from geocont_tui.widgets.status_line import StatusData, StatusLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane

PANES = ("runs", "presets", "models")
EXPLANATION_ROWS = 3
OTHER_FILE = "a TOML file"
OTHER_MODEL = "a model or a folder"


class HomeScreen(Screen[None]):
    """The screen; see the module's docstring."""

    class Asked(Message):
        """Do `what` (an action of the app: open, resume, export, rename, delete) with a run."""

        def __init__(self, what: str, run: HomeRun) -> None:
            super().__init__()
            self.what = what
            self.run = run

    class Started(Message):
        """Start a command: ("ablate", "mlp")."""

        def __init__(self, *arguments: str) -> None:
            super().__init__()
            self.arguments = arguments

    class ModelAsked(Message):
        """Ask which model to analyse."""

    class FileAsked(Message):
        """Ask which TOML file to start."""

    class ThemeAsked(Message):
        """Dark instead of light, or the other way."""

    AUTO_FOCUS = ""
    BINDINGS = keys.bindings("home")

    def __init__(self, state: HomeState, palette: Palette) -> None:
        super().__init__()
        self.palette = palette
        self.state = state
        self._pane = "runs"
        self._has_chosen_pane = False
        self._run: str | None = None
        self._rows = {"runs": 0, "presets": 0, "models": 0}
        self._is_composed = False

    def compose(self) -> ComposeResult:
        palette = self.palette
        yield StatusLine(palette)
        with Pane(palette, id="runs-pane"):
            yield RunList(palette)
            yield TextPane(palette, id="welcome")
            yield TextPane(palette, id="explanation")
        with Horizontal(id="starts"):
            with Pane(palette, id="presets-pane"):
                yield ChoiceList(palette, id="presets")
            with Pane(palette, id="models-pane"):
                yield ChoiceList(palette, id="models")
        yield TextPane(palette, id="too-small")
        yield KeyLine(palette, "home", id="keys")

    def on_mount(self) -> None:
        self._is_composed = True
        self._arrange()

    def on_resize(self) -> None:
        if self._is_composed:
            self._arrange()

    # Painting

    def show(self, state: HomeState) -> None:
        """Show `state`. The selected run stays selected, wherever it is now."""
        self.state = state
        folders = [run.summary.path for run in state.runs]
        if self._run in folders:
            self._rows["runs"] = folders.index(self._run)
        if self._is_composed and not self._has_chosen_pane:
            self._arrange()
        self._paint()

    def set_palette(self, palette: Palette) -> None:
        """Use other colours."""
        self.palette = palette
        for widget in self.query(CellWidget):
            widget.set_palette(palette)

    def say(self, text: str) -> None:
        """Say what a key did, until the next key."""
        self.query_one("#keys", KeyLine).say(text)

    def on_key(self) -> None:
        self.say("")

    def _arrange(self) -> None:
        """Choose the layout for the size."""
        width, height = self.size
        self.set_class(width < SMALLEST[0] or height < SMALLEST[1], "-too-small")
        is_single = width < NORMAL[0] or height < NORMAL[1]
        if not self._has_chosen_pane and self.state.is_read:
            # Where there is no run, starting one comes first; where there is room for one pane only, what explains.
            is_alone = not self.state.runs and not self.state.problem and not is_single
            self._pane = "presets" if is_alone else "runs"
        self.set_class(is_single, "-single")
        self.set_class(height >= WIDE[1], "-tall")
        for pane in self.query(Pane):
            pane.set_class(pane.id == f"{self._pane}-pane", "-current")
        self.query_one("#starts").set_class(self._pane == "runs", "-away")
        sizes = (f"{SMALLEST[0]}×{SMALLEST[1]}", f"{width}×{height}")
        self.query_one("#too-small", TextPane).show((Paragraph(f"needs {sizes[0]}, is {sizes[1]}"),))
        self._paint()

    def _paint(self) -> None:
        if not self._is_composed:
            return
        state = self.state
        for name, rows in (("runs", len(state.runs)), ("presets", len(self._presets)), ("models", len(self._models))):
            self._rows[name] = min(max(self._rows[name], 0), max(rows - 1, 0))
        live = sum(run.is_live for run in state.runs)
        self.query_one(StatusLine).show(
            StatusData(
                f"geocont-tui {__version__}",
                device=f"runs are kept in {_brief(state.folder)}",
                sign="running" if live else "waiting",
                state=f"{live} live" if live else "no live run" if state.is_read else "reading the runs",
            )
        )
        self.query_one(RunList).display = bool(state.runs)
        welcome = self.query_one("#welcome", TextPane)
        welcome.display = not state.runs
        welcome.show(self._welcome)
        explanation = self.query_one("#explanation", TextPane)
        explanation.display = self._pane == "presets"
        explanation.show((Paragraph(self._explanation, "dim"),))
        self.query_one(RunList).show(RunListData(state.runs, self._rows["runs"], self._pane == "runs"))
        self.query_one("#presets", ChoiceList).show(self._presets, self._marked("presets"))
        self.query_one("#models", ChoiceList).show(self._models, self._marked("models"))
        self._show_keys()
        self._entitle()

    def _marked(self, pane: str) -> int | None:
        """The row that enter would start; a mark in another pane would only confuse."""
        return self._rows[pane] if pane == self._pane else None

    def _show_keys(self) -> None:
        run = self.selected
        hidden = {"export", "rename", "delete", "resume"} if run is None or self._pane != "runs" else set()
        if run is not None and run.is_live:
            hidden |= {"delete", "rename", "resume"}
        if run is not None and run.state in ("done", "unreadable"):
            hidden |= {"resume"}
        words = {
            "presets": "start",
            "models": "analyse",
            "runs": "watch" if run is not None and run.is_live else "open",
        }
        if self._pane == "models":
            hidden.add("analyze")
        self.query_one("#keys", KeyLine).show(frozenset(hidden), {"open": words[self._pane]})

    def _entitle(self) -> None:
        count = len(self.state.runs)
        run = self.selected
        row = self._rows["presets"]
        preset = self.state.presets[row] if row < len(self.state.presets) else None
        titles = {
            "runs": (f"runs: {count}" if count else "runs", _place(run) if run else ""),
            "presets": ("start an experiment", f"{preset.networks} networks" if preset else ""),
            "models": ("analyse a model", ""),
        }
        for place, name in enumerate(PANES, 1):
            title, subtitle = titles[name]
            mark = f"{self.palette.glyphs.signs['selected']} " if name == self._pane else ""
            self.query_one(f"#{name}-pane", Pane).entitle(f"{mark}{place} {title}", subtitle if mark else "")

    @property
    def _presets(self) -> tuple[tuple[str, str], ...]:
        rows = tuple((each.name, each.description) for each in self.state.presets)
        return (*rows, (OTHER_FILE, "an experiment of your own"))

    @property
    def _models(self) -> tuple[tuple[str, str], ...]:
        state = self.state
        recent = tuple((name, "analysed") for name in state.recent)
        cached = tuple((name, "cached") for name in state.cached if name not in state.recent)
        return ((OTHER_MODEL, "type it"), *recent, *cached)

    @property
    def _welcome(self) -> tuple[Paragraph, ...]:
        state = self.state
        if not state.is_read:
            return ()
        if state.problem:
            return (Paragraph("The runs cannot be listed.", "selected"), Paragraph(""), Paragraph(state.problem))
        return (
            Paragraph("There are no runs yet.", "selected"),
            Paragraph(
                "Weight matrices of adjacent layers share their leading singular directions. This program shows it: "
                "while small networks train (2), and in pretrained models (3)."
            ),
            Paragraph("tab or 1 2 3 choose a pane, the arrows a row, enter starts it.", indent=2, label="-"),
            Paragraph(
                "A run goes on when you leave its screen, or lose the connection, and waits for you here.",
                indent=2,
                label="-",
            ),
            Paragraph("? shows every key of the screen that you are in, q leaves it.", indent=2, label="-"),
        )

    @property
    def _explanation(self) -> str:
        """What the preset under the cursor shows: the whole sentences of its file that there is room for."""
        row = self._rows["presets"]
        if row >= len(self.state.presets):
            return "An experiment of your own, as a TOML file; the presets are good ones to start from."
        room = EXPLANATION_ROWS * (self.size.width - 4)
        said = ""
        for sentence in re.split(r"(?<=[.?]) ", self.state.presets[row].explanation):
            if said and len(said) + len(sentence) > room * 0.85:
                break
            said += f" {sentence}" if said else sentence
        return f"{self.state.presets[row].name}: {said}"

    # What the keys do

    @property
    def selected(self) -> HomeRun | None:
        """The selected run."""
        runs = self.state.runs
        return runs[min(self._rows["runs"], len(runs) - 1)] if runs else None

    def action_pane(self, name: str) -> None:
        self._has_chosen_pane = True
        self._pane = name
        self._arrange()

    def action_next_pane(self, by: int) -> None:
        self.action_pane(PANES[(PANES.index(self._pane) + by) % len(PANES)])

    def action_move(self, by: int) -> None:
        self._select(self._pane, self._rows[self._pane] + by)

    def _select(self, pane: str, row: int) -> None:
        self._has_chosen_pane = True
        self._rows[pane] = row
        self._paint()
        run = self.selected
        self._run = run.summary.path if run else None

    def on_pane_chosen(self, event: Pane.Chosen) -> None:
        self.action_pane(event.pane.removesuffix("-pane"))

    def on_run_list_chosen(self, event: RunList.Chosen) -> None:
        self._select("runs", event.row)

    def on_choice_list_chosen(self, event: ChoiceList.Chosen) -> None:
        self._select(event.source.id or "presets", event.row)

    def action_open(self) -> None:
        match self._pane:
            case "runs":
                self._ask("open")
            case "presets":
                name = self._presets[self._rows["presets"]][0]
                self.post_message(self.FileAsked() if name == OTHER_FILE else self.Started("ablate", name))
            case _:
                name = self._models[self._rows["models"]][0]
                self.post_message(self.ModelAsked() if name == OTHER_MODEL else self.Started("analyze", name))

    def action_analyze(self) -> None:
        self.post_message(self.ModelAsked())

    def action_new(self) -> None:
        self.post_message(self.FileAsked())

    def action_resume(self) -> None:
        run = self.selected
        if run is not None and run.state in ("done", "unreadable"):
            self.say(f"the run is {run.state}: there is nothing to go on with")
        else:
            self._ask("resume")

    def action_export(self) -> None:
        self._ask("export")

    def action_rename(self) -> None:
        self._ask("rename")

    def action_delete(self) -> None:
        self._ask("delete")

    def _ask(self, what: str) -> None:
        run = self.selected
        if run is None:
            self.say("there are no runs yet")
        elif run.is_live and what in ("resume", "rename", "delete"):
            self.say("the run is live: open it to watch, pause or stop it")
        else:
            self.post_message(self.Asked(what, run))

    def action_theme(self) -> None:
        self.post_message(self.ThemeAsked())

    def action_repaint(self) -> None:
        self.refresh(layout=True)

    def action_help(self) -> None:
        self.app.push_screen(Reader(self.palette, "help", help_text("home", self.palette.ascii_only)))

    def action_commands(self) -> None:
        async def run(key: keys.Key | None) -> None:
            if key is not None:
                await self.run_action(key.action)

        self.app.push_screen(Commands(self.palette, "home"), run)


def _place(run: HomeRun) -> str:
    """Where a run is kept, and where it ran."""
    device = run.summary.device
    return run.folder.name if device is None else f"{device}: {run.folder.name}"


def _brief(folder: Path) -> str:
    """The folder with ~ for the home folder."""
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)
