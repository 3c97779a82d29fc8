"""A run that is killed at any moment and gone on with has the numbers of one that was not."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec
import pytest
import torch
from geocont import journal, runs
from geocont.ablations import crew, probes, training
from geocont.ablations.checkpoints import Checkpoints
from geocont.ablations.experiment import SGD, Adam, Data, Experiment, Normal, Probes, Variant
from geocont.ablations.slices import report
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
from geocont.run_lock import RunLock, holder

ROUNDS = 20


def variant(name: str, **changes) -> Variant:
    small = {"depth": 3, "width": 16, "batch_size": 32, "initialization": Normal(std=0.1), "steps": 120}
    return Variant(name=name, **small | changes)


def write_images(folder: Path) -> str:
    """A data set of a few small random images: what is read must not take longer than what is trained."""
    numbers = random.Random(0)
    for name, count in (("train", 300), ("t10k", 50)):
        images = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (count, 6, 6))
        labels = bytes([0, 0, 8, 1]) + count.to_bytes(4, "big")
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images + numbers.randbytes(count * 36))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels + bytes(place % 3 for place in range(count)))
    return str(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Experiment:
    return Experiment(
        name="tiny",
        seeds=1,
        data=Data(path=write_images(tmp_path_factory.mktemp("images"))),
        probes=Probes(leading=4, interval=15, exact=3),
        variants=(
            variant("adam", activation="radial", optimizer=Adam(gradient_clip=0.5)),
            variant("momentum", bias=True, optimizer=SGD(learning_rate=0.01, momentum=0.9)),
            variant("plain", activation="tanh", residual=False, optimizer=SGD(momentum=0.0), steps=60),
        ),
    )


@pytest.fixture(autouse=True)
def one_worker(monkeypatch) -> None:
    """What takes the time is its start."""
    monkeypatch.setattr(crew, "_cores", lambda: 1)


# What the program does with a run: begin it, or go on with it.
PROGRAM = """
import os, sys
# One core, so one worker: what takes the time is its start.
os.sched_setaffinity(0, {int(sys.argv[2])})
from pathlib import Path
from geocont import runs
from geocont.ablations import crew
folder = Path(sys.argv[1])
found = runs.resume_run(folder)
with runs.Recording(crew.train(found.experiment, "cpu", folder), folder, resume=True) as recording:
    for event in recording:
        print(type(event).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def reference(tiny) -> dict[tuple, Event]:
    """What is measured without an interruption, in this process's children."""
    found = measured(crew.train(tiny, "cpu"))
    assert len(found) > 25
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


def begin(folder: Path, core: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(core)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "GEOCONT_CHECKPOINT_SECONDS": "0"},
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


def kill_and_go_on(parent: Path, tiny: Experiment, seed: int) -> list[Path]:
    """Kill a run, go on with it and kill it again, and the same with another one when it is done; those that are."""
    chance = random.Random(seed)
    cores = sorted(os.sched_getaffinity(0))
    kills, done = 0, []
    folder = runs.create_run_folder(tiny, parent)
    while kills < ROUNDS // 2 or not done:
        with begin(folder, cores[seed % len(cores)]) as process:
            # Most of the lines are measurements; some kills come before the first of them, some after the last.
            if read_some(process, chance.randint(1, 14)):
                chance.choice([kill_all, kill_all, kill_the_parent, kill_a_worker])(process)
                kills += 1
            assert process.stdout is not None
            process.stdout.read()
        finished = [event for event in runs.read_events(folder) if isinstance(event, RunFinished)]
        if finished and finished[-1].status == "done":
            done.append(folder)
            folder = runs.create_run_folder(tiny, parent)
    return done


def test_killed_at_random_points_a_run_has_the_numbers_of_one_that_was_not(tiny, tmp_path, reference):
    with ThreadPoolExecutor() as pool:
        done = [folder for found in pool.map(kill_and_go_on, [tmp_path] * 2, [tiny] * 2, (1, 2)) for folder in found]
    continued = 0
    for folder in done:
        events = list(runs.read_events(folder))
        assert measured(events) == reference
        assert events[-1].network_steps == 300
        assert not (folder / "checkpoint").exists()
        continued += sum(isinstance(event, RunContinued) for event in events)
    assert continued > len(done)


def trained(events, steps: int, tiny: Experiment) -> None:
    """Pull until each of the networks has been measured after so many steps."""
    waiting = {variant.name for variant in tiny.variants}
    for event in events:
        if isinstance(event, Probe) and event.step >= steps:
            waiting.discard(event.variant)
            if not waiting:
                return


def train_here(tiny: Experiment, folder: Path, device: str = "cpu") -> Iterator[Event]:
    """What `crew.train` yields, from this process, with a checkpoint after each slice of work."""
    workshop = training.ImageWorkshop(tiny, device)
    yield from workshop.introduction()
    held = journal.journaled(folder)
    (share,) = crew._deal(tiny, held, 1, folder / "checkpoint")
    kept = Checkpoints(folder / "checkpoint", tiny, 0.0)
    networks = [tiny.networks[place] for place in share.networks]
    probed = {(variant.name, seed): set(steps) for (variant, seed), steps in zip(networks, share.probed, strict=True)}
    stacks, known = workshop.continued(networks, probed, kept)
    yield from report(
        chain(known, workshop.slices(stacks, threading.Event(), kept)), earlier_steps=sum(held.over.values())
    )


def test_a_stop_keeps_every_network_that_is_not_done(tiny, tmp_path):
    endless = tuple(msgspec.structs.replace(member, steps=10**6) for member in tiny.variants)
    experiment = msgspec.structs.replace(tiny, variants=endless, probes=Probes(leading=4))
    folder = runs.create_run_folder(experiment, tmp_path)
    with runs.Recording(crew.train(experiment, "cpu", folder), folder) as recording:
        trained(recording, 4, experiment)
    assert sorted(kept_steps(folder)) == [0, 1, 2]
    assert min(kept_steps(folder).values()) >= 4
    assert holder(folder) is None
    assert list(runs.read_events(folder))[-1].status == "stopped"


def kept_steps(folder: Path) -> dict[int, int]:
    """The step of the newest checkpoint of each stack."""
    names = [path.stem.split("-") for path in (folder / "checkpoint").glob("*.safetensors")]
    return {int(stack): max(int(step) for other, step in names if other == stack) for stack, _ in names}


def test_a_stopped_run_goes_on_where_it_was_and_so_does_its_time(tiny, tmp_path, reference):
    folder = runs.create_run_folder(tiny, tmp_path)
    with runs.Recording(crew.train(tiny, "cpu", folder), folder) as recording:
        trained(recording, 25, tiny)
    kept = {tiny.variants[stack].name: step for stack, step in kept_steps(folder).items()}

    events = list(runs.Recording(crew.train(tiny, "cpu", folder), folder, resume=True))
    assert isinstance(events[0], RunContinued)
    assert events[0].device
    assert not any(isinstance(event, RunStarted) for event in events)
    for event in events:
        if isinstance(event, Progress):
            assert all(network.step >= kept.get(network.variant, 0) for network in event.networks), "begun anew"
    whole = list(runs.read_events(folder))
    assert measured(whole) == reference
    elapsed = [event.elapsed for event in whole if isinstance(event, Progress | RunFinished) and event.elapsed]
    assert elapsed == sorted(elapsed)
    spent = [event.training_seconds for event in whole if isinstance(event, Progress)]
    assert spent == sorted(spent)
    assert whole[-1].network_steps == 300


def stopped_run(parent: Path, tiny: Experiment, device: str = "cpu") -> Path:
    folder = runs.create_run_folder(tiny, parent)
    with runs.Recording(train_here(tiny, folder, device), folder) as recording:
        trained(recording, 25, tiny)
    return folder


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_run_that_was_stopped_has_the_numbers_of_one_that_was_not(tiny, tmp_path):
    is_gone_on_with_on("cuda", tiny, tmp_path)


def is_gone_on_with_on(device: str, tiny: Experiment, folder: Path) -> None:
    """A run on a device, stopped and gone on with, has the same numbers to the tolerance of float32."""
    whole = list(train_here(tiny, runs.create_run_folder(tiny, folder), device))
    stopped = stopped_run(folder, tiny, device)
    events = list(runs.Recording(train_here(tiny, stopped, device), stopped, resume=True))
    assert isinstance(events[0], RunContinued)
    again = [event for event in runs.read_events(stopped) if isinstance(event, Probe)]
    wanted = {(event.variant, event.seed, event.step): event for event in whole if isinstance(event, Probe)}
    assert {(event.variant, event.seed, event.step) for event in again} == wanted.keys()
    for event in again:
        known = wanted[event.variant, event.seed, event.step]
        assert event.loss == pytest.approx(known.loss, rel=1e-3)
        assert event.sigma_ratio == pytest.approx(known.sigma_ratio, rel=1e-3)


def test_what_does_not_fit_is_said_and_trained_anew(tiny, tmp_path, reference):
    folder = stopped_run(tmp_path, tiny)
    older, torn, alien, *others = sorted((folder / "checkpoint").iterdir())
    for path in others:
        path.unlink()
    older.write_bytes(older.read_bytes().replace(b'\\"format\\":1,', b'\\"format\\":9,'))
    torn.write_bytes(torn.read_bytes()[:-10])
    alien.write_bytes(b"<html>")
    leftover = folder / "checkpoint" / ".0123456789abcdef.tmp"
    leftover.write_bytes(b"half")
    events = list(runs.Recording(train_here(tiny, folder), folder, resume=True))
    said = [event.text for event in events if isinstance(event, Message) and event.level == "warning"]
    assert any(f"{older.name} is not used (it is of format 9" in text for text in said)
    assert any(f"{torn.name} is not used ({torn.name}: truncated" in text for text in said)
    assert any(alien.name in text and "a web page" in text for text in said)
    assert measured(runs.read_events(folder)) == reference


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_a_checkpoint_for_which_there_is_no_memory_is_not_given_up(tiny, tmp_path, monkeypatch, error):
    folder = stopped_run(tmp_path, tiny)
    before = sorted((folder / "checkpoint").iterdir())

    def exhausted(*_):
        raise error

    monkeypatch.setattr(probes.Follower, "restore", exhausted)
    with pytest.raises(JobError, match=r"out of memory while training \w+ at step [1-9]"):
        list(train_here(tiny, folder))
    assert sorted((folder / "checkpoint").iterdir()) == before


def test_a_checkpoint_beyond_the_journal_is_not_used(tiny, tmp_path, reference):
    """A journal that was cut (a full disk, a power cut) has lost measurements: they are made again."""
    folder = stopped_run(tmp_path, tiny)
    journal = folder / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8]) + lines[8][:20])
    events = list(runs.Recording(train_here(tiny, folder), folder, resume=True))
    assert min(event.step for event in events if isinstance(event, Probe)) <= 3
    assert measured(runs.read_events(folder)) == reference


def test_a_disk_that_takes_no_checkpoints_is_said_once_and_the_training_goes_on(tiny, tmp_path, monkeypatch):
    folder = runs.create_run_folder(tiny, tmp_path)
    (folder / "checkpoint").write_text("in the way")
    monkeypatch.setenv("GEOCONT_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(crew, "_cores", lambda: 3)
    events = list(crew.train(tiny, "cpu", folder))
    said = [event.text for event in events if isinstance(event, Message) and event.level == "warning"]
    assert len(said) == 1
    assert said[0].startswith("checkpoints cannot be written (")
    assert said[0].endswith("): the training goes on without")
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"


def test_of_each_stack_the_last_two_are_kept_until_it_is_over(tiny, tmp_path):
    two_seeds = msgspec.structs.replace(tiny, seeds=2)
    folder = runs.create_run_folder(two_seeds, tmp_path)
    most: Counter[str] = Counter()
    for _ in train_here(two_seeds, folder):
        most |= Counter(path.name.split("-")[0] for path in (folder / "checkpoint").glob("*.safetensors"))
    assert most == {str(stack): 2 for stack in range(6)}
    # What the last slices said may not be journaled yet; the stacks that ended before them are forgotten.
    assert 0 < len(kept_steps(folder)) <= crew.AHEAD + 2


def test_any_reader_of_the_format_reads_a_checkpoint(tiny, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    folder = stopped_run(tmp_path, tiny)
    path = folder / "checkpoint" / sorted(path.name for path in (folder / "checkpoint").iterdir())[0]
    with safetensors.safe_open(path, "pt") as file:
        assert file.get_tensor("parameter.hidden_weight").shape == (1, 3, 16, 16)
        assert file.get_tensor("cumulative").shape == (3, 1, 16, 16)
        assert msgspec.json.decode(file.metadata()["geocont"])["networks"] == [["adam", 0]]


# What is refused


def test_a_run_that_is_written_is_refused_by_name(tiny, tmp_path):
    folder = runs.create_run_folder(tiny, tmp_path)
    with RunLock(folder), pytest.raises(InputError, match=f"is being written by process {os.getpid()} on ") as caught:
        runs.resume_run(folder)
    assert caught.value.remedy == f"watch it with `geocont-tui watch {folder.name}`"
    assert runs.resume_run(folder).experiment == tiny


def test_a_run_that_is_done_and_a_folder_that_is_none_are_refused(tiny, tmp_path):
    folder = runs.create_run_folder(tiny, tmp_path)
    list(runs.Recording(iter([RunFinished(status="done", time=0.0)]), folder))
    start = msgspec.json.encode(next(train_here(tiny, folder))) + b"\n"
    (folder / "events.jsonl").write_bytes(start + (folder / "events.jsonl").read_bytes())
    with pytest.raises(InputError, match="is done"):
        runs.resume_run(folder)
    job = train_here(tiny, folder)
    with pytest.raises(InputError, match="is done"):
        runs.Recording(job, folder, resume=True)
    assert next(job, None) is None, "the job is not released"
    assert holder(folder) is None
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="is not a run"):
        runs.resume_run(tmp_path / "other")


def test_a_failed_run_can_be_gone_on_with(tiny, tmp_path, reference):
    folder = runs.create_run_folder(tiny, tmp_path)

    def failing():
        with closing(train_here(tiny, folder)) as events:
            for count, event in enumerate(events):
                if count == 12:
                    raise JobError("the disk is full", "free some space")
                yield event

    with pytest.raises(JobError, match="the disk is full"):
        list(runs.Recording(failing(), folder))
    assert runs.summarize(folder).state == "failed"
    found = runs.resume_run(folder)
    assert found.experiment is not None
    list(runs.Recording(train_here(found.experiment, folder), folder, resume=True))
    assert measured(runs.read_events(folder)) == reference
    assert runs.summarize(folder).state == "done"


def test_another_experiment_is_refused(tiny, tmp_path):
    folder = stopped_run(tmp_path, tiny)
    other = msgspec.structs.replace(tiny, variants=(variant("b"),))
    with pytest.raises(InputError, match="has changed since the run began"):
        next(runs.Recording(train_here(other, folder), folder, resume=True))


def test_an_experiment_file_that_was_edited_since_is_not_passed_over(tiny, tmp_path):
    folder = stopped_run(tmp_path, tiny)
    file = folder / "experiment.toml"
    before = file.read_text()
    file.write_text(before.replace("steps = 120", "steps = 240"))
    with pytest.raises(InputError, match="not any more what the run began with") as refused:
        runs.resume_run(folder)
    assert f"geocont-tui ablate {file}" in refused.value.remedy
    file.write_text("# what only I know\n" + before)
    assert runs.resume_run(folder).experiment == tiny
    file.unlink()
    assert runs.resume_run(folder).experiment == tiny
