"""A small HTTP server that answers as the Hugging Face hub does, fails as it does, and remembers what it was asked."""

import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a_secret_that_stays_with_the_hub"


@dataclass
class Repository:
    """What the hub holds under one name, and how it misbehaves.

    Of the faults, all but `gated` and `private` befall requests for files alone, not those for what files there are.
    """

    files: Mapping[str, bytes]
    sha: str = SHA
    branches: tuple[str, ...] = ("main",)
    private: bool = False
    gated: bool = False
    """Whoever has no token may see what there is, and read nothing."""
    accepted: bool = True
    """Whether the one with the token has been let in."""
    ignores_ranges: bool = False
    redirects: bool = False
    """Weights come from another host."""
    knows_sizes: bool = True
    claims: int | None = None
    """How many bytes each file has, as the listing of them says; else as many as it has."""
    cuts: int = 0
    """So many answers break off after `cut_after` bytes."""
    cut_after: int = 0
    failures: int = 0
    """So many requests are answered by `status` and `failure_headers` instead."""
    status: int = 429
    failure_headers: Mapping[str, str] = field(default_factory=dict)
    info_failures: int = 0
    """The same for the request that asks what the repository holds."""
    held: threading.Event | None = None
    """What begins at byte `held_from` of a file or later is sent once this is set."""
    held_from: int = 1


@dataclass
class Request:
    """One request, and what became of it."""

    method: str
    host: str
    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    began: float
    status: int = 0
    sent: int = 0
    """Bytes of the body."""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class HubServer:
    """The hub at `endpoint`, from `with` until its end."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = repositories
        self.requests: list[Request] = []
        self.changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        server = self

        class Handler(_Handler):
            hub = server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.other_host = f"http://localhost:{self.port}"
        """The same server under a name to which no token may go."""
        # The pause between two looks at whether to end is what the end would have to wait for.
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        # A connection that is kept alive would go on to be answered.
        for connection in list(self._sockets):
            with suppress(OSError):  # the other end was first
                connection.shutdown(socket.SHUT_RDWR)

    def files(self, repository: str, method: str = "GET") -> list[Request]:
        """The requests for files of a repository so far, wherever they were sent."""
        return [
            request
            for request in self.requests
            if request.method == method and f"/{repository}/resolve/" in request.path.replace("/moved/", "/", 1)
        ]

    def wait_for(self, repository: str, finished: int) -> bool:
        """Whether so many requests for files of a repository have been begun within 20 seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.files(repository)) >= finished, timeout=20)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each body waits 40 ms for the client to confirm the headers

    def setup(self) -> None:
        super().setup()
        self.hub._sockets.add(self.connection)

    def finish(self) -> None:
        self.hub._sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):
            self.close_connection = True  # the client has read what it needs, or the server has ended

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_log = Request(self.command, host, path, headers, time.monotonic())
        with self.hub.changed:
            self.hub.requests.append(self.request_log)
            self.hub.changed.notify_all()
        if control := re.fullmatch(r"/control/(\w+)/([\w.-]+/[\w.-]+)(?:/(\d+))?", path):
            self._control(*control.groups())
        elif match := re.fullmatch(r"/api/(?:models|datasets)/([\w.-]+/[\w.-]+)(?:/(revision|tree)/(.+))?", path):
            self._info(*match.groups())
        elif match := re.fullmatch(r"(?:/moved)?/(?:datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            self._file(*match.groups())
        else:
            self._error(404, "", "Not found")

    def _control(self, what: str, name: str, count: str | None) -> None:
        """For the process under test: let go of what is held, fail from now on, or wait for so many requests."""
        repository = self.hub.repositories[name]
        if what == "release":
            assert repository.held is not None
            repository.held.set()
        elif what == "fail":
            repository.failures = 10**9
        else:
            assert self.hub.wait_for(name, int(count or 0))
        self._send(200, b"", {})

    def _repository(self, name: str, revision: str | None) -> Repository | None:
        """The repository if this client may know of it, otherwise None: the answer has been sent."""
        repository = self.hub.repositories.get(name)
        has_token = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if "Authorization" in self.headers and not has_token:
            self._error(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not has_token):
            if has_token:
                self._error(404, "RepoNotFound", "Repository not found")
            else:
                self._error(401, "", "Invalid username or password.")
        elif revision is not None and revision not in (repository.sha, *repository.branches):
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository
        return None

    def _info(self, name: str, what: str | None, revision: str | None) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        if repository.info_failures:
            repository.info_failures -= 1
            self._send(repository.status, b"busy", repository.failure_headers)
            return
        if what == "tree":
            answer: object = [
                {"type": "file", "path": path, "size": len(content), "oid": f"{len(content):040x}"}
                for path, content in repository.files.items()
            ]
        else:
            siblings = [
                {"rfilename": path} | ({"size": repository.claims or len(content)} if repository.knows_sizes else {})
                for path, content in repository.files.items()
            ]
            answer = {"id": name, "modelId": name, "sha": repository.sha, "siblings": siblings}
        # What huggingface_hub would print.
        warning = {"X-HF-Warning": "quota; Little is left of it."}
        self._send(200, json.dumps(answer).encode(), warning | {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, path: str) -> None:
        moved = self.path.startswith("/moved/")
        if moved:  # a signed address, to which nobody comes with a token
            repository = self.hub.repositories[name]
        else:
            found = self._repository(name, revision)
            if found is None:
                return
            repository = found
        if repository.gated and not (moved or ("Authorization" in self.headers and repository.accepted)):
            status = 403 if "Authorization" in self.headers else 401
            self._error(status, "GatedRepo", "Access to this model is restricted.")
            return
        if path not in repository.files:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        if repository.failures:
            repository.failures -= 1
            self._send(repository.status, b"busy", repository.failure_headers)
            return
        content = repository.files[path]
        facts = {"ETag": f'"{len(content):040x}"', "X-Repo-Commit": repository.sha}
        if repository.redirects and not moved and not path.endswith(".json"):
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": facts["ETag"]}
            self._send(302, b"", facts | linked | {"Location": f"{self.hub.other_host}/moved{self.path}"})
            return
        start, stop, status = 0, len(content), 200
        if (wanted := self.headers.get("Range")) and not repository.ignores_ranges:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop, status = int(first), min(int(last or stop) + 1, stop), 206
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            facts["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        if repository.held is not None and start >= repository.held_from:
            assert repository.held.wait(timeout=20)
        cut = None
        if repository.cuts and stop - start > repository.cut_after and not path.endswith(".json"):
            repository.cuts -= 1
            cut = repository.cut_after
        self._send(status, content[start:stop], facts, cut)

    def _error(self, status: int, code: str, message: str) -> None:
        named = {"X-Error-Code": code} if code else {}
        self._send(status, json.dumps({"error": message}).encode(), named | {"X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.request_log.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.request_log.sent = len(body[:cut])
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True
