"""A list to choose from: a name and a note a row.

choices = ChoiceList(palette)      choices.show((("mlp", "18 networks"), …), selected)
ChoiceList.Chosen(row)             the user clicked on a row
draw(rows, selected, width, height, palette, none) -> Frame      the same as a pure function
"""

from rich.cells import cell_len
from textual.events import Click
from textual.message import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, CellWidget, Frame, head, mark_hidden, tail, write

Row = tuple[str, str]
SHORTEST_NOTE = 6


class ChoiceList(CellWidget):
    """The list as a widget; see the module's docstring. `selected` is None where nothing is.

    `none` is what stands there where there are no rows.
    """

    DEFAULT_CSS = """
    ChoiceList { width: 1fr; height: 1fr; }
    """

    class Chosen(Message):
        """The user clicked on row number `row`."""

        def __init__(self, source: "ChoiceList", row: int) -> None:
            super().__init__()
            self.source = source
            self.row = row

    def __init__(self, palette: Palette, *, id: str | None = None, none: str = "") -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._none = none
        self._rows: tuple[Row, ...] = ()
        self._selected: int | None = None

    def show(self, rows: tuple[Row, ...], selected: int | None) -> None:
        """Show `rows`, repainting only what changed."""
        if (rows, selected) != (self._rows, self._selected):
            self._rows, self._selected = rows, selected
            self.update_frame()

    def on_click(self, event: Click) -> None:
        row = event.y + _first(self._selected, self.content_size.height)
        if row < len(self._rows):
            self.post_message(self.Chosen(self, row))

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._rows, self._selected, width, height, self._palette, self._none)


def draw(
    rows: tuple[Row, ...], selected: int | None, width: int, height: int, palette: Palette, none: str = ""
) -> Frame:
    """`height` rows of `width` cells: a mark, the names, and beside them what there is room for of the notes.

    `none` is what stands there where there are no rows.
    """
    canvas = [[BLANK] * width for _ in range(height)]
    if not rows and canvas:
        write(canvas[0], 2, none, palette.dim, width, palette.ascii_only)
    longest = max((cell_len(name) for name, _ in rows), default=0)
    room = min(longest, width - 2)
    first = _first(selected, height)
    for position, cells in zip(range(first, len(rows)), canvas, strict=False):
        name, note = rows[position]
        style = palette.selected if position == selected else palette.text
        if position == selected:
            write(cells, 0, palette.glyphs.signs["selected"], palette.selected, width)
        write(cells, 2, tail(name, room, palette.ascii_only), style, width, palette.ascii_only)
        # The last column is the sign's. A few letters of a note say nothing.
        free = width - room - 5
        note = head(note, free, palette.ascii_only) if free >= min(cell_len(note), SHORTEST_NOTE) else ""
        write(cells, room + 4, note, palette.dim, width, palette.ascii_only)
    mark_hidden(canvas, first > 0, first + height < len(rows), palette)
    return tuple(tuple(cells) for cells in canvas)


def _first(selected: int | None, height: int) -> int:
    """The first visible row: as few as possible are scrolled away so that the selected one is seen."""
    return max((selected or 0) - (height - 1), 0)
