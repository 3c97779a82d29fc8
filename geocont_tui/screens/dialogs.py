"""Dialogs that want an answer: whether to stop the run, where to write the tables, what to show of one."""

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from geocont_tui import keys
from geocont_tui.palette import Palette
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane

WIDTHS = [(0, "-narrow"), (84, "-roomy")]
"""The class of a screen from so many columns on: a dialog fills a narrow one."""


class StopQuestion(ModalScreen[bool]):
    """Whether to stop the run: True to stop, False to go on."""

    BINDINGS = keys.bindings("question")

    def __init__(self, palette: Palette, title: str, text: str) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = Content(self._title)
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "question")

    def on_mount(self) -> None:
        self.query_one(TextPane).show((Paragraph(self._text),))

    def action_keep(self) -> None:
        self.dismiss(False)

    def action_confirm(self) -> None:
        self.dismiss(True)


Leaving = Literal["go on", "stop"]


class QuitQuestion(ModalScreen[Leaving | None]):
    """How to leave a run that goes on: in the background, or stopped; None: not to leave."""

    BINDINGS = keys.bindings("quit")

    def __init__(self, palette: Palette, run: str, position: str) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._run = run
        self._position = position

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = Content("quit?")
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "quit")

    def on_mount(self) -> None:
        self.query_one(TextPane).show(
            (
                Paragraph(self._position),
                *(Paragraph(f"{keys.label(key, self._palette.ascii_only)}  {key.help}") for key in keys.of("quit")),
                Paragraph(f"To come back: geocont-tui watch {self._run}", "dim"),
            )
        )

    def action_background(self) -> None:
        self.dismiss("go on")

    def action_stop(self) -> None:
        self.dismiss("stop")

    def action_cancel(self) -> None:
        self.dismiss(None)


class ExportDialog(ModalScreen[Path | None]):
    """Into which folder the tables go; None: nowhere. Shows the command that does the same."""

    BINDINGS = keys.bindings("export")

    def __init__(self, palette: Palette, run: str, files: tuple[str, ...]) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._run = run
        self._folder = Path(f"{run}_tables")
        # The working directory may have been deleted since.
        with suppress(OSError):
            self._folder = Path.cwd() / self._folder
        self._files = files

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog export") as dialog:
            dialog.border_title = Content("write the tables")
            yield Input(str(self._folder), select_on_focus=False, compact=True)
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "export")

    def on_mount(self) -> None:
        field = self.query_one(Input)
        field.cursor_blink = False
        field.focus()
        self._explain()

    def on_input_changed(self) -> None:
        self._explain()

    def _explain(self) -> None:
        folder = self._chosen()
        try:
            there = [name for name in self._files if (folder / name).exists()]
            note = f"{', '.join(there)} there will be replaced" if there else f"makes {', '.join(self._files)} there"
        except OSError as error:
            note = f"cannot be looked into: {error.strerror}"
        command = f"geocont-tui export {shlex.quote(self._run)} --csv {shlex.quote(str(folder))}"
        self.query_one(TextPane).show(
            (
                Paragraph(note, "dim"),
                Paragraph(""),
                Paragraph("the same on the command line:", "dim"),
                Paragraph(command),
            )
        )

    def _chosen(self) -> Path:
        text = self.query_one(Input).value.strip()
        try:
            return Path(text or ".").expanduser()
        except RuntimeError:
            # ~name of a user that there is not: a folder of that name.
            return Path(text)

    def on_input_submitted(self) -> None:
        # The field takes this key itself, in turn with what was typed before it.
        self.action_write()

    def action_write(self) -> None:
        self.dismiss(self._chosen())

    def action_cancel(self) -> None:
        self.dismiss(None)


class FilterDialog(ModalScreen[str | None]):
    """What a table is narrowed down to; None: as before. `check` says what is wrong with an input, "" if nothing is."""

    BINDINGS = keys.bindings("filter")

    def __init__(self, palette: Palette, words: str, explanation: str, check: Callable[[str], str]) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._words = words
        self._explanation = explanation
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog filter") as dialog:
            dialog.border_title = Content("filter the table")
            yield Input(self._words, select_on_focus=False, compact=True)
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "filter")

    def on_mount(self) -> None:
        field = self.query_one(Input)
        field.cursor_blink = False
        field.focus()
        self._explain()

    def on_input_changed(self) -> None:
        self._explain()

    def _explain(self) -> None:
        wrong = self._check(self.query_one(Input).value)
        said = (Paragraph(wrong, "selected"), Paragraph("")) if wrong else ()
        self.query_one(TextPane).show((*said, Paragraph(self._explanation, "dim")))

    def on_input_submitted(self) -> None:
        # As in `ExportDialog`.
        self.action_apply()

    def action_apply(self) -> None:
        words = self.query_one(Input).value.strip()
        if not self._check(words):
            self.dismiss(words)

    def action_cancel(self) -> None:
        self.dismiss(None)
