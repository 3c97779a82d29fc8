"""Measured results kept on disk, so that an interrupted analysis goes on where it was and a second look is instant.

A result is one file, named by a hash of everything that it depends on. It carries a checksum: what is damaged or was
written by another version does not count and is measured again.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import platformdirs
from numpy.typing import NDArray

from geocont.atomic import atomic_file
from geocont.events import Status

FORMAT_VERSION = 1
_SUFFIX = ".result"
_CHECKSUM_BYTES = 16


class Vectors(msgspec.Struct, frozen=True):
    """Singular vectors as rows: float32 in the machine's order of bytes, little-endian on all that torch runs on."""

    count: int
    size: int
    numbers: bytes

    @classmethod
    def of(cls, rows: NDArray[np.float32]) -> "Vectors":
        return cls(rows.shape[0], rows.shape[1], rows.astype("<f4").tobytes())

    def rows(self) -> NDArray[np.float32]:
        return np.frombuffer(self.numbers, "<f4").reshape(self.count, self.size).copy()


class MatrixResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an analysis keeps of one projection of one layer. `left` and `right` may be empty (0 rows).

    `fingerprint` tells whether two layers hold the same bytes.
    """

    singular_values: tuple[float, ...]
    left: Vectors
    right: Vectors
    gap: float | None
    stable_rank: float | None
    frobenius: float | None
    v1_error_bound: float | None
    u1_error_bound: float | None
    status: Status
    fingerprint: str


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """What needs both matrices of a pair: the centred Gram cosines and their standard errors."""

    v_gram: float | None
    u_gram: float | None
    v_gram_error: float | None
    u_gram_error: float | None


_Result = TypeVar("_Result", MatrixResult, PairResult)


def folder() -> Path:
    """Where results are kept: `results` in the user's cache folder. It need not exist yet."""
    return platformdirs.user_cache_path("geocont-tui", appauthor=False) / "results"


def size(where: Path | None = None) -> int:
    """Bytes of all files in a folder of results (default: `folder()`), as far as it can be read."""
    total = 0
    for parent, _, names in os.walk(folder() if where is None else where):
        for name in names:
            # It may go away between listing and looking.
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def key(*parts: str | int | float | bool | Sequence[str] | None) -> str:
    """The name of a result: a hash of all that it depends on, this format's version included."""
    return hashlib.sha256(msgspec.json.encode([FORMAT_VERSION, *parts])).hexdigest()


def load(name: str, kind: type[_Result], where: Path | None = None) -> _Result | None:
    """The result of this name, or None: there is none, it cannot be read, or it is damaged."""
    try:
        content = _path(name, where).read_bytes()
    except OSError:
        return None
    if content[:_CHECKSUM_BYTES] != _checksum(content[_CHECKSUM_BYTES:]):
        return None
    try:
        return msgspec.msgpack.decode(memoryview(content)[_CHECKSUM_BYTES:], type=kind)
    except msgspec.DecodeError:
        return None


def exists(name: str, where: Path | None = None) -> bool:
    """Whether there is a result of this name, sound or not; no, where that may not be looked at."""
    try:
        return _path(name, where).is_file()
    except OSError:
        return False


def store(name: str, result: MatrixResult | PairResult, where: Path | None = None) -> None:
    """Keep a result under its name: whole, synced, or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = _path(name, where)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = msgspec.msgpack.encode(result)
    with atomic_file(path) as file:
        file.write(_checksum(content))
        file.write(content)


def _path(name: str, where: Path | None) -> Path:
    # Some file systems are slow with many thousand files in one folder.
    return (folder() if where is None else where) / name[:2] / f"{name[2:]}{_SUFFIX}"


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()
