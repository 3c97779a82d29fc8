"""The adjacent pairs as a table: sorted by a column, narrowed down by a filter, one row selected.

    table = PairTable(palette)      table.show(PairTableData(rows, selected, sort, reverse, total))
    sorted_rows(rows, sort, reverse)      matching(rows, words)      problem(words)
    PairTable.Chosen(row)                 the user clicked on a row
    draw(data, width, height, palette) -> Frame      the same as a pure function

A filter is words that a row must have in its name, layers or status, and comparisons such as `v1>.5` or `gap<0.1`.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.events import Click
from textual.message import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, mark_hidden, tail, write

MARK = 1
LABEL = 24


@dataclass(frozen=True)
class PairRow:
    """One adjacent pair. `key` is (stack, projection, lower layer, higher layer); `gram` of the residual side."""

    key: tuple[str, str, int, int]
    label: str
    order: int
    v1: float | None
    u1: float | None
    gram: float | None
    gap: float | None
    bound: float | None
    status: str
    note: str = ""

    @property
    def layers(self) -> str:
        return f"{self.key[2]}-{self.key[3]}"


@dataclass(frozen=True)
class PairTableData:
    """What the table shows: `rows` in their order, the selected one's key, the sorted column, all rows there are."""

    rows: tuple[PairRow, ...] = ()
    selected: tuple[str, str, int, int] | None = None
    sort: int = 0
    reverse: bool = False
    total: int = 0


@dataclass(frozen=True)
class _Column:
    """A column; `rank` says which is left out first (the highest), `value` what it is sorted by."""

    name: str
    header: str
    width: int
    rank: int
    text: Callable[[PairRow], str]
    value: Callable[[PairRow], float | None]


def cosine_text(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """A cosine with its digits, n/a for what does not exist."""
    if value is None or not math.isfinite(value):
        return "n/a"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    # A zero has no sign.
    return text if float(text) else f"{0:.{digits}f}"


def small(value: float | None) -> str:
    """A small number such as an error bound: 2e-4."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.0e}".replace("e-0", "e-")


def ratio(gap: float | None) -> str:
    """σ1/σ2 from the gap σ1/σ2 − 1."""
    if gap is None or not math.isfinite(gap):
        return "n/a"
    return f"{1 + gap:.3f}" if gap < 8.9995 else f"{1 + gap:.1f}" if gap < 998 else f"{1 + gap:.0e}"


COLUMNS = (
    _Column("projection", "proj", 0, 0, lambda row: row.label, lambda row: row.order),
    _Column("layers", "layers", 7, 1, lambda row: row.layers, lambda row: row.key[2]),
    _Column("v1", "v1", 6, 2, lambda row: cosine_text(row.v1), lambda row: row.v1),
    _Column("u1", "u1", 6, 3, lambda row: cosine_text(row.u1), lambda row: row.u1),
    _Column("gram", "gram", 6, 6, lambda row: cosine_text(row.gram, 3, sign=True), lambda row: row.gram),
    _Column("gap", "σ1/σ2", 6, 5, lambda row: ratio(row.gap), lambda row: row.gap),
    _Column("bound", "bound", 5, 7, lambda row: small(row.bound), lambda row: row.bound),
    _Column("status", "status", 13, 4, lambda row: row.status, lambda row: float(row.status != "ok")),
)
SORTS = tuple(column.name for column in COLUMNS)

_COMPARISON = re.compile(r"(v1|u1|gram|gap|bound|layer)(<=|>=|<|>|=)([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
}


def problem(words: str) -> str:
    """What is wrong with a filter, "" if nothing is: a comparison that is none."""
    for word in words.lower().split():
        if any(sign in word for sign in "<>") and not _COMPARISON.fullmatch(word):
            return f"{word}: compare v1, u1, gram, gap, bound or layer with a number, as in v1>.5"
    return ""


def matching(rows: Sequence[PairRow], words: str) -> tuple[PairRow, ...]:
    """The rows that every word of the filter fits. What does not exist compares with nothing."""
    return tuple(row for row in rows if all(_fits(row, word) for word in words.lower().split()))


def _fits(row: PairRow, word: str) -> bool:
    comparison = _COMPARISON.fullmatch(word)
    if comparison is None:
        return word in f"{row.label} {row.layers} {row.status} {row.note}".lower()
    name, sign, number = comparison.groups()
    if name == "layer":
        return any(_OPERATORS[sign](layer, float(number)) for layer in row.key[2:])
    value: float | None = getattr(row, name)
    return value is not None and _OPERATORS[sign](value, float(number))


def sorted_rows(rows: Sequence[PairRow], sort: int, reverse: bool) -> tuple[PairRow, ...]:
    """The rows by column number `sort`; what does not exist comes last either way, ties in the order of the plan."""
    value = COLUMNS[sort].value
    present = [row for row in rows if value(row) is not None]
    absent = [row for row in rows if value(row) is None]
    present.sort(key=lambda row: value(row) or 0.0, reverse=reverse)
    return (*present, *absent)


class PairTable(CellWidget):
    """The table as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    PairTable { width: 1fr; height: 1fr; }
    """

    class Chosen(Message):
        """The user clicked on a row."""

        def __init__(self, row: PairRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = PairTableData()

    def show(self, data: PairTableData) -> None:
        """Show `data`, repainting only what changed."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def on_click(self, event: Click) -> None:
        row = event.y - 1 + _first(self._data, self.content_size.height)
        if event.y >= 1 and row < len(self._data.rows):
            self.post_message(self.Chosen(self._data.rows[row]))

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def draw(data: PairTableData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells: a header, then the rows around the selected one."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    if not data.rows:
        text = "no pair fits the filter" if data.total else "nothing is measured yet"
        write(canvas[0], MARK, text, palette.dim, width)
        return tuple(tuple(cells) for cells in canvas)
    label = min(max(5, *(cell_len(row.label) for row in data.rows)), LABEL, max(width // 3, 5))
    # The last column is for the sign of a list that goes on.
    columns = _chosen(width - MARK - label - 1, data.sort)
    arrow = palette.glyphs.signs["down" if data.reverse else "up"]
    header = f"{arrow}{COLUMNS[0].header}" if data.sort == 0 else COLUMNS[0].header
    write(canvas[0], MARK, header, palette.selected if data.sort == 0 else palette.dim, MARK + label)
    x = MARK + label
    for column in columns:
        header = column.header.replace("σ", "s") if palette.ascii_only else column.header
        is_sorted = column is COLUMNS[data.sort]
        text = f"{arrow}{header}" if is_sorted else header
        write(canvas[0], x + 1, _placed(text, column), palette.selected if is_sorted else palette.dim, width)
        x += column.width + 1
    first = _first(data, height)
    for position, cells in zip(range(first, len(data.rows)), canvas[1:], strict=False):
        _draw_row(cells, data.rows[position], data, label, columns, palette)
    mark_hidden(canvas[1:], first > 0, first + height - 1 < len(data.rows), palette)
    return tuple(tuple(cells) for cells in canvas)


def _draw_row(
    cells: list[Cell], row: PairRow, data: PairTableData, label: int, columns: list[_Column], palette: Palette
) -> None:
    is_selected = row.key == data.selected
    style = palette.selected if is_selected else palette.text if row.status == "ok" else palette.dim
    if is_selected:
        write(cells, 0, palette.glyphs.signs["selected"], palette.selected, MARK)
    write(cells, MARK, tail(row.label, label, palette.ascii_only), style, MARK + label, palette.ascii_only)
    x = MARK + label
    for column in columns:
        write(cells, x + 1, _placed(column.text(row), column), style, x + 1 + column.width, palette.ascii_only)
        x += column.width + 1


def _placed(text: str, column: _Column) -> str:
    return text.ljust(column.width) if column.name == "status" else text.rjust(column.width)


def _chosen(room: int, sort: int) -> list[_Column]:
    """The columns that fit, the sorted one and then the most telling first, in the order of the table."""
    chosen: list[_Column] = []
    for column in sorted(COLUMNS[1:], key=lambda column: (column is not COLUMNS[sort], column.rank)):
        if column.width + 1 > room:
            continue
        chosen.append(column)
        room -= column.width + 1
    return [column for column in COLUMNS[1:] if column in chosen]


def _first(data: PairTableData, height: int) -> int:
    """The first visible row: as few as possible are scrolled away so that the selected one is seen."""
    position = next((place for place, row in enumerate(data.rows) if row.key == data.selected), 0)
    return min(max(position - (height - 1) // 2, 0), max(len(data.rows) - (height - 1), 0))
