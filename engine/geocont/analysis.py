"""Analyse a pretrained model: the leading singular directions of every projection, layer against layer.

`analyze` reads the headers, says what it will read, then measures one matrix at a time in each worker, in the order of
the plan, so that the first pairs are there as soon as two layers are. Results are kept on disk as they come.
"""

import hashlib
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from geocont import devices, gram, measurement, pairs, results, selection
from geocont.errors import InputError
from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    MatrixPlan,
    Message,
    PairMeasured,
    RunFinished,
    Status,
)
from geocont.measurement import Parts, Settings, Spectra, SummedGram
from geocont.results import MatrixResult, PairResult
from geocont.versions import versions
from geocont.weights import layouts, local
from geocont.weights.checkpoint import Checkpoint, Slice, name_of
from geocont.weights.layouts import Placement
from geocont.weights.quantization import Weight, Weights
from geocont.weights.safetensors_file import is_text

_HEARTBEAT_SECONDS = 0.25
# Beside two times the largest matrix in float32, which is what an analysis may hold.
_SMALL_CHANGE_BYTES = 64 << 20
_GPU_WORKERS = 4

_T = TypeVar("_T")


class Analysis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of an analysis, as `analyze` takes them; what analysis.toml holds.

    `projections` ("q,k,gate") and `layers` ("0-15", "3,7") are as typed.
    """

    model: str
    revision: str | None = None
    projections: str | None = None
    layers: str | None = None
    stack: str | None = None
    top_k: int = 8
    gap_tolerance: float = 0.005
    exact_gram: bool = False
    weights_file: str | None = None
    layouts_file: str | None = None
    subfolder: str | None = None
    download: bool = False


def analyze(
    model: str,
    *,
    revision: str | None = None,
    projections: str | None = None,
    layers: str | None = None,
    stack: str | None = None,
    top_k: int = 8,
    gap_tolerance: float = 0.005,
    exact_gram: bool = False,
    weights_file: str | None = None,
    layouts_file: str | None = None,
    subfolder: str | None = None,
    download: bool = False,
    use_cache: bool = True,
    device: str = "auto",
    report: Callable[[str], None] | None = None,
) -> Iterator[Event]:
    """Measure the continuity of a checkpoint's projections from layer to layer.

    The first event, AnalysisStarted, is the plan; a Message for each warning follows, then a first AnalysisProgress:
    up to there only headers have been read. MatrixMeasured and PairMeasured
    follow in the order of the plan, AnalysisProgress at least every half second, RunFinished at the end. Close the
    generator to stop; it lets go of everything, after the matrices in hand.

    Args:
        model: a folder, a file, or the id of a repository on the hub.
        revision: branch, tag or commit on the hub.
        projections: names, comma-separated; all by default. `gate` also means the routed experts' `gate[E]`.
        layers: numbers and ranges, comma-separated: "0-15", "3,7".
        stack: the name of a stack, or the beginning of it.
        top_k: vectors a side.
        gap_tolerance: v1 counts as not unique where σ1/σ2 − 1 is less; 0 switches the verdict off.
        exact_gram: centred Gram cosines by whole products instead of random probes.
        weights_file: which of several sets of weights.
        layouts_file: rows that go before the shipped table of layouts.
        subfolder: of a repository or folder.
        download: keep the files of a repository instead of streaming them.
        use_cache: take and keep results in `results.folder()`.
        device: auto, cpu, cuda, cuda:1 or mps.
        report: gets a line now and then while files are downloaded, from another thread.

    Raises:
        InputError: before the first event: no such model, file, layer or projection; nothing that can be measured.
        JobError: the weights cannot be read any more.
    """
    analysis = Analysis(
        model=model,
        revision=revision,
        projections=projections,
        layers=layers,
        stack=stack,
        top_k=top_k,
        gap_tolerance=gap_tolerance,
        exact_gram=exact_gram,
        weights_file=weights_file,
        layouts_file=layouts_file,
        subfolder=subfolder,
        download=download,
    )
    _check(analysis)
    chosen = devices.resolve(device)
    rows = layouts.read_layouts(Path(layouts_file) if layouts_file else None)
    checkpoint = _open(analysis, report)
    try:
        job = _Job(analysis, checkpoint, rows, chosen, use_cache)
        clock = job.clock
        for event in job.events():
            clock.leave()
            yield event
            clock.enter()
    finally:
        checkpoint.close()


def analyze_again(
    parameters: Mapping[str, Any], *, device: str = "auto", report: Callable[[str], None] | None = None
) -> Iterator[Event]:
    """As `analyze`, with the parameters that a run has kept.

    Raises:
        InputError: they are not those of an analysis, and as `analyze` does.
    """
    try:
        analysis = msgspec.convert(dict(parameters), Analysis)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "").replace("$.", "")
        raise InputError(
            f"the parameters of the analysis (analysis.toml) cannot be read: {reason}",
            "undo the change, or begin a new analysis",
        ) from None
    return analyze(**msgspec.structs.asdict(analysis), device=device, report=report)


def _check(analysis: Analysis) -> None:
    if not 1 <= analysis.top_k <= 64:
        raise InputError(f"--top-k {analysis.top_k} is not possible", "give a number from 1 to 64")
    if not 0 <= analysis.gap_tolerance < 1:
        raise InputError(
            f"--gap-tolerance {analysis.gap_tolerance} is not possible", "give a number from 0 (no verdict) to 1"
        )
    if analysis.layers is not None:
        selection.parse_layers(analysis.layers)


def _open(analysis: Analysis, report: Callable[[str], None] | None) -> Checkpoint:
    if not analysis.model.strip():
        raise InputError("the name of the model is empty", "give a folder, a file, or the id of a model on the hub")
    if not is_text(analysis.model):
        raise InputError(
            f"{analysis.model!a}: this name is no text in the encoding of your locale",
            "rename it, or set LC_ALL=C.UTF-8",
        )
    path = _on_disk(analysis.model)
    if path is not None:
        if analysis.revision is not None:
            raise InputError(
                f"--revision {analysis.revision} has no meaning for {analysis.model}, which is on this disk",
                "leave it out, or give the model's name on the hub",
            )
        if analysis.download:
            raise InputError(
                f"--download has no meaning for {analysis.model}, which is on this disk",
                "leave it out, or give the model's name on the hub",
            )
        return local.open_checkpoint(
            path,
            weights_file=analysis.weights_file,
            subfolder=analysis.subfolder,
        )
    from geocont.weights import hub

    return hub.open_checkpoint(
        analysis.model,
        revision=analysis.revision,
        download=analysis.download,
        weights_file=analysis.weights_file,
        subfolder=analysis.subfolder,
        report=report,
    )


def _from_anywhere(analysis: Analysis) -> Analysis:
    """The same with absolute paths: who goes on with it may do so in another folder."""
    path = _on_disk(analysis.model)
    file = analysis.layouts_file
    return msgspec.structs.replace(
        analysis,
        model=analysis.model if path is None else str(path.absolute()),
        layouts_file=file if file is None else str(Path(file).absolute()),
    )


def _on_disk(model: str) -> Path | None:
    """The folder or file that is meant, None where there is none of that name.

    Raises:
        InputError: it is somewhere that may not be looked into.
    """
    try:
        path = Path(model).expanduser()
        path.stat()
    except PermissionError as error:
        raise InputError(f"{model}: {error.strerror}", "Name a folder or file that you may read.") from None
    except (OSError, RuntimeError, ValueError):  # not there, too long for a name, or ~ of a user who does not exist
        return None
    return path


# ------------------------------------------------------------------------------------------------------------------ job


class _Clock:
    """Seconds since the start, without those in which the events' reader was away."""

    def __init__(self) -> None:
        self._entered: float | None = time.monotonic()
        self._before = 0.0

    def leave(self) -> None:
        self._before = self.seconds()
        self._entered = None

    def enter(self) -> None:
        self._entered = time.monotonic()

    def seconds(self) -> float:
        return self._before + (0.0 if self._entered is None else time.monotonic() - self._entered)


@dataclass(frozen=True)
class _Layer:
    """One projection of one layer. `solve`: no result of it is kept yet; `compare`: its spectra are needed."""

    placement: Placement
    plan: MatrixPlan
    key: str
    solve: bool
    compare: bool

    @property
    def name(self) -> tuple[str, str]:
        return self.plan.stack, self.plan.projection


@dataclass(frozen=True)
class _Unit:
    """Projections that are held by the same tensors, which are read once. `number` counts those that are read."""

    layers: tuple[_Layer, ...]
    number: int | None

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.layers[0].placement.tensors


@dataclass(frozen=True)
class _Found:
    result: MatrixResult
    spectra: Spectra
    cached: bool


@dataclass
class _Row:
    """One projection of one stack while it is measured: v1 and u1 of every layer, all else of the last one."""

    firsts: dict[int, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    statuses: dict[int, Status] = field(default_factory=dict)
    originals: dict[int, int] = field(default_factory=dict)
    fingerprints: dict[str, int] = field(default_factory=dict)
    last: tuple[_Layer, MatrixMeasured | None, _Found | None] | None = None


class _Turns:
    """Lets units read in their order, whichever worker has them: what is prefetched is then what comes next."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._turn = 0
        self._ended = False

    @contextmanager
    def take(self, number: int | None) -> Iterator[None]:
        """Read alone: when all units of lower numbers have; without a number, in between."""
        with self._changed:
            self._changed.wait_for(lambda: number in (None, self._turn) or self._ended)
            if self._ended:
                raise _Stopped
        try:
            with self._reading:
                yield
        finally:
            if number is not None:
                with self._changed:
                    self._turn = number + 1
                    self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class _Stopped(Exception):  # noqa: N818 - no error: the analysis is being closed
    pass


class _Collector(Protocol):
    def add(self, matrix: Tensor) -> None: ...

    def measure(self, settings: Settings, seed: int) -> MatrixResult: ...

    def spectra(self, settings: Settings, result: MatrixResult) -> Spectra: ...


class _Held:
    """The matrices of one projection, each taken into memory by `keep`."""

    def __init__(self, placement: Placement, keep: Callable[[Tensor], Tensor]) -> None:
        self._placement = placement
        self._keep = keep
        self._matrices: list[Tensor] = []

    def add(self, matrix: Tensor) -> None:
        self._matrices.append(self._keep(matrix))

    @property
    def _parts(self) -> Parts:
        return Parts(tuple(self._matrices), _shared_side(self._placement))

    def measure(self, settings: Settings, seed: int) -> MatrixResult:
        return measurement.measure(self._parts, settings, seed)

    def spectra(self, settings: Settings, result: MatrixResult) -> Spectra:
        return measurement.spectra(self._parts, settings, result)


class _Memory:
    """A worker's memory for matrices, used again for every unit: new pages would cost more than the copy itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._space = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def clear(self, needed: int) -> None:
        self._used = 0
        if self._device.type == "cpu" and len(self._space) < needed:
            self._space = torch.empty(0, dtype=torch.uint8)
            self._space = torch.empty(needed, dtype=torch.uint8)

    def copy(self, matrix: Tensor) -> Tensor:
        """The matrix in this worker's own memory or on its device, its rows or its columns together as before."""
        if self._device.type != "cpu":
            # MPS has no float64.
            narrow = self._device.type == "mps" and matrix.dtype == torch.float64
            return matrix.to(self._device, torch.float32 if narrow else matrix.dtype)
        by_rows = abs(matrix.stride(0)) >= abs(matrix.stride(1))
        stored = matrix if by_rows else matrix.mT
        size = stored.numel() * stored.element_size()
        if self._used + size > len(self._space):
            return matrix.clone()
        target = self._space[self._used : self._used + size].view(stored.dtype).view(stored.shape)
        self._used += -(-size // 64) * 64
        target.copy_(stored)
        return target if by_rows else target.mT


class _Job:
    """One analysis: the plan at once, the events as they are pulled."""

    def __init__(
        self,
        analysis: Analysis,
        checkpoint: Checkpoint,
        rows: Sequence[layouts.Layout],
        device: torch.device,
        use_cache: bool,
    ) -> None:
        self.clock = _Clock()
        self._analysis = analysis
        self._settings = Settings(analysis.top_k, analysis.gap_tolerance, analysis.exact_gram)
        self._checkpoint = checkpoint
        self._device = device
        self._cache = results.folder() if use_cache else None
        self._weights = Weights(checkpoint)
        planned = layouts.plan(self._weights.items, checkpoint.config, rows)
        placements, left_out = selection.choose(
            planned.placements, projections=analysis.projections, layers=analysis.layers, stack=analysis.stack
        )
        self._skipped, self._notes = (*planned.skipped, *left_out), planned.notes
        self._plans = {placement: _plan(placement, self._weights.items) for placement in placements}
        _refuse_without_numbers(tuple(self._plans.values()), analysis.model)
        self._rows: defaultdict[tuple[str, str], _Row] = defaultdict(_Row)
        self._lock = threading.Lock()
        self._bytes_read = 0
        self._cache_problem: str | None = None
        self._turns = _Turns()
        self._local = threading.local()
        self._following: dict[str, str] = {}
        self._slices = {
            placement.tensors[0]: placement.stacked
            for placement, plan in self._plans.items()
            if plan.status == "ok"
            and placement.stacked > 1
            and self._weights.can_slice(placement.tensors[0], placement.stacked)
        }
        """Of tensors that hold several matrices and are read one at a time: how many."""

    def events(self) -> Iterator[Event]:
        plans = tuple(self._plans.values())
        yield AnalysisStarted(
            model=self._analysis.model,
            revision=self._checkpoint.revision,
            source=self._checkpoint.source,
            parameters=msgspec.to_builtins(_from_anywhere(self._analysis)),
            matrices=plans,
            skipped=self._skipped,
            bytes=sum(plan.bytes for plan in plans if plan.status == "ok"),
            device=devices.describe(self._device),
            versions=versions(),
            time=time.time(),
        )
        for text in (*self._checkpoint.warnings, *self._notes):
            yield Message(level="warning", text=text, time=time.time())
        yield self._progress(0)
        units = self._units()
        self._following = _chain(units)
        workers = self._worker_count(units)
        yield from self._measure(units, workers)
        if self._cache_problem is not None:
            yield Message(level="warning", text=self._cache_problem, time=time.time())
        yield RunFinished(status="done", time=time.time(), elapsed=self.clock.seconds())

    def _units(self) -> list[_Unit]:
        """The projections by the tensors that hold them, in the order in which they are read.

        Layer by layer, in a layer as the tensors lie in the checkpoint, so that pairs are there early. Exact Gram
        cosines go projection by projection: then the large products of one matrix only are kept for the next.
        """
        keys = {placement: self._key(placement) for placement in self._plans}
        compared = self._compared(keys)
        order = {name: position for position, name in enumerate(self._weights.items)}
        stacks = list(dict.fromkeys(placement.stack for placement in self._plans))
        projections = list(dict.fromkeys(placement.projection for placement in self._plans))

        def position(placement: Placement) -> tuple[int, ...]:
            stack, layer = stacks.index(placement.stack), placement.layer
            first = order.get(placement.tensors[0], 0) if placement.tensors else 0
            if self._settings.exact_gram:
                return stack, projections.index(placement.projection), layer, first
            return stack, layer, first, projections.index(placement.projection)

        groups: dict[object, list[_Layer]] = {}
        for placement in sorted(self._plans, key=position):
            plan, key = self._plans[placement], keys[placement]
            measured = plan.status == "ok"
            solve = measured and not (self._cache and results.exists(key, self._cache))
            layer = _Layer(placement, plan, key, solve, compare=measured and placement in compared)
            group = placement.tensors if measured else placement
            groups.setdefault((placement.stack, placement.layer, group), []).append(layer)
        units: list[_Unit] = []
        number = 0
        for layers in groups.values():
            is_read = any(layer.solve or layer.compare for layer in layers)
            units.append(_Unit(tuple(layers), number if is_read else None))
            number += is_read
        return units

    def _compared(self, keys: Mapping[Placement, str]) -> set[Placement]:
        """Where the whole spectrum is needed, because the Gram cosines with a neighbour are not kept yet."""
        found: set[Placement] = set()
        previous: dict[tuple[str, str], Placement] = {}
        for placement in self._plans:
            before = previous.get((placement.stack, placement.projection))
            previous[placement.stack, placement.projection] = placement
            if before is None or "ok" not in (placement.status, before.status) or placement.status != before.status:
                continue
            key = self._pair_key(keys[before], keys[placement])
            if self._cache is None or results.load(key, PairResult, self._cache) is None:
                found |= {before, placement}
        return found

    def _key(self, placement: Placement) -> str:
        """What the result of a matrix depends on."""
        sources = [source for tensor in placement.tensors for source in self._weights.items[tensor].sources]
        return results.key(
            "matrix",
            layouts.LAYOUT_VERSION,
            measurement.VERSION,
            # The path to where the weights are may hold bytes that are no text.
            [
                f"{self._checkpoint.identity(source)} {source}".encode("utf-8", "backslashreplace").decode()
                for source in sources
            ],
            f"{placement.rule}: {placement.view}",
            [placement.stack, placement.projection, str(placement.layer), placement.side],
            self._settings.top_k,
            self._settings.gap_tolerance,
        )

    def _pair_key(self, first: str, second: str) -> str:
        return results.key("pair", measurement.VERSION, first, second, self._settings.exact_gram)

    def _worker_count(self, units: Sequence[_Unit]) -> int:
        """As many workers as cores, and as the memory for their matrices allows.

        What an analysis may hold is two times the largest matrix in float32 and some small change; what is being read
        (and, streamed, the one prefetched) is a part of it.
        """
        if self._device.type != "cpu":
            return min(devices.worker_count(torch.device("cpu")), _GPU_WORKERS)
        placements = [layer.placement for unit in units for layer in unit.layers if layer.plan.status == "ok"]
        if not placements:
            return 1
        allowed = 8 * max(placement.rows * placement.cols for placement in placements) + _SMALL_CHANGE_BYTES
        items = self._weights.items
        buffers = 2 * max(
            items[tensor].bytes // self._slices.get(tensor, 1)
            for placement in placements
            for tensor in placement.tensors
        )
        limit = _joined_limit()
        # Experts of a stack are held together, unless that were too much.
        largest = max(
            sum(
                _size(layer.placement, items, one=layer.placement.stacked == 1 or _size(layer.placement, items) > limit)
                for layer in unit.layers
            )
            for unit in units
        )
        return max(1, min(devices.worker_count(self._device), (allowed - buffers) // max(largest, 1), len(units)))

    def _measure(self, units: Sequence[_Unit], workers: int) -> Iterator[Event]:
        threads = torch.get_num_threads()
        # One matrix a core is faster than one matrix on all of them.
        use = 1 if self._device.type == "cpu" else threads
        pool = ThreadPoolExecutor(workers, "measure", initializer=lambda: torch.set_num_threads(use))
        pair_pool = ThreadPoolExecutor(1, "compare", initializer=lambda: torch.set_num_threads(use))
        try:
            waiting: list[tuple[_Unit, Future[list[_Found | None]]]] = []
            coming = iter(units)
            done = 0
            while True:
                # Only as far ahead as keeps the workers busy: when nobody pulls, nothing new begins.
                while len(waiting) < 2 * workers and (unit := next(coming, None)) is not None:
                    waiting.append((unit, pool.submit(self._work, unit, workers)))
                if not waiting:
                    return
                unit, future = waiting.pop(0)
                found = yield from self._wait(future, done)
                done += len(unit.layers)
                for layer, one in zip(unit.layers, found, strict=True):
                    yield from self._tell(layer, one, pair_pool, done)
                yield self._progress(done)
        finally:
            self._turns.end()
            # A read that is under way, from a slow line, ends at once.
            self._checkpoint.close()
            pool.shutdown(wait=True, cancel_futures=True)
            pair_pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(threads)

    def _wait(self, future: Future[_T], done: int) -> Generator[Event, None, _T]:
        """Heartbeats until the future is done; returns its result."""
        while True:
            try:
                return future.result(timeout=_HEARTBEAT_SECONDS)
            except NotYet:
                if future.done():
                    raise
                yield self._progress(done)

    def _progress(self, done: int) -> AnalysisProgress:
        elapsed = self.clock.seconds()
        with self._lock:
            read = self._bytes_read
        return AnalysisProgress(
            matrices=done, bytes_read=read, elapsed=elapsed, bytes_per_second=read / elapsed if read else None
        )

    def _tell(self, layer: _Layer, found: _Found | None, pool: ThreadPoolExecutor, done: int) -> Iterator[Event]:
        """The events of one projection of one layer, and of its pair with the one before."""
        row = self._rows[layer.name]
        measured = None if found is None else self._measured(layer, found, row)
        if measured is not None:
            yield measured
        if row.last is not None:
            before, measured_before, found_before = row.last
            pair = pairs.pair(before.plan, layer.plan, measured_before, measured, adjacent=True)
            if found is not None and found_before is not None and pair.status not in ("shared", "zero", "not_finite"):
                compared = yield from self._wait(pool.submit(self._compare, before, found_before, layer, found), done)
                pair = _complete(pair, *compared)
            yield pair
        row.last = (layer, measured, found)

    def _measured(self, layer: _Layer, found: _Found, row: _Row) -> MatrixMeasured:
        result, number = found.result, layer.plan.layer
        right, left = (torch.from_numpy(block.rows()) for block in (result.right, result.left))
        first = (right[0] if len(right) else None, left[0] if len(left) else None)
        same_as = row.fingerprints.setdefault(result.fingerprint, number)
        comparable = [
            first
            if row.originals[other] != same_as and pairs.has_cosines(result.status, row.statuses[other])
            else (None, None)
            for other in row.firsts
        ]
        measured = MatrixMeasured(
            stack=layer.plan.stack,
            projection=layer.plan.projection,
            layer=number,
            singular_values=result.singular_values,
            gap=result.gap,
            stable_rank=result.stable_rank,
            frobenius=result.frobenius,
            v1_error_bound=result.v1_error_bound,
            u1_error_bound=result.u1_error_bound,
            status=result.status,
            note=_note(layer.placement, result),
            cached=found.cached,
            same_as=same_as if same_as != number else None,
            others=tuple(row.firsts),
            v1_cosines=tuple(
                measurement.cosine(own[0], other[0]) for own, other in zip(comparable, row.firsts.values(), strict=True)
            ),
            u1_cosines=tuple(
                measurement.cosine(own[1], other[1]) for own, other in zip(comparable, row.firsts.values(), strict=True)
            ),
        )
        row.firsts[number], row.statuses[number], row.originals[number] = first, result.status, same_as
        return measured

    def _compare(
        self, before: _Layer, found_before: _Found, layer: _Layer, found: _Found
    ) -> tuple[PairResult, measurement.Leading]:
        leading = measurement.compare_leading(found_before.result, found.result)
        key = self._pair_key(before.key, layer.key)
        kept = results.load(key, PairResult, self._cache) if self._cache else None
        if kept is None:
            kept = measurement.compare(found_before.spectra, found.spectra)
            self._keep(key, kept)
        return kept, leading

    def _keep(self, key: str, result: MatrixResult | PairResult) -> None:
        if self._cache is None or self._cache_problem is not None:
            return
        try:
            results.store(key, result, self._cache)
        except OSError as error:
            self._cache_problem = f"results are not kept: {self._cache} cannot be written: {error.strerror or error}"

    def _work(self, unit: _Unit, workers: int) -> list[_Found | None]:
        """Read the tensors of a unit if they are needed, and measure what they hold."""
        kept = [results.load(layer.key, MatrixResult, self._cache) if self._cache else None for layer in unit.layers]
        wanted = [
            layer
            for layer, result in zip(unit.layers, kept, strict=True)
            if layer.plan.status == "ok" and (result is None or layer.compare)
        ]
        collectors: dict[str, _Collector] = {}
        found: dict[str, tuple[MatrixResult, Spectra]] = {}

        def measure() -> None:
            for layer in wanted:
                result = kept[unit.layers.index(layer)]
                if result is None:
                    result = collectors[layer.key].measure(self._settings, _seed(layer.placement))
                    self._keep(layer.key, result)
                spectra = collectors[layer.key].spectra(self._settings, result) if layer.compare else Spectra()
                found[layer.key] = (result, spectra)

        if wanted:
            # With one worker nothing else is read meanwhile, so that a matrix may stay where it was read to.
            alone = len(unit.tensors) == 1 and unit.tensors[0] not in self._slices
            in_place = workers == 1 and alone and self._device.type == "cpu"
            with self._turns.take(unit.number):
                collectors = self._collect(wanted, in_place)
                if in_place:
                    measure()
            if not in_place:
                measure()
        return [
            _Found(*found[layer.key], cached=result is not None)
            if layer.key in found
            else (None if result is None else _Found(result, Spectra(), cached=True))
            for layer, result in zip(unit.layers, kept, strict=True)
        ]

    def _collect(self, layers: Sequence[_Layer], in_place: bool) -> dict[str, _Collector]:
        """Read the tensors that hold these projections, each once, and take the matrices from them."""
        memory: _Memory | None = getattr(self._local, "memory", None)
        if memory is None:
            memory = self._local.memory = _Memory(self._device)
        items = self._weights.items
        limit = _joined_limit()
        summed = [_size(layer.placement, items) > limit and bool(layer.placement.experts) for layer in layers]
        sizes = [
            _size(layer.placement, items) for layer, is_summed in zip(layers, summed, strict=True) if not is_summed
        ]
        if not in_place:
            memory.clear(sum(sizes) + 64 * sum(max(layer.placement.experts, 1) for layer in layers))
        collectors: list[_Collector] = [
            SummedGram(_shared_side(layer.placement) or "v")
            if is_summed
            else _Held(layer.placement, (lambda matrix: matrix) if in_place else memory.copy)
            for layer, is_summed in zip(layers, summed, strict=True)
        ]
        latest: tuple[str | Slice, Tensor] | None = None

        def read(wanted: str | Slice) -> Tensor:
            nonlocal latest
            if latest is None or latest[0] != wanted:
                latest = None
                latest = (wanted, self._read(wanted))
            return latest[1]

        in_slices = layers[0].placement.tensors[0] in self._slices
        taken = (layer.placement.matrices(read, read if in_slices else None) for layer in layers)
        for matrices in zip(*taken, strict=True):
            for collector, matrix in zip(collectors, matrices, strict=True):
                collector.add(matrix)
        return {layer.key: collector for layer, collector in zip(layers, collectors, strict=True)}

    def _read(self, wanted: str | Slice) -> Tensor:
        tensor = self._weights.read(wanted, self._next(wanted))
        size = self._weights.items[name_of(wanted)].bytes
        if isinstance(wanted, Slice):  # of which all together are the whole
            size = size * (wanted.index + 1) // wanted.count - size * wanted.index // wanted.count
        with self._lock:
            self._bytes_read += size
        return tensor

    def _next(self, wanted: str | Slice) -> str | Slice | None:
        """What is read after this."""
        if isinstance(wanted, Slice) and wanted.index + 1 < wanted.count:
            return Slice(wanted.name, wanted.index + 1, wanted.count)
        name = self._following.get(name_of(wanted))
        return Slice(name, 0, self._slices[name]) if name in self._slices else name


def _plan(placement: Placement, items: Mapping[str, Weight]) -> MatrixPlan:
    """What the events say of a placement; that its weights were quantised stands in the note."""
    plan = placement.matrix_plan()
    quantized = dict.fromkeys(items[name].dtype for name in placement.tensors if items[name].quantized)
    if not quantized or plan.status != "ok":
        return plan
    note = f"weights were {', '.join(quantized)}: σ and v1 carry its error"
    return msgspec.structs.replace(plan, note="; ".join(filter(None, (plan.note, note))))


def _refuse_without_numbers(plans: Sequence[MatrixPlan], model: str) -> None:
    """Nothing if some of the weights can be measured, or what is in the way is more than their format.

    Raises:
        InputError: all of them are in a format that is not decoded.
    """
    if plans and all(plan.status == "quantized_refused" for plan in plans):
        problem, _, remedy = plans[0].note.partition("; ")
        remedy = remedy or "analyse the unquantised model"
        raise InputError(f"{model}: none of its weights can be measured: {problem}", remedy)


def _chain(units: Sequence[_Unit]) -> dict[str, str]:
    """Each tensor's name to that of the one that is read next."""
    names = [name for unit in units if unit.number is not None for name in unit.tensors]
    return dict(itertools.pairwise(names))


def _shared_side(placement: Placement) -> gram.Side | None:
    """The side on which the experts of a layer meet, None for a single matrix."""
    if not placement.experts:
        return None
    return "u" if placement.side == "u" else "v"


def _size(placement: Placement, items: Mapping[str, Weight], one: bool = False) -> int:
    """Bytes of its matrices (or of `one` of them) once read: quantised ones come in float32."""
    if placement.status != "ok":
        return 0
    wide = any(items[name].quantized or not items[name].dtype.endswith("16") for name in placement.tensors)
    count = 1 if one else max(placement.experts, 1)
    return (4 if wide else 2) * placement.rows * placement.cols * count


def _joined_limit() -> int:
    """Experts that take more than this together are summed up one by one, which takes longer: 1/16 of the memory."""
    if not hasattr(os, "sysconf"):
        return 1 << 30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16


def _seed(placement: Placement) -> int:
    """Of a matrix's own: a start shared by the layers would make them look aligned."""
    text = "\0".join((placement.stack, placement.projection, str(placement.layer), *placement.tensors))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest())


def _note(placement: Placement, result: MatrixResult) -> str:
    notes = []
    if result.status == "not_unique":
        gap = "" if result.gap is None else f": σ1/σ2 = {1 + result.gap:.4f}"
        notes.append(f"v1 is not unique{gap}")
    elif result.status == "not_converged":
        notes.append("v1 did not converge to the tolerance")
    elif result.status == "zero":
        notes.append("all its numbers are 0")
    elif result.status == "not_finite":
        notes.append("it holds NaN or infinite numbers")
    if placement.experts:
        other = "v" if _shared_side(placement) == "u" else "u"
        notes.append(f"{placement.experts} experts jointly, {other} n/a: they share no basis there")
    return "; ".join(notes)


def _complete(pair: PairMeasured, compared: PairResult, leading: measurement.Leading) -> PairMeasured:
    return msgspec.structs.replace(
        pair,
        v_gram=compared.v_gram,
        u_gram=compared.u_gram,
        v_gram_error=compared.v_gram_error,
        u_gram_error=compared.u_gram_error,
        # In one dimension all vectors align.
        v_weighted=None if pair.v_dim == 1 else leading.v_weighted,
        u_weighted=None if pair.u_dim == 1 else leading.u_weighted,
        weighted_share=leading.weighted_share,
        v_overlap=leading.v_overlap,
        u_overlap=leading.u_overlap,
    )
