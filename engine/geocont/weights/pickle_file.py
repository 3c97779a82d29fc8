"""PyTorch's own format, pytorch_model.bin: read by torch.load(weights_only=True) and in no other way.

That loader builds tensors and plain containers and refuses to call anything else, so no code in the file runs, and no
switch is needed to allow it. The zip format (torch 1.6 and later) is mapped: its pages are read when they are used.
"""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Slice, StoredTensor, name_of
from geocont.weights.safetensors_file import DTYPES, LocalFile, ReadBuffer, is_text, other_format, unreadable

MAX_OLD_FORMAT_BYTES = 2 << 30
"""The format before torch 1.6 cannot be mapped; a larger file of it is refused rather than loaded whole."""

_WRAPPERS = ("state_dict", "model", "module")
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


class PickleFile:
    """One .bin file, of which the pickle has been read. `name` is its name inside the checkpoint."""

    def __init__(self, path: Path, name: str) -> None:
        """Read the pickle; of a file in the old format everything, which `warnings` then say.

        Raises:
            InputError: the file cannot be read, is damaged, is something else, or its pickle would run code.
        """
        self._file = LocalFile.of(path, name)
        self.warnings: tuple[str, ...] = ()
        try:
            with path.open("rb") as file:
                start = file.read(128)
        except OSError as error:
            raise unreadable(name, error) from None
        mapped = start.startswith(b"PK")
        if not mapped:
            self._refuse_unless_old_format(start, name)
            self.warnings = (f"{name} is in the format before torch 1.6 and was loaded whole.",)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch writes on the terminal what it thinks of the pickle's protocol
                content = torch.load(path, weights_only=True, mmap=mapped, map_location="cpu")
        except pickle.UnpicklingError as error:
            called = re.search(r"GLOBAL ([\w.]+\w)", str(error))
            what = f": it calls {called[1]}" if called else ""
            raise InputError(
                f"{name}: its pickle holds more than weights and was not run{what}",
                "Use a safetensors version of the model.",
            ) from None
        except MemoryError:
            raise InputError(f"{name}: no memory to load it", "Use a safetensors version of the model.") from None
        except Exception as error:  # a damaged file can raise anything
            what = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
            raise InputError(f"{name}: not a readable PyTorch file: {what}", "Download the file again.") from None
        self._tensors: dict[str, Tensor] = {
            key: value.detach()
            for key, value in _unwrap(content).items()
            if isinstance(key, str) and _is_whole(value) and is_text(key)
        }
        self.tensors: Mapping[str, StoredTensor] = {
            key: StoredTensor(key, tuple(value.shape), _word(value), name, value.numel() * value.element_size())
            for key, value in self._tensors.items()
        }

    def _refuse_unless_old_format(self, start: bytes, name: str) -> None:
        other = None if start.startswith(b"\x80") else other_format(start, self._file.size)
        if other:
            problem, remedy = other
            raise InputError(f"{name}: not a PyTorch file; {problem}", remedy)
        if not start.startswith(b"\x80"):
            raise InputError(f"{name}: not a PyTorch file", "Name a file that torch.save wrote.")
        if self._file.size > MAX_OLD_FORMAT_BYTES:
            raise InputError(
                f"{name}: {self._file.size:,} bytes in the format before torch 1.6, which must be loaded whole",
                "Save it again with torch.save, or use a safetensors version of the model.",
            )

    def read(self, wanted: str | Slice, buffer: ReadBuffer) -> Shaped[Tensor, "..."]:
        """The tensor or slice on pages of the file, which are read when it is used; `buffer` is left alone.

        Raises:
            JobError: it is a sparse or quantised tensor of torch.
        """
        name = name_of(wanted)
        if self.tensors[name].dtype not in DTYPES:
            raise JobError(f"{name}: a {self.tensors[name].dtype} tensor cannot be read", "Leave this tensor out.")
        whole = self._tensors[name]
        if isinstance(wanted, Slice):
            return whole.chunk(wanted.count)[wanted.index].contiguous()
        return whole.contiguous()

    def identity(self, name: str) -> str:
        """The file, when it last changed, and the tensor's name and shape."""
        stored = self.tensors[name]
        return f"{self._file.path} {self._file.size} {self._file.changed} {name} {stored.dtype} {list(stored.shape)}"


def _unwrap(content: Any) -> Mapping[Any, Any]:
    """The mapping from names to tensors: `content` itself, or what training scripts wrap it in."""
    for _ in _WRAPPERS:
        if not isinstance(content, Mapping):
            break
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    return content if isinstance(content, Mapping) else {}


def _is_whole(value: Any) -> bool:
    """Whether it is a tensor that has bytes of its own: a few stored bytes can claim to be an endless one."""
    if not isinstance(value, Tensor) or value.is_nested:
        return False
    if value.layout is not torch.strided or value.is_quantized:
        return True
    return value.nbytes <= value.untyped_storage().nbytes()


def _word(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return "sparse"
    return _WORDS.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
