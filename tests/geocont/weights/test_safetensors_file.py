"""The header is untrusted input: what the library takes is taken, everything else is an InputError."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from geocont.errors import InputError, JobError
from geocont.weights.safetensors_file import (
    DTYPES,
    Header,
    ReadBuffer,
    SafetensorsFile,
    header_bytes,
    parse_header,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save, save_file
from torch import Tensor

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")


def parse(content: bytes) -> Header:
    """As a reader does it: the first bytes, then the header."""
    length = header_bytes(content[:128], len(content), "f")
    return parse_header(content[8 : 8 + length], len(content), "f")


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    size = torch.empty(shape, dtype=dtype).nbytes
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (size,), dtype=torch.uint8).view(dtype).view(shape)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=6))
def test_what_the_library_writes_is_described_as_it_was(wanted: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    tensors = {name: tensor_of(DTYPES[dtype], shape) for name, (dtype, shape) in wanted.items()}
    content = save(tensors)
    header = parse(content)
    assert {name: (stored.dtype, stored.shape) for name, stored in header.tensors.items()} == wanted
    for name, tensor in tensors.items():
        begin = header.offsets[name]
        assert (
            content[begin : begin + header.tensors[name].bytes]
            == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        )


GOOD = save({"a.weight": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.int8), "c": torch.ones(0, 2)})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_is_an_input_error_or_what_the_library_takes_too(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for place, value in changes:
        content[place] = value
    _compare_with_library(bytes(content))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes_are_an_input_error_or_what_the_library_takes_too(data: bytes) -> None:
    _compare_with_library(data)
    _compare_with_library(file_of(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**66) | st.floats() | st.sampled_from(["F32", "U8", "X", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(JSON, st.binary(max_size=8))
def test_any_json_is_an_input_error_or_what_the_library_takes_too(value: Any, data: bytes) -> None:
    _compare_with_library(file_of(value, data))


def _compare_with_library(content: bytes) -> None:
    try:
        ours = {name: (stored.dtype, list(stored.shape)) for name, stored in parse(content).tensors.items()}
    except InputError:
        return
    try:
        theirs = {name: (view["dtype"], view["shape"]) for name, view in deserialize(content)}
    except SafetensorError as error:
        # A dtype the library does not know makes the whole file invalid for it; metadata do not interest us.
        assert "unknown variant" in str(error) or b"__metadata__" in content, error  # noqa: PT017
        return
    assert ours == theirs


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\0\0", "too few"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134\n", "Git-LFS pointer ("),
        (b"\n<!DOCTYPE html><html>", "a web page was saved instead"),
        (b"GGUF\x03\0\0\0" + bytes(80), "GGUF file"),
        (b"PK\x03\x04" + bytes(80), "PyTorch pickle"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch pickle"),
        (b"\xff" * 40, "header would be"),
        ((5000).to_bytes(8, "little") + b"{}", "header promises at least 5,008 bytes, file has 10"),
        (file_of({"a": entry("F32", [1000], 0, 4000)}, bytes(10)), "header promises 4,075 bytes, file has 85"),
        (file_of({"a": entry("F32", [1], 0, 4)}, bytes(5)), "header promises 73 bytes, file has 74"),
        (file_of({"a": entry("U8", [1], 1, 2)}, bytes(2)), "a leaves a hole before it"),
        (file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3)), "b overlaps"),
        (file_of(b'{"a":%b,"a":%b}' % ((json.dumps(entry("U8", [0], 0, 0)).encode(),) * 2)), "a is there twice"),
        (file_of({"a": entry("F32", [2], 0, 4)}, bytes(4)), "a of F32 [2] cannot take 4 bytes"),
        (file_of({"a": entry("F4", [3], 0, 2)}, bytes(2)), "a of F4 [3] cannot take 2 bytes"),
        (file_of({"a": entry("U8", [2**62, 2**62, 0], 0, 0)}), "describes tensor 'a' wrongly"),
        (file_of({"a": entry("U8", [True], 0, 1)}, b"x"), "describes tensor 'a' wrongly"),
        (file_of(b'{"\\ud800":%b}' % json.dumps(entry("U8", [1], 0, 1)).encode(), b"x"), "wrongly"),
        (file_of(b"[" * 100_000), "no JSON"),
        (file_of(b"9" * 5000), "no JSON"),
        (file_of(b"\xff"), "no JSON"),
        (file_of([]), "no JSON object"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(content)
    assert words in str(caught.value)
    assert str(caught.value).startswith("f: ")
    assert caught.value.remedy


@pytest.mark.parametrize("metadata", [None, {"format": 3}, {"a": {"b": []}}, "x"])
def test_metadata_are_ignored(metadata: Any) -> None:
    assert list(parse(file_of({"__metadata__": metadata, "a": entry("U8", [1], 0, 1)}, b"x")).tensors) == ["a"]


def test_a_header_of_640_bytes_is_not_taken_for_a_pickle() -> None:
    text = json.dumps({"a": entry("U8", [1], 0, 1)}).encode()
    assert list(parse(file_of(text.ljust(640), b"x")).tensors) == ["a"]


def test_offsets_beyond_four_gigabytes() -> None:
    text = json.dumps({"a": entry("U8", [2**33], 0, 2**33), "b": entry("U8", [2**33], 2**33, 2**34)}).encode()
    assert parse_header(text, 8 + len(text) + 2**34, "f").offsets["b"] == 8 + len(text) + 2**33


def test_an_unknown_dtype_spoils_its_own_tensor_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of({"a": entry("F3_NEW", [5], 0, 2), "b": entry("U8", [2], 2, 4)}, b"xyab"))
    file = SafetensorsFile(path, "x.safetensors")
    assert file.tensors["a"].dtype == "F3_NEW"
    assert file.read("b", ReadBuffer()).tolist() == [97, 98]
    with pytest.raises(JobError, match="F3_NEW"):
        file.read("a", ReadBuffer())


def test_tensors_come_bit_for_bit_in_any_order(tmp_path: Path) -> None:
    tensors = {f"t.{word}": tensor_of(dtype, (3, 7)) for word, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 4), "large": torch.randn(300, 200)}
    path = tmp_path / "x.safetensors"
    save_file(tensors, path)
    file = SafetensorsFile(path, "x.safetensors")
    names = sorted(tensors, key=hash)
    buffer = ReadBuffer()
    for name in names:
        ours, theirs = file.read(name, buffer), tensors[name]
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(50, 3)
    save_file({"a": tensor}, tmp_path / "x")
    monkeypatch.setattr("geocont.weights.safetensors_file._READ_BYTES", 7)
    assert torch.equal(SafetensorsFile(tmp_path / "x", "x").read("a", ReadBuffer()), tensor)


def test_a_file_that_changes_after_its_header_was_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(4)}, path)
    file = SafetensorsFile(path, "x.safetensors")
    before = file.identity("a")
    save_file({"a": torch.zeros(4)}, path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(JobError, match="has changed"):
        file.read("a", ReadBuffer())
    assert SafetensorsFile(path, "x.safetensors").identity("a") != before
    path.unlink()
    with pytest.raises(JobError, match="No such file"):
        file.read("a", ReadBuffer())


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        SafetensorsFile(tmp_path / "pipe", "pipe")
    with pytest.raises(InputError, match="No such file"):
        SafetensorsFile(tmp_path / "missing", "missing")
