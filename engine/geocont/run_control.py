"""What a watching screen asks of the process that writes a run, through the file `control` of the run's folder.

The file is replaced as a whole; the writer looks at it several times a second. A request counts once, for the writer
that is there when it is made; of several made within a moment the last one counts.
"""

import time
from pathlib import Path
from typing import Literal

import msgspec

from geocont.atomic import atomic_file
from geocont.errors import InputError

Command = Literal["pause", "resume", "stop"]

_CONTROL = "control"


class _Request(msgspec.Struct, frozen=True):
    command: Command
    time: float


def ask(folder: Path, command: Command) -> None:
    """Ask the writer of a run for something. Whether there is one, `run_lock.holder` knows.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / _CONTROL
    try:
        with atomic_file(path) as file:
            file.write(msgspec.json.encode(_Request(command, time.time())) + b"\n")
    except OSError as error:
        raise InputError(
            f"the run cannot be asked to {command}: {path} cannot be written: {error.strerror}",
            "ask from the account that runs it",
        ) from None


class Control:
    """The requests that are made of a run from now on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _CONTROL
        self._seen = self._signature()

    def take(self) -> Command | None:
        """The latest request that was not taken yet, None if there is none. Costs one look at a file's status."""
        signature = self._signature()
        if signature == self._seen:
            return None
        try:
            command = msgspec.json.decode(self._path.read_bytes(), type=_Request).command
        except (OSError, msgspec.DecodeError):
            # Over a network a file that is being replaced may be away for a moment: the next look reads it.
            return None
        self._seen = signature
        return command

    def _signature(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns
