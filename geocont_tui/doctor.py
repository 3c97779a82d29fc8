"""What `geocont-tui doctor` says: versions, device and memory, the hub, what is kept where, what the terminal can do.

Works without a network: whether the hub answers is one of the lines. A token is never shown, only whether there is one.
"""

import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from geocont import __version__, devices, results
from geocont.ablations import corpora
from geocont.errors import InputError
from geocont.runs import list_runs, runs_folder

from geocont_tui import terminal
from geocont_tui.plain_text import printable, size

PACKAGES = ("torch", "numpy", "huggingface_hub", "gguf", "textual", "plotext", "pyarrow")
ANSWER_SECONDS = 3.0


def report() -> str:
    """Everything, a line a fact, in groups."""
    groups = (
        ("versions", _versions()),
        ("device", _device()),
        ("hub", _hub()),
        ("kept", _kept()),
        ("terminal", _terminal()),
    )
    blocks = []
    for title, facts in groups:
        blocks.append("\n".join([title, *(f"  {name:<18}{value}" for name, value in facts)]))
    return printable("\n\n".join(blocks) + "\n")


def _versions() -> Iterator[tuple[str, str]]:
    yield "geocont-tui", __version__
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "n/a: not installed"
    yield "python", f"{sys.version.split()[0]} on {sys.platform}"


def _device() -> Iterator[tuple[str, str]]:
    import torch

    device = devices.resolve("auto")
    yield "device", devices.describe(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        yield "device memory", f"{size(free)} free of {size(total)}"
    yield "memory", _memory()


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return f"{size(1024 * kilobytes['MemAvailable'])} available of {size(1024 * kilobytes['MemTotal'])}"
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return f"{size(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} in all"
    except (AttributeError, OSError, ValueError):
        return "n/a: this system does not say"


def _hub() -> Iterator[tuple[str, str]]:
    from huggingface_hub import constants, get_token

    yield "endpoint", constants.ENDPOINT
    yield "answers", "not asked: HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _answers(constants.ENDPOINT)
    yield "token", "there is one" if get_token() else "none: gated and private models cannot be read (HF_TOKEN)"
    cache = Path(constants.HF_HUB_CACHE)
    blobs = sum(_size(path) for path in cache.glob("*/blobs/*"))
    models = len(list(cache.glob("models--*")))
    yield "cache", f"{cache}: {models} models, {size(blobs)}, {_free(cache)}"


def _answers(endpoint: str) -> str:
    """Whether anything answers there within a few seconds, and how quickly."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=ANSWER_SECONDS):
            pass
    except urllib.error.HTTPError:
        # It answered; what it thinks of a bare HEAD is another matter.
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return f"no: {reason}; folders and what is in the cache can be analysed"
    return f"yes, within {time.monotonic() - began:.1f} s"


def _kept() -> Iterator[tuple[str, str]]:
    cache = results.folder()
    yield "result cache", f"{cache}: {size(results.size(cache))}, {_free(cache)}"
    texts = corpora.folder()
    yield "text cache", f"{texts}: {size(sum(_size(path) for path in texts.glob('*/*')))}, {_free(texts)}"
    folder = runs_folder()
    try:
        yield "runs", f"{folder}: {len(list_runs())}, {_free(folder)}"
    except InputError as error:
        yield "runs", str(error)


def _terminal() -> Iterator[tuple[str, str]]:
    settings = terminal.detect()
    columns, lines = shutil.get_terminal_size()
    yield "screen", "yes" if terminal.has_screen() else "no: stdin, stdout and stderr must be terminals, TERM not dumb"
    yield "TERM", os.environ.get("TERM") or "not set"
    yield "size", f"{columns}×{lines}, at least 60×15 is needed"
    yield "colours", settings.colours
    yield "characters", "ASCII only" if settings.ascii else "Unicode"
    yield "connection", "SSH" if settings.ssh else "local"


def _free(folder: Path) -> str:
    """Free space where the folder is, or would be."""
    for place in (folder, *folder.parents):
        try:
            return f"{size(shutil.disk_usage(place).free)} free"
        except OSError:
            continue
    return "free space unknown"


def _size(path: Path) -> int:
    # A file may go away between listing and looking.
    try:
        return path.stat().st_size
    except OSError:
        return 0
