"""All commands of a screen by name: a field that narrows the list down, and the list."""

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from geocont_tui import keys
from geocont_tui.palette import Palette
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane


class Commands(ModalScreen[keys.Key | None]):
    """Which command to run; None: none."""

    BINDINGS = keys.bindings("commands")

    def __init__(self, palette: Palette, place: keys.Place) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._all = [key for key in keys.of(place) if key.command]
        self._found = self._all
        self._selected = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog commands") as dialog:
            dialog.border_title = Content("commands")
            yield Input(placeholder="part of a name", compact=True)
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "commands")

    def on_mount(self) -> None:
        field = self.query_one(Input)
        field.cursor_blink = False
        field.focus()
        self._list()

    def on_input_changed(self, event: Input.Changed) -> None:
        words = event.value.lower().split()
        self._found = [key for key in self._all if all(word in f"{key.id} {key.help}".lower() for word in words)]
        self._selected = 0
        self._list()

    def on_input_submitted(self) -> None:
        self.action_run()

    def _list(self) -> None:
        ascii_only, sign = self._palette.ascii_only, self._palette.glyphs.signs["selected"]
        labels = [keys.label(key, ascii_only) for key in self._found]
        indent = max(map(cell_len, labels), default=0) + 4
        rows = [
            Paragraph(
                key.help,
                "selected" if place == self._selected else "text",
                indent=indent,
                label=f"{sign if place == self._selected else ' '} {label}",
            )
            for place, (key, label) in enumerate(zip(self._found, labels, strict=True))
        ]
        pane = self.query_one(TextPane)
        pane.show(tuple(rows) or (Paragraph("no command has that in its name", "dim"),))
        pane.bring_paragraph_into_view(self._selected)

    def action_choose(self, by: int) -> None:
        if self._found:
            self._selected = (self._selected + by) % len(self._found)
            self._list()

    def action_run(self) -> None:
        self.dismiss(self._found[self._selected] if self._found else None)

    def action_cancel(self) -> None:
        self.dismiss(None)
