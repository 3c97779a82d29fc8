"""What a half-typed name may become: models of the hub cache, folders, files.

    cached_models() -> ids      models(text, recent) -> suggestions      toml_files(text) -> suggestions

Looks at the disk only, and at a bounded part of each folder; what cannot be read is not suggested.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_LOOKED_AT = 500
_MOST = 50


@dataclass(frozen=True)
class Suggestion:
    """A name that can be typed, and what it is. `is_path_only`: a folder on the way to something, nothing itself."""

    name: str
    note: str
    is_path_only: bool = False


def cached_models() -> list[str]:
    """The ids of the models whose weights are in the hub's cache, in alphabetical order."""
    from huggingface_hub import constants

    found = []
    for folder in _entries(Path(constants.HF_HUB_CACHE)):
        kind, *parts = folder.name.split("--")
        if kind == "models" and 1 <= len(parts) <= 2 and any(map(_holds_weights, _entries(folder / "snapshots"))):
            found.append("/".join(parts))
    return sorted(found, key=str.lower)


def models(text: str, recent: Iterable[str], cached: Iterable[str]) -> list[Suggestion]:
    """Models that `text` may mean: analysed before, in the hub's cache, and folders and files that begin so."""
    words = text.strip().lower()
    known = {name: Suggestion(name, "analysed before") for name in recent}
    for name in cached:
        known.setdefault(name, Suggestion(name, "in the hub cache"))
    found = [each for each in known.values() if words in each.name.lower()]
    # Names that begin so come first.
    found.sort(key=lambda each: not each.name.lower().startswith(words))
    names = {each.name for each in found}
    paths = _paths(text.strip(), _WEIGHTS, _holds_weights, "folder with weights", "file of weights")
    return [*found, *(each for each in paths if each.name not in names)][:_MOST]


def toml_files(text: str) -> list[Suggestion]:
    """TOML files, and folders on the way to them, that begin with `text`."""
    return _paths(text.strip(), (".toml",), lambda _: False, "", "experiment?")[:_MOST]


def expanded(text: str) -> Path:
    """`text` as a path, with ~ for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        # ~name of a user that there is not.
        return Path(text)


def _paths(
    text: str, suffixes: tuple[str, ...], is_wanted: Callable[[Path], bool], folder_note: str, file_note: str
) -> list[Suggestion]:
    head, _, beginning = text.rpartition("/")
    typed = f"{head}/" if "/" in text else ""
    found: list[Suggestion] = []
    for path in sorted(_entries(expanded(typed)), key=lambda path: path.name.lower()):
        hides = path.name.startswith(".") and not beginning.startswith(".")
        if hides or not path.name.lower().startswith(beginning.lower()):
            continue
        with suppress(OSError):
            if path.is_dir():
                wanted = is_wanted(path)
                # With nothing typed, every folder of the working directory would be noise.
                if wanted or text:
                    note = folder_note if wanted else "folder"
                    found.append(Suggestion(f"{typed}{path.name}/", note, not wanted))
            elif path.name.endswith(suffixes):
                found.append(Suggestion(f"{typed}{path.name}", file_note))
    found.sort(key=lambda each: each.is_path_only)
    return found


def _holds_weights(folder: Path) -> bool:
    return any(path.name.endswith(_WEIGHTS) for path in _entries(folder))


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
