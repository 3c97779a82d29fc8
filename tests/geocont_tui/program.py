"""The program as a user meets it: a process with pipes, or on a terminal of its own."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from geocont.events import Event

PROGRAM = [sys.executable, "-P", "-m", "geocont_tui"]
PATIENCE = 30.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def journal(folder: Path) -> list[Event]:
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=Event) for line in lines if line.endswith(b"\n")]


class Screen:
    """The program on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.written = b""
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)

    def read_until(self, text: str) -> None:
        """Read until `text` is written, anew."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            if select.select([self.parent], [], [], 0.1)[0]:
                try:
                    self.written += os.read(self.parent, 65536)
                except OSError:
                    assert text.encode() in self.written, self.written[-2000:]
        self.written = self.written[self.written.rindex(text.encode()) :]

    def press(self, keys: str) -> None:
        os.write(self.parent, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.parent)
