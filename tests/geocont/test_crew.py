"""Training in processes of their own: the same numbers, and nobody left behind."""

import os
import queue
import select
import signal
import subprocess
import sys

import msgspec
import pytest
from geocont.ablations import crew, training
from geocont.ablations.experiment import (
    Data,
    Experiment,
    LanguageExperiment,
    LanguageVariant,
    Normal,
    Probes,
    Variant,
)
from geocont.errors import InputError, JobError
from geocont.events import Event, NetworkFinished, Probe, RunFinished, RunStarted
from hypothesis import given
from hypothesis import strategies as st


def variant(name: str, **changes) -> Variant:
    small = {"depth": 3, "width": 16, "batch_size": 32, "initialization": Normal(std=0.1), "steps": 20}
    return Variant(name=name, **small | changes)


def experiment(*variants: Variant, seeds: int = 1, images: int = 500) -> Experiment:
    return Experiment(
        name="test", seeds=seeds, data=Data(images=images), probes=Probes(leading=4, interval=10), variants=variants
    )


LONG = experiment(variant("long", steps=10**6), variant("longer", steps=10**6))


def probes_of(events: list[Event], name: str, seed: int) -> list[Probe]:
    return [event for event in events if isinstance(event, Probe) and (event.variant, event.seed) == (name, seed)]


def test_processes_give_bitwise_the_numbers_of_this_process(monkeypatch):
    wanted = experiment(variant("a"), variant("b", activation="tanh", steps=7), seeds=2)
    here = list(training.train(wanted, "cpu"))
    monkeypatch.setattr(crew, "_cores", lambda: 3)
    spread = list(crew.train(wanted, "cpu"))
    assert isinstance(spread[0], RunStarted)
    assert msgspec.structs.replace(spread[0], time=0.0) == msgspec.structs.replace(here[0], time=0.0)
    for name, seed in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        assert probes_of(spread, name, seed) == probes_of(here, name, seed)
    assert sum(isinstance(event, NetworkFinished) for event in spread) == 4
    assert isinstance(spread[-1], RunFinished)
    assert spread[-1].network_steps == 54


def test_where_a_gpu_could_be_one_process_begins_and_says_how_many_there_should_be(monkeypatch):
    monkeypatch.setattr(crew, "_may_have_gpu", lambda: True)
    events = list(crew.train(experiment(variant("a", steps=1), variant("b", steps=1)), "auto"))
    assert sum(isinstance(event, NetworkFinished) for event in events) == 2


def test_what_the_user_can_mend_is_said_as_it_is_here():
    with pytest.raises(InputError, match="batch_size 32 is more than the 20 training images") as caught:
        next(crew.train(experiment(variant("a"), images=20), "cpu"))
    assert caught.value.remedy


def failing_with(error: str) -> list[str]:
    program = f"""
from geocont.ablations import residual_mlp, worker
import torch
def losses(logits, labels):
    raise {error}
residual_mlp.losses = losses
worker.main()
"""
    return [sys.executable, "-c", program]


def test_an_error_nobody_expected_brings_its_traceback(monkeypatch):
    monkeypatch.setattr(crew, "_COMMAND", failing_with("RuntimeError('no such kernel')"))
    with pytest.raises(crew.WorkerError, match="RuntimeError: no such kernel") as caught:
        list(crew.train(experiment(variant("a")), "cpu"))
    assert "in losses" in str(caught.value.__cause__)


def test_running_out_of_memory_is_explained(monkeypatch):
    monkeypatch.setattr(crew, "_COMMAND", failing_with("torch.OutOfMemoryError('tried to allocate')"))
    with pytest.raises(JobError, match="out of memory while training a at step 0"):
        list(crew.train(experiment(variant("a")), "cpu"))


def test_running_out_of_memory_before_any_step_is_explained(monkeypatch):
    program = """
from geocont.ablations import training, worker
def load(experiment, device):
    raise RuntimeError("CUDA error: out of memory\\nCompile with TORCH_USE_CUDA_DSA")
training._load = load
worker.main()
"""
    monkeypatch.setattr(crew, "_COMMAND", [sys.executable, "-c", program])
    with pytest.raises(
        JobError, match=r"out of memory beside .*\(RuntimeError: CUDA error: out of memory\)$"
    ) as caught:
        list(crew.train(experiment(variant("a")), "cpu"))
    assert "--device" in caught.value.remedy


def begun(events) -> None:
    for event in events:
        if isinstance(event, Probe):
            return


def processes(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The workers that are begun from now on."""
    found: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*arguments, **options):
        found.append(real(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(crew.subprocess, "Popen", popen)
    return found


def test_closing_ends_the_processes_even_before_they_have_begun(monkeypatch):
    found = processes(monkeypatch)
    events = crew.train(LONG, "cpu")
    begun(events)
    events.close()
    early = crew.train(LONG, "cpu")
    next(early)
    early.close()
    assert len(found) >= 2
    assert all(process.poll() == 0 for process in found)


def test_a_worker_that_is_killed_ends_the_job_and_the_others(monkeypatch):
    found = processes(monkeypatch)
    events = crew.train(LONG, "cpu")
    begun(events)
    found[0].kill()
    with pytest.raises(JobError, match="a training process was killed by signal 9") as caught:
        list(events)
    assert "memory" in caught.value.remedy
    assert all(process.poll() is not None for process in found)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (LONG, ("width", "depth", "batch_size")),
        (
            LanguageExperiment(name="text", variants=(LanguageVariant(name="silu", steps=1),)),
            ("accumulation", "sequence_length", "width", "depth"),
        ),
    ],
)
def test_what_to_lower_where_the_system_ends_a_process_for_its_memory(task, settings):
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    worker = crew._Worker(crew.Task(task, "cpu"), inbox)
    worker.process.kill()
    assert inbox.get() == (worker, b"")
    remedy = worker.death().remedy
    worker.leave()
    worker.wait(0.0)
    assert all(setting in remedy for setting in settings)
    assert ("batch_size" in remedy) == (task is LONG)


def test_a_worker_does_not_outlive_who_began_it():
    program = """
import sys
from geocont.ablations import crew
import test_crew
workers = []
real = crew.subprocess.Popen
def popen(*arguments, **options):
    workers.append(real(*arguments, **options))
    return workers[-1]
crew.subprocess.Popen = popen
events = crew.train(test_crew.LONG, "cpu")
test_crew.begun(events)
print(*[worker.pid for worker in workers], flush=True)
for event in events: pass
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        cwd=os.path.dirname(__file__),  # noqa: PTH120
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert workers
    process.send_signal(signal.SIGKILL)
    # The pipe is closed when the last process that holds it has gone; workers have inherited nothing of it.
    process.wait()
    for worker in workers:
        handle = os.pidfd_open(worker) if alive(worker) else None
        if handle is not None:
            ready, _, _ = select.select([handle], [], [], 20.0)
            os.close(handle)
            assert ready, "a worker is left behind"
    process.stdout.close()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_is_ahead_by_so_many_slices_and_no_more():
    with subprocess.Popen(crew._COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (crew.Task(LONG, "cpu"), crew.Share((0,))):
            process.stdin.write(msgspec.json.encode(message) + b"\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for _ in range(1 + crew.AHEAD)]
        assert [msgspec.json.decode(line)["type"] for line in answers] == ["Ready"] + ["Done"] * crew.AHEAD
        ready, _, _ = select.select([process.stdout], [], [], 1.0)
        assert not ready
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert b"Done" in process.stdout.readline()
        process.stdin.close()
        # What it still says is not of interest.
        process.stdout.read()
        assert process.wait() == 0


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_hold_every_network_once_and_are_of_a_size(steps, count):
    count = min(count, len(steps))
    networks = [(variant(f"v{place}", steps=each), 0) for place, each in enumerate(steps)]
    dealt = crew.shares(networks, count)
    assert sorted(place for share in dealt for place in share) == list(range(len(steps)))
    loads = [sum(steps[place] for place in share) for share in dealt]
    assert max(loads) - min(loads) <= max(steps)


def test_the_seeds_of_a_variant_do_not_all_come_to_the_same_share():
    networks = [(variant(name), seed) for seed in range(3) for name in ("slow", "fast", "slow too", "fast too")]
    for share in crew.shares(networks, 2):
        assert {networks[place][0].name for place in share} == {"slow", "fast", "slow too", "fast too"}
