"""All pairs of layers of one projection as a square of shades.

    heat_map = HeatMap(palette)      heat_map.show(HeatMapData(layers, cosines, statuses, chance, selected, index))
    draw(data, width, height, palette) -> Frame      the same as a pure function

A value is a colour where there are enough of them, and two rows of the map then fit into one of the screen; else it is
a character of a ladder. Where there is still no room for every pair, a cell is the mean over a block of pairs; `block`
says of how many layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from geocont.events import Status
from rich.style import Style
from textual.message import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, write
from geocont_tui.widgets.shades import STEPS, mark, shade, with_cursor

FULL, UPPER, LOWER = "█▀▄"
GAP = 3


@dataclass(frozen=True)
class HeatMapData:
    """What the map shows.

    `cosines` are keyed by (lower layer, higher layer); a pair that is not there is not measured yet. `statuses` say
    why a pair that is None has no cosine. `selected` is a pair of layers, `index` chooses the hue.
    """

    layers: tuple[int, ...] = ()
    cosines: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    statuses: Mapping[tuple[int, int], Status] = field(default_factory=dict)
    chance: float | None = None
    selected: tuple[int, int] | None = None
    index: int = 0


class HeatMap(CellWidget):
    """The map as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    HeatMap { width: 1fr; height: 1fr; }
    """

    class Resized(Message):
        """The map has another size, so that `block` may have changed."""

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = HeatMapData()

    def show(self, data: HeatMapData) -> None:
        """Show `data`, repainting only the cells that change."""
        if data != self._data:
            self._data = data
            self.update_frame()

    @property
    def block(self) -> int:
        """How many layers a cell stands for, down and across; 1 while the map has no size."""
        width, height = self.content_size
        return layout(len(self._data.layers), width, height, has_halves(self._palette)).block if width and height else 1

    def on_resize(self) -> None:
        super().on_resize()
        self.post_message(self.Resized())

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


@dataclass(frozen=True)
class Layout:
    """A cell stands for `block` layers and takes `columns` of the screen, and a row of it or half of one."""

    block: int
    columns: int
    is_half: bool


def has_halves(palette: Palette) -> bool:
    """Whether two values fit into one character: that takes a colour for each value."""
    return bool(palette.ramp) and not palette.ascii_only


def layout(layers: int, width: int, height: int, halves: bool) -> Layout:
    """The layout with the smallest block; with whole rows rather than halves, where that makes no difference."""
    room = width - _label_width(layers)
    for block in range(1, max(layers, 1) + 1):
        count = -(-layers // block)
        if count <= height - 1 and count <= room:
            return Layout(block, 2 if 2 * count <= room else 1, is_half=False)
        if halves and -(-count // 2) <= height - 1 and count <= room:
            return Layout(block, 1, is_half=True)
    return Layout(max(layers, 1), 1, is_half=False)


def rows_for(layers: int, palette: Palette) -> int:
    """How many rows of the screen show every pair."""
    return (-(-layers // 2) if has_halves(palette) else layers) + 1


def _label_width(layers: int) -> int:
    return len(str(layers)) + 1


def draw(data: HeatMapData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells; any size from 0×0 up."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    if not data.layers:
        write(canvas[0], 0, "nothing is planned yet", palette.dim, width)
        return tuple(tuple(cells) for cells in canvas)
    chosen = layout(len(data.layers), width, height, has_halves(palette))
    label = max(_label_width(len(data.layers)), len(str(data.layers[-1])) + 1)
    blocks = [data.layers[start : start + chosen.block] for start in range(0, len(data.layers), chosen.block)]
    every = -(-(label + 1) // chosen.columns)
    for column, block in enumerate(blocks):
        if column % every == 0:
            write(canvas[0], label + column * chosen.columns, str(block[0]), palette.dim, width)
    lines = (
        list(zip(blocks[::2], [*blocks[1::2], ()], strict=False)) if chosen.is_half else [(each,) for each in blocks]
    )
    for line, cells in zip(lines, canvas[1:], strict=False):
        write(cells, 0, str(line[0][0]).rjust(label - 1), palette.dim, label)
        for column, across in enumerate(blocks):
            shown = [_one(data, line, across, palette)] * chosen.columns
            if data.selected is not None and data.selected[1] in across:
                down = next((block for block in line if data.selected[0] in block), None)
                if down is not None:
                    shown = with_cursor([_block(data, down, across, palette)] * chosen.columns, palette)
            for x, cell in enumerate(shown, label + column * chosen.columns):
                if x < width:
                    cells[x] = cell
    _draw_scale(canvas, label + len(blocks) * chosen.columns + GAP, palette)
    return tuple(tuple(cells) for cells in canvas)


def _one(data: HeatMapData, line: tuple[tuple[int, ...], ...], across: tuple[int, ...], palette: Palette) -> Cell:
    """A cell of the screen: a block of pairs, or the colours of two, one above the other."""
    cells = [_block(data, down, across, palette) for down in line]
    if len(cells) == 1:
        return cells[0]
    upper, lower = (style if character == FULL else None for character, style in cells)
    if upper is not None and lower is not None:
        return UPPER, upper + Style(bgcolor=lower.color)
    if upper is not None:
        return UPPER, upper
    if lower is not None:
        return LOWER, lower
    return cells[0] if cells[0][0] != "\\" else cells[1]


def _draw_scale(canvas: list[list[Cell]], x: int, palette: Palette) -> None:
    """What colours and characters mean, beside the map where there is room."""
    entries: list[tuple[Cell, str]] = []
    if palette.ramp:
        levels = (1.0, 0.8, 0.6, 0.4, 0.2)
        glyph = palette.glyphs.shades[-1]
        entries = [((glyph, palette.value(level)), f"{level:.1f}") for level in levels]
    else:
        steps = (f"{STEPS[-1]:.1f} and more", *(f"below {step:.1f}" for step in reversed(STEPS)))
        entries = [
            ((glyph, palette.curve(0)), text)
            for glyph, text in zip(reversed(palette.glyphs.shades[1:]), steps, strict=True)
        ]
    entries += [
        (shade(0.0, 1.0, palette), "below twice chance"),
        (mark("not_unique", palette), "not unique"),
        (mark("shape_mismatch", palette), "n/a"),
        (("_", palette.dim), "not measured yet"),
    ]
    widest = max(len(text) for _, text in entries) + 3
    if x + widest > len(canvas[0]):
        return
    for (cell, text), cells in zip(entries, canvas[1:], strict=False):
        cells[x : x + 2] = [cell, cell]
        write(cells, x + 3, text, palette.dim, len(cells))


def _block(data: HeatMapData, first: tuple[int, ...], second: tuple[int, ...], palette: Palette) -> Cell:
    pairs = {(min(one, other), max(one, other)) for one in first for other in second if one != other}
    if not pairs:
        return "\\", palette.dim
    known = [pair for pair in pairs if pair in data.cosines]
    values = [value for pair in known if (value := data.cosines[pair]) is not None]
    if values:
        character, style = shade(sum(values) / len(values), data.chance, palette, data.index)
        return (FULL, style) if has_halves(palette) and style in palette.ramp else (character, style)
    if known:
        statuses = [data.statuses.get(pair, "shape_mismatch") for pair in known]
        return mark(max(set(statuses), key=statuses.count), palette)
    return "_", palette.dim
