"""The safetensors format: its header, checked as untrusted input, and one tensor at a time by positional reads.

A file is 8 bytes (the header's length, little-endian), a JSON header, then the tensors' bytes without gaps. Nothing is
mapped into memory: a mapped file counts as the process's own memory by most meters, a reused buffer is one tensor.
Source: https://huggingface.co/docs/safetensors, "Format"; the checks are those of the library.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Slice, StoredTensor, located, name_of

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library takes at most."""

DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""The format's words for what torch can hold. A tensor of any other dtype can be listed but not read."""

_WORDS = {dtype: word for word, dtype in DTYPES.items()}
_ALIGNMENT = 8

_BITS = {word: 8 * dtype.itemsize for word, dtype in DTYPES.items()} | {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_LARGEST_SIZE = 2**63 - 1
_MOST_DIMENSIONS = 64  # of a tensor in torch
_READ_BYTES = 1 << 30  # a single read of more than 2 GiB fails on some systems


@dataclass(frozen=True)
class Header:
    """What a file's header says. `offsets` are where the tensors begin, in bytes from the beginning of the file."""

    tensors: Mapping[str, StoredTensor]
    offsets: Mapping[str, int]


def header_bytes(start: bytes, file_size: int, name: str) -> int:
    """How many bytes the header takes after the first 8, from the first bytes of the file (128 tell most mistakes).

    Raises:
        InputError: the file is no safetensors file, and as far as its first bytes tell it, what it is instead.
    """
    other = other_format(start, file_size)
    if other:
        problem, remedy = other
        raise InputError(f"{name}: not a safetensors file; {problem}", remedy)
    if len(start) < LENGTH_BYTES:
        raise _damaged(name, f"it has {file_size} bytes, too few for a header")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise _damaged(name, f"its header would be {length:,} bytes long")
    if length > file_size - LENGTH_BYTES:
        promised = LENGTH_BYTES + length
        raise _truncated(name, f"header promises at least {promised:,} bytes, file has {file_size:,}")
    return length


def parse_header(header: bytes, file_size: int, name: str) -> Header:
    """The tensors that `header` (the JSON alone, without the 8 bytes before it) describes in a file of `file_size`.

    Tensors lie without holes or overlaps up to the end of the file, each as long as its shape and dtype say. What the
    metadata say is ignored. A dtype that this version does not know makes no file invalid: its tensor is listed.

    Raises:
        InputError: any of that is not so, or the file is shorter than promised.
    """
    start = LENGTH_BYTES + len(header)
    entries = sorted(_entries(header, name), key=lambda entry: entry[1:3])
    tensors: dict[str, StoredTensor] = {}
    offsets: dict[str, int] = {}
    end = 0
    for tensor, begin, stop, dtype, shape in entries:
        if begin != end:
            what = "overlaps the one before it" if begin < end else "leaves a hole before it"
            raise _damaged(name, f"tensor {tensor} {what}")
        bits = _BITS.get(dtype)
        if bits is not None and math.prod(shape) * bits != 8 * (stop - begin):
            raise _damaged(name, f"tensor {tensor} of {dtype} {list(shape)} cannot take {stop - begin:,} bytes")
        if tensor in tensors:
            raise _damaged(name, f"tensor {tensor} is there twice")
        tensors[tensor] = StoredTensor(tensor, shape, dtype, name, stop - begin)
        offsets[tensor] = start + begin
        end = stop
    if start + end > file_size:
        raise _truncated(name, f"header promises {start + end:,} bytes, file has {file_size:,}")
    if start + end < file_size:
        raise _damaged(name, f"header promises {start + end:,} bytes, file has {file_size:,}")
    return Header(tensors, offsets)


def _entries(header: bytes, name: str) -> Iterable[tuple[str, int, int, str, tuple[int, ...]]]:
    """(tensor, begin, end, dtype, shape) of every tensor, in the order of the header."""
    try:
        # Objects become tuples of pairs, so that a name that is there twice is seen.
        pairs = json.loads(header.decode("utf-8"), object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its header is no JSON ({type(error).__name__})") from None
    if not isinstance(pairs, tuple):
        raise _damaged(name, "its header is no JSON object")
    for tensor, description in pairs:
        if tensor == "__metadata__":
            continue
        fields = dict(description) if isinstance(description, tuple) else {}
        offsets, dtype, shape = fields.get("data_offsets"), fields.get("dtype"), fields.get("shape")
        if not (
            isinstance(tensor, str)
            and isinstance(dtype, str)
            and is_text(tensor)
            and is_text(dtype)
            and _are_sizes(offsets)
            and _is_shape(shape)
            and len(offsets) == 2
            and offsets[0] <= offsets[1]
        ):
            raise _damaged(name, f"its header describes tensor {tensor!r} wrongly")
        yield tensor, offsets[0], offsets[1], dtype, tuple(shape)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _LARGEST_SIZE for value in values)


def _is_shape(values: Any) -> TypeGuard[list[int]]:
    if not _are_sizes(values) or len(values) > _MOST_DIMENSIONS:
        return False
    return math.prod(length for length in values if length) <= _LARGEST_SIZE  # torch multiplies beside a zero, too


def is_text(text: str) -> bool:
    """Whether a text from JSON can be written: JSON can escape half a surrogate pair, which no terminal takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _damaged(name: str, what: str) -> InputError:
    return InputError(f"{name}: not a valid safetensors file: {what}", "Download the file again.")


def _truncated(name: str, what: str) -> InputError:
    return InputError(f"{name}: truncated: {what}", "Finish the download, or download the file again.")


def other_format(start: bytes, file_size: int) -> tuple[str, str] | None:
    """What a file that begins with `start` is if it is no safetensors file, and what to do."""
    if start.startswith(b"version https://git-lfs"):
        return f"it is a Git-LFS pointer ({file_size} bytes)", 'Run "git lfs pull" in the repository.'
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html", b"<?xml"):
        return "a web page was saved instead", "Download the file itself, for example with: hf download REPO"
    if start.startswith(b"GGUF"):
        return "it is a GGUF file", "Give it a name that ends in .gguf."
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        # A header of 640, 896, 1152 or 1408 bytes begins with the same two bytes.
        if start[:2] != b"PK" and start[2:LENGTH_BYTES] == bytes(LENGTH_BYTES - 2):
            return None
        return "it is a PyTorch pickle file", "Give it a name that ends in .bin."
    if file_size == 0:
        return "it is empty", "Download the file again."
    return None


class ReadBuffer:
    """Memory that one read after another is made into, as large as the largest so far."""

    def __init__(self) -> None:
        self._memory: UInt8[Tensor, " bytes"] = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> UInt8[Tensor, " size"]:
        """The first `size` bytes, their content undefined. What was taken before is lost.

        Raises:
            JobError: there is not so much memory.
        """
        if size > len(self._memory):
            self.release()
            try:
                self._memory = torch.empty(size, dtype=torch.uint8)
            except RuntimeError:
                raise JobError(
                    f"no memory for a tensor of {size:,} bytes", "Free memory, or use a machine that has more."
                ) from None
        return self._memory[:size]

    def release(self) -> None:
        """Let go of the memory as soon as no tensor uses it."""
        self._memory = torch.empty(0, dtype=torch.uint8)


def tensor_view(memory: UInt8[Tensor, " bytes"], stored: StoredTensor) -> Shaped[Tensor, "..."]:
    """The bytes of a tensor as that tensor, in its own dtype and shape, without a copy.

    Raises:
        JobError: torch has no such dtype.
    """
    dtype = DTYPES.get(stored.dtype)
    if dtype is None:
        raise JobError(f"{stored.name}: the dtype {stored.dtype} cannot be read", "Leave this tensor out.")
    return memory.view(dtype).view(stored.shape)


@dataclass(frozen=True)
class LocalFile:
    """Which file it is, and that it has not changed: its resolved path, its size and the time of its last change."""

    path: str
    size: int
    changed: int

    @staticmethod
    def of(path: Path, name: str) -> "LocalFile":
        """The identity of the regular file at `path`, which messages call `name`.

        Raises:
            InputError: there is none, or it is a folder, a pipe or a device.
        """
        try:
            facts = path.stat()
        except OSError as error:
            raise unreadable(name, error) from None
        if not stat.S_ISREG(facts.st_mode):
            raise InputError(f"{name}: not a regular file", "Name the file that holds the weights.")
        return LocalFile(os.path.realpath(path), facts.st_size, facts.st_mtime_ns)

    def read_into(self, memory: UInt8[Tensor, " bytes"], offset: int) -> None:
        """Fill `memory` with the file's bytes from `offset` on.

        Raises:
            JobError: the file has gone, has changed since its header was read, or the disk fails.
        """
        view = memory.numpy().data
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                facts = os.fstat(file.fileno())
                if (facts.st_size, facts.st_mtime_ns) != (self.size, self.changed):
                    raise JobError(f"{self.path}: has changed since its header was read", "Start again.")
                file.seek(offset)
                done = 0
                while done < len(view):
                    count = file.readinto(view[done : done + _READ_BYTES])
                    if not count:
                        raise JobError(f"{self.path}: ends {len(view) - done:,} bytes early", "Start again.")
                    done += count
        except OSError as error:
            raise JobError(f"{self.path}: {error.strerror or error}", "See whether the disk is still there.") from None


def encoded(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A whole file in parts, the tensors of the largest numbers first, so that each begins where its dtype needs it."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    parts: list[bytes | memoryview] = []
    end = 0
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": _WORDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
        if size:
            parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    header = msgspec.json.encode(described)
    header += b" " * (-len(header) % _ALIGNMENT)
    return [len(header).to_bytes(LENGTH_BYTES, "little"), header, *parts]


def unreadable(name: str, error: OSError) -> InputError:
    """The error for a file of the user's that cannot be opened."""
    return InputError(f"{name}: {error.strerror or error}", "Name a file that is there and that you may read.")


class SafetensorsFile:
    """One .safetensors file, of which the header has been read. `name` is its name inside the checkpoint."""

    def __init__(self, path: Path, name: str) -> None:
        """Read the header.

        Raises:
            InputError: the file cannot be read, is damaged or is something else; the text says which.
        """
        self._file = LocalFile.of(path, name)
        try:
            with path.open("rb") as file:
                start = file.read(128)
                length = header_bytes(start, self._file.size, name)
                file.seek(LENGTH_BYTES)
                self._header = parse_header(file.read(length), self._file.size, name)
        except OSError as error:
            raise unreadable(name, error) from None
        self.tensors = self._header.tensors

    def read(self, wanted: str | Slice, buffer: ReadBuffer) -> Shaped[Tensor, "..."]:
        """The tensor or slice, in the memory of `buffer`.

        Raises:
            JobError: the bytes cannot be read, or torch has no such dtype.
        """
        stored, before = located(self.tensors, wanted)
        memory = buffer.take(stored.bytes)
        self._file.read_into(memory, self._header.offsets[name_of(wanted)] + before)
        return tensor_view(memory, stored)

    def identity(self, name: str) -> str:
        """The file, when it last changed, and where the tensor lies in it."""
        file, stored = self._file, self.tensors[name]
        where = f"{name} {stored.dtype} {list(stored.shape)} at {self._header.offsets[name]}"
        return f"{file.path} {file.size} {file.changed} {where}"
