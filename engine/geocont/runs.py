"""A run on disk: a folder with what was asked for and the journal of its events (events.jsonl).

What was asked for is the resolved experiment (experiment.toml) or the parameters of an analysis (analysis.toml).

The journal is written as the run goes, each event handed to the operating system before anybody sees it, so that what
was shown can be read again. A torn last line (a crash, a power cut) is dropped when reading; what is before it counts.
"""

import difflib
import errno
import os
import re
import secrets
import string
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from io import BytesIO
from itertools import chain
from os import fstat, fsync
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import platformdirs
import tomli_w

from geocont import run_lock
from geocont.ablations import experiment as experiments
from geocont.ablations.experiment import AnyExperiment, plain
from geocont.atomic import atomic_file
from geocont.errors import GeocontError, InputError, JobError
from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    Message,
    NetworkDiverged,
    NetworkFinished,
    Probe,
    Progress,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
)
from geocont.journal import JOURNAL, Journaled, events_in, has_journal, journaled, key, thinned_events
from geocont.journal import follow as follow
from geocont.journal import read_events as read_events
from geocont.run_lock import RunLock, holder
from geocont.toml_file import read_toml

_EXPERIMENT = "experiment.toml"
_ANALYSIS = "analysis.toml"
_ERROR_LOG = "error.log"
_LETTERS = string.ascii_lowercase + string.digits

_REMEDIES = {
    errno.ENOSPC: "free some space, or keep runs on another disk with --run-dir",
    errno.EDQUOT: "free some of your quota, or keep runs on another disk with --run-dir",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or keep runs on another disk with --run-dir",
    errno.EROFS: "choose a folder that can be written with --run-dir",
    errno.EACCES: "choose a folder that can be written with --run-dir",
    errno.EPERM: "choose a folder that can be written with --run-dir",
    errno.ENOTDIR: "choose a folder, not a file, with --run-dir",
    errno.ENOENT: "keep the run's folder in place while it runs",
}

# Where no run can be kept, whatever the disk has room for.
_WRONG_PLACES = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)

State = Literal["live", "paused", "done", "stopped", "failed", "interrupted", "unreadable"]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list. What cannot be known (an unreadable or empty journal) is None.

    `state` is what the journal says; where it has no end, "live" or "paused" while a process writes it, and
    "interrupted" if none does.
    `started` is in seconds since the epoch, `size` in bytes over all files of the folder. `headline` counts the
    networks, or the layers and matrices of an analysis (whose `name` is the model, whose steps are matrices); `reason`
    says why the run failed or cannot be read. `device` is where it ran last. `model` is what an analysis reads: an id
    on the hub, or a path that holds in any folder.
    """

    folder: str
    path: str
    kind: str | None
    name: str | None
    state: State
    started: float | None
    steps_done: int | None
    steps_planned: int | None
    size: int
    headline: str | None = None
    reason: str | None = None
    device: str | None = None
    model: str | None = None

    @property
    def fraction(self) -> float | None:
        """Part of the planned network-steps or matrices that is done, 0…1. Networks that diverged leave it below 1."""
        if self.steps_done is None or not self.steps_planned:
            return None
        return self.steps_done / self.steps_planned


def runs_folder() -> Path:
    """Where runs are kept unless the user says otherwise: `runs` in the user's data folder. It need not exist yet."""
    return platformdirs.user_data_path("geocont-tui", appauthor=False) / "runs"


def run_path(name: str, parent: Path | None = None) -> Path:
    """A folder for a new run, which is not made yet: local time, the name, and four random characters.

    For example 2026-12-01T14-03-11_mlp_k3f9, in `parent` (default: `runs_folder()`).
    """
    safe_name = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.")[:100] or "run"
    stamp = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(4))
    return (runs_folder() if parent is None else parent) / f"{stamp}_{safe_name}_{suffix}"


def check_place(parent: Path | None = None) -> None:
    """See whether a run could be kept in `parent` (default: `runs_folder()`), before anything long is begun for it.

    Raises:
        InputError: no folder can be made there.
    """
    folder = (runs_folder() if parent is None else parent).absolute()
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        number = errno.ENOTDIR if not there.is_dir() else 0 if os.access(there, os.W_OK | os.X_OK) else errno.EACCES
        if number:
            raise OSError(number, os.strerror(number))
    except OSError as error:
        failure = _disk_error(f"the run's folder cannot be made in {folder}", error)
        raise InputError(str(failure), failure.remedy) from None


def create_run_folder(experiment: AnyExperiment, parent: Path | None = None, *, path: Path | None = None) -> Path:
    """Make a folder for a run and write experiment.toml, from which `experiment.read` gives an equal experiment.

    Args:
        experiment: what will be run.
        parent: the folder to make it in; made if missing. Default: `runs_folder()`.
        path: the folder itself, from `run_path`; by default it is named after the experiment.

    Raises:
        InputError: it cannot be made there (no folder, read-only, not allowed).
        JobError: the folder or the file cannot be written for another reason (the disk is full).
    """
    return _create(path or run_path(experiment.name, parent), _EXPERIMENT, msgspec.to_builtins(experiment))


def create_analysis_folder(model: str, parameters: Mapping[str, Any], parent: Path | None = None) -> Path:
    """Make a folder for an analysis and write analysis.toml, from which `read_analysis` gives equal parameters.

    It is named after the last part of the model's name.

    Args:
        model: as the user typed it.
        parameters: the arguments of `analysis.analyze`, as in AnalysisStarted. None and what is left out are the same.
        parent: the folder to make it in; made if missing. Default: `runs_folder()`.

    Raises:
        InputError: it cannot be made there (no folder, read-only, not allowed).
        JobError: the folder or the file cannot be written for another reason (the disk is full).
    """
    parts = [part for part in re.split(r"[/\\]+", model) if part.strip(". ")]
    return _create(run_path(parts[-1] if parts else "model", parent), _ANALYSIS, parameters)


def read_analysis(folder: Path) -> dict[str, Any]:
    """The parameters of an analysis, from analysis.toml.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    path = folder / _ANALYSIS
    if not path.exists():
        raise InputError(f"{folder} is not the run of an analysis: it has no {_ANALYSIS}", "give the folder of one")
    return read_toml(path)


def _create(folder: Path, file_name: str, content: Mapping[str, Any]) -> Path:
    try:
        folder.mkdir(parents=True)
        try:
            with atomic_file(folder / file_name) as file:
                tomli_w.dump(_without_none(dict(content)), file)
        except OSError:
            folder.rmdir()
            raise
    except OSError as error:
        failure = _disk_error(f"the run's folder {folder} cannot be written", error)
        if error.errno in _WRONG_PLACES:
            # There was no folder yet that could have been kept in place.
            remedy = _REMEDIES[errno.EACCES] if error.errno == errno.ENOENT else failure.remedy
            raise InputError(str(failure), remedy) from None
        raise failure from None
    return folder


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that is not done was asked for: an `experiment`, or the parameters of an `analysis`."""

    experiment: AnyExperiment | None = None
    analysis: dict[str, Any] | None = None


def resume_run(folder: Path) -> Interrupted:
    """What to go on with: `crew.train(experiment, device, folder)` or `analyze_again(analysis)`, then
    `Recording(events, folder, resume=True)`.

    The revision of a model on the hub is the commit that the run began with.

    Raises:
        InputError: no run; a process writes it; it is done; what it was asked for cannot be read, or was edited since.
    """
    if not _is_run(folder):
        raise InputError(
            f"{folder} is not a run: it holds none of {JOURNAL}, {_EXPERIMENT}, {_ANALYSIS}", "give the folder of a run"
        )
    writer = holder(folder)
    if writer is not None:
        raise run_lock.is_written(folder, writer)
    held = _unfinished(folder)
    match held.started:
        case RunStarted(experiment=asked):
            begun = plain(asked)
            file = folder / _EXPERIMENT
            if file.exists() and experiments.read(str(file)) != begun:
                raise _changed(file, f"`geocont-tui ablate {file}`")
            return Interrupted(experiment=begun)
        case AnalysisStarted(parameters=parameters, revision=revision):
            file = folder / _ANALYSIS
            if file.exists() and read_analysis(folder) != _without_none(parameters):
                raise _changed(file, "`geocont-tui analyze`")
            return Interrupted(analysis=parameters | ({} if revision is None else {"revision": revision}))
        case _ if (folder / _ANALYSIS).exists():
            return Interrupted(analysis=read_analysis(folder))
        case _:
            return Interrupted(experiment=experiments.read(str(folder / _EXPERIMENT)))


def _changed(file: Path, command: str) -> InputError:
    return InputError(
        f"{file} is not any more what the run began with, and a run goes on as it began",
        f"undo the change, or begin a new run with {command}",
    )


def _unfinished(folder: Path) -> Journaled:
    """What a run's journal holds. Raises InputError if it is done."""
    held = journaled(folder)
    if held.finished is not None and held.finished.status == "done":
        raise InputError(
            f"{folder.name} is done: nothing is left to go on with",
            f"look at it with `geocont-tui watch {folder.name}`",
        )
    return held


class Recording(Iterator[Event]):
    """An iterator over a job's events that journals each one before handing it out.

    Any thread may pull or stop; one waits for the other. When the job raises, the journal gets a RunFinished with
    status "failed" and is closed: a GeocontError goes on as it is, anything else as a JobError, with its traceback in
    error.log of the folder. KeyboardInterrupt and SystemExit go on as they are, after a RunFinished with status
    "stopped".

    A journal that cannot be written any more (a full disk, a folder that was deleted) ends the run, or with
    `outlives_journal` only the journal, which stays as it is up to the last whole line. Then a warning says so, and
    what comes is kept in memory until the process ends.

    Args:
        events: the job, a generator. Closed in every case, when the run ends for whatever reason.
        folder: the run's folder, from `create_run_folder`. Its lock is held until the run ends.
        resume: go on with the journal that is there. A torn last line is cut off. The job's first event becomes
            RunContinued, what is journaled already is neither journaled nor handed out again, and `elapsed` goes on.
        outlives_journal: go on without the journal where it cannot be written any more.

    Attributes:
        lost: why there is no journal any more, and where it ends; None while there is one.

    Raises:
        InputError: the folder holds a journal already, or with `resume` that of another job or of one that is done;
            another process writes it.
        JobError: the journal cannot be written. It is intact up to the last event that was handed out.
    """

    def __init__(
        self, events: Iterator[Event], folder: Path, *, resume: bool = False, outlives_journal: bool = False
    ) -> None:
        self.folder = folder
        self.finished: RunFinished | None = None
        self.lost: str | None = None
        self._outlives_journal = outlives_journal
        self._in_memory = _InMemory()
        self._events = events
        self._journal_path = folder / JOURNAL
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.RLock()
        self._has_begun = False
        self._notices: list[Event] = []
        self._run_lock = RunLock(folder)
        try:
            self._run_lock.acquire()
            self._held = _unfinished(folder) if resume else Journaled()
            self._elapsed = self._held.elapsed or None
            self._open(resume)
        except BaseException:
            self._release()
            self._run_lock.release()
            raise
        if not self._run_lock.is_supported:
            text = f"{folder} is on a file system without locks: nothing tells other processes that this one writes it"
            self._notices.append(Message(level="warning", text=text, time=time()))
        if outlives_journal:
            text = "if the journal cannot be written any more, the run goes on without it (--on-disk-error continue)"
            self._notices.append(Message(level="info", text=text, time=time()))

    def events(self) -> Iterator[Event]:
        """The events of the run so far, from the journal; where that is lost, from what is kept in memory.

        Raises:
            InputError: as `read_events` does.
        """
        if self.lost is None:
            return read_events(self.folder)
        return self._in_memory.events(self.folder, self.finished)

    def _open(self, resume: bool) -> None:
        """Open the journal where its last whole line ends."""
        try:
            # For reading too: what is written can be read back when the folder has been deleted.
            self._journal = self._journal_path.open("a+b", buffering=0)
        except OSError as error:
            raise _disk_error(f"the journal {self._journal_path} cannot be written", error) from None
        status = fstat(self._journal.fileno())
        # Some file systems count no links; there a deleted journal goes unnoticed.
        self._counts_links = status.st_nlink > 0
        self._written = self._held.size
        if status.st_size > self._written:
            if not resume:
                self._journal.close()
                raise InputError(f"{self.folder} holds a run already", "start each run in a folder of its own")
            self._truncate()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._lock:
            if self.finished is not None:
                raise StopIteration
            try:
                event, line = self._pull()
                while line is None:
                    event, line = self._pull()
                self._append(event, line)
                if isinstance(event, RunFinished):
                    self._close_journal(event)
            except (KeyboardInterrupt, SystemExit):
                self.stop()
                raise
            if isinstance(event, (Progress, AnalysisProgress)):
                self._elapsed = event.elapsed
            return event

    def note(self, event: Event) -> None:
        """Journal an event that is none of the job's (a pause). After the end nothing happens.

        Raises:
            JobError: the journal cannot be written.
        """
        with self._lock:
            if self.finished is None:
                self._append(event, self._encoder.encode(event) + b"\n")

    def stop(self) -> RunFinished:
        """Close the job, journal a RunFinished with status "stopped" and return it. After the end: the end that was.

        Raises:
            JobError: the job raised while closing, or the journal cannot be written.
        """
        with self._lock:
            if self.finished is not None:
                return self.finished
            stopped = RunFinished(status="stopped", time=time(), elapsed=self._elapsed)
            try:
                self._release()
            except Exception as error:
                raise self._fail(error) from error
            except BaseException:
                self._end(stopped)
                raise
            self._end(stopped)
            return stopped

    def close(self) -> None:
        """Stop unless the run has ended. Raises as `stop` does."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pull(self) -> tuple[Event, bytes | None]:
        """The next event and its line. An event that ends the run comes after the job has released everything.

        No line: the event is journaled already.
        """
        try:
            if self._notices and self._has_begun:
                event = self._notices.pop(0)
                return event, self._encoder.encode(event) + b"\n"
            try:
                event = next(self._events)
            except StopIteration:
                raise JobError("the job ended without saying how", "report this as a bug") from None
            if isinstance(event, RunFinished):
                self._release()
            if self._held.started is not None:
                if key(event) in self._held.keys:
                    return event, None
                event = _continued(event, self._held.started, self._held.elapsed)
            return event, self._encoder.encode(event) + b"\n"
        except Exception as error:
            failure = self._fail(error)
            if failure is error:
                raise
            raise failure from error

    def _release(self) -> None:
        close: Callable[[], None] | None = getattr(self._events, "close", None)
        if close is not None:
            close()

    def _fail(self, error: Exception) -> GeocontError:
        """End the run because of an error of the job, and return what to raise: a problem and a remedy."""
        failure = error if isinstance(error, GeocontError) else JobError(_in_one_line(error), self._log(error))
        # What went wrong first is what counts.
        with suppress(Exception):
            self._release()
        self._end(
            RunFinished(
                status="failed", time=time(), elapsed=self._elapsed, problem=str(failure), remedy=failure.remedy
            )
        )
        return failure

    def _end(self, event: RunFinished) -> None:
        self._append(event, self._encoder.encode(event) + b"\n")
        self._close_journal(event)

    def _append(self, event: Event, line: bytes) -> None:
        """Write a whole line, or leave the journal as it was."""
        self._has_begun = True
        if self.lost is not None:
            self._in_memory.add(event)
            return
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._journal.write(rest) :]
            if self._counts_links and fstat(self._journal.fileno()).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was deleted while the run wrote it")
            self._written += len(line)
        except OSError as error:
            self._truncate()
            self._lose(error)
            self._in_memory.add(event)
        except BaseException:
            self._truncate()
            raise

    def _truncate(self) -> None:
        # Not everything can be truncated (a device); reading drops a torn line anyway.
        with suppress(OSError):
            self._journal.truncate(self._written)

    def _close_journal(self, event: RunFinished) -> None:
        self.finished = event
        if self.lost is not None:
            self._run_lock.release()
            return
        try:
            # A pipe or a device has nothing to sync.
            try:
                fsync(self._journal.fileno())
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise
            self._journal.close()
        except OSError as error:
            self._lose(error)
        self._run_lock.release()

    def _lose(self, error: OSError) -> None:
        """Go on without the journal, if that is wanted, and what it holds can still be read; else end the run."""
        if not self._outlives_journal:
            raise self._give_up(error) from None
        try:
            self._journal.seek(0)
            content = self._journal.read(self._written)
            where = _reached(events_in(BytesIO(content), self.folder))
        except (OSError, InputError):
            raise self._give_up(error) from None
        with suppress(OSError):
            self._journal.close()
        self._in_memory.content = content
        failure = _disk_error(f"the journal {self._journal_path} cannot be written", error)
        self.lost = f"{failure}; it ends {where}"
        text = f"{self.lost}; the run goes on, and what comes can be written as tables until the program ends"
        self._notices.append(Message(level="warning", text=text, time=time()))

    def _give_up(self, error: OSError) -> JobError:
        """End the run because the journal cannot be written."""
        failure = _disk_error(f"the journal {self._journal_path} cannot be written", error)
        self.finished = RunFinished(
            status="failed", time=time(), elapsed=self._elapsed, problem=str(failure), remedy=failure.remedy
        )
        with suppress(OSError):
            self._journal.close()
        self._run_lock.release()
        # What went wrong first is what counts.
        with suppress(Exception):
            self._release()
        return failure

    def _log(self, error: Exception) -> str:
        """Write the traceback, without local variables, into error.log; a remedy that says where."""
        log = self.folder / _ERROR_LOG
        text = "".join(traceback.format_exception(error))
        try:
            with atomic_file(log) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError as failure:
            return f"the traceback could not be kept ({log}: {failure.strerror}); the journal up to there is complete"
        return f"see the traceback in {log}; the journal up to there is complete"


class _InMemory:
    """What a run has given whose journal is lost: its `content` by then, and the events since."""

    def __init__(self) -> None:
        self.content = b""
        self._events: list[Event] = []
        # Of the heartbeats, which are most of all events, only what the latest of each network say.
        self._progress: Progress | AnalysisProgress | None = None

    def add(self, event: Event) -> None:
        match event:
            case Progress():
                before = self._progress.networks if isinstance(self._progress, Progress) else ()
                latest = {(network.variant, network.seed): network for network in (*before, *event.networks)}
                self._progress = msgspec.structs.replace(event, networks=tuple(latest.values()))
            case AnalysisProgress():
                self._progress = event
            case RunFinished():
                pass
            case _:
                self._events.append(event)

    def events(self, folder: Path, finished: RunFinished | None) -> Iterator[Event]:
        last = [event for event in (self._progress, finished) if event is not None]
        return chain(events_in(BytesIO(self.content), folder), tuple(self._events), last)


def _reached(events: Iterator[Event]) -> str:
    """Where the events of a run end, in words."""
    progress: _Networks | _Matrices | None = None
    for event in events:
        match event:
            case RunStarted():
                progress = _Networks(event)
            case AnalysisStarted():
                progress = _Matrices(event)
            case _ if progress is not None:
                progress.add(event)
    if progress is None:
        return "before the run has begun"
    unit = "network-steps" if isinstance(progress, _Networks) else "matrices"
    return f"after {progress.done:,} of {progress.planned:,} {unit}"


def _continued(event: Event, started: RunStarted | AnalysisStarted, elapsed: float) -> Event:
    """An event of a job as one of the run that it goes on with, which began with `started` and took `elapsed` seconds.

    Raises:
        InputError: the job is another one.
    """
    match event:
        case RunStarted() | AnalysisStarted():
            if _made_of(event) != _made_of(started):
                raise InputError("what is measured has changed since the run began", "begin a new run")
            return RunContinued(time=event.time, device=event.device, versions=event.versions)
        case Progress() | AnalysisProgress():
            return msgspec.structs.replace(event, elapsed=event.elapsed + elapsed)
        case RunFinished(elapsed=float() as more):
            return msgspec.structs.replace(event, elapsed=more + elapsed)
        case _:
            return event


def _made_of(started: RunStarted | AnalysisStarted) -> tuple[object, ...]:
    return started.networks if isinstance(started, RunStarted) else started.matrices


def list_runs(parent: Path | None = None) -> list[RunSummary]:
    """The runs in a folder (default: `runs_folder()`), newest first by name. What is not a run is left out.

    Raises:
        InputError: the folder cannot be read, or is given and does not exist.
    """
    return [summarize(folder) for folder in run_folders(parent)]


def find_run(name_or_path: str, parent: Path | None = None) -> Path:
    """The folder of a run, by its name in `parent` (default: `runs_folder()`), the beginning of its name, or its path.

    Raises:
        InputError: no such run (with the nearest name), several that begin so, a folder that is not a run.
    """
    path = Path(name_or_path)
    try:
        if name_or_path and path.is_dir() and _is_run(path):
            return path
        is_something_else = len(path.parts) > 1 and path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions") from None
    if is_something_else:
        raise InputError(
            f"{path} is not a run: it holds none of {JOURNAL}, {_EXPERIMENT}, {_ANALYSIS}", "give the folder of a run"
        )
    names = [folder.name for folder in run_folders(parent)]
    parent = runs_folder() if parent is None else parent
    if name_or_path in names:
        return parent / name_or_path
    matches = [name for name in names if name_or_path and name.startswith(name_or_path)]
    if len(matches) == 1:
        return parent / matches[0]
    if matches:
        shown = ", ".join(matches[:3]) + (", …" if len(matches) > 3 else "")
        raise InputError(f"{len(matches)} runs begin with {name_or_path!r}: {shown}", "give more of the name")
    near = difflib.get_close_matches(name_or_path, names, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]}? " if near else ""
    remedy += "`geocont-tui runs` lists them" if names else "there are no runs yet: `geocont-tui ablate` makes one"
    raise InputError(f"there is no run {name_or_path!r} in {parent}", remedy)


def run_folders(parent: Path | None = None) -> list[Path]:
    """The folders of the runs in `parent` (default: `runs_folder()`), newest first by name.

    Raises:
        InputError: the folder cannot be read, or is given and does not exist.
    """
    folder = runs_folder() if parent is None else parent
    try:
        found = (path for path in folder.iterdir() if not path.name.startswith("."))
        return sorted((path for path in found if path.is_dir() and _is_run(path)), reverse=True)
    except FileNotFoundError:
        if parent is None:
            return []
        raise InputError(f"there is no folder {folder}", "give the folder that holds the runs") from None
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}", "give the folder that holds the runs") from None


def _is_run(folder: Path) -> bool:
    try:
        return any((folder / name).exists() for name in (JOURNAL, _EXPERIMENT, _ANALYSIS))
    except PermissionError:
        # It may well be one, so it is listed, as unreadable.
        return True


def summarize(folder: Path) -> RunSummary:
    """A run as it is listed. Never raises: what cannot be read is "unreadable"."""
    progress: _Networks | _Matrices | None = None
    # Asked first: a run that ends in between is read to its end.
    without_end: State = "live" if holder(folder) is not None else "interrupted"
    state = without_end
    reason: str | None = None
    device: str | None = None
    try:
        if has_journal(folder):
            for event in thinned_events(folder, probes=1):
                if isinstance(event, RunStarted | AnalysisStarted | RunContinued):
                    device = event.device
                match event:
                    case RunStarted():
                        progress = _Networks(event)
                    case AnalysisStarted():
                        progress = _Matrices(event)
                    case RunFinished():
                        state, reason = event.status, event.problem
                    case RunPaused() if without_end == "live":
                        state = "paused"
                    case RunResumed() | RunContinued():
                        state, reason = without_end, None
                    case _ if progress is not None:
                        progress.add(event)
    except InputError as error:
        state, reason = "unreadable", str(error)
    return RunSummary(
        folder=folder.name,
        path=str(folder),
        kind=progress.started.kind if progress else None,
        name=progress.name if progress else None,
        state=state,
        started=progress.started.time if progress else None,
        steps_done=progress.done if progress else None,
        steps_planned=progress.planned if progress else None,
        size=_size(folder),
        headline=progress.headline if progress else None,
        reason=reason,
        device=device,
        model=progress.model if isinstance(progress, _Matrices) else None,
    )


class _Networks:
    """How far the networks of an ablation are: steps over all of them."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started
        self.name = started.name
        self.planned = sum(network.steps for network in started.networks)
        self._steps: dict[tuple[str, int], int] = {}
        self._diverged = 0

    @property
    def done(self) -> int:
        return sum(self._steps.values())

    @property
    def headline(self) -> str:
        variants = len({network.variant for network in self.started.networks})
        diverged = f", diverged: {self._diverged}" if self._diverged else ""
        return f"variants: {variants}, networks: {len(self.started.networks)}{diverged}"

    def add(self, event: Event) -> None:
        match event:
            case Progress(networks=networks):
                for network in networks:
                    key = (network.variant, network.seed)
                    self._steps[key] = max(network.step, self._steps.get(key, 0))
            case NetworkFinished() | NetworkDiverged() | Probe():
                self._steps[event.variant, event.seed] = event.step
                self._diverged += isinstance(event, NetworkDiverged)


class _Matrices:
    """How far an analysis is: matrices measured, kept from before, or refused."""

    def __init__(self, started: AnalysisStarted) -> None:
        self.started = started
        self.name = started.model
        # Journals of earlier versions have it as it was typed.
        self.model = str(started.parameters.get("model", started.model))
        self.planned = len(started.matrices)
        self.done = 0
        self._measured = 0

    @property
    def headline(self) -> str:
        layers = len({(plan.stack, plan.layer) for plan in self.started.matrices})
        return f"layers: {layers}, matrices: {self.planned}"

    def add(self, event: Event) -> None:
        match event:
            case AnalysisProgress():
                self.done = event.matrices
            case MatrixMeasured():
                self._measured += 1
                self.done = max(self.done, self._measured)


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        # A file may go away between listing and looking.
        with suppress(OSError):
            size += path.lstat().st_size
    return size


def _without_none(value: Any) -> Any:
    """TOML has no null: a key that is left out reads as None again."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _disk_error(what: str, error: OSError) -> JobError:
    remedy = _REMEDIES.get(error.errno or 0, "check the disk, or keep runs elsewhere with --run-dir")
    return JobError(f"{what}: {error.strerror or error}", remedy)
