"""Share of the training time that checkpoints take, for one worker's networks of the default experiment.

Trains every second network (what one of two workers has) in this process, keeps checkpoints as a run does, and times
each from the state of its networks to the file on disk. The share must be under 2 %. The last ones, written when a run
is stopped, are left out: they are written once.

    python tests/benchmarks/checkpoints.py                 150 s of training
    python tests/benchmarks/checkpoints.py --self-check    2 s, a checkpoint every quarter of a second; no limit
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from geocont.ablations import checkpoints, workshop
from geocont.ablations.experiment import read
from geocont.ablations.training import ImageWorkshop

LIMIT = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--self-check", action="store_true")
    arguments = parser.parse_args()
    length = 2.0 if arguments.self_check else arguments.seconds

    spent: list[float] = []
    keep = workshop._keep

    def timed(*given: Any) -> None:
        began = time.perf_counter()
        keep(*given)
        spent.append(time.perf_counter() - began)

    workshop._keep = timed
    experiment = read("mlp")
    trained = ImageWorkshop(experiment, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        kept = checkpoints.Checkpoints(Path(folder) / "checkpoint", experiment, 0.25 if arguments.self_check else None)
        slices = trained.slices(trained.stacks(experiment.networks[::2]), threading.Event(), kept)
        began = time.perf_counter()
        while time.perf_counter() - began < length or (arguments.self_check and not spent):
            next(slices)
        took = time.perf_counter() - began
        files = list((Path(folder) / "checkpoint").glob("*.safetensors"))
        size = max((file.stat().st_size for file in files), default=0)
    share = sum(spent) / took
    print(f"{len(spent)} checkpoints of {size / 1e6:.0f} MB in {took:.0f} s: {sum(spent):.2f} s, ", end="")
    print(f"{100 * share:.2f} % of the time, to be under {100 * LIMIT:.0f} %")
    if arguments.self_check:
        print("checkpoints: self-check " + ("passed" if spent and size else "failed"))
        return 0 if spent and size else 1
    return 0 if share < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
