"""Texts of the hub, from a server that imitates it; each process of its own, since the hub's library reads its
environment once."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hub_server import SHA, TOKEN, HubServer, Repository
from pyarrow import parquet

ROOT = Path(__file__).parents[3]
LINES = [f" The {number}th river runs past {number * 7919 % 1000} mills . \n" for number in range(900)]

PROGRAM = """
import json, os, sys
from geocont.ablations import corpora
from geocont.ablations.experiment import Text
from geocont.errors import GeocontError
from tokenizers import Tokenizer

def outcome(case):
    os.environ["HF_TOKEN"] = case.pop("token", "")
    said = []
    try:
        corpus = corpora.load(Text(**case, vocabulary=300), said.append)
    except GeocontError as error:
        return {"error": type(error).__name__, "problem": str(error), "remedy": error.remedy}
    decode = Tokenizer.from_file(str(corpus.tokenizer)).decode
    return {"source": corpus.source, "said": said, "train": decode(corpus.train.tolist()),
            "held_out": decode(corpus.held_out.tolist())}

print(json.dumps([outcome(case) for case in json.loads(sys.argv[1])]))
"""


def table(lines: list[str]) -> bytes:
    written = io.BytesIO()
    parquet.write_table(pa.table({"text": lines}), written)
    return written.getvalue()


def repository(**faults: Any) -> Repository:
    files = {
        "README.md": b"# A data set",
        "raw/train-00000-of-00002.parquet": table(LINES[:500]),
        "raw/train-00001-of-00002.parquet": table(LINES[500:800]),
        "raw/validation-00000-of-00001.parquet": table(LINES[800:]),
        "raw/test-00000-of-00001.parquet": table(["not to be read\n"]),
        "half/train-00000-of-00001.parquet": table(LINES[:9]),
    }
    return Repository(files, **faults)


def environment(endpoint: str, home: Path, **changes: str) -> Mapping[str, str]:
    own = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home / "hub"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_PROXY": "*",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return inherited | own | {"NO_PROXY": "*", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'engine'}"} | changes


def outcomes(cases: list[dict[str, str]], given: Mapping[str, str]) -> list[dict[str, Any]]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases)], env=given, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    # Nothing of the hub's own library reaches the user.
    assert result.stderr == ""
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def online(home: Path) -> dict[str, dict[str, Any]]:
    """What became of some data sets while the hub was there."""
    held = {
        "own/whole": repository(),
        "own/cut": repository(cuts=2, cut_after=100),
        "own/gated": repository(gated=True),
        "own/private": repository(private=True),
    }
    cases = {
        "whole": {"dataset": "own/whole", "configuration": "raw"},
        "cut": {"dataset": "own/cut", "configuration": "raw"},
        "gated": {"dataset": "own/gated", "configuration": "raw"},
        "let in": {"dataset": "own/gated", "configuration": "raw", "token": TOKEN},
        "private": {"dataset": "own/private", "configuration": "raw"},
        "missing": {"dataset": "own/missing", "configuration": "raw"},
        "no configuration": {"dataset": "own/whole", "configuration": "cooked"},
        "no validation": {"dataset": "own/whole", "configuration": "half"},
        "no id": {"dataset": "a/b/c", "configuration": "raw"},
    }
    with HubServer(held) as server:
        found = outcomes(list(cases.values()), environment(server.endpoint, home))
        read = [request.path for request in server.files("own/whole")]
    assert not [path for path in read if "test-" in path], read
    return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize("case", ["whole", "cut", "let in"])
def test_the_splits_are_what_is_trained_on_and_what_is_held_out(online, case):
    found = online[case]
    assert found["train"] == "".join(LINES[:800])
    assert found["held_out"] == "".join(LINES[800:])
    assert f"/raw@{SHA[:12]}, " in found["source"]


@pytest.mark.parametrize(
    ("case", "problem", "remedy"),
    [
        ("gated", "own/gated", "HF_TOKEN"),
        ("private", "own/private", "HF_TOKEN"),
        ("missing", "own/missing", "HF_TOKEN"),
        ("no configuration", "no parquet files of the split train in cooked", "data.configuration"),
        ("no validation", "no parquet files of the split validation in half", "data.configuration"),
        ("no id", "a/b/c: not a hub id", "data.path"),
    ],
)
def test_what_cannot_be_had_is_said(online, case, problem, remedy):
    assert online[case]["error"] == "InputError"
    assert problem in online[case]["problem"]
    assert remedy in online[case]["remedy"]


def test_without_the_hub_only_what_is_whole_counts(online, home):
    offline = environment("http://127.0.0.1:9", home, HF_HUB_OFFLINE="1")
    whole = {"dataset": "own/whole", "configuration": "raw"}
    again, never = outcomes([whole, {"dataset": "own/never", "configuration": "raw"}], offline)
    assert again["train"] == online["whole"]["train"]
    # Tokenized before.
    assert again["said"] == [f"looking for {whole['dataset']} (raw)"]
    assert "own/never" in never["problem"]
    assert "HF_HUB_OFFLINE" in never["remedy"]
    (shard,) = (home / "hub" / "hub" / "datasets--own--whole").glob("snapshots/*/raw/train-00001-*")
    shard.unlink()
    (part,) = outcomes([whole], offline)
    assert "own/whole is not in the hub cache" in part["problem"]
    assert "HF_HUB_OFFLINE" in part["remedy"]


def test_networks_are_trained_on_a_text_of_the_hub(tmp_path):
    experiment = tmp_path / "small.toml"
    experiment.write_text("""
kind = "language_model"
name = "small"
data = { dataset = "own/whole", configuration = "raw", vocabulary = 300 }
probes = { leading = 2 }
[[variants]]
name = "A"
depth = 2
width = 16
heads = 2
key_value_heads = 2
mlp_width = 24
sequence_length = 16
batch_size = 4
steps = 2
""")
    with HubServer({"own/whole": repository()}) as server:
        command = [sys.executable, "-m", "geocont_tui", "ablate", str(experiment), "--headless", "--run-dir", tmp_path]
        given = environment(server.endpoint, tmp_path)
        result = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert f"text: own/whole/raw@{SHA[:12]}" in result.stderr
    assert "perplexity" in result.stdout
