"""Projections × layers, filling in while they are measured: each cell is a pair of consecutive layers.

matrix = LayerMatrix(palette)      matrix.show(LayerMatrixData(layers, rows, selected))
MatrixRow(label, side, cells, done, planned, mean)     MatrixCell(value, chance, state)
LayerMatrix.Chosen(row, column)                        the user clicked on a cell
draw(data, width, height, palette) -> Frame            the same as a pure function
"""

from dataclasses import dataclass
from typing import Literal

from geocont.events import Status
from rich.cells import cell_len
from textual.events import Click
from textual.message import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, tail, write
from geocont_tui.widgets.shades import legend, mark, shade, with_cursor

# A mark for the selected row before the label, the label at most, the side after it.
MARK = 1
LABEL = 24
TICK = 5


@dataclass(frozen=True)
class MatrixCell:
    """The pair that begins with a layer.

    `state` is what is known of it: "absent" (the row has no such pair), "unread", "half" (one of the two layers is
    measured), or its status; `value` is its |cos|, None where it has none.
    """

    state: Literal["absent", "unread", "half"] | Status
    value: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class MatrixRow:
    """One projection: `side` is the side shown, `cells` run along the layers of the data."""

    label: str
    side: str
    is_residual: bool
    cells: tuple[MatrixCell, ...]
    done: int
    planned: int
    mean: float | None


@dataclass(frozen=True)
class LayerMatrixData:
    """What the matrix shows; `selected` is a (row, column), both counted from 0."""

    layers: tuple[int, ...] = ()
    rows: tuple[MatrixRow, ...] = ()
    selected: tuple[int, int] = (0, 0)


class LayerMatrix(CellWidget):
    """The matrix as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    LayerMatrix { width: 1fr; height: 1fr; }
    """

    class Chosen(Message):
        """The user clicked on the cell in `row` and `column`."""

        def __init__(self, row: int, column: int) -> None:
            super().__init__()
            self.row = row
            self.column = column

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = LayerMatrixData()

    def show(self, data: LayerMatrixData) -> None:
        """Show `data`, repainting only the cells that change."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)

    def on_click(self, event: Click) -> None:
        layout = _layout(self._data, self.content_size.width, self.content_size.height)
        row = event.y - 1 + layout.first_row
        column = (event.x - layout.start) // layout.cell + layout.first_column
        if event.y >= 1 and row < len(self._data.rows) and event.x >= layout.start:
            self.post_message(self.Chosen(row, min(column, len(self._data.layers) - 1)))


@dataclass(frozen=True)
class _Layout:
    """Where what is: the cells begin at column `start` of the screen and are `cell` wide."""

    label: int
    start: int
    cell: int
    columns: int
    first_column: int
    first_row: int
    has_mean: bool


def _layout(data: LayerMatrixData, width: int, height: int) -> _Layout:
    label = min(max((cell_len(row.label) for row in data.rows), default=0), LABEL)
    start = MARK + label + 3
    count = max(len(data.layers), 1)
    tail = 1 + max((len(_count(row)) for row in data.rows), default=0)
    has_mean = width - start - tail - 6 >= count
    room = max(width - start - tail - (6 if has_mean else 0), 1)
    cell = 2 if room >= 2 * count else 1
    columns = min(room // cell, count)
    row, column = data.selected
    return _Layout(
        label=label,
        start=start,
        cell=cell,
        columns=columns,
        first_column=min(max(column - columns // 2, 0), count - columns),
        first_row=min(max(row - (height - 2), 0), max(len(data.rows) - 1, 0)),
        has_mean=has_mean,
    )


def _count(row: MatrixRow) -> str:
    return f"{row.done}/{row.planned}"


def draw(data: LayerMatrixData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells: the numbers of the layers, the rows around the selected one, the legend."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    if not data.rows:
        write(canvas[0], 0, "nothing is planned yet", palette.dim, width)
        return tuple(tuple(cells) for cells in canvas)
    layout = _layout(data, width, height)
    _draw_header(canvas[0], data, layout, height, palette)
    for position, cells in zip(range(layout.first_row, len(data.rows)), canvas[1:], strict=False):
        _draw_row(cells, data, position, layout, palette)
    if height > len(data.rows) + 1:
        write(canvas[-1], MARK, legend(palette), palette.dim, width)
    return tuple(tuple(cells) for cells in canvas)


def _draw_header(cells: list[Cell], data: LayerMatrixData, layout: _Layout, height: int, palette: Palette) -> None:
    end = layout.start + layout.columns * layout.cell
    every = -(-TICK // layout.cell)
    write(cells, MARK, "layer", palette.dim, layout.start)
    shown = data.layers[layout.first_column : layout.first_column + layout.columns]
    is_cut = len(shown) < len(data.layers)
    for position, layer in enumerate(shown):
        x = layout.start + position * layout.cell
        if position % every == 0 and (not is_cut or x + len(str(layer)) < end):
            write(cells, x, str(layer), palette.dim, len(cells))
    hidden = [f"{layout.first_column + layout.columns} of {len(data.layers)} layers"] * is_cut
    last = min(layout.first_row + height - 1, len(data.rows))
    if last - layout.first_row < len(data.rows):
        hidden.append(f"rows {layout.first_row + 1}-{last} of {len(data.rows)}")
    room = len(cells) - end
    text = next((text for text in (", ".join(hidden), f"of {len(data.layers)}" * is_cut) if len(text) <= room), "")
    if text:
        write(cells, len(cells) - len(text), text, palette.dim, len(cells))
    elif layout.has_mean:
        text = "pairs".rjust(max(len(_count(row)) for row in data.rows)) + "  mean"
        write(cells, end + 1, text, palette.dim, len(cells))


def _draw_row(cells: list[Cell], data: LayerMatrixData, position: int, layout: _Layout, palette: Palette) -> None:
    row, (selected_row, selected_column) = data.rows[position], data.selected
    is_selected = position == selected_row
    if is_selected:
        write(cells, 0, palette.glyphs.signs["selected"], palette.selected, MARK)
    style = palette.selected if is_selected else palette.text
    write(
        cells,
        MARK,
        tail(row.label, layout.label, palette.ascii_only),
        style,
        MARK + layout.label,
        palette.ascii_only,
    )
    side = f"{row.side}{'*' if row.is_residual else ' '}"
    write(cells, MARK + layout.label + 1, side, palette.text if row.is_residual else palette.dim, layout.start)
    for column in range(layout.columns):
        place = layout.first_column + column
        character, cell_style = _character(row.cells[place], palette, row.side)
        shown = [(character, cell_style)] * layout.cell
        if is_selected and place == selected_column:
            shown = with_cursor(shown, palette)
        x = layout.start + column * layout.cell
        cells[x : x + layout.cell] = shown[: max(len(cells) - x, 0)]
    x = layout.start + layout.columns * layout.cell + 1
    width = max(len(_count(each)) for each in data.rows)
    x = write(cells, x, _count(row).rjust(width), palette.dim, len(cells))
    if layout.has_mean:
        mean = "   n/a" if row.mean is None else f"  {row.mean:.2f}"
        write(cells, x, mean, palette.text, len(cells))


def _character(cell: MatrixCell, palette: Palette, side: str) -> Cell:
    if cell.state == "absent":
        return " ", palette.dim
    if cell.state == "unread":
        return "_", palette.dim
    if cell.state == "half":
        return ">" if palette.ascii_only else "›", palette.selected
    if cell.value is None:
        return mark("shape_mismatch" if cell.state == "ok" else cell.state, palette)
    return shade(cell.value, cell.chance, palette, 0 if side == "v" else 1)
