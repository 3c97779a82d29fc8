"""Files written by the gguf package come back as that package decodes them; damaged ones are an InputError."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from geocont.errors import InputError, JobError
from geocont.weights.gguf_file import GGUFFile, is_decoded, is_quantized
from geocont.weights.quantization import Weights
from geocont.weights.safetensors_file import ReadBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

QUANTIZED = [kind for kind in gguf.GGMLQuantizationType if is_quantized(kind.name)]
DECODED = [kind for kind in QUANTIZED if is_decoded(kind.name)]


def raw_blocks(rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return np.random.default_rng(7).integers(0, 256, (rows, columns // block * size), dtype=np.uint8)


def write(path: Path, architecture: str = "llama") -> dict[str, Any]:
    """A small file with fields of many kinds, and its tensors as the package decodes them."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    writer.add_head_count(4)
    writer.add_head_count_kv([2, 2, 1])
    writer.add_feed_forward_length(96)
    writer.add_token_list(["a", "bc", "é"] * 50)
    writer.add_token_scores([0.5] * 150)
    writer.add_bool("x.flag", True)
    plain = {
        "blk.0.attn_q.weight": np.arange(48, dtype=np.float32).reshape(6, 8),
        "blk.0.attn_k.weight": np.arange(24, dtype=np.float16).reshape(3, 8),
        "blk.0.ffn_gate_exps.weight": np.arange(120, dtype=np.float32).reshape(3, 5, 8),
        "output_norm.weight": np.ones(8, dtype=np.float32),
    }
    expected: dict[str, Any] = dict(plain)
    for name, array in plain.items():
        writer.add_tensor(name, array)
    for kind in DECODED:
        data = raw_blocks(3, 512, kind)
        writer.add_tensor(f"q.{kind.name}", data, raw_dtype=kind)
        with np.errstate(all="ignore"):
            expected[f"q.{kind.name}"] = gguf.dequantize(data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_every_type_that_the_package_decodes_comes_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geocont.weights.gguf_file._DECODED_AT_ONCE", 1024)  # two rows at a time, then one
    expected = write(tmp_path / "m.gguf")
    file = GGUFFile(tmp_path / "m.gguf", "m.gguf")
    assert set(file.tensors) == set(expected)
    assert len(DECODED) >= 20
    for name, array in expected.items():
        stored, tensor = file.tensors[name], file.read(name, ReadBuffer())
        assert stored.shape == tuple(tensor.shape) == array.shape
        assert stored.dtype == (name[2:] if name.startswith("q.") else {"f": "F32", "e": "F16"}[array.dtype.char])
        assert tensor.dtype is (torch.float16 if stored.dtype == "F16" else torch.float32)
        assert np.array_equal(tensor.numpy(), array, equal_nan=True)


def test_the_header_is_known_under_the_names_of_config_json(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    assert GGUFFile(tmp_path / "m.gguf", "m.gguf").config == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": [2, 2, 1],
        "intermediate_size": 96,
    }


def test_layers_that_predict_further_tokens_are_not_counted(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "deepseek2")
    writer.add_block_count(5)
    writer.add_uint32("deepseek2.nextn_predict_layers", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = GGUFFile(tmp_path / "m.gguf", "m.gguf").config
    assert (config["model_type"], config["num_hidden_layers"]) == ("deepseek_v2", 4)


def header(*fields: bytes, tensors: bytes = b"", count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, count, len(fields)) + b"".join(fields) + tensors


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    """As the file has it: the innermost dimension first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
        (b"<html>", "web page"),
        (b"GGML" + bytes(40), "does not begin with GGUF"),
        (header(version=1), "GGUF version 1"),
        (header(version=3 << 24), "big-endian"),
        (b"GGUF\x03\0\0", "truncated"),
        (header(text(b"k") + struct.pack("<IQ", 8, 2**62)), "truncated"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**62) + text(b"a")), "truncated"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 4, 2**62)), "truncated"),
        (header(text(b"k") + struct.pack("<I", 99)), "a field of type 99"),
        (header(text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "an array of type 9"),
        (header(text(b"\xff") + struct.pack("<II", 4, 1)), "no UTF-8"),
        (header(text(b"general.alignment") + struct.pack("<II", 4, 0)), "alignment 0"),
        (header(text(b"split.count") + struct.pack("<I", 8) + text(b"3")), "which part it is is no number"),
        (header(text(b"general.type") + struct.pack("<I", 8) + text(b"adapter")), "LoRA adapter"),
        (header(tensors=tensor(b"t", (4, 4), 0), count=1), "header promises 160 bytes, file has 65"),
        (header(tensors=tensor(b"t", (4, 4), 2), count=1), "no whole blocks of 32"),
        (header(tensors=tensor(b"t", (2**40, 2**40, 0), 0), count=1), "has the shape"),
        (header(tensors=tensor(b"t", (1,) * 9, 0), count=1), "9 dimensions"),
        (header(tensors=tensor(b"t", (0,), 0) * 2, count=2), "t is there twice"),
        (header(tensors=tensor(b"t", (1,), 0), count=2**60), "truncated"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        GGUFFile(path, "m.gguf")
    assert words in str(caught.value)
    assert str(caught.value).startswith("m.gguf: ")
    assert caught.value.remedy


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write(path)
    return path


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 6000), value=st.binary(min_size=1, max_size=8), cut=st.integers(0, 9000) | st.none())
def test_damage_to_the_header_is_an_input_error_or_goes_unnoticed(
    good: Path, place: int, value: bytes, cut: int | None
) -> None:
    content = bytearray(good.read_bytes())
    content[place : place + len(value)] = value
    path = good.parent / "damaged.gguf"
    path.write_bytes(content[:cut])
    try:
        file = GGUFFile(path, "m.gguf")
    except InputError:
        return
    for name, stored in file.tensors.items():
        try:
            assert file.read(name, ReadBuffer()).shape == stored.shape
        except JobError:
            assert stored.dtype.startswith("GGUF type") or not is_decoded(stored.dtype)


def test_types_that_cannot_be_decoded_are_refused_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    undecoded = next(kind for kind in QUANTIZED if not is_decoded(kind.name))
    block, size = gguf.GGML_QUANT_SIZES[undecoded]
    shapes = tensor(b"new", (4, 4), 999) + tensor(b"old", (block, 1), undecoded.value) + tensor(b"t", (2,), 0)
    content = header(tensors=shapes, count=3)
    content = content.ljust(-(-len(content) // 32) * 32, b"\0") + bytes(max(size, 8))
    path.write_bytes(content)
    file = GGUFFile(path, "m.gguf")
    for name in ("new", "old"):
        with pytest.raises(JobError):
            file.read(name, ReadBuffer())
    assert file.read("t", ReadBuffer()).tolist() == [0, 0]

    class Opened:
        model, revision, source, config, warnings = "m", None, "file", file.config, ()
        tensors, identity = file.tensors, file.identity

        def read(self, name: str, following: str | None = None) -> torch.Tensor:
            return file.read(name, ReadBuffer())

        def close(self) -> None:
            pass

    items = Weights(Opened()).items
    assert "GGUF type 999" in items["new"].refused
    assert undecoded.name in items["old"].refused
    assert items["t"].refused == ""


def test_weights_say_that_they_were_quantised(good: Path) -> None:
    file = GGUFFile(good, "m.gguf")
    assert is_quantized("Q4_1")
    assert is_decoded("Q4_1")
    assert not is_quantized("F16")
    assert file.identity("q.Q4_1") != file.identity("q.Q4_0")
