"""Files that appear whole or not at all: written under a temporary name in the same folder, synced, then renamed."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(target: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `target` when the block ends, and leaves no trace when the block raises.

    A symbolic link keeps pointing where it points. What is no regular file (/dev/null, a pipe) is written to directly,
    because a rename would put a file in its place.

    Raises:
        OSError: the file cannot be created, written, synced or renamed. What was there before is unchanged.
    """
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(target))
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
