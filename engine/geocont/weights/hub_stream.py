"""Tensors of a model on the hub, read over the network and stored nowhere.

Each tensor is one range of bytes of a file. It is read into one of two buffers while the other one is in use, and an
interrupted read goes on at the byte that it had reached. A busy hub is waited for as long as it asks.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
)
from torch import Tensor

from geocont import __version__
from geocont.errors import InputError, JobError
from geocont.weights.checkpoint import Slice, StoredTensor, located, name_of
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
FAILURES_IN_A_ROW = 6
LONGEST_WAIT = 600.0
"""In seconds. The hub counts requests over five minutes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """One state of a repository, which never changes. File names are relative to `subfolder`.

    `sizes` are the files with their bytes, None where the hub does not say.
    """

    repo: str
    sha: str
    subfolder: str
    sizes: Mapping[str, int | None]

    def path(self, file: str) -> str:
        """The name of a file inside the repository."""
        return f"{self.subfolder}/{file}" if self.subfolder else file

    def identity(self, stored: StoredTensor) -> str:
        """What a result of a tensor is valid for, the same whether it is streamed or in the cache."""
        return f"hub:{self.repo}@{self.sha}/{self.path(stored.file)}"


def hub_host() -> str:
    """The hub's address as messages name it."""
    return urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT


class ClosedError(Exception):
    """The checkpoint has been closed while it was being read."""


class NoRangesError(httpx2.HTTPError):
    """The server sends whole files alone, and this one is large."""


def persist(
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
            raise ClosedError


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


class Connection:
    """Reads ranges of bytes of the files of one commit. Several threads may use it at once."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.closed = threading.Event()
        self._sizes = dict(commit.sizes)
        self._sends_ranges = True
        # Compressed bytes would be others than those that are asked for. The token goes to the hub alone: the client
        # leaves it out where the hub sends it on to another host.
        own = build_hf_headers(library_name="geocont", library_version=__version__)
        self._headers = own | {"Accept-Encoding": "identity"}

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

        persist(once, self.closed, reached=lambda: reached)
        return reached

    def _range(self, file: str, start: int, stop: int) -> Iterable[bytes]:
        """The bytes from `start` to before `stop` as they come in; fewer where the file or the connection ends."""
        if self.closed.is_set():
            raise ClosedError
        url = hf_hub_url(self.commit.repo, self.commit.path(file), revision=self.commit.sha)
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
                    raise ClosedError
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
            raise NoRangesError("each tensor would take the whole file")
        end = LENGTH_BYTES + header_bytes(bytes(content[:count]), size, file)
        if end > count:
            rest = bytearray(end - count)
            self.read_into(file, count, memoryview(rest))
            content = content[:count] + rest
        return parse_header(bytes(content[LENGTH_BYTES:end]), size, file)


@dataclass(frozen=True)
class _Fetched:
    """A tensor or slice that has been read, or is being read."""

    wanted: str | Slice
    tensor: Future[Tensor]


class StreamedCheckpoint:
    """A checkpoint whose tensors come over the network. Two buffers: one in use, the other being filled."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, Any] | None,
        headers: Mapping[str, Header],
        places: Mapping[str, str],
        warnings: tuple[str, ...],
        refusal: Callable[[Exception], InputError],
    ) -> None:
        """`headers` by file, `places`: the file of each tensor, `refusal`: what an error of the hub means."""
        self.model = connection.commit.repo
        self.revision: str | None = connection.commit.sha
        self.source = f"streamed from {hub_host()}"
        self.config = config
        self.tensors: Mapping[str, StoredTensor] = {name: headers[file].tensors[name] for name, file in places.items()}
        self.warnings = warnings
        self._connection = connection
        self._headers = headers
        self._refusal = refusal
        self._buffers = (ReadBuffer(), ReadBuffer())
        self._ahead: _Fetched | None = None
        self._awaited: Future[Tensor] | None = None

    def read(self, wanted: str | Slice, following: str | Slice | None = None) -> Tensor:
        """The tensor or slice, valid until the next call. `following` is read meanwhile.

        Raises:
            JobError: it cannot be read, or the checkpoint was closed from another thread.
        """
        fetched, self._ahead = self._ahead, None
        try:
            if fetched is not None and fetched.wanted != wanted:
                self._wait(fetched.tensor).exception()  # its buffer is free once it has ended
                fetched = None
            if fetched is None:
                fetched = self._fetch(wanted)
            tensor = self._wait(fetched.tensor).result()
        except CancelledError:
            raise self._closed_meanwhile(name_of(wanted)) from None
        if following is not None:
            self._ahead = self._fetch(following)
        return tensor

    def _wait(self, tensor: Future[Tensor]) -> Future[Tensor]:
        """What is waited for from now on, by this thread: `close` cancels it, also where it came just before."""
        self._awaited = tensor
        if self._connection.closed.is_set():
            tensor.cancel()
        return tensor

    def _fetch(self, wanted: str | Slice) -> _Fetched:
        """Begin to read a tensor or slice in a thread of its own."""
        buffer, other = self._buffers
        self._buffers = other, buffer
        tensor: Future[Tensor] = Future()
        fetched = _Fetched(wanted, tensor)
        stored, before = located(self.tensors, wanted)
        # Not in the thread: one that the end of the process finds inside torch takes the process down with it.
        try:
            memory = buffer.take(stored.bytes)
            view, content = tensor_view(memory, stored), memory.numpy().data
        except JobError as error:
            tensor.set_exception(error)
            return fetched

        def work() -> None:
            with suppress(InvalidStateError):  # nobody waits for it any more
                try:
                    self._fill(content, stored, before)
                except Exception as error:
                    tensor.set_exception(error)
                else:
                    tensor.set_result(view)

        # A daemon, because a process that ends must not wait for a server that has fallen silent.
        threading.Thread(target=work, name=f"read {stored.name}", daemon=True).start()
        return fetched

    def _fill(self, content: memoryview, stored: StoredTensor, before: int) -> None:
        """Read the bytes of a tensor from `before` on."""
        name = stored.name
        offset = self._headers[stored.file].offsets[name] + before
        try:
            count = self._connection.read_into(stored.file, offset, content)
        except ClosedError:
            raise self._closed_meanwhile(name) from None
        except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
            refusal = self._refusal(error)
            raise JobError(f"{name} of {self.model} could not be read: {refusal}", refusal.remedy) from None
        if count < stored.bytes:
            raise JobError(f"{name} of {self.model} ends {stored.bytes - count:,} bytes early", "Start again.")

    def _closed_meanwhile(self, name: str) -> JobError:
        return JobError(f"{self.model} was closed while {name} was read", "Open it again.")

    def identity(self, name: str) -> str:
        """The commit and the file: neither changes."""
        return self._connection.commit.identity(self.tensors[name])

    def close(self) -> None:
        """Let go of the buffers and end what is being read; whoever waits for it gets a JobError."""
        self._connection.closed.set()
        if self._awaited is not None:
            self._awaited.cancel()
        for buffer in self._buffers:
            buffer.release()
