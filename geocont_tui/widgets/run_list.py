"""The runs of the home screen: one row each, as many columns as the width has room for.

runs = RunList(palette)      runs.show(RunListData(rows, selected))
RunList.Chosen(row)          the user clicked on a row
draw(data, width, height, palette) -> Frame      the same as a pure function
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from textual.events import Click
from textual.message import Message

from geocont_tui.home_state import HomeRun
from geocont_tui.palette import Palette, Sign
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, head, mark_hidden, tail, write

# Selection mark, state mark, blank.
MARKS = 3
NAME, LONGEST_NAME = 14, 40
HEADLINE = 14
BAR = 5
SIGNS: dict[str, Sign] = {
    "live": "running",
    "paused": "paused",
    "done": "done",
    "stopped": "stopped",
    "interrupted": "stopped",
    "failed": "failed",
    "unreadable": "failed",
}


@dataclass(frozen=True)
class RunListData:
    """What the list shows; `selected` is a position in `rows`, which has a mark where keys go to the list."""

    rows: tuple[HomeRun, ...] = ()
    selected: int = 0
    is_marked: bool = True


@dataclass(frozen=True)
class _Column:
    """A column; `rank` says which is left out first (the highest)."""

    header: str
    width: int
    rank: int
    text: Callable[[HomeRun, Palette], str]


def age(seconds: float) -> str:
    """A duration in at most four cells: 47s, 12m, 3h, 5d, 12w."""
    for unit, length, below in (("s", 1, 60), ("m", 60, 60), ("h", 3600, 24), ("d", 86400, 100)):
        if seconds < length * below:
            return f"{math.floor(seconds / length)}{unit}"
    return f"{min(math.floor(seconds / 604800), 999)}w"


def brief_size(count: int) -> str:
    """Bytes in at most six cells: 4.1 MB, 82 kB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{count} B"


def _progress(run: HomeRun, palette: Palette) -> str:
    fraction = run.summary.fraction
    if fraction is None:
        return "n/a"
    blocks = palette.glyphs.blocks
    # What has begun is not nothing.
    eighths = max(int(min(fraction, 1.0) * BAR * len(blocks)), 1 if fraction else 0)
    full, part = divmod(eighths, len(blocks))
    bar = blocks[-1] * full + (blocks[part - 1] if part else "")
    return f"{bar:<{BAR}} {math.floor(100 * min(fraction, 1.0)):3d}%"


_KINDS = {"ablation": "ablate", "analysis": "analyze"}
COLUMNS = (
    _Column("kind", 7, 4, lambda run, _: _KINDS.get(run.summary.kind or "", "n/a")),
    _Column("progress", BAR + 5, 1, _progress),
    _Column("age", 4, 2, lambda run, _: age(run.age)),
    _Column("size", 6, 3, lambda run, _: brief_size(run.summary.size)),
)
STATE = 11


class RunList(CellWidget):
    """The list as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    RunList { width: 1fr; height: 1fr; }
    """

    class Chosen(Message):
        """The user clicked on row number `row`."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = RunListData()

    def show(self, data: RunListData) -> None:
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


def draw(data: RunListData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells: a header, then the rows around the selected one."""
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    longest = max((cell_len(run.title) for run in data.rows), default=0)
    columns = _chosen(width - MARKS - STATE - 1 - NAME - HEADLINE)
    left = width - MARKS - STATE - 1 - sum(column.width + 1 for column in columns)
    name_width = max(min(longest, LONGEST_NAME, max(NAME, left // 2)), 4)
    header = canvas[0]
    write(header, MARKS, "state", palette.dim, width)
    write(header, MARKS + STATE + 1, "name", palette.dim, width)
    x = MARKS + STATE + 1 + name_width
    for column in columns:
        write(header, x + 1, _placed(column.header, column), palette.dim, width)
        x += column.width + 1
    explanation = "headline: v1, or cosine on the residual side"
    write(header, x + 2, explanation if width - x > len(explanation) + 1 else "headline", palette.dim, width)
    first = _first(data, height)
    for position, cells in zip(range(first, len(data.rows)), canvas[1:], strict=False):
        is_selected = data.is_marked and position == data.selected
        _draw_row(cells, data.rows[position], is_selected, name_width, columns, palette)
    mark_hidden(canvas[1:], first > 0, first + height - 1 < len(data.rows), palette)
    return tuple(tuple(cells) for cells in canvas)


def _draw_row(
    cells: list[Cell], run: HomeRun, is_selected: bool, name_width: int, columns: list[_Column], palette: Palette
) -> None:
    width, ascii_only = len(cells), palette.ascii_only
    style = palette.selected if is_selected else palette.text
    if is_selected:
        write(cells, 0, palette.glyphs.signs["selected"], palette.selected, width)
    sign = SIGNS.get(run.state, "waiting")
    mark = palette.verdicts["supported" if run.is_live else "contradicted" if sign == "failed" else "not yet"]
    write(cells, 1, palette.glyphs.signs[sign], mark, width)
    write(cells, MARKS, run.state, style, MARKS + STATE)
    x = MARKS + STATE + 1
    write(cells, x, tail(run.title, name_width, ascii_only), style, x + name_width, ascii_only)
    x += name_width
    for column in columns:
        write(cells, x + 1, _placed(column.text(run, palette), column), style, x + 1 + column.width)
        x += column.width + 1
    # The last column is the sign's.
    write(cells, x + 2, _fitting(run.headline, width - x - 3, ascii_only), palette.dim, width, ascii_only)


def _placed(text: str, column: _Column) -> str:
    return text.ljust(column.width) if column.header == "kind" else text.rjust(column.width)


def _fitting(pieces: tuple[str, ...], room: int, ascii_only: bool) -> str:
    """As many pieces as fit; the first one is cut rather than left out."""
    text = ""
    for piece in pieces:
        longer = f"{text}  {piece}" if text else piece
        if text and cell_len(longer) > room:
            break
        text = longer
    return head(text, room, ascii_only)


def _chosen(room: int) -> list[_Column]:
    """The columns that fit, the most telling first, in the order of the table."""
    chosen: list[_Column] = []
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.width + 1 > room:
            break
        chosen.append(column)
        room -= column.width + 1
    return [column for column in COLUMNS if column in chosen]


def _first(data: RunListData, height: int) -> int:
    """The first visible row: as few as possible are scrolled away so that the selected one is seen."""
    return max(data.selected - (height - 2), 0)
