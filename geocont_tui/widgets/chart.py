"""Curves over a fixed range, drawn with plotext: the trajectory chart.

    chart = Chart(palette, id=None, classes=None)      a Textual widget
    chart.show(ChartData(curves, x_limits, y_limits=(0, 1), log_x=False, levels=()))
    chart.set_palette(palette)
    Curve(name, index, x, y, low=None, high=None)       index chooses hue and marker; low and high are the seeds' band
    Level(y, label)                                     a dashed horizontal line, such as chance
    draw(data, width, height, palette) -> Frame         the same as a pure function

Choices made here:
- plotext 6.1 aborts the whole process on NaN, inf and points far outside its limits. So nothing reaches it before it is
  finite, inside the limits and thinned to the columns: `_rasterize` takes the unit square and refuses all else.
- Each curve has a plotext canvas of its own and the canvases are merged here. That keeps the owner of every cell known
  (hence our colours, in any colour mode) and lets a curve that did not change come from the cache.
- Names stand in a margin at the height of their line's end, not in a legend that covers the lines.
- plotext has one global figure: only `_rasterize` touches it, on the UI thread.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotext
from rich.cells import cell_len

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, write

NARROW = 50
# In a narrow chart names of so few cells, as those of projections, leave the curves enough room.
NAMED, SHORT = 30, 5
MARK_EVERY = 12

# Bits of the dots of a braille character: 4 rows × 2 columns.
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True)
class Curve:
    """One curve: y over x in ascending x. None and non-finite values split the line.

    `low` and `high`, of the length of x, are drawn as a dotted band behind the curves. The line of a faint curve is
    dim, its mark and name are not.
    """

    name: str
    index: int
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    is_faint: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line with a label."""

    y: float
    label: str = ""


@dataclass(frozen=True)
class ChartData:
    """What a chart shows. Later curves lie over earlier ones.

    y outside `y_limits` is drawn at the border; x outside `x_limits` is cut. `log_x` is log10(x), or log10(1 + x) when
    the range holds 0, so that step 0 keeps its place; the ticks stand where their numbers are.
    """

    curves: tuple[Curve, ...]
    x_limits: tuple[float, float]
    y_limits: tuple[float, float] = (0.0, 1.0)
    log_x: bool = False
    levels: tuple[Level, ...] = ()


# Points (u, v) of the unit square that one line joins.
Segment = list[tuple[float, float]]
# Row of a label, index of its curve (None: a level), name.
_End = tuple[int, int | None, str]


class Chart(CellWidget):
    """The chart as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    Chart { width: 1fr; height: 1fr; }
    """

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._data = ChartData((), (0.0, 1.0))

    def show(self, data: ChartData) -> None:
        """Show `data`, repainting only the cells that change."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def draw(data: ChartData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells; any size from 0×0 up, any values."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    scale = _Scale(data)
    rows = height - 2 if height >= 5 else height
    y_ticks = _ticks(*scale.y_limits, rows // 3 + 1) if width >= 20 else []
    y_labels = _tick_labels(y_ticks)
    left = max((len(label) for label in y_labels), default=-1) + 1
    labels = [f"{palette.marker(curve.index)} {curve.name}" for curve in data.curves]
    levels = [level for level in data.levels if scale.y_limits[0] <= level.y <= scale.y_limits[1]]
    labels += [f"{palette.glyphs.dash} {level.label}" for level in levels if level.label]
    right = 0
    has_names = width >= NARROW or (width >= NAMED and all(cell_len(curve.name) <= SHORT for curve in data.curves))
    if has_names and width < NARROW:
        # Levels are named on their lines.
        labels = labels[: len(data.curves)]
    if has_names:
        right = min(max((cell_len(label) + 1 for label in labels), default=0), width * 3 // 10)
    elif width >= 12 and data.curves:
        right = 2
    columns = width - left - right
    if columns <= 0:
        left, right, columns = 0, 0, width

    plot = _Plot(columns, rows, palette)
    paths = [(curve, _path(curve.x, curve.y, scale, columns)) for curve in data.curves]
    drawn = [_Drawn(curve, path[-1][-1], columns, rows, plot.lines(curve.index, path)) for curve, path in paths if path]
    for curve in data.curves:
        plot.add_band(curve, scale)
    for level in levels:
        plot.add_level(scale.v(level.y))
    for line in drawn:
        plot.add_curve(line)
    indices = {curve.index for curve in data.curves}
    hues_repeat = len({index % len(palette.hues) for index in indices}) < len(indices)
    for line in drawn:
        plot.add_marks(line, along=hues_repeat)
    for row, cells in enumerate(plot.cells):
        canvas[row][left : left + columns] = cells

    if left:
        _draw_y_axis(canvas, left - 1, rows, scale, y_ticks, y_labels, palette)
    if rows < height:
        _draw_x_axis(canvas, left, columns, rows, scale, palette)
    ends: list[_End] = [(line.end[0], line.curve.index, line.curve.name) for line in drawn]
    references: list[_End] = [
        (_cell(scale.v(level.y), rows, upwards=True), None, level.label) for level in levels if level.label
    ]
    if width >= NARROW:
        _draw_end_labels(canvas, left + columns + 1, rows, ends + references, palette)
    else:
        if right:
            named = ends if has_names else [(row, index, "") for row, index, _ in ends]
            _draw_end_labels(canvas, left + columns + 1, rows, named, palette)
        for row, _, label in references:
            _draw_level_label(canvas, left, columns, row, rows, label, palette)
    return tuple(tuple(cells) for cells in canvas)


class _Scale:
    """From data to the unit square: u to the right, v upwards."""

    def __init__(self, data: ChartData) -> None:
        self.y_limits = _usable(data.y_limits)
        limits = _usable(data.x_limits)
        self._log: Callable[[float], float] | None = None
        self.x_limits = self._low, self._high = limits
        if data.log_x and limits[1] > 0:
            logarithm = _log_one_plus if limits[0] <= 0 else math.log10
            low, high = logarithm(max(limits[0], 0.0)), logarithm(limits[1])
            if high > low:
                self._log = logarithm
                self.x_limits = max(limits[0], 0.0), limits[1]
                self._low, self._high = low, high

    @property
    def is_log(self) -> bool:
        return self._log is not None

    def u(self, x: float) -> float | None:
        """Place of x, 0…1 inside the limits; None where the logarithm does not exist."""
        if self._log is not None:
            if x < 0 or (x == 0 and self._log is math.log10):
                return None
            x = self._log(x)
        # Far outside is outside: a bound keeps the interpolation at the border finite.
        return min(max((x - self._low) / (self._high - self._low), -1e6), 1e6)

    def v(self, y: float) -> float:
        """Height of a finite y, clipped to 0…1."""
        low, high = self.y_limits
        return min(max((min(max(y, low), high) - low) / (high - low), 0.0), 1.0)


def _log_one_plus(x: float) -> float:
    return math.log10(1 + x)


def _usable(limits: tuple[float, float]) -> tuple[float, float]:
    """The limits if they span a range in which floats can be divided; else a range around them, or 0…1."""
    low, high = limits
    if not (abs(low) < 1e300 and abs(high) < 1e300):
        return 0.0, 1.0
    if high - low > 1e-300:
        return low, high
    return (low - 0.5, low + 0.5) if abs(low) < 1e12 else (0.0, 1.0)


def _cell(place: float, cells: int, upwards: bool = False) -> int:
    """The cell that plotext puts `place` (0…1) into: 0 is the centre of the first cell, 1 the centre of the last."""
    cell = min(int(place * (cells - 1) + 0.5), cells - 1)
    return cells - 1 - cell if upwards else cell


def _path(x: Sequence[float], y: Sequence[float | None], scale: _Scale, columns: int) -> list[Segment]:
    """The visible line in the unit square: split where a value is missing, cut at the x limits, thinned."""
    segments: list[Segment] = []
    segment: Segment | None = None
    previous: tuple[float, float] | None = None
    for x_value, y_value in zip(x, y, strict=False):
        u = None
        if x_value is not None and y_value is not None and math.isfinite(x_value) and math.isfinite(y_value):
            u = scale.u(x_value)
        if u is None or y_value is None:
            segment, previous = None, None
            continue
        point = (u, scale.v(y_value))
        inside = 0 <= u <= 1
        entry, leave = None, None
        if previous is not None and not (inside and segment is not None):
            entry, leave = _crossings(previous, point)
        if entry is not None or (inside and segment is None):
            segment = [] if entry is None else [entry]
            segments.append(segment)
        if inside and segment is not None:
            segment.append(point)
        elif not inside:
            if leave is not None and segment is not None:
                segment.append(leave)
            segment = None
        previous = point
    if sum(map(len, segments)) > 2 * columns:
        segments = [_thin(segment, columns) for segment in _join_invisible_gaps(segments, columns)]
    return segments


def _crossings(
    a: tuple[float, float], b: tuple[float, float]
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Where the line from a to b enters 0 ≤ u ≤ 1 and where it leaves; None if a (or b) is inside or it never does."""

    def at(u: float) -> tuple[float, float]:
        return u, min(max(a[1] + (b[1] - a[1]) * (u - a[0]) / (b[0] - a[0]), 0.0), 1.0)

    if max(a[0], b[0]) < 0 or min(a[0], b[0]) > 1:
        return None, None
    entry = None if 0 <= a[0] <= 1 else at(0.0 if a[0] < 0 else 1.0)
    leave = None if 0 <= b[0] <= 1 else at(0.0 if b[0] < 0 else 1.0)
    return entry, leave


def _join_invisible_gaps(segments: list[Segment], columns: int) -> list[Segment]:
    """Join segments whose gap is narrower than a column: it cannot be seen, and many pieces are slow to draw."""
    joined: list[Segment] = []
    for segment in segments:
        if joined and _cell(joined[-1][-1][0], columns) == _cell(segment[0][0], columns):
            joined[-1] += segment
        else:
            joined.append(list(segment))
    return joined


def _thin(segment: Segment, columns: int) -> Segment:
    """At most two points a column, its lowest and its highest, so that no spike is lost; first and last are kept."""
    kept = {0, len(segment) - 1}
    for _, group in itertools.groupby(range(len(segment)), key=lambda i: _cell(segment[i][0], columns)):
        in_column = list(group)
        kept.add(min(in_column, key=lambda i: segment[i][1]))
        kept.add(max(in_column, key=lambda i: segment[i][1]))
    return [segment[i] for i in sorted(kept)]


@functools.lru_cache(maxsize=128)
def _rasterize(
    u: tuple[float, ...], v: tuple[float, ...], breaks: tuple[int, ...], columns: int, rows: int, marker: str
) -> tuple[str, ...]:
    """Draw one line with plotext: `rows` strings of `columns` characters; no line leads to the points in `breaks`.

    Raises:
        ValueError: a point outside the unit square, which plotext could answer by ending the process.
    """
    if not all(0.0 <= place <= 1.0 for place in (*u, *v)):
        raise ValueError("a point outside the unit square must not reach plotext")
    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear.all()
    figure.theme("colorless")
    figure.canvas("default")
    figure.axes(False)
    figure.plot_size(columns, rows)
    signal = figure.signal(list(u), list(v), marker=marker)
    signal.lines()
    for index in breaks:
        signal.line(index, False)
    figure.draw(signal)
    for ruler in ("x", "y"):
        figure.ruler(ruler).lim(0, 1)
        figure.ruler(ruler).ticks([], [])
    text = figure.build().string(colorless=True)
    return tuple(line.ljust(columns)[:columns] for line in text.split("\n")[:rows])


class _Plot:
    """The plot area: `rows` × `columns` cells into which bands, levels, curves and marks are laid, in this order."""

    def __init__(self, columns: int, rows: int, palette: Palette) -> None:
        self.columns = columns
        self.rows = rows
        self._palette = palette
        self._dots: list[list[int]] = [[0] * columns for _ in range(rows)]
        self.cells: list[list[Cell]] = [[BLANK] * columns for _ in range(rows)]
        self._has_curve = [[False] * columns for _ in range(rows)]

    def add_band(self, curve: Curve, scale: _Scale) -> None:
        if curve.low is None or curve.high is None:
            return
        style = self._palette.band(curve.index)
        across, down = (1, 1) if self._palette.ascii_only else (2, 4)
        low = _heights(_path(curve.x, curve.low, scale, self.columns), self.columns * across)
        high = _heights(_path(curve.x, curve.high, scale, self.columns), self.columns * across)
        touched: set[tuple[int, int]] = set()
        for dot_x, (below, above) in enumerate(zip(low, high, strict=True)):
            if below is None or above is None:
                continue
            first = _dot(max(below, above), self.rows, down)
            last = _dot(min(below, above), self.rows, down)
            if self._palette.ascii_only:
                for row in range(first + (first + dot_x) % 2, last + 1, 2):
                    self.cells[row][dot_x] = (".", style)
                continue
            # Staggered: dot rows 0 and 2 of a cell in its left and right dot columns.
            offset, column = 2 * (dot_x % 2), dot_x // 2
            bit = DOTS[offset][dot_x % 2]
            for dot_y in range(first + (offset - first) % 4, last + 1, 4):
                self._dots[dot_y // 4][column] |= bit
                touched.add((dot_y // 4, column))
        for row, column in touched:
            self.cells[row][column] = (chr(BRAILLE + self._dots[row][column]), style)

    def add_level(self, height: float) -> None:
        row = _cell(height, self.rows, upwards=True)
        cell = (self._palette.glyphs.dash, self._palette.reference)
        for column in range(0, self.columns, 2 if self._palette.ascii_only else 1):
            self.cells[row][column] = cell

    def lines(self, index: int, segments: list[Segment]) -> tuple[str, ...]:
        """One curve alone, drawn by plotext."""
        points = [point for segment in segments for point in segment]
        breaks = tuple(itertools.accumulate(len(segment) for segment in segments[:-1]))
        marker = self._palette.marker(index) if self._palette.ascii_only else "braille"
        u, v = tuple(point[0] for point in points), tuple(point[1] for point in points)
        return _rasterize(u, v, breaks, self.columns, self.rows, marker)

    def add_curve(self, line: "_Drawn") -> None:
        palette, index = self._palette, line.curve.index
        style = palette.faint(index) if line.curve.is_faint else palette.curve(index)
        for row, text in enumerate(line.text):
            for column, character in enumerate(text):
                if character != " ":
                    self.cells[row][column] = (self._merged(row, column, character), style)
                    self._has_curve[row][column] = True

    def _merged(self, row: int, column: int, character: str) -> str:
        """The curve's dots joined with those of the curves below it, not with a band's."""
        before, _ = self.cells[row][column]
        if self._has_curve[row][column] and 0x2800 <= ord(before) <= 0x28FF and 0x2800 <= ord(character) <= 0x28FF:
            return chr(ord(before) | ord(character))
        return character

    def add_marks(self, line: "_Drawn", along: bool) -> None:
        """The curve's marker at its end, and every few columns when hues repeat."""
        index = line.curve.index
        cell = (self._palette.marker(index), self._palette.curve(index))
        if along:
            for column in range(3 * index % MARK_EVERY, self.columns, MARK_EVERY):
                row = next((row for row, text in enumerate(line.text) if text[column] != " "), None)
                if row is not None:
                    self.cells[row][column] = cell
        row, column = line.end
        self.cells[row][column] = cell


class _Drawn:
    """A curve as text, and the cell (row, column) where it ends."""

    def __init__(self, curve: Curve, last: tuple[float, float], columns: int, rows: int, text: tuple[str, ...]) -> None:
        self.curve = curve
        self.text = text
        row, column = _cell(last[1], rows, upwards=True), _cell(last[0], columns)
        # On the edge between two cells plotext may have rounded the other way.
        near = [other for other in (row, row - 1, row + 1) if 0 <= other < rows and text[other][column] != " "]
        self.end = (near[0] if near else row, column)


def _dot(height: float, rows: int, down: int) -> int:
    """Dot row, counted from the top, of a height 0…1 when a cell has `down` dot rows."""
    return rows * down - 1 - min(int((height * (rows - 1) + 0.5) * down), rows * down - 1)


def _heights(segments: list[Segment], dots: int) -> list[float | None]:
    """Height of a line above the centre of each dot column; None where there is no line."""
    heights: list[float | None] = [None] * dots
    for segment in segments:
        for (u0, v0), (u1, v1) in itertools.pairwise(segment):
            if u1 <= u0:
                continue
            first, last = math.ceil(u0 * dots - 0.5), math.floor(u1 * dots - 0.5)
            for dot in range(max(first, 0), min(last, dots - 1) + 1):
                share = min(max(((dot + 0.5) / dots - u0) / (u1 - u0), 0.0), 1.0)
                heights[dot] = v0 + (v1 - v0) * share
    return heights


STEPS = (1.0, 2.0, 2.5, 3.0, 5.0)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers inside low…high, at most max(most, 2); a step that ends exactly at `high` is preferred."""
    most = max(most, 2)
    exponent = math.floor(math.log10((high - low) / most))
    candidates: list[list[float]] = []
    for power in range(exponent, exponent + 3):
        for mantissa in STEPS:
            step = mantissa * 10.0**power
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if 1 <= last - first + 1 <= most:
                candidates.append([k * step for k in range(first, last + 1)])
    if not candidates:
        return []
    dense = len(candidates[0])
    tolerance = 1e-9 * (high - low)
    for ticks in candidates:
        if abs(ticks[-1] - high) <= tolerance and len(ticks) > max(dense / 2, 2):
            return ticks
    return candidates[0]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten inside low…high, and 0 if it is inside."""
    ticks = [0.0] if low <= 0 else []
    first = 0 if low <= 0 else math.ceil(math.log10(low) - 1e-9)
    powers = list(range(first, math.floor(math.log10(high) + 1e-9) + 1))
    stride = math.ceil(len(powers) / max(most - len(ticks), 1)) or 1
    return ticks + [10.0**power for power in powers[::stride]]


def _tick_labels(ticks: Sequence[float]) -> list[str]:
    """Short texts of one precision: 0 300 600 1.2k, or 0.00 0.25 0.50."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= 1000:
        return [_thousands(tick) for tick in ticks]
    if 0 < largest < 1e-3:
        return [f"{tick:.3g}" for tick in ticks]
    decimals = next((d for d in range(7) if all(abs(round(tick, d) - tick) < 1e-9 for tick in ticks)), 6)
    return [f"{tick:z.{decimals}f}" for tick in ticks]


def _thousands(value: float) -> str:
    size = abs(value)
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= size < 1e13:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}"


def _draw_y_axis(
    canvas: list[list[Cell]],
    column: int,
    rows: int,
    scale: _Scale,
    ticks: list[float],
    labels: list[str],
    palette: Palette,
) -> None:
    for row in range(rows):
        canvas[row][column] = (palette.glyphs.axis_vertical, palette.dim)
    for tick, label in zip(ticks, labels, strict=True):
        row = _cell(scale.v(tick), rows, upwards=True)
        canvas[row][column] = (palette.glyphs.tick_left, palette.dim)
        write(canvas[row], column - len(label), label, palette.dim, column)


def _draw_x_axis(canvas: list[list[Cell]], left: int, columns: int, rows: int, scale: _Scale, palette: Palette) -> None:
    line, text = canvas[rows], canvas[rows + 1]
    for column in range(left, left + columns):
        line[column] = (palette.glyphs.axis_horizontal, palette.dim)
    if left:
        line[left - 1] = (palette.glyphs.axis_corner, palette.dim)
    low, high = scale.x_limits
    ticks = _log_ticks(low, high, columns // 5) if scale.is_log else _ticks(low, high, columns // 8)
    labels = [_thousands(tick) for tick in ticks] if scale.is_log else _tick_labels(ticks)
    free_from = 0
    for tick, label in zip(ticks, labels, strict=True):
        u = scale.u(tick)
        if u is None or not 0 <= u <= 1:
            continue
        column = left + _cell(u, columns)
        line[column] = (palette.glyphs.tick_below, palette.dim)
        start = max(min(column - len(label) // 2, len(text) - len(label)), 0)
        if start >= free_from:
            free_from = write(text, start, label, palette.dim, len(text)) + 1


def _draw_end_labels(canvas: list[list[Cell]], x: int, rows: int, ends: list[_End], palette: Palette) -> None:
    """Write the names into the margin, moved apart where rows collide."""
    ordered = sorted(ends[:rows], key=lambda end: end[0])
    for row, (_, index, name) in zip(_apart([end[0] for end in ordered], rows), ordered, strict=True):
        style = palette.reference if index is None else palette.curve(index)
        sign = palette.glyphs.dash if index is None else palette.marker(index)
        after = write(canvas[row], x, sign, style, len(canvas[row]))
        if index is None and after + 1 + cell_len(name) > len(canvas[row]):
            # Half of what stands in brackets would say nothing.
            name = name.partition(" (")[0]
        write(canvas[row], after + 1, name, style, len(canvas[row]), palette.ascii_only)


def _apart(wanted: list[int], rows: int) -> list[int]:
    """Distinct rows near the wanted (ascending) ones; there are at most `rows` of them."""
    placed: list[int] = []
    for row in wanted:
        placed.append(max(row, placed[-1] + 1) if placed else row)
    limit = rows - 1
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - 1
    return placed


def _draw_level_label(
    canvas: list[list[Cell]], left: int, columns: int, row: int, rows: int, label: str, palette: Palette
) -> None:
    """Write the label on its line or a row beside it, as far right as no curve is in the way."""
    width = cell_len(label)
    for place in (row, row - 1, row + 1):
        if not 0 <= place < rows:
            continue
        for start in range(left + columns - width, left - 1, -1):
            cells = canvas[place][start : start + width]
            if all(cell == BLANK or cell[1] is palette.reference for cell in cells):
                write(canvas[place], start, label, palette.reference, left + columns, palette.ascii_only)
                return
