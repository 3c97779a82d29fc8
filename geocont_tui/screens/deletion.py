"""A dialog that asks whether to delete a run."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from geocont_tui import keys
from geocont_tui.palette import Palette
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane


class DeletionQuestion(ModalScreen[bool]):
    """Whether to delete the run: True to delete, False to keep it."""

    BINDINGS = keys.bindings("deletion")

    def __init__(self, palette: Palette, run: str, size: str) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._run = run
        self._bytes = size

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question") as dialog:
            dialog.border_title = Content("delete the run?")
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "deletion")

    def on_mount(self) -> None:
        self.query_one(TextPane).show(
            (Paragraph(self._run, "selected"), Paragraph(f"{self._bytes}; its measurements cannot be brought back."))
        )

    def action_keep(self) -> None:
        self.dismiss(False)

    def action_confirm(self) -> None:
        self.dismiss(True)
