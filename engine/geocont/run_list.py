"""The runs in a folder put in order: one renamed, one deleted, old ones found.

    rename(folder, name) -> the new folder      delete(folder)      prunable(parent, …) -> the runs to delete

Nothing here touches a run that a process writes, and nothing that is not of a run: a folder that holds other files too
is left alone.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from geocont.errors import InputError, JobError
from geocont.run_lock import RunLock, holder
from geocont.runs import RunSummary, list_runs

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_")
_OF_A_RUN = (
    "events.jsonl",
    "experiment.toml",
    "analysis.toml",
    "checkpoint",
    "models",
    "lock",
    "control",
    "screen-*.svg",
    "*.log",
    ".*.tmp",
)
_DAY = 86400.0
_LONGEST = 200


def title(folder_name: str) -> str:
    """A run's name without the time that it begins with: mlp_k3f9."""
    return _STAMP.sub("", folder_name, count=1) or folder_name


def rename(folder: Path, name: str) -> Path:
    """Give a run another name and return its new folder. The time that the name begins with stays, so the order does.

    Raises:
        InputError: the name cannot be one of a folder or is taken; a process writes the run; no such run.
        JobError: the disk does not take it.
    """
    name = name.strip()
    if not name or name.startswith(".") or re.search(r'[/\\:*?"<>|]', name) or not name.isprintable():
        raise InputError(f"{name!r} cannot be the name of a run", "use letters, digits, - and _; no leading dot")
    stamp = _STAMP.match(folder.name)
    new_name = (stamp.group() if stamp else "") + _STAMP.sub("", name, count=1)
    if len(new_name.encode()) > _LONGEST:
        raise InputError(f"a name of {len(new_name)} characters is too long", f"use at most {_LONGEST}")
    target = folder.with_name(new_name)
    if target == folder:
        return folder
    with _taken(folder):
        if os.path.lexists(target):
            raise InputError(f"there is a run {new_name} already", "choose another name")
        try:
            folder.rename(target)
        except OSError as error:
            raise _refused(folder, "renamed", error) from None
    return target


def delete(folder: Path) -> None:
    """Remove a run from the disk. It goes under another name first, so that no half of it is ever listed.

    Raises:
        InputError: a process writes the run; the folder is a link or holds what no run holds; no such run.
        JobError: the disk does not take it.
    """
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link", "remove the link by hand, and delete the run where it is")
    with _taken(folder):
        try:
            others = sorted(path.name for path in folder.iterdir() if not any(fnmatch(path.name, n) for n in _OF_A_RUN))
        except OSError as error:
            raise _refused(folder, "read", error) from None
        if others:
            raise InputError(
                f"{folder} holds {', '.join(others[:3])}{', …' if len(others) > 3 else ''}, not made by a run",
                "move that elsewhere first, or remove the folder by hand",
            )
        aside = folder.with_name(f".deleted-{secrets.token_hex(8)}")
        try:
            folder.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise _refused(folder, "removed", error) from None


def prunable(parent: Path | None = None, *, older_than: float = 30.0, keep: int = 0) -> list[RunSummary]:
    """The runs that nobody has written to for `older_than` days, newest first, but for the newest `keep` of all runs.

    Live and paused runs are never among them, nor those that cannot be read: they may be of a newer version.

    Raises:
        InputError: the folder cannot be read, or is given and does not exist.
    """
    latest = time.time() - older_than * _DAY
    return [
        run
        for run in list_runs(parent)[keep:]
        if run.state in ("done", "stopped", "failed", "interrupted")
        and holder(Path(run.path)) is None
        and last_change(Path(run.path)) <= latest
    ]


def last_change(folder: Path) -> float:
    """When a run was last written to, in seconds since the epoch; 0 if it is gone."""
    try:
        # Taking the lock is no writing: renaming makes no run younger.
        times = [path.stat().st_mtime for path in folder.iterdir() if path.name != "lock"]
        return max(times) if times else folder.stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _taken(folder: Path) -> Iterator[None]:
    """The run, kept from being written meanwhile."""
    if not folder.is_dir():
        raise InputError(f"there is no run {folder}", "`geocont-tui runs` lists them")
    with RunLock(folder):
        yield


def _refused(folder: Path, what: str, error: OSError) -> JobError:
    return JobError(f"{folder} cannot be {what}: {error.strerror}", "check the permissions of the folder that holds it")
