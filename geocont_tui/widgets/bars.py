"""Bars, one row a layer pair or a projection, with the chance level; and sparklines for tables.

    bars = Bars(palette, id=None, classes=None)         a Textual widget
    bars.show(BarsData(rows, chance=None, chance_limit=None, chance_label="", limit_label="", …))
    bars.scroll_rows(delta)    bars.set_palette(palette)
    BarRow(label, value, note="", unique=True)          value None: n/a, and `note` is the reason
    draw(data, width, height, palette, first=0) -> Frame    the same as a pure function
    sparkline(values, width, palette.glyphs, limits=(0, 1)) -> str

Eighth blocks give eight steps a cell. A row that does not change is not sent again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from textual.events import MouseScrollDown, MouseScrollUp

from geocont_tui.palette import Glyphs, Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, write


@dataclass(frozen=True)
class BarRow:
    """One bar. A value of None is n/a and `note` says why; `unique=False` hatches it (singular vector not unique).

    `chance` and `chance_limit` stand in for those of all bars where a row lives in a space of its own.
    """

    label: str
    value: float | None
    note: str = ""
    unique: bool = True
    chance: float | None = None
    chance_limit: float | None = None


@dataclass(frozen=True)
class BarsData:
    """What the bars show, on a scale of 0…maximum.

    `chance` is where random directions are, `chance_limit` the upper end of their 95 % band; the labels name them, the
    second where there is room. `index` chooses the hue.
    """

    rows: tuple[BarRow, ...]
    chance: float | None = None
    chance_limit: float | None = None
    chance_label: str = ""
    limit_label: str = ""
    maximum: float = 1.0
    index: int = 0


class Bars(CellWidget):
    """The bars as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    Bars { width: 1fr; height: 1fr; }
    """

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._data = BarsData(())
        self._first = 0

    def show(self, data: BarsData) -> None:
        """Show `data`, repainting only the rows that change."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def scroll_rows(self, delta: int) -> None:
        """Move the first visible row by `delta`, as far as there are rows."""
        hidden = len(self._data.rows) - visible_rows(self._data, self.content_size.height)
        first = min(max(self._first + delta, 0), max(hidden, 0))
        if first != self._first:
            self._first = first
            self.update_frame()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-1)

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette, self._first)


def draw(data: BarsData, width: int, height: int, palette: Palette, first: int = 0) -> Frame:
    """`height` rows of `width` cells, from row number `first` on; any size from 0×0 up, any values."""
    if width <= 0 or height <= 0:
        return ()
    count = visible_rows(data, height)
    first = min(max(first, 0), max(len(data.rows) - count, 0))
    visible = data.rows[first : first + count]
    layout = _layout(data, width)
    canvas = [[BLANK] * width for _ in range(height)]
    for cells, row in zip(canvas, visible, strict=False):
        _draw_row(cells, row, data, layout, palette)
    if count < height and (data.chance_label or count < len(data.rows)):
        _draw_footer(canvas[min(len(visible), height - 1)], data, layout, first, count, palette)
    return tuple(tuple(cells) for cells in canvas)


@dataclass(frozen=True)
class _Layout:
    """Columns of a row: label, bar, value, note; a width of 0 means the part is left out."""

    label: int
    bar_start: int
    bar: int
    value_start: int
    note_start: int


VALUE_WIDTH = 5


def _layout(data: BarsData, width: int) -> _Layout:
    label = min(max((cell_len(row.label) for row in data.rows), default=0), max(width // 3, 1))
    note = max((cell_len(row.note) + 2 for row in data.rows if _finite(row.value) is not None and row.note), default=0)
    note = min(note, width // 3) if width >= 40 else 0
    bar = width - label - 1 - VALUE_WIDTH - note
    if bar < 4:
        bar, note = 0, 0
    start = label + 1
    return _Layout(label, start, bar, start + bar, start + bar + VALUE_WIDTH)


def visible_rows(data: BarsData, height: int) -> int:
    """How many bars fit: a last line is kept for the chance level and for how many rows are hidden."""
    needs_footer = bool(data.chance_label) or len(data.rows) > height
    return max(min(len(data.rows), height - 1 if needs_footer and height > 1 else height), 0)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _draw_row(cells: list[Cell], row: BarRow, data: BarsData, layout: _Layout, palette: Palette) -> None:
    width, ascii_only = len(cells), palette.ascii_only
    write(cells, 0, row.label, palette.text, layout.label, ascii_only)
    value = _finite(row.value)
    if value is None or not row.unique:
        start = layout.bar_start
        if not row.unique:
            start = write(cells, start, palette.glyphs.hatch * 3, palette.dim, width) + 1
        reason = row.note or ("not unique" if not row.unique else "not finite" if row.value is not None else "")
        write(cells, start, f"n/a  {reason}".rstrip(), palette.dim, width, ascii_only)
        return
    if layout.bar:
        _draw_bar(cells, value, row, data, layout, palette)
    write(cells, layout.value_start, f" {value:z.2f}", palette.text, width)
    if layout.note_start < width:
        write(cells, layout.note_start, f" {row.note}", palette.dim, width, ascii_only)


def _draw_bar(cells: list[Cell], value: float, row: BarRow, data: BarsData, layout: _Layout, palette: Palette) -> None:
    chance = data.chance if row.chance is None else row.chance
    limit = data.chance_limit if row.chance is None else row.chance_limit
    style = palette.curve(data.index)
    blocks = palette.glyphs.blocks
    steps = len(blocks)
    length = round(_place(value, data.maximum) * layout.bar * steps)
    full, part = divmod(length, steps)
    bar = blocks[-1] * full + (blocks[part - 1] if part else "")
    write(cells, layout.bar_start, bar, style, layout.value_start)
    if _finite(limit) is not None:
        offset = _offset(limit, data, layout)
        if offset * steps >= length:
            cells[layout.bar_start + offset] = (palette.glyphs.chance, palette.dim)
    if _finite(chance) is not None:
        offset = _offset(chance, data, layout)
        over_bar = offset < full and not palette.ascii_only
        cells[layout.bar_start + offset] = (
            palette.glyphs.chance,
            style + Style(reverse=True) if over_bar else palette.reference,
        )


def _place(value: float | None, maximum: float) -> float:
    if value is None or not maximum > 0 or not math.isfinite(maximum):
        return 0.0
    return min(max(value / maximum, 0.0), 1.0)


def _offset(level: float | None, data: BarsData, layout: _Layout) -> int:
    return min(int(_place(level, data.maximum) * layout.bar), layout.bar - 1)


def _draw_footer(cells: list[Cell], data: BarsData, layout: _Layout, first: int, count: int, palette: Palette) -> None:
    """The chance level under its line, and at the right which rows are shown when not all are."""
    end = len(cells)
    total = len(data.rows)
    if count < total:
        arrows = (palette.glyphs.signs["up"] if first else "") + (
            palette.glyphs.signs["down"] if first + count < total else ""
        )
        more = f"{first + 1}-{first + count} of {total} {arrows}"
        if len(more) <= end:
            write(cells, end - len(more), more, palette.dim, end)
            end -= len(more) + 1
    if data.chance_label:
        text = f"{palette.glyphs.chance} {data.chance_label}"
        if data.limit_label and cell_len(f"{text}, {data.limit_label}") <= end:
            text = f"{text}, {data.limit_label}"
        start = layout.bar_start + (
            _offset(data.chance, data, layout) if layout.bar and _finite(data.chance) is not None else 0
        )
        start = max(min(start, end - cell_len(text)), 0)
        write(cells, start, text, palette.dim, end, palette.ascii_only)


def level_range(levels: Iterable[float]) -> str:
    """The levels of several bars as one number, or from the least to the greatest; "" for none."""
    texts = sorted({f"{level:.3f}" for level in levels}, key=float)
    return "-".join([texts[0], texts[-1]] if len(texts) > 1 else texts)


def sparkline(
    values: Sequence[float | None], width: int, glyphs: Glyphs, limits: tuple[float, float] = (0.0, 1.0)
) -> str:
    """`values` as a text of exactly `width` characters on a fixed scale; a missing value is a dot, not a low bar.

    More values than characters are averaged in groups; fewer leave the rest blank, because it has not happened yet.
    """
    if width <= 0:
        return ""
    ladder = glyphs.sparks
    low, high = limits
    count = min(width, len(values))
    text = ""
    for i in range(count):
        group = values[i * len(values) // count : (i + 1) * len(values) // count]
        finite = [value for value in group if value is not None and math.isfinite(value)]
        if not finite:
            text += glyphs.missing
            continue
        mean = sum(value / len(finite) for value in finite)
        share = (min(max(mean, low), high) - low) / (high - low)
        text += ladder[min(int(share * len(ladder)), len(ladder) - 1)]
    return text.ljust(width)
