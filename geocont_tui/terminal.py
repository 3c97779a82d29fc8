"""What the terminal can do, decided once, before Textual is imported: Textual reads its environment at import.

    settings = detect(theme="light", fps=None, ascii_only=None)
    prepare(settings)          # then import textual

Textual draws on stderr and never returns from `App.run()` without a terminal, so `has_screen` comes first.
"""

import codecs
import enum
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import TextIO

import msgspec

from geocont_tui.palette import ColourMode

# Only against storms of repaints: Textual paints at its own ticks, so a lower cap would delay the answer to a key. How
# often curves move is `Settings.fps`.
_REPAINTS_PER_SECOND = 30


class ExitCode(enum.IntEnum):
    """What the process says when it ends. The last two are 128 + the signal's number, as shells have it."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    INTERRUPTED = 130
    TERMINATED = 143


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw. `fps` is how often a running screen is painted anew; `theme` names one of Textual's themes.

    `theme` is None for the one that suits `colours` and `dark`. 16 colours and none need an ansi theme, whatever the
    user asked for: under any other Textual mixes its own fixed colours, and with NO_COLOR 24-bit greys.
    """

    fps: int = 4
    theme: str | None = None
    ascii: bool = False
    colours: ColourMode = "truecolor"
    dark: bool = True
    ssh: bool = False

    @property
    def textual_theme(self) -> str:
        shade = "dark" if self.dark else "light"
        if self.colours in ("16", "none"):
            return f"ansi-{shade}"
        return self.theme or f"textual-{shade}"


def has_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a screen can be drawn and used: stdin, stdout and stderr are terminals, and TERM is not dumb.

    stdout counts although Textual draws on stderr: `geocont-tui … | less` would have two programs on one terminal.
    """
    if os.name != "nt" and environment.get("TERM", "") in ("", "dumb", "unknown"):
        return False
    return all(is_terminal(stream) for stream in (sys.stdin, sys.stdout, sys.stderr))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal. False for one that is closed or, in a process without it, None."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def detect(
    *,
    theme: str | None = None,
    fps: int | None = None,
    ascii_only: bool | None = None,
    environment: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
) -> Settings:
    """The settings for this terminal. What is given wins over what is found.

    Args:
        theme: `dark`, `light`, or the name of one of Textual's themes; TEXTUAL_THEME if None.
        fps: paints a second; 4 if None.
        ascii_only: whether to draw in ASCII; found from the locale and the encoding of `stream` if None.
        environment: environment variables.
        stream: what will be written to; stderr if None.
    """
    chosen = theme or environment.get("TEXTUAL_THEME") or None
    return Settings(
        fps=fps or Settings().fps,
        theme=None if chosen in ("dark", "light") else chosen,
        ascii=needs_ascii(stream or sys.stderr, environment) if ascii_only is None else ascii_only,
        colours=colours(environment),
        dark=chosen is None or "light" not in chosen,
        ssh=bool(environment.get("SSH_CONNECTION") or environment.get("SSH_TTY")),
    )


def colours(environment: Mapping[str, str] = os.environ) -> ColourMode:
    """How many colours the terminal says it has. NO_COLOR (not empty, see no-color.org) and a dumb terminal: none."""
    if environment.get("NO_COLOR"):
        return "none"
    term = environment.get("TERM", "").strip().lower()
    if term in ("dumb", "unknown"):
        return "none"
    if environment.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit") or term.endswith("-direct"):
        return "truecolor"
    if os.name == "nt":
        return "truecolor"
    return "256" if term.endswith(("256color", "-kitty")) else "16"


def needs_ascii(stream: TextIO | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether other characters than ASCII would be lost on the way: by the encoding, the locale or the console's font.

    Python writes UTF-8 under LC_ALL=C too, but the terminal may well not be in UTF-8 then. No locale at all, usual in
    containers, says nothing and counts as UTF-8.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        if codecs.lookup(encoding).name != "utf-8":
            return True
    except LookupError:
        return True
    if environment.get("TERM") == "linux" and is_terminal(stream):
        return True
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or "UTF-8"
    return "utf8" not in locale.replace("-", "").lower()


def prepare(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what Textual reads from the environment at import, or when its App is made. Call it before that import.

    The user's own TEXTUAL_FPS, TEXTUAL_ANIMATIONS and TEXTUAL_SMOOTH_SCROLL win. The theme must be the final one: with
    NO_COLOR, a theme that is changed after the App is made is drawn black on black.
    """
    environment.setdefault("TEXTUAL_FPS", str(max(_REPAINTS_PER_SECOND, settings.fps)))
    environment.setdefault("TEXTUAL_ANIMATIONS", "none")
    environment.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    environment["TEXTUAL_THEME"] = settings.textual_theme
    environment["TEXTUAL_COLOR_SYSTEM"] = settings.colours if settings.colours in ("truecolor", "256") else "standard"
    if settings.colours == "none":
        environment["NO_COLOR"] = "1"
    else:
        # Textual takes an empty NO_COLOR for a set one.
        environment.pop("NO_COLOR", None)
