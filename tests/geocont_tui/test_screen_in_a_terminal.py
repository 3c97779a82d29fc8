"""The screen in a real terminal: whatever ends it, the terminal is given back and the journal is complete."""

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from geocont.events import Event, RunFinished, RunStarted

TESTS = Path(__file__).parents[1]
SECRET = "hf_a_token_in_a_local_variable"
PATIENCE = 20.0

# `train` without torch: synthetic events, then heartbeats as from long steps.
PROGRAM = f"""
import signal, sys, threading
from pathlib import Path
from geocont.events import RunFinished

sys.path.insert(0, {str(TESTS)!r})
from geocont_tui.terminal import Settings, prepare

prepare(Settings())
import synthetic

def train():
    last = None
    for event in synthetic.events(until=0.6):
        last = event
        yield event
    if "deaf" in sys.argv:
        threading.Event().wait(60)
    while not (Path(sys.argv[1]) / "finish").exists():
        threading.Event().wait(0.05)
        yield last
    yield RunFinished(status="done", time=0.0)

# Whether or not the tests themselves run under nohup.
signal.signal(signal.SIGHUP, signal.SIG_IGN if "nohup" in sys.argv else signal.SIG_DFL)

from geocont.runs import Recording
from geocont_tui import app
if "flood" in sys.argv:
    # More than Textual's queue of writes and the line hold: its loop blocks once nobody reads.
    def flood(self):
        while True:
            self.app._driver.write("x" * 4096)
    app.RunScreen.action_repaint = flood
if "bug" in sys.argv:
    def paint(self, *arguments, **options):
        token = {SECRET!r}
        raise ZeroDivisionError("a bug in the screen")
    app.AblationScreen.paint = paint
sys.exit(app.run_ablation(synthetic.experiment(), Recording(train(), Path(sys.argv[1])), Settings()))
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
def terminal(folder: Path, *arguments: str, shell: bool = False) -> Iterator[Terminal]:
    """The program in a terminal, or a shell there that has started it."""
    command = [sys.executable, "-c", PROGRAM, str(folder), *arguments]
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        ["bash", "--norc", "-i"] if shell else command,
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    opened = Terminal(parent, process)
    if shell:
        (folder / "run.sh").write_text(shlex.join(command))
        os.write(parent, f". {folder / 'run.sh'}\n".encode())
    try:
        yield opened
    finally:
        # What went on in the background ends too.
        (folder / "finish").touch()
        process.kill()
        process.wait()
        opened.hang_up()


def last_event(folder: Path) -> Event:
    return msgspec.json.decode((folder / "events.jsonl").read_bytes().splitlines()[-1], type=Event)


def given_back(written: bytes) -> bool:
    """Main screen, cursor and mouse as before."""
    return all(written.rfind(b"\x1b[?" + off) > written.rfind(b"\x1b[?" + on) for off, on in OFF_AND_ON)


OFF_AND_ON = ((b"1049l", b"1049h"), (b"25h", b"25l"), (b"1000l", b"1000h"))


def journal_length(folder: Path) -> int:
    return (folder / "events.jsonl").stat().st_size


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def goes_on_to_its_end(run: Terminal, folder: Path) -> None:
    """Without its screen the same process writes the journal, until the job is done."""
    there = journal_length(folder)
    wait_for(lambda: journal_length(folder) > there + 2000)
    assert run.process.poll() is None
    (folder / "finish").touch()
    assert run.process.wait(PATIENCE) == 0
    assert isinstance(last_event(folder), RunFinished)
    assert last_event(folder).status == "done"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_the_terminal_back_and_closes_the_journal(tmp_path, number, code):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        run.process.send_signal(number)
        assert run.end() == code
        assert given_back(run.written)
        assert b"Traceback" not in run.written
    assert isinstance(last_event(tmp_path), RunFinished)
    assert last_event(tmp_path).status == "stopped"


@pytest.mark.parametrize("arguments", [(), ("nohup",)])
def test_the_job_goes_on_when_the_terminal_goes_away(tmp_path, arguments):
    with terminal(tmp_path, *arguments) as run:
        run.read_until(b"what this shows")
        run.hang_up()
        goes_on_to_its_end(run, tmp_path)
    assert not (tmp_path / "error.log").exists()


def test_the_job_goes_on_after_a_hang_up_and_the_terminal_is_given_back(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        run.process.send_signal(signal.SIGHUP)
        run.read_until(b"\x1b[?1049l")
        goes_on_to_its_end(run, tmp_path)
        run.read_until(None)
        assert given_back(run.written)
    assert not (tmp_path / "error.log").exists()


def test_what_went_on_without_its_screen_is_ended_by_a_signal(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        run.hang_up()
        there = journal_length(tmp_path)
        wait_for(lambda: journal_length(tmp_path) > there + 2000)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE) == 143
    assert last_event(tmp_path).status == "stopped"


def stall(run: Terminal) -> None:
    """Read no more, and have the program write until its loop stands still."""
    os.write(run.parent, b"\x0c")
    run.read_until(b"x" * 10000)


def test_a_signal_ends_it_while_the_line_is_stalled(tmp_path):
    with terminal(tmp_path, "flood") as run:
        before = termios.tcgetattr(run.parent)
        run.read_until(b"what this shows")
        during = termios.tcgetattr(run.parent)
        stall(run)
        began = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE) == 143
        assert time.monotonic() - began < 5
        assert during != before
        assert termios.tcgetattr(run.parent) == before
        run.read_until(None)
        assert given_back(run.written)
    # The job did not wait for the line.
    assert last_event(tmp_path).status == "stopped"


def test_a_second_signal_ends_it_at_once_and_a_deaf_job_within_5_seconds(tmp_path):
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        with terminal(folder, "deaf") as run:
            run.read_until(b"what this shows")
            began = time.monotonic()
            for _ in range(count):
                run.process.send_signal(signal.SIGTERM)
                run.read_until(b"\x1b[?1049l") if count == 2 else None
            assert run.end() == 143
            assert time.monotonic() - began < (5 if count == 1 else 2)
            assert given_back(run.written)


def test_ctrl_z_suspends_and_fg_paints_again(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        os.write(run.parent, b"\x1a")
        run.read_until(b"\x1b[?1049l")
        wait_for(lambda: os.waitid(os.P_PID, run.process.pid, os.WSTOPPED | os.WNOHANG) is not None)
        assert given_back(run.written)
        run.written = b""
        run.process.send_signal(signal.SIGCONT)
        run.read_until(b"what this shows")
        assert b"\x1b[?1049h" in run.written
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143


def test_a_signal_to_go_on_that_nobody_waits_for_leaves_nothing_behind(tmp_path):
    with terminal(tmp_path) as run:
        tasks = Path(f"/proc/{run.process.pid}/task")
        run.read_until(b"what this shows")
        before = len(list(tasks.iterdir()))
        run.written = b""
        # Somebody else may have had the terminal.
        run.process.send_signal(signal.SIGCONT)
        run.read_until(b"what this shows")
        wait_for(lambda: len(list(tasks.iterdir())) == before)
        run.hang_up()
        # The system sends one with a hang-up, too.
        while not (tmp_path / "error.log").exists() and len(list(tasks.iterdir())) >= before:
            run.process.send_signal(signal.SIGCONT)
        goes_on_to_its_end(run, tmp_path)
    assert not (tmp_path / "error.log").exists()


def test_a_signal_before_anything_is_shown_stops_a_run_that_has_begun(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"\x1b[?1049h")
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143
        assert given_back(run.written)
    assert not (tmp_path / "error.log").exists()
    first, *_, last = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert isinstance(msgspec.json.decode(first, type=Event), RunStarted)
    assert msgspec.json.decode(last, type=Event) == last_event(tmp_path)
    assert last_event(tmp_path).status == "stopped"


def test_a_screen_that_is_killed_leaves_a_terminal_as_it_was(tmp_path):
    watch = shlex.join([sys.executable, "-m", "geocont_tui", "watch", str(tmp_path)]).encode()
    with terminal(tmp_path, shell=True) as run:
        shell = run.process.pid
        children = Path(f"/proc/{shell}/task/{shell}/children")
        for command, shown in ((b"", b"what this shows"), (watch, b"interrupted")):
            os.write(run.parent, command + b"\n")
            run.read_until(shown)
            os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
            # The last of what brings the main screen back.
            run.read_until(b"\x1b[?1004l\x1b[0m")
            assert given_back(run.written)
            run.written = b""
            os.write(run.parent, b"stty -a\n")
            run.read_until(b"echoke")
            assert b" icanon " in run.written
            assert b" -echo " not in run.written
            run.written = b""


def test_quitting_says_where_the_run_is_kept(tmp_path):
    with terminal(tmp_path) as run:
        run.read_until(b"what this shows")
        os.write(run.parent, b"q")
        run.read_until(b"in the background")
        os.write(run.parent, b"x")
        assert run.end() == 130
        assert given_back(run.written)
        assert tmp_path.name in run.written[run.written.rindex(b"\x1b[?1049l") :].decode()
    assert last_event(tmp_path).status == "stopped"


def test_what_runs_in_the_background_gives_the_shell_its_terminal_back(tmp_path):
    with terminal(tmp_path, shell=True) as run:
        run.read_until(b"what this shows")
        os.write(run.parent, b"q")
        run.read_until(b"in the background")
        os.write(run.parent, b"\r")
        run.read_until(b"goes on in the background")
        # The prompt is there, and the same process still writes.
        os.write(run.parent, b"echo pro''mpt; jobs -l\n")
        run.read_until(b"prompt")
        assert given_back(run.written)
        there = journal_length(tmp_path)
        wait_for(lambda: journal_length(tmp_path) > there + 2000)
        # Neither Ctrl-C nor the end of the shell ends it.
        os.write(run.parent, b"\x03exit\nexit\n")
        assert run.process.wait(PATIENCE) is not None
        run.hang_up()
        there = journal_length(tmp_path)
        wait_for(lambda: journal_length(tmp_path) > there + 2000)
        (tmp_path / "finish").touch()
        wait_for(lambda: isinstance(last_event(tmp_path), RunFinished))
    assert last_event(tmp_path).status == "done"


def test_a_bug_in_the_screen_leaves_the_run_to_go_on_and_shows_no_local_variables(tmp_path):
    with terminal(tmp_path, "bug") as run:
        run.read_until(b"goes on in the background")
        assert given_back(run.written)
        assert b"a bug in the screen" in run.written
        assert SECRET.encode() not in run.written
        there = journal_length(tmp_path)
        wait_for(lambda: journal_length(tmp_path) > there + 2000)
        (tmp_path / "finish").touch()
        assert run.end() == 0
    assert SECRET not in (tmp_path / "error.log").read_text()
    assert "a bug in the screen" in (tmp_path / "error.log").read_text()
    assert last_event(tmp_path).status == "done"
