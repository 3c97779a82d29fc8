"""Language models in training: what is measured, and that an interruption changes no number."""

import random
import re
import threading
from itertools import chain
from pathlib import Path

import msgspec
import pytest
import torch
from geocont import events as kinds
from geocont import journal, runs
from geocont.ablations import checkpoints, crew, language_model, language_training, probes
from geocont.ablations.checkpoints import Checkpoints
from geocont.ablations.experiment import LanguageExperiment, LanguageVariant, Probes, Text
from geocont.ablations.slices import report
from geocont.errors import InputError, JobError
from geocont.events import Message, NetworkFinished, Probe, RunFinished, RunStarted, mean_of_pairs

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "two", "dogs", "ran", "round", "old", "red", "barns"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    chance = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(" ".join(chance.choices(WORDS, k=12)) + "\n" for _ in range(2500)))
    return str(path)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "texts"))


def experiment_of(text: str, *, seeds: int = 1, **changes) -> LanguageExperiment:
    small = {"depth": 3, "width": 16, "heads": 2, "key_value_heads": 1, "mlp_width": 24, "batch_size": 4}
    small |= {"sequence_length": 16, "steps": 12, "warmup": 3}
    return LanguageExperiment(
        name="tiny",
        seeds=seeds,
        data=Text(path=text, vocabulary=280),
        probes=Probes(leading=4, interval=3),
        variants=(
            LanguageVariant(name="silu", **small | changes),
            LanguageVariant(name="radial", **small | {"activation": "radial", "gate": False} | changes),
        ),
    )


def trained(experiment: LanguageExperiment, folder: Path | None = None) -> list[kinds.Event]:
    """Everything that happens, in this process; in `folder` it goes on with what is there."""
    return list(train_here(experiment, folder))


def train_here(experiment: LanguageExperiment, folder: Path | None = None):
    workshop = language_training.LanguageWorkshop(experiment, "cpu")
    workshop.folder = folder
    yield from workshop.introduction()
    if folder is None:
        yield from report(workshop.slices(workshop.stacks(experiment.networks), threading.Event()))
        return
    held = journal.journaled(folder)
    (share,) = crew._deal(experiment, held, 1, folder / "checkpoint")
    kept = Checkpoints(folder / "checkpoint", experiment, 0.0)
    networks = [experiment.networks[place] for place in share.networks]
    probed = {(variant.name, seed): set(steps) for (variant, seed), steps in zip(networks, share.probed, strict=True)}
    stacks, known = workshop.continued(networks, probed, kept)
    yield from report(
        chain(known, workshop.slices(stacks, threading.Event(), kept)), earlier_steps=sum(held.over.values())
    )


def probes_of(events) -> dict[tuple, Probe]:
    found = [event for event in events if isinstance(event, Probe)]
    keyed = {(event.variant, event.seed, event.projection, event.step): event for event in found}
    assert len(keyed) == len(found)
    return keyed


def test_every_projection_is_measured_at_every_scheduled_step(text):
    events = trained(experiment_of(text))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"
    found = probes_of(events)
    steps = {step for _, _, _, step in found}
    assert {0, 1, 12} <= steps
    silu = {"q", "k", "v", "o", "gate", "up", "down"}
    for variant, projections in (("silu", silu), ("radial", silu - {"gate"})):
        assert {key[2:] for key in found if key[0] == variant} == {
            (name, step) for name in projections for step in steps
        }
    key, down = found["silu", 0, "k", 12], found["silu", 0, "down", 12]
    assert (key.v_dim, key.u_dim) == (16, 8)
    assert (down.v_dim, down.u_dim) == (24, 16)
    assert key.identity_share is None
    assert "square" in key.missing["identity_share"]
    assert 0 < found["radial", 0, "up", 12].activation_factor < 1
    assert down.activation_factor is None
    assert found["silu", 0, "q", 0].update_ratio == 0
    # Held-out text is evaluated now and then, for all projections alike.
    assert found["silu", 0, "q", 0].held_out_loss == found["silu", 0, "up", 0].held_out_loss
    finished = {event.variant: event for event in events if isinstance(event, NetworkFinished)}
    assert finished["silu"].test_loss < found["silu", 0, "q", 0].held_out_loss - 0.05
    assert finished["silu"].test_accuracy is None


def test_speed_is_said_in_tokens_and_operations_and_as_a_part_of_what_the_device_can_do(text, monkeypatch):
    monkeypatch.setattr(language_training.LanguageWorkshop, "rate", lambda *_: 1e6)
    experiment = experiment_of(text)
    said = [event.text for event in trained(experiment) if isinstance(event, Message) and "tokens/s" in event.text]
    for words, variant in zip(said, experiment.variants, strict=True):
        number = r"([\d,.]+)"
        found = re.fullmatch(
            rf"{variant.name} seed 0: {number} tokens/s, {number} GFLOP/s, {number}% of this device's rate in "
            "plain products of these sizes",
            words,
        )
        assert found, words
        tokens, operations, share = (float(value.replace(",", "")) for value in found.groups())
        a_token = language_model.operations(variant, 280) / (variant.batch_size * variant.sequence_length)
        assert operations == pytest.approx(tokens * a_token / 1e9, abs=0.06)
        assert share == pytest.approx(tokens * a_token / 1e6 * 100, rel=1e-2)


def test_tokens_are_counted(text):
    experiment = experiment_of(text)
    workshop = language_training.LanguageWorkshop(experiment, "cpu")
    parts = list(workshop.slices(workshop.stacks(experiment.networks), threading.Event()))
    assert sum(part.tokens for part in parts) == 2 * 12 * 4 * 16
    assert sum(part.network_steps for part in parts) == 2 * 12


def test_the_gradients_of_adjacent_layers_agree_on_the_residual_side_before_any_update(text):
    found = probes_of(trained(experiment_of(text, depth=6, width=64, mlp_width=96, key_value_heads=2, steps=1)))
    for name, side in kinds.RESIDUAL_SIDES.items():
        probe = found["silu", 0, name, 0]
        values = {"v": mean_of_pairs(probe.gradient.v1), "u": mean_of_pairs(probe.gradient.u1)}
        if name not in ("q", "k"):
            assert values[side] > values["u" if side == "v" else "v"]


def test_a_network_is_the_same_alone_in_parts_and_with_others(text):
    whole = probes_of(trained(experiment_of(text, seeds=2)))
    assert whole["silu", 0, "q", 12].weight != whole["silu", 1, "q", 12].weight
    alone = probes_of(trained(experiment_of(text)))
    assert {key: probe for key, probe in whole.items() if key[1] == 0} == alone
    parts = probes_of(trained(experiment_of(text, accumulation=2)))
    for key, probe in alone.items():
        assert parts[key].loss == pytest.approx(probe.loss, rel=1e-4)


@pytest.mark.parametrize("lines", [4, 25, 60])
def test_what_was_interrupted_goes_on_with_the_same_numbers(text, tmp_path, lines):
    experiment = experiment_of(text)
    reference = probes_of(trained(experiment))
    folder = runs.create_run_folder(experiment, tmp_path)
    with runs.Recording(train_here(experiment, folder), folder) as recording:
        for count, _ in enumerate(recording):
            if count == lines:
                break
    found = runs.resume_run(folder)
    assert found.experiment == experiment
    list(runs.Recording(train_here(experiment, folder), folder, resume=True))
    assert probes_of(runs.read_events(folder)) == reference


def test_a_checkpoint_between_two_measurements_keeps_the_losses_since_the_first(text):
    experiment = experiment_of(text)
    workshop = language_training.LanguageWorkshop(experiment, "cpu")
    going = threading.Event()
    whole = workshop.stacks(experiment.networks)[0]
    reference = [event for _ in range(13) for event in whole.advance(0.0, going)]
    stack = workshop.stacks(experiment.networks)[0]
    seen = []
    for _ in range(6):
        # A step at a time.
        seen += stack.advance(0.0, going)
    assert 0 < stack._batches < stack.step == 6
    state = {name: value.clone() for name, value in stack.state().items()}
    again = workshop.stacks(experiment.networks)[0]
    again.restore(6, state)
    seen += [event for _ in range(7) for event in again.advance(0.0, going)]
    assert probes_of(seen) == probes_of(reference)


def test_running_out_of_memory_loses_no_checkpoint(text, tmp_path, monkeypatch):
    experiment = experiment_of(text)
    folder = runs.create_run_folder(experiment, tmp_path)
    with runs.Recording(train_here(experiment, folder), folder) as recording:
        for event in recording:
            if isinstance(event, Probe) and event.step > 3:
                break

    def kept() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "checkpoint").iterdir()}

    before = kept()
    assert any(name.startswith("0-") for name in before)
    errors = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ]
    # While a checkpoint is read, while it is placed, and in a step.
    for place in ((checkpoints, "read"), (probes.Follower, "restore"), (language_model.Decoder, "losses")):
        for error in errors:

            def exhausted(*_, error=error):
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(*place, exhausted)
                with pytest.raises(JobError, match=r"out of memory while training silu at step [1-9]") as caught:
                    list(train_here(experiment, folder))
            assert "accumulation" in caught.value.remedy
    assert kept() == before


def test_networks_are_kept_as_folders_that_are_read_again(text, tmp_path):
    from geocont.weights import local

    experiment = experiment_of(text, steps=2)
    folder = runs.create_run_folder(experiment, tmp_path)
    list(runs.Recording(train_here(experiment, folder), folder))
    kept = sorted(path.name for path in (folder / "models").iterdir())
    assert kept == ["radial-0", "silu-0"]
    checkpoint = local.open_checkpoint(folder / "models" / "silu-0")
    assert tuple(checkpoint.tensors["model.layers.2.self_attn.k_proj.weight"].shape) == (8, 16)
    checkpoint.close()
    assert (folder / "models" / "silu-0" / "tokenizer.json").is_file()


def test_what_does_not_fit_the_text_is_refused(text):
    with pytest.raises(InputError, match="sequence_length: 100000 tokens"):
        trained(experiment_of(text, sequence_length=100_000))
    with pytest.raises(InputError, match="a batch of 8000 sequences"):
        trained(experiment_of(text, batch_size=8000))


def test_bf16_is_refused_where_the_machine_has_no_instructions_for_it(text, monkeypatch):
    rough = msgspec.structs.replace(experiment_of(text, steps=2), precision="bf16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    with pytest.raises(InputError, match="no instructions for bf16"):
        trained(rough)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    exact, found = probes_of(trained(experiment_of(text, steps=2))), probes_of(trained(rough))
    assert found["silu", 0, "q", 2].loss == pytest.approx(exact["silu", 0, "q", 2].loss, rel=0.02)
    assert found["silu", 0, "q", 2].loss != exact["silu", 0, "q", 2].loss


def test_a_network_whose_loss_is_not_finite_is_frozen_and_the_others_go_on(text):
    experiment = experiment_of(text)
    wild = msgspec.structs.replace(
        experiment.variants[1],
        normalization="none",
        warmup=0,
        optimizer=msgspec.structs.replace(experiment.variants[1].optimizer, learning_rate=1e18, gradient_clip=0.0),
    )
    events = trained(msgspec.structs.replace(experiment, variants=(experiment.variants[0], wild)))
    gone = [event for event in events if isinstance(event, kinds.NetworkDiverged)]
    assert [event.variant for event in gone] == ["radial"]
    assert [event.variant for event in events if isinstance(event, NetworkFinished)] == ["silu"]
