"""The text of an experiment as token ids: read once, tokenized once, then a memory map in the user's cache.

A byte-level BPE (Sennrich et al. 2016, on bytes as in GPT-2) is trained on the part of the text that networks are
trained on. What is cached is keyed by the text and by every setting that the ids depend on.
"""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import platformdirs

from geocont.ablations.experiment import Text
from geocont.errors import InputError, JobError

_FORMAT = 2
_END = "<|endoftext|>"
_TEXT_SUFFIXES = (".txt", ".text", ".md")
_CHUNK = 1 << 20
_BATCH = 64
_NAMES = ("train", "held_out")
# A folder that is being made is not older; what is was left by a process that was killed.
_ABANDONED_SECONDS = 86400.0


@dataclass(frozen=True)
class Corpus:
    """Token ids to train on and to evaluate with, as memory maps; `tokenizer` is the file that tokenizers reads.

    `source` says in one line what it is.
    """

    train: npt.NDArray[Any]
    held_out: npt.NDArray[Any]
    vocabulary: int
    tokenizer: Path
    source: str

    def require(self, sequence_length: int) -> None:
        """Raises InputError where there is not one sequence, and the token after it, in each part."""
        for name, part in (("training", self.train), ("held-out", self.held_out)):
            if len(part) <= sequence_length:
                raise InputError(
                    f"sequence_length: {sequence_length} tokens are more than the {name} text has ({len(part)})",
                    "lower sequence_length, or give more text with --set data.path=FILE-or-FOLDER",
                )


class _Facts(msgspec.Struct, frozen=True):
    """What stands beside the ids: how many there are of each part, how many there can be, and where they are from.

    `tokenizer` is the SHA-256 of the tokenizer's file.
    """

    train: int
    held_out: int
    vocabulary: int
    source: str
    tokenizer: str


def folder() -> Path:
    """Where tokenized texts are kept."""
    return platformdirs.user_cache_path("geocont-tui", appauthor=False) / "texts"


def load(data: Text, report: Callable[[str], None]) -> Corpus:
    """The ids of a text, from the cache if it has been tokenized before. `report` gets a line for what takes long.

    Raises:
        InputError: the text cannot be had or read, it is empty, or it is too small for the vocabulary.
        JobError: the ids cannot be kept.
    """
    train, held_out, name = _from_hub(data, report) if data.path is None else (*_from_disk(Path(data.path)), data.path)
    key = _key(data, [*train, *held_out])
    kept = folder() / key
    found = _kept(kept)
    if found is not None:
        return found
    try:
        return _made(data, train, held_out, name, kept, report)
    except OSError as error:
        raise JobError(
            f"the tokens of {name} cannot be kept in {kept.parent}: {error.strerror or error}",
            "free some space there, or set XDG_CACHE_HOME to a folder on a larger disk",
        ) from None


def _made(
    data: Text, train: Sequence[Path], held_out: Sequence[Path], name: str, kept: Path, report: Callable[[str], None]
) -> Corpus:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    report(f"reading {name}")
    size, is_blank = 0, True
    for chunk in _chunks(train):
        size += len(chunk)
        is_blank &= not chunk.strip()
    if is_blank:
        raise InputError(f"{name} holds no text", "give a text with --set data.path=FILE-or-FOLDER")
    first = size if held_out else int(size * (1 - data.held_out))
    report(f"training a vocabulary of {data.vocabulary} on {first / 1e6:,.1f} million characters")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=data.vocabulary,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_until(_chunks(train), first), trainer)
    vocabulary = tokenizer.get_vocab_size()
    if vocabulary < data.vocabulary:
        raise InputError(
            f"data.vocabulary: {name} supports {vocabulary} tokens, not {data.vocabulary}",
            f"lower it: --set data.vocabulary={vocabulary}",
        )
    dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
    parts: dict[str, Iterable[str]] = {
        "train": _until(_chunks(train), first),
        "held_out": _chunks(held_out) if held_out else _after(_chunks(train), first),
    }
    temporary = _temporary(kept.parent)
    try:
        temporary.mkdir(parents=True)
        _remove_abandoned(kept.parent)
        counts = {}
        for part, texts in parts.items():
            report(f"tokenizing {name} ({part.replace('_', '-')})")
            with (temporary / f"{part}.bin").open("xb") as file:
                counts[part] = 0
                for batch in _batches(texts, _BATCH):
                    for encoded in tokenizer.encode_batch_fast(batch):
                        ids = np.asarray(encoded.ids, dtype=dtype)
                        counts[part] += len(ids)
                        file.write(ids.tobytes())
                file.flush()
                os.fsync(file.fileno())
        source = f"{name}, {counts['train']:,} + {counts['held_out']:,} held-out tokens, vocabulary {vocabulary}"
        written = tokenizer.to_str().encode()
        facts = _Facts(counts["train"], counts["held_out"], vocabulary, source, hashlib.sha256(written).hexdigest())
        for file_name, content in (("tokenizer.json", written), ("facts.json", _encode(facts))):
            with (temporary / file_name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _put(temporary, kept)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    found = _kept(kept)
    if found is None:
        raise OSError("what was written cannot be read again")
    return found


_encode = msgspec.json.encode


def _temporary(beside: Path) -> Path:
    return beside / f".{secrets.token_hex(8)}.tmp"


def _put(made: Path, kept: Path) -> None:
    """Give a folder its name, unless another process was faster: what that made is the same."""
    try:
        made.rename(kept)
    except OSError:
        if _kept(kept) is not None:
            return
        damaged = _temporary(kept.parent)
        with suppress(OSError):
            kept.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
        with suppress(OSError):
            made.rename(kept)


def _remove_abandoned(beside: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in beside.glob(".*.tmp"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _kept(kept: Path) -> Corpus | None:
    """What the cache has; None if nothing, or if it is not whole."""
    try:
        facts = msgspec.json.decode((kept / "facts.json").read_bytes(), type=_Facts)
        dtype = np.dtype(np.uint16 if facts.vocabulary <= 2**16 else np.uint32)
        for part in _NAMES:
            if (kept / f"{part}.bin").stat().st_size != getattr(facts, part) * dtype.itemsize:
                return None
        if hashlib.sha256((kept / "tokenizer.json").read_bytes()).hexdigest() != facts.tokenizer:
            return None
    except (OSError, msgspec.DecodeError):
        return None

    def ids(part: str) -> npt.NDArray[Any]:
        # An empty file cannot be mapped.
        if not getattr(facts, part):
            return np.empty(0, dtype=dtype)
        return np.memmap(kept / f"{part}.bin", dtype=dtype, mode="r")

    return Corpus(ids("train"), ids("held_out"), facts.vocabulary, kept / "tokenizer.json", facts.source)


def _key(data: Text, files: Sequence[Path]) -> str:
    """Tells texts and settings apart. A file in the hub's cache is known by its commit, another by size and time."""
    known = hashlib.sha256(_encode([_FORMAT, data.vocabulary, data.held_out]))
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        known.update(_encode([str(path), status.st_size, status.st_mtime_ns]))
    return known.hexdigest()[:32]


# ---- where texts are


def _from_disk(path: Path) -> tuple[list[Path], list[Path]]:
    try:
        if path.is_dir():
            found = sorted(
                file for file in path.iterdir() if file.suffix in (*_TEXT_SUFFIXES, ".parquet") and not file.is_dir()
            )
            if not found:
                raise InputError(
                    f"data.path: {path} holds no text",
                    f"it needs files that end in .parquet, {', '.join(_TEXT_SUFFIXES)}",
                )
            return found, []
        path.stat()
    except FileNotFoundError:
        raise InputError(f"data.path: there is no {path}", "give a text or parquet file, or a folder of them") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return [path], []


def _from_hub(data: Text, report: Callable[[str], None]) -> tuple[list[Path], list[Path], str]:
    """The files of the splits "train" and "validation", from the hub's cache or the hub."""
    from geocont.weights import hub

    report(f"looking for {data.dataset} ({data.configuration})")
    splits = {split: f"{data.configuration}/{split}*.parquet" for split in ("train", "validation")}
    found = hub.fetch_dataset(data.dataset, list(splits.values()), report)
    train, held_out = (sorted(found.glob(pattern)) for pattern in splits.values())
    for split, part in (("train", train), ("validation", held_out)):
        if not part:
            raise InputError(
                f"the data set {data.dataset} has no parquet files of the split {split} in {data.configuration}",
                "set data.configuration to one of its folders, see that the hub can be reached, or give your own text "
                "with --set data.path=FILE-or-FOLDER",
            )
    return train, held_out, f"{data.dataset}/{data.configuration}@{found.name[:12]}"


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"data.path: {path} cannot be read: {error.strerror}", "check the path and its permissions")


# ---- what they say


def _chunks(files: Iterable[Path]) -> Iterator[str]:
    """The text of the files in pieces of about a megabyte that end with a line, and the mark of an end after each."""
    for path in files:
        try:
            yield from _of_parquet(path) if path.suffix == ".parquet" else _of_text(path)
        except OSError as error:
            raise _unreadable(path, error) from None


def _of_text(path: Path) -> Iterator[str]:
    begin, is_empty = 0, True
    with path.open("rb") as file:
        for content in _pieces(file):
            try:
                if (place := content.find(b"\0")) >= 0:
                    raise UnicodeDecodeError("utf-8", content, place, place + 1, "a zero byte")
                # A byte order mark is no text.
                yield content.decode("utf-8-sig" if begin == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"data.path: {path} is not a text file (byte {begin + error.start} is not UTF-8 text)",
                    "give text in UTF-8, or parquet files with a column of text",
                ) from None
            is_empty &= not content.strip()
            begin += len(content)
    if not is_empty:
        yield _END


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """What a file holds in pieces of a megabyte or two that end with a line or, where there is none, before a space."""
    waiting = b""
    while block := file.read(_CHUNK):
        waiting += block
        while end := _piece_end(waiting):
            yield waiting[:end]
            waiting = waiting[end:]
    if waiting:
        yield waiting


def _piece_end(waiting: bytes) -> int:
    """Where a piece ends; 0 if more must be read to know."""
    end = waiting.find(b"\n", _CHUNK) + 1
    if end or len(waiting) < 2 * _CHUNK:
        return end
    if (end := waiting.find(b" ", _CHUNK)) >= 0:
        return end
    # Between two characters.
    end = 2 * _CHUNK - 1
    while end > _CHUNK and waiting[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _of_parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
            chosen = "text" if "text" in texts else texts[0] if len(texts) == 1 else None
            if chosen is None:
                columns = ", ".join(f"{field.name} ({field.type})" for field in file.schema_arrow)
                raise InputError(
                    f"data.path: {path} has no column of text that could be meant (columns: {columns})",
                    'name the column "text"' if texts else "give text in UTF-8, or parquet files with a column of text",
                )
            for batch in file.iter_batches(columns=[chosen]):
                rows = (row for row in batch.column(0).to_pylist() if row)
                # A row that ends its line goes on in the next one; another is a document.
                yield "".join(row if row.endswith("\n") else f"{row}{_END}" for row in rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # What the disk says has a number; what pyarrow says of damage has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"data.path: {path} is no parquet file that can be read: {str(error).strip().partition(chr(10))[0]}",
            "give text in UTF-8, or parquet files with a column of text",
        ) from None


def _is_text(kind: Any) -> bool:
    """Whether a column of this pyarrow type holds text, each written out or a number in a list of texts."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _until(chunks: Iterable[str], size: int) -> Iterator[str]:
    """The first `size` characters, up to the end of a line."""
    for chunk in chunks:
        if len(chunk) > size:
            yield chunk[: _line_end(chunk, size)]
            return
        yield chunk
        size -= len(chunk)


def _after(chunks: Iterable[str], size: int) -> Iterator[str]:
    """What `_until` leaves."""
    remaining = iter(chunks)
    for chunk in remaining:
        if len(chunk) > size:
            yield from chain([chunk[_line_end(chunk, size) :]], remaining)
            return
        size -= len(chunk)


def _line_end(chunk: str, size: int) -> int:
    """The first end of a line or a document from `size` on, if something follows it."""
    ends = [
        place + len(mark) for mark in ("\n", _END) if (place := chunk.find(mark, max(size - len(mark) + 1, 0))) >= 0
    ]
    ends = [end for end in ends if size < end < len(chunk)]
    if ends:
        return min(ends)
    # Rather in the middle of a line than nothing on the other side, but never in a mark.
    mark = chunk.rfind(_END, 0, size + len(_END) - 1)
    return mark if 0 <= mark < size < mark + len(_END) else size


def _batches(texts: Iterable[str], count: int) -> Iterator[list[str]]:
    """Lists of pieces small enough that all cores have some."""
    waiting: list[str] = []
    size = _CHUNK // _BATCH
    for text in texts:
        begin = 0
        while begin < len(text):
            end = text.find("\n", begin + size) + 1 or len(text)
            if end - begin > 4 * size:
                space = text.find(" ", begin + size, begin + 4 * size)
                end = space if space >= 0 else begin + 4 * size
            waiting.append(text[begin:end])
            begin = end
            if len(waiting) == count:
                yield waiting
                waiting = []
    if waiting:
        yield waiting
