"""Who writes a run: a lock that the operating system gives back when the process ends, however it ends.

The lock is `flock` on the file `lock` of the run's folder, whose content names the process for people. Over NFS Linux
turns it into a lock at the server, which holds between machines if the server serves locks (NFS 4 does); where a file
system has no locks, `RunLock.is_supported` is False and nobody is kept out.
"""

import errno
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from geocont.errors import InputError, JobError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "lock"
# Who looks whether a run is written holds the lock for a moment; a writer is not refused because of it.
_PATIENCE_SECONDS, _STEP_SECONDS = 0.3, 0.01
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


class Holder(msgspec.Struct, frozen=True):
    """The process that writes a run. `started` (seconds since the epoch) is when it began to."""

    pid: int
    host: str
    started: float = 0.0


class RunLock:
    """The right to write a run, from `acquire` or entering until `release` or leaving.

    `is_supported` is False where the file system (or the system) has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self.is_supported = fcntl is not None

    def acquire(self) -> None:
        """Take the lock. Whoever has it keeps it.

        Raises:
            InputError: another process has it (with its pid and host).
            JobError: the file cannot be written.
        """
        path = self._folder / _LOCK
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise JobError(
                f"the lock {path} cannot be written: {error.strerror}",
                "choose a folder that can be written with --run-dir",
            ) from None
        try:
            self.is_supported = _lock(file, path)
            content = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}).encode()
            # A full disk does not keep anybody from writing to it what fits.
            try:
                os.ftruncate(file, 0)
                os.pwrite(file, content + b"\n", 0)
            except OSError:
                pass
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Give the lock back; without it nothing happens."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder(folder: Path) -> Holder | None:
    """Who writes the run now, None if nobody or if the file system does not tell. Never waits for a lock."""
    if fcntl is None:
        return None
    try:
        file = os.open(folder / _LOCK, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return _read(file) if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    else:
        return None
    finally:
        os.close(file)


def is_written(folder: Path, writer: Holder) -> InputError:
    """The error that refuses whoever comes second."""
    return InputError(
        f"{folder} is being written by process {writer.pid} on {writer.host}",
        f"watch it with `geocont-tui watch {folder.name}`",
    )


def _lock(file: int, path: Path) -> bool:
    """Lock an open file; False where there are no locks."""
    if fcntl is None:
        return False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise JobError(
                    f"{path} cannot be locked: {error.strerror}", "keep runs on another disk with --run-dir"
                ) from None
        if time.monotonic() > deadline:
            raise is_written(path.parent, _read(file))
        time.sleep(_STEP_SECONDS)


def _read(file: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(file, 4096, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        # It has just taken the lock, or its disk is full.
        return Holder(pid=0, host="an unknown host")
