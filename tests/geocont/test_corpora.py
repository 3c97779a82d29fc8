"""Texts as token ids: what is held out, what is kept, and everything that can be wrong with a text."""

import io
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from geocont.ablations import corpora
from geocont.ablations.corpora import Corpus
from geocont.ablations.experiment import Text
from geocont.errors import InputError, JobError
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
LINES = [f"The {number}th river – naïve, 長い – runs past {number * 7919 % 1000} mills.\n" for number in range(1500)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(path: Path, *, vocabulary: int = 300, held_out: float = 0.05) -> Corpus:
    return corpora.load(Text(path=str(path), vocabulary=vocabulary, held_out=held_out), lambda _: None)


def refusal(path: Path, **settings: int) -> InputError:
    with pytest.raises(InputError) as caught:
        load(path, **settings)
    return caught.value


def decoded(corpus: Corpus) -> str:
    tokenizer = Tokenizer.from_file(str(corpus.tokenizer))
    ids = np.concatenate([corpus.train, corpus.held_out]).tolist()
    return tokenizer.decode(ids, skip_special_tokens=False)


def text_column(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def test_ids_are_the_text_and_its_last_lines_are_held_out(tmp_path: Path):
    text = "".join(LINES)
    corpus = load(write(tmp_path / "a.txt", text), held_out=0.1)
    assert decoded(corpus) == f"{text}<|endoftext|>"
    tokenizer = Tokenizer.from_file(str(corpus.tokenizer))
    held_out = tokenizer.decode(corpus.held_out.tolist())
    assert held_out.startswith("The ")
    assert len(held_out) == pytest.approx(0.1 * len(text), abs=len(LINES[0]) + 13)
    assert (corpus.vocabulary, corpus.train.dtype) == (300, np.uint16)
    assert f"{len(corpus.train):,} + {len(corpus.held_out):,} held-out tokens" in corpus.source


def test_the_vocabulary_knows_nothing_of_what_is_held_out(tmp_path: Path):
    common = "".join(LINES)
    one = load(write(tmp_path / "one.txt", common + "zqzqzq " * 1000), held_out=0.09)
    other = load(write(tmp_path / "other.txt", common + "xjxjxj " * 1000), held_out=0.09)
    assert one.tokenizer.read_bytes() == other.tokenizer.read_bytes()


def test_a_folder_is_its_texts_by_name(tmp_path: Path):
    folder = tmp_path / "texts"
    (folder / "deeper.txt").mkdir(parents=True)
    write(folder / "b.md", "".join(LINES[:700]))
    parquet.write_table(text_column(text=LINES[700:]), folder / "c.parquet")
    write(folder / "a.text", "\ufeffFirst.\n")
    write(folder / "weights.bin", bytes(99))
    end = "<|endoftext|>"
    assert decoded(load(folder)) == f"First.\n{end}{''.join(LINES[:700])}{end}{''.join(LINES[700:])}"


def test_a_text_without_lines_is_read_in_pieces_too(tmp_path: Path):
    text = "長い川 and words without an end " * 80_000
    chunks = list(corpora._chunks([write(tmp_path / "line.txt", text)]))
    assert max(map(len, chunks)) <= 2 * corpora._CHUNK
    pieces = [piece for batch in corpora._batches(chunks, 64) for piece in batch]
    assert max(map(len, pieces)) <= corpora._CHUNK // 16
    assert "".join(pieces) == f"{text}<|endoftext|>"


@given(st.text(alphabet="ab \n長é"), st.integers(4, 12))
def test_pieces_are_the_text_and_end_between_characters(text: str, size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "_CHUNK", size)
        pieces = list(corpora._pieces(io.BytesIO(text.encode())))
    assert "".join(piece.decode() for piece in pieces) == text
    for piece, after in pairwise(pieces):
        # With a line, before a space, or as long as is allowed.
        assert piece.endswith(b"\n") or after.startswith(b" ") or len(piece) >= 2 * size - 3


@given(st.lists(st.text(alphabet="ab\n").map(lambda text: f"{text}<|endoftext|>"), min_size=1, max_size=5), st.data())
def test_the_cut_to_what_is_held_out_splits_no_mark(documents: list[str], data: st.DataObject):
    size = data.draw(st.integers(0, sum(map(len, documents))))
    first, rest = ("".join(part(iter(documents), size)) for part in (corpora._until, corpora._after))
    assert first + rest == "".join(documents)
    assert first.count("<|endoftext|>") + rest.count("<|endoftext|>") == len(documents)


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path):
    corpora.folder().mkdir(parents=True)
    old, new = corpora.folder() / ".old.tmp", corpora.folder() / ".new.tmp"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (0, 0))
    load(write(tmp_path / "a.txt", "".join(LINES[:400])))
    assert not old.exists()
    assert new.exists()


def test_rows_that_are_documents_end_with_a_mark(tmp_path: Path):
    documents = [line.rstrip("\n") for line in LINES]
    path = tmp_path / "documents.parquet"
    parquet.write_table(text_column(id=list(range(1500)), body=documents), path)
    corpus = load(path)
    assert decoded(corpus) == "".join(f"{document}<|endoftext|>" for document in documents)
    end = Tokenizer.from_file(str(corpus.tokenizer)).token_to_id("<|endoftext|>")
    assert (np.concatenate([corpus.train, corpus.held_out]) == end).sum() == len(documents)


def test_a_second_load_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a.txt", "".join(LINES))
    first = load(path)
    monkeypatch.setattr(corpora, "_chunks", lambda _: pytest.fail("the text was read"))
    second = load(path)
    assert np.array_equal(second.train, first.train)
    assert np.array_equal(second.held_out, first.held_out)
    assert second.source == first.source


def test_other_text_and_other_settings_are_other_ids(tmp_path: Path):
    path = write(tmp_path / "a.txt", "".join(LINES))
    folders = {load(path).tokenizer.parent, load(path, vocabulary=310).tokenizer.parent}
    folders.add(load(path, held_out=0.2).tokenizer.parent)
    write(path, "".join(LINES[1:]))
    folders.add(load(path).tokenizer.parent)
    assert len(folders) == 4


@pytest.mark.parametrize("name", ["train.bin", "held_out.bin", "tokenizer.json", "facts.json"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_what_is_damaged_is_made_anew(tmp_path: Path, name: str, damage: str):
    path = write(tmp_path / "a.txt", "".join(LINES[:400]))
    kept = load(path).tokenizer.parent
    whole = {file.name: file.read_bytes() for file in kept.iterdir()}
    if damage == "gone":
        (kept / name).unlink()
    else:
        (kept / name).write_bytes(whole[name][:-5])
    load(path)
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == whole
    assert [entry.name for entry in kept.parent.iterdir()] == [kept.name]


def test_processes_that_load_at_once_have_the_same(tmp_path: Path):
    path = write(tmp_path / "a.txt", "".join(LINES))
    program = (
        "import sys; from geocont.ablations import corpora; from geocont.ablations.experiment import Text\n"
        "corpus = corpora.load(Text(path=sys.argv[1], vocabulary=300), lambda _: None)\n"
        "print(corpus.tokenizer, int(corpus.train.astype('int64').sum()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "engine")}
    started = [
        subprocess.Popen([sys.executable, "-c", program, path], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    expected = load(path)
    assert outputs == [f"{expected.tokenizer} {int(expected.train.astype('int64').sum())}\n"] * 4
    assert [entry.name for entry in corpora.folder().iterdir()] == [expected.tokenizer.parent.name]


def test_says_where_a_file_is_not_text(tmp_path: Path):
    latin = refusal(write(tmp_path / "latin.txt", b"caf\xe9 au lait\n" * 50))
    assert "latin.txt is not a text file (byte 3 " in str(latin)
    binary = refusal(write(tmp_path / "program.txt", b"ELF\0" * 50))
    assert "program.txt is not a text file (byte 3 " in str(binary)
    late = refusal(write(tmp_path / "late.txt", "".join(LINES).encode() * 20 + b"\xff"))
    assert f"(byte {20 * len(''.join(LINES).encode())} " in str(late)


def test_says_what_is_wrong_with_a_path(tmp_path: Path):
    assert "there is no" in str(refusal(tmp_path / "missing.txt"))
    (tmp_path / "empty").mkdir()
    assert "holds no text" in str(refusal(tmp_path / "empty"))
    assert "holds no text" in str(refusal(write(tmp_path / "empty.txt", "")))
    assert "holds no text" in str(refusal(write(tmp_path / "blank.txt", " \n" * 50)))
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / "a.txt").symlink_to(tmp_path / "missing.txt")
    assert "a.txt" in str(refusal(tmp_path / "dangling"))


@pytest.mark.parametrize("name", ["a.txt", "a.parquet"])
def test_says_that_a_file_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / name, "".join(LINES))
    # Root may read everything, whatever its mode.
    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(parquet, "ParquetFile", denied)
    assert f"{name} cannot be read: Permission denied" in str(refusal(path))


def test_text_that_a_parquet_file_lists_once_is_read_as_any_other(tmp_path: Path):
    path = tmp_path / "a.parquet"
    plain = text_column(text=LINES[:100])
    parquet.write_table(plain, path)
    expected = list(corpora._chunks([path]))
    parquet.write_table(plain.set_column(0, "text", plain.column("text").dictionary_encode()), path)
    assert list(corpora._chunks([path])) == expected


def test_a_column_named_text_that_holds_numbers_is_not_told_to_be_named_so(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(text_column(text=[1, 2]), path)
    error = refusal(path)
    assert "(columns: text (int64))" in str(error)
    assert "with a column of text" in error.remedy


def test_a_parquet_file_that_is_damaged_in_the_middle_says_so(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(text_column(text=LINES), path)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    assert "a.parquet is no parquet file that can be read: " in str(refusal(path))
    assert "None" not in str(refusal(path))


def test_says_what_is_wrong_with_a_parquet_file(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(text_column(one=["a"], two=["b"]), path)
    assert "no column of text that could be meant (columns: one (string), two (string))" in str(refusal(path))
    write(path, path.read_bytes()[:-9])
    assert "a.parquet is no parquet file" in str(refusal(path))
    assert "a.parquet is no parquet file" in str(refusal(write(path, b"")))


def test_says_how_large_a_vocabulary_the_text_supports(tmp_path: Path):
    path = write(tmp_path / "a.txt", "a short text, a short text\n" * 20)
    error = refusal(path, vocabulary=5000)
    supported = int(error.remedy.rpartition("=")[2])
    assert f"supports {supported} tokens, not 5000" in str(error)
    assert load(path, vocabulary=supported).vocabulary == supported


def test_asks_for_a_sequence_and_the_token_after_it_in_each_part(tmp_path: Path):
    corpus = load(write(tmp_path / "a.txt", "".join(LINES)))
    corpus.require(len(corpus.held_out) - 1)
    with pytest.raises(InputError, match="held-out text has"):
        corpus.require(len(corpus.held_out))


def test_a_full_disk_fails_the_job_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = write(tmp_path / "a.txt", "".join(LINES[:400]))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobError, match="No space left on device"):
        load(path)
    assert list(corpora.folder().iterdir()) == []
