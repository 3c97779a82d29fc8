"""A dialog of text that scrolls: the help, the details of a variant."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from geocont_tui import keys
from geocont_tui.palette import Palette
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane


class Reader(ModalScreen[None]):
    """Shows paragraphs until it is closed; `show` replaces them while it is open."""

    BINDINGS = keys.bindings("reader")

    def __init__(self, palette: Palette, title: str, paragraphs: tuple[Paragraph, ...]) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._title = title
        self._paragraphs = paragraphs

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog reader") as dialog:
            dialog.border_title = Content(self._title)
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "reader")

    def on_mount(self) -> None:
        self.query_one(TextPane).show(self._paragraphs)

    def show(self, paragraphs: tuple[Paragraph, ...]) -> None:
        """Show other paragraphs, at the same place."""
        self.query_one(TextPane).show(paragraphs)

    def action_scroll(self, rows: int) -> None:
        self.query_one(TextPane).scroll_rows(rows)

    def action_close(self) -> None:
        self.dismiss()
