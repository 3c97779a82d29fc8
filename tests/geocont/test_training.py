import math
import struct
import threading

import msgspec
import numpy as np
import pytest
import torch
from geocont import devices
from geocont.ablations import datasets, residual_mlp, training
from geocont.ablations.experiment import SGD, Adam, Data, Experiment, Normal, Probes, Variant
from geocont.errors import InputError, JobError
from geocont.events import (
    Event,
    NetworkDiverged,
    NetworkFinished,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)

SMALL = {"depth": 3, "width": 16, "batch_size": 32, "initialization": Normal(std=0.1)}
SETTINGS = Probes(leading=4, interval=10)


def variant(name: str, **changes) -> Variant:
    return Variant(name=name, **SMALL | {"steps": 20} | changes)


def experiment(*variants: Variant, seeds: int = 1, images: int = 500) -> Experiment:
    return Experiment(name="test", seeds=seeds, data=Data(images=images), probes=SETTINGS, variants=variants)


def run(wanted: Experiment) -> list[Event]:
    return list(training.train(wanted, "cpu"))


def probes_of(events: list[Event], name: str, seed: int = 0) -> list[Probe]:
    return [e for e in events if isinstance(e, Probe) and (e.variant, e.seed) == (name, seed)]


MIXED = (
    variant("gelu"),
    variant("linear", activation="none"),
    variant("short", steps=7, activation="tanh"),
    variant("norm", normalization="layernorm"),
    variant("plain", residual=False, activation="relu"),
    variant("radial", activation="radial_scaled"),
    variant("sgd", optimizer=SGD(learning_rate=0.05, momentum=0.9, gradient_clip=0.5)),
    variant("decay", optimizer=Adam(weight_decay=0.1, betas=(0.5, 0.9), gradient_clip=0.1)),
)


def test_a_run_begins_and_ends_as_promised_and_measures_step_zero_and_the_last():
    events = run(experiment(*MIXED, seeds=2))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"
    assert sum(isinstance(event, Progress) for event in events) >= 1
    finished = {(e.variant, e.seed): e.step for e in events if isinstance(e, NetworkFinished)}
    assert finished == {(v.name, seed): v.steps for v in MIXED for seed in (0, 1)}
    for member in MIXED:
        for seed in (0, 1):
            steps = [probe.step for probe in probes_of(events, member.name, seed)]
            assert steps[0] == 0
            assert steps[-1] == member.steps
            assert steps == sorted(set(steps))
    assert events[-1].network_steps == 2 * sum(member.steps for member in MIXED)
    first = probes_of(events, "gelu")[0]
    assert first.update.v1 == (None, None)
    assert first.update_ratio == 0
    assert first.exact


def test_a_run_says_what_it_was_made_with():
    wanted = msgspec.structs.replace(experiment(variant("a", steps=1), variant("b", steps=2), seeds=2), seed=7)
    started = run(wanted)[0]
    assert isinstance(started, RunStarted)
    assert {(plan.variant, plan.seed, plan.steps) for plan in started.networks} == {
        ("a", 7, 1), ("a", 8, 1), ("b", 7, 2), ("b", 8, 2),
    }  # fmt: skip
    assert started.device == devices.describe(torch.device("cpu"))
    assert started.versions["torch"] == torch.__version__
    assert {"python", "geocont-tui"} <= started.versions.keys()
    assert msgspec.convert(started.experiment, Experiment) == wanted


def test_images_of_any_size_and_number_of_classes_are_trained_on(tmp_path):
    generator = np.random.default_rng(0)
    for part, count in (("train", 96), ("t10k", 33)):
        labels = np.arange(count, dtype=np.uint8) % 3
        # Each class is bright in a column of its own.
        images = generator.integers(0, 60, (count, 5, 3), dtype=np.uint8)
        images[np.arange(count), :, labels] += 180
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    wanted = Experiment(
        name="test", seeds=1, data=Data(path=str(tmp_path)), probes=SETTINGS, variants=(variant("a", steps=150),)
    )
    events = run(wanted)
    [finished] = [event for event in events if isinstance(event, NetworkFinished)]
    assert finished.test_accuracy == 1
    assert probes_of(events, "a")[0].loss is None or probes_of(events, "a")[0].loss < 2 * math.log(3)


def test_no_network_ever_goes_backwards_in_the_stream():
    reached: dict[tuple[str, int], int] = {}
    for event in run(experiment(*MIXED, seeds=3)):
        positions = (
            event.networks
            if isinstance(event, Progress)
            else [event]
            if isinstance(event, Probe | NetworkFinished)
            else []
        )
        for position in positions:
            key = (position.variant, position.seed)
            assert position.step >= reached.get(key, 0)
            reached[key] = position.step


def test_every_event_survives_the_journal():
    for event in run(experiment(variant("a"))):
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def stack(variants: tuple[Variant, ...], seeds: tuple[int, ...] = (0,)) -> training.StackTraining:
    images = training._load(experiment(*variants), torch.device("cpu"))
    networks = [training.Network(member, seed) for member in variants for seed in seeds]
    return training.StackTraining(0, networks, images, SETTINGS, torch.device("cpu"), training._draw)


def finish(stacked: training.StackTraining) -> list[Event]:
    events: list[Event] = []
    while stacked.networks:
        events += stacked.advance(10.0, threading.Event())
    return events


def assert_same_trajectory(first: list[Probe], second: list[Probe]) -> None:
    assert [probe.step for probe in first] == [probe.step for probe in second]
    for a, b in zip(first, second, strict=True):
        for name in ("loss", "update_ratio", "sigma_ratio", "gradient_norm", "activation_factor"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            assert x is None or x == pytest.approx(y, rel=2e-3, abs=1e-6), (a.variant, a.step, name)


def test_networks_in_one_stack_give_the_trajectories_they_give_alone():
    together = finish(stack(MIXED, seeds=(0, 1)))
    for member in MIXED:
        for seed in (0, 1):
            alone = finish(stack((member,), seeds=(seed,)))
            assert_same_trajectory(probes_of(together, member.name, seed), probes_of(alone, member.name, seed))
            results = [
                event.test_accuracy
                for events in (together, alone)
                for event in events
                if isinstance(event, NetworkFinished) and (event.variant, event.seed) == (member.name, seed)
            ]
            assert results[0] == pytest.approx(results[1], abs=2e-3)


@pytest.mark.parametrize("member", [MIXED[0], MIXED[6], MIXED[7]], ids=lambda member: member.name)
def test_a_network_follows_the_path_of_a_plain_loop(member):
    stacked = stack((member,))
    data = datasets.load(Data(images=500))
    pixels = torch.from_numpy(data.train_images).flatten(1).float() / 255
    pixels = (pixels - pixels.mean()) / pixels.std(correction=0)
    labels = torch.from_numpy(data.train_labels).long()
    shape = residual_mlp.shape_of(member, 784, 10)
    flat, _ = training._draw(member.initialization, shape, 0)
    views = residual_mlp.blocks(flat[None], shape)
    weights = [views[name][0].clone().requires_grad_() for name in views]
    settings = member.optimizer
    if isinstance(settings, Adam):
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            weights, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(weights, lr=settings.learning_rate, momentum=settings.momentum)
    total = torch.zeros_like(weights[2])
    for step in range(member.steps):
        epoch, batch = divmod(step, 500 // 32)
        order = torch.randperm(500, generator=training._generator(0, training._FIRST_EPOCH_STREAM + epoch))
        rows = order[batch * 32 : (batch + 1) * 32]
        optimizer.zero_grad()
        w_in, b_in, hidden, w_out, b_out = weights
        h = pixels[rows] @ w_in.T + b_in
        for layer in hidden:
            h = h + torch.nn.functional.gelu(h @ layer.T)
        torch.nn.functional.cross_entropy(h @ w_out.T + b_out, labels[rows]).backward()
        total += hidden.grad
        if settings.gradient_clip:
            torch.nn.utils.clip_grad_norm_(weights, settings.gradient_clip)
        optimizer.step()
    while stacked.step < member.steps:
        stacked.advance(0.0, threading.Event())
        if stacked.step == member.steps:
            found = stacked._parameters()["hidden_weight"][0].clone()
            stacked._hidden_gradients.settle()
            # The sum of the gradients as they are, before any clipping.
            torch.testing.assert_close(stacked._hidden_gradients.totals[:, 0], total, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(found, weights[2].detach(), atol=2e-4, rtol=1e-2)


def test_betas_of_zero_are_sign_descent():
    member = variant("sign", optimizer=Adam(learning_rate=1e-3, betas=(0.0, 0.0), epsilon=0.0), steps=1)
    stacked = stack((member,))
    stacked.advance(0.0, threading.Event())
    start = residual_mlp.blocks(training._draw(member.initialization, stacked.shape, 0)[0][None], stacked.shape)
    moved = (stacked._parameters()["hidden_weight"] - start["hidden_weight"]).abs()
    changed = moved[moved > 0]
    assert len(changed) > 0.5 * moved.numel()
    torch.testing.assert_close(changed, torch.full_like(changed, 1e-3), rtol=1e-3, atol=0)


def test_a_network_that_diverges_is_frozen_and_the_others_go_on():
    wild = variant("wild", optimizer=SGD(learning_rate=1e9), steps=15)
    for events in (run(experiment(wild, MIXED[0])), finish(stack((wild, MIXED[0])))):
        [gone] = [event for event in events if isinstance(event, NetworkDiverged)]
        assert gone.variant == "wild"
        assert 0 < gone.step < 15
        assert all(probe.step < gone.step for probe in probes_of(events, "wild"))
        assert [event.variant for event in events if isinstance(event, NetworkFinished)] == ["gelu"]
        assert_same_trajectory(probes_of(events, "gelu"), probes_of(finish(stack((MIXED[0],))), "gelu"))


def test_the_thread_count_of_who_pulls_is_left_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    for _ in training.train(experiment(variant("a", steps=2)), "cpu"):
        assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_an_error_in_a_step_reaches_the_consumer(monkeypatch):
    real, calls = residual_mlp.losses, []

    def failing(logits, labels):
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("no such kernel")
        return real(logits, labels)

    monkeypatch.setattr(residual_mlp, "losses", failing)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(experiment(variant("a"), variant("b")))

    def exhausted(logits, labels):
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(residual_mlp, "losses", exhausted)
    with pytest.raises(JobError, match="out of memory while training a at step 0") as caught:
        run(experiment(variant("a")))
    assert "batch_size" in caught.value.remedy

    def exhausted_on_a_cpu(logits, labels):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(residual_mlp, "losses", exhausted_on_a_cpu)
    with pytest.raises(JobError, match="out of memory while training a at step 0"):
        run(experiment(variant("a")))


def test_the_largest_seed_that_is_let_through_can_be_trained_from():
    largest = msgspec.structs.replace(experiment(variant("a", steps=1)), seed=2**40)
    assert isinstance(run(largest)[-1], RunFinished)


def test_seeds_differ_and_repeat():
    events, again = run(experiment(variant("a"), seeds=2)), run(experiment(variant("a"), seeds=2))
    assert probes_of(events, "a", 0) != probes_of(events, "a", 1)
    assert probes_of(events, "a", 1) == probes_of(again, "a", 1)


def test_a_batch_larger_than_the_training_set_is_refused():
    with pytest.raises(InputError, match="batch_size 32 is more than the 20 training images"):
        run(experiment(variant("a"), images=20))


def test_devices_that_are_not_there_are_refused():
    for name, words in (("cudaa", "not a device"), ("meta", "not supported")):
        with pytest.raises(InputError, match=words):
            devices.resolve(name)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device"):
            devices.resolve("cuda")
        assert devices.resolve("auto").type in ("cpu", "mps")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_stack_follows_the_cpu():
    wanted = experiment(*MIXED, seeds=2)
    on_gpu, on_cpu = list(training.train(wanted, "cuda")), run(wanted)
    for member in MIXED:
        assert_same_trajectory(probes_of(on_gpu, member.name, 1), probes_of(on_cpu, member.name, 1))


def test_numbers_that_are_not_finite_become_none():
    assert training._number(math.inf) is None
    assert training._number(math.nan) is None
    assert training._number(0.5) == 0.5
