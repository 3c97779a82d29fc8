"""Train an experiment in processes of its own: one for each core on a CPU, one for a GPU.

Threads would take turns at Python's interpreter lock: two of them lost a fifth of the two cores, and a screen beside
them waited for its turn. What a worker process says, it says in JSON lines (see `worker`); this side needs no torch.
"""

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal, NoReturn

import msgspec

from geocont.ablations.experiment import AnyExperiment, AnyVariant, LanguageExperiment
from geocont.ablations.slices import AHEAD as AHEAD
from geocont.ablations.slices import Slice, report
from geocont.errors import InputError, JobError
from geocont.events import Event, Message, RunFinished, RunStarted
from geocont.journal import Journaled, journaled

_HEARTBEAT_SECONDS = 0.4
_LEAVING_SECONDS = 3.0
_CHECKPOINTS = "checkpoint"
STOP = b"stop"
"""What a worker is told that shall keep what it has and end."""
_SHOWN_LINES = 3
# -P: what lies in the working directory is not imported.
_COMMAND = [sys.executable, "-P", "-m", "geocont.ablations.worker"]


class Task(msgspec.Struct, frozen=True, tag=True):
    """What a worker is begun with."""

    experiment: AnyExperiment
    device: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A worker's first answer: data and device are there. `workers` is how many of them this device keeps busy."""

    started: RunStarted
    message: Message
    workers: int


class Note(msgspec.Struct, frozen=True, tag=True):
    """What a worker does that takes long, before it is Ready: a line for the user."""

    text: str


class Share(msgspec.Struct, frozen=True, tag=True):
    """Which networks a worker trains, by their place in `networks` of the experiment.

    `checkpoints` is the folder for them, None where none are kept; `probed` are, network by network, the steps whose
    measurements are journaled.
    """

    networks: tuple[int, ...]
    checkpoints: str | None = None
    probed: tuple[tuple[int, ...], ...] = ()


class Done(msgspec.Struct, frozen=True, tag=True):
    """A slice of work."""

    part: Slice


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Why a worker ended early. `traceback` is set where it was a bug."""

    kind: Literal["input", "job", "bug"]
    problem: str
    remedy: str = ""
    traceback: str = ""


class WorkerError(Exception):
    """A bug in a training process; its cause holds the traceback of that process."""


class _Remote(Exception):  # noqa: N818
    """A traceback from another process, as text."""


def train(
    experiment: AnyExperiment,
    device: str = "auto",
    folder: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[Event]:
    """The events of `training.train`, from worker processes. Closing the generator ends them.

    Args:
        experiment: what to train.
        device: auto, cpu, cuda, cuda:1 or mps.
        folder: the run's folder. It keeps checkpoints, and what it holds of an interrupted run is gone on with:
            networks that its journal has as done are left alone, the others begin at their newest checkpoint that fits
            (on a CPU with the very same numbers), and some events come that the journal holds already. It is looked at
            after the first event, and need not exist before; without it nothing is kept.
        say: gets a line for everything long that happens before the first event: texts are fetched and tokenized.

    Raises:
        InputError, JobError: as `training.train` does.
        InputError: the journal in `folder` is damaged.
        JobError: a worker was killed.
        WorkerError: a worker failed in a way nobody expected.
    """
    task = Task(experiment, device)
    inbox: _Inbox = queue.SimpleQueue()
    # Only torch knows whether there is a GPU. Where there can be none, all workers begin at once.
    several = device == "cpu" or (device == "auto" and not _may_have_gpu())
    # A text is prepared once, not by all of them.
    several &= not isinstance(experiment, LanguageExperiment)
    crew = [_Worker(task, inbox) for _ in range(min(_cores(), len(experiment.networks)) if several else 1)]
    try:
        _, ready = _receive(inbox, crew, None)
        while isinstance(ready, Note):
            if say is not None:
                say(ready.text)
            _, ready = _receive(inbox, crew, None)
        if not isinstance(ready, Ready):
            raise WorkerError("a training process ended before it had begun")
        yield ready.started
        yield ready.message
        held = Journaled() if folder is None else journaled(folder)
        checkpoints = folder / _CHECKPOINTS if folder is not None and folder.is_dir() else None
        dealt = _deal(experiment, held, ready.workers, checkpoints)
        crew += [_Worker(task, inbox) for _ in range(len(dealt) - len(crew))]
        working = crew[: len(dealt)]
        for worker in crew[len(dealt) :]:
            worker.leave()
        for worker, share in zip(working, dealt, strict=True):
            worker.send(share)
        for event in report(
            _slices(inbox, working),
            training_seconds=held.training_seconds,
            probe_seconds=held.probe_seconds,
            earlier_steps=sum(held.over.values()),
        ):
            if isinstance(event, RunFinished) and checkpoints is not None:
                # What was kept is of no use any more; that it cannot be removed is no reason to fail.
                shutil.rmtree(checkpoints, ignore_errors=True)
            yield event
    finally:
        for worker in crew:
            worker.leave()
        deadline = time.monotonic() + _LEAVING_SECONDS
        for worker in crew:
            worker.wait(deadline)


def _deal(experiment: AnyExperiment, held: Journaled, workers: int, checkpoints: Path | None) -> list[Share]:
    """What is left to be trained, a share for each worker."""
    networks = experiment.networks
    left = [place for place, (variant, seed) in enumerate(networks) if (variant.name, seed) not in held.over]
    probed: dict[tuple[str, int], list[int]] = {}
    for kind, *rest in held.keys:
        if kind == "probe":
            variant_name, seed, _, step = rest
            probed.setdefault((str(variant_name), int(seed)), []).append(int(step))
    dealt = shares([networks[place] for place in left], min(workers, len(left)))
    chosen = [tuple(left[index] for index in share) for share in dealt]
    names = {place: (networks[place][0].name, networks[place][1]) for place in left}
    return [
        Share(
            networks=places,
            checkpoints=None if checkpoints is None else str(checkpoints),
            probed=tuple(tuple(sorted(probed.get(names[place], ()))) for place in places),
        )
        for places in chosen
    ]


def shares(networks: Sequence[tuple[AnyVariant, int]], count: int) -> list[tuple[int, ...]]:
    """Deal out networks, by their place, so that all shares take about the same time: the longest first."""

    def work(place: int) -> int:
        variant, _ = networks[place]
        return variant.steps * variant.multiplications

    dealt: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    # Variant after variant: a step of one takes longer than of another of as much work, so its seeds are spread.
    for place in sorted(range(len(networks)), key=lambda place: (-work(place), networks[place][0].name)):
        least = loads.index(min(loads))
        dealt[least].append(place)
        loads[least] += work(place)
    return [tuple(sorted(share)) for share in dealt]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _may_have_gpu() -> bool:
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvmap")
    return sys.platform in ("darwin", "win32") or any(Path(driver).exists() for driver in drivers)


class _Worker:
    """A training process and the thread that listens to it."""

    def __init__(self, task: Task, inbox: "_Inbox") -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        is_of_text = isinstance(task.experiment, LanguageExperiment)
        self._largest = (
            "raise accumulation, lower sequence_length, width or depth"
            if is_of_text
            else "lower width, depth or batch_size"
        )
        # A group of its own: Ctrl-C is for this side alone.
        self.process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0 if os.name == "posix" else None,
        )
        threading.Thread(target=self._listen, args=(inbox,), name="training-listener", daemon=True).start()
        self.send(task)

    def _listen(self, inbox: "_Inbox") -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                inbox.put((self, line))
        inbox.put((self, b""))

    def send(self, message: Task | Share | None) -> None:
        """A message; None says that a slice has been taken."""
        self._write(b"" if message is None else msgspec.json.encode(message))

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        # A worker that has gone is noticed where its answers end.
        with suppress(OSError, ValueError):
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def leave(self) -> None:
        """Ask the process to keep what it has, and to end."""
        assert self.process.stdin is not None
        self._write(STOP)
        with suppress(OSError):
            self.process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Wait for the end of the process, and bring it about if it has not come by `deadline` (monotonic)."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()

    def death(self) -> JobError:
        """Why the process ended without a word."""
        code = self.process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        why = f": {' / '.join(said)}" if said else ""
        return JobError(
            f"a training process {how}{why}",
            f"if the machine ran out of memory: {self._largest}, or run fewer seeds with --seeds",
        )


_Answer = Ready | Note | Done | Failure
_Inbox = queue.SimpleQueue[tuple[_Worker, bytes]]


def _receive(inbox: _Inbox, crew: list[_Worker], timeout: float | None) -> tuple[_Worker, _Answer | None]:
    """The next answer of one of the crew, None when it has ended in order. Raises what ended it otherwise."""
    while True:
        worker, line = inbox.get(timeout=timeout)
        if worker not in crew:
            continue
        if not line:
            if worker.process.wait() == 0:
                return worker, None
            raise worker.death()
        answer = msgspec.json.decode(line, type=_Answer)
        if isinstance(answer, Failure):
            _raise(answer)
        return worker, answer


def _raise(failure: Failure) -> NoReturn:
    match failure.kind:
        case "input":
            raise InputError(failure.problem, failure.remedy)
        case "job":
            raise JobError(failure.problem, failure.remedy)
        case "bug":
            raise WorkerError(failure.problem) from _Remote(f"\n{failure.traceback}")


def _slices(inbox: _Inbox, crew: list[_Worker]) -> Iterator[Slice | None]:
    """What the crew does until all of it has ended; None where nothing has come for a while."""
    working = set(crew)
    said: set[str] = set()
    while working:
        try:
            worker, answer = _receive(inbox, crew, _HEARTBEAT_SECONDS)
        except queue.Empty:
            yield None
            continue
        match answer:
            case None:
                working.discard(worker)
            case Done(part):
                worker.send(None)
                # What every worker has to say (the disk is full) is said once.
                texts = [event.text for event in part.events if isinstance(event, Message)]
                if texts and said.issuperset(texts):
                    continue
                said.update(texts)
                yield part
