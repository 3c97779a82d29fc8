"""What every place and file format that holds a checkpoint offers: names, shapes, one tensor at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a file's header describes it.

    `shape` is [rows, cols] in torch's order, whatever the file's. `dtype` is the file format's own word (BF16, F32,
    F8_E4M3, I32; Q4_1 in GGUF). `file` is the name of the file inside the checkpoint, `bytes` what is read of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    bytes: int


@dataclass(frozen=True)
class Slice:
    """One of `count` equal parts of a tensor along its first dimension: of stacked experts one."""

    name: str
    index: int
    count: int


def name_of(wanted: str | Slice) -> str:
    """The tensor that is meant, or that a part is meant of."""
    return wanted if isinstance(wanted, str) else wanted.name


def located(tensors: Mapping[str, StoredTensor], wanted: str | Slice) -> tuple[StoredTensor, int]:
    """What is to be read of a tensor, described as a tensor, and how many of its bytes lie before that."""
    stored = tensors[name_of(wanted)]
    if isinstance(wanted, str):
        return stored, 0
    size = stored.bytes // wanted.count
    shape = (stored.shape[0] // wanted.count, *stored.shape[1:])
    return replace(stored, shape=shape, bytes=size), wanted.index * size


class Checkpoint(Protocol):
    """An opened checkpoint. Its headers have been read, its weights have not."""

    model: str
    """As the user typed it."""
    revision: str | None
    """The commit on the hub that everything is read from, None elsewhere."""
    source: str
    """Where the weights are, in words: "folder /models/x", "hub cache", "streamed from huggingface.co"."""
    config: Mapping[str, Any] | None
    """config.json (of a GGUF file its architecture keys under config.json's names), None where there is none."""
    tensors: Mapping[str, StoredTensor]
    warnings: tuple[str, ...]
    """What the user should know: a second set of weights, a stale index."""

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Tensor:
        """The tensor of this name, or a slice, on the CPU, in its own dtype; GGUF types come dequantised to float32.

        It is valid until the next call, which may reuse its memory. `following`, what will be asked for next, may be
        fetched meanwhile. Of a slice no more than its own bytes are read.

        Raises:
            JobError: the bytes cannot be read.
        """
        ...

    def identity(self, name: str) -> str:
        """What a stored result of this tensor is valid for: the commit and file, or the file's path, size and time."""
        ...

    def close(self) -> None:
        """Let go of files, buffers and connections."""
        ...
