"""The table of variants: one row each, as many columns as the width has room for.

table = RunTable(palette)      table.show(RunTableData(rows, selected))
VariantRow(index, summary, trend, is_hidden)
draw(data, width, height, palette) -> Frame      the same as a pure function
RunTable.Chosen(row)                             the user clicked on a row
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from textual.events import Click
from textual.message import Message

from geocont_tui.palette import Palette, Sign
from geocont_tui.state import Spread, Summary
from geocont_tui.widgets.bars import sparkline
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, write

# Selection mark, state mark, variant's marker, blank.
MARKS = 4
NAME = 17
NAMES = "variant"


@dataclass(frozen=True)
class VariantRow:
    """One variant: `index` chooses hue and marker, `trend` is the weight alignment that is followed, so far."""

    index: int
    summary: Summary
    trend: tuple[float | None, ...]
    is_hidden: bool = False


@dataclass(frozen=True)
class RunTableData:
    """What the table shows; `selected` is a position in `rows`. `is_text`: perplexity in place of accuracy.

    `residual_side`: the side that is marked with *, and comes first where there is no room for both.
    """

    rows: tuple[VariantRow, ...]
    selected: int = 0
    is_text: bool = False
    residual_side: Literal["v1", "u1"] | None = None


@dataclass(frozen=True)
class _Column:
    """A column; `rank` says which is left out first (the highest)."""

    header: str
    width: int
    rank: int
    text: Callable[[VariantRow, Palette], str]


def fraction(value: float | None, sign: bool = False) -> str:
    """A number around 0…1 in at most five cells: .93, -.21, 1.00; n/a for what does not exist."""
    if value is None or not math.isfinite(value):
        return "n/a"
    text = f"{value:+z.2f}" if sign else f"{value:z.2f}"
    if float(text) == 0:
        return ".00"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def number(value: float | None) -> str:
    """A number of any size in at most five cells."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if abs(value) < 9.995:
        return f"{value:z.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}" if abs(value) < 99999 else f"{value:.0e}"


def mean(found: Spread | None) -> float | None:
    """The mean of a spread that may not exist."""
    return None if found is None else found.mean


def _deviation(found: Spread | None) -> float | None:
    return None if found is None else found.std


def _percent(row: VariantRow) -> str:
    return f"{math.floor(100 * row.summary.step / row.summary.steps)}%"


def _accuracy(row: VariantRow) -> float | None:
    return mean(row.summary.test_accuracy or row.summary.accuracy)


_ACCURACY = _Column("acc", 4, 3, lambda row, _: fraction(_accuracy(row)))
_PERPLEXITY = _Column("ppl", 5, 3, lambda row, _: number(mean(row.summary.perplexity)))


def _columns(is_text: bool, residual_side: Literal["v1", "u1"] | None) -> tuple[_Column, ...]:
    """All columns in their order; the side that is followed has the spread over seeds, and is left out last."""
    ranks = {"v1": 6, "u1": 1} if residual_side == "u1" else {"v1": 1, "u1": 6}
    headers = {side: f"{side}*" if side == residual_side else side for side in ranks}
    v1 = _Column(headers["v1"], 4, ranks["v1"], lambda row, _: fraction(mean(row.summary.weight_v1)))
    u1 = _Column(headers["u1"], 4, ranks["u1"], lambda row, _: fraction(mean(row.summary.weight_u1)))
    v1_spread = _Column("±", 4, 8, lambda row, _: fraction(_deviation(row.summary.weight_v1)))
    u1_spread = _Column("±", 4, 8, lambda row, _: fraction(_deviation(row.summary.weight_u1)))
    return (
        _Column("step", 6, 9, lambda row, _: str(row.summary.step)),
        _Column("", 4, 5, lambda row, _: _percent(row)),
        _Column("loss", 5, 4, lambda row, _: number(mean(row.summary.loss))),
        _PERPLEXITY if is_text else _ACCURACY,
        *((v1, u1, u1_spread) if residual_side == "u1" else (v1, v1_spread, u1)),
        _Column("Δpeak", 5, 2, lambda row, _: fraction(row.summary.below_peak, sign=True)),
        _Column("trend", 6, 7, lambda row, palette: sparkline(row.trend, 6, palette.glyphs)),
    )


class RunTable(CellWidget):
    """The table as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    RunTable { width: 1fr; height: 1fr; }
    """

    class Chosen(Message):
        """The user clicked on row number `row`."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._data = RunTableData(())

    def show(self, data: RunTableData) -> None:
        """Show `data`, repainting only what changed."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def on_click(self, event: Click) -> None:
        row = event.y - 1 + _first(self._data, self.content_size.height)
        if event.y >= 1 and row < len(self._data.rows):
            self.post_message(self.Chosen(row))

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def draw(data: RunTableData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells: a header, then the rows around the selected one."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    longest = max((cell_len(row.summary.variant) for row in data.rows), default=0)
    columns = _chosen(width - MARKS - min(longest, NAME), _columns(data.is_text, data.residual_side))
    used = sum(column.width + 1 for column in columns)
    # The word above the names has what room is left, over a column without a header too.
    name_width = max(min(max(longest, len(NAMES)), width - MARKS - used), 0)
    free = columns[0].width if columns and not columns[0].header else 0
    write(canvas[0], MARKS, NAMES, palette.dim, MARKS + name_width + free)
    x = MARKS + name_width
    for column in columns:
        header = column.header.replace("Δ", "d").replace("±", "+-") if palette.ascii_only else column.header
        write(canvas[0], x + 1 + column.width - len(header), header, palette.dim, width)
        x += column.width + 1
    first = _first(data, height)
    for position, cells in zip(range(first, len(data.rows)), canvas[1:], strict=False):
        _draw_row(cells, data.rows[position], position == data.selected, name_width, columns, palette)
    return tuple(tuple(cells) for cells in canvas)


def _draw_row(
    cells: list[Cell],
    row: VariantRow,
    is_selected: bool,
    name_width: int,
    columns: list[_Column],
    palette: Palette,
) -> None:
    width, glyphs = len(cells), palette.glyphs
    is_diverged = row.summary.status.startswith("diverged")
    style = palette.dim if row.is_hidden else palette.selected if is_selected else palette.text
    if is_selected:
        write(cells, 0, glyphs.signs["selected"], palette.selected, width)
    state: Sign | None = "diverged" if is_diverged else "done" if row.summary.status == "done" else None
    if state is not None:
        write(cells, 1, glyphs.signs[state], palette.verdicts["contradicted"] if is_diverged else palette.dim, width)
    marker = glyphs.signs["waiting"] if row.is_hidden else palette.marker(row.index)
    write(cells, 2, marker, palette.dim if row.is_hidden else palette.curve(row.index), width)
    name = row.summary.variant
    if cell_len(name) > name_width:
        kept = ""
        for letter in name:
            if cell_len(kept + letter) > name_width - 1:
                break
            kept += letter
        name = kept + ("." if palette.ascii_only else "…")
    write(cells, MARKS, name, style, MARKS + name_width, palette.ascii_only)
    x = MARKS + name_width
    for column in columns:
        write(cells, x + 1, column.text(row, palette).rjust(column.width), style, x + 1 + column.width)
        x += column.width + 1
    if is_diverged:
        # The words matter more than the last numbers of a network that broke.
        room = width - MARKS - name_width
        words = f" {_diverged_words(row.summary.status, room - 1)}"
        write(cells, max(width - cell_len(words), MARKS + name_width), words, style, width)


def _diverged_words(status: str, room: int) -> str:
    """The longest way to say `diverged at step 57 (1 of 3)` that fits."""
    when, _, count = status.partition(" (")
    brief = when.replace(" at step ", " @")
    count = count.rstrip(")")
    some, _, all_of_them = count.partition(" of ")
    if some == all_of_them:
        count = ""
    if count:
        choices = [status, f"{brief} ({count})", f"diverged {count}", f"diverged {some}/{all_of_them}", "diverged"]
    else:
        choices = [when, brief, "diverged"]
    return next((choice for choice in choices if len(choice) <= room), "diverged"[: max(room, 0)])


def _chosen(room: int, columns: Sequence[_Column]) -> list[_Column]:
    """The columns that fit, the most telling first, in the order of the table."""
    chosen: list[_Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if column.width + 1 > room:
            break
        chosen.append(column)
        room -= column.width + 1
    return [column for column in columns if column in chosen]


def _first(data: RunTableData, height: int) -> int:
    """The first visible row: as few as possible are scrolled away so that the selected one is seen."""
    return max(data.selected - (height - 2), 0)
