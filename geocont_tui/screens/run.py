"""What the screens of all kinds of runs have in common: panes, focus and zoom, answers, and what they ask of the app.

A screen shows snapshots and holds what the user chose to see; it neither pulls events nor knows a thread. The app calls
`paint(snapshot, phase, everything=…)` at its own rate.
"""

import time
from typing import Any, ClassVar, Literal

from geocont.events import Message
from rich.cells import cell_len
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message as TextualMessage
from textual.screen import Screen

from geocont_tui import keys
from geocont_tui.job import Snapshot
from geocont_tui.palette import Palette, Sign
from geocont_tui.screens.commands import Commands
from geocont_tui.screens.help import help_text
from geocont_tui.screens.reader import Reader
from geocont_tui.widgets.cells import ASCII_FOR, BLANK, NO_STYLE, CellWidget, write
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane

Phase = Literal["starting", "running", "paused", "stopping", "done", "stopped", "failed", "interrupted"]
SIGNS: dict[Phase, Sign] = {
    "starting": "waiting",
    "running": "running",
    "paused": "paused",
    "stopping": "running",
    "done": "done",
    "stopped": "stopped",
    "failed": "failed",
    "interrupted": "stopped",
}
OVER: tuple[Phase, ...] = ("done", "stopped", "failed", "interrupted")

SMALLEST = (60, 15)
NORMAL = (80, 24)
MIDDLE = 100
WIDE = (130, 34)


class Pane(Vertical):
    """A frame with a title; the one in focus has a heavy border and a mark."""

    class Chosen(TextualMessage):
        """The user clicked into the pane."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._is_ascii = palette.ascii_only
        self._titles = ("", "")
        self._fitted: tuple[str, str] | None = None

    def on_click(self, event: Click) -> None:
        event.stop()
        if self.id is not None:
            self.post_message(self.Chosen(self.id))

    def entitle(self, title: str, subtitle: str) -> None:
        """Set title and subtitle, shown literally."""
        self._titles = (title, subtitle)
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        """Cut the titles to the frame: Textual would cut them with a sign that is not ASCII."""
        title, subtitle = (self._cut(text, self.outer_size.width - 6) for text in self._titles)
        # A new title repaints the whole pane.
        if (title, subtitle) != self._fitted:
            self._fitted = (title, subtitle)
            self.border_title, self.border_subtitle = Content(title), Content(subtitle)

    def _cut(self, text: str, room: int) -> str:
        cells = [BLANK] * max(room, 0)
        end = write(cells, 0, text, NO_STYLE, room, self._is_ascii)
        shown = "".join(character for character, _ in cells[:end])
        needed = cell_len(text.translate(ASCII_FOR) if self._is_ascii else text)
        if needed <= room or not shown:
            return shown
        return shown[:-1] + ("." if self._is_ascii else "…")


class RunScreen(Screen[None]):
    """The screen of a run; see the module's docstring. A subclass says what is in which pane."""

    class PauseAsked(TextualMessage):
        """Pause the job, or go on."""

    class StopAsked(TextualMessage):
        """Stop the job, after asking."""

    class ExportAsked(TextualMessage):
        """Write the tables, after asking where."""

    class PictureAsked(TextualMessage):
        """Save a picture of the screen."""

    class ThemeAsked(TextualMessage):
        """Dark instead of light, or the other way."""

    AUTO_FOCUS = ""
    PLACE: ClassVar[keys.Place]
    WORK: ClassVar[str]
    """What the job does, in a word: "training"."""
    VIEWS: ClassVar[tuple[str, ...]]
    """The ids of what can be shown in the pane `view`; `failure` besides."""
    CONTAINERS: ClassVar[tuple[str, ...]]
    """Selectors of what holds panes, and is away when a single pane outside of it is shown."""
    LOG_KEY: ClassVar[str]
    TABLE_FILES: ClassVar[tuple[str, ...]]

    def __init__(self, snapshot: Snapshot[Any], palette: Palette, kept: str, pane: str) -> None:
        super().__init__()
        self.palette = palette
        self._kept = kept
        self._snapshot = snapshot
        self._phase: Phase = "starting"
        self._answers: tuple[Message, ...] = ()
        self._shown_view = self.VIEWS[0]
        self._pane = pane
        self._zoomed = False
        self._failure_shown = False
        self._is_journal_lost = False
        self._is_composed = False

    def on_mount(self) -> None:
        self._is_composed = True
        self._arrange()
        self.paint(self._snapshot, self._phase, everything=True)

    def on_resize(self) -> None:
        # The first one may come before there is anything to arrange.
        if not self._is_composed:
            return
        self._arrange()
        self.paint(self._snapshot, self._phase, everything=True)

    # What is where

    @property
    def _panes(self) -> list[str]:
        """The panes that can be in focus at this size."""
        raise NotImplementedError

    def _entitle(self) -> None:
        """Give every pane its title."""
        raise NotImplementedError

    @property
    def _is_single(self) -> bool:
        return self._zoomed or self.size.width < NORMAL[0]

    def _arrange(self) -> None:
        """Choose the layout for the size, and show the panes and the view that belong to it."""
        width, height = self.size
        is_too_small = width < SMALLEST[0] or height < SMALLEST[1]
        is_wide = width >= WIDE[0] and height >= WIDE[1]
        self.set_class(is_too_small, "-too-small")
        self.set_class(is_wide, "-wide")
        self.set_class(not is_wide and width >= MIDDLE, "-middle")
        self.set_class(not is_wide and height >= WIDE[1], "-tall")
        self.set_class(height < NORMAL[1], "-short")
        self.set_class(self._is_single, "-single")
        if self._pane not in self._panes:
            self._pane = "view"
        for pane in self.query(Pane):
            pane.set_class(pane.id == self._pane, "-current")
        for place in self.CONTAINERS:
            holds = any(pane.id == self._pane for pane in self.query_one(place).query(Pane))
            self.query_one(place).set_class(not holds, "-away")
        for name in (*self.VIEWS, "failure"):
            self.query_one(f"#{name}").display = name == self._shown_view
        self.query_one("#too-small", TextPane).show(
            (Paragraph(f"needs {SMALLEST[0]}×{SMALLEST[1]}, is {width}×{height}"),)
        )
        self._entitle()

    # Painting

    def paint(self, snapshot: Snapshot[Any], phase: Phase, *, everything: bool) -> None:
        """Show `snapshot`: what moves fast; with `everything` also the tables, the bars and the texts."""
        self._snapshot, self._phase = snapshot, phase
        if not self._is_composed:
            return
        if phase == "failed" and not self._failure_shown:
            self._failure_shown = True
            self._shown_view = "failure"
            self._pane = "view"
            self._arrange()
        is_over = phase in OVER
        self.query_one("#keys", KeyLine).show(
            self._idle_keys() | frozenset({"pause", "stop"} if is_over else ()),
            {"pause": "go on"} if phase == "paused" else {},
        )
        self._paint_fast()
        if everything:
            self._paint_rest()
            if phase == "failed":
                self._paint_failure()

    def _paint_fast(self) -> None:
        """Paint what is worth bytes several times a second."""
        raise NotImplementedError

    def _paint_rest(self) -> None:
        """Paint everything else."""
        raise NotImplementedError

    def _paint_failure(self) -> None:
        state = self._snapshot.state
        kept = f"What was measured until then can be looked at ({self._view_keys}) and written as tables (e)."
        self.query_one("#failure", TextPane).show(
            (
                Paragraph(state.problem or "the run failed", "selected"),
                Paragraph(""),
                Paragraph(state.remedy or ""),
                Paragraph(""),
                Paragraph(kept if state.measurements else "Nothing had been measured until then.", "dim"),
            )
        )

    @property
    def _view_keys(self) -> str:
        labels = [key.label for key in keys.of(self.PLACE) if key.action.startswith("view(")]
        return f"{labels[0]}-{labels[-1]}"

    def _messages(self) -> tuple[Message, ...]:
        """What the run said and what keys were answered, oldest first."""
        return tuple(sorted((*self._snapshot.state.messages, *self._answers), key=lambda message: message.time))

    def set_palette(self, palette: Palette) -> None:
        """Use other colours."""
        self.palette = palette
        for widget in self.query(CellWidget):
            widget.set_palette(palette)

    def answer(self, message: Message, brief: str = "") -> None:
        """Say what a key did: in the log, and until the next key in the bottom line (there as `brief` if too long)."""
        self._answers = (*self._answers, message)
        fits = cell_len(message.text) <= self.size.width - 2
        self.query_one("#keys", KeyLine).say(message.text if fits or not brief else f"{brief}; {self.LOG_KEY}: log")
        self._repaint()

    def lose_journal(self) -> None:
        """Show from now on that what comes is not journaled; the run itself says why."""
        if not self._is_journal_lost and self._is_composed:
            self._is_journal_lost = True
            self._kept = ""
            self.query_one("#keys", KeyLine).say(f"the journal cannot be written any more; {self.LOG_KEY}: log")

    def _with_journal(self, doing: str) -> str:
        """What the run does, and that it has no journal any more."""
        return f"{doing}, journal lost" if self._is_journal_lost else doing

    def _idle_keys(self) -> frozenset[str]:
        """Ids of keys that do nothing in this run."""
        return frozenset()

    def on_key(self) -> None:
        self.query_one("#keys", KeyLine).say("")

    def _repaint(self) -> None:
        self._entitle()
        self.paint(self._snapshot, self._phase, everything=True)

    def copied(self, what: str, text: str, brief: str) -> None:
        """Hand `text` to the terminal's clipboard and say so."""
        self.app.copy_to_clipboard(text)
        said = f"{what} were sent to the terminal's clipboard, if it takes them (OSC 52)"
        self.answer(Message(level="info", text=said, time=time.time()), brief)

    # What the keys do to the view

    def focus_pane(self, pane: str) -> None:
        """Put a pane into focus."""
        self._pane = pane
        self._arrange()
        self._repaint()

    def on_pane_chosen(self, event: Pane.Chosen) -> None:
        self.focus_pane(event.pane)

    def action_pane(self, by: int) -> None:
        panes = self._panes
        self.focus_pane(panes[(panes.index(self._pane) + by) % len(panes)])

    def action_zoom(self) -> None:
        self._zoomed = not self._zoomed
        self.focus_pane(self._pane)

    def action_back(self) -> None:
        if self._zoomed:
            self.action_zoom()

    # What the keys ask of the app

    def action_help(self) -> None:
        self.app.push_screen(Reader(self.palette, "help", help_text(self.PLACE, self.palette.ascii_only)))

    def action_commands(self) -> None:
        async def run(key: keys.Key | None) -> None:
            if key is not None:
                await self.run_action(key.action)

        self.app.push_screen(Commands(self.palette, self.PLACE), run)

    def action_pause(self) -> None:
        self.post_message(self.PauseAsked())

    def action_stop(self) -> None:
        self.post_message(self.StopAsked())

    def action_export(self) -> None:
        self.post_message(self.ExportAsked())

    def action_picture(self) -> None:
        self.post_message(self.PictureAsked())

    def action_theme(self) -> None:
        self.post_message(self.ThemeAsked())

    def action_repaint(self) -> None:
        self.refresh(layout=True)
