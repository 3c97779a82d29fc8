"""Cosines as shades: a ladder of characters from "as chance" to "the same", and marks for what has no cosine.

shade(value, chance, palette, index) -> Cell       mark(status, palette) -> Cell       legend(palette) -> str
with_cursor(cells, palette) -> list[Cell]
"""

from geocont.events import Status
from rich.style import Style

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import Cell

STEPS = (0.4, 0.6, 0.8)
"""Where the ladder goes one up; below twice the chance level is its lowest step."""
BLANKS = " _"
"""What stands where there is no value that the cursor could hide."""


def shade(value: float, chance: float | None, palette: Palette, index: int = 0) -> Cell:
    """The character for |cos| = `value` where random directions have `chance`; `index` is the hue without a ramp."""
    ladder = palette.glyphs.shades
    if chance is not None and value < 2 * chance:
        return ladder[0], palette.dim
    style = palette.value(value) if palette.ramp else palette.curve(index)
    return ladder[1 + sum(value >= step for step in STEPS)], style


def mark(status: Status, palette: Palette) -> Cell:
    """The character for a pair without a cosine: hatched where v1 is not unique."""
    if status in ("not_unique", "not_converged"):
        return palette.glyphs.hatch, palette.reference
    if status == "shared":
        return "=", palette.reference
    return ("x" if palette.ascii_only else "×"), palette.reference


def with_cursor(cells: list[Cell], palette: Palette) -> list[Cell]:
    """The cells of a value with the cursor on them; the value stays: beside it, behind it, or in reverse."""
    character, style = cells[0]
    if style in palette.ramp:
        return [(palette.glyphs.cursor, _before(style)), *cells[1:]]
    if len(cells) > 1 or character in BLANKS:
        return [(palette.glyphs.cursor, palette.selected), *cells[1:]]
    return [(character, style + Style(bold=True, reverse=True))]


def _before(style: Style) -> Style:
    """What can be read before the colour of `style`."""
    if style.color is None:
        return style
    red, green, blue = style.color.get_truecolor()
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 110
    return Style(color="#000000" if is_bright else "#ffffff", bgcolor=style.color, bold=True)


def legend(palette: Palette) -> str:
    """What the characters mean, in one short line."""
    glyphs = palette.glyphs
    low, between, full = glyphs.shades[0], glyphs.shades[1:-1], glyphs.shades[-1]
    times, other, least = ("*", "x", ">=") if palette.ascii_only else ("×", "×", "≥")
    steps = [f"{sign}<{step:.1f}" for sign, step in zip(between, STEPS, strict=True)]
    ladder = " ".join([f"{low}<2{times}chance", *steps, f"{full}{least}{STEPS[-1]:.1f}"]).replace("0.", ".")
    return f"{ladder} {glyphs.hatch}not unique {other}n/a"
