"""A model of the Hugging Face hub: out of the hub's cache if it is there, otherwise tensor by tensor over the network.

What is streamed is stored nowhere: each tensor is one range of bytes of a file, read into one of two buffers while the
other one is in use. An interrupted read goes on at the byte it had reached. All is read from one commit, so that a push
to the hub in the meantime cannot mix two versions.
"""

import difflib
import glob
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url, is_offline_mode, snapshot_download
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
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
    tqdm,
    validate_repo_id,
)
from torch import Tensor

from geocont import __version__
from geocont.errors import InputError, JobError
from geocont.weights import local
from geocont.weights.checkpoint import Checkpoint, StoredTensor
from geocont.weights.safetensors_file import (
    LENGTH_BYTES,
    Header,
    ReadBuffer,
    header_bytes,
    parse_header,
    tensor_view,
)

FIRST_BYTES = 64 * 1024
"""What is read of a weights file first. It holds the whole header of most; the others take a second read."""
SKIPPED_BYTES = 16 * 1024 * 1024
"""The largest file that is read from a server which ignores ranges: what comes before a tensor is sent in vain."""
SMALL_FILE_BYTES = 100_000_000
"""More than any config.json or index takes."""
PARALLEL_HEADERS = 8
BUSY = (429, 500, 502, 503, 504)
"""Answers that mean: later."""
FAILURES_IN_A_ROW = 5
LONGEST_WAIT = 600.0
"""In seconds. The hub counts requests over five minutes."""

T = TypeVar("T")


def open_checkpoint(
    repo: str,
    revision: str | None = None,
    *,
    download: bool = False,
    weights_file: str | None = None,
    subfolder: str | None = None,
) -> Checkpoint:
    """The model `repo` ("owner/name") at `revision` (a branch, tag or commit; the main branch by default).

    It is read from the hub's cache if it is complete there. Otherwise its safetensors files are streamed, or, with
    `download`, its files put into the cache first. `weights_file` is the file to read instead of the one that
    transformers would choose, `subfolder` where config and weights are inside the repository.

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
    source = _Source(repo, revision, weights_file, subfolder.strip("/") if subfolder else "")
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


@dataclass(frozen=True)
class _Source:
    """What the user asked for."""

    repo: str
    revision: str | None
    weights_file: str | None
    subfolder: str

    def path(self, file: str) -> str:
        """The name inside the repository of a file of this checkpoint."""
        return f"{self.subfolder}/{file}" if self.subfolder else file


@dataclass(frozen=True)
class _Commit:
    """The state of a repository: its hash, and the files of the checkpoint with their sizes where the hub says them."""

    sha: str
    sizes: Mapping[str, int | None]


def _look_up(source: _Source) -> _Commit:
    """The commit that the revision is now.

    Raises:
        InputError: there is none that this user may read.
        httpx2.TransportError: the hub cannot be reached.
    """
    api = HfApi(library_name="geocont", library_version=__version__)

    def ask() -> _Commit:
        info = api.model_info(
            source.repo, revision=source.revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )
        if info.sha is None:
            raise ValueError("the answer names no commit")
        return _Commit(info.sha, {file.rfilename: file.size for file in info.siblings or ()})

    try:
        commit = _persist(ask, threading.Event(), transport=False)
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
    return _Commit(commit.sha, inside)


def _at_commit(source: _Source, commit: _Commit, download: bool) -> Checkpoint:
    """The checkpoint, from where it can be had."""
    connection = _Connection(source, commit)
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
    return _Streamed(connection, commit.sha, config, headers, places, (*choice.warnings, *warnings))


def _adapter_base(content: Callable[[str], bytes]) -> str | None:
    """The model that an adapter belongs to, where it says so."""
    file = "adapter_config.json"
    base = local.parse_config(content(file), file).get("base_model_name_or_path")
    return base if isinstance(base, str) else None


# ---- what the hub says no with


def _refusal(error: Exception, source: _Source) -> InputError:
    """What an error of the hub means for the user. An error class that derives from another comes before it."""
    repo, page = source.repo, f"{constants.ENDPOINT}/{source.repo}"
    sign_in = "run `hf auth login` or set HF_TOKEN"
    token = get_token()
    match error:
        case _NoRangesError():
            return InputError(
                f"{_host()} sends whole files only, and those of {repo} are too large to be streamed so",
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
                f"the hub has no public model {repo}",
                f"Check the spelling; if it is private, {sign_in}.{_nearby(repo)}",
            )
        case RepositoryNotFoundError():
            return InputError(
                f"the hub has no model {repo} that your token may read",
                f"Check the spelling; if it is private, use the token of an account that may read it.{_nearby(repo)}",
            )
        case RevisionNotFoundError():
            revision = source.revision or constants.DEFAULT_REVISION
            return InputError(f"{repo} has no revision {revision}", f"Choose one of those at {page}/tree/main")
        case OfflineModeIsEnabled():
            return InputError(
                f"{repo} is not in the hub cache, and HF_HUB_OFFLINE is set",
                f"Unset HF_HUB_OFFLINE, or run this where there is a network: hf download {repo}",
            )
        case HfHubHTTPError():
            status = error.response.status_code
            if status in BUSY:
                return InputError(f"{_host()} is busy (status {status})", "Try again later.")
            if status == 401:
                return InputError("the hub does not accept your token", f"Make a new one, then {sign_in}.")
            if status == 403:
                return InputError(f"{repo}: the hub forbids it: {_said(error)}", "Use a token that may read it.")
            return InputError(f"{repo}: {_host()} answers: {_said(error)}", f"See {page}")
        case httpx2.TransportError():
            return InputError(
                f"the hub cannot be reached at {_host()} ({type(error).__name__})",
                "Check the network, proxies and HF_ENDPOINT, or give a folder that holds the model.",
            )
        case _:
            return InputError(f"{_host()} does not answer as a hub does", "Check HF_ENDPOINT and proxies.")


def _said(error: HfHubHTTPError) -> str:
    """What the server said, on one line."""
    text = (error.server_message or str(error)).strip()
    return text.splitlines()[0] if text else f"status {error.response.status_code}"


def _host() -> str:
    return urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT


def _nearby(typed: str) -> str:
    """A sentence that names the folder which was perhaps meant, or nothing."""
    path = Path(typed)
    try:
        names = [entry.name for entry in path.expanduser().parent.iterdir() if entry.is_dir()]
    except (OSError, RuntimeError, ValueError):
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" Or did you mean the folder {path.with_name(close[0])}?" if close else ""


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
    weights = {".safetensors", ".bin", ".gguf"} & {file.suffix for file in _snapshot(source, sha).glob("*")}
    return sha if weights else None


def _in_cache(source: _Source, sha: str, warnings: tuple[str, ...] = ()) -> Checkpoint:
    folder = local.open_checkpoint(_snapshot(source, sha), weights_file=source.weights_file)
    return _Cached(source, sha, folder, warnings)


class _Cached:
    """A checkpoint in the hub's cache: what a folder holds, under the name and commit that it has on the hub."""

    def __init__(self, source: _Source, sha: str, folder: Checkpoint, warnings: tuple[str, ...]) -> None:
        self.model = source.repo
        self.revision: str | None = sha
        self.source = "hub cache"
        self.config = folder.config
        self.tensors = folder.tensors
        self.warnings = (*warnings, *folder.warnings)
        self._source = source
        self._folder = folder

    def read(self, name: str, following: str | None = None) -> Tensor:
        return self._folder.read(name, following)

    def identity(self, name: str) -> str:
        return _identity(self._source, self.revision, self.tensors[name])

    def close(self) -> None:
        self._folder.close()


def _identity(source: _Source, sha: str | None, stored: StoredTensor) -> str:
    """The same whether a file is streamed or in the cache: the files of a commit do not change."""
    return f"hub:{source.repo}@{sha}/{source.path(stored.file)}"


class _NoBar(tqdm):
    """A progress bar that is never drawn, whatever the environment says."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named | {"disable": True})  # type: ignore[no-untyped-call]


def _download(source: _Source, commit: _Commit, files: Iterable[str], missing: Iterable[str]) -> str:
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
    try:
        folder = snapshot_download(
            source.repo,
            # By its name and not its commit, so that the cache learns which commit the name stands for.
            revision=source.revision,
            allow_patterns=[glob.escape(source.path(file)) for file in files],
            tqdm_class=_NoBar,
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled) as error:
        raise _refusal(error, source) from None
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        raise _refusal(cause if isinstance(cause, Exception) else error, source) from None
    except OSError as error:
        raise InputError(f"{source.repo}: {error.strerror or error}", f"See whether {cache} can be written.") from None
    return Path(folder).name


# ---- the network


class _ClosedError(Exception):
    """The checkpoint has been closed while it was being read."""


class _NoRangesError(httpx2.HTTPError):
    """The server sends whole files alone, and this one is large."""


def _persist(
    once: Callable[[], T],
    closed: threading.Event,
    *,
    reached: Callable[[], int] = lambda: 0,
    transport: bool = True,
) -> T:
    """Call `once` until it succeeds, waiting as long as a busy server asks for.

    A failure counts only if `reached`, the bytes read so far, has not grown since the last one: any number of cuts is
    fine while each try gets further. `transport` says whether a broken connection is a reason to try again.
    """
    failures, before = 0, reached()
    while True:
        try:
            return once()
        except httpx2.TransportError as error:
            failure: httpx2.HTTPError = error
            headers: Mapping[str, str] = {}
            if not transport:
                raise
        except HfHubHTTPError as error:
            failure, headers = error, error.response.headers
            if error.response.status_code not in BUSY:
                raise
        asked = wait_asked_for(headers)
        if reached() > before:
            failures, before = 0, reached()
            seconds = asked or 0.0
        else:
            failures += 1
            seconds = 2.0 ** (failures - 1) if asked is None else asked
        if failures == FAILURES_IN_A_ROW or seconds > LONGEST_WAIT:
            raise failure
        if closed.wait(seconds):
            raise _ClosedError


def wait_asked_for(headers: Mapping[str, str]) -> float | None:
    """How many seconds a busy server asks to wait, None if it does not say.

    `headers` are those of its answer, their names in any case. Source: the hub's own ratelimit header as
    huggingface_hub reads it, otherwise Retry-After of RFC 9110 in seconds (a date counts as nothing said).
    """
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    asked = {name.lower(): value.strip() for name, value in headers.items()}.get("retry-after", "")
    return float(asked) if asked.isdecimal() else None


class _Connection:
    """Reads ranges of bytes of the files of one commit. Several threads may use it at once."""

    def __init__(self, source: _Source, commit: _Commit) -> None:
        self.source = source
        self.closed = threading.Event()
        self._sizes = dict(commit.sizes)
        self._sends_ranges = True
        self._sha = commit.sha
        # Compressed bytes would be others than those that are asked for. The token goes to the hub alone: the client
        # leaves it out where the hub sends it on to another host.
        self._headers = build_hf_headers(library_name="geocont", library_version=__version__) | {
            "Accept-Encoding": "identity"
        }

    def read_into(self, file: str, start: int, memory: memoryview) -> int:
        """Fill `memory` with the file's bytes from `start` on. Returns how many there were up to the file's end.

        Raises:
            httpx2.HTTPError: that cannot be done, although it was tried again where that can help.
        """
        reached = 0

        def once() -> None:
            nonlocal reached
            while reached < len(memory):
                before = reached
                for chunk in self._range(file, start + reached, start + len(memory)):
                    memory[reached : reached + len(chunk)] = chunk
                    reached += len(chunk)
                if reached == before or start + reached == self._sizes.get(file):
                    break

        _persist(once, self.closed, reached=lambda: reached)
        return reached

    def _range(self, file: str, start: int, stop: int) -> Iterable[bytes]:
        """The bytes from `start` to before `stop` as they come in; fewer where the file or the connection ends."""
        if self.closed.is_set():
            raise _ClosedError
        url = hf_hub_url(self.source.repo, self.source.path(file), revision=self._sha)
        headers = self._headers | {"Range": f"bytes={start}-{stop - 1}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
            length = response.headers.get("Content-Length", "")
            if response.status_code == 416 and span:
                self._sizes[file] = int(span[2])
                return
            hf_raise_for_status(response)
            ranged = response.status_code == 206
            self._sends_ranges = self._sends_ranges and ranged
            if response.headers.get("Content-Encoding", "identity") != "identity" or (
                ranged and (span is None or span[1] is None or int(span[1]) != start)
            ):
                raise httpx2.DecodingError("other bytes than those asked for")
            if ranged and span:
                self._sizes[file] = int(span[2])
            elif length.isdecimal():
                self._sizes[file] = int(length)
            skip, left = 0 if ranged else start, stop - start
            # Without a size for the chunks, which would hold back, and lose at a cut, all but whole ones.
            for chunk in response.iter_raw():
                if self.closed.is_set():
                    raise _ClosedError
                part = chunk[skip : skip + left]
                skip = max(skip - len(chunk), 0)
                left -= len(part)
                if part:
                    yield part
                if not left and not ranged:
                    return

    def small_file(self, file: str) -> bytes:
        """A whole file that is not weights."""
        content = bytearray()
        while len(content) < SMALL_FILE_BYTES:
            part = bytearray(min(self._sizes.get(file) or FIRST_BYTES, SMALL_FILE_BYTES))
            count = self.read_into(file, len(content), memoryview(part))
            content += part[:count]
            if count < len(part) or len(content) == self._sizes.get(file):
                break
        return bytes(content)

    def headers(self, files: Iterable[str]) -> Mapping[str, Header]:
        """What the weights files hold, by file."""
        files = tuple(files)
        with ThreadPoolExecutor(PARALLEL_HEADERS) as threads:
            return dict(zip(files, threads.map(self._header, files), strict=True))

    def _header(self, file: str) -> Header:
        content = bytearray(min(self._sizes.get(file) or FIRST_BYTES, FIRST_BYTES))
        count = self.read_into(file, 0, memoryview(content))
        size = self._sizes.get(file)
        if size is None:
            raise httpx2.DecodingError("the length of a file is not said")
        if not self._sends_ranges and size > SKIPPED_BYTES:
            raise _NoRangesError("each tensor would take the whole file")
        end = LENGTH_BYTES + header_bytes(bytes(content[:count]), size, file)
        if end > count:
            rest = bytearray(end - count)
            self.read_into(file, count, memoryview(rest))
            content = content[:count] + rest
        return parse_header(bytes(content[LENGTH_BYTES:end]), size, file)


@dataclass(frozen=True)
class _Fetched:
    """A tensor that has been read, or is being read."""

    name: str
    tensor: Future[Tensor]


class _Streamed:
    """A checkpoint whose tensors come over the network. Two buffers: one in use, the other being filled."""

    def __init__(
        self,
        connection: _Connection,
        sha: str,
        config: Mapping[str, Any] | None,
        headers: Mapping[str, Header],
        places: Mapping[str, str],
        warnings: tuple[str, ...],
    ) -> None:
        self.model = connection.source.repo
        self.revision: str | None = sha
        self.source = f"streamed from {_host()}"
        self.config = config
        self.tensors: Mapping[str, StoredTensor] = {name: headers[file].tensors[name] for name, file in places.items()}
        self.warnings = warnings
        self._connection = connection
        self._headers = headers
        self._buffers = (ReadBuffer(), ReadBuffer())
        self._ahead: _Fetched | None = None
        self._awaited: Future[Tensor] | None = None

    def read(self, name: str, following: str | None = None) -> Tensor:
        fetched, self._ahead = self._ahead, None
        if fetched is not None and fetched.name != name:
            with suppress(CancelledError):
                fetched.tensor.exception()  # its buffer is free once it has ended
            fetched = None
        if fetched is None:
            fetched = self._fetch(name)
        self._awaited = fetched.tensor
        try:
            tensor = fetched.tensor.result()
        except CancelledError:
            raise self._closed_meanwhile(name) from None
        if following is not None:
            self._ahead = self._fetch(following)
        return tensor

    def _fetch(self, name: str) -> _Fetched:
        """Begin to read a tensor in a thread of its own."""
        buffer, other = self._buffers
        self._buffers = other, buffer
        tensor: Future[Tensor] = Future()

        def work() -> None:
            with suppress(InvalidStateError):  # nobody waits for it any more
                try:
                    tensor.set_result(self._read(name, buffer))
                except Exception as error:
                    tensor.set_exception(error)

        # A daemon, because a process that ends must not wait for a server that has fallen silent.
        threading.Thread(target=work, name=f"read {name}", daemon=True).start()
        return _Fetched(name, tensor)

    def _read(self, name: str, buffer: ReadBuffer) -> Tensor:
        stored = self.tensors[name]
        memory = buffer.take(stored.bytes)
        offset = self._headers[stored.file].offsets[name]
        try:
            count = self._connection.read_into(stored.file, offset, memory.numpy().data)
        except _ClosedError:
            raise self._closed_meanwhile(name) from None
        except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
            refusal = _refusal(error, self._connection.source)
            raise JobError(f"{name} of {self.model} could not be read: {refusal}", refusal.remedy) from None
        if count < stored.bytes:
            raise JobError(f"{name} of {self.model} ends {stored.bytes - count:,} bytes early", "Start again.")
        return tensor_view(memory, stored)

    def _closed_meanwhile(self, name: str) -> JobError:
        return JobError(f"{self.model} was closed while {name} was read", "Open it again.")

    def identity(self, name: str) -> str:
        return _identity(self._connection.source, self.revision, self.tensors[name])

    def close(self) -> None:
        """Let go of the buffers and end what is being read; whoever waits for it gets a JobError."""
        self._connection.closed.set()
        if self._awaited is not None:
            self._awaited.cancel()
        for buffer in self._buffers:
            buffer.release()
