"""How long a user waits for the help, and for the screen of an analysis.

`geocont-tui --help` must take under a fifth of `python -c "import torch"`: both run in fresh interpreters, in turn,
after one run of each that fills the caches; the medians are compared. `geocont-tui analyze` runs in a pseudo-terminal:
its screen must be there within a second of the header being read, which is when the run gets its folder.

    python tests/benchmarks/start_up.py                 21 runs of each, 5 screens
    python tests/benchmarks/start_up.py --self-check    3 runs of each, 1 screen; its time is printed only
"""

import argparse
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What the script `geocont-tui` does.
HELP = [sys.executable, "-c", "import sys; from geocont_tui.cli import main; sys.exit(main())", "--help"]
TORCH = [sys.executable, "-c", "import torch"]
LIMIT = 1 / 5
SCREEN_SECONDS = 1.0
LOOK_SECONDS = 0.005
LONGEST_SECONDS = 120.0


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def make_model(folder: Path) -> None:
    """A model of 32 layers with 7 matrices each, as an 8B model has them, but small."""
    import torch
    from safetensors.torch import save_file

    names = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    save_file(
        {
            f"model.layers.{layer}.{name}.weight": torch.randn(256, 256, dtype=torch.bfloat16)
            for layer in range(32)
            for name in names
        },
        folder / "model.safetensors",
    )


def screen_seconds(model: Path, runs: Path) -> float:
    """From the run's folder being there to the first frame with its matrices."""
    command = [sys.executable, "-m", "geocont_tui", "analyze", str(model), "--no-cache", "--run-dir", str(runs)]
    pid, line = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color"})
    read, seen, end = 0.0, b"", time.perf_counter() + LONGEST_SECONDS
    try:
        while b"\x1b[?1049h" not in seen or b"matrices" not in seen.split(b"\x1b[?1049h")[1]:
            if time.perf_counter() > end:
                raise SystemExit(f"there was no screen; the last was {seen[-300:]!r}")
            if not read and runs.is_dir() and any(runs.iterdir()):
                read = time.perf_counter()
            if select.select([line], [], [], LOOK_SECONDS)[0]:
                chunk = os.read(line, 65536)
                os.write(line, b"\x1b[1;1R" * chunk.count(b"\x1b[6n"))
                seen += chunk
        return time.perf_counter() - read
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--self-check", action="store_true", help="fewer runs")
    arguments = parser.parse_args()
    runs = 3 if arguments.self_check else arguments.runs
    times = [(seconds(HELP), seconds(TORCH)) for _ in range(runs + 1)][1:]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"geocont-tui --help {1000 * ours:7.0f} ms   python -c 'import torch' {1000 * theirs:7.0f} ms   ", end="")
    print(f"share {ours / theirs:.3f}, to be under {LIMIT}")
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        make_model(folder)
        screens = [screen_seconds(folder, folder / f"{run}") for run in range(1 if arguments.self_check else 5)]
    screen = statistics.median(screens)
    print(f"header read to screen of an analysis {1000 * screen:7.0f} ms, to be under {1000 * SCREEN_SECONDS:.0f}")
    return 0 if ours < LIMIT * theirs and (screen < SCREEN_SECONDS or arguments.self_check) else 1


if __name__ == "__main__":
    sys.exit(main())
