import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from geocont_tui import terminal
from geocont_tui.terminal import ExitCode, Settings, colours, detect, needs_ascii, prepare

ASK = """import os, sys
from geocont_tui.terminal import has_screen
os.write(int(sys.argv[1]), str(has_screen()).encode())"""


def says_screen(where: set[str], term: str = "xterm-256color") -> str:
    """What `has_screen` answers in a process whose streams named in `where` are a real pseudo-terminal."""
    parent, child = pty.openpty()
    read, write = os.pipe()
    try:
        streams = {name: child if name in where else subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        subprocess.run(
            [sys.executable, "-c", ASK, str(write)],
            env={**os.environ, "TERM": term},
            pass_fds=[write],
            check=True,
            timeout=60,
            **streams,
        )
        return os.read(read, 100).decode()
    finally:
        for descriptor in (parent, child, read, write):
            os.close(descriptor)


ALL = {"stdin", "stdout", "stderr"}


def test_three_terminals_are_a_screen() -> None:
    assert says_screen(ALL) == "True"


@pytest.mark.parametrize("missing", sorted(ALL))
def test_each_stream_must_be_a_terminal(missing: str) -> None:
    assert says_screen(ALL - {missing}) == "False"


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_dumb_terminal_is_no_screen(term: str) -> None:
    assert says_screen(ALL, term) == "False"


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_closed_or_absent_stream_is_no_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, name, stream)
        assert not terminal.has_screen({"TERM": "xterm"})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "truecolor"),
        ({"TERM": "xterm-256color", "COLORTERM": "24bit"}, "truecolor"),
        ({"TERM": "xterm-256color"}, "256"),
        ({"TERM": "tmux-256color", "COLORTERM": ""}, "256"),
        ({"TERM": "xterm"}, "16"),
        ({"TERM": "linux"}, "16"),
        ({}, "16"),
    ],
)
def test_colours_agree_with_those_that_textual_would_find(environment: dict[str, str], expected: str) -> None:
    assert colours(environment) == expected
    found = Console(file=io.StringIO(), force_terminal=True, _environ=environment).color_system
    assert (found or "").replace("standard", "16") == expected


@pytest.mark.parametrize(
    "environment",
    [{"NO_COLOR": "1", "COLORTERM": "truecolor"}, {"NO_COLOR": "0"}, {"TERM": "dumb", "COLORTERM": "truecolor"}],
)
def test_no_colours(environment: dict[str, str]) -> None:
    assert colours(environment) == "none"


def test_an_empty_no_color_means_nothing() -> None:
    environment = {"NO_COLOR": "", "TERM": "xterm-256color"}
    assert colours(environment) == "256"
    prepare(detect(environment=environment), environment)
    assert "NO_COLOR" not in environment


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


@pytest.mark.parametrize(
    ("encoding", "environment", "expected"),
    [
        ("utf-8", {}, False),
        ("UTF8", {"LANG": "en_US.UTF-8"}, False),
        ("utf-8", {"LANG": "C.utf8"}, False),
        ("utf-8", {"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ("utf-8", {"LC_ALL": "en_US.UTF-8", "LANG": "C"}, False),
        ("utf-8", {"LANG": "de_DE.ISO-8859-1"}, True),
        ("latin-1", {"LANG": "en_US.UTF-8"}, True),
        ("ascii", {}, True),
    ],
)
def test_ascii_where_other_characters_would_be_lost(encoding: str, environment: dict[str, str], expected: bool) -> None:
    assert needs_ascii(stream(encoding), environment) is expected
    assert detect(environment=environment, stream=stream(encoding)).ascii is expected
    assert detect(environment=environment, stream=stream(encoding), ascii_only=True).ascii is True


def test_what_is_given_wins() -> None:
    environment = {"TEXTUAL_THEME": "nord", "TERM": "xterm-256color", "SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}
    found = detect(environment=environment, stream=stream("utf-8"))
    assert found == Settings(fps=4, theme="nord", colours="256", dark=True, ssh=True)
    assert found.textual_theme == "nord"
    light = detect(theme="light", fps=2, environment=environment, stream=stream("utf-8"))
    assert (light.fps, light.dark, light.textual_theme) == (2, False, "textual-light")
    assert detect(theme="dark", environment=environment).textual_theme == "textual-dark"


@pytest.mark.parametrize("chosen", ["16", "none"])
def test_few_colours_get_an_ansi_theme_whatever_was_asked_for(chosen: terminal.ColourMode) -> None:
    assert Settings(colours=chosen, theme="nord").textual_theme == "ansi-dark"
    assert Settings(colours=chosen, dark=False).textual_theme == "ansi-light"


def test_the_environment_that_textual_reads() -> None:
    environment: dict[str, str] = {}
    prepare(Settings(colours="16"), environment)
    assert environment == {
        "TEXTUAL_FPS": "30",
        "TEXTUAL_ANIMATIONS": "none",
        "TEXTUAL_SMOOTH_SCROLL": "0",
        "TEXTUAL_THEME": "ansi-dark",
        "TEXTUAL_COLOR_SYSTEM": "standard",
    }
    environment = {"TEXTUAL_FPS": "7", "TEXTUAL_ANIMATIONS": "full"}
    prepare(Settings(colours="none"), environment)
    assert (environment["TEXTUAL_FPS"], environment["TEXTUAL_ANIMATIONS"]) == ("7", "full")
    assert environment["NO_COLOR"] == "1"


def test_textual_draws_without_any_colour_after_no_color(tmp_path: Path) -> None:
    program = """
from geocont_tui import terminal
terminal.prepare(terminal.detect(environment={"NO_COLOR": "1", "TERM": "xterm-256color"}))
from textual import constants
from textual.app import App
app = App()
print(app.theme, app.no_color, [type(each).__name__ for each in app._filters], constants.MAX_FPS)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split(maxsplit=2)[:2] == ["ansi-dark", "True"]
    assert "NoColor" in answer.stdout
    assert "Monochrome" not in answer.stdout
    assert answer.stdout.strip().endswith("30")


def test_exit_codes_are_a_contract() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "WRONG_USAGE": 2,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
