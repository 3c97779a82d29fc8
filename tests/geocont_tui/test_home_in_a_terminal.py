"""`geocont-tui` alone in a real terminal: the home screen comes, answers, and gives the terminal back."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import synthetic
from geocont.run_lock import holder
from geocont.runs import Recording
from test_screen_in_a_terminal import PATIENCE, Terminal, given_back

# Longer than from one look at the runs to the next.
QUIET_SECONDS = 4.0
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")


@contextmanager
def home(folder: Path, *program: str, **variables: str) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {"XDG_DATA_HOME": str(folder), "HF_HUB_CACHE": str(folder / "cache"), **variables}
    process = subprocess.Popen(
        [sys.executable, *(program or ("-m", "geocont_tui"))],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    terminal = Terminal(parent, process)
    try:
        yield terminal
    finally:
        process.kill()
        process.wait()
        terminal.hang_up()


def test_it_comes_and_goes_with_no_color_as_asked(tmp_path):
    with home(tmp_path, NO_COLOR="1") as terminal:
        terminal.read_until(b"There are no runs yet.")
        terminal.read_until(b"residual")
        os.write(terminal.parent, b"q")
        assert terminal.end() == 0
        assert given_back(terminal.written)
        assert b"Traceback" not in terminal.written
        assert not COLOUR.search(terminal.written)


def test_sigterm_gives_the_terminal_back(tmp_path):
    with home(tmp_path) as terminal:
        terminal.read_until(b"There are no runs yet.")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert given_back(terminal.written)


def test_a_bug_in_the_screen_is_two_lines_and_a_log_without_local_variables(tmp_path):
    secret = "hf_a_token_in_a_local_variable"
    bug = f"""
import sys
from geocont_tui import cli
from geocont_tui.terminal import Settings, prepare
prepare(Settings())
from geocont_tui.screens import home
def on_mount(self):
    token = {secret!r}
    raise ZeroDivisionError("a bug in the screen")
home.HomeScreen.on_mount = on_mount
sys.exit(cli.run([]))
"""
    with home(tmp_path, "-c", bug, XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert terminal.end() == 1
        assert given_back(terminal.written)
        assert b"the screen failed: ZeroDivisionError: a bug in the screen" in terminal.written
        assert b"Traceback" not in terminal.written
    [log] = tmp_path.rglob("error.log")
    assert "a bug in the screen" in log.read_text()
    assert secret not in log.read_text() + terminal.written.decode()


def test_a_signal_before_anything_is_shown_ends_it_in_order(tmp_path):
    with home(tmp_path) as terminal:
        terminal.read_until(b"\x1b[?1049h")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert given_back(terminal.written)
        assert b"NoMatches" not in terminal.written


def test_a_terminal_that_goes_away_ends_it(tmp_path):
    with home(tmp_path) as terminal:
        terminal.read_until(b"There are no runs yet.")
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 129


def test_a_preset_goes_on_in_the_background_and_is_watched(tmp_path, screen, monkeypatch):
    try:
        with home(tmp_path) as terminal:
            terminal.read_until(b"There are no runs yet.")
            os.write(terminal.parent, b"2\r")
            terminal.read_until(b"steps/s")
            # Back home, and out of there: the run goes on.
            terminal.written = b""
            os.write(terminal.parent, b"q")
            terminal.read_until(b"1 live")
            os.write(terminal.parent, b"q")
            assert terminal.end() == 0
            assert given_back(terminal.written)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        watching = screen("watch")
        watching.read_until("ablate mlp")
        watching.read_until("running")
        watching.press("x")
        watching.read_until("stop the training?")
        watching.press("x")
        watching.read_until("stopped")
    finally:
        for run in (tmp_path / "geocont-tui" / "runs").glob("*"):
            writer = holder(run)
            if writer is not None:
                os.kill(writer.pid, signal.SIGKILL)


def test_a_model_that_there_is_not_is_explained_at_home(tmp_path):
    with home(tmp_path) as terminal:
        terminal.read_until(b"There are no runs yet.")
        os.write(terminal.parent, b"a")
        terminal.read_until(b"take it")
        os.write(terminal.parent, b"/nowhere/at/all\r")
        terminal.read_until(b"that did not work")
        terminal.read_until(b"/nowhere/at/all")
        terminal.written = b""
        os.write(terminal.parent, b"\r")
        terminal.read_until(b"quit")
        os.write(terminal.parent, b"q")
        assert terminal.end() == 0


def test_while_nothing_happens_nothing_is_sent(tmp_path):
    for number in range(3):
        folder = tmp_path / "geocont-tui" / "runs" / f"2026-01-0{number + 1}T00-00-00_run"
        folder.mkdir(parents=True)
        for _ in Recording(synthetic.events(), folder):
            pass
    with home(tmp_path) as terminal:
        terminal.read_until(b"residual")
        terminal.read_until(b"2026-01-03")
        # Until the first paint is over.
        while select.select([terminal.parent], [], [], 1.5)[0]:
            os.read(terminal.parent, 65536)
        deadline = time.monotonic() + QUIET_SECONDS
        assert not select.select([terminal.parent], [], [], max(deadline - time.monotonic(), 0))[0]
