"""A pane of styled lines that scrolls: what the claims, the log and the spectrum have in common.

Line                               a tuple of (text, style) pieces
wrap(text, width, style, indent)   a text as lines of at most `width` cells
"""

from rich.cells import cell_len
from rich.style import Style
from textual.events import MouseScrollDown, MouseScrollUp

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import BLANK, CellWidget, Frame, write

Line = tuple[tuple[str, Style], ...]


def wrap(text: str, width: int, style: Style, indent: int = 0) -> list[Line]:
    """Break `text` at spaces into lines of at most `width` cells, each after `indent` blanks; long words are cut."""
    room = max(width - indent, 1)
    lines: list[str] = []
    current = ""
    for word in text.split():
        while cell_len(word) > room:
            if current:
                lines.append(current)
                current = ""
            head = ""
            for letter in word:
                if head and cell_len(head + letter) > room:
                    break
                head += letter
            lines.append(head)
            word = word[len(head) :]
        joined = f"{current} {word}" if current and word else current or word
        if cell_len(joined) > room:
            lines.append(current)
            joined = word
        current = joined
    if current:
        lines.append(current)
    return [((" " * indent + line, style),) for line in lines]


def draw(lines: list[Line], width: int, height: int, palette: Palette, first: int = 0) -> Frame:
    """`height` rows of `width` cells from line number `first` on.

    If not all lines fit, the last row says which of how many are shown.
    """
    if width <= 0 or height <= 0:
        return ()
    canvas = [[BLANK] * width for _ in range(height)]
    hides = len(lines) > height > 1
    count = height - 1 if hides else height
    first = min(max(first, 0), max(len(lines) - count, 0))
    for cells, line in zip(canvas, lines[first : first + count], strict=False):
        x = 0
        for text, style in line:
            x = write(cells, x, text, style, width, palette.ascii_only)
    if hides:
        signs = palette.glyphs.signs
        arrows = (signs["up"] if first else "") + (signs["down"] if first + count < len(lines) else "")
        more = f"{first + 1}-{first + count} of {len(lines)} {arrows}"
        write(canvas[-1], max(width - len(more), 0), more, palette.dim, width)
    return tuple(tuple(cells) for cells in canvas)


class Lines(CellWidget):
    """Shows what `lines` returns. A subclass calls `update_frame` when that has changed."""

    DEFAULT_CSS = """
    Lines { width: 1fr; height: 1fr; }
    """

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._first = 0

    def lines(self, width: int, height: int) -> list[Line]:
        """All lines, for a pane of `width` × `height` cells."""
        raise NotImplementedError

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self.lines(width, height), width, height, self._palette, self._first)

    def scroll_rows(self, delta: int) -> None:
        """Move the first visible line by `delta`, as far as there are lines."""
        width, height = self.content_size
        total = len(self.lines(width, height))
        hidden = total - (height - 1 if total > height > 1 else height)
        first = min(max(self._first + delta, 0), max(hidden, 0))
        if first != self._first:
            self._first = first
            self.update_frame()

    def bring_into_view(self, line: int) -> None:
        """Scroll as little as possible so that line number `line` is seen."""
        height = self.content_size.height
        last = self._first + max(height - 2, 0)
        self.scroll_rows(min(line - self._first, 0) + max(line - last, 0))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-1)
