"""A slow line, one that stands still and one that is gone: frames are dropped, and the work goes on."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from geocont.events import Event, Progress

from geocont_tui.terminal_line import Line

TESTS = Path(__file__).parents[1]
PATIENCE = 20.0
ASKED, ANSWER = "\x1b[6n", b"\x1b[1;1R"
COLUMNS, ROWS = 80, 24
# How often the program has an event, and what a line at 9600 baud takes.
EVENTS_PER_SECOND = 50
BAUD_9600 = 960


@contextmanager
def raw_terminal() -> Iterator[tuple[int, int]]:
    parent, child = pty.openpty()
    tty.setraw(child)
    ends = [parent, child]
    try:
        yield parent, child
    finally:
        for end in ends:
            with suppress(OSError):
                os.close(end)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def nothing() -> None:
    pass


def sent(parent: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        assert select.select([parent], [], [], PATIENCE)[0]
        data += os.read(parent, count - len(data))
    return data


def test_a_frame_is_on_its_way_until_the_terminal_has_answered():
    with raw_terminal() as (parent, child):
        moved: list[int] = []
        line = Line(child, lambda: moved.append(1), Clock())
        assert line.pending == 0
        line.write("σ" * 100)
        line.ask()
        assert sent(parent, 204) == "σ".encode() * 100 + ASKED.encode()
        wait_for(lambda: bool(moved))
        # The operating system has it all; the terminal says when it has.
        assert line.pending == 204
        line.write("x" * 10)
        line.ask()
        line.answered()
        assert sent(parent, 14) == b"x" * 10 + ASKED.encode()
        assert line.pending == 14
        line.answered()
        wait_for(lambda: line.pending == 0)
        assert line.written == 218
        line.close()


def test_a_terminal_that_never_answers_is_not_waited_for():
    with raw_terminal() as (parent, child):
        clock = Clock()
        line = Line(child, nothing, clock)
        line.write("x" * 100)
        line.ask()
        sent(parent, 104)
        wait_for(lambda: len(line._buffer) == 0)
        assert line.pending == 104
        clock.now += 0.6
        assert line.pending == 0
        line.write("x" * 100)
        line.ask()
        sent(parent, 104)
        wait_for(lambda: line.pending == 0)
        line.close()


def test_a_line_that_stands_still_for_a_minute_is_given_a_few_frames_only():
    with raw_terminal() as (parent, child):
        clock = Clock()
        line = Line(child, nothing, clock)
        line.ask()
        sent(parent, 4)
        wait_for(lambda: len(line._buffer) == 0)
        line.answered()
        frames = 0
        for _ in range(240):
            if line.pending == 0:
                line.write("x" * 100)
                line.ask()
                sent(parent, 104)
                wait_for(lambda: len(line._buffer) == 0)
                frames += 1
            clock.now += 0.25
        assert 2 <= frames <= 7
        # It moves again: frame after frame, as before.
        for _ in range(frames):
            line.answered()
        assert line.pending == 0
        line.write("x" * 100)
        line.ask()
        assert line.pending == 104
        line.answered()
        wait_for(lambda: line.pending == 0)
        line.close()


def test_writing_waits_for_nobody_until_a_megabyte_is_on_its_way():
    with raw_terminal() as (parent, child):
        line = Line(child, nothing)
        for _ in range(100):
            line.write("x" * 10000)
        assert line.pending > 900_000
        assert sent(parent, 1_000_000) == b"x" * 1_000_000
        wait_for(lambda: line.pending == 0)
        line.close()


def test_what_is_written_to_a_terminal_that_has_gone_goes_nowhere():
    with raw_terminal() as (parent, child):
        line = Line(child, nothing)
        os.close(parent)
        for _ in range(300):
            line.write("x" * 10000)
        wait_for(lambda: line.pending == 0)
        line.close()


def test_what_waits_for_a_line_is_let_go_with_its_stream():
    with raw_terminal() as (parent, child):
        line = Line(child, nothing)
        line.write("x" * 100_000)
        wait_for(lambda: line.pending < 100_000)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, child)
        os.close(nowhere)
        # Nobody has read anything.
        line.close()
        assert line.pending == 0
        assert select.select([parent], [], [], 0)[0]


# A training that never ends: an event every so often, with its number as the steps a second, and everything moving.
PROGRAM = f"""
import sys, threading
from pathlib import Path

sys.path.insert(0, {str(TESTS)!r})
from geocont_tui.terminal import Settings, prepare

settings = Settings(fps=int(sys.argv[2]))
prepare(settings)
import msgspec
import synthetic
from geocont.events import Probe, Progress

def train():
    events = list(synthetic.events(probes=200))
    moving = [event for event in events if isinstance(event, Progress)]
    probes = [event for event in events if isinstance(event, Probe)]
    yield events[0]
    number = 0
    while True:
        step = min(number // 5, len(moving) - 1)
        if number % 5 == 0:
            yield from probes[24 * step : 24 * step + 24]
        threading.Event().wait(1 / {EVENTS_PER_SECOND})
        number += 1
        elapsed = number / {EVENTS_PER_SECOND}
        yield msgspec.structs.replace(moving[step], steps_per_second=float(number), elapsed=elapsed)

from geocont.runs import Recording
from geocont_tui import app
sys.exit(app.run_ablation(synthetic.experiment(), Recording(train(), Path(sys.argv[1])), settings))
"""

SEQUENCE = re.compile(r"\x1b\[(\??[<>]?[\d;$]*)([A-Za-z])|\x1b\[\?\d+\$p|[\n]|[^\x1b\n]+")


class Terminal:
    """A terminal with a program in it: reads as fast as it is told to, draws cells, and answers like any other."""

    def __init__(self, folder: Path, fps: int, answers: bool) -> None:
        self.folder = folder
        self.answers = answers
        self.count = 0
        self.rows = [[" "] * COLUMNS for _ in range(ROWS)]
        self._x = self._y = 0
        self._rest = ""
        self._undecoded = b""
        self.parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(fps)],
            stdin=child,
            stdout=child,
            stderr=child,
            env=environment,
            start_new_session=True,
        )
        os.close(child)

    def read(self, seconds: float, rate: float | None = None) -> None:
        """Take what comes for some seconds, at most `rate` bytes a second."""
        slice_seconds = 0.05
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.parent], [], [], slice_seconds)[0]:
                data = os.read(self.parent, 65536 if rate is None else int(rate * slice_seconds))
                self.count += len(data)
                self._draw(data)
                if rate is not None:
                    time.sleep(slice_seconds)

    def read_until(self, condition: Callable[[], bool], rate: float | None = None) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.text
            self.read(0.05, rate)

    @property
    def text(self) -> str:
        return "\n".join("".join(row) for row in self.rows)

    @property
    def shown(self) -> int:
        """The number of the event that the screen shows; 0 for none yet."""
        found = re.search(r"([\d,]+) steps/s", self.text)
        return int(found[1].replace(",", "")) if found else 0

    @property
    def present(self) -> int:
        """The number of the newest event in the journal."""
        with (self.folder / "events.jsonl").open("rb") as file:
            file.seek(max(0, (self.folder / "events.jsonl").stat().st_size - 200_000))
            lines = file.read().split(b"\n")[1:-1]
        events = (msgspec.json.decode(line, type=Event) for line in reversed(lines))
        return next(int(event.steps_per_second or 0) for event in events if isinstance(event, Progress))

    def wait_for_events(self, count: int) -> None:
        """Wait, without reading, until the training has gone on by so many events."""
        there = self.present + count
        wait_for(lambda: self.present >= there)

    def press(self, keys: str) -> None:
        os.write(self.parent, keys.encode())

    def _draw(self, data: bytes) -> None:
        data = self._undecoded + data
        # A character that is cut by the end of what was read.
        cut = next(n for n in range(4) if _decodes(data[: len(data) - n]))
        text, self._undecoded = data[: len(data) - cut].decode(), data[len(data) - cut :]
        text = self._rest + text
        start = text.rfind("\x1b")
        self._rest = ""
        if start >= 0 and SEQUENCE.match(text, start) is None:
            text, self._rest = text[:start], text[start:]
        for piece in SEQUENCE.finditer(text):
            if piece[0] == "\n":
                self._x, self._y = 0, self._y + 1
            elif piece[0] == ASKED:
                if self.answers:
                    os.write(self.parent, ANSWER)
            elif piece[2] == "H":
                row, column = (int(number) for number in piece[1].split(";"))
                self._x, self._y = column - 1, row - 1
            elif not piece[0].startswith("\x1b"):
                for character in piece[0]:
                    if self._x < COLUMNS and self._y < ROWS:
                        self.rows[self._y][self._x] = character
                    self._x += 1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.parent)


def _decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def terminal(folder: Path, fps: int, answers: bool = True) -> Iterator[Terminal]:
    opened = Terminal(folder, fps, answers)
    try:
        yield opened
    finally:
        opened.close()


def seconds_old(terminal: Terminal) -> float:
    """How far what is shown lies behind, in the time of the events."""
    return (terminal.present - terminal.shown) / EVENTS_PER_SECOND


@pytest.mark.parametrize(("fps", "oldest"), [(20, 2.5), (1, 3.5)])
def test_what_is_shown_at_9600_baud_is_of_now_and_a_key_is_answered(tmp_path, fps, oldest):
    with terminal(tmp_path, fps) as line:
        line.read_until(lambda: line.shown > 0)
        ages = []
        for _ in range(6):
            line.read(0.5, BAUD_9600)
            ages.append(seconds_old(line))
        assert max(ages) < oldest
        line.press(" ")
        line.read_until(lambda: "paused" in line.text, BAUD_9600)

        # All of it arrives, and then there is silence: longer than from one paint to the next.
        def is_silent() -> bool:
            before = line.count
            line.read(1.5)
            return line.count == before

        wait_for(is_silent)


@pytest.mark.parametrize("answers", [True, False])
def test_a_line_that_stood_still_shows_the_present_and_the_training_went_on(tmp_path, answers):
    with terminal(tmp_path, fps=20, answers=answers) as line:
        line.read_until(lambda: line.shown > 50)
        # Nobody reads meanwhile.
        line.wait_for_events(3 * EVENTS_PER_SECOND)
        there, count = line.present, line.count
        line.read_until(lambda: line.shown >= there)
        assert line.count - count < (10_000 if answers else 30_000)


def test_keys_are_obeyed_while_the_line_stands_still(tmp_path):
    with terminal(tmp_path, fps=20) as line:
        line.read_until(lambda: line.shown > 20)
        # The answers to these keys are far more than the line holds.
        for _ in range(60):
            line.press("\t")
            line.wait_for_events(2)
        line.press(" ")

        def stands_still() -> bool:
            before = line.present
            time.sleep(0.3)
            return line.present == before

        wait_for(stands_still)
        there, count = line.present, line.count
        line.read_until(lambda: line.shown == there and "paused" in line.text)
        assert line.count - count < 40_000
