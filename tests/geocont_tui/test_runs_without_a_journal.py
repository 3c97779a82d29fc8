"""What happens where a run cannot be written (any more): it ends, or goes on without a journal, as was chosen."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import synthetic
from geocont.events import Event, Probe
from geocont.journal import JOURNAL
from geocont.runs import Recording, read_events
from program import journal, wait_for
from staged_run import DARK, Source, staged

from geocont_tui import cli
from geocont_tui.app import AblationApp
from geocont_tui.headless import folded, summary_table
from geocont_tui.job import ablation_job

EXPERIMENT = """
name = "long"
seeds = 1
defaults = {width = 16, depth = 3, steps = 10_000_000, batch_size = 16}
data = {images = 2000}
probes = {interval = 50}
variants = [{name = "with"}, {name = "without", residual = false}]
"""
# The program, where no file may grow beyond a limit that the journal soon reaches. It trains nothing.
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
import synthetic
from geocont.ablations import crew
from geocont_tui import cli
crew.train = lambda *_: synthetic.events()
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "long.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize("chosen", ["continue", "stop"])
def test_a_run_on_a_full_disk_does_what_was_chosen(tmp_path, chosen):
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, "ablate", "--run-dir", tmp_path, "--on-disk-error", chosen],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(synthetic.__file__).parent), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (folder,) = tmp_path.iterdir()
    results = summary_table(folded(synthetic.events(), folder))
    lines = result.stderr.splitlines()
    if chosen == "continue":
        assert (result.returncode, result.stdout) == (0, results)
        assert any("goes on without it (--on-disk-error continue)" in line for line in lines)
        (warning,) = (line for line in lines if line.startswith("warning: the journal"))
        assert "File too large" in warning
        assert "network-steps; the run goes on" in warning
        assert lines[-1].startswith(f"the run is kept in part only: the journal {folder / JOURNAL} cannot be written")
    else:
        assert result.returncode == 1
        assert "failed after" in result.stdout
        assert lines[-2].startswith(f"error: the journal {folder / JOURNAL} cannot be written: File too large")
    # What was written is whole.
    assert (folder / JOURNAL).read_bytes().endswith(b"\n")
    kept = [event for event in read_events(folder) if "--on-disk-error" not in getattr(event, "text", "")]
    given = [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in synthetic.events()]
    assert kept == given[: len(kept)]
    assert len(kept) > 50


def test_a_screen_whose_folder_is_deleted_goes_on_and_gives_its_tables(experiment, tmp_path, screen):
    runs = tmp_path / "runs"
    targets = ["--csv", str(tmp_path / "tables")]
    line = screen(
        "ablate", str(experiment), "--device", "cpu", "--run-dir", str(runs), *targets, "--on-disk-error", "continue"
    )
    line.read_until("running")
    wait_for(lambda: any(isinstance(event, Probe) for folder in runs.iterdir() for event in journal(folder)))
    (folder,) = runs.iterdir()
    count = sum(isinstance(event, Probe) for event in journal(folder))
    shutil.rmtree(folder)
    line.read_until("journal lost")
    line.press("x")
    line.read_until("stop the training?")
    line.press("x")
    line.read_until("stopped, journal lost")
    line.press("q")
    line.read_until("the run is kept in part only")
    line.read_until("claims of the source")
    assert line.process.wait(20) == 130
    assert {path.name for path in (tmp_path / "tables").iterdir()} >= {"training.csv", "training_pairs.csv"}
    rows = (tmp_path / "tables" / "training.csv").read_text().splitlines()
    assert len(rows) - 1 >= count > 0
    assert not folder.exists()


async def test_the_screen_says_what_was_lost_and_writes_the_tables_of_now(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    events = list(synthetic.events(until=0.6))
    half = len(events) // 2

    def coming():
        yield from events[:half]
        shutil.rmtree(folder)
        yield from events[half:]

    source = Source(coming())
    recording = Recording(source, folder, outlives_journal=True)
    app = AblationApp(ablation_job(synthetic.experiment(), recording, "cpu"), DARK)
    async with staged(app, source, folder, (80, 24)) as run:
        assert "running, journal lost" in run.lines[0]
        assert "kept in" not in run.text
        assert "the journal cannot be written any more" in run.lines[-1]
        app.write_tables(tmp_path / "tables")
        await app.workers.wait_for_complete([worker for worker in app.workers if worker.group == "export"])
        rows = (tmp_path / "tables" / "training.csv").read_text().splitlines()
        assert len(rows) == 1 + sum(isinstance(event, Probe) for event in events)
        await run.press("5")
        assert "warning: the journal" in run.text
        assert "it was deleted" in run.text


@pytest.mark.parametrize("command_words", [["ablate"], ["analyze", "no/model"]])
@pytest.mark.parametrize("parent", ["file", "read-only"])
def test_a_folder_where_no_run_can_be_kept_is_bad_input(tmp_path, capfd, command_words, parent):
    place = tmp_path / parent
    if parent == "file":
        place.write_text("")
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        place.mkdir(mode=0o500)
    assert cli.run([*command_words, "--run-dir", str(place / "runs")]) == 2
    problem, remedy = capfd.readouterr().err.splitlines()
    assert problem.startswith(f"error: the run's folder cannot be made in {place / 'runs'}: ")
    assert "--run-dir" in remedy
