"""A run that no terminal can end: started detached; watched, paused and stopped from others; gone on with."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geocont.events import Probe, RunContinued, RunFinished, RunPaused, RunResumed
from geocont.run_lock import holder
from program import PATIENCE, command, journal, wait_for

# Far more steps than anybody waits for.
EXPERIMENT = """
name = "long"
seeds = 1
defaults = {width = 16, depth = 3, steps = 10_000_000, batch_size = 16}
probes = {interval = 200}
variants = [{name = "with"}, {name = "without", residual = false}]
"""


def grows(folder: Path) -> None:
    """Until there are new measurements."""
    count = sum(isinstance(event, Probe) for event in journal(folder))
    wait_for(lambda: sum(isinstance(event, Probe) for event in journal(folder)) > count)


@contextmanager
def detached(folder: Path) -> Iterator[Path]:
    """A run in the background, ended afterwards whatever happens."""
    (folder / "long.toml").write_text(EXPERIMENT)
    result = command(
        "ablate", str(folder / "long.toml"), "--device", "cpu", "--detach", "--run-dir", str(folder / "runs")
    )
    assert result.returncode == 0, result.stderr
    run = Path(result.stdout.strip())
    try:
        assert f"geocont-tui watch {run}" in result.stderr
        yield run
    finally:
        writer = holder(run)
        if writer is not None:
            os.kill(writer.pid, signal.SIGKILL)


def test_a_detached_run_is_watched_paused_stopped_and_gone_on_with(tmp_path, screen):
    with detached(tmp_path) as run:
        writer = holder(run)
        assert writer is not None
        assert os.getsid(writer.pid) == writer.pid
        # Without a name it is the newest that is live.
        first = screen("watch", "--run-dir", str(tmp_path / "runs"))
        first.read_until("running")
        second = screen("watch", str(run))
        second.read_until("running")
        first.press(" ")
        wait_for(lambda: isinstance(journal(run)[-1], RunPaused))
        for each in (first, second):
            each.read_until("paused")
        # The other one, too, can end the pause.
        second.press(" ")
        wait_for(lambda: any(isinstance(event, RunResumed) for event in journal(run)))
        grows(run)
        # Leaving does not ask, and neither that nor being killed is anything to the run.
        second.press("q")
        assert second.process.wait(PATIENCE) == 0
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        grows(run)
        assert holder(run) == writer
        third = screen("watch", str(run))
        third.read_until("running")
        third.press("x")
        third.read_until("stop the training?")
        third.press("x")
        third.read_until("stopped")
        wait_for(lambda: holder(run) is None)
        assert isinstance(journal(run)[-1], RunFinished)
        assert journal(run)[-1].status == "stopped"
        # Another process goes on from there, and comes to its end when it is told to.
        result = command("resume", str(run), "--detach")
        assert (result.returncode, result.stdout.strip()) == (0, str(run))
        wait_for(lambda: any(isinstance(event, RunContinued) for event in journal(run)))
        grows(run)
        result = command("resume", str(run))
        assert result.returncode == 2
        assert f"process {holder(run).pid}" in result.stderr
        began = time.monotonic()
        os.kill(holder(run).pid, signal.SIGTERM)
        wait_for(lambda: holder(run) is None)
        assert time.monotonic() - began < 5
        assert journal(run)[-1].status == "stopped"
        assert [key for key in probe_keys(run) if probe_keys(run).count(key) > 1] == []


def probe_keys(run: Path) -> list[tuple[str, int, int]]:
    return [(event.variant, event.seed, event.step) for event in journal(run) if isinstance(event, Probe)]


def test_what_is_refused_is_said_at_once_and_keeps_no_run(tmp_path):
    result = command("ablate", "nothing-of-that-name", "--detach", "--run-dir", str(tmp_path / "runs"))
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == "error: there is no preset 'nothing-of-that-name'"
    assert len(result.stderr.splitlines()) == 2
    assert not (tmp_path / "runs").exists()


def test_help_is_help_also_for_what_would_be_detached():
    result = command("resume", "--detach", "--help")
    assert result.returncode == 0
    assert "--detach" in result.stdout
