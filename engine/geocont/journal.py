"""The journal of a run: one event a line of JSON, only ever appended to.

A line counts once its end is there: a torn last line (a crash, a power cut) is dropped when reading, and cut off before
another process goes on. Reading never waits for the writer and takes no lock from it.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from geocont import run_lock
from geocont.consistency import Consistency
from geocont.errors import InputError
from geocont.events import (
    JOURNAL_VERSION,
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    NetworkDiverged,
    NetworkFinished,
    PairMeasured,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)

JOURNAL = "events.jsonl"

_POLL_SECONDS = 0.1
_SILENCE_SECONDS = 0.4
_READ_BYTES = 1 << 22
# What a screen can show of one projection of a network: more columns than any terminal has. And the last positions of
# all networks.
_SHOWN_PROBES, _SHOWN_PROGRESS = 512, 64
# As msgspec writes them: the tag first, then the fields in their order.
_PROBE, _PROGRESS = b'{"event":"Probe",', (b'{"event":"Progress",', b'{"event":"AnalysisProgress",')
_STEP, _PROJECTION, _V_DIM, _EXACT = b',"step":', b',"projection":', b',"v_dim":', b'"exact":true'

Key = tuple[str | int, ...]


def read_events(folder: Path) -> Iterator[Event]:
    """The events of a run, as they were journaled. A torn last line is left out.

    Raises:
        InputError: no journal, or it cannot be read; written by a newer version of this program; a damaged line (with
            its number), or one that is of another run.
    """
    with _opened(folder) as file:
        yield from events_in(file, folder)


def events_in(content: BinaryIO, folder: Path) -> Iterator[Event]:
    """The events that the content of the journal in `folder` holds. Raises InputError for a damaged line."""
    yield from _Decoder().events(_Lines(folder, content).new())


def thinned_events(folder: Path, probes: int = _SHOWN_PROBES) -> Iterator[Event]:
    """The events of a run, of a long one about `probes` of each projection of a network.

    Those are at even distances, with the exact ones and the last. Of its Progress only the latest. What is left out is
    not decoded, and damage there is not noticed.

    Raises:
        InputError: as `read_events` does.
    """
    with _opened(folder) as file:
        end = file.seek(0, 2)
        yield from _Decoder().events(_thin(_Lines(folder, file), end, probes))


def follow(folder: Path, *, thin: bool = False) -> Iterator[Event | None]:
    """The events of a run, and new ones as the process that writes it journals them; None where nothing is new.

    Ends when no line is left and nobody writes the run. Pulls return within half a second.

    Args:
        folder: the run's folder. Its journal need not be there yet if somebody holds the lock.
        thin: of what is there at the beginning only what a screen can show (see `thinned_events`).

    Raises:
        InputError: as `read_events` does.
    """
    while not has_journal(folder):
        if run_lock.holder(folder) is None and not has_journal(folder):
            break
        yield None
        time.sleep(_POLL_SECONDS)
    with _opened(folder) as file:
        lines, decoder = _Lines(folder, file), _Decoder()
        if thin:
            yield from decoder.events(_thin(lines, file.seek(0, 2), _SHOWN_PROBES))
        said = time.monotonic()
        while True:
            # In this order: what was written before the writer went is read.
            is_written = run_lock.holder(folder) is not None
            for event in decoder.events(lines.new()):
                yield event
                said = time.monotonic()
            if not is_written:
                return
            if time.monotonic() - said > _SILENCE_SECONDS:
                yield None
                said = time.monotonic()
            time.sleep(_POLL_SECONDS)


@dataclass
class Journaled:
    """What a journal holds, as far as another process must know it to go on.

    Attributes:
        started: the first event, None if there is none.
        finished: how the run ended, None if it was interrupted.
        keys: of every event that is measured once (see `key`).
        over: the networks that are done or have diverged, and their last steps.
        elapsed, training_seconds, probe_seconds: up to the last event that says so.
        size: bytes of the whole lines.
    """

    started: RunStarted | AnalysisStarted | None = None
    finished: RunFinished | None = None
    keys: set[Key] = field(default_factory=set)
    over: dict[tuple[str, int], int] = field(default_factory=dict)
    elapsed: float = 0.0
    training_seconds: float = 0.0
    probe_seconds: float = 0.0
    size: int = 0


def journaled(folder: Path) -> Journaled:
    """What the journal of a run holds; nothing if there is no journal.

    Raises:
        InputError: as `read_events` does, for another reason than that there is none.
    """
    found = Journaled()
    if not has_journal(folder):
        return found
    with _opened(folder) as file:
        lines = _Lines(folder, file)
        for event in _Decoder().events(lines.new()):
            found.finished = None
            if (measured := key(event)) is not None:
                found.keys.add(measured)
            match event:
                case RunStarted() | AnalysisStarted():
                    found.started = event
                case NetworkFinished() | NetworkDiverged():
                    found.over[event.variant, event.seed] = event.step
                case Progress() | RunFinished():
                    found.elapsed = event.elapsed or found.elapsed
                    found.training_seconds = event.training_seconds or found.training_seconds
                    found.probe_seconds = event.probe_seconds or found.probe_seconds
                case AnalysisProgress():
                    found.elapsed = event.elapsed
            if isinstance(event, RunFinished):
                found.finished = event
        found.size = lines.position
    return found


def key(event: Event) -> Key | None:
    """What tells an event from all others of its run, if it is one that a run has once."""
    match event:
        case Probe():
            return "probe", event.variant, event.seed, event.projection, event.step
        case NetworkFinished() | NetworkDiverged():
            return "over", event.variant, event.seed
        case MatrixMeasured():
            return "matrix", event.stack, event.projection, event.layer
        case PairMeasured():
            return "pair", event.stack, event.projection, event.layer_a, event.layer_b
        case _:
            return None


def has_journal(folder: Path) -> bool:
    """Whether there is a journal in `folder`, readable or not. Raises InputError if that may not be looked at."""
    path = folder / JOURNAL
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(path, error) from None


def _opened(folder: Path) -> BinaryIO:
    path = folder / JOURNAL
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{folder} has no journal ({JOURNAL})", "give the folder of a run that has started") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions")


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int
    text: bytes


class _Lines:
    """The whole lines of a journal, from where the last call stopped. `position` is where the next one begins."""

    def __init__(self, folder: Path, file: BinaryIO) -> None:
        self.position = 0
        self._path = folder / JOURNAL
        self._file = file
        self._number = 0

    def new(self, end: int | None = None) -> Iterator[_Line]:
        """What is there now, up to the position `end` if one is given."""
        size = _READ_BYTES
        while end is None or self.position < end:
            try:
                self._file.seek(self.position)
                block = self._file.read(size)
            except OSError as error:
                raise _unreadable(self._path, error) from None
            whole = block.rfind(b"\n") + 1
            if whole:
                # Line by line, so that the position is right wherever the caller stops.
                for text in block[: whole - 1].split(b"\n"):
                    self._number += 1
                    self.position += len(text) + 1
                    yield _Line(self._path, self._number, text)
            elif len(block) < size:
                return
            else:
                size *= 2

    def rewind(self) -> None:
        self.position = self._number = 0


class _Decoder:
    """Lines as the events of one run, each once."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Event)
        self._run = Consistency()

    def events(self, lines: Iterator[_Line]) -> Iterator[Event]:
        """The events of the next lines. Raises InputError for one that cannot be read, or is of another run."""
        for line in lines:
            try:
                if line.number == 1:
                    _check_version(line.path, line.text)
                event = self._decoder.decode(line.text)
                problem = self._run.problem(event)
            except (msgspec.DecodeError, RecursionError) as error:
                problem = str(error)
            if problem:
                raise InputError(
                    f"{line.path} is damaged in line {line.number}: {problem}",
                    f"restore the file; the {line.number - 1} events before that line can be kept by cutting it there",
                )
            if not self._run.is_repeated(event):
                yield event


def _thin(lines: _Lines, end: int, probes: int) -> Iterator[_Line]:
    """The lines up to `end` that `thinned_events` decodes. Two passes: what to leave out depends on how many."""
    counts: Counter[bytes] = Counter()
    last_progress: deque[int] = deque(maxlen=_SHOWN_PROGRESS)
    for line in lines.new(end):
        if line.text.startswith(_PROBE):
            counts[_measured(line.text)] += 1
        elif line.text.startswith(_PROGRESS):
            last_progress.append(line.number)
    lines.rewind()
    kept_progress = set(last_progress)
    # Powers of two: what is kept of one seed is kept of the others, however far each is.
    strides = {measured: 1 << max(0, (count - 1) // probes).bit_length() for measured, count in counts.items()}
    seen: Counter[bytes] = Counter()
    for line in lines.new(end):
        if line.text.startswith(_PROBE):
            measured = _measured(line.text)
            place = seen[measured]
            seen[measured] += 1
            if place % strides[measured] and place < counts[measured] - 1 and _EXACT not in line.text:
                continue
        elif line.text.startswith(_PROGRESS) and line.number not in kept_progress:
            continue
        yield line


def _measured(probe: bytes) -> bytes:
    """What a line of a Probe tells of the network and the projection that it measures."""
    step = probe.find(_STEP)
    return probe[:step] + probe[probe.find(_PROJECTION, step) : probe.find(_V_DIM, step)]


class _Header(msgspec.Struct):
    """The part of a first line that tells the version, whatever else a later version may have changed."""

    event: str
    version: int = 0


def _check_version(path: Path, line: bytes) -> None:
    header = msgspec.json.decode(line, type=_Header)
    if header.event not in ("RunStarted", "AnalysisStarted"):
        raise InputError(
            f"{path} does not begin with RunStarted or AnalysisStarted but {header.event}", "give the folder of a run"
        )
    if header.version > JOURNAL_VERSION:
        raise InputError(
            f"{path} was written by a newer geocont-tui (journal version {header.version}, this one reads "
            f"{JOURNAL_VERSION})",
            "upgrade geocont-tui",
        )
