"""A workshop trains any networks of an experiment on a device: which one next, checkpoints, and going on from them.

Work is dealt out in slices of a fraction of a second, the least advanced network first, so that all curves grow
together. What one step is, the two kinds of networks know.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from geocont import devices
from geocont.ablations import checkpoints
from geocont.ablations.experiment import AnyExperiment, AnyVariant
from geocont.ablations.slices import AHEAD, Slice
from geocont.errors import InputError
from geocont.events import (
    Event,
    Message,
    NetworkDiverged,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    Probe,
    RunStarted,
)
from geocont.versions import versions

# A slice of work: short enough for a stop or a pause to be prompt, long enough that changing networks costs nothing.
_SLICE_SECONDS = 0.15


class Stack(Protocol):
    """Networks that train in lock step; `number` is the place of the first of them in the experiment.

    `tokens` is how many it has been trained on in this process, None where it is not trained on text.
    """

    number: int
    step: int
    kept_step: int
    training_seconds: float
    probe_seconds: float
    network_steps: int

    @property
    def names(self) -> list[checkpoints.Network]: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def progress(self) -> float: ...
    def advance(self, seconds: float, stop: threading.Event) -> list[Event]: ...
    def positions(self) -> list[NetworkProgress]: ...
    def state(self) -> dict[str, Tensor]: ...


class Workshop(ABC):
    """An experiment's data on a device, and the training of any of its networks there."""

    device: torch.device
    experiment: AnyExperiment
    threads: int = 1
    """How many cores a network is trained on, where that is a CPU."""
    folder: Path | None = None
    """The run's folder, where there is one."""

    @abstractmethod
    def description(self, device: str) -> str:
        """What is trained on what, in one line, on the device so named."""

    def introduction(self) -> tuple[RunStarted, Message]:
        """The first events of the run."""
        experiment, described = self.experiment, devices.describe(self.device)
        started = RunStarted(
            name=experiment.name,
            experiment=msgspec.json.decode(msgspec.json.encode(experiment)),
            networks=tuple(
                NetworkPlan(variant=variant.name, seed=seed, steps=variant.steps)
                for variant, seed in experiment.networks
            ),
            device=described,
            versions=versions(),
            time=time.time(),
        )
        return started, Message(level="info", text=self.description(described), time=time.time())

    @abstractmethod
    def stacks(self, networks: Sequence[tuple[Any, int]]) -> Sequence[Stack]:
        """These networks (variant and seed) in stacks, to be trained from the beginning."""

    @abstractmethod
    def restored(self, stored: checkpoints.Stored, names: Sequence[checkpoints.Network]) -> Stack:
        """The networks `names` of a checkpoint as a stack.

        Raises:
            InputError: it is not what it should be.
            JobError: there is no memory for it now. It can be gone on from later.
        """

    @abstractmethod
    def explain(self, error: Exception, stack: Any) -> None:
        """Raise what a step failed with as an error that the user can act on, if it is one."""

    def continued(
        self,
        networks: Sequence[tuple[AnyVariant, int]],
        probed: Mapping[checkpoints.Network, set[int]],
        kept: checkpoints.Checkpoints,
    ) -> tuple[list[Stack], list[Slice]]:
        """These networks in stacks, each from its newest checkpoint that fits, and slices that say where they are.

        `probed` are the steps at which they have been measured. What fits nowhere begins anew.
        """
        by_name = {(variant.name, seed): (variant, seed) for variant, seed in networks}
        stacks: list[Stack] = []
        slices: list[Slice] = []
        anew: list[checkpoints.Network] = []
        for group in self.stacks(networks):
            for stored, names in kept.choose(group.names, probed):
                if stored is None:
                    anew += names
                    continue
                try:
                    stack = self.restored(stored, names)
                except InputError as error:
                    kept.problems.append(
                        f"the checkpoint {stored.path.name} is not used ({error}): training begins anew"
                    )
                    anew += names
                    continue
                stacks.append(stack)
                slices.append(
                    Slice(
                        events=tuple(event for event in stored.facts.events if _network_of(event) in names),
                        positions=tuple(stack.positions()),
                        training_seconds=0.0,
                        probe_seconds=0.0,
                        network_steps=0,
                        earlier_steps=stack.step * len(stack.names),
                    )
                )
        stacks += self.stacks([by_name[name] for name in anew])
        return stacks, [*(_said(problem) for problem in kept.problems), *slices]

    def slices(
        self,
        stacks: Sequence[Stack],
        stop: threading.Event,
        kept: checkpoints.Checkpoints | None = None,
    ) -> Iterator[Slice]:
        """Train these stacks, the least advanced first, until all are done or `stop`.

        With `kept` checkpoints are written now and then, and after `stop`.
        """
        waiting = list(stacks)
        # As many as may not have been journaled when this process or its parent is killed.
        recent: deque[tuple[Stack, tuple[Event, ...]]] = deque(maxlen=AHEAD + 2)
        over: list[Stack] = []
        is_warned = False
        while waiting and not stop.is_set():
            stack = min(waiting, key=lambda candidate: candidate.progress)
            before = (stack.training_seconds, stack.probe_seconds, stack.network_steps)
            tokens = stack.tokens
            with _threads(self.device, self.threads):
                try:
                    events = tuple(stack.advance(_SLICE_SECONDS, stop))
                except Exception as error:
                    self.explain(error, stack)
                    raise
            recent.append((stack, events))
            yield Slice(
                events=events,
                positions=tuple(stack.positions()),
                training_seconds=stack.training_seconds - before[0],
                probe_seconds=stack.probe_seconds - before[1],
                network_steps=stack.network_steps - before[2],
                tokens=None if stack.tokens is None or tokens is None else stack.tokens - tokens,
            )
            if not stack.names:
                waiting.remove(stack)
                over.append(stack)
            if kept is None:
                continue
            for gone in [gone for gone in over if not any(gone is one for one, _ in recent)]:
                kept.forget(gone.number)
                over.remove(gone)
            if stack.names and kept.is_due(stack.number):
                try:
                    _keep(kept, stack, recent)
                except OSError as error:
                    if not is_warned:
                        is_warned = True
                        yield _said(
                            f"checkpoints cannot be written ({error.strerror or error}): the training goes on without"
                        )
        if kept is not None:
            for stack in waiting:
                # Who stops does not wait for a disk that is full.
                with suppress(OSError):
                    _keep(kept, stack, recent)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory has run out. A CPU's allocator and a GPU's driver raise what only its words tell from others."""
    words = ("can't allocate memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def _keep(kept: checkpoints.Checkpoints, stack: Stack, recent: Iterable[tuple[Stack, tuple[Event, ...]]]) -> None:
    if stack.step > stack.kept_step:
        names = stack.names
        events = [event for one, part in recent if one is stack for event in part if _network_of(event) in names]
        kept.write(stack.number, stack.step, names, stack.state(), events)
        stack.kept_step = stack.step


def _network_of(event: Event) -> checkpoints.Network | None:
    return (event.variant, event.seed) if isinstance(event, Probe | NetworkFinished | NetworkDiverged) else None


def _said(text: str) -> Slice:
    message = Message(level="warning", text=text, time=time.time())
    return Slice(events=(message,), positions=(), training_seconds=0.0, probe_seconds=0.0, network_steps=0)


@contextmanager
def _threads(device: torch.device, count: int) -> Iterator[None]:
    """On a CPU so many cores for each network, whoever calls."""
    if device.type != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
