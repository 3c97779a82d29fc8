"""The two lines at the top: which run, its state and time; how far it is, how fast, and what measuring costs.

line = StatusLine(palette)      line.show(StatusData(...))
"""

import math
from dataclasses import dataclass

from rich.style import Style

from geocont_tui.palette import Palette, Sign
from geocont_tui.widgets.cells import BLANK, CellWidget, Frame, write


@dataclass(frozen=True)
class StatusData:
    """What the lines show; durations in seconds.

    `title` is the command and what it works on; `sign` is the mark before the word `state`; `kept` is the name of the
    folder in which the run is kept. `done` says how much of how much is done (there is no second line without it),
    `rate` how fast, `note` what else there is to say.
    """

    title: str
    device: str = ""
    sign: Sign = "waiting"
    state: str = "loading the data"
    elapsed: float | None = None
    eta: float | None = None
    done: str = ""
    progress: float = 0.0
    rate: str = ""
    note: str = ""
    kept: str = ""


class StatusLine(CellWidget):
    """The lines as a widget; see the module's docstring."""

    DEFAULT_CSS = """
    StatusLine { width: 1fr; height: 2; }
    """

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id)
        self._data = StatusData("")

    def show(self, data: StatusData) -> None:
        """Show `data`, repainting only what changed."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def draw_frame(self, width: int, height: int) -> Frame:
        return draw(self._data, width, height, self._palette)


def draw(data: StatusData, width: int, height: int, palette: Palette) -> Frame:
    """`height` rows of `width` cells; what has no room is left out, the state never."""
    rows = [[BLANK] * width for _ in range(height)]
    if height >= 1:
        state = f"{palette.glyphs.signs[data.sign]} {data.state}"
        pieces = [(data.title, palette.selected, 2), (data.device, palette.dim, 5), (state, palette.text, 1)]
        pieces.append((clock(data.elapsed) if data.elapsed is not None else "", palette.text, 3))
        pieces.append((f"{clock(data.eta)} left" if data.eta is not None else "", palette.text, 4))
        pieces.append((f"kept in {data.kept}" if data.kept else "", palette.dim, 6))
        _write_pieces(rows[0], pieces, palette)
    if height >= 2 and data.done:
        room = width - sum(len(text) + 3 for text in (data.done, data.rate, data.note) if text) - 8
        bar = _bar(data.progress, min(max(room, 0), 60), palette)
        pieces = [
            (data.done, palette.text, 2),
            (f"{bar} {math.floor(100 * data.progress):3d} %", palette.text, 1),
            (data.rate, palette.dim, 3),
            (data.note, palette.dim, 4),
        ]
        _write_pieces(rows[1], pieces, palette)
    return tuple(tuple(cells) for cells in rows)


def clock(seconds: float) -> str:
    """A duration as 00:47, or 1:02:03."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _write_pieces(cells: list[tuple[str, Style]], pieces: list[tuple[str, Style, int]], palette: Palette) -> None:
    """Write the pieces that fit, the lowest rank first in line for room, in their order."""
    room = len(cells) - 1
    chosen = set()
    for text, _, rank in sorted((piece for piece in pieces if piece[0]), key=lambda piece: piece[2]):
        if len(text) + 3 <= room + 2:
            chosen.add(rank)
            room -= len(text) + 3
        elif rank == 2:
            chosen.add(rank)
            room = 0
    x = 1
    after = {
        rank: sum(len(text) + 3 for text, _, other in pieces[i + 1 :] if other in chosen)
        for i, (_, _, rank) in enumerate(pieces)
    }
    for text, style, rank in pieces:
        if rank in chosen:
            end = max(len(cells) - after[rank], x)
            if len(text) > end - x:
                text = text[: max(end - x - 1, 0)] + ("." if palette.ascii_only else "…")
            x = write(cells, x, text, style, end, palette.ascii_only) + 3


def _bar(progress: float, width: int, palette: Palette) -> str:
    if width < 4:
        return ""
    blocks = palette.glyphs.blocks
    full, part = divmod(int(progress * width * len(blocks)), len(blocks))
    bar = blocks[-1] * full + (blocks[part - 1] if part else "")
    return bar.ljust(width, palette.glyphs.missing if not palette.ascii_only else ".")
