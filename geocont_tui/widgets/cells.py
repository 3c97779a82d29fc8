"""A widget that is a grid of cells and sends only the cells that changed.

Textual's compositor repaints whole widgets; over SSH that is most of the traffic. A `CellWidget` draws a frame of
cells, compares it with the frame before and refreshes the changed spans only; an equal frame refreshes nothing.

Importing this module also replaces one method of Textual 8, see `_render_segments`.
"""

from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from geocont_tui.palette import Palette

Cell = tuple[str, Style]
Row = tuple[Cell, ...]
Frame = tuple[Row, ...]

NO_STYLE = Style()
BLANK: Cell = (" ", NO_STYLE)

# What stands for the field's own signs where only ASCII can be shown; any other character becomes "?".
ASCII_FOR = str.maketrans(
    {"σ": "s", "Δ": "d", "±": "+-", "·": "*", "×": "x", "‖": "|", "−": "-", "–": "-", "…": "..", "↑": "^", "↓": "v"}
)

# Moving the cursor over a gap costs about as many bytes as these cells.
JOINED_GAP = 8


def write(cells: list[Cell], x: int, text: str, style: Style, end: int, ascii_only: bool = False) -> int:
    """Write `text` into a row of cells from column x up to (not including) `end`; return the column after it.

    A wide character takes two cells, the second one empty. Control and zero-width characters would shift the rest of
    the line, so they are replaced or left out; with `ascii_only` every other character than ASCII is replaced.
    """
    if ascii_only and not text.isascii():
        text = text.translate(ASCII_FOR)
    end = min(end, len(cells))
    for letter in text:
        character = letter if letter.isprintable() and (letter.isascii() or not ascii_only) else "?"
        width = cell_len(character)
        if width == 0:
            continue
        if x < 0 or x + width > end:
            break
        cells[x] = (character, style)
        for continuation in range(x + 1, x + width):
            cells[continuation] = ("", style)
        x += width
    return x


def tail(text: str, room: int, ascii_only: bool = False) -> str:
    """The end of `text` in at most `room` cells, after a sign that its beginning is missing."""
    if cell_len(text) <= room:
        return text
    sign = ".." if ascii_only else "…"
    while text and cell_len(text) > room - len(sign):
        text = text[1:]
    return f"{sign}{text}" if room > len(sign) else ""


def head(text: str, room: int, ascii_only: bool = False) -> str:
    """The beginning of `text` in at most `room` cells, before a sign that its end is missing."""
    if cell_len(text) <= room:
        return text
    sign = ".." if ascii_only else "…"
    while text and cell_len(text) > room - len(sign):
        text = text[:-1]
    return f"{text.rstrip()}{sign}" if room > len(sign) else ""


def mark_hidden(rows: list[list[Cell]], above: bool, below: bool, palette: Palette) -> None:
    """Show at the right edge of the `rows` of a list that it goes on above or below them."""
    if not rows:
        return
    signs = palette.glyphs.signs
    for goes_on, cells, sign in ((above, rows[0], signs["up"]), (below, rows[-1], signs["down"])):
        if goes_on:
            write(cells, len(cells) - 1, sign, palette.dim, len(cells))


def strip_of(row: Row) -> Strip:
    """The row as a Textual strip, neighbours of one style joined."""
    segments: list[Segment] = []
    start = 0
    for x in range(1, len(row) + 1):
        if x == len(row) or row[x][1] != row[start][1]:
            segments.append(Segment("".join(character for character, _ in row[start:x]), row[start][1]))
            start = x
    return Strip(segments, len(row))


def changed_spans(old: Row, new: Row) -> list[tuple[int, int]]:
    """Where two rows of one length differ: [start, end) spans in ascending order, near ones joined."""
    spans: list[tuple[int, int]] = []
    if old == new:
        return spans
    for x, (before, after) in enumerate(zip(old, new, strict=True)):
        if before == after:
            continue
        start, end = x, x + 1
        while start > 0 and "" in (old[start][0], new[start][0]):
            start -= 1
        while end < len(new) and "" in (old[end][0], new[end][0]):
            end += 1
        if spans and start - spans[-1][1] < JOINED_GAP:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _render_segments(update: ChopsUpdate, console: Console) -> str:
    """What Textual sends for a partial update: each span, from its first cell to its last.

    Textual 8.2 crops a span at its end only and sends the line from the widget's left edge on, once for every span of
    the line: seven times the bytes of a live chart (tests/benchmarks/chart_bytes.py). There is no public way around it.
    """
    sequences: list[str] = []
    for y, first, last in update.spans:
        # A widget may still be as high as on a screen that has just gone.
        if y >= len(update.chops):
            continue
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x >= last or end <= first:
                continue
            start = max(x, first)
            sequences.append(Control.move_to(start, y).segment.text)
            sequences.append(strip.crop(start - x, min(end, last) - x).render(console))
    return "".join(sequences)


ChopsUpdate.render_segments = _render_segments  # type: ignore[assignment, method-assign]


class CellWidget(Widget):
    """Shows what `draw_frame` returns. A subclass calls `update_frame` when what it shows has changed."""

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._palette = palette
        self._frame: Frame = ()
        self._strips: list[Strip] = []
        self._frame_size = (0, 0)

    def draw_frame(self, width: int, height: int) -> Frame:
        """`height` rows of `width` cells."""
        raise NotImplementedError

    def set_palette(self, palette: Palette) -> None:
        """Use other colours or glyphs, for instance after a change of theme."""
        if palette != self._palette:
            self._palette = palette
            self.update_frame()

    def update_frame(self) -> None:
        """Draw again and refresh the spans that differ from what is on the screen."""
        size = self.content_size
        if not self.is_mounted or size.area == 0:
            self._frame_size = (0, 0)
            return
        before = self._frame
        same_size = self._frame_size == (size.width, size.height)
        self._frame_size = (size.width, size.height)
        self._frame = self.draw_frame(size.width, size.height)
        if not same_size:
            self._strips = [strip_of(row) for row in self._frame]
            self.refresh()
            return
        regions: list[Region] = []
        for y, (old, new) in enumerate(zip(before, self._frame, strict=True)):
            spans = changed_spans(old, new)
            if spans:
                self._strips[y] = strip_of(new)
                regions += [Region(start, y, end - start, 1) for start, end in spans]
        if regions:
            self.refresh(*regions)

    def on_resize(self) -> None:
        self.update_frame()

    def render_line(self, y: int) -> Strip:
        """Row y of the content area, over the widget's own text colour and background."""
        size = self.content_size
        style = self.visual_style.rich_style
        if self._frame_size != (size.width, size.height):
            self._frame_size = (size.width, size.height)
            self._frame = self.draw_frame(size.width, size.height)
            self._strips = [strip_of(row) for row in self._frame]
        if y >= len(self._strips):
            return Strip.blank(size.width, style)
        return self._strips[y].apply_style(style)
