"""What the home screen shows, read from the disk: runs with their age and their numbers, presets, models.

    reader = HomeReader(parent)      reader.read() -> HomeState
    headline(folder, kind) -> pieces such as ("v1", "Res+GELU .93", "Res+None .41")

A run is read again only when its journal has changed, and a long journal that grows not every time.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec
from geocont import run_list
from geocont.ablations import experiment
from geocont.errors import InputError
from geocont.events import Alignment, mean_of_pairs
from geocont.run_lock import holder
from geocont.runs import RunSummary, State, run_folders, runs_folder, summarize

from geocont_tui.completion import cached_models

_TAIL = 32_000_000
# Reading runs again and again takes no more than this part of the time.
_SHARE = 0.05
_Key = tuple[int, int, bool]
Part = TypeVar("Part", bound=msgspec.Struct)


@dataclass(frozen=True)
class HomeRun:
    """A run in the list. `age` is in seconds since it began; `headline` are pieces, the most telling first."""

    summary: RunSummary
    title: str
    age: float
    headline: tuple[str, ...]

    @property
    def state(self) -> State:
        return self.summary.state

    @property
    def folder(self) -> Path:
        return Path(self.summary.path)

    @property
    def is_live(self) -> bool:
        return self.state in ("live", "paused")


@dataclass(frozen=True)
class Preset:
    """A shipped experiment that can be started by name. `explanation` is what its file says of it first."""

    name: str
    description: str
    networks: int
    explanation: str = ""


@dataclass(frozen=True)
class HomeState:
    """Everything on the screen. `problem` says why the runs cannot be listed. `is_read`: whether anything was yet."""

    folder: Path
    runs: tuple[HomeRun, ...] = ()
    presets: tuple[Preset, ...] = ()
    recent: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    problem: str = ""
    is_read: bool = True


@dataclass(frozen=True)
class _Read:
    """A run as it was read: when its journal was `key`, at `time`, for `cost` seconds (both of a monotonic clock)."""

    key: _Key
    time: float
    cost: float
    summary: RunSummary
    headline: tuple[str, ...]


class HomeReader:
    """Reads the runs of `parent` (default: the user's) again and again, cheaply. One thread at a time."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self.folder = runs_folder() if parent is None else parent
        self._presets: tuple[Preset, ...] | None = None
        self._known: dict[Path, _Read] = {}

    def read(self) -> HomeState:
        """What there is now."""
        if self._presets is None:
            self._presets = tuple(presets())
        problem = ""
        folders: list[Path] = []
        try:
            folders = run_folders(self._parent)
        except InputError as error:
            problem = f"{error}; {error.remedy}"
        self._known = {folder: self._read(folder) for folder in folders}
        now = time.time()
        runs = tuple(_run(known, now) for known in self._known.values())
        models = [run.summary.model for run in runs if run.summary.model]
        return HomeState(
            folder=self.folder,
            runs=runs,
            presets=self._presets,
            recent=tuple(dict.fromkeys(models)),
            cached=tuple(cached_models()),
            problem=problem,
        )

    def _read(self, folder: Path) -> _Read:
        key = _key(folder)
        known = self._known.get(folder)
        began = time.monotonic()
        if known is not None:
            is_early = began - known.time < known.cost / _SHARE
            # That a run has begun or ended to be live is shown at once.
            if known.key == key or (is_early and known.key[2] == key[2]):
                return known
        summary = summarize(folder)
        pieces = (summary.reason,) if summary.reason else headline(folder, summary.kind)
        return _Read(key, began, time.monotonic() - began, summary, pieces)


def _run(known: _Read, now: float) -> HomeRun:
    summary = known.summary
    started = summary.started or run_list.last_change(Path(summary.path))
    return HomeRun(summary, run_list.title(summary.folder), max(now - started, 0.0), known.headline)


def presets() -> Iterator[Preset]:
    """The shipped experiments, the default one first."""
    for name in sorted(experiment.presets(), key=lambda name: (name != "mlp", name)):
        found = experiment.read(name)
        text = (experiment.presets_folder() / f"{name}.toml").read_text("utf-8")
        yield Preset(name, found.description, len(found.networks), _first_paragraph(text))


def _first_paragraph(text: str) -> str:
    """The comment that a file begins with, up to its first empty line, as one line."""
    comment = takewhile(lambda line: line.startswith("# "), text.splitlines())
    return " ".join(line.removeprefix("# ") for line in comment)


class _Weights(msgspec.Struct):
    """The part of a Probe that the headline needs."""

    variant: str
    seed: int
    projection: str
    weight: Alignment


class _Pair(msgspec.Struct):
    """The same of a PairMeasured."""

    projection: str
    residual_side: str
    v1_cosine: float | None
    u1_cosine: float | None


def headline(folder: Path, kind: str | None) -> tuple[str, ...]:
    """What a run has found, in pieces: the weight v1 of each variant now, highest first and lowest second; of an
    analysis the mean |cos| of each projection on the residual side. Empty if there is nothing yet."""
    if kind == "ablation":
        return _of_variants(folder)
    return _of_projections(folder) if kind == "analysis" else ()


def _of_variants(folder: Path) -> tuple[str, ...]:
    latest: dict[tuple[str, int, str], float | None] = {}
    for line in _lines(folder, b'{"event":"Probe"'):
        probe = _decoded(line, _Weights)
        if probe is not None:
            latest[probe.variant, probe.seed, probe.projection] = mean_of_pairs(probe.weight.v1)
    means = {
        variant: mean_of_pairs(value for key, value in latest.items() if key[0] == variant)
        for variant in dict.fromkeys(key[0] for key in latest)
    }
    known = sorted(((value, name) for name, value in means.items() if value is not None), reverse=True)
    if len(known) > 2:
        known.insert(1, known.pop())
    return tuple(f"{name} {_cosine(value)}" for value, name in known)


def _of_projections(folder: Path) -> tuple[str, ...]:
    found: dict[str, list[float | None]] = {}
    for line in _lines(folder, b'{"event":"PairMeasured"'):
        pair = _decoded(line, _Pair)
        if pair is not None:
            value = pair.u1_cosine if pair.residual_side == "u" else pair.v1_cosine
            found.setdefault(pair.projection, []).append(value)
    means = {name: mean_of_pairs(values) for name, values in found.items()}
    return tuple(f"{name} {_cosine(value)}" for name, value in means.items() if value is not None)


def _cosine(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1.00"


def _lines(folder: Path, beginning: bytes) -> Iterator[bytes]:
    """The journal's lines of one kind; of a very long journal, those near its end."""
    try:
        with (folder / "events.jsonl").open("rb") as journal:
            size = journal.seek(0, 2)
            journal.seek(max(size - _TAIL, 0))
            yield from (line for line in journal if line.startswith(beginning))
    except OSError:
        return


def _decoded(line: bytes, kind: type[Part]) -> Part | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError:
        # The last line is being written.
        return None


def _key(folder: Path) -> _Key:
    is_live = holder(folder) is not None
    try:
        status = (folder / "events.jsonl").stat()
    except OSError:
        return 0, 0, is_live
    return status.st_size, status.st_mtime_ns, is_live
