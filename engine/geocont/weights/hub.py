"""A model of the Hugging Face hub: out of the hub's cache if it is there, otherwise streamed or downloaded.

All is read from one commit, which is looked up first: a push to the hub in the meantime cannot mix two versions.
"""

import difflib
import glob
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
from huggingface_hub import HfApi, constants, get_token, is_offline_mode, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    tqdm,
    validate_repo_id,
)
from torch import Tensor

from geocont import __version__
from geocont.errors import InputError
from geocont.weights import local
from geocont.weights.checkpoint import Checkpoint, Slice
from geocont.weights.hub_stream import BUSY, Commit, Connection, NoRangesError, StreamedCheckpoint, hub_host, persist

# Less is downloaded without a word.
_LEAST_REPORTED_BYTES = 100_000_000


def open_checkpoint(
    repo: str,
    revision: str | None = None,
    *,
    download: bool = False,
    weights_file: str | None = None,
    subfolder: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Checkpoint:
    """The model `repo` ("owner/name") at `revision` (a branch, tag or commit; the main branch by default).

    It is read from the hub's cache if it is complete there. Otherwise its safetensors files are streamed, or, with
    `download`, its files put into the cache first. `weights_file` is the file to read instead of the one that
    transformers would choose, `subfolder` where config and weights are inside the repository. `report` gets a line now
    and then while files are downloaded, from another thread.

    HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE mean what they mean to huggingface_hub, which reads them once, as
    it is imported. From here on that library writes nothing to the terminal.

    Raises:
        InputError: there is no such model or revision, it may not be read, the hub cannot be reached, or the model has
            no weights that can be read; the text says which.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        validate_repo_id(repo)
    except HFValidationError:
        remedy = _nearby(repo).strip() or "Give a folder, a file, or a hub id: owner/name."
        raise InputError(f"{repo}: no such folder, and not a hub id", remedy) from None
    source = _Source(repo, revision, weights_file, subfolder.strip("/") if subfolder else "", report=report)
    if source.subfolder and not local.is_inside(source.subfolder):
        raise InputError(f"{subfolder} is no folder inside {repo}", "Name one without dots and backslashes.")
    if is_offline_mode():
        sha = _cached_commit(source)
        if sha is None:
            raise _refusal(OfflineModeIsEnabled(), source)
        return _in_cache(source, sha)
    try:
        commit = _look_up(source)
    except httpx2.TransportError as error:
        unreachable = _refusal(error, source)
        sha = _cached_commit(source)
        if sha is None:
            raise unreachable from None
        # It is the hub that is away, not the model. What the cache takes the revision for may be old.
        return _in_cache(source, sha, (f"{unreachable}: read from the hub cache, commit {sha[:12]}",))
    return _at_commit(source, commit, download)


def fetch_dataset(repo: str, patterns: list[str], report: Callable[[str], None] | None = None) -> Path:
    """The files of a data set that match one of `patterns`, in the hub's cache: the folder of the newest commit.

    Without a network, or with HF_HUB_OFFLINE, what the cache has. `report` gets a line now and then while files are
    downloaded, from another thread.

    Raises:
        InputError: there is no such data set, it may not be read, the hub cannot be reached, or the disk is full.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        validate_repo_id(repo)
    except HFValidationError:
        raise InputError(f"{repo}: not a hub id", "Give owner/name, or --set data.path=FILE-or-FOLDER.") from None
    return _fetched(_Source(repo, kind="dataset", report=report), patterns)


@dataclass(frozen=True)
class _Source:
    """What the user asked for."""

    repo: str
    revision: str | None = None
    weights_file: str | None = None
    subfolder: str = ""
    kind: Literal["model", "dataset"] = "model"
    report: Callable[[str], None] | None = None


def _look_up(source: _Source) -> Commit:
    """The commit that the revision is now.

    Raises:
        InputError: there is none that this user may read.
        httpx2.TransportError: the hub cannot be reached.
    """
    api = HfApi(library_name="geocont", library_version=__version__)

    def ask() -> Commit:
        info = api.model_info(
            source.repo, revision=source.revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )
        if info.sha is None:
            raise ValueError("the answer names no commit")
        return Commit(source.repo, info.sha, "", {file.rfilename: file.size for file in info.siblings or ()})

    try:
        commit = persist(ask, threading.Event(), transport=False)
    except httpx2.TransportError:
        raise
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled, ValueError) as error:
        raise _refusal(error, source) from None
    if not source.subfolder:
        return commit
    prefix = f"{source.subfolder}/"
    inside = {file.removeprefix(prefix): size for file, size in commit.sizes.items() if file.startswith(prefix)}
    if not inside:
        folders = sorted({file.rpartition("/")[0] for file in commit.sizes if "/" in file})
        remedy = f"It has: {', '.join(folders)}." if folders else "It has no folders: leave out --subfolder."
        raise InputError(f"{source.repo} has no folder {source.subfolder}", remedy)
    return Commit(source.repo, commit.sha, source.subfolder, inside)


def _at_commit(source: _Source, commit: Commit, download: bool) -> Checkpoint:
    """The checkpoint, from where it can be had."""
    connection = Connection(commit)
    snapshot = _snapshot(source, commit.sha)

    def content(file: str) -> bytes:
        cached = snapshot / file
        return cached.read_bytes() if cached.is_file() else connection.small_file(file)

    try:
        config = local.parse_config(content("config.json")) if "config.json" in commit.sizes else None
        base = _adapter_base(content) if "adapter_config.json" in commit.sizes else None
        choice = local.choose_files(
            commit.sizes, model=source.repo, config=config, weights_file=source.weights_file, adapter_base=base
        )
        index = choice.index
        weight_map = local.read_index(content(index), index) if index else {}
        files = local.shards(weight_map, commit.sizes, index) if index else choice.files
        needed = [*files, *(file for file in (index, "config.json") if file is not None and file in commit.sizes)]
        missing = [file for file in needed if not (snapshot / file).is_file()]
        if download:
            return _in_cache(source, _download(source, commit, needed, missing))
        if not missing:
            return _in_cache(source, commit.sha)
        if choice.format != "safetensors":
            size = sum(commit.sizes[file] or 0 for file in files)
            raise InputError(
                f"{source.repo} has no safetensors weights (found: {files[0]}, {size / 1e9:.1f} GB), and others cannot "
                "be streamed",
                "Use --download, or --revision refs/pr/N where converted weights have been proposed.",
            )
        headers = connection.headers(files)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _refusal(error, source) from None
    found = {file: header.tensors.keys() for file, header in headers.items()}
    warnings: tuple[str, ...] = ()
    if index:
        places, warnings = local.reconcile(weight_map, found, index)
    else:
        places = {name: file for file, names in found.items() for name in names}
    local.refuse_adapter(places, source.repo, base)
    return StreamedCheckpoint(
        connection, config, headers, places, (*choice.warnings, *warnings), lambda error: _refusal(error, source)
    )


def _adapter_base(content: Callable[[str], bytes]) -> str | None:
    """The model that an adapter belongs to, where it says so."""
    file = "adapter_config.json"
    base = local.parse_config(content(file), file).get("base_model_name_or_path")
    return base if isinstance(base, str) else None


# ---- what the hub says no with


def _refusal(error: Exception, source: _Source) -> InputError:
    """What an error of the hub means for the user. An error class that derives from another comes before it."""
    repo, kind = source.repo, source.kind
    page = f"{constants.ENDPOINT}/{repo}" if kind == "model" else f"{constants.ENDPOINT}/datasets/{repo}"
    typed = repo if kind == "model" else f"--repo-type dataset {repo}"
    sign_in = "run `hf auth login` or set HF_TOKEN"
    token = get_token()
    match error:
        case NoRangesError():
            return InputError(
                f"{hub_host()} sends whole files only, and those of {repo} are too large to be streamed so",
                "Use --download.",
            )
        case GatedRepoError() if token:
            return InputError(
                f"{repo} is gated, and the account of your token has no access", f"Ask for access at {page}"
            )
        case GatedRepoError():
            return InputError(f"{repo} is gated", f"Accept its licence at {page}, then {sign_in}.")
        # Without a token the hub answers 401 to what does not exist, too, so that nobody learns what is private.
        case RepositoryNotFoundError() | HfHubHTTPError(response=httpx2.Response(status_code=401)) if not token:
            return InputError(
                f"the hub has no public {kind} {repo}",
                f"Check the spelling; if it is private, {sign_in}.{_nearby(repo)}",
            )
        case RepositoryNotFoundError():
            return InputError(
                f"the hub has no {kind} {repo} that your token may read",
                f"Check the spelling; if it is private, use the token of an account that may read it.{_nearby(repo)}",
            )
        case RevisionNotFoundError():
            revision = source.revision or constants.DEFAULT_REVISION
            return InputError(f"{repo} has no revision {revision}", f"Choose one of those at {page}/tree/main")
        case OfflineModeIsEnabled():
            return InputError(
                f"{repo} is not in the hub cache, and HF_HUB_OFFLINE is set",
                f'Unset HF_HUB_OFFLINE, or run "hf download {typed}" where there is a network.{_nearby(repo)}',
            )
        case HfHubHTTPError():
            status = error.response.status_code
            if status in BUSY:
                return InputError(f"{hub_host()} is busy (status {status})", "Try again later.")
            if status == 401:
                return InputError("the hub does not accept your token", f"Make a new one, then {sign_in}.")
            if status == 403:
                return InputError(f"{repo}: the hub forbids it: {_said(error)}", "Use a token that may read it.")
            return InputError(f"{repo}: {hub_host()} answers: {_said(error)}", f"See {page}")
        case httpx2.TransportError():
            return InputError(
                f"the hub cannot be reached at {hub_host()} ({type(error).__name__})",
                f"Check the network, proxies and HF_ENDPOINT, or give a folder that holds the {kind}.{_nearby(repo)}",
            )
        case _:
            return InputError(f"{hub_host()} does not answer as a hub does", "Check HF_ENDPOINT and proxies.")


def _said(error: HfHubHTTPError) -> str:
    """What the server said, on one line."""
    text = (error.server_message or str(error)).strip()
    return text.splitlines()[0] if text else f"status {error.response.status_code}"


def _nearby(typed: str) -> str:
    """A sentence that names the folder or file of weights which was perhaps meant, or nothing."""
    path = Path(typed)
    try:
        names = [
            entry.name
            for entry in path.expanduser().parent.iterdir()
            if entry.is_dir() or entry.suffix in (".safetensors", ".gguf", ".bin")
        ]
    except (OSError, RuntimeError, ValueError):
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" Or did you mean {path.with_name(close[0])} on this disk?" if close else ""


# ---- the cache


def _cache_folder(source: _Source) -> Path:
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source.repo, repo_type="model")


def _snapshot(source: _Source, sha: str) -> Path:
    """Where the cache has the checkpoint of a commit, if it has it."""
    return _cache_folder(source) / "snapshots" / sha / source.subfolder


def _cached_commit(source: _Source) -> str | None:
    """The commit that the revision was when the cache last heard of it, None if no weights of that one are there."""
    revision = source.revision or constants.DEFAULT_REVISION
    try:
        sha = (_cache_folder(source) / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        sha = revision
    if not re.fullmatch("[0-9a-f]{40}", sha):
        return None
    weights = {".safetensors", ".bin", ".gguf"} & {file.suffix for file in _snapshot(source, sha).rglob("*")}
    return sha if weights else None


def _in_cache(source: _Source, sha: str, warnings: tuple[str, ...] = ()) -> Checkpoint:
    folder = local.open_checkpoint(_snapshot(source, sha), weights_file=source.weights_file)
    return _CachedCheckpoint(Commit(source.repo, sha, source.subfolder, {}), folder, warnings)


class _CachedCheckpoint:
    """A checkpoint in the hub's cache: what a folder holds, under the name and commit that it has on the hub."""

    def __init__(self, commit: Commit, folder: Checkpoint, warnings: tuple[str, ...]) -> None:
        self.model = commit.repo
        self.revision: str | None = commit.sha
        self.source = "hub cache"
        self.config = folder.config
        self.tensors = folder.tensors
        self.warnings = (*warnings, *folder.warnings)
        self._commit = commit
        self._folder = folder

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Tensor:
        return self._folder.read(wanted, following)

    def identity(self, name: str) -> str:
        return self._commit.identity(self.tensors[name])

    def close(self) -> None:
        self._folder.close()


class _Bar(tqdm):
    """A progress bar that is never drawn, whatever the environment says."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"disable": True})  # type: ignore[no-untyped-call]
        self.counts_bytes = named.get("unit") == "B"


def _reporting(name: str, report: Callable[[str], None]) -> type[_Bar]:
    """Bars that say in a line now and then how far the download is. They are told of it by several threads."""
    begun = time.monotonic()
    lock = threading.Lock()
    said = 0

    class Reporting(_Bar):
        arrived = 0

        def update(self, n: float | None = 1) -> None:
            nonlocal said
            with lock:
                self.arrived += int(n or 0)
                total = self.total or 0
                if not self.counts_bytes or self.arrived - said < max(_LEAST_REPORTED_BYTES, total // 50):
                    return
                said = self.arrived
                rate = said / max(time.monotonic() - begun, 1e-3)
                left = max(total - said, 0) / rate / 60
                report(
                    f"downloading {name}: {said / 1e9:,.1f} of {total / 1e9:,.1f} GB, {rate / 1e6:,.0f} MB/s, "
                    f"{left:,.0f} min left"
                )

    return Reporting


def _download(source: _Source, commit: Commit, files: Iterable[str], missing: Iterable[str]) -> str:
    """Put `files` into the cache, of which it lacks those `missing`. Returns the commit that they are of.

    Raises:
        InputError: the disk has no room for them, or the hub fails.
    """
    needed = sum(commit.sizes[file] or 0 for file in missing)
    cache = Path(constants.HF_HUB_CACHE).absolute()
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.is_dir())).free
    if needed > free:
        raise InputError(
            f"{source.repo} takes {needed / 1e9:.1f} GB, and {cache} has {free / 1e9:.1f} GB free",
            "Leave out --download to stream it, or set HF_HOME to a folder on a larger disk.",
        )
    return _fetched(source, [glob.escape(commit.path(file)) for file in files]).name


def _fetched(source: _Source, patterns: list[str]) -> Path:
    """The folder in the hub's cache with the files that match. Raises InputError where they cannot be had."""
    try:
        folder = snapshot_download(
            source.repo,
            repo_type=source.kind,
            # By its name and not its commit, so that the cache learns which commit the name stands for.
            revision=source.revision,
            allow_patterns=patterns,
            tqdm_class=_Bar if source.report is None else _reporting(source.repo, source.report),
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled) as error:
        raise _refusal(error, source) from None
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        raise _refusal(cause if isinstance(cause, Exception) else error, source) from None
    except OSError as error:
        cache = Path(constants.HF_HUB_CACHE).absolute()
        raise InputError(f"{source.repo}: {error.strerror or error}", f"See whether {cache} can be written.") from None
    return Path(folder)
