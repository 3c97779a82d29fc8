"""Bytes a second that the live ablation screen sends to its terminal while it trains, and that it sends when idle.

Starts the program in a pseudo-terminal as a user does, in true colour and at the default 4 paints a second, answers as
a terminal does when it is asked where the cursor is, and counts every byte. The start is left out. A second, short run
is looked at when it is done: then nothing may be sent.

    python tests/benchmarks/line_bytes.py                 80×24 and 140×40, 60 s each of the default experiment
    python tests/benchmarks/line_bytes.py --seconds 20
    python tests/benchmarks/line_bytes.py --self-check    a small experiment; checks that both are counted
"""

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time

# The columns and rows, and the most bytes a second that are meant to be sent there.
SIZES = ((80, 24, 5000), (140, 40, 12000))
CURSOR_ASKED, CURSOR_TOLD = b"\x1b[6n", b"\x1b[1;1R"
SETTLE_SECONDS = 5.0


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

    def read(self, seconds: float) -> bytes:
        """What arrives within `seconds`, answered where it asks."""
        data, end = b"", time.perf_counter() + seconds
        while (rest := end - time.perf_counter()) > 0:
            if select.select([self.fd], [], [], rest)[0]:
                try:
                    chunk = os.read(self.fd, 65536)
                except OSError:
                    raise SystemExit(f"the program ended; the last it said was {data[-500:]!r}") from None
                os.write(self.fd, CURSOR_TOLD * chunk.count(CURSOR_ASKED))
                data += chunk
        return data

    def read_until(self, mark: bytes, seconds: float) -> None:
        seen, end = b"", time.perf_counter() + seconds
        while mark not in seen:
            if time.perf_counter() > end:
                raise SystemExit(f"{mark!r} did not come within {seconds} s; the last was {seen[-300:]!r}")
            seen += self.read(0.1)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def bytes_while_training(columns: int, rows: int, seconds: float, arguments: list[str]) -> tuple[int, int]:
    """Bytes sent in `seconds`, and the most in one of them."""
    terminal = Terminal(columns, rows, arguments)
    try:
        terminal.read_until(b"running", 60)
        terminal.read(SETTLE_SECONDS)
        counts = [len(terminal.read(1.0)) for _ in range(max(int(seconds), 1))]
    finally:
        terminal.close()
    return sum(counts), max(counts)


def bytes_when_idle(columns: int, rows: int, seconds: float, arguments: list[str]) -> int:
    """Bytes sent in `seconds` by the screen of a run that is done."""
    terminal = Terminal(columns, rows, arguments)
    try:
        terminal.read_until(b"done", 120)
        terminal.read(SETTLE_SECONDS)
        return len(terminal.read(seconds))
    finally:
        terminal.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--self-check", action="store_true")
    options = parser.parse_args()
    seconds = 2 if options.self_check else options.seconds
    sizes = SIZES[:1] if options.self_check else SIZES
    with tempfile.TemporaryDirectory() as folder:
        base = ["ablate", "mlp", "--device", "cpu", "--run-dir", folder]
        for columns, rows, most in sizes:
            total, peak = bytes_while_training(columns, rows, seconds, base)
            print(
                f"{columns}×{rows}: {total / seconds:,.0f} bytes/s while training (meant: under {most:,}), "
                f"at most {peak:,} in a second",
                flush=True,
            )
        short = ["--seeds", "1", "--set", "data.images=2000", "--steps", "20"]
        idle = bytes_when_idle(80, 24, min(seconds, 10), [*base, *short])
        print(f"80×24: {idle} bytes in {min(seconds, 10)} s when the run is done")
    return 1 if options.self_check and (total == 0 or idle) else 0


if __name__ == "__main__":
    sys.exit(main())
