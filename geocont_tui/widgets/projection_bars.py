"""A bar per projection for v1 and for u1, with its chance level: side by side, or one above the other where that fits.

bars = ProjectionBars(palette)      bars.show(ProjectionBarsData(rows, selected))
draw(data, width, height, palette, first=0) -> Frame      the same as a pure function
"""

from dataclasses import dataclass

from rich.cells import cell_len

from geocont_tui.palette import Palette
from geocont_tui.widgets import bars
from geocont_tui.widgets.bars import BarRow, BarsData, level_range
from geocont_tui.widgets.cells import BLANK, Cell, CellWidget, Frame, tail, write

SIDES = ("v1", "u1")
TITLES = ("v1  input side", "u1  output side")
LONG_TITLES = (
    "v1  cosine on the input side, mean [least-greatest]",
    "u1  cosine on the output side, mean [least-greatest]",
)
NOTES_FROM = 60


@dataclass(frozen=True)
class SideBar:
    """One projection on one side; `mean` None is n/a. `left_out` says how many pairs have no cosine, and why."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    limit: float | None = None
    is_residual: bool = False
    left_out: str = ""
    left_out_count: int = 0
    is_unique: bool = True


@dataclass(frozen=True)
class ProjectionBar:
    """One projection with both of its sides."""

    label: str
    v1: SideBar
    u1: SideBar


@dataclass(frozen=True)
class ProjectionBarsData:
    """What the bars show; `selected` is a position in `rows`."""

    rows: tuple[ProjectionBar, ...] = ()
    selected: int = 0


class ProjectionBars(CellWidget):
    """The bars as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    ProjectionBars { width: 1fr; height: 1fr; }
    """

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = ProjectionBarsData()

    def show(self, data: ProjectionBarsData) -> None:
        """Show `data`, repainting only what changes."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def draw(data: ProjectionBarsData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells; the selected row is always among those that are seen."""
    if width <= 0 or height <= 0:
        return ()
    if not data.rows:
        cells = [BLANK] * width
        write(cells, 0, "nothing is measured yet", palette.dim, width)
        return (tuple(cells), *(tuple([BLANK] * width) for _ in range(height - 1)))
    if height >= 2 * (len(data.rows) + 2) and width < 2 * NOTES_FROM:
        half = height // 2
        return _one_side(data, 0, width, half, palette) + _one_side(data, 1, width, height - half, palette)
    return _side_by_side(data, width, height, palette)


def _one_side(data: ProjectionBarsData, side: int, width: int, height: int, palette: Palette) -> Frame:
    title: list[Cell] = [BLANK] * width
    write(title, 0, LONG_TITLES[side] if width >= NOTES_FROM else TITLES[side], palette.selected, width)
    found = _bars(
        data, side, (width - 1) // 3, has_labels=True, has_notes=width >= NOTES_FROM, is_ascii=palette.ascii_only
    )
    first = max(data.selected - (height - 3), 0)
    if width >= NOTES_FROM:
        return (tuple(title), *bars.draw(found, width, height - 1, palette, first))
    return (tuple(title), *_starred(data, side, found, width, height - 1, palette, first))


def _side_by_side(data: ProjectionBarsData, width: int, height: int, palette: Palette) -> Frame:
    notes = [_notes(row) for row in data.rows]
    note = min(max((cell_len(text) for text in notes), default=0), max(width - 56, 0))
    room = width - (note + 1 if note else 0)
    label = max(cell_len(row.label) for row in data.rows)
    left = (room + min(label, room // 4)) // 2
    title: list[Cell] = [BLANK] * width
    write(title, 0, TITLES[0], palette.selected, left)
    end = write(title, left + 1, TITLES[1], palette.selected, room)
    if note:
        write(title, max(room + 1, end + 1), "left out", palette.dim, width)
    first = max(data.selected - (height - 3), 0)
    both = [
        _bars(data, side, (left - 1) // 3, has_labels=side == 0, has_notes=False, is_ascii=palette.ascii_only)
        for side in (0, 1)
    ]
    v1 = _starred(data, 0, both[0], left, height - 1, palette, first)
    u1 = _starred(data, 1, both[1], room - left, height - 1, palette, first)
    visible = bars.visible_rows(both[0], height - 1)
    first = min(first, max(len(data.rows) - visible, 0))
    rows: list[tuple[Cell, ...]] = [tuple(title)]
    for position, (one, other) in enumerate(zip(v1, u1, strict=True)):
        cells: list[Cell] = [BLANK] * (width - room)
        if note and position < visible and first + position < len(notes):
            write(cells, 1, notes[first + position], palette.dim, len(cells), palette.ascii_only)
        rows.append((*one, *other, *cells))
    return tuple(rows)


def _starred(
    data: ProjectionBarsData, side: int, found: BarsData, width: int, height: int, palette: Palette, first: int
) -> Frame:
    """The bars of one side, with a star after those that meet the residual stream."""
    if width < 2:
        return tuple((BLANK,) * width for _ in range(height))
    frame = bars.draw(found, width - 1, height, palette, first)
    visible = bars.visible_rows(found, height)
    first = min(first, max(len(data.rows) - visible, 0))
    rows = []
    for position, cells in enumerate(frame):
        has_star = position < visible and _side(data.rows[first + position], side).is_residual
        rows.append((*cells, ("*", palette.text) if has_star else BLANK)[:width])
    return tuple(rows)


def _side(row: ProjectionBar, side: int) -> SideBar:
    return row.u1 if side else row.v1


def _notes(row: ProjectionBar) -> str:
    """What was left out on either side."""
    return ", ".join(dict.fromkeys(text for text in (row.v1.left_out, row.u1.left_out) if text))


def _bars(
    data: ProjectionBarsData, side: int, room: int, has_labels: bool, has_notes: bool, is_ascii: bool
) -> BarsData:
    rows = []
    for row in data.rows:
        found = _side(row, side)
        notes = []
        if has_notes and found.mean is not None and found.low is not None and found.high is not None:
            notes.append(f"[{found.low:.2f}-{found.high:.2f}]")
        if has_notes and found.is_residual and found.mean is not None:
            notes.append("*")
        if found.mean is None and found.left_out:
            notes.append(found.left_out)
        elif has_notes and found.left_out_count:
            notes.append(f"{found.left_out_count} n/a")
        rows.append(
            BarRow(
                label=tail(row.label, room, is_ascii) if has_labels else "",
                value=found.mean,
                note=" ".join(notes),
                unique=found.mean is not None or found.is_unique,
                chance=found.chance,
                chance_limit=found.limit,
            )
        )
    levels = [level for row in data.rows if (level := _side(row, side).chance) is not None]
    limits = [limit for row in data.rows if (limit := _side(row, side).limit) is not None]
    return BarsData(
        rows=tuple(rows),
        chance=min(levels, default=None),
        chance_label=f"chance {level_range(levels)}" if levels else "",
        limit_label=f"95 % below {level_range(limits)}" if limits else "",
        index=side,
    )
