"""Colours, markers and glyphs of every widget, for dark and light, 256 and 16 colours, no colour, and ASCII.

    palette_for(colours: ColourMode, dark: bool, ascii_only: bool = False) -> Palette
    palette.curve(index) -> Style    palette.band(index) -> Style    palette.marker(index) -> str

Colour never carries a meaning alone: a variant has a marker and a name beside its hue, a verdict a sign and a word.
The 16 colours and "none" name the terminal's own colours, so they need one of Textual's ansi themes; under any other
theme Textual would turn them into fixed ones.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rich.color import Color, blend_rgb
from rich.style import Style

ColourMode = Literal["truecolor", "256", "16", "none"]
Sign = Literal["running", "paused", "done", "stopped", "failed", "diverged", "waiting", "selected", "up", "down"]
Verdict = Literal["supported", "not yet", "confounded", "contradicted"]


@dataclass(frozen=True)
class Glyphs:
    """The characters of one character set; `blocks` and `sparks` are ladders from low to high."""

    markers: tuple[str, ...]
    signs: Mapping[Sign, str]
    verdicts: Mapping[Verdict, str]
    axis_vertical: str
    axis_horizontal: str
    axis_corner: str
    tick_left: str
    tick_below: str
    dash: str
    chance: str
    hatch: str
    cursor: str
    blocks: str
    shades: str
    sparks: str
    missing: str


UNICODE = Glyphs(
    markers=("●", "▲", "■", "◆", "◇", "○", "△", "□"),
    signs={
        "running": "●",
        "paused": "‖",
        "done": "✔",
        "stopped": "■",
        "failed": "✖",
        "diverged": "✖",
        "waiting": "·",
        "selected": "▶",
        "up": "↑",
        "down": "↓",
    },
    verdicts={"supported": "✔", "not yet": "…", "confounded": "?", "contradicted": "✖"},
    axis_vertical="│",
    axis_horizontal="─",
    axis_corner="└",
    tick_left="┤",
    tick_below="┬",
    dash="┄",
    chance="┊",
    hatch="▨",
    cursor="◆",
    blocks="▏▎▍▌▋▊▉█",
    shades="·░▒▓█",
    sparks="▁▂▃▄▅▆▇█",
    missing="·",
)
ASCII = Glyphs(
    # Lines are drawn with them: letters are told apart at a glance, and mean nothing else in a chart.
    markers=("A", "B", "C", "D", "E", "F", "G", "H"),
    signs={
        "running": "*",
        "paused": "=",
        "done": "+",
        "stopped": "#",
        "failed": "x",
        "diverged": "x",
        "waiting": ".",
        "selected": ">",
        "up": "^",
        "down": "v",
    },
    verdicts={"supported": "+", "not yet": ".", "confounded": "?", "contradicted": "x"},
    axis_vertical="|",
    axis_horizontal="-",
    axis_corner="+",
    tick_left="+",
    tick_below="+",
    dash="-",
    chance=":",
    hatch="?",
    cursor="@",
    blocks="-=",
    shades=".:-=#",
    sparks="_.-:=+*#",
    missing="?",
)

# Entries of the 256-colour cube, so that a 256-colour terminal shows exactly these.
DARK_HUES = ("#5fafff", "#ffaf5f", "#5fd787", "#ff87af", "#ffff87", "#af87ff", "#ff5f5f", "#afd7d7")
LIGHT_HUES = ("#005faf", "#af5f00", "#008700", "#d7005f", "#5f5f00", "#5f00af", "#af0000", "#005f5f")
# On either background, a line that is seen and does not stand out.
FAINT_HUES = ("#5f87af", "#af875f", "#5f875f", "#af5f87", "#87875f", "#875faf", "#af5f5f", "#5f8787")
DARK_BANDS = ("#005f87", "#875f00", "#005f00", "#87005f", "#5f5f00", "#5f5faf", "#870000", "#5f8787")
LIGHT_BANDS = ("#87afd7", "#d7af87", "#87af87", "#d787af", "#afaf87", "#af87d7", "#d78787", "#87afaf")
DARK_ANSI = ("cyan", "yellow", "green", "magenta", "red", "bright_blue")
LIGHT_ANSI = ("blue", "red", "green", "magenta", "cyan", "yellow")

# Viridis, from where it stands out from the background on: lightness goes away from the background's, evenly.
DARK_RAMP = ("#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
LIGHT_RAMP = ("#26828e", "#31688e", "#3e4989", "#482878", "#440154")
DARK_CUBE_RAMP = ("#5f5faf", "#5f87af", "#5fafaf", "#5fd787", "#87d75f", "#d7d75f", "#ffff5f")
LIGHT_CUBE_RAMP = ("#008787", "#005faf", "#005f87", "#5f00af", "#5f0087", "#00005f")
RAMP_STEPS = 32


@dataclass(frozen=True)
class Palette:
    """The styles of one colour mode and the glyphs of one character set. Backgrounds are left to the widget.

    `ramp` are the colours of values from 0 to 1, evenly; empty where there are too few colours for it.
    """

    glyphs: Glyphs
    ascii_only: bool
    hues: tuple[Style, ...]
    faints: tuple[Style, ...]
    bands: tuple[Style, ...]
    text: Style
    dim: Style
    reference: Style
    selected: Style
    verdicts: Mapping[Verdict, Style]
    ramp: tuple[Style, ...] = ()

    def curve(self, index: int) -> Style:
        """Style of curve or variant number `index`; hues repeat, with another marker."""
        return self.hues[index % len(self.hues)]

    def band(self, index: int) -> Style:
        """Fainter style of the same hue."""
        return self.bands[index % len(self.bands)]

    def faint(self, index: int) -> Style:
        """Dim style of the same hue, for the line of a curve that is not the selected one."""
        return self.faints[index % len(self.faints)]

    def marker(self, index: int) -> str:
        """One-cell marker of curve or variant number `index`."""
        return self.glyphs.markers[index % len(self.glyphs.markers)]

    def value(self, value: float) -> Style:
        """Colour of a value from 0 to 1 where there is a ramp."""
        return self.ramp[min(max(int(value * len(self.ramp)), 0), len(self.ramp) - 1)]


@functools.cache
def palette_for(colours: ColourMode, dark: bool, ascii_only: bool = False) -> Palette:
    """The palette for `colours` on a dark or light background; `ascii_only` for other locales than UTF-8."""
    glyphs = ASCII if ascii_only else UNICODE
    if colours == "none":
        faint = Style(dim=True)
        bold = Style(bold=True)
        return Palette(
            glyphs=glyphs,
            ascii_only=ascii_only,
            hues=(Style(),),
            faints=(faint,),
            bands=(faint,),
            text=Style(),
            dim=faint,
            reference=faint,
            selected=bold,
            verdicts={"supported": bold, "not yet": faint, "confounded": Style(), "contradicted": bold},
        )
    if colours == "16":
        names = DARK_ANSI if dark else LIGHT_ANSI
        faint = Style(dim=True)
        return Palette(
            glyphs=glyphs,
            ascii_only=ascii_only,
            hues=tuple(Style(color=name) for name in names),
            faints=tuple(Style(color=name, dim=True) for name in names),
            bands=tuple(Style(color=name, dim=True) for name in names),
            text=Style(),
            dim=faint,
            reference=faint,
            selected=Style(bold=True),
            verdicts={
                "supported": Style(color="green"),
                "not yet": faint,
                "confounded": Style(color="yellow" if dark else "magenta"),
                "contradicted": Style(color="red"),
            },
        )
    faint = Style(color="#8a8a8a" if dark else "#6c6c6c")
    return Palette(
        glyphs=glyphs,
        ascii_only=ascii_only,
        hues=tuple(Style(color=hue) for hue in (DARK_HUES if dark else LIGHT_HUES)),
        faints=tuple(Style(color=hue) for hue in FAINT_HUES),
        bands=tuple(Style(color=band) for band in (DARK_BANDS if dark else LIGHT_BANDS)),
        text=Style(),
        dim=faint,
        reference=Style(color="#bcbcbc" if dark else "#444444"),
        selected=Style(bold=True),
        verdicts={
            "supported": Style(color="#5fd787" if dark else "#008700"),
            "not yet": faint,
            "confounded": Style(color="#ffaf5f" if dark else "#af5f00"),
            "contradicted": Style(color="#ff5f5f" if dark else "#af0000"),
        },
        ramp=_ramp(colours == "truecolor", dark),
    )


def _ramp(is_truecolor: bool, dark: bool) -> tuple[Style, ...]:
    if not is_truecolor:
        return tuple(Style(color=name) for name in (DARK_CUBE_RAMP if dark else LIGHT_CUBE_RAMP))
    anchors = [Color.parse(name).get_truecolor() for name in (DARK_RAMP if dark else LIGHT_RAMP)]
    styles = []
    for step in range(RAMP_STEPS):
        place = step * (len(anchors) - 1) / (RAMP_STEPS - 1)
        lower = min(int(place), len(anchors) - 2)
        styles.append(Style(color=Color.from_triplet(blend_rgb(anchors[lower], anchors[lower + 1], place - lower))))
    return tuple(styles)
