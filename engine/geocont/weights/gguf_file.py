"""The GGUF format of llama.cpp: header and positional reads here, the types and their decoding from the gguf package.

The package's own reader maps the file and makes an array of every word of the vocabulary: seconds, and hundreds of MB.
Names stay the file's (blk.0.attn_q.weight); dimensions, which GGUF counts from the innermost, come in torch's order.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import functools
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import torch
from jaxtyping import Float32, Shaped, UInt8
from torch import Tensor

from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Slice, StoredTensor, located
from geocont.weights.safetensors_file import DTYPES, LocalFile, ReadBuffer, other_format, tensor_view, unreadable

_VERSIONS = (2, 3)
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST_KEPT = 1 << 16  # numbers in an array: one per layer is kept, the vocabulary is not
_MOST_DIMENSIONS = 8
_DECODED_AT_ONCE = 1 << 20  # elements: what the decoder needs beside its result is a few times as much

_CONFIG_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "expert_feed_forward_length": "moe_intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "context_length": "max_position_embeddings",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "vocab_size": "vocab_size",
}
_MODEL_TYPES = {
    "command-r": "cohere",
    "deepseek2": "deepseek_v2",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""config.json's model_type where it is not llama.cpp's name of the architecture."""


def is_quantized(dtype: str) -> bool:
    """Whether `dtype` is the name of a GGUF type that numbers have to be decoded from (Q4_1, IQ2_XS, MXFP4)."""
    return dtype in gguf.GGMLQuantizationType.__members__ and dtype not in DTYPES


@functools.cache
def is_decoded(dtype: str) -> bool:
    """Whether the gguf package decodes the GGUF type `dtype`."""
    kind = gguf.GGMLQuantizationType[dtype]
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        gguf.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


class GGUFFile:
    """One .gguf file, of which the header has been read. `name` is its name inside the checkpoint."""

    def __init__(self, path: Path, name: str, blocks: ReadBuffer | None = None) -> None:
        """Read the header. `blocks` is memory for what is to be decoded, which the parts of a model can share.

        Raises:
            InputError: the file cannot be read, is damaged, or is something else.
        """
        self._file = LocalFile.of(path, name)
        self._blocks = ReadBuffer() if blocks is None else blocks
        try:
            with path.open("rb") as file:
                header = _Header(file, self._file.size, name)
        except OSError as error:
            raise unreadable(name, error) from None
        if header.fields.get("general.type") == "adapter":
            raise InputError(f"{name}: a LoRA adapter, no model", "Analyse the base model, or merge them first.")
        self.tensors: Mapping[str, StoredTensor] = header.tensors
        self._offsets = header.offsets
        self.split = _split(header.fields, name)
        """Which part of a model it is."""
        self.config = _config(header.fields)
        """What the header says of the architecture, under config.json's names."""

    def read(self, wanted: str | Slice, buffer: ReadBuffer) -> Shaped[Tensor, "..."]:
        """The tensor or slice, decoded to float32 if it is quantised, in the memory of `buffer`.

        Raises:
            JobError: the bytes cannot be read, or the gguf package does not decode the type.
        """
        stored, before = located(self.tensors, wanted)
        name = stored.name
        quantized = is_quantized(stored.dtype)
        if quantized and not is_decoded(stored.dtype):
            raise JobError(f"{name}: GGUF type {stored.dtype} cannot be decoded", "Use another quantisation.")
        memory = (self._blocks if quantized else buffer).take(stored.bytes)
        self._file.read_into(memory, self._offsets[name] + before)
        return _decoded(memory, stored, buffer) if quantized else tensor_view(memory, stored)

    def identity(self, name: str) -> str:
        """The file, when it last changed, and where the tensor lies in it."""
        file, stored = self._file, self.tensors[name]
        where = f"{name} {stored.dtype} {list(stored.shape)} at {self._offsets[name]}"
        return f"{file.path} {file.size} {file.changed} {where}"


@dataclass(frozen=True)
class Split:
    """Part `number` (from 0) of `count`, which hold `tensors` together, None where the file does not say.

    Source: llama.cpp, tools/gguf-split: the keys split.no, split.count and split.tensors.count.
    """

    number: int
    count: int
    tensors: int | None


def _split(fields: Mapping[str, Any], name: str) -> Split:
    number, count = fields.get("split.no", 0), fields.get("split.count", 1)
    tensors = fields.get("split.tensors.count")
    if not all(type(value) is int for value in (number, count, 0 if tensors is None else tensors)):
        raise InputError(f"{name}: not a valid GGUF file: which part it is is no number", "Download the file again.")
    return Split(number, max(count, 1), tensors)


def check_parts(files: Mapping[str, GGUFFile]) -> None:
    """Nothing if `files`, by name and in their order, are all the parts of one model.

    Raises:
        InputError: they are not; the text says which is not what its name says.
    """
    for position, (name, file) in enumerate(files.items()):
        split = file.split
        if len(files) == 1 and split.count > 1:
            raise InputError(
                f"{name}: one of {split.count} parts of a model, and its name does not tell where the others are",
                f"Give them the names that they had: MODEL-00001-of-{split.count:05}.gguf and so on.",
            )
        if (split.number, split.count) != (position, len(files)):
            raise InputError(
                f"{name}: says that it is part {split.number + 1} of {split.count}, not {position + 1} of {len(files)}",
                "Download the parts again, or give them the names that they had.",
            )
    names = Counter(tensor for file in files.values() for tensor in file.tensors)
    twice = next((tensor for tensor, count in names.items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{next(iter(files))}: tensor {twice} is in two parts of the model", "Download them again.")
    stated = next(iter(files.values())).split.tensors
    if stated is not None and len(files) > 1 and stated != names.total():
        raise InputError(
            f"{next(iter(files))}: its parts hold {names.total()} tensors, and it tells of {stated}",
            "Download the parts again: they are not of one model.",
        )


def _decoded(memory: UInt8[Tensor, " bytes"], stored: StoredTensor, buffer: ReadBuffer) -> Float32[Tensor, "..."]:
    elements = math.prod(stored.shape)
    values = buffer.take(4 * elements).view(torch.float32)
    if elements:
        kind = gguf.GGMLQuantizationType[stored.dtype]
        columns = stored.shape[-1]
        source, target = memory.view(elements // columns, -1).numpy(), values.view(-1, columns).numpy()
        rows = max(1, _DECODED_AT_ONCE // columns)
        with np.errstate(all="ignore"):  # numpy would write on the terminal; who uses the values checks them
            for row in range(0, len(source), rows):
                target[row : row + rows] = gguf.dequantize(source[row : row + rows], kind)
    return values.view(stored.shape)


class _Header:
    """The fields and the tensors that a file begins with. Strings and numbers are kept, long arrays are skipped."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._size, self._name = file, size, name
        self.fields: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        self.offsets: dict[str, int] = {}
        start = file.read(128)
        if not start.startswith(b"GGUF"):
            problem, remedy = other_format(start, size) or ("it does not begin with GGUF", "Download the file again.")
            raise InputError(f"{name}: not a GGUF file; {problem}", remedy)
        file.seek(4)
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            what = "written for big-endian machines" if swapped else f"of GGUF version {version}"
            raise InputError(f"{name}: {what}, which is not read", "Convert the model again with a recent llama.cpp.")
        tensors, fields = self._number("<Q"), self._number("<Q")
        for _ in range(fields):
            key = self._string()
            self.fields[key] = self._value(self._number("<I"))
        described = [self._tensor() for _ in range(tensors)]
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self._damaged(f"alignment {alignment!r}")
        data = -(-file.tell() // alignment) * alignment
        end = data
        for stored, offset in described:
            if stored.name in self.tensors:
                raise self._damaged(f"tensor {stored.name} is there twice")
            self.tensors[stored.name] = stored
            self.offsets[stored.name] = data + offset
            end = max(end, data + offset + stored.bytes)
        if described and end > size:
            raise self._truncated(f"header promises {end:,} bytes, file has {size:,}")

    def _bytes(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise self._truncated(f"its header goes on after the end at {self._size:,} bytes")
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        if count > self._size - self._file.tell():
            raise self._truncated(f"its header goes on after the end at {self._size:,} bytes")
        self._file.seek(count, 1)

    def _skip_strings(self, count: int) -> None:
        # A vocabulary is half a million of them: no calls here but the file's own.
        read, seek = self._file.read, self._file.seek
        for _ in range(count):
            length = read(8)
            if len(length) < 8 or (skipped := int.from_bytes(length, "little")) > self._size:
                raise self._truncated(f"its header goes on after the end at {self._size:,} bytes")
            seek(skipped, 1)

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _string(self) -> str:
        try:
            return self._bytes(self._number("<Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("a text is no UTF-8") from None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY:
            raise self._damaged(f"a field of type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner == _STRING:
            self._skip_strings(count)
            return None
        if inner not in _SCALARS:
            raise self._damaged(f"an array of type {inner}")
        width = struct.calcsize(_SCALARS[inner])
        if count > _LONGEST_KEPT:
            self._skip(count * width)
            return None
        return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", self._bytes(count * width)))

    def _tensor(self) -> tuple[StoredTensor, int]:
        """A tensor and the offset of its bytes from the beginning of the data."""
        name, dimensions = self._string(), self._number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise self._damaged(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed(struct.unpack(f"<{dimensions}Q", self._bytes(8 * dimensions))))
        number, offset = self._number("<I"), self._number("<Q")
        if math.prod(length for length in shape if length) >= 2**63:
            raise self._damaged(f"tensor {name} has the shape {list(shape)}")
        try:
            kind = gguf.GGMLQuantizationType(number)
        except ValueError:  # a type younger than the package: this tensor cannot be read, the others can
            return StoredTensor(name, shape, f"GGUF type {number}", self._name, 0), offset
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if (shape[-1] if shape else 1) % block:
            raise self._damaged(f"tensor {name} of {kind.name} {list(shape)} has no whole blocks of {block}")
        return StoredTensor(name, shape, kind.name, self._name, math.prod(shape) // block * size), offset

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self._name}: not a valid GGUF file: {what}", "Download the file again.")

    def _truncated(self, what: str) -> InputError:
        return InputError(f"{self._name}: truncated: {what}", "Finish the download, or download the file again.")


def _config(fields: Mapping[str, Any]) -> dict[str, Any]:
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        return {}
    config: dict[str, Any] = {"model_type": _MODEL_TYPES.get(architecture, architecture)}
    for key, name in _CONFIG_KEYS.items():
        value = fields.get(f"{architecture}.{key}")
        if value is not None:
            config[name] = value
    layers, predicting = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if isinstance(layers, int) and isinstance(predicting, int):
        config["num_hidden_layers"] = layers - predicting  # GGUF counts them in, config.json does not
    return config
