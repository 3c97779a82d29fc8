"""How long `geocont-tui --help` takes, as a share of `python -c "import torch"`. It must be under a fifth.

Both run in fresh interpreters, in turn, after one run of each that fills the caches; the medians are compared.

    python tests/benchmarks/start_up.py                 21 runs of each, under a minute
    python tests/benchmarks/start_up.py --self-check    3 runs of each
"""

import argparse
import statistics
import subprocess
import sys
import time

# What the script `geocont-tui` does.
HELP = [sys.executable, "-c", "import sys; from geocont_tui.cli import main; sys.exit(main())", "--help"]
TORCH = [sys.executable, "-c", "import torch"]
LIMIT = 1 / 5


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


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
    return 0 if ours < LIMIT * theirs else 1


if __name__ == "__main__":
    sys.exit(main())
