"""Quantised weights: what is decoded, what is refused and why, and which side tensors belong to which weight.

What a weight is stored as is seen from the tensors beside it, not from config.json. No weight is ever handed out raw
when its numbers mean something only together with scales.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import BFloat16, Float, Float32, UInt8
from torch import Tensor

from geocont.errors import JobError
from geocont.weights.checkpoint import Checkpoint, Slice, StoredTensor, name_of
from geocont.weights.gguf_file import is_decoded, is_quantized
from geocont.weights.safetensors_file import DTYPES, ReadBuffer


@dataclass(frozen=True)
class Weight:
    """A weight of the model, whatever tensors of the checkpoint it is stored in.

    `name` and `shape` are those of the weight itself: the scales, blocks and zero points that a quantised one is stored
    with are folded into it. `dtype` says in words how it is stored ("BF16", "FP8 in blocks of 128×128"), `bytes` what
    is read of it. A `refused` weight cannot be read: the text is the reason and the remedy; it is empty otherwise.
    `sources` are the checkpoint's tensors that it is made from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    quantized: bool
    refused: str
    sources: tuple[str, ...]


_FLOATS = {"F32", "F16", "BF16", "F64"}
_FP8 = {"F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"}
_SCALES = {"F32", "F16", "BF16", "F64", "F8_E8M0"}
_SCALE_ENDINGS = ("_scale_inv", "_scale")
_SCALE_SIBLINGS = ("scale_weight", "scale", "qscale_weight")
_BLOCKS = (32, 64, 128, 256, 512)  # at most one fits; tried where config.json gives no weight_block_size
_ACTIVATION = re.compile(r"(.*\.)?(input|output|activation)_(global_)?(scale|scale_inv|zero_point|amax)")
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_GROUPS_AT_ONCE = 1 << 14  # of 32 numbers of MXFP4, looked up in memory beside the result


@dataclass(frozen=True)
class _Packed:
    """A way to store weights that is refused: recognised by `main`, its dtype, and tensors that must lie beside it.

    All are given without what they share (the module's name and a dot). `shape`: the weight's from the stored ones.
    """

    kind: str
    main: str
    dtypes: frozenset[str]
    beside: tuple[str, ...]
    shape: Callable[[Mapping[str, tuple[int, ...]]], tuple[int, ...]]


def _gptq_shape(stored: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """GPTQ packs 32/bits inputs into each row of `qweight`, and outputs into the columns of `qzeros` alike."""
    (rows, out), zeros = stored["qweight"], stored["qzeros"]
    return (out, rows * out // zeros[1])


def _awq_shape(stored: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """AWQ packs outputs; its `scales` are [groups, out]."""
    return (stored["scales"][1], stored["qweight"][0])


def _as_stored(stored: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return next(iter(stored.values()))


def _two_a_byte(stored: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    shape = _as_stored(stored)
    return (*shape[:-1], 2 * shape[-1])


_BYTES = frozenset({"U8", "I8"})
_WORDS = frozenset({"I32", "U32", "I64"})
_PACKED = (
    _Packed("bitsandbytes 4-bit", "weight", _BYTES, ("weight.absmax",), _as_stored),
    _Packed("bitsandbytes int8", "weight", _BYTES, ("SCB",), _as_stored),
    _Packed("NVFP4", "weight", _BYTES, ("weight_scale", "weight_scale_2"), _two_a_byte),
    _Packed("NVFP4", "weight_packed", _BYTES, ("weight_scale", "weight_global_scale"), _two_a_byte),
    _Packed("packed 4-bit", "weight_packed", _BYTES, ("weight_scale",), _two_a_byte),
    _Packed("packed integer", "weight_packed", _WORDS, ("weight_scale",), _as_stored),
    _Packed("integer", "weight", _BYTES, ("weight_scale",), _as_stored),
    _Packed("EETQ int8", "weight", _BYTES, ("weight_scales",), _as_stored),
    _Packed("MLX", "weight", _WORDS, ("scales",), _as_stored),
    _Packed("GPTQ", "qweight", _WORDS, ("qzeros", "scales"), _gptq_shape),
    _Packed("HQQ", "W_q", _BYTES | _WORDS, (), _as_stored),
    _Packed("AQLM", "codes", _BYTES | frozenset({"I16"}), ("codebooks", "scales"), _as_stored),
    _Packed("packed integer", "qweight", _BYTES | _WORDS, (), _as_stored),
)


class Weights:
    """The weights of a checkpoint under their own names, read one at a time and decoded to floating-point numbers."""

    items: Mapping[str, Weight]

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Find out from names, shapes and dtypes what each weight is stored as. Nothing is read."""
        self._checkpoint = checkpoint
        self._decoded = ReadBuffer()
        self._stored = checkpoint.tensors
        self._siblings: dict[str, list[str]] = {}
        for name in self._stored:
            self._siblings.setdefault(_module(name), []).append(name)
        items: dict[str, Weight] = {}
        folded = {name for name in self._stored if _ACTIVATION.fullmatch(name)}
        for find in (self._mxfp4, self._packed, self._fp8):
            found = list(find(folded))
            for weight, sides in found:
                items[weight.name] = weight
                folded.update(weight.sources, sides)
        plain = (self._plain(stored) for name, stored in self._stored.items() if name not in folded)
        self.items = items | {weight.name: weight for weight in plain}

    def can_slice(self, name: str, count: int) -> bool:
        """Whether `read` gives the weight in `count` slices. Scales that are one for all go with each of them."""
        weight = self.items[name]
        if len(weight.sources) == 1:
            return weight.shape[0] % count == 0
        return all(
            self._is_sliced(source, count) or self._stored[source].shape[:1] in ((), (1,)) for source in weight.sources
        )

    def _is_sliced(self, source: str, count: int) -> bool:
        return len(self._stored[source].shape) > 0 and self._stored[source].shape[0] == count

    def _source(self, wanted: str | Slice, number: int) -> str | Slice:
        """What to read of one of the tensors that hold a weight."""
        sources = self.items[name_of(wanted)].sources
        source = sources[number]
        if isinstance(wanted, str) or (len(sources) > 1 and not self._is_sliced(source, wanted.count)):
            return source
        return Slice(source, wanted.index, wanted.count)

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Float[Tensor, "..."]:
        """The weight or slice, in float32, bfloat16 or float16, until the next call. `following` is asked for next.

        Of a slice, which `can_slice` must allow, little more than its own bytes are read.

        Raises:
            JobError: the weight is refused, or its bytes cannot be read.
        """
        name = name_of(wanted)
        weight = self.items[name]
        if weight.refused:
            raise JobError(f"{name}: {weight.refused}", "Leave this weight out.")
        after = self._source(following, 0) if following is not None else None
        if len(weight.sources) == 1:
            tensor = self._checkpoint.read(self._source(wanted, 0), after)
            if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
                return tensor
            return self._as_float32(tensor)
        main = self._source(wanted, 1)
        scale = self._checkpoint.read(self._source(wanted, 0), main).clone()  # the next read may overwrite it
        tensor = self._checkpoint.read(main, after)
        if self._stored[name_of(main)].dtype == "U8":
            return mxfp4_values(tensor, scale, self._decoded.take(4 * tensor.numel()).view(torch.bfloat16))
        return scaled_(self._as_float32(tensor), scale.float(), self._block_size(tensor.shape, scale.shape))

    def _as_float32(self, tensor: Tensor) -> Float32[Tensor, "..."]:
        return self._decoded.take(4 * tensor.numel()).view(torch.float32).view(tensor.shape).copy_(tensor)

    # What each of these finds among the tensors that are not `folded` into a weight yet: a weight, and the names of
    # other tensors that belong to it.

    def _mxfp4(self, folded: Collection[str]) -> Iterable[tuple[Weight, Iterable[str]]]:
        """MXFP4 as gpt-oss has it: X_blocks U8 [..., out, in/32, 16] and X_scales U8 [..., out, in/32]."""
        for name, blocks in self._stored.items():
            stem = name.removesuffix("_blocks")
            scales = self._stored.get(f"{stem}_scales")
            if stem == name or name in folded or scales is None or (blocks.dtype, scales.dtype) != ("U8", "U8"):
                continue
            fits = len(blocks.shape) >= 3 and blocks.shape[-1] == 16 and blocks.shape[:-1] == scales.shape
            shape = (*blocks.shape[:-2], blocks.shape[-2] * 32) if fits else blocks.shape
            refused = "" if fits else f"its blocks {list(blocks.shape)} and scales {list(scales.shape)} do not fit"
            size = blocks.bytes + scales.bytes
            yield Weight(stem, shape, "MXFP4 in blocks of 32", size, True, refused, (scales.name, name)), ()

    def _packed(self, folded: Collection[str]) -> Iterable[tuple[Weight, Iterable[str]]]:
        for module, siblings in self._siblings.items():
            names = [name for name in siblings if name not in folded]
            stored = {name.removeprefix(module): self._stored[name] for name in names}
            for way in _PACKED:
                main = stored.get(way.main)
                below = [
                    name
                    for inner in (f"{module}{way.main}.", f"{module}{way.main}.quant_state.")
                    for name in self._siblings.get(inner, ())
                ]
                shapes = {way.main: main.shape} if main else {}
                shapes |= {key: stored[key].shape for key in way.beside if key in stored}
                shapes |= {key: () for key in way.beside if module + key in below}
                if main is None or main.dtype not in way.dtypes or set(shapes) != {way.main, *way.beside}:
                    continue
                kind, shape = way.kind, way.shape
                if kind == "GPTQ" and len(main.shape) == 2 and stored["scales"].shape[-1:] != main.shape[1:]:
                    kind, shape = "AWQ", _awq_shape
                sides = [*(name for name in names if name.rpartition(".")[2] not in ("bias", way.main)), *below]
                yield self._refused(module, main, kind, _or_stored(shape, shapes)), sides
                break

    def _refused(self, module: str, main: StoredTensor, kind: str, shape: tuple[int, ...]) -> Weight:
        reason = f"{kind} weights are not decoded; analyse the unquantised model{self._original()}"
        name = main.name if main.name.endswith(".weight") else f"{module}weight"
        return Weight(name, shape, kind, main.bytes, True, reason, (main.name,))

    def _original(self) -> str:
        base = (self._checkpoint.config or {}).get("_name_or_path")
        return f" ({base})" if isinstance(base, str) and base and base != self._checkpoint.model else ""

    def _fp8(self, folded: Collection[str]) -> Iterable[tuple[Weight, Iterable[str]]]:
        scaled = {
            name: self._scale_of(name)
            for name, stored in self._stored.items()
            if stored.dtype in _FP8 and name not in folded
        }
        expected = any(scaled.values()) or bool((self._checkpoint.config or {}).get("quantization_config"))
        for name, scale in scaled.items():
            stored = self._stored[name]
            if scale is not None:
                words, refused = self._scaling(stored, self._stored[scale])
                size = stored.bytes + self._stored[scale].bytes
                yield Weight(name, stored.shape, words, size, True, refused, (scale, name)), ()
                continue
            strange = [other for other in self._siblings[_module(name)] if "scale" in other.rpartition(".")[2]]
            strange = [other for other in strange if not _ACTIVATION.fullmatch(other)]
            refused = ""
            if len(stored.shape) >= 2 and (expected or strange):
                refused = "FP8 without the scales that belong to it; see whether a file of the model is missing"
                if strange:
                    refused = f"FP8 with scales of an unknown kind ({strange[0]}); analyse the unquantised model"
            yield Weight(name, stored.shape, "FP8 without scales", stored.bytes, True, refused, (name,)), strange

    def _scale_of(self, name: str) -> str | None:
        candidates = [name + ending for ending in _SCALE_ENDINGS]
        if name.endswith(".weight"):
            candidates += [_module(name) + sibling for sibling in _SCALE_SIBLINGS]
        return next((scale for scale in candidates if scale in self._stored), None)

    def _scaling(self, stored: StoredTensor, scale: StoredTensor) -> tuple[str, str]:
        """How it is scaled in words, and why it is refused if the scales do not fit."""
        if scale.dtype not in _SCALES:
            return "FP8", f"FP8 with scales of dtype {scale.dtype}; analyse the unquantised model"
        aligned = _aligned(stored.shape, scale.shape)
        if aligned is not None:
            counts = {"tensor": aligned, "matrix": aligned[-2:], "row": aligned[-1:]}
            return f"FP8, one scale a {next((of for of, part in counts.items() if set(part) <= {1}), 'column')}", ""
        block = self._block_size(stored.shape, scale.shape)
        if block is None:
            fit = f"scales {list(scale.shape)} do not fit its shape {list(stored.shape)}"
            return "FP8", f"{fit}; analyse the unquantised model"
        return f"FP8 in blocks of {block[0]}×{block[1]}", ""

    def _block_size(self, shape: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, int] | None:
        quantization: Any = (self._checkpoint.config or {}).get("quantization_config")
        stated = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
        sizes: list[tuple[int, int]] = [(size, size) for size in _BLOCKS]
        if isinstance(stated, list) and len(stated) == 2 and all(type(size) is int and size > 0 for size in stated):
            sizes = [(stated[0], stated[1])]
        if len(shape) < 2 or len(scale) != len(shape) or shape[:-2] != scale[:-2]:
            return None
        for rows, columns in sizes:
            if (-(-shape[-2] // rows), -(-shape[-1] // columns)) == tuple(scale[-2:]):
                return rows, columns
        return None

    def _plain(self, stored: StoredTensor) -> Weight:
        quantized = is_quantized(stored.dtype)
        refused = ""
        if quantized and not is_decoded(stored.dtype):
            refused = f"GGUF type {stored.dtype} cannot be decoded; use another quantisation of the model"
        elif not quantized and stored.dtype not in DTYPES:
            refused = f"dtype {stored.dtype} cannot be read; use a version of the model in another dtype"
        elif not quantized and stored.dtype not in _FLOATS:
            refused = (
                f"holds {stored.dtype} numbers of unknown meaning; if it is a weight, analyse the unquantised model"
            )
        return Weight(stored.name, stored.shape, stored.dtype, stored.bytes, quantized, refused, (stored.name,))


def _module(name: str) -> str:
    """The name up to the last dot, with the dot."""
    return name[: name.rfind(".") + 1]


def _or_stored(
    shape: Callable[[Mapping[str, tuple[int, ...]]], tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    try:
        return shape(stored)
    except (ValueError, IndexError, ZeroDivisionError):  # shapes that no such file has
        return _as_stored(stored)


def _aligned(shape: tuple[int, ...], scale: tuple[int, ...]) -> tuple[int, ...] | None:
    """The scale's shape with as many dimensions as the weight's if it stretches to it, else None.

    One dimension is one scale a row, or a matrix of a stack of them: FBGEMM and others write [out] as well as [out, 1].
    """
    if all(length == 1 for length in scale):
        return (1,) * len(shape)
    aligned = (*scale, *(1,) * (len(shape) - 1)) if len(scale) == 1 else scale
    fits = len(aligned) == len(shape) and all(part in (1, whole) for part, whole in zip(aligned, shape, strict=True))
    return aligned if fits else None


def scaled_(
    values: Float32[Tensor, "..."], scale: Float32[Tensor, "..."], block: tuple[int, int] | None
) -> Float32[Tensor, "..."]:
    """`values` times `scale`, in place: one scale for all, for each row, column or matrix, or for each `block`.

    The last block of a row or column may be partial. DeepSeek-V3's weight_scale_inv is multiplied, too, in spite of its
    name (arXiv 2412.19437, section 3.3; transformers' finegrained_fp8).
    """
    aligned = _aligned(tuple(values.shape), tuple(scale.shape))
    if aligned is not None:
        return values.mul_(scale.reshape(aligned))
    if block is None:
        raise ValueError(f"scales {list(scale.shape)} do not fit {list(values.shape)}")
    rows, columns = block
    along = scale.repeat_interleave(columns, dim=-1)[..., : values.shape[-1]]
    for index in range(scale.shape[-2]):
        values[..., index * rows : (index + 1) * rows, :].mul_(along[..., index : index + 1, :])
    return values


def mxfp4_values(
    blocks: UInt8[Tensor, "*experts out groups 16"],
    scales: UInt8[Tensor, "*experts out groups"],
    memory: BFloat16[Tensor, " elements"],
) -> BFloat16[Tensor, "*experts out inner"]:
    """The weights of MXFP4 blocks, in `memory`: two 4-bit numbers a byte, low half first, times 2^(scale − 127).

    bfloat16 holds them exactly. Source: OCP Microscaling Formats 1.0; transformers' convert_moe_packed_tensors returns
    the same with the last two dimensions exchanged.
    """
    lookup = torch.tensor(_FP4_VALUES, dtype=torch.bfloat16)
    # Both numbers of a byte are looked up at once, as the four bytes that they take in bfloat16.
    pairs = torch.stack((lookup.repeat(16), lookup.repeat_interleave(16)), dim=1).view(torch.int32).view(256)
    packed, factors = blocks.reshape(-1), scales.reshape(-1, 1).view(torch.float8_e8m0fnu).to(torch.bfloat16)
    values = memory.view(-1, 32)
    for start in range(0, len(values), _GROUPS_AT_ONCE):
        end = start + _GROUPS_AT_ONCE
        part = pairs.index_select(0, packed[16 * start : 16 * end].to(torch.int32)).view(torch.bfloat16)
        torch.mul(part.view(-1, 32), factors[start:end], out=values[start:end])
    return memory.view(*scales.shape[:-1], scales.shape[-1] * 32)
