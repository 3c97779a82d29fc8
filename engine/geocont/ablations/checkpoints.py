"""Checkpoints of networks in training: safetensors files in the folder of a run, the last two of each stack.

A checkpoint holds what the next step needs and what cannot be drawn again from a seed. It also carries the latest
events of its networks, which may not have reached the journal when the run was interrupted. Each file is there whole or
not at all. Format: https://huggingface.co/docs/safetensors, "Format"; the facts are JSON in its metadata.
"""

import hashlib
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from geocont.ablations import probes
from geocont.ablations.experiment import AnyExperiment
from geocont.atomic import atomic_file
from geocont.errors import InputError
from geocont.events import Event, Probe
from geocont.weights import safetensors_file

FORMAT = 1

_FACTS = "geocont"
_KEPT = 2
_NAME = re.compile(r"(\d+)-(\d+)\.safetensors")
_SECONDS, _LARGEST_SHARE = 60.0, 0.01

Network = tuple[str, int]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is of: a stack (by the place of its first network), its networks (variant, seed), its step.

    `experiment` tells experiments apart. `events` are the latest of these networks.
    """

    format: int = FORMAT
    experiment: str
    stack: int
    networks: tuple[Network, ...]
    step: int
    events: tuple[Event, ...] = ()


class _Version(msgspec.Struct):
    """The part of the facts that tells the format, whatever else a later format may have changed."""

    format: int


@dataclass(frozen=True)
class Stored:
    """A checkpoint on disk."""

    path: Path
    facts: Facts


class Checkpoints:
    """The checkpoints of a run, in a folder that is made when the first one is written.

    Args:
        folder: where they are; its parent must exist.
        experiment: what is trained.
        seconds: how often each stack is kept. Default: every 60 s, or less often where writing would take more than
            1 % of the time.
    """

    def __init__(self, folder: Path, experiment: AnyExperiment, seconds: float | None = None) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._experiment = hashlib.sha256(msgspec.json.encode(experiment)).hexdigest()
        self._settings = experiment.probes
        self._steps = {(variant.name, seed): variant.steps for variant, seed in experiment.networks}
        self._seconds = seconds
        self._costs: dict[int, float] = {}
        self._latest: dict[int, float] = {}

    def is_due(self, stack: int) -> bool:
        """Whether a stack should be written now. The first time it is asked about, its time begins."""
        now = time.monotonic()
        interval = self._seconds
        if interval is None:
            interval = max(_SECONDS, sum(self._costs.values()) / _LARGEST_SHARE)
        return now - self._latest.setdefault(stack, now) >= interval

    def write(
        self,
        stack: int,
        step: int,
        networks: Sequence[Network],
        tensors: Mapping[str, Tensor],
        events: Sequence[Event] = (),
    ) -> None:
        """Keep a stack, and of its earlier checkpoints one.

        Raises:
            OSError: it cannot be written. The earlier ones are as they were.
        """
        began = time.monotonic()
        facts = Facts(
            experiment=self._experiment, stack=stack, networks=tuple(networks), step=step, events=tuple(events)
        )
        try:
            # Not the parents: a run that was deleted stays so.
            self._folder.mkdir(exist_ok=True)
            with atomic_file(self._folder / f"{stack}-{step}.safetensors") as file:
                for part in safetensors_file.encoded(tensors, {_FACTS: msgspec.json.encode(facts).decode()}):
                    file.write(part)
            steps = sorted((int(name[2]), name[0]) for name in self._names() if int(name[1]) == stack)
            for _, name in steps[:-_KEPT]:
                (self._folder / name).unlink(missing_ok=True)
        finally:
            self._latest[stack] = time.monotonic()
            self._costs[stack] = self._latest[stack] - began

    def forget(self, stack: int) -> None:
        """A stack is over, and that is journaled: remove its checkpoints."""
        self._costs.pop(stack, None)
        with suppress(OSError):
            for name in self._names():
                if int(name[1]) == stack:
                    (self._folder / name[0]).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        with suppress(OSError):
            for path in self._folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)

    def choose(
        self, networks: Sequence[Network], probed: Mapping[Network, set[int]]
    ) -> list[tuple[Stored | None, list[Network]]]:
        """Networks that may train as one stack, in parts: each with the checkpoint it goes on from, None if with none.

        A checkpoint fits a network where `probed` (the steps that are journaled) and its own events hold every
        measurement before it. All networks of the stack together if one checkpoint fits them all. `problems` gets why
        a file cannot be used.
        """
        found = self._stored()
        for stored in found:
            if all(self._fits(stored, network, probed) for network in networks):
                return [(stored, list(networks))]
        parts: dict[Path | None, tuple[Stored | None, list[Network]]] = {}
        for network in networks:
            stored_or_none = next((stored for stored in found if self._fits(stored, network, probed)), None)
            key = None if stored_or_none is None else stored_or_none.path
            parts.setdefault(key, (stored_or_none, []))[1].append(network)
        return list(parts.values())

    def _fits(self, stored: Stored, network: Network, probed: Mapping[Network, set[int]]) -> bool:
        if network not in stored.facts.networks:
            return False
        carried = {
            event.step
            for event in stored.facts.events
            if isinstance(event, Probe) and (event.variant, event.seed) == network
        }
        scheduled = probes.schedule(self._steps[network], self._settings)
        known = probed.get(network, set()) | carried
        return all(step in known for step in scheduled if step < stored.facts.step)

    def _names(self) -> list[re.Match[str]]:
        return [match for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]

    def _stored(self) -> list[Stored]:
        """The checkpoints that can be used, the most advanced first."""
        found = []
        # None were written.
        with suppress(FileNotFoundError, NotADirectoryError):
            for match in self._names():
                path = self._folder / match[0]
                try:
                    facts = _read_facts(path)
                    if facts.experiment != self._experiment:
                        raise InputError("it is of another experiment", "")
                    found.append(Stored(path, facts))
                except (InputError, OSError) as error:
                    self._refuse(path, error)
        return sorted(found, key=lambda stored: stored.facts.step, reverse=True)

    def _refuse(self, path: Path, error: Exception) -> None:
        text = f"the checkpoint {path.name} is not used ({error}): its networks go on from another, or begin anew"
        if text not in self.problems:
            self.problems.append(text)


def read(stored: Stored) -> dict[str, Tensor]:
    """The tensors of a checkpoint, on the CPU.

    Raises:
        InputError: it is damaged, or has gone.
    """
    try:
        content = bytearray(stored.path.read_bytes())
    except OSError as error:
        raise InputError(f"{stored.path.name} cannot be read: {error.strerror}", "") from None
    length = safetensors_file.header_bytes(bytes(content[:128]), len(content), stored.path.name)
    header = bytes(content[safetensors_file.LENGTH_BYTES : safetensors_file.LENGTH_BYTES + length])
    described = safetensors_file.parse_header(header, len(content), stored.path.name)
    found = {}
    for name, tensor in described.tensors.items():
        dtype, count = safetensors_file.DTYPES[tensor.dtype], math.prod(tensor.shape)
        offset = described.offsets[name]
        flat = (
            torch.frombuffer(content, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
        )
        found[name] = flat.reshape(tensor.shape)
    return found


def _read_facts(path: Path) -> Facts:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(128)
        length = safetensors_file.header_bytes(start, size, path.name)
        file.seek(safetensors_file.LENGTH_BYTES)
        header = file.read(length)
    safetensors_file.parse_header(header, size, path.name)
    try:
        text = msgspec.json.decode(header, type=dict[str, msgspec.Raw])["__metadata__"]
        facts = msgspec.json.decode(text, type=dict[str, str])[_FACTS]
        version = msgspec.json.decode(facts, type=_Version).format
        if version != FORMAT:
            raise InputError(f"it is of format {version}, this version reads {FORMAT}", "")
        return msgspec.json.decode(facts, type=Facts)
    except (KeyError, msgspec.DecodeError) as error:
        raise InputError(f"it is none of a training: {error}", "") from None
