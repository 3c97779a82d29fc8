"""An analysis that was killed goes on from the results it kept; one that is live can be watched from elsewhere."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from geocont.events import AnalysisProgress, MatrixMeasured, PairMeasured, RunContinued, RunFinished, RunPaused
from geocont.run_control import ask
from geocont.run_lock import holder
from program import PROGRAM, command, journal, wait_for
from safetensors.torch import save_file

from geocont_tui import cli

LAYERS, WIDTH = 8, 288
NAMES = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    generator = torch.Generator().manual_seed(5)
    weights = {
        f"model.layers.{layer}.{name}.weight": torch.randn(WIDTH, WIDTH, generator=generator).bfloat16()
        for layer in range(LAYERS)
        for name in NAMES
    }
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measured(run: Path) -> list[MatrixMeasured]:
    return [event for event in journal(run) if isinstance(event, MatrixMeasured)]


def keys(events: list[MatrixMeasured]) -> list[tuple[str, str, int]]:
    return [(event.stack, event.projection, event.layer) for event in events]


@pytest.mark.usefixtures("cache")
def test_killed_in_the_middle_it_goes_on_from_its_results_to_the_same_tables(model, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        [*PROGRAM, "analyze", model.name, "--headless", "--device", "cpu", "--run-dir", str(runs)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=model.parent,
    )
    try:
        wait_for(lambda: any((folder / "events.jsonl").exists() for folder in runs.glob("*")))
        (run,) = runs.iterdir()
        wait_for(lambda: len(measured(run)) >= 4 * len(NAMES))
    finally:
        process.kill()
        process.wait()
    before = measured(run)
    planned = LAYERS * len(NAMES)
    assert 4 * len(NAMES) <= len(before) < planned
    assert not any(isinstance(event, RunFinished) for event in journal(run))
    # From another folder than the one where the model's name was typed.
    resumed = command("resume", run.name, "--run-dir", str(runs), "--csv", str(tmp_path / "resumed"))
    assert resumed.returncode == 0, resumed.stderr
    after = measured(run)
    assert len(keys(after)) == len(set(keys(after))) == planned
    # What is in the journal was kept first. Only the last two layers are read again, to be compared with the next.
    continued = next(place for place, event in enumerate(journal(run)) if isinstance(event, RunContinued))
    read = max(event.bytes_read for event in journal(run)[continued:] if isinstance(event, AnalysisProgress))
    assert 0 < read <= (planned - len(before) + 2 * len(NAMES)) * WIDTH * WIDTH * 2
    pairs = [event for event in journal(run) if isinstance(event, PairMeasured)]
    assert len({(event.projection, event.layer_a) for event in pairs}) == len(pairs) == (LAYERS - 1) * len(NAMES)

    options = ["--headless", "--device", "cpu", "--no-cache", "--run-dir", str(tmp_path / "whole")]
    monkeypatch.chdir(model.parent)
    assert cli.run(["analyze", model.name, *options, "--csv", str(tmp_path / "uninterrupted")]) == 0
    for name in ("pairs.csv", "matrices.csv"):
        resumed_rows, whole_rows = (
            sorted((tmp_path / folder / name).read_text("utf-8").splitlines())
            for folder in ("resumed", "uninterrupted")
        )
        assert resumed_rows == whole_rows


@pytest.fixture
def detached(model: Path, tmp_path: Path) -> Iterator[Path]:
    """An analysis in the background that stands still, ended afterwards whatever happens."""
    runs = tmp_path / "runs"
    result = command("analyze", str(model), "--device", "cpu", "--no-cache", "--detach", "--run-dir", str(runs))
    assert result.returncode == 0, result.stderr
    run = Path(result.stdout.strip())
    ask(run, "pause")
    wait_for(lambda: any(isinstance(event, RunPaused | RunFinished) for event in journal(run)))
    yield run
    writer = holder(run)
    if writer is not None:
        os.kill(writer.pid, signal.SIGKILL)


@pytest.mark.usefixtures("cache")
def test_it_is_watched_from_another_terminal_to_its_end(detached, screen):
    assert isinstance(journal(detached)[-1], RunPaused)
    watching = screen("watch", str(detached))
    watching.read_until("paused")
    watching.press(" ")
    watching.read_until("done")
    watching.press("q")
    assert watching.process.wait(30.0) == 0
    assert isinstance(journal(detached)[-1], RunFinished)
    assert len(measured(detached)) == LAYERS * len(NAMES)
    wait_for(lambda: holder(detached) is None)
