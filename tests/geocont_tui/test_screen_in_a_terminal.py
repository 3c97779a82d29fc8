"""The screen in a real terminal: whatever ends it, the terminal is given back and the journal is complete."""

import fcntl
import os
import pty
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

import msgspec
import pytest
from geocont.events import Event, RunFinished

TESTS = Path(__file__).parents[1]
SECRET = "hf_a_token_in_a_local_variable"
PATIENCE = 20.0

# `train` without torch: synthetic events, then heartbeats as from long steps.
PROGRAM = f"""
import sys, threading
from pathlib import Path

sys.path.insert(0, {str(TESTS)!r})
from geocont_tui.terminal import Settings, prepare

prepare(Settings())
import synthetic

def train():
    last = None
    for event in synthetic.events(until=0.6):
        last = event
        yield event
    while True:
        threading.Event().wait(0.1)
        yield last

from geocont_tui import app
if sys.argv[2:] == ["bug"]:
    def paint(self, *arguments, **options):
        token = {SECRET!r}
        raise ZeroDivisionError("a bug in the screen")
    app.AblationScreen.paint = paint
sys.exit(app.run_ablation(synthetic.experiment(), train(), Path(sys.argv[1]), Settings()))
"""


class Terminal:
    """A process in a terminal of its own: what it wrote so far, and its end."""

    def __init__(self, parent: int, process: subprocess.Popen[bytes]) -> None:
        self.parent: int | None = parent
        self.process = process
        self.written = b""

    def read_until(self, text: bytes | None) -> None:
        """Read until `text` has been written; until the process has ended if None."""
        deadline = time.monotonic() + PATIENCE
        while text is None or text not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            ready, _, _ = select.select([self.parent], [], [], 0.2)
            if ready:
                try:
                    chunk = os.read(self.parent, 65536)
                except OSError:
                    chunk = b""
                self.written += chunk
            if (not ready or not chunk) and self.process.poll() is not None:
                assert text is None, self.written[-2000:]
                return

    def hang_up(self) -> None:
        if self.parent is not None:
            os.close(self.parent)
            self.parent = None

    def end(self) -> int:
        self.read_until(None)
        return self.process.wait(PATIENCE)


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    opened = Terminal(parent, process)
    try:
        yield opened
    finally:
        process.kill()
        process.wait()
        opened.hang_up()


def last_event(folder: Path) -> Event:
    return msgspec.json.decode((folder / "events.jsonl").read_bytes().splitlines()[-1], type=Event)


def given_back(written: bytes) -> bool:
    """Main screen, cursor and mouse as before."""
    return all(written.rindex(b"\x1b[?" + off) > written.rindex(b"\x1b[?" + on) for off, on in OFF_AND_ON)


OFF_AND_ON = ((b"1049l", b"1049h"), (b"25h", b"25l"), (b"1000l", b"1000h"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back_and_closes_the_journal(tmp_path, number, code):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        run.process.send_signal(number)
        assert run.end() == code
        assert given_back(run.written)
        assert b"Traceback" not in run.written
    assert isinstance(last_event(tmp_path), RunFinished)
    assert last_event(tmp_path).status == "stopped"


def test_a_terminal_that_goes_away_leaves_a_complete_journal(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        run.hang_up()
        assert run.process.wait(PATIENCE) == 129
    assert last_event(tmp_path).status == "stopped"


def test_quitting_says_where_the_run_is_kept(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        os.write(run.parent, b"q")
        run.read_until(b"go on")
        os.write(run.parent, b"x")
        assert run.end() == 130
        assert given_back(run.written)
        assert tmp_path.name in run.written[run.written.rindex(b"\x1b[?1049l") :].decode()
    assert last_event(tmp_path).status == "stopped"


def test_a_bug_in_the_screen_shows_no_local_variables(tmp_path):
    with terminal(tmp_path, "bug") as run:
        assert run.end() == 1
        assert given_back(run.written)
        assert b"a bug in the screen" in run.written
        assert SECRET.encode() not in run.written
    assert SECRET not in (tmp_path / "error.log").read_text()
    assert "a bug in the screen" in (tmp_path / "error.log").read_text()
    assert last_event(tmp_path).status == "stopped"
