"""A run that is killed at any moment and gone on with has the numbers of one that was not."""

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from geocont import runs
from geocont.ablations import crew
from geocont.ablations.experiment import SGD, Adam, Data, Experiment, Normal, Probes, Variant
from geocont.errors import InputError, JobError
from geocont.events import (
    Event,
    Message,
    NetworkFinished,
    Probe,
    Progress,
    RunContinued,
    RunFinished,
    RunStarted,
)
from geocont.run_lock import holder

ROUNDS = 22


def variant(name: str, **changes) -> Variant:
    small = {"depth": 3, "width": 16, "batch_size": 32, "initialization": Normal(std=0.1), "steps": 240}
    return Variant(name=name, **small | changes)


TINY = Experiment(
    name="tiny",
    seeds=1,
    data=Data(images=500),
    probes=Probes(leading=4, interval=7, exact=5),
    variants=(
        variant("adam", activation="radial", optimizer=Adam(gradient_clip=0.5)),
        variant("momentum", bias=True, optimizer=SGD(learning_rate=0.01, momentum=0.9)),
        variant("plain", activation="tanh", residual=False, optimizer=SGD(learning_rate=0.01, momentum=0.0), steps=120),
    ),
)

# What the program does with a run: begin it, or go on with it.
PROGRAM = """
import sys
from pathlib import Path
from geocont import runs
from geocont.ablations import crew
# One worker: what takes the time is its start.
crew._cores = lambda: 1
folder = Path(sys.argv[1])
found = runs.resume_run(folder)
with runs.Recording(crew.train(found.experiment, "cpu", folder), folder, resume=True) as recording:
    for event in recording:
        print(type(event).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def reference() -> dict[tuple, Event]:
    """What is measured without an interruption, in this process's children."""
    found = measured(crew.train(TINY, "cpu"))
    assert len(found) > 40
    return found


def measured(events) -> dict[tuple, Event]:
    """The measurements, each of which must be there once."""
    found: dict[tuple, Event] = {}
    for event in events:
        name = type(event).__name__
        if isinstance(event, Probe):
            key = (name, event.variant, event.seed, event.step)
        elif isinstance(event, NetworkFinished):
            key = (name, event.variant, event.seed)
        else:
            continue
        assert key not in found, f"{key} is there twice"
        found[key] = event
    return found


def begin(folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "GEOCONT_CHECKPOINT_SECONDS": "0"} | environment,
    )


def read_some(process: subprocess.Popen[bytes], lines: int) -> bool:
    """Read so many lines of what it says; whether it says more."""
    assert process.stdout is not None
    return all(process.stdout.readline() for _ in range(lines))


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """The workers have process groups of their own: a reboot or the kernel's killer takes them all the same."""
    for child in [*children(process.pid), process.pid]:
        os.kill(child, signal.SIGKILL)


def kill_the_parent(process: subprocess.Popen[bytes]) -> None:
    process.kill()


def kill_a_worker(process: subprocess.Popen[bytes]) -> None:
    workers = children(process.pid)
    os.kill(workers[0] if workers else process.pid, signal.SIGKILL)


def kill_and_go_on(parent: Path, seed: int) -> list[Path]:
    """Kill a run, go on with it and kill it again, and the same with another one when it is done; those that are."""
    chance = random.Random(seed)
    kills, done = 0, []
    folder = runs.create_run_folder(TINY, parent)
    while kills < ROUNDS // 2 or not done:
        with begin(folder) as process:
            # Most of the lines are measurements; some kills come before the first of them, some after the last.
            if read_some(process, chance.randint(1, 30)):
                chance.choice([kill_all, kill_all, kill_the_parent, kill_a_worker])(process)
                kills += 1
            assert process.stdout is not None
            process.stdout.read()
        finished = [event for event in runs.read_events(folder) if isinstance(event, RunFinished)]
        if finished and finished[-1].status == "done":
            done.append(folder)
            folder = runs.create_run_folder(TINY, parent)
    return done


def test_killed_at_random_points_a_run_has_the_numbers_of_one_that_was_not(tmp_path, reference):
    with ThreadPoolExecutor() as pool:
        done = [folder for found in pool.map(kill_and_go_on, [tmp_path] * 2, (1, 2)) for folder in found]
    continued = 0
    for folder in done:
        events = list(runs.read_events(folder))
        assert measured(events) == reference
        assert events[-1].network_steps == 600
        assert not (folder / "checkpoint").exists()
        continued += sum(isinstance(event, RunContinued) for event in events)
    assert continued > len(done)


def trained(events, steps: int) -> None:
    """Pull until each of the networks has been measured after so many steps."""
    waiting = {variant.name for variant in TINY.variants}
    for event in events:
        if isinstance(event, Probe) and event.step >= steps:
            waiting.discard(event.variant)
            if not waiting:
                return


def test_a_stop_keeps_what_was_trained_and_time_goes_on(tmp_path, reference):
    folder = runs.create_run_folder(TINY, tmp_path)
    with runs.Recording(crew.train(TINY, "cpu", folder), folder) as recording:
        trained(recording, 30)
    files = sorted(path.name for path in (folder / "checkpoint").iterdir())
    assert len(files) == 3
    assert holder(folder) is None
    stopped = list(runs.read_events(folder))[-1]
    assert stopped.status == "stopped"
    before = [event.step for event in runs.read_events(folder) if isinstance(event, Probe)]

    events = list(runs.Recording(crew.train(TINY, "cpu", folder), folder, resume=True))
    assert isinstance(events[0], RunContinued)
    assert events[0].device
    assert not any(isinstance(event, RunStarted) for event in events)
    assert min(event.step for event in events if isinstance(event, Probe)) > 25, f"begun anew after {before}"
    whole = list(runs.read_events(folder))
    assert measured(whole) == reference
    elapsed = [event.elapsed for event in whole if isinstance(event, Progress | RunFinished) and event.elapsed]
    assert elapsed == sorted(elapsed)
    spent = [event.training_seconds for event in whole if isinstance(event, Progress)]
    assert spent == sorted(spent)
    assert whole[-1].network_steps == 600


def stopped_run(parent: Path) -> Path:
    folder = runs.create_run_folder(TINY, parent)
    with runs.Recording(crew.train(TINY, "cpu", folder), folder) as recording:
        trained(recording, 30)
    return folder


def test_what_does_not_fit_is_said_and_trained_anew(tmp_path, reference):
    folder = stopped_run(tmp_path)
    older, torn, alien = sorted((folder / "checkpoint").iterdir())
    older.write_bytes(older.read_bytes().replace(b'\\"format\\":1,', b'\\"format\\":9,'))
    torn.write_bytes(torn.read_bytes()[:-10])
    alien.write_bytes(b"<html>")
    leftover = folder / "checkpoint" / ".0123456789abcdef.tmp"
    leftover.write_bytes(b"half")
    events = list(runs.Recording(crew.train(TINY, "cpu", folder), folder, resume=True))
    said = [event.text for event in events if isinstance(event, Message) and event.level == "warning"]
    assert any(f"{older.name} is not used (it is of format 9" in text for text in said)
    assert any(f"{torn.name} is not used ({torn.name}: truncated" in text for text in said)
    assert any(alien.name in text and "a web page" in text for text in said)
    assert measured(runs.read_events(folder)) == reference


def test_a_checkpoint_beyond_the_journal_is_not_used(tmp_path, reference):
    """A journal that was cut (a full disk, a power cut) has lost measurements: they are made again."""
    folder = stopped_run(tmp_path)
    journal = folder / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8]) + lines[8][:20])
    events = list(runs.Recording(crew.train(TINY, "cpu", folder), folder, resume=True))
    assert min(event.step for event in events if isinstance(event, Probe)) <= 3
    assert measured(runs.read_events(folder)) == reference


def test_a_disk_that_takes_no_checkpoints_is_said_once_and_the_training_goes_on(tmp_path, monkeypatch):
    folder = runs.create_run_folder(TINY, tmp_path)
    (folder / "checkpoint").write_text("in the way")
    monkeypatch.setenv("GEOCONT_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(crew, "_cores", lambda: 2)
    events = list(crew.train(TINY, "cpu", folder))
    said = [event.text for event in events if isinstance(event, Message) and event.level == "warning"]
    assert len(said) == 1
    assert said[0].startswith("checkpoints cannot be written (")
    assert said[0].endswith("): the training goes on without")
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"


def test_of_each_stack_the_last_two_are_kept_until_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("GEOCONT_CHECKPOINT_SECONDS", "0")
    folder = runs.create_run_folder(TINY, tmp_path)
    most: dict[str, int] = {}
    with closing(crew.train(TINY, "cpu", folder)) as events:
        for _ in events:
            counts: dict[str, int] = {}
            if (folder / "checkpoint").exists():
                for path in (folder / "checkpoint").glob("*.safetensors"):
                    stack = path.name.split("-")[0]
                    counts[stack] = counts.get(stack, 0) + 1
            most = {stack: max(count, most.get(stack, 0)) for stack, count in (most | counts).items()}
    assert set(most) == {"0", "1", "2"}
    # One more between writing and removing.
    assert set(most.values()) <= {2, 3}
    assert 2 in most.values()
    assert not (folder / "checkpoint").exists()


def test_any_reader_of_the_format_reads_a_checkpoint(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    folder = stopped_run(tmp_path)
    path = folder / "checkpoint" / sorted(path.name for path in (folder / "checkpoint").iterdir())[0]
    with safetensors.safe_open(path, "pt") as file:
        assert file.get_tensor("parameter.hidden_weight").shape == (1, 3, 16, 16)
        assert file.get_tensor("cumulative").shape == (3, 1, 16, 16)
        assert msgspec.json.decode(file.metadata()["geocont"])["networks"] == [["adam", 0]]


# What is refused


def test_a_run_that_is_written_is_refused_by_name(tmp_path):
    folder = runs.create_run_folder(TINY, tmp_path)
    with begin(folder) as process:
        read_some(process, 1)
        with pytest.raises(InputError, match=f"is being written by process {process.pid} on ") as caught:
            runs.resume_run(folder)
        assert caught.value.remedy == f"watch it with `geocont-tui watch {folder.name}`"
        kill_all(process)
    assert runs.resume_run(folder).experiment == TINY


def test_a_run_that_is_done_and_a_folder_that_is_none_are_refused(tmp_path):
    short = msgspec.structs.replace(TINY, variants=(variant("a", steps=1),))
    folder = runs.create_run_folder(short, tmp_path)
    list(runs.Recording(crew.train(short, "cpu", folder), folder))
    with pytest.raises(InputError, match="is done"):
        runs.resume_run(folder)
    job = crew.train(short, "cpu", folder)
    with pytest.raises(InputError, match="is done"):
        runs.Recording(job, folder, resume=True)
    assert next(job, None) is None, "the job is not released"
    assert holder(folder) is None
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        runs.resume_run(tmp_path / "other")


def test_a_failed_run_can_be_gone_on_with(tmp_path, reference):
    folder = runs.create_run_folder(TINY, tmp_path)

    def failing():
        with closing(crew.train(TINY, "cpu", folder)) as events:
            for count, event in enumerate(events):
                if count == 25:
                    raise JobError("the disk is full", "free some space")
                yield event

    with pytest.raises(JobError, match="the disk is full"):
        list(runs.Recording(failing(), folder))
    assert runs.summarize(folder).state == "failed"
    found = runs.resume_run(folder)
    assert found.experiment is not None
    list(runs.Recording(crew.train(found.experiment, "cpu", folder), folder, resume=True))
    assert measured(runs.read_events(folder)) == reference
    assert runs.summarize(folder).state == "done"


def test_another_experiment_is_refused(tmp_path):
    folder = stopped_run(tmp_path)
    other = msgspec.structs.replace(TINY, variants=(variant("b"),))
    with pytest.raises(InputError, match="has changed since the run began"):
        next(runs.Recording(crew.train(other, "cpu", folder), folder, resume=True))
