"""All pairs of layers of one projection as a square of shades.

    heat_map = HeatMap(palette)      heat_map.show(HeatMapData(layers, cosines, statuses, chance, selected, index))
    draw(data, width, height, palette) -> Frame      the same as a pure function

Where there is no room for every pair, a cell is the mean over a block of pairs; `block` says of how many layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from geocont.events import Status
from textual.message import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, write
from geocont_tui.widgets.shades import mark, shade


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
        return block_size(len(self._data.layers), width, height)[0] if width and height else 1

    def on_resize(self) -> None:
        super().on_resize()
        self.post_message(self.Resized())

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def block_size(layers: int, width: int, height: int) -> tuple[int, int]:
    """How many layers a cell stands for, and how many columns of the screen it takes."""
    label = _label_width(layers)
    for size in range(1, max(layers, 1) + 1):
        count = -(-layers // size)
        if count <= height - 1 and count <= width - label:
            return size, 2 if 2 * count <= width - label else 1
    return max(layers, 1), 1


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
    size, cell = block_size(len(data.layers), width, height)
    label = max(_label_width(len(data.layers)), len(str(data.layers[-1])) + 1)
    blocks = [data.layers[start : start + size] for start in range(0, len(data.layers), size)]
    every = -(-(label + 1) // cell)
    for column, block in enumerate(blocks):
        if column % every == 0:
            write(canvas[0], label + column * cell, str(block[0]), palette.dim, width)
    for first, cells in zip(blocks, canvas[1:], strict=False):
        write(cells, 0, str(first[0]).rjust(label - 1), palette.dim, label)
        for column, second in enumerate(blocks):
            character, style = _block(data, first, second, palette)
            if data.selected is not None and data.selected[0] in first and data.selected[1] in second:
                character, style = palette.glyphs.cursor, palette.selected
            x = label + column * cell
            write(cells, x, character * cell, style, width)
    return tuple(tuple(cells) for cells in canvas)


def _block(data: HeatMapData, first: tuple[int, ...], second: tuple[int, ...], palette: Palette) -> Cell:
    pairs = {(min(one, other), max(one, other)) for one in first for other in second if one != other}
    if not pairs:
        return "\\", palette.dim
    known = [pair for pair in pairs if pair in data.cosines]
    values = [value for pair in known if (value := data.cosines[pair]) is not None]
    if values:
        return shade(sum(values) / len(values), data.chance, palette, data.index)
    if known:
        statuses = [data.statuses.get(pair, "shape_mismatch") for pair in known]
        return mark(max(set(statuses), key=statuses.count), palette)
    return "_", palette.dim
