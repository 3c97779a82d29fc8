"""Which files hold the weights, and what the user is told when it is none, or the wrong ones."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Checkpoint, Slice
from geocont.weights.local import (
    Choice,
    choose_files,
    is_inside,
    open_checkpoint,
    parse_config,
    read_index,
    reconcile,
    shards,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def matrices(*names: str) -> dict[str, Tensor]:
    return {name: torch.randn(3, 4) for name in names}


def write_shards(folder: Path, parts: Mapping[str, dict[str, Tensor]], index: str = SAFE_INDEX, **more: str) -> None:
    for file, tensors in parts.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if file.endswith(".bin"):
            torch.save(tensors, folder / file)
        else:
            save_file(tensors, folder / file)
    weight_map = {tensor: file for file, tensors in parts.items() for tensor in tensors} | more
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def refusal(path: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path, **options)
    assert caught.value.remedy
    assert "\n" not in str(caught.value) + caught.value.remedy
    return caught.value


# -- the choice


@pytest.mark.parametrize("first", range(4))
def test_the_order_is_that_of_transformers(first: int) -> None:
    order = [SAFE, SAFE_INDEX, BIN, BIN_INDEX]
    choice = choose_files({*order[first:], "config.json", "consolidated.safetensors"}, model="m")
    assert (choice.index or choice.files[0]) == order[first]
    assert choice.format == ("safetensors" if first < 2 else "pickle")
    assert len(choice.warnings) == (first < 3)
    for other in order[first + 1 :]:
        assert other in choice.warnings[0]


def test_the_users_file_comes_before_all() -> None:
    names = {SAFE, SAFE_INDEX, "consolidated.safetensors", "original/model.pth"}
    assert choose_files(names, model="m", weights_file=SAFE_INDEX) == Choice("safetensors", (), SAFE_INDEX, ())
    assert choose_files(names, model="m", weights_file="original/model.pth").format == "pickle"
    with pytest.raises(InputError, match="m has no file x") as caught:
        choose_files(names, model="m", weights_file="x")
    assert "consolidated.safetensors" in caught.value.remedy
    with pytest.raises(InputError, match="no weight file"):
        choose_files({"config.json"}, model="m", weights_file="config.json")


def test_the_configs_file_comes_before_the_standard_ones() -> None:
    names = {SAFE, "special.safetensors"}
    config = {"transformers_weights": "special.safetensors"}
    assert choose_files(names, model="m", config=config).files == ("special.safetensors",)
    for wrong in ("../x.safetensors", "/x.safetensors", "x.bin"):
        with pytest.raises(InputError, match="names"):
            choose_files(names, model="m", config={"transformers_weights": wrong})
    with pytest.raises(InputError, match=r"has no file gone\.safetensors"):
        choose_files(names, model="m", config={"transformers_weights": "gone.safetensors"})


@pytest.mark.parametrize(
    ("names", "words", "remedy"),
    [
        ((), "m has no weights", "model.safetensors"),
        (("a.safetensors", "b.safetensors"), "several weight files: a.safetensors, b.safetensors", "--weights a.safe"),
        (("m.Q4_0.gguf", "m.Q8_0.gguf"), "several weight files", "--weights m.Q4_0.gguf"),
        (("model-00001-of-00002.safetensors",), "model.safetensors.index.json is missing", "hf download"),
        (("adapter_config.json", "adapter_model.safetensors"), "LoRA adapter of who/base", "Analyse who/base"),
        (
            ("vae/x.safetensors", f"transformer/{SAFE_INDEX}"),
            "sub-folders only: transformer, vae",
            "--subfolder transformer",
        ),
        (("modules.json", "0_Transformer/pytorch_model.bin"), "0_Transformer", "--subfolder 0_Transformer"),
        (("tf_model.h5", "flax_model.msgpack"), "(found: flax_model.msgpack, tf_model.h5)", "--revision refs/pr/N"),
        (("onnx/model.onnx",), "(found: onnx/model.onnx)", "Convert"),
        (("consolidated.00.pth", "params.json"), "(found: consolidated.00.pth)", "--weights consolidated.00.pth"),
        (("training_args.bin", "optimizer.pt"), "m has no weights", "model.safetensors"),
    ],
)
def test_what_cannot_be_chosen_is_said(names: tuple[str, ...], words: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_files(names, model="m", adapter_base="who/base")
    assert words in str(caught.value)
    assert remedy in caught.value.remedy


def test_one_file_of_another_name_is_taken_and_named() -> None:
    choice = choose_files({"consolidated.safetensors", "config.json"}, model="m")
    assert choice.files == ("consolidated.safetensors",)
    assert "consolidated.safetensors" in choice.warnings[0]
    assert choose_files({"m.gguf", "README.md"}, model="m") == Choice("gguf", ("m.gguf",), None, ())
    assert choose_files({"diffusion_pytorch_model.safetensors"}, model="m").files


# -- the index, untrusted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "..", ".", "", "b.c", "..d", "\\", "C:", "\0"]), min_size=1, max_size=4))
def test_no_name_leads_out_of_the_folder(parts: list[str]) -> None:
    name = "/".join(parts)
    if is_inside(name):
        assert os.path.normpath(f"/root/{name}") == f"/root/{name}"


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "a/../../b", "..", "", "a\\b", "C:x", "a//b"]
)
def test_an_index_cannot_name_files_elsewhere(shard: str, tmp_path: Path) -> None:
    write_shards(tmp_path, {"model-00001-of-00001.safetensors": matrices("a")}, b=shard)
    assert "not inside" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": {"a": 3}}', "damaged"),
        (b'{"weight_map": {"\\ud800": "x"}}', "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
        (b"<html>", "web page"),
    ],
)
def test_a_damaged_index_is_said_to_be(text: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_index(text, SAFE_INDEX)


def test_missing_shards_are_counted() -> None:
    parts = [f"model-0000{index}-of-00004.safetensors" for index in (1, 2, 3, 4)]
    weight_map = {f"t{index}": parts[index % 4] for index in range(10)}
    assert shards(weight_map, set(parts), SAFE_INDEX) == tuple(parts)
    with pytest.raises(InputError) as caught:
        shards(weight_map, {parts[0], parts[2], parts[3]}, SAFE_INDEX)
    assert str(caught.value) == (f"{parts[1]} is missing (the index lists 3 tensors in it). 3 of 4 files present.")
    assert caught.value.remedy == f"Finish the download: hf download REPO --include {parts[1]}"
    with pytest.raises(InputError, match=r"are missing \(the index lists 6 tensors in them\)\. 2 of 4 files present"):
        shards(weight_map, {parts[2], parts[3]}, SAFE_INDEX)


def test_the_headers_are_the_truth_and_the_index_decides_between_them() -> None:
    found = {"f1": ["a", "b"], "f2": ["b", "c"]}
    places, warnings = reconcile({"a": "f1", "b": "f2", "gone": "f1"}, found, "i")
    assert places == {"a": "f1", "b": "f2", "c": "f2"}
    assert warnings == (
        "i names 1 tensor that no file holds: gone.",
        "i is stale: the files hold 1 tensor more: c.",
    )
    assert reconcile({"a": "f1", "b": "f1", "c": "f2"}, found, "i") == ({"a": "f1", "b": "f1", "c": "f2"}, ())
    assert reconcile({"a": "x"}, {"sub/x": ["a"]}, "sub/i") == ({"a": "sub/x"}, ())


# -- folders and files


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_sharded_folder(ending: str, tmp_path: Path) -> None:
    stem, index = ("model", SAFE_INDEX) if ending == "safetensors" else ("pytorch_model", BIN_INDEX)
    parts = {f"{stem}-0000{n}-of-00002.{ending}": matrices(f"a{n}", f"b{n}") for n in (1, 2)}
    write_shards(tmp_path, parts, index)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    checkpoint: Checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.model == str(tmp_path)
    assert checkpoint.revision is None
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.source == f"folder {tmp_path}"
    assert checkpoint.warnings == ()
    for file, tensors in parts.items():
        for name, tensor in tensors.items():
            assert checkpoint.tensors[name].file == file
            assert torch.equal(checkpoint.read(name, "a1"), tensor)
            assert str(tmp_path / file) in checkpoint.identity(name)
    checkpoint.close()


def test_a_stale_index_warns_and_goes_on(tmp_path: Path) -> None:
    write_shards(tmp_path, {"x.safetensors": matrices("a", "b")}, gone1="x.safetensors")
    index = json.loads((tmp_path / SAFE_INDEX).read_text())
    del index["weight_map"]["b"]
    (tmp_path / SAFE_INDEX).write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == {"a", "b"}
    assert ["gone1" in checkpoint.warnings[0], "stale" in checkpoint.warnings[1]] == [True, True]


def test_a_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, {f"model-0000{n}-of-00002.safetensors": matrices(f"t{n}") for n in (1, 2)})
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert str(refusal(tmp_path)).startswith("model-00002-of-00002.safetensors is missing")
    (tmp_path / "model-00002-of-00002.safetensors").symlink_to("gone")
    assert "is missing" in str(refusal(tmp_path))


def test_two_sets_of_weights(tmp_path: Path) -> None:
    one, other = matrices("a"), matrices("a")
    save_file(one, tmp_path / SAFE)
    write_shards(tmp_path, {"model-00001-of-00001.safetensors": other})
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(checkpoint.read("a"), one["a"])
    assert SAFE_INDEX in checkpoint.warnings[0]
    checkpoint = open_checkpoint(tmp_path, weights_file=SAFE_INDEX)
    assert torch.equal(checkpoint.read("a"), other["a"])
    assert checkpoint.warnings == ()


def test_one_file(tmp_path: Path) -> None:
    tensors = matrices("a")
    save_file(tensors, tmp_path / "x.safetensors")
    save_file(matrices("b"), tmp_path / "y.safetensors")
    torch.save(tensors, tmp_path / "x.bin")
    (tmp_path / "config.json").write_text("{}")
    for name in ("x.safetensors", "x.bin"):
        checkpoint = open_checkpoint(tmp_path / name)
        assert list(checkpoint.tensors) == ["a"]
        assert torch.equal(checkpoint.read("a"), tensors["a"])
        assert checkpoint.source == f"file {tmp_path / name}"
        assert checkpoint.config == {}
    assert "one file" in str(refusal(tmp_path / "x.bin", weights_file="x.bin"))


def test_one_shard_says_that_it_is_a_part(tmp_path: Path) -> None:
    save_file(matrices("a"), tmp_path / "model-00001-of-00002.safetensors")
    assert "one of several" in open_checkpoint(tmp_path / "model-00001-of-00002.safetensors").warnings[0]


def test_an_index_file(tmp_path: Path) -> None:
    write_shards(tmp_path, {"sub/x.safetensors": matrices("a")})
    assert list(open_checkpoint(tmp_path / SAFE_INDEX).tensors) == ["a"]


def test_a_gguf_file_brings_its_config(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_embedding_length(64)
    writer.add_tensor("blk.0.attn_q.weight", np.ones((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    for path in (tmp_path, tmp_path / "m.gguf"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.config == {"model_type": "llama", "hidden_size": 64}
        assert checkpoint.read("blk.0.attn_q.weight").sum() == 64


def write_parts(path: Path, tensors: dict[str, np.ndarray[Any, Any]], each: int) -> list[Path]:
    """A model in parts of `each` tensors, as the gguf package writes it. Returns the parts in their order."""
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=each)
    writer.add_embedding_length(64)
    for name, array in tensors.items():
        kind = None if array.dtype.kind == "f" else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob("*.gguf"))


PARTS = {f"blk.{layer}.attn_q.weight": np.full((2, 64), layer, dtype=np.float32) for layer in range(5)}


def test_a_model_in_parts_is_one_model(tmp_path: Path) -> None:
    quantized = gguf.quantize(np.arange(128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q8_0)
    parts = write_parts(tmp_path / "m.gguf", PARTS | {"blk.5.attn_q.weight": quantized}, each=2)
    assert [part.name for part in parts] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for path in (tmp_path, *parts):
        checkpoint = open_checkpoint(path)
        assert set(checkpoint.tensors) == {*PARTS, "blk.5.attn_q.weight"}
        assert checkpoint.config == {"model_type": "llama", "hidden_size": 64}
        assert checkpoint.warnings == ()
        for name, array in PARTS.items():
            assert np.array_equal(checkpoint.read(name).numpy(), array)
        decoded = gguf.dequantize(quantized, gguf.GGMLQuantizationType.Q8_0)
        assert np.array_equal(checkpoint.read("blk.5.attn_q.weight").numpy(), decoded)
    write_parts(tmp_path / "n.gguf", PARTS, each=4)
    assert "several weight files: m-00001-of-00003.gguf, n-00001-of-00002.gguf" in str(refusal(tmp_path))
    assert set(open_checkpoint(tmp_path, weights_file="n-00002-of-00002.gguf").tensors) == set(PARTS)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_part_is_named(gone: int, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "m.gguf", PARTS, each=2)
    parts[gone].unlink()
    for path in (tmp_path, *(part for part in parts if part.exists())):
        assert f"m-0000{gone + 1}-of-00003.gguf is missing. 2 of 3 parts present." in str(refusal(path))


def test_parts_that_are_not_what_their_names_say(tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "m" / "m.gguf", PARTS, each=2)
    other = write_parts(
        tmp_path / "n" / "n.gguf", PARTS | {"blk.7.attn_q.weight": PARTS["blk.1.attn_q.weight"]}, each=2
    )
    content = [part.read_bytes() for part in parts]
    parts[1].write_bytes(content[2])
    assert "says that it is part 3 of 3, not 2 of 3" in str(refusal(tmp_path / "m"))
    parts[1].write_bytes(content[1])
    (tmp_path / "alone.gguf").write_bytes(content[1])
    assert "one of 3 parts of a model" in str(refusal(tmp_path / "alone.gguf"))
    parts[2].write_bytes(other[2].read_bytes())
    assert "hold 6 tensors, and it tells of 5" in str(refusal(tmp_path / "m"))
    again = write_parts(
        tmp_path / "o" / "o.gguf", {"blk.9.attn_q.weight": PARTS["blk.0.attn_q.weight"], **PARTS}, each=2
    )
    parts[2].write_bytes(content[2])
    parts[1].write_bytes(again[1].read_bytes())
    assert "blk.1.attn_q.weight is in two parts" in str(refusal(tmp_path / "m"))


@pytest.mark.parametrize("name", [SAFE, BIN, "m.gguf", "q.gguf"])
def test_slices_are_what_the_whole_holds(name: str, tmp_path: Path) -> None:
    stack = torch.arange(4 * 3 * 64, dtype=torch.float32).view(4, 3, 64)
    if name == SAFE:
        save_file({"before": torch.ones(5, dtype=torch.bfloat16), "a": stack, "z": torch.ones(2)}, tmp_path / name)
    elif name == BIN:
        torch.save({"before": torch.ones(5), "a": stack}, tmp_path / name)
    else:
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "q.gguf" else None
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_tensor("before", np.ones(5, dtype=np.float32))
        writer.add_tensor("a", stack.numpy() if kind is None else gguf.quantize(stack.numpy(), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    checkpoint = open_checkpoint(tmp_path / name)
    whole = checkpoint.read("a").clone()
    assert torch.allclose(whole, stack, rtol=0.02, atol=1)
    for count in (4, 2):
        for index, part in enumerate(whole.chunk(count)):
            assert torch.equal(checkpoint.read(Slice("a", index, count)), part)


def test_a_subfolder(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "model_index.json").write_text("{}")
    save_file(matrices("a"), tmp_path / "transformer" / "diffusion_pytorch_model.safetensors")
    assert "--subfolder transformer" in refusal(tmp_path).remedy
    assert list(open_checkpoint(tmp_path, subfolder="transformer").tensors) == ["a"]
    for wrong in ("vae", "../..", "/tmp", ""):
        assert "no sub-folder" in str(refusal(tmp_path, subfolder=wrong))


def test_links_into_the_blobs_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(matrices("a"), tmp_path / "blobs" / "4d7a")
    (tmp_path / "snapshot" / SAFE).symlink_to("../blobs/4d7a")
    checkpoint = open_checkpoint(tmp_path / "snapshot")
    assert str(tmp_path / "blobs" / "4d7a") in checkpoint.identity("a")


@pytest.mark.parametrize("text", ["{", "[]", "", "version https://git-lfs.github.com/spec/v1"])
def test_a_config_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    save_file(matrices("a"), tmp_path / SAFE)
    (tmp_path / "config.json").write_text(text)
    assert str(refusal(tmp_path)).startswith("config.json: not ")


def test_a_config_with_a_byte_order_mark() -> None:
    assert parse_config(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_an_adapter_is_recognised_by_its_tensors_too(tmp_path: Path) -> None:
    adapter = matrices("base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight")
    save_file(adapter, tmp_path / "x.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "who/base"}')
    assert "adapter of who/base" in str(refusal(tmp_path / "x.safetensors"))
    assert "adapter of who/base" in str(refusal(tmp_path))
    save_file({**adapter, **matrices("model.q_proj.weight")}, tmp_path / SAFE)
    assert len(open_checkpoint(tmp_path).tensors) == 3


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "no such file or folder" in str(refusal(tmp_path / "gone"))
    assert "has no weights" in str(refusal(tmp_path))
    (tmp_path / SAFE).write_bytes(save({}))
    assert "holds no tensors" in str(refusal(tmp_path))
    (tmp_path / SAFE).unlink()
    os.mkfifo(tmp_path / SAFE)
    assert "not a regular file" in str(refusal(tmp_path / SAFE))
    assert "has no weights" in str(refusal(tmp_path))


def test_names_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    save_file(matrices("a"), tmp_path / SAFE)
    (tmp_path / os.fsdecode(b"x\xff.safetensors")).write_bytes(b"")
    inner = tmp_path / os.fsdecode(b"sub\xff")
    inner.mkdir()
    (inner / "x.safetensors").write_bytes(b"")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]
    (tmp_path / SAFE).unlink()
    assert "has no weights" in str(refusal(tmp_path))


def test_weights_in_a_file_of_the_wrong_name(tmp_path: Path) -> None:
    torch.save(matrices("a"), tmp_path / SAFE)
    assert "it is a PyTorch pickle file" in str(refusal(tmp_path))
    (tmp_path / SAFE).write_bytes(save(matrices("a"))[:-5])
    assert "truncated: header promises" in str(refusal(tmp_path))


def test_nothing_is_read_after_the_end(tmp_path: Path) -> None:
    save_file(matrices("a"), tmp_path / SAFE)
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.close()
    with pytest.raises(JobError, match="closed"):
        checkpoint.read("a")


# The peak since the reset: what the imports and, before exec, the parent process took is not counted.
MEASURE = """
import sys
from pathlib import Path
import torch
from geocont.weights.local import open_checkpoint

def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

checkpoint = open_checkpoint(Path(sys.argv[1]))
names = list(checkpoint.tensors)
checkpoint.read(names[0]).view(torch.int32).sum()
Path("/proc/self/clear_refs").write_text("5")
before = peak()
for name, following in zip(names, [*names[1:], None]):
    checkpoint.read(name, following).view(torch.int32).sum()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset on Linux only")
def test_memory_is_bounded_by_one_matrix(tmp_path: Path) -> None:
    matrix = torch.ones(1024, 512)  # 2 MiB
    save_file({f"layers.{index}": matrix + index for index in range(48)}, tmp_path / "x.safetensors")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "x.safetensors")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 32 * 1024, "96 MiB were read; torch starts threads of its own meanwhile"
