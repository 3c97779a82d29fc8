"""A process that trains its share of an experiment's networks for `crew`: `python -m geocont.ablations.worker`.

It talks in JSON lines. In: a Task, a Share, then one empty line for each slice of work that has been taken. Where the
line STOP comes, it writes its checkpoints and ends; where the input ends without it, because who began it is gone, the
process ends at once. Out: Notes while it prepares, a Ready, a Done for each slice until all is trained, or a Failure.
"""

import os
import queue
import signal
import sys
import threading
import traceback
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from geocont.ablations import crew
from geocont.ablations.experiment import LanguageExperiment
from geocont.ablations.slices import Slice
from geocont.errors import GeocontError, InputError

if TYPE_CHECKING:
    from geocont.ablations.workshop import Workshop

# For tests: seconds between two checkpoints of a stack.
_SECONDS = "GEOCONT_CHECKPOINT_SECONDS"


def main() -> None:
    """Work until done, told to leave, or alone. The exit code is 0 unless the process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        # The screen beside it comes first: it needs little, and keys wait for it.
        os.nice(5)
    answers = os.dup(1)
    # Whatever a library prints does not get among the answers.
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    keeping, stop = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(lines, keeping, stop), daemon=True).start()
    try:
        _work(lines, answers, keeping, stop)
    except GeocontError as error:
        kind = "input" if isinstance(error, InputError) else "job"
        _answer(answers, crew.Failure(kind=kind, problem=str(error), remedy=error.remedy))  # type: ignore[arg-type]
    except Exception as error:
        _answer(answers, _failure(error))
    # Nothing is left to be done; tearing torch down takes longer than anybody should wait.
    os._exit(0)


def _failure(error: Exception) -> crew.Failure:
    # Here, because it loads torch.
    from geocont.ablations.workshop import is_out_of_memory

    problem = f"{type(error).__name__}: {error}"
    if not is_out_of_memory(error):
        return crew.Failure(kind="bug", problem=problem, traceback=traceback.format_exc())
    # Other than in a step: the data, or a checkpoint that is written.
    return crew.Failure(
        kind="job",
        problem=f"out of memory beside the training ({problem.splitlines()[0]})",
        remedy="end other programs there, choose another --device, or lower width, depth or batch_size",
    )


def _listen(lines: "queue.SimpleQueue[bytes]", keeping: threading.Event, stop: threading.Event) -> None:
    """Hand the lines on; end the process where they end, unless it is `keeping` what it has because of `stop`."""
    for line in sys.stdin.buffer:
        if line.strip() == crew.STOP:
            stop.set()
            if not keeping.is_set():
                os._exit(0)
        lines.put(line)
    if not stop.is_set():
        os._exit(0)


def _answer(answers: int, answer: crew.Ready | crew.Note | crew.Done | crew.Failure) -> None:
    rest = memoryview(msgspec.json.encode(answer) + b"\n")
    while rest:
        rest = rest[os.write(answers, rest) :]


def _work(lines: "queue.SimpleQueue[bytes]", answers: int, keeping: threading.Event, stop: threading.Event) -> None:
    task = msgspec.json.decode(lines.get(), type=crew.Task)
    # Here, so that the process listens while torch is loaded.
    from geocont import devices
    from geocont.ablations.checkpoints import Checkpoints

    workshop = _workshop(task, answers)
    started, message = workshop.introduction()
    _answer(answers, crew.Ready(started, message, devices.worker_count(workshop.device)))
    share = msgspec.json.decode(lines.get(), type=crew.Share)
    networks = [task.experiment.networks[place] for place in share.networks]
    kept: Checkpoints | None = None
    known: list[Slice] = []
    if share.checkpoints is None:
        stacks = workshop.stacks(networks)
    else:
        seconds = os.environ.get(_SECONDS)
        kept = Checkpoints(Path(share.checkpoints), task.experiment, float(seconds) if seconds else None)
        kept.clean()
        workshop.folder = Path(share.checkpoints).parent
        probed = {
            (variant.name, seed): set(steps) for (variant, seed), steps in zip(networks, share.probed, strict=True)
        }
        stacks, known = workshop.continued(networks, probed, kept)
        keeping.set()
    for count, part in enumerate(chain(known, workshop.slices(stacks, stop, kept))):
        if count >= crew.AHEAD and not stop.is_set():
            lines.get()
        _answer(answers, crew.Done(part))


def _workshop(task: crew.Task, answers: int) -> "Workshop":
    if isinstance(task.experiment, LanguageExperiment):
        from geocont.ablations.language_training import LanguageWorkshop

        return LanguageWorkshop(task.experiment, task.device, lambda text: _answer(answers, crew.Note(text)))
    from geocont.ablations.training import ImageWorkshop

    return ImageWorkshop(task.experiment, task.device)


if __name__ == "__main__":
    main()
