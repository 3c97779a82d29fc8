"""How long a key press takes to be answered on the live screen while all cores train, and what the screen sends.

Starts the program in a pseudo-terminal, as a user does, waits for the screen, and then presses `?` and escape in turn:
the time until the help has been drawn is its latency. Every byte that the screen writes is counted before and apart
from that. A second run at another size gives the bytes for a large terminal.

    python tests/benchmarks/key_latency.py                 80×24 and 140×40, 40 key presses each
    python tests/benchmarks/key_latency.py --self-check    a small experiment; checks that keys are answered at all
"""

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time

# What the help says of a key, and what stands under the help: each is sent when it has to be drawn.
HELP_MARK, SCREEN_MARK = "pause the training", "gradients coherent"


class Terminal:
    """The program in a pseudo-terminal of a given size."""

    def __init__(self, columns: int, rows: int, arguments: list[str]) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            environment.pop("NO_COLOR", None)
            os.execvpe(sys.executable, [sys.executable, "-m", "geocont_tui", *arguments], environment)
        self.pid = pid
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.sent = 0

    def read(self, seconds: float) -> str:
        """What arrives within `seconds`, or the first piece of it."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return ""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return ""
        self.sent += len(data)
        return data.decode("utf-8", "replace")

    def read_until(self, mark: str, seconds: float) -> float:
        """Seconds until `mark` has arrived."""
        began, seen = time.perf_counter(), ""
        while time.perf_counter() - began < seconds:
            seen += self.read(0.05)
            if mark in seen:
                return time.perf_counter() - began
        raise SystemExit(f"{mark!r} did not come within {seconds} s; the last of the screen was {seen[-500:]!r}")

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def measure(columns: int, rows: int, presses: int, watch_seconds: float, arguments: list[str]) -> None:
    terminal = Terminal(columns, rows, arguments)
    try:
        terminal.read_until("running", 60)
        end = time.perf_counter() + 5
        while time.perf_counter() < end:
            terminal.read(0.1)
        terminal.sent, began = 0, time.perf_counter()
        while time.perf_counter() - began < watch_seconds:
            terminal.read(0.1)
        rate = terminal.sent / watch_seconds
        latencies = []
        for _ in range(presses):
            terminal.press("?")
            latencies.append(terminal.read_until(HELP_MARK, 5))
            terminal.press("\x1b")
            terminal.read_until(SCREEN_MARK, 5)
    finally:
        terminal.close()
    milliseconds = sorted(1000 * latency for latency in latencies)
    print(
        f"{columns}×{rows}: key to complete answer, median {statistics.median(milliseconds):.0f} ms, "
        f"95 % {milliseconds[int(0.95 * (len(milliseconds) - 1))]:.0f} ms, most {milliseconds[-1]:.0f} ms "
        f"({presses} presses while training); the screen sends {rate / 1024:.1f} KiB/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", type=int, default=40)
    parser.add_argument("--self-check", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = ["ablate", "mlp", "--device", "cpu", "--run-dir", folder]
        if options.self_check:
            measure(80, 24, 3, 1.0, [*base, "--seeds", "1", "--set", "data.images=2000"])
        else:
            measure(80, 24, options.presses, 20.0, base)
            measure(140, 40, options.presses, 20.0, base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
