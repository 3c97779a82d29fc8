"""How long `watch` needs to open a long journal, as a multiple of reading its bytes, and whether memory stays flat.

Makes a journal in a temporary folder, opens it as a watching screen does (in a fresh interpreter), and lists a folder
of 500 runs. Opening 100 MB must take under 2 s.

    python tests/benchmarks/journal.py                 100 MB, and 10^5 events through a recorded run
    python tests/benchmarks/journal.py --self-check    2 MB, 5000 events, 20 runs
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

import synthetic
from geocont.events import Event, NetworkProgress, Progress, RunFinished, RunStarted
from geocont.journal import JOURNAL
from geocont.runs import Recording, list_runs

OPENING_SECONDS = 2.0
LISTING_SECONDS = 2.0
GROWTH_MB = 20.0
# What `geocont-tui watch` does before it draws, in a process of its own; it prints seconds and the measurements kept.
OPEN = """
import sys, time
from pathlib import Path
from geocont_tui.job import watched_run
began = time.perf_counter()
run = watched_run(Path(sys.argv[1]))
run.run()
print(time.perf_counter() - began, run.snapshot.state.measurements)
"""


def events() -> Iterator[Event]:
    """A run without an end: every network is measured at each step, with a heartbeat between."""
    started = next(event for event in synthetic.events() if isinstance(event, RunStarted))
    yield started
    names = list(dict.fromkeys(network.variant for network in started.networks))
    step = 0
    while True:
        for network in started.networks:
            measured = synthetic.probe(names.index(network.variant), network.seed, 7)
            yield msgspec.structs.replace(measured, step=step)
        yield Progress(
            networks=tuple(
                NetworkProgress(variant=network.variant, seed=network.seed, step=step, loss=0.5)
                for network in started.networks
            ),
            elapsed=float(step),
            steps_per_second=100.0,
            probe_share=0.01,
        )
        step += 1


def write(folder: Path, size: int) -> None:
    folder.mkdir(parents=True)
    written = 0
    with (folder / JOURNAL).open("wb") as file:
        for event in events():
            written += file.write(msgspec.json.encode(event) + b"\n")
            if written > size:
                break
        file.write(msgspec.json.encode(RunFinished(status="done", time=synthetic.START, elapsed=1.0)) + b"\n")


def opening(folder: Path) -> tuple[float, float, int]:
    """Seconds to read the bytes, seconds to open, measurements kept."""
    (folder / JOURNAL).read_bytes()
    began = time.perf_counter()
    (folder / JOURNAL).read_bytes()
    reading = time.perf_counter() - began
    told = subprocess.run([sys.executable, "-c", OPEN, str(folder)], check=True, capture_output=True, text=True).stdout
    seconds, kept = told.split()
    return reading, float(seconds), int(kept)


def listing(parent: Path, count: int) -> tuple[float, float]:
    """Seconds to list `count` runs of 200 kB each, and again."""
    write(parent / "run-0", 200_000)
    for number in range(1, count):
        shutil.copytree(parent / "run-0", parent / f"run-{number}")
    began = time.perf_counter()
    assert len(list_runs(parent)) == count
    first = time.perf_counter() - began
    began = time.perf_counter()
    list_runs(parent)
    return first, time.perf_counter() - began


def growth(folder: Path, count: int) -> float:
    """MB by which the most memory of a recorded run grows from its first tenth to its end of `count` events."""
    folder.mkdir()
    with Recording(events(), folder) as recording:
        early = 0
        for number, _event in enumerate(recording):
            if number == count // 10:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if number == count:
                break
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early) / unit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-check", action="store_true", help="small sizes")
    is_small = parser.parse_args().self_check
    size, count, runs = (2_000_000, 5_000, 20) if is_small else (100_000_000, 100_000, 500)
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        # First, while this process has not been larger yet.
        grown = growth(parent / "memory", count)
        shutil.rmtree(parent / "memory")
        write(parent / "long", size)
        reading, seconds, kept = opening(parent / "long")
        shutil.rmtree(parent / "long")
        first, again = listing(parent / "runs", runs)
    print(f"memory over {count} journaled events: {grown:+.1f} MB, to be under {GROWTH_MB:.0f}")
    print(
        f"opening {size // 10**6} MB: {seconds:.2f} s = {seconds / reading:.0f} x reading, {kept} measurements kept, "
        f"to be under {OPENING_SECONDS:.0f} s"
    )
    print(f"listing {runs} runs: {first:.2f} s, again {again:.2f} s, to be under {LISTING_SECONDS:.0f} s")
    is_well = grown < GROWTH_MB and seconds < OPENING_SECONDS and first < LISTING_SECONDS
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
