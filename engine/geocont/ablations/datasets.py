"""Images to train on: the shipped MNIST, or a folder of IDX files (Fashion-MNIST, KMNIST, EMNIST, one's own).

Arrays are numpy's and hold what the files hold: no scaling, no augmentation, no turning (EMNIST stores its images
transposed, and so they stay; for a network without convolutions that is only another order of the inputs).
"""

import gzip
import math
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geocont.ablations.experiment import Data
from geocont.errors import InputError

_UNSIGNED_BYTE = 0x08
_TYPES = {
    _UNSIGNED_BYTE: "unsigned byte",
    0x09: "signed byte",
    0x0B: "16-bit integer",
    0x0C: "32-bit integer",
    0x0D: "32-bit float",
    0x0E: "64-bit float",
}
_GZIP_MAGIC = b"\x1f\x8b"
_REINSTALL = "install geocont-tui again"
_ROLES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}
_FILE_NAME = re.compile(
    r"(?:(?P<set>[^.].*)[-_.])?(?P<part>train|t10k|test)[-_.](?P<kind>images|labels)[-_.]idx[13][-_.]ubyte(?P<gzip>\.gz)?"
)


@dataclass(frozen=True)
class Images:
    """A labelled set of grey images. `classes` is the largest label of both parts + 1, so an unused label 0 counts.

    Images are uint8 [n, height, width], 0…255; labels uint8 [n].
    """

    name: str
    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]
    classes: int


def load(data: Data) -> Images:
    """The images that an experiment names: the first `data.images` training images, or all, and the whole test set.

    Raises:
        InputError: the folder or one of its four files is missing, ambiguous, damaged, empty, or does not fit the
            others; `data.images` is more than there are.
    """
    images = _shipped() if data.path is None else _from_folder(data.path)
    if data.images is None:
        return images
    available = len(images.train_images)
    if data.images > available:
        raise InputError(
            f"data.images: {data.images} is more than the {available} training images of {images.name}",
            f"set data.images to {available} or less, or leave it out to use all",
        )
    return Images(
        name=images.name,
        train_images=images.train_images[: data.images],
        train_labels=images.train_labels[: data.images],
        test_images=images.test_images,
        test_labels=images.test_labels,
        classes=images.classes,
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes, gzipped or not (told by its content, not by its name).

    IDX, as defined on the MNIST page: two zero bytes, a type, the number of dimensions, then each dimension as a
    big-endian 32-bit integer, then the values, last dimension fastest.

    Raises:
        InputError: not readable, damaged gzip, not IDX, another type than unsigned byte, empty, truncated, or too long.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions") from None
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} is damaged gzip: {error}", "download the file again") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or content[3] == 0:
        raise InputError(
            f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}, not 00 00 TYPE DIMENSIONS",
            "give the files as the data set's page offers them, gzipped or not",
        )
    if content[2] != _UNSIGNED_BYTE:
        raise InputError(
            f"{path} holds values of type {_TYPES[content[2]]}; only unsigned bytes can be read",
            "convert the file to IDX with unsigned bytes (type 08)",
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path} is truncated within its header ({len(content)} bytes)", "download the file again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    declared = math.prod(shape)
    described = " × ".join(map(str, shape))
    if declared == 0:
        raise InputError(f"{path} is empty: its header says {described}", "give a file that holds values")
    present = len(content) - start
    if present < declared:
        raise InputError(
            f"{path} is truncated: its header says {described} = {declared} bytes, {present} are there",
            "download the file again",
        )
    if present > declared:
        raise InputError(
            f"{path} has {present - declared} bytes after its data: its header says {described} = {declared} bytes",
            "download the file again",
        )
    try:
        # A copy, because torch warns about arrays that cannot be written to.
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
    except ValueError:
        raise InputError(
            f"{path} has {dimensions} dimensions, too many", "give images [n, h, w] and labels [n]"
        ) from None


def _shipped() -> Images:
    path = Path(__file__).with_name("mnist.npz")
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return Images(
                name="MNIST",
                train_images=arrays["x_train"],
                train_labels=arrays["y_train"],
                test_images=arrays["x_test"],
                test_labels=arrays["y_test"],
                classes=10,
            )
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", _REINSTALL) from None
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged: {error}", _REINSTALL) from None


def _from_folder(path: str) -> Images:
    try:
        folder = Path(path).expanduser()
        name, files = _find(folder)
    except (OSError, RuntimeError) as error:
        # A name too long for the system, a parent that may not be entered, a ~user who does not exist.
        raise InputError(f"data.path: {path} cannot be read: {error}", "check the path and its permissions") from None
    arrays = {role: read_idx(path) for role, path in files.items()}
    for (part, kind), array in arrays.items():
        dimensions = 3 if kind == "images" else 1
        if array.ndim != dimensions:
            raise InputError(
                f"{files[part, kind]} has {array.ndim} dimensions; {kind} have {dimensions}",
                "give grey images [n, height, width] and labels [n]",
            )
    for part in ("train", "test"):
        images, labels = arrays[part, "images"], arrays[part, "labels"]
        if len(images) != len(labels):
            raise InputError(
                f"{files[part, 'images'].name} holds {len(images)} images, "
                f"{files[part, 'labels'].name} {len(labels)} labels, in {folder}",
                "give images and labels of the same set",
            )
    train_size, test_size = (arrays[part, "images"].shape[1:] for part in ("train", "test"))
    if train_size != test_size:
        raise InputError(
            f"the training images in {folder} are {train_size[0]} × {train_size[1]}, "
            f"the test images {test_size[0]} × {test_size[1]}",
            "give training and test images of the same size",
        )
    classes = 1 + max(int(arrays[part, "labels"].max()) for part in ("train", "test"))
    if classes == 1:
        raise InputError(f"every label in {folder} is 0", "give a set with at least two classes")
    return Images(
        name=name,
        train_images=arrays["train", "images"],
        train_labels=arrays["train", "labels"],
        test_images=arrays["test", "images"],
        test_labels=arrays["test", "labels"],
        classes=classes,
    )


def _find(folder: Path) -> tuple[str, dict[tuple[str, str], Path]]:
    """The set's name and its four files, by part (train, test) and kind (images, labels)."""
    if not folder.exists():
        raise InputError(f"data.path: there is no folder {folder}", "give a folder of IDX files")
    if not folder.is_dir():
        raise InputError(f"data.path: {folder} is a file", "give the folder that holds the four IDX files")
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    sets: dict[str, dict[tuple[str, str], list[Path]]] = {}
    for path in paths:
        match = _FILE_NAME.fullmatch(path.name)
        if match:
            role = ("train" if match["part"] == "train" else "test", match["kind"])
            sets.setdefault(match["set"] or "", {}).setdefault(role, []).append(path)
    if len(sets) > 1:
        names = ", ".join(sorted(name or "one without a name" for name in sets))
        raise InputError(f"{folder} holds {len(sets)} sets: {names}", "give a folder that holds one set only")
    name, found = next(iter(sets.items()), ("", {}))
    missing = [file for role, file in _ROLES.items() if role not in found]
    if missing:
        prefix = f"{name}-" if name else ""
        wanted = ", ".join(f"{prefix}{file}" for file in missing)
        raise InputError(
            f"{folder} lacks {wanted}",
            "put the four IDX files into it; .gz behind a name, a dot for its first dash (train-images.idx3-ubyte) and "
            "test for t10k are fine too",
        )
    return name or folder.resolve().name or "images", {role: _one_of(found[role]) for role in _ROLES}


def _one_of(paths: list[Path]) -> Path:
    """The one file among several for the same thing: an unpacked file stands for the .gz it was made from."""
    unpacked = [path for path in paths if path.suffix != ".gz" or path.with_suffix("") not in paths]
    if len(unpacked) > 1:
        names = " and ".join(path.name for path in unpacked)
        raise InputError(f"{unpacked[0].parent} holds both {names}", "remove all but one of them")
    return unpacked[0]
