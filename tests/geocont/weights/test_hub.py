"""Models of the hub, from a server that imitates it: what is read is what is there, and what goes wrong is said.

huggingface_hub reads its environment once, as it is imported. So a process of its own opens all models of one
environment, and the tests look at what came out.
"""

import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from geocont.errors import InputError
from geocont.weights import local
from geocont.weights.checkpoint import Slice
from geocont.weights.hub_stream import FAILURES_IN_A_ROW, Commit, Connection, StreamedCheckpoint, wait_asked_for
from geocont.weights.safetensors_file import parse_header
from hub_server import SHA, TOKEN, HubServer, Repository, Request
from safetensors.torch import save

ROOT = Path(__file__).parents[3]

PROGRAM = """
import hashlib, json, os, sys, warnings
warnings.simplefilter("error")
import torch
from geocont.errors import GeocontError
from geocont.weights import hub

def content(tensor):
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()

def outcome(case):
    # Unlike all else, the token is looked up for every model.
    os.environ["HF_TOKEN"] = case.pop("token", "")
    hub._LEAST_REPORTED_BYTES = case.pop("reported_bytes", 10**8)
    said = []
    try:
        checkpoint = hub.open_checkpoint(**case, report=said.append)
        tensors = {}
        names = list(checkpoint.tensors)
        for name, following in zip(names, [*names[1:], None]):
            tensor = checkpoint.read(name, following)
            tensors[name] = [str(tensor.dtype), list(tensor.shape), content(tensor)]
        identity = checkpoint.identity(names[0])
        checkpoint.close()
    except GeocontError as error:
        return {"error": type(error).__name__, "problem": str(error), "remedy": error.remedy}
    return {"model": checkpoint.model, "revision": checkpoint.revision, "source": checkpoint.source,
            "config": checkpoint.config, "warnings": checkpoint.warnings, "tensors": tensors, "identity": identity,
            "said": said}

print(json.dumps([outcome(case) for case in json.loads(sys.argv[1])]))
"""


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(7, 300, 40, generator=generator)
    return {
        "layers.0.q": drawn[0].bfloat16(),
        "layers.0.o": drawn[1],
        "layers.1.q": drawn[2, :50].bfloat16(),
        "layers.1.o": drawn[3].half(),
        "scale": torch.tensor(2.5 + seed),
        "nothing": torch.empty(0, 4),
        "fp8": drawn[4].to(torch.float8_e4m3fn),
    }


def expected(weights: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    """What PROGRAM prints for these tensors."""
    return {
        name: [
            str(tensor.dtype),
            list(tensor.shape),
            sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest(),
        ]
        for name, tensor in weights.items()
    }


WEIGHTS = tensors(1)
CONFIG = {"model_type": "llama", "hidden_size": 40}
SINGLE = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": save(WEIGHTS), "README.md": b"# A model"}


def sharded() -> dict[str, bytes]:
    """WEIGHTS in three files."""
    names = list(WEIGHTS)
    shards = {f"model-{part + 1:05}-of-00003.safetensors": names[part::3] for part in range(3)}
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    return {
        "config.json": SINGLE["config.json"],
        "model.safetensors.index.json": json.dumps(index).encode(),
        "consolidated.safetensors": save({"twice": torch.zeros(3)}),
    } | {file: save({name: WEIGHTS[name] for name in held}) for file, held in shards.items()}


def long_header() -> bytes:
    """A file whose header is longer than what is read first."""
    names = {f"layers.{layer}.{'very_' * 8}long_name": torch.full((2,), float(layer)) for layer in range(800)}
    content = save(names)
    assert struct.unpack("<Q", content[:8])[0] > 2**16
    return content


def run(
    endpoint: str, home: Path, cases: Sequence[Mapping[str, Any]], program: str = PROGRAM, **environment: str
) -> list[dict[str, Any]]:
    """What opening and reading each of `cases` comes to in a process with this environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "PYTHONPATH": str(ROOT / "engine"), "NO_PROXY": "*"}
    result = subprocess.run(
        [sys.executable, "-c", program, json.dumps(cases)],
        env=inherited | own | environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # Whatever else is written would land in the middle of the screen.
    assert result.stderr == ""
    return json.loads(result.stdout)


def pickled() -> bytes:
    stream = io.BytesIO()
    torch.save(WEIGHTS, stream)
    return stream.getvalue()


def gguf_content() -> bytes:
    """A GGUF file of one quantised and one plain tensor."""
    block = np.random.default_rng(7).integers(0, 256, (4, 64 // 32 * 18), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_embedding_length(64)
        writer.add_tensor("blk.0.attn_q.weight", block, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        writer.add_tensor("output_norm.weight", np.arange(64, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


GGUF = gguf_content()

REPOSITORIES = {
    "org/gguf": Repository({"small.gguf": GGUF, "large.gguf": GGUF + bytes(32)}),
    "org/single": Repository(SINGLE, branches=("main", "step1000")),
    "org/sharded": Repository(sharded()),
    "org/cut": Repository(SINGLE, cuts=9, cut_after=9_000),
    "org/whole-files": Repository(SINGLE, ignores_ranges=True),
    "org/whole-files-cut": Repository(SINGLE, ignores_ranges=True, cuts=1, cut_after=100_000),
    "org/large-whole-files": Repository({"model.safetensors": bytes(2**24 + 1)}, ignores_ranges=True),
    "org/web-page": Repository(SINGLE, info_failures=1, status=200),
    "org/moved": Repository(SINGLE, redirects=True),
    "org/moved-for-token": Repository(SINGLE, redirects=True, private=True),
    "org/sizes-unsaid": Repository(SINGLE, knows_sizes=False),
    "org/busy": Repository(SINGLE, failures=2, failure_headers={"Retry-After": "1"}),
    "org/limited": Repository(SINGLE, info_failures=1, failure_headers={"ratelimit": '"api";r=0;t=1'}),
    "org/never-free": Repository(SINGLE, failures=10**9, status=503, failure_headers={"Retry-After": "0"}),
    "org/asks-too-much": Repository(SINGLE, failures=10**9, failure_headers={"Retry-After": "86400"}),
    "org/long-header": Repository({"model.safetensors": long_header()}),
    "org/stale": Repository(sharded() | {"model-00003-of-00003.safetensors": save({"other": torch.ones(2)})}),
    "org/in-folders": Repository({f"unet/{name}": content for name, content in SINGLE.items()}),
    "org/gated": Repository(SINGLE, gated=True),
    "org/not-let-in": Repository(SINGLE, gated=True, accepted=False),
    "org/private": Repository(SINGLE, private=True),
    "org/pointer": Repository(SINGLE | {"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid"}),
    "org/empty": Repository(SINGLE | {"model.safetensors": b""}),
    "org/shorter": Repository(SINGLE | {"model.safetensors": SINGLE["model.safetensors"][:-1]}),
    "org/pickled": Repository({"config.json": SINGLE["config.json"], "pytorch_model.bin": pickled()}),
    "org/kept": Repository(sharded(), branches=("main", "v1")),
    "org/kept-gated": Repository(SINGLE, gated=True),
    "org/kept-busy": Repository(SINGLE, cuts=1, cut_after=20_000),
    "org/huge": Repository(SINGLE, claims=10**17),
}

ONLINE = {
    name: {"repo": f"org/{name}"} for name in {repository.removeprefix("org/") for repository in REPOSITORIES}
} | {
    "missing": {"repo": "org/missing"},
    "commit": {"repo": "org/single", "revision": SHA},
    "branch": {"repo": "org/single", "revision": "step1000"},
    "no revision": {"repo": "org/single", "revision": "step2000"},
    "folder": {"repo": "org/in-folders", "subfolder": "unet"},
    "no folder": {"repo": "org/in-folders", "subfolder": "vae"},
    "outside": {"repo": "org/in-folders", "subfolder": "../unet"},
    "weights file": {"repo": "org/sharded", "weights_file": "consolidated.safetensors"},
    "too many parts": {"repo": "org/single/model"},
    "near a folder": {"repo": "./modle"},
    "moved, token": {"repo": "org/moved-for-token", "token": TOKEN},
    "gated, token": {"repo": "org/gated", "token": TOKEN},
    "not let in": {"repo": "org/not-let-in", "token": TOKEN},
    "private, token": {"repo": "org/private", "token": TOKEN},
    "missing, token": {"repo": "org/missing", "token": TOKEN},
    "wrong token": {"repo": "org/single", "token": "hf_expired"},
    "kept": {"repo": "org/kept", "download": True, "reported_bytes": 30_000},
    "kept again": {"repo": "org/kept"},
    "kept by name": {"repo": "org/kept", "revision": "v1", "download": True},
    "pickled, kept": {"repo": "org/pickled", "download": True},
    "kept-gated": {"repo": "org/kept-gated", "download": True},
    "gguf, streamed": {"repo": "org/gguf", "weights_file": "small.gguf"},
    "gguf, kept": {"repo": "org/gguf", "weights_file": "small.gguf", "download": True},
    "huge": {"repo": "org/huge", "download": True},
}


@dataclass(frozen=True)
class Session:
    """What came of ONLINE, by name, the server that answered, and the folder with the cache."""

    outcomes: Mapping[str, Mapping[str, Any]]
    server: HubServer
    home: Path

    def weights_requests(self, repository: str) -> list[Request]:
        return [request for request in self.server.files(repository) if not request.path.endswith(".json")]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = tmp_path_factory.mktemp("hub")
    (home / "model").mkdir()
    with HubServer(REPOSITORIES) as server:
        outcomes = run(server.endpoint, home, list(ONLINE.values()))
        yield Session(dict(zip(ONLINE, outcomes, strict=True)), server, home)


@pytest.mark.parametrize(
    "name",
    [
        "single",
        "sharded",
        "cut",
        "whole-files",
        "whole-files-cut",
        "moved",
        "sizes-unsaid",
        "busy",
        "limited",
        "commit",
        "branch",
        "folder",
        "moved, token",
        "gated, token",
        "private, token",
    ],
)
def test_streams_every_tensor_bit_for_bit(session: Session, name: str):
    outcome = session.outcomes[name]
    assert "error" not in outcome, outcome
    assert outcome["tensors"] == expected(WEIGHTS)
    assert outcome["config"] == CONFIG
    assert outcome["model"] == ONLINE[name]["repo"]
    assert outcome["revision"] == SHA
    assert outcome["source"] == f"streamed from 127.0.0.1:{session.server.port}"
    assert outcome["warnings"] == []


def test_all_is_read_from_the_commit_that_was_looked_up(session: Session):
    requests = session.server.files("org/single")
    assert requests
    assert all(f"/resolve/{SHA}/" in request.path for request in requests)


def test_streams_only_what_is_needed(session: Session):
    for repository in ("org/single", "org/sharded"):
        paths = {request.path.rpartition("/")[2] for request in session.server.files(repository)}
        assert not paths & {"README.md"}
    single = session.weights_requests("org/single")
    per_model = len(single) / 3  # it was opened thrice
    # One for the header, and one for each tensor that has bytes.
    assert per_model == 1 + len(WEIGHTS) - 1


def test_asks_for_bytes_as_they_are(session: Session):
    assert {request.headers["accept-encoding"] for request in session.server.files("org/single")} == {"identity"}


def test_goes_on_at_the_byte_that_was_reached(session: Session):
    whole, cut = session.weights_requests("org/moved"), session.weights_requests("org/cut")
    assert REPOSITORIES["org/cut"].cuts == 0
    moved_on = [request for request in whole if request.status == 206]
    assert len(cut) == len(moved_on) + 9
    assert sum(request.sent for request in cut) == sum(request.sent for request in moved_on)


def test_the_token_stays_with_the_hub(session: Session):
    requests = session.server.files("org/moved-for-token")
    elsewhere = [request for request in requests if request.host == "localhost"]
    assert elsewhere
    for request in requests:
        assert ("authorization" in request.headers) == (request.host == "127.0.0.1")
        assert (TOKEN in str(request.headers)) == (request.host == "127.0.0.1")


def test_waits_as_long_as_a_busy_hub_asks(session: Session):
    requests = session.server.files("org/busy")
    assert [request.status for request in requests[:3]] == [429, 429, 200 if requests[2].range is None else 206]
    assert requests[1].began - requests[0].began >= 1
    assert requests[2].began - requests[1].began >= 1
    info = [request for request in session.server.requests if request.path == "/api/models/org/limited"]
    assert [request.status for request in info] == [429, 200]
    assert info[1].began - info[0].began >= 1


def test_gives_up_in_the_end(session: Session):
    assert len(session.server.files("org/never-free")) == FAILURES_IN_A_ROW
    assert len(session.server.files("org/asks-too-much")) == 1


def test_a_long_header_takes_two_reads(session: Session):
    assert len(session.outcomes["long-header"]["tensors"]) == 800
    first, second, *_ = session.weights_requests("org/long-header")
    assert first.range == "bytes=0-65535"
    assert second.range.startswith("bytes=65536-")


def test_the_index_decides_which_files_are_read(session: Session):
    assert not any("consolidated" in request.path for request in session.server.files("org/kept"))
    assert list(session.outcomes["weights file"]["tensors"]) == ["twice"]


def test_a_gguf_file_is_read_once_it_is_kept(session: Session, tmp_path: Path):
    outcome = session.outcomes["gguf, kept"]
    assert "error" not in outcome, outcome
    (tmp_path / "small.gguf").write_bytes(GGUF)
    beside = local.open_checkpoint(tmp_path / "small.gguf")
    # What is read lies in a buffer that is used again.
    assert outcome["tensors"] == expected({name: beside.read(name).clone() for name in beside.tensors})
    assert outcome["source"] == "hub cache"
    assert not any("large" in request.path for request in session.server.files("org/gguf"))


def test_says_where_the_index_is_stale(session: Session):
    outcome = session.outcomes["stale"]
    held = set(list(WEIGHTS)[2::3])
    assert outcome["tensors"].keys() == WEIGHTS.keys() - held | {"other"}
    assert [warning for warning in outcome["warnings"] if "other" in warning]


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("gated", "org/gated is gated", "licence"),
        ("gguf", "several weight files: large.gguf, small.gguf", "--weights"),
        ("gguf, streamed", "small.gguf", "--download"),
        ("not let in", "no access", "Ask for access"),
        ("private", "no public model org/private", "HF_TOKEN"),
        ("missing", "no public model org/missing", "spelling"),
        ("missing, token", "no model org/missing that your token may read", "spelling"),
        ("wrong token", "does not accept your token", "hf auth login"),
        ("no revision", "org/single has no revision step2000", "/org/single/tree/main"),
        ("too many parts", "no such folder, and not a hub id", "owner/name"),
        ("near a folder", "no such folder, and not a hub id", "model on this disk?"),
        ("never-free", "busy (status 503)", "later"),
        ("asks-too-much", "busy (status 429)", "later"),
        ("in-folders", "sub-folders only: unet", "--subfolder unet"),
        ("no folder", "org/in-folders has no folder vae", "unet"),
        ("outside", "../unet is no folder inside", "without dots"),
        ("pickled", "no safetensors weights (found: pytorch_model.bin", "--download"),
        ("pointer", "Git-LFS pointer", "git lfs pull"),
        ("empty", "empty", "again"),
        ("shorter", "truncated", "again"),
        ("kept-gated", "org/kept-gated is gated", "licence"),
        ("large-whole-files", "sends whole files only", "--download"),
        ("web-page", "does not answer as a hub does", "HF_ENDPOINT"),
        ("huge", "takes 200000000.0 GB", "Leave out --download"),
    ],
)
def test_says_what_is_wrong_and_what_to_do(session: Session, name: str, problem: str, remedy: str):
    outcome = session.outcomes[name]
    assert outcome.get("error") == "InputError", outcome
    assert problem in outcome["problem"]
    assert remedy in outcome["remedy"]
    assert "\n" not in outcome["problem"] + outcome["remedy"]


def test_huge_files_are_not_even_begun(session: Session):
    assert not session.weights_requests("org/huge")


@pytest.mark.parametrize("name", ["kept", "kept again", "kept by name", "pickled, kept"])
def test_what_is_downloaded_is_read_from_the_cache(session: Session, name: str):
    outcome = session.outcomes[name]
    assert "error" not in outcome, outcome
    assert outcome["tensors"] == expected(WEIGHTS)
    assert outcome["config"] == CONFIG
    assert (outcome["model"], outcome["revision"]) == (ONLINE[name]["repo"], SHA)
    assert outcome["source"] == "hub cache"


def test_a_download_says_how_far_it_is(session: Session):
    # Three files of some 50,000 bytes, in three threads.
    said = session.outcomes["kept"]["said"]
    assert 1 <= len(said) <= 3
    figures = re.compile(r"downloading org/kept: 0\.0 of 0\.0 GB, \d+ MB/s, 0 min left")
    assert all(figures.fullmatch(line) for line in said), said
    # A small one needs no words, nor does what is there already, or is streamed.
    assert not any(session.outcomes[name]["said"] for name in ("pickled, kept", "kept again", "sharded"))


def test_downloads_each_weights_file_once_and_no_other(session: Session):
    names = [request.path.rpartition("/")[2] for request in session.weights_requests("org/kept")]
    assert sorted(names) == [f"model-{part:05}-of-00003.safetensors" for part in (1, 2, 3)]


def test_a_tensor_is_the_same_wherever_it_is_read_from(session: Session):
    streamed, kept = session.outcomes["sharded"]["identity"], session.outcomes["kept"]["identity"]
    assert streamed.replace("org/sharded", "org/kept") == kept
    assert SHA in kept
    assert str(session.home) not in kept


@pytest.fixture(scope="module")
def offline(session: Session) -> tuple[list[dict[str, Any]], int]:
    """What comes of a kept model, by two names of it, and of one that was streamed; and the requests it took."""
    before = len(session.server.requests)
    cases = [{"repo": "org/kept"}, {"repo": "org/kept", "revision": "v1"}, {"repo": "org/single"}]
    outcomes = run(session.server.endpoint, session.home, cases, HF_HUB_OFFLINE="1")
    return outcomes, len(session.server.requests) - before


def test_offline_reads_the_cache_and_asks_nobody(offline: tuple[list[dict[str, Any]], int]):
    (by_default, by_name, _), requests = offline
    for outcome in (by_default, by_name):
        assert outcome["tensors"] == expected(WEIGHTS)
        assert outcome["revision"] == SHA
    assert requests == 0


def test_offline_says_what_is_not_in_the_cache(offline: tuple[list[dict[str, Any]], int]):
    (_, _, streamed), _ = offline
    assert streamed["error"] == "InputError"
    assert streamed["problem"] == "org/single is not in the hub cache, and HF_HUB_OFFLINE is set"
    assert "Unset HF_HUB_OFFLINE" in streamed["remedy"]


def test_a_hub_that_is_away(session: Session):
    with HubServer({}) as gone:
        pass
    kept, streamed = run(gone.endpoint, session.home, [{"repo": "org/kept"}, {"repo": "org/single"}])
    assert kept["tensors"] == expected(WEIGHTS)
    assert f"cannot be reached at 127.0.0.1:{gone.port}" in kept["warnings"][0]
    assert SHA[:12] in kept["warnings"][0]
    assert streamed["error"] == "InputError"
    assert f"cannot be reached at 127.0.0.1:{gone.port}" in streamed["problem"]
    assert "HF_ENDPOINT" in streamed["remedy"]


PREFETCH = """
import json, os, sys, threading, urllib.request
import torch
from geocont.errors import JobError
from geocont.weights import hub

def control(path):
    urllib.request.urlopen(f"{os.environ['HF_ENDPOINT']}/control/{path}", timeout=30).close()

first, second = json.loads(sys.argv[1])
checkpoint = hub.open_checkpoint("org/held")
one = checkpoint.read(first, second)
copy = one.clone()
control("wait/org/held/4")  # config, header, the first tensor, and the second, which does not come yet
control("release/org/held")
two = checkpoint.read(second)
came = [torch.equal(one, copy), two.double().sum().item()]

checkpoint = hub.open_checkpoint("org/stuck")
errors = []

def read():
    try:
        checkpoint.read(first)
    except JobError as error:
        errors.append(str(error))

reader = threading.Thread(target=read, daemon=True)
reader.start()
control("wait/org/stuck/3")
checkpoint.close()
reader.join(10)

checkpoint = hub.open_checkpoint("org/breaks-down")
control("fail/org/breaks-down")
try:
    checkpoint.read(first)
except JobError as error:
    errors.append(str(error))

# Closed after the request went out and before anybody waits for it.
checkpoint = hub.open_checkpoint("org/late")
fetch = checkpoint._fetch

def fetch_and_close(wanted):
    global fetched
    fetched = fetch(wanted)
    checkpoint.close()
    return fetched

checkpoint._fetch = fetch_and_close
try:
    checkpoint.read(first)
except JobError as error:
    errors += [str(error), fetched.tensor.cancelled()]
print(json.dumps([came, errors]))
"""


@pytest.fixture(scope="module")
def prefetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[str], int]:
    """What PREFETCH prints, the two tensors that it reads, and how many requests they took."""
    content = SINGLE["model.safetensors"]
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    begins = {name: entry["data_offsets"][0] for name, entry in header.items() if name in ("layers.0.q", "layers.1.o")}
    first, second = sorted(begins, key=begins.__getitem__)
    held, stuck = threading.Event(), threading.Event()
    repositories = {
        "org/held": Repository(SINGLE, held=held, held_from=8 + length + begins[second]),
        "org/stuck": Repository(SINGLE, held=stuck),
        "org/late": Repository(SINGLE, held=stuck),
        "org/breaks-down": Repository(SINGLE, status=502, failure_headers={"Retry-After": "0"}),
    }
    with HubServer(repositories) as server:
        home = tmp_path_factory.mktemp("hub")
        outcomes = run(server.endpoint, home, [first, second], PREFETCH, HF_HUB_DOWNLOAD_TIMEOUT="60")
        stuck.set()
        weights = [request for request in server.files("org/held") if not request.path.endswith(".json")]
        return outcomes, [first, second], len(weights)


def test_the_following_tensor_comes_while_one_is_in_use(prefetched: tuple[list[Any], list[str], int]):
    ((unharmed, total), _), (_, second), requests = prefetched
    assert unharmed
    assert total == WEIGHTS[second].double().sum().item()
    assert requests == 3


def test_closing_ends_what_waits_for_the_hub(prefetched: tuple[list[Any], list[str], int]):
    (_, errors), (first, _), _ = prefetched
    assert errors[0] == f"org/stuck was closed while {first} was read"
    assert errors[2:] == [f"org/late was closed while {first} was read", True]


def test_a_hub_that_breaks_down_ends_the_job(prefetched: tuple[list[Any], list[str], int]):
    (_, errors), (first, _), _ = prefetched
    assert errors[1].startswith(f"{first} of org/breaks-down could not be read: 127.0.0.1:")
    assert errors[1].endswith("is busy (status 502)")


def test_an_analysis_is_streamed_from_its_commit_and_a_second_look_reads_no_weights(tmp_path: Path):
    generator = torch.Generator().manual_seed(3)
    names = {f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(3) for part in "qo"}
    content = save({name: torch.randn(32, 32, generator=generator) for name in sorted(names)})
    config = json.dumps({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4}).encode()
    repository = Repository({"config.json": config, "model.safetensors": content}, branches=("main", "step1000"))
    own = {"HF_HOME": str(tmp_path / "hub"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_PROXY": "*"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'engine'}"}
    tables, bytes_sent = [], []
    with HubServer({"own/small": repository}) as server:
        for revision, number in (("step1000", 1), ("main", 2)):
            before = len(server.requests)
            table = tmp_path / f"{number}.json"
            command = [
                *("analyze", "own/small", "--revision", revision, "--headless", "--run-dir", str(tmp_path / "r"))
            ]
            result = subprocess.run(
                [sys.executable, "-m", "geocont_tui", *command, "--json", str(table)],
                env=inherited | own | path | {"HF_ENDPOINT": server.endpoint},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert result.returncode == 0, result.stderr
            assert f"own/small at {SHA}\n6 of 6 matrices, streamed from 127.0.0.1:{server.port}" in result.stdout
            tables.append(json.loads(table.read_text()))
            asked = [one for one in server.requests[before:] if one.path.endswith("model.safetensors")]
            bytes_sent.append(sum(request.sent for request in asked))
    assert {row["revision"] for table in tables for row in (*table["pairs"], *table["matrices"])} == {SHA}
    assert len(tables[0]["pairs"]) == 6
    assert tables[0] == tables[1]
    # A branch is only a name: what was measured of its commit is not measured again, only the header is read.
    assert bytes_sent[0] > 6 * 32 * 32 * 4
    assert bytes_sent[1] < bytes_sent[0] - 6 * 32 * 32 * 4 + 1
    assert not (tmp_path / "hub" / "hub" / "models--own--small").exists()


def test_slices_are_streamed_alone():
    stack = torch.arange(4 * 3 * 5, dtype=torch.float32).view(4, 3, 5)
    content = save({"before": torch.ones(7), "stack": stack})
    length = struct.unpack("<Q", content[:8])[0]
    sizes: list[int] = []

    class FromMemory(Connection):
        def read_into(self, file: str, start: int, memory: memoryview) -> int:
            sizes.append(len(memory))
            memory[:] = content[start : start + len(memory)]
            return len(memory)

    header = parse_header(content[8 : 8 + length], len(content), "m")
    commit = Commit("org/stacked", SHA, "", {"m": len(content)})
    places = dict.fromkeys(header.tensors, "m")
    checkpoint = StreamedCheckpoint(FromMemory(commit), None, {"m": header}, places, (), lambda _: InputError("", ""))
    slices = [Slice("stack", index, 4) for index in range(4)]
    for one, following in zip(slices, [*slices[1:], None], strict=True):
        assert torch.equal(checkpoint.read(one, following), stack[one.index : one.index + 1])
    assert sizes == [3 * 5 * 4] * 4
    checkpoint.close()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "-1"}, None),
        ({"ratelimit": '"resolvers";r=0;t=55', "Retry-After": "7"}, 55.0),
        ({"ratelimit": '"resolvers";r=12;t=55'}, None),
        ({"ratelimit": "nonsense", "Retry-After": "3"}, 3.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: Mapping[str, str], seconds: float | None):
    assert wait_asked_for(headers) == seconds
