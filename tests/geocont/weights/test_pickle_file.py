"""pytorch_model.bin: tensors as torch.load gives them, no code run, one clear error for everything else."""

import os
import pickle
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from geocont.errors import InputError, JobError
from geocont.weights import pickle_file
from geocont.weights.pickle_file import PickleFile
from geocont.weights.safetensors_file import ReadBuffer
from torch import Tensor

TENSORS = {
    "a.weight": torch.arange(12.0).reshape(3, 4),
    "b.weight": torch.arange(6.0).reshape(2, 3).bfloat16(),
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "scalar": torch.tensor(3, dtype=torch.int64),
    "eight": torch.ones(2, 2).to(torch.float8_e4m3fn),
}


def check(file: PickleFile, names: list[str] | None = None) -> None:
    assert set(file.tensors) == set(names or TENSORS)
    for name, stored in file.tensors.items():
        tensor = file.read(name, ReadBuffer())
        assert tensor.is_contiguous()
        assert tensor.dtype is TENSORS[name].dtype
        assert torch.equal(tensor.float(), TENSORS[name].float())
        assert stored.shape == tuple(tensor.shape)


@pytest.mark.parametrize("key", [None, "state_dict", "model", "module"])
def test_tensors_come_as_they_were_saved(key: str | None, tmp_path: Path) -> None:
    content: Any = OrderedDict(TENSORS)
    if key:
        content = {"epoch": 3, key: content}
    torch.save(content, tmp_path / "m.bin")
    file = PickleFile(tmp_path / "m.bin", "m.bin")
    check(file)
    assert file.tensors["b.weight"].dtype == "BF16"
    assert file.warnings == ()
    assert file.identity("a.weight") != file.identity("b.weight")


def test_the_file_is_mapped_and_nothing_but_weights_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(TENSORS, tmp_path / "m.bin")
    load, asked = torch.load, []

    def noted(path: Path, **options: Any) -> Any:
        asked.append(options)
        return load(path, **options)

    monkeypatch.setattr(torch, "load", noted)
    check(PickleFile(tmp_path / "m.bin", "m.bin"))
    assert asked == [{"weights_only": True, "mmap": True, "map_location": "cpu"}]


def test_twice_wrapped(tmp_path: Path) -> None:
    torch.save({"model": {"module": TENSORS}}, tmp_path / "m.bin")
    check(PickleFile(tmp_path / "m.bin", "m.bin"))


def test_a_weight_named_model_is_no_wrapper(tmp_path: Path) -> None:
    torch.save({"model": TENSORS["a.weight"]}, tmp_path / "m.bin")
    assert list(PickleFile(tmp_path / "m.bin", "m.bin").tensors) == ["model"]


def test_the_old_format_is_loaded_whole_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.bin"
    old = {name: TENSORS[name] for name in ("a.weight", "turned")}
    torch.save(old, path, _use_new_zipfile_serialization=False)
    file = PickleFile(path, "m.bin")
    check(file, list(old))
    assert "loaded whole" in file.warnings[0]
    monkeypatch.setattr(pickle_file, "MAX_OLD_FORMAT_BYTES", 100)
    with pytest.raises(InputError, match="before torch"):
        PickleFile(path, "m.bin")


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("modern", [True, False])
def test_code_in_a_pickle_is_not_run(modern: bool, tmp_path: Path) -> None:
    path, marker = tmp_path / "m.bin", tmp_path / "marker"
    torch.save({"a": Evil(marker)}, path, _use_new_zipfile_serialization=modern)
    with pytest.raises(InputError, match="was not run") as caught:
        PickleFile(path, "m.bin")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(": it calls posix.mkdir")
    assert not marker.exists()


@pytest.mark.parametrize("protocol", [4, 5])
def test_what_torch_thinks_of_a_pickle_is_not_written_to_the_terminal(protocol: int, tmp_path: Path) -> None:
    path, marker = tmp_path / "m.bin", tmp_path / "marker"
    path.write_bytes(pickle.dumps(Evil(marker), protocol=protocol))
    with warnings.catch_warnings(record=True) as written:
        warnings.simplefilter("always")
        with pytest.raises(InputError):
            PickleFile(path, "m.bin")
    assert not written
    assert not marker.exists()


def test_a_plain_pickle_is_not_run(tmp_path: Path) -> None:
    path, marker = tmp_path / "m.bin", tmp_path / "marker"
    path.write_bytes(pickle.dumps(Evil(marker), protocol=2))
    with pytest.raises(InputError):
        PickleFile(path, "m.bin")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
        (b"<!doctype html>", "web page"),
        (b"GGUF" + bytes(40), "GGUF"),
        (b"\x40\0\0\0\0\0\0\0{}", "not a PyTorch file"),
        (b"PK\x03\x04" + bytes(100), "not a readable PyTorch file"),
        (b"\x80\x02garbage", "m.bin: "),
    ],
)
def test_what_is_wrong_is_said(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        PickleFile(path, "m.bin")
    assert words in str(caught.value)
    assert caught.value.remedy


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="not a readable PyTorch file") as caught:
        PickleFile(path, "m.bin")
    assert len(str(caught.value)) < 150


def test_what_holds_no_tensors_has_none(tmp_path: Path) -> None:
    for content in ([1, 2], {"lr": 0.1}, {1: torch.ones(2)}):
        torch.save(content, tmp_path / "m.bin")
        assert not PickleFile(tmp_path / "m.bin", "m.bin").tensors


def test_a_few_bytes_cannot_claim_to_be_an_endless_tensor(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1).expand(10**6, 10**6), "b": torch.ones(2)}, tmp_path / "m.bin")
    assert list(PickleFile(tmp_path / "m.bin", "m.bin").tensors) == ["b"]


def test_sparse_tensors_are_refused_alone(tmp_path: Path) -> None:
    sparse: Tensor = torch.ones(2, 2).to_sparse()
    torch.save({"a": sparse, "b": torch.ones(2)}, tmp_path / "m.bin")
    file = PickleFile(tmp_path / "m.bin", "m.bin")
    assert file.tensors["a"].dtype == "sparse"
    with pytest.raises(JobError, match="sparse"):
        file.read("a", ReadBuffer())
    assert file.read("b", ReadBuffer()).tolist() == [1, 1]
