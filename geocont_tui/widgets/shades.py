"""Cosines as shades: a ladder of characters from "as chance" to "the same", and marks for what has no cosine.

shade(value, chance, palette, index) -> Cell       mark(status, palette) -> Cell       legend(palette) -> str
"""

from geocont.events import Status

from geocont_tui.palette import Palette
from geocont_tui.widgets.cells import Cell

STEPS = (0.4, 0.6, 0.8)
"""Where the ladder goes one up; below twice the chance level is its lowest step."""


def shade(value: float, chance: float | None, palette: Palette, index: int = 0) -> Cell:
    """The character for |cos| = `value` where random directions have `chance`; `index` chooses the hue."""
    ladder = palette.glyphs.shades
    if chance is not None and value < 2 * chance:
        return ladder[0], palette.dim
    return ladder[1 + sum(value >= step for step in STEPS)], palette.curve(index)


def mark(status: Status, palette: Palette) -> Cell:
    """The character for a pair without a cosine: hatched where v1 is not unique."""
    if status in ("not_unique", "not_converged"):
        return palette.glyphs.hatch, palette.reference
    if status == "shared":
        return "=", palette.reference
    return ("x" if palette.ascii_only else "×"), palette.reference


def legend(palette: Palette) -> str:
    """What the characters mean, in one short line."""
    glyphs = palette.glyphs
    steps = " ".join(f"{sign}<{step:.1f}" for sign, step in zip(glyphs.shades[1:], STEPS, strict=False)).replace(
        "0.", "."
    )
    times, other = ("*", "x") if palette.ascii_only else ("×", "×")
    return f"{glyphs.shades[0]}<2{times}chance {steps} {glyphs.shades[-1]} {glyphs.hatch}not unique {other}n/a"
