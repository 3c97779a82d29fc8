"""Weights in a folder or in one file: which files hold them, what is wrong with them, one tensor at a time.

What decides is pure and works on file names, so that the same is decided for a listing of the hub.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from jaxtyping import Shaped
from torch import Tensor

from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Slice, StoredTensor, name_of
from geocont.weights.gguf_file import GGUFFile, check_parts
from geocont.weights.pickle_file import PickleFile
from geocont.weights.safetensors_file import LocalFile, ReadBuffer, SafetensorsFile, is_text, other_format, unreadable

Format = Literal["safetensors", "pickle", "gguf"]

# The order in which transformers looks (modeling_utils._get_resolved_checkpoint_files), then diffusers' names.
_STANDARD = tuple(
    stem + ending
    for stem, endings in (
        ("model", (".safetensors", ".safetensors.index.json")),
        ("pytorch_model", (".bin", ".bin.index.json")),
        ("diffusion_pytorch_model", (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")),
    )
    for ending in endings
)
_FORMATS: Mapping[str, Format] = {
    ".safetensors": "safetensors",
    ".bin": "pickle",
    ".pt": "pickle",
    ".pth": "pickle",
    ".ckpt": "pickle",
    ".gguf": "gguf",
}
_INDEX = ".index.json"
_USUAL_SUBFOLDERS: tuple[str, ...] = ("transformer", "unet", "0_Transformer")
_OTHER_WEIGHTS = (
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".ot",
    ".npz",
    ".tflite",
    ".mlmodel",
    ".pb",
)
_NO_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|rng_state.*)\.(bin|pt|pth)")
_SHARD = re.compile(r"(.*)-\d+-of-\d+\.(safetensors|bin)")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_ADAPTER = re.compile(r"\blora_(A|B|up|down|embedding_A|embedding_B)\b")


@dataclass(frozen=True)
class Choice:
    """The files that hold the weights. With an `index` its text names the files, and `files` is empty."""

    format: Format
    files: tuple[str, ...]
    index: str | None
    warnings: tuple[str, ...]


def choose_files(
    names: Collection[str],
    *,
    model: str,
    config: Mapping[str, Any] | None = None,
    weights_file: str | None = None,
    adapter_base: str | None = None,
) -> Choice:
    """The files that transformers would load, or `weights_file` where the user names one.

    `names` are file names relative to the folder, with "/" in those of sub-folders; `model` is what messages call it;
    `adapter_base` is the base model that adapter_config.json names.

    Raises:
        InputError: no weights, only an adapter, only sub-folders or other formats hold them, or several could be meant.
    """
    here = {name for name in names if "/" not in name}
    if weights_file is not None:
        if weights_file not in names:
            raise InputError(f"{model} has no file {weights_file}", f"It has: {_listed(_weights(names))}")
        return _choice(weights_file, names, model)
    explicit = (config or {}).get("transformers_weights")
    if isinstance(explicit, str):
        if not is_inside(explicit) or not explicit.removesuffix(_INDEX).endswith(".safetensors"):
            raise InputError(
                f"{model}: its config.json names {explicit!r} as its weights, which is no safetensors file in it",
                "Name the file with --weights FILE.",
            )
        if explicit not in names:
            raise InputError(
                f"{model} has no file {explicit}, which its config.json names as its weights",
                "Finish the download, or name another file with --weights FILE.",
            )
        return _choice(explicit, names, model)
    present = [name for name in _STANDARD if name in here]
    if present:
        warnings: tuple[str, ...] = ()
        if len(present) > 1:
            also = _listed(present[1:])
            warnings = (
                f"{model} holds {len(present)} sets of weights: {present[0]} is read, not {also}. --weights chooses.",
            )
        return _choice(present[0], names, model, warnings)
    if here & {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}:
        raise adapter_only(model, adapter_base)
    for ending in (".safetensors", ".gguf"):
        found = sorted(name for name in here if name.endswith(ending))
        shards = [match for match in map(_SHARD.fullmatch, found) if match]
        if shards:
            index = f"{shards[0][1]}.{shards[0][2]}{_INDEX}"
            raise InputError(
                f"{model}: {index} is missing, which says what its {len(shards)} weight files hold",
                f"Finish the download: hf download REPO --include {index}",
            )
        # Of a model in parts one name stands for all.
        found = list({match[1] if (match := _PART.fullmatch(name)) else name: name for name in found[::-1]}.values())[
            ::-1
        ]
        if len(found) == 1:
            note = () if ending == ".gguf" else (f"{model} has no model.safetensors; {found[0]} is read.",)
            return _choice(found[0], names, model, note)
        if found:
            raise InputError(f"{model} has several weight files: {_listed(found)}", f"Name one: --weights {found[0]}")
    raise _nothing(names, model)


def _choice(name: str, names: Collection[str], model: str, warnings: tuple[str, ...] = ()) -> Choice:
    sharded = name.endswith(_INDEX)
    ending = PurePosixPath(name.removesuffix(_INDEX)).suffix.lower()
    if ending not in _FORMATS:
        raise InputError(
            f"{model}: {name} is no weight file that can be read",
            "Name a .safetensors, .gguf or .bin file, or the index.json of several.",
        )
    if sharded:
        return Choice(_FORMATS[ending], (), name, warnings)
    parts = _parts(name)
    missing = [part for part in parts if part not in names]
    if missing:
        raise InputError(
            f"{model}: {_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing. "
            f"{len(parts) - len(missing)} of {len(parts)} parts present.",
            f"Finish the download: hf download REPO --include '{parts[0].replace('-00001-of-', '-*-of-')}'",
        )
    return Choice(_FORMATS[ending], parts, None, warnings)


def _parts(name: str) -> tuple[str, ...]:
    """All files of the model that `name` is a file of: itself, or the parts that llama.cpp's gguf-split made."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return (name,)
    return tuple(f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1))


def _nothing(names: Collection[str], model: str) -> InputError:
    """The error for a folder without weights of its own: they are in sub-folders, in other formats, or nowhere."""
    folders = {
        name.split("/")[0]
        for name in names
        if "/" in name and (name.split("/")[-1] in _STANDARD or name.endswith((".safetensors", ".gguf")))
    }
    if folders:
        usual = [folder for folder in _USUAL_SUBFOLDERS if folder in folders]
        return InputError(
            f"{model} has weights in sub-folders only: {_listed(sorted(folders))}",
            f"Name one: --subfolder {(usual or sorted(folders))[0]}",
        )
    others = [name for name in _weights(names) if name.lower().endswith(_OTHER_WEIGHTS)]
    readable = [name for name in others if PurePosixPath(name).suffix.lower() in _FORMATS]
    if readable:
        return InputError(
            f"{model} has no safetensors weights (found: {_listed(others)})",
            f"Read one of them: --weights {readable[0]}",
        )
    if others:
        return InputError(
            f"{model} has no safetensors weights (found: {_listed(others)})",
            "Convert them to safetensors; on the hub a conversion may wait under --revision refs/pr/N.",
        )
    return InputError(
        f"{model} has no weights", "Name a folder with model.safetensors or pytorch_model.bin, or one weight file."
    )


def _weights(names: Iterable[str]) -> list[str]:
    """Those that hold weights of any kind, in any folder."""
    endings = (*_FORMATS, *_OTHER_WEIGHTS, *(ending + _INDEX for ending in _FORMATS))
    return sorted(
        name for name in names if name.lower().endswith(endings) and not _NO_WEIGHTS.fullmatch(PurePosixPath(name).name)
    )


def adapter_only(model: str, base: str | None) -> InputError:
    """The error for a LoRA adapter without its model."""
    return InputError(
        f"{model} is a LoRA adapter of {base or 'another model'}",
        f"Analyse {base or 'its base model'}, or merge the two first (peft: merge_and_unload).",
    )


def _listed(names: Collection[str], most: int = 5) -> str:
    shown = ", ".join(list(names)[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def is_inside(name: str) -> bool:
    """Whether a name from an untrusted file stays inside the folder: relative, "/" between parts, no "..".

    Symbolic links are left alone: in the hub's cache every file is one.
    """
    parts = name.split("/")
    return bool(name) and not set(name) & set("\\:\0") and not any(part in ("", ".", "..") for part in parts)


def read_index(text: bytes, index: str) -> dict[str, str]:
    """The map from tensor to weight file that the index.json of a sharded checkpoint holds.

    Raises:
        InputError: the text is no such index, or a file name in it leaves the folder.
    """
    other = other_format(text[:128], len(text))
    if other:
        problem, remedy = other
        raise InputError(f"{index}: not an index; {problem}", remedy)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{index}: not valid JSON: {error}", "Download the file again.") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: has no weight_map", "Download the file again.")
    for file in dict.fromkeys(map(str, weight_map.values())):
        if not is_inside(file):
            raise InputError(
                f"{index}: names {file!r}, which is not inside the model's folder", "Do not use this checkpoint."
            )
    if not all(isinstance(file, str) and is_text(tensor + file) for tensor, file in weight_map.items()):
        raise InputError(f"{index}: its weight_map is damaged", "Download the file again.")
    return weight_map


def shards(weight_map: Mapping[str, str], names: Collection[str], index: str) -> tuple[str, ...]:
    """The files that hold the weights, all of them among `names`. An index in a sub-folder names its neighbours.

    Raises:
        InputError: some are missing; the text says which, how many, and how much they hold.
    """
    folder = index.rpartition("/")[0]
    counts = Counter(f"{folder}/{file}" if folder else file for file in weight_map.values())
    missing = sorted(set(counts) - set(names))
    if missing:
        tensors = sum(counts[file] for file in missing)
        first = f"{missing[0]} is" if len(missing) == 1 else f"{_listed(missing)} are"
        include = " ".join(f"--include {file}" for file in missing[:3]) if len(missing) <= 3 else "--include '*'"
        raise InputError(
            f"{first} missing (the index lists {tensors} tensors in {'it' if len(missing) == 1 else 'them'}). "
            f"{len(counts) - len(missing)} of {len(counts)} files present.",
            f"Finish the download: hf download REPO {include}",
        )
    return tuple(sorted(counts))


def reconcile(
    weight_map: Mapping[str, str], found: Mapping[str, Collection[str]], index: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which file each tensor is read from, and how the index differs from `found`, what the files' headers say.

    The headers are the truth. Where two files hold a tensor, the index decides.
    """
    folder = index.rpartition("/")[0]
    places: dict[str, str] = {}
    for file, tensors in found.items():
        for tensor in tensors:
            named = weight_map.get(tensor)
            if tensor not in places or file == (f"{folder}/{named}" if folder else named):
                places[tensor] = file
    warnings = []
    nowhere = sorted(set(weight_map) - set(places))
    if nowhere:
        warnings.append(f"{index} names {_counted(nowhere)} that no file holds: {_listed(nowhere, 3)}.")
    unlisted = sorted(set(places) - set(weight_map))
    if unlisted:
        warnings.append(f"{index} is stale: the files hold {_counted(unlisted)} more: {_listed(unlisted, 3)}.")
    return places, tuple(warnings)


def _counted(tensors: Sequence[str]) -> str:
    return "1 tensor" if len(tensors) == 1 else f"{len(tensors)} tensors"


def parse_config(text: bytes, name: str = "config.json") -> dict[str, Any]:
    """What config.json says.

    Raises:
        InputError: it is not the JSON of an object.
    """
    other = other_format(text[:128], len(text))
    if other:
        problem, remedy = other
        raise InputError(f"{name}: not valid JSON; {problem}", remedy)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not valid JSON: {error}", "Mend the file, or download it again.") from None
    if not isinstance(config, dict):
        raise InputError(f"{name}: not a JSON object", "Download the file again.")
    return config


def refuse_adapter(tensors: Collection[str], model: str, base: str | None) -> None:
    """Nothing if `tensors` are a model's names.

    Raises:
        InputError: there are none, or only those of a LoRA adapter.
    """
    if not tensors:
        raise InputError(f"{model} holds no tensors", "Name a file or folder that holds a model's weights.")
    if all(_ADAPTER.search(name) for name in tensors):
        raise adapter_only(model, base)


class _File(Protocol):
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    def read(self, wanted: str | Slice, buffer: ReadBuffer) -> Shaped[Tensor, "..."]: ...
    def identity(self, name: str) -> str: ...


class LocalCheckpoint:
    """Weights in files of this machine, see `geocont.weights.checkpoint.Checkpoint`."""

    def __init__(
        self,
        model: str,
        source: str,
        config: Mapping[str, Any] | None,
        files: Mapping[str, _File],
        places: Mapping[str, str],
        warnings: tuple[str, ...],
    ) -> None:
        """`files` by their names, `places`: which of them each tensor is read from."""
        self.model = model
        self.revision: str | None = None
        self.source = source
        self.config = config
        self.tensors: Mapping[str, StoredTensor] = {
            tensor: files[file].tensors[tensor] for tensor, file in places.items()
        }
        self.warnings = warnings
        self._files = dict(files)
        self._buffer = ReadBuffer()

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Shaped[Tensor, "..."]:
        """The tensor or slice, valid until the next call. `following` is left to the disk's own read-ahead.

        Raises:
            JobError: the bytes cannot be read, or the checkpoint has been closed.
        """
        name = name_of(wanted)
        file = self._files.get(self.tensors[name].file)
        if file is None:
            raise JobError(f"{name} of {self.model} was asked for after the checkpoint was closed", "Open it again.")
        return file.read(wanted, self._buffer)

    def identity(self, name: str) -> str:
        """The file's resolved path, size and time of change, and the tensor's name and place in it."""
        return self._files[self.tensors[name].file].identity(name)

    def close(self) -> None:
        """Let go of the buffer and of mapped files."""
        self._files.clear()
        self._buffer.release()


def open_checkpoint(path: Path, weights_file: str | None = None, subfolder: str | None = None) -> LocalCheckpoint:
    """The checkpoint in the folder `path`, or in the one file (or index.json) `path`. Only headers are read.

    `weights_file` is read instead of what transformers would choose, `subfolder` instead of the folder itself.

    Raises:
        InputError: nothing readable is there; the text says what is, and what to do.
    """
    model = str(path)
    if path.is_dir():
        source = f"folder {path}"
        folder = path
        if subfolder is not None:
            folder = path / subfolder
            if not is_inside(subfolder) or not folder.is_dir():
                raise InputError(f"{model} has no sub-folder {subfolder}", "Name one that is there.")
    elif path.exists():
        if weights_file is not None or subfolder is not None:
            raise InputError(f"{model} is one file", "Leave --weights and --subfolder out, or name the folder.")
        LocalFile.of(path, model)  # a pipe or a device holds no weights
        source = f"file {path}"
        folder, weights_file = path.parent, path.name
    else:
        raise InputError(f"{model}: no such file or folder", "Name a folder with weights, a weight file or a hub id.")
    try:
        names = set(_names(folder, path.name if path.is_file() and not path.name.endswith(_INDEX) else None))
    except OSError as error:
        raise unreadable(model, error) from None
    config = parse_config(_content(folder, "config.json")) if "config.json" in names else None
    base = _adapter_base(folder, names)
    choice = choose_files(names, model=model, config=config, weights_file=weights_file, adapter_base=base)
    weight_map = read_index(_content(folder, choice.index), choice.index) if choice.index else {}
    file_names = shards(weight_map, names, choice.index) if choice.index else choice.files

    warnings = list(choice.warnings)
    files: dict[str, _File] = {}
    parts: dict[str, GGUFFile] = {}
    blocks = ReadBuffer()
    for name in file_names:
        if choice.format == "safetensors":
            files[name] = SafetensorsFile(folder / name, name)
        elif choice.format == "pickle":
            pickled = PickleFile(folder / name, name)
            warnings += pickled.warnings
            files[name] = pickled
        else:
            files[name] = parts[name] = GGUFFile(folder / name, name, blocks)
    if parts:
        check_parts(parts)
        config = next(iter(parts.values())).config  # what the other parts have of it is nothing
    if choice.index:
        found = {name: file.tensors.keys() for name, file in files.items()}
        places, differences = reconcile(weight_map, found, choice.index)
        warnings += differences
    else:
        places = {tensor: name for name, file in files.items() for tensor in file.tensors}
        warnings += [
            f"{name} is one of several weight files of a model." for name in file_names if _SHARD.fullmatch(name)
        ]
    refuse_adapter(places, model, base)
    return LocalCheckpoint(model, source, config, files, places, tuple(warnings))


def _names(folder: Path, file: str | None) -> Iterable[str]:
    """The files of a folder and, as sub-folder/name, of its sub-folders; of one `file` only its parts and config."""
    if file is not None:
        beside = ("config.json", "adapter_config.json")
        yield from (name for name in (*_parts(file), *beside) if (folder / name).is_file())
        return
    for entry in os.scandir(folder):
        if not is_text(entry.name):
            continue
        if entry.is_file():
            yield entry.name
        elif entry.is_dir() and not entry.name.startswith("."):
            try:
                yield from (
                    f"{entry.name}/{inner.name}"
                    for inner in os.scandir(entry)
                    if is_text(inner.name) and inner.is_file()
                )
            except OSError:  # a sub-folder that may not be read holds nothing for us
                continue


def _content(folder: Path, name: str) -> bytes:
    LocalFile.of(folder / name, name)  # a pipe would be waited for
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise unreadable(name, error) from None


def _adapter_base(folder: Path, names: Collection[str]) -> str | None:
    if "adapter_config.json" not in names:
        return None
    base = parse_config(_content(folder, "adapter_config.json"), "adapter_config.json").get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None
