"""The bottom line: the keys of the screen, or the answer to what was just done.

line = KeyLine(palette, place)      line.say(text)      line.say("")      line.show(hidden, renamed)
"""

from collections.abc import Mapping

from geocont_tui import keys
from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, CellWidget, Frame, write


class KeyLine(CellWidget):
    """One line, made from the table of keys."""

    DEFAULT_CSS = """
    KeyLine { width: 1fr; height: 1; }
    """

    def __init__(self, palette: Palette, place: keys.Place, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._place = place
        self._hidden: frozenset[str] = frozenset()
        self._renamed: Mapping[str, str] = {}
        self.answer = ""

    def show(self, hidden: frozenset[str], renamed: Mapping[str, str]) -> None:
        """Leave out the keys that do nothing now, and call by another word those that do the opposite (both by id)."""
        if (hidden, renamed) != (self._hidden, self._renamed):
            self._hidden, self._renamed = hidden, renamed
            self.update_frame()

    def say(self, answer: str) -> None:
        """Show `answer` in place of the keys; an empty one brings the keys back."""
        if answer != self.answer:
            self.answer = answer
            self.update_frame()

    def draw_frame(self, width: int, height: int) -> Frame:
        ascii_only = self._palette.ascii_only
        cells = [BLANK] * width
        x = 1
        if self.answer:
            write(cells, x, self.answer, self._palette.text, width, ascii_only)
        else:
            for label, word in keys.line(self._place, width - 1, ascii_only, self._hidden, self._renamed):
                x = write(cells, x, label, self._palette.selected, width)
                x = write(cells, x + 1, word, self._palette.dim, width) + 2
        return (tuple(cells), *(tuple([BLANK] * width) for _ in range(height - 1)))
