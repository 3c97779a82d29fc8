"""Whole analyses of tiny checkpoints, against float64 LAPACK and against what can go wrong in a checkpoint."""

import itertools
import json
import math
import os
import threading
from pathlib import Path

import pytest
import torch
from geocont import analysis, chance, gram, measurement, results
from geocont.errors import InputError, JobError
from geocont.events import AnalysisProgress, AnalysisStarted, MatrixMeasured, Message, PairMeasured, RunFinished
from geocont.weights.checkpoint import Slice
from geocont.weights.local import LocalCheckpoint
from geocont.weights.quantization import Weights
from geocont.weights.safetensors_file import LocalFile
from safetensors.torch import save_file

HIDDEN, FF, HEADS, KEY_HEADS = 128, 192, 4, 2
STORIES = Path(__file__).parents[3] / "shared/data/stories260K"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads pay for large matrices only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise(rows: int, cols: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spiked(rows: int, cols: int, seed: int, direction: int = 0, strength: float = 3.0) -> torch.Tensor:
    """Noise with a leading triplet well above it, near the shared direction `direction` in both spaces."""
    left = noise(rows, 1, 1000 + direction)[:, 0] + 0.7 * noise(rows, 1, seed + 1)[:, 0]
    right = noise(cols, 1, 2000 + direction)[:, 0] + 0.7 * noise(cols, 1, seed + 2)[:, 0]
    spike = torch.outer(left / left.norm(), right / right.norm())
    return noise(rows, cols, seed) + strength * (math.sqrt(rows) + math.sqrt(cols)) * spike


def llama_tensors(layers: int = 3, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    keys = HIDDEN * KEY_HEADS // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FF, HIDDEN),
        "mlp.up_proj": (FF, HIDDEN),
        "mlp.down_proj": (HIDDEN, FF),
    }
    tensors = {"model.embed_tokens.weight": noise(50, HIDDEN, 9)}
    for layer in range(layers):
        for number, (name, shape) in enumerate(shapes.items()):
            tensors[f"model.layers.{layer}.{name}.weight"] = spiked(*shape, seed=100 * layer + 10 * number)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(HIDDEN)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "num_hidden_layers": 3,
    "intermediate_size": FF,
}


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict | None = LLAMA) -> str:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def run(model: str, **options):
    return list(analysis.analyze(model, device="cpu", **options))


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def matrices(events) -> dict[tuple[str, int], MatrixMeasured]:
    return {(event.projection, event.layer): event for event in of(MatrixMeasured, events)}


def pairs(events) -> dict[tuple[str, int, int], PairMeasured]:
    return {(event.projection, event.layer_a, event.layer_b): event for event in of(PairMeasured, events)}


def first_triplet(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left[:, 0], right[0]


def told(events) -> list[dict]:
    """All that is measured, without where it came from."""
    return [
        {name: getattr(event, name) for name in event.__struct_fields__ if name != "cached"}
        for event in events
        if isinstance(event, (MatrixMeasured, PairMeasured))
    ]


def is_cached(events) -> list[bool]:
    return [event.cached for event in of(MatrixMeasured, events)]


# --- what is right


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cosines_of_every_pair_of_layers_match_float64_lapack(tmp_path, dtype):
    tensors = llama_tensors(4, dtype)
    events = run(write(tmp_path / "m", tensors))
    names = {plan.projection: plan.tensors[0] for plan in events[0].matrices}
    checked = 0
    for (projection, layer), found in matrices(events).items():
        assert found.status == "ok"
        assert found.others == tuple(range(layer))
        own = tensors[names[projection].replace(".3.", f".{layer}.")]
        u, v = first_triplet(own)
        for other, v1, u1 in zip(found.others, found.v1_cosines, found.u1_cosines, strict=True):
            other_u, other_v = first_triplet(tensors[names[projection].replace(".3.", f".{other}.")])
            assert v1 == pytest.approx(abs(float(v @ other_v)), abs=1e-4)
            assert u1 == pytest.approx(abs(float(u @ other_u)), abs=1e-4)
            checked += 1
    assert checked == 7 * 6


def test_every_number_of_a_pair_matches_float64(tmp_path, monkeypatch):
    tensors = llama_tensors(2)
    monkeypatch.setattr(measurement, "_LARGEST_EXACT_GRAM", 130)
    events = run(write(tmp_path / "m", tensors))
    first, second = (tensors[f"model.layers.{layer}.mlp.down_proj.weight"].double() for layer in (0, 1))
    pair = pairs(events)["down", 0, 1]
    assert (pair.v_dim, pair.u_dim, pair.residual_side) == (FF, HIDDEN, "u")
    assert (pair.v1_chance, pair.u1_chance) == (chance.mean_cosine(FF), chance.mean_cosine(HIDDEN))
    decomposed = [torch.linalg.svd(matrix, full_matrices=False) for matrix in (first, second)]
    share = sum(float(one.S[:8].square().sum() / one.S.square().sum()) for one in decomposed) / 2
    assert pair.weighted_share == pytest.approx(share, abs=1e-4)
    v_first, v_second = (one.Vh[:8] for one in decomposed)
    overlap = (float((v_first[:1] @ v_second[:1].mT).square().sum()) - 1 / FF) / (1 - 1 / FF)
    assert pair.v_overlap[0] == pytest.approx(overlap, abs=1e-4)
    assert len(pair.v_overlap) == len(pair.u_overlap) == 8
    centred = []
    for matrix in (first, second):
        whole = matrix @ matrix.mT
        centred.append(whole - whole.trace() / HIDDEN * torch.eye(HIDDEN, dtype=torch.float64))
    exact = float((centred[0] * centred[1]).sum() / centred[0].norm() / centred[1].norm())
    assert pair.u_gram == pytest.approx(exact, abs=1e-4)
    assert pair.u_gram_error == 0
    assert 0 < pair.v_gram_error < 0.05
    assert pair.v_gram == pytest.approx(
        gram.cosine(gram.exact(first.float(), "v"), gram.exact(second.float(), "v")), abs=5 * pair.v_gram_error
    )


def test_exact_gram_cosines_are_exact(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "_LARGEST_EXACT_GRAM", 0)
    model = write(tmp_path / "m", llama_tensors(3))
    estimated, exact = pairs(run(model)), pairs(run(model, exact_gram=True))
    assert estimated.keys() == exact.keys()
    assert {pair.v_gram_error for pair in exact.values()} == {0.0}
    for name, pair in exact.items():
        assert estimated[name].v_gram == pytest.approx(pair.v_gram, abs=5 * estimated[name].v_gram_error)
        assert estimated[name].u_gram == pytest.approx(pair.u_gram, abs=5 * estimated[name].u_gram_error)


def test_independent_noise_is_at_chance(tmp_path):
    tensors = {
        name: noise(*tensor.shape, seed=number).float()
        for number, (name, tensor) in enumerate(llama_tensors(6).items())
        if tensor.ndim == 2
    }
    events = run(write(tmp_path / "m", tensors), gap_tolerance=0.0)
    cosines = [pair.v1_cosine for pair in of(PairMeasured, events) if pair.v_dim == HIDDEN]
    low, high = chance.band_of_mean(HIDDEN, len(cosines))
    assert len(cosines) == 30
    assert low * 0.8 < sum(cosines) / len(cosines) < high * 1.2


def test_every_matrix_has_a_start_of_its_own(tmp_path, monkeypatch):
    seeds, leading = [], measurement.lanczos.leading

    def noted(*arguments, seed, **options):
        seeds.append(seed)
        return leading(*arguments, seed=seed, **options)

    monkeypatch.setattr(measurement.lanczos, "leading", noted)
    run(write(tmp_path / "m", llama_tensors(3)))
    assert len(set(seeds)) == 21
    run(str(tmp_path / "m"), use_cache=False)
    assert len(set(seeds)) == 21


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_measures_what_a_cpu_does(tmp_path, dtype):
    model = write(tmp_path / "m", llama_tensors(3, dtype))
    here, there = (
        pairs(list(analysis.analyze(model, device=device, use_cache=False, gap_tolerance=0)))
        for device in ("cpu", "cuda")
    )
    assert here.keys() == there.keys()
    for name, pair in here.items():
        for field in ("v1_cosine", "u1_cosine", "v_gram", "u_gram", "v_weighted", "u_weighted"):
            assert getattr(there[name], field) == pytest.approx(getattr(pair, field), abs=1e-3), (name, field)


@pytest.mark.skipif(not STORIES.is_dir(), reason="../shared/data is not there")
def test_a_trained_model():
    events = run(str(STORIES))
    means = {}
    for pair in of(PairMeasured, events):
        means.setdefault(pair.projection, []).append((pair.v1_cosine, pair.u1_cosine))
    found = {name: tuple(sum(side) / len(side) for side in zip(*values, strict=True)) for name, values in means.items()}
    expected = {"q": 0.845, "k": 0.873, "v": 0.066, "gate": 0.106, "up": 0.168}
    assert {name: found[name][0] for name in expected} == pytest.approx(expected, abs=1e-3)
    assert (found["o"][1], found["down"][1]) == pytest.approx((0.361, 0.492), abs=1e-3)


# --- the events


def test_the_plan_comes_first_and_reads_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Weights, "read", lambda *_: pytest.fail("a weight was read"))
    events = analysis.analyze(write(tmp_path / "m", llama_tensors()), device="cpu")
    started, progress = next(events), next(events)
    events.close()
    assert isinstance(started, AnalysisStarted)
    assert isinstance(progress, AnalysisProgress)
    assert len(started.matrices) == 21
    assert started.bytes == sum(plan.bytes for plan in started.matrices) == 3 * 4 * (HIDDEN * (3 * HIDDEN + 3 * FF))
    assert started.parameters["top_k"] == 8
    assert started.matrices[0].tensors == ("model.layers.0.self_attn.q_proj.weight",)
    assert any(skipped.name == "model.embed_tokens.weight" for skipped in started.skipped)


def test_pairs_come_as_soon_as_two_layers_are_there(tmp_path):
    events = run(write(tmp_path / "m", llama_tensors(4)))
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "done"
    news = [event for event in events if isinstance(event, (MatrixMeasured, PairMeasured))]
    layers = [event.layer if isinstance(event, MatrixMeasured) else event.layer_b for event in news]
    assert layers == sorted(layers)
    for before, event in itertools.pairwise(news):
        if isinstance(event, PairMeasured):
            assert (before.projection, before.layer) == (event.projection, event.layer_b)
    progress = of(AnalysisProgress, events)
    assert [event.matrices for event in progress] == sorted(event.matrices for event in progress)
    assert progress[-1].matrices == 28
    assert progress[-1].bytes_read == events[0].bytes


def test_how_many_workers_changes_nothing(tmp_path, monkeypatch):
    model = write(tmp_path / "m", llama_tensors())
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(analysis.devices, "worker_count", lambda _, cores=cores: cores)
        found.append(told(run(model, use_cache=False)))
    # Products on several threads are rounded differently.
    assert [list(event) for event in found[0]] == [list(event) for event in found[1]]
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            assert other[name] == (
                value if isinstance(value, (str, int)) or value in (None, ()) else pytest.approx(value, abs=2e-6)
            )


def test_a_slow_read_is_bridged_by_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "_HEARTBEAT_SECONDS", 0.001)
    let_go, read = threading.Event(), Weights.read

    def slow(self, name, following=None):
        assert let_go.wait(60)
        return read(self, name, following)

    monkeypatch.setattr(Weights, "read", slow)
    events = analysis.analyze(write(tmp_path / "m", llama_tensors()), device="cpu")
    assert isinstance(next(events), AnalysisStarted)
    beats = [next(events) for _ in range(3)]
    assert {event.matrices for event in of(AnalysisProgress, beats)} == {0}
    assert len(of(AnalysisProgress, beats)) == 3
    let_go.set()
    assert isinstance(list(events)[-1], RunFinished)


def test_nothing_new_begins_while_nobody_pulls(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis.devices, "worker_count", lambda _: 2)
    read, names = Weights.read, []

    def counted(self, name, following=None):
        names.append(name)
        return read(self, name, following)

    monkeypatch.setattr(Weights, "read", counted)
    events = analysis.analyze(write(tmp_path / "m", llama_tensors(6)), device="cpu")
    next(event for event in events if isinstance(event, MatrixMeasured))
    for thread in threading.enumerate():
        if thread.name.startswith("measure"):
            thread.join(0.3)
    assert len(names) <= 5
    events.close()


def test_each_tensor_is_read_once_and_the_next_one_announced(tmp_path, monkeypatch):
    read, names = Weights.read, []

    def noted(self, name, following=None):
        names.append((name, following))
        return read(self, name, following)

    monkeypatch.setattr(Weights, "read", noted)
    tensors = llama_tensors(2)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        gate, up = tensors.pop(prefix + "mlp.gate_proj.weight"), tensors.pop(prefix + "mlp.up_proj.weight")
        tensors[prefix + "mlp.gate_up_proj.weight"] = torch.cat([gate, up])
        parts = [tensors.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        tensors[prefix + "self_attn.qkv_proj.weight"] = torch.cat(parts)
    events = run(write(tmp_path / "m", tensors, LLAMA | {"model_type": "phi3"}))
    order = [name for name, _ in names]
    assert len(order) == len(set(order)) == 8
    assert [following for _, following in names] == [*order[1:], None]
    whole = pairs(run(write(tmp_path / "plain", llama_tensors(2))))
    assert pairs(events).keys() == whole.keys()
    for name, pair in pairs(events).items():
        assert pair.v1_cosine == pytest.approx(whole[name].v1_cosine, abs=1e-4)


def test_units_read_in_their_order():
    turns, order = analysis._Turns(), []

    def take(number):
        with turns.take(number):
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in (2, 1)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert order == []
    with turns.take(None):
        pass
    take(0)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_closing_lets_go_of_threads_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis.devices, "worker_count", lambda _: 2)
    threads = 3
    torch.set_num_threads(threads)
    events = analysis.analyze(write(tmp_path / "m", llama_tensors()), device="cpu")
    next(event for event in events if isinstance(event, MatrixMeasured))
    events.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("measure", "compare"))]
    found = []
    new = threading.Thread(target=lambda: found.append((torch.ones(2) @ torch.ones(2), torch.get_num_threads())))
    new.start()
    new.join()
    assert torch.get_num_threads() == found[0][1] == threads
    if Path("/proc/self/fd").is_dir():
        opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        assert not [path for path in opened if str(tmp_path) in path]


def test_closing_does_not_wait_for_a_slow_line(tmp_path, monkeypatch):
    begun, closed, in_time = threading.Event(), threading.Event(), []
    monkeypatch.setattr(analysis, "_HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(LocalCheckpoint, "close", lambda _: closed.set())

    def slow(self, name, following=None):
        begun.set()
        in_time.append(closed.wait(10))
        raise JobError("closed meanwhile", "")

    monkeypatch.setattr(Weights, "read", slow)
    events = analysis.analyze(write(tmp_path / "m", llama_tensors()), device="cpu")
    for event in events:
        if isinstance(event, AnalysisProgress) and begun.is_set():
            break
    events.close()
    assert in_time
    assert all(in_time)


def test_weights_that_go_away_end_the_analysis(tmp_path, monkeypatch):
    def gone(self, name, following=None):
        raise JobError("the line was cut", "try again")

    monkeypatch.setattr(Weights, "read", gone)
    with pytest.raises(JobError, match="the line was cut"):
        run(write(tmp_path / "m", llama_tensors()))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("measure")]


# --- the cache


def test_a_second_look_reads_nothing_and_says_the_same(tmp_path):
    model = write(tmp_path / "m", llama_tensors())
    first, second = run(model), run(model)
    assert is_cached(first) == [False] * 21
    assert is_cached(second) == [True] * 21
    assert of(AnalysisProgress, second)[-1].bytes_read == 0
    assert told(first) == told(second)
    assert is_cached(run(model, use_cache=False)) == [False] * 21


def test_an_interrupted_analysis_goes_on_where_it_was(tmp_path):
    model = write(tmp_path / "m", llama_tensors())
    events = analysis.analyze(model, device="cpu")
    for _ in range(10):
        next(event for event in events if isinstance(event, MatrixMeasured))
    events.close()
    again = run(model)
    assert is_cached(again)[:10] == [True] * 10
    assert not all(is_cached(again))
    kept = results.size()
    whole = run(write(tmp_path / "other", llama_tensors()), use_cache=False)
    assert told(again) == told(whole)
    assert results.size() == kept


@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_damaged_results_are_measured_again(tmp_path, damage):
    model = write(tmp_path / "m", llama_tensors())
    first = run(model)
    files = sorted(path for path in results.folder().rglob("*") if path.is_file())
    for path in files[::2]:
        path.write_bytes(damage)
    second = run(model)
    assert told(first) == told(second)
    assert not all(is_cached(second))
    assert is_cached(run(model)) == [True] * 21


def test_other_weights_or_parameters_are_other_results(tmp_path, monkeypatch):
    model = write(tmp_path / "m", llama_tensors())
    run(model)
    for version in ("layouts.LAYOUT_VERSION", "measurement.VERSION"):
        with monkeypatch.context() as changed:
            changed.setattr(f"geocont.analysis.{version}", 999)
            assert not any(is_cached(run(model)))
    assert not any(is_cached(run(model, top_k=3)))
    assert not any(is_cached(run(model, gap_tolerance=0.1)))
    tensors = llama_tensors()
    tensors["model.layers.0.mlp.up_proj.weight"] *= 2
    os.utime(write(tmp_path / "m", tensors), (1, 1))
    assert not any(is_cached(run(model)))


def test_a_cache_that_cannot_be_written_costs_a_message(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    events = run(write(tmp_path / "m", llama_tensors()))
    assert len(of(MatrixMeasured, events)) == 21
    [message] = of(Message, events)
    assert "results are not kept" in message.text


# --- odd checkpoints


def test_what_is_not_unique_zero_or_not_finite_is_said_and_not_numbered(tmp_path):
    tensors = llama_tensors(4)
    up = "model.layers.{}.mlp.up_proj.weight"
    left, right = torch.linalg.qr(noise(FF, HIDDEN, 1)).Q, torch.linalg.qr(noise(HIDDEN, HIDDEN, 2)).Q
    sigma = torch.linspace(2, 1, HIDDEN, dtype=torch.float64)
    sigma[1] = sigma[0] / 1.001
    tensors[up.format(1)] = ((left * sigma) @ right.mT).float()
    tensors[up.format(2)].zero_()
    tensors[up.format(3)][5, 7] = math.inf
    events = run(write(tmp_path / "m", tensors))
    found, between = matrices(events), pairs(events)
    assert [found["up", layer].status for layer in range(4)] == ["ok", "not_unique", "zero", "not_finite"]
    assert found["up", 1].note == "v1 is not unique: σ1/σ2 = 1.0010"
    assert found["up", 1].v1_cosines == (None,)
    statuses = [between["up", layer, layer + 1] for layer in range(3)]
    assert [pair.status for pair in statuses] == ["not_unique", "zero", "not_finite"]
    assert [pair.v1_cosine for pair in statuses] == [None] * 3
    assert statuses[0].v_overlap
    assert statuses[0].v_gram is not None
    assert statuses[1].v_gram is None
    printed = pairs(run(str(tmp_path / "m"), gap_tolerance=0.0))["up", 0, 1]
    assert printed.status == "ok"
    assert printed.v1_cosine is not None


def test_layers_of_differing_shape(tmp_path):
    tensors = llama_tensors(3)
    tensors["model.layers.1.mlp.up_proj.weight"] = spiked(FF // 2, HIDDEN, 5).float()
    tensors["model.layers.1.mlp.gate_proj.weight"] = spiked(FF // 2, HIDDEN, 6).float()
    tensors["model.layers.1.mlp.down_proj.weight"] = spiked(HIDDEN, FF // 2, 7).float()
    between = pairs(run(write(tmp_path / "m", tensors)))
    up, down = between["up", 0, 1], between["down", 1, 2]
    assert (up.status, up.u1_cosine, up.u_dim, up.note) == ("ok", None, None, f"u n/a ({FF} vs {FF // 2})")
    assert up.v1_cosine is not None
    assert (up.u_overlap, up.u_gram) == ((), None)
    assert (down.status, down.v1_cosine, down.note) == ("ok", None, f"v n/a ({FF // 2} vs {FF})")
    assert down.u1_cosine is not None


def test_layers_without_the_projection_are_bridged_and_said(tmp_path):
    tensors = llama_tensors(4)
    for layer in (1, 2):
        for part in "qkvo":
            del tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"]
    between = pairs(run(write(tmp_path / "m", tensors)))
    assert [(a, b) for name, a, b in between if name == "q"] == [(0, 3)]
    assert between["q", 0, 3].note == "3 layers apart"


def test_equal_layers_are_shared_and_not_aligned(tmp_path):
    tensors = llama_tensors(4)
    for layer in (1, 2):
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].clone()
    events = run(write(tmp_path / "m", tensors))
    found, between = matrices(events), pairs(events)
    assert [found["up", layer].same_as for layer in range(4)] == [None, 0, 0, None]
    assert found["up", 2].v1_cosines == (None, None)
    assert all(value is not None for value in found["up", 3].v1_cosines)
    assert [between["up", layer, layer + 1].status for layer in range(3)] == ["shared", "shared", "ok"]
    assert between["up", 0, 1].v1_cosine is None
    assert between["up", 0, 1].note == "both layers hold the same weights"


@pytest.mark.parametrize("limit", [1 << 40, 0])
def test_experts_count_as_one_matrix(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(analysis, "_joined_limit", lambda: limit)
    tensors = llama_tensors(2)
    experts: dict[tuple[str, int], list[torch.Tensor]] = {}
    for layer in range(2):
        for name in ("gate", "up", "down"):
            del tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"]
        for expert in range(3):
            for name, shape in (("w1", (FF, HIDDEN)), ("w3", (FF, HIDDEN)), ("w2", (HIDDEN, FF))):
                matrix = spiked(*shape, seed=7 * layer + 31 * expert, strength=0.6 + 0.1 * expert).float()
                tensors[f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight"] = matrix
                experts.setdefault((name, layer), []).append(matrix)
    events = run(write(tmp_path / "m", tensors, LLAMA | {"model_type": "mixtral", "num_local_experts": 3}))
    between, found = pairs(events), matrices(events)
    for projection, name, side in (("gate[E]", "w1", 1), ("down[E]", "w2", 0)):
        joined = [first_triplet(torch.cat(experts[name, layer], 1 - side))[side] for layer in range(2)]
        pair = between[projection, 0, 1]
        shown, hidden = (pair.v1_cosine, pair.u1_cosine) if side else (pair.u1_cosine, pair.v1_cosine)
        assert shown == pytest.approx(abs(float(joined[0] @ joined[1])), abs=1e-4)
        assert hidden is None
        assert (pair.v_gram if side else pair.u_gram) is not None
        assert (pair.u_gram if side else pair.v_gram) is None
        assert "3 experts jointly" in pair.note
        sigma = torch.linalg.svdvals(torch.cat(experts[name, 0], 1 - side).double())
        assert found[projection, 0].singular_values[:2] == pytest.approx(sigma[:2].tolist(), rel=1e-4)
        assert found[projection, 0].gap == pytest.approx(float(sigma[0] / sigma[1] - 1), rel=1e-2)
        gap = float(sigma[0] / sigma[1] - 1)
        for tolerance, status in ((0.8 * gap, "ok"), (1.2 * gap, "not_unique")):
            again = matrices(run(str(tmp_path / "m"), gap_tolerance=tolerance, projections=projection, layers="0"))
            assert again[projection, 0].status == status
        assert found[projection, 0].stable_rank == pytest.approx(float((sigma**2).sum() / sigma[0] ** 2), rel=1e-3)


@pytest.mark.parametrize("limit", [1 << 40, 0])
@pytest.mark.parametrize("workers", [1, 2])
def test_stacked_experts_are_read_one_by_one(tmp_path, monkeypatch, limit, workers):
    """Reads of a stack are never larger than one expert, and what comes out is what the whole stack gives."""
    monkeypatch.setattr(analysis, "_joined_limit", lambda: limit)
    monkeypatch.setattr(analysis._Job, "_worker_count", lambda *_: workers)
    count, tensors = 5, {}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}mlp.experts.gate_up_proj": torch.stack(
                [spiked(HIDDEN, 2 * FF, seed=9 * layer + 31 * one, strength=0.5 + 0.1 * one) for one in range(count)]
            ).float(),
            f"{prefix}mlp.experts.down_proj": torch.stack(
                [spiked(FF, HIDDEN, seed=7 * layer + 17 * one, strength=0.5 + 0.1 * one) for one in range(count)]
            ).float(),
            f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        }
    config = LLAMA | {"model_type": "llama4_text", "num_local_experts": count, "num_hidden_layers": 2}
    model = write(tmp_path / "m", tensors, config)
    sizes = []
    read_into = LocalFile.read_into

    def noted(self, memory, offset):
        sizes.append(len(memory))
        return read_into(self, memory, offset)

    monkeypatch.setattr(LocalFile, "read_into", noted)
    events = run(model, use_cache=False)
    expert = {HIDDEN * 2 * FF * 4, FF * HIDDEN * 4}
    assert set(sizes) == expert
    assert len(sizes) == 2 * 2 * count
    assert (
        of(AnalysisProgress, events)[-1].bytes_read
        == sum(sizes)
        == sum(tensor.nbytes for name, tensor in tensors.items() if "experts" in name)
    )
    monkeypatch.setattr(Weights, "can_slice", lambda *_: False)
    sizes.clear()
    whole = run(model, use_cache=False)
    assert max(sizes) == count * max(expert)
    assert {name.projection for name in of(MatrixMeasured, events)} == {"gate[E]", "up[E]", "down[E]"}
    assert of(MatrixMeasured, events) == of(MatrixMeasured, whole)
    assert of(PairMeasured, events) == of(PairMeasured, whole)


def test_the_next_slice_is_announced(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis._Job, "_worker_count", lambda *_: 1)
    read, asked = Weights.read, []

    def noted(self, wanted, following=None):
        asked.append((wanted, following))
        return read(self, wanted, following)

    monkeypatch.setattr(Weights, "read", noted)
    tensors = {}
    for layer in range(2):
        tensors[f"model.layers.{layer}.mlp.experts.down_proj"] = (
            noise(3 * FF, HIDDEN, layer).view(3, FF, HIDDEN).float()
        )
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"] = noise(HIDDEN, HIDDEN, 5 + layer).float()
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(HIDDEN)
    run(write(tmp_path / "m", tensors, LLAMA | {"model_type": "llama4_text", "num_hidden_layers": 2}))
    order = [wanted for wanted, _ in asked]
    assert [one.index for one in order if isinstance(one, Slice)] == [0, 1, 2, 0, 1, 2]
    assert len(order) == 8
    assert [following for _, following in asked] == [*order[1:], None]


@pytest.mark.parametrize("largest_exact", [0, 1000])
def test_input_first_tensors_are_turned(tmp_path, monkeypatch, largest_exact):
    """GPT-2 stores [in, out]: the same numbers the other way round give the same analysis with v and u in place."""
    monkeypatch.setattr(measurement, "_LARGEST_EXACT_GRAM", largest_exact)
    tensors, expected, whole = {}, {}, []
    for layer in range(2):
        matrix = spiked(4 * HIDDEN, HIDDEN, 11 * layer).float()
        tensors[f"h.{layer}.mlp.c_fc.weight"] = matrix.mT.contiguous()
        tensors[f"h.{layer}.mlp.c_proj.weight"] = spiked(4 * HIDDEN, HIDDEN, 5 + layer).float()
        tensors[f"h.{layer}.ln_1.weight"] = torch.ones(HIDDEN)
        expected[layer] = first_triplet(matrix)
        whole.append(matrix)
    pair = pairs(run(write(tmp_path / "m", tensors, {"model_type": "gpt2", "n_embd": HIDDEN, "n_head": 4})))["up", 0, 1]
    assert (pair.v_dim, pair.u_dim, pair.residual_side) == (HIDDEN, 4 * HIDDEN, "v")
    assert pair.v1_cosine == pytest.approx(abs(float(expected[0][1] @ expected[1][1])), abs=1e-4)
    assert pair.u1_cosine == pytest.approx(abs(float(expected[0][0] @ expected[1][0])), abs=1e-4)
    for side, value, error in (("v", pair.v_gram, pair.v_gram_error), ("u", pair.u_gram, pair.u_gram_error)):
        exact = gram.cosine(*(gram.exact(matrix, side) for matrix in whole))
        assert value == pytest.approx(exact, abs=5 * error + 1e-5)


def test_quantised_weights_say_so_and_refused_ones_are_refused(tmp_path):
    tensors = llama_tensors(3)
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        tensors[name + "_scale"] = torch.tensor(0.5)
        tensors[name] = (tensors[name] / 4).to(torch.float8_e4m3fn)
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = torch.zeros(HIDDEN, FF, dtype=torch.int8)
    events = run(write(tmp_path / "m", tensors))
    between = pairs(events)
    assert between["up", 0, 1].status == "ok"
    assert "FP8" in between["up", 0, 1].note
    refused = between["down", 0, 1]
    assert (refused.status, refused.v1_cosine, refused.u1_cosine) == ("quantized_refused", None, None)
    assert refused.note
    assert ("down", 0) not in matrices(events)
    assert of(AnalysisProgress, events)[-1].matrices == 21


def test_fused_tensors_without_a_config_are_shown_unsplit(tmp_path):
    tensors = llama_tensors(2)
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        parts = [tensors.pop(f"{prefix}{part}_proj.weight") for part in "qkv"]
        tensors[prefix + "query_key_value.weight"] = torch.cat(parts)
    events = run(write(tmp_path / "m", tensors, config=None))
    unsplit = [plan for plan in events[0].matrices if plan.status == "unsplit"]
    assert len(unsplit) == 2
    [pair] = [pair for pair in of(PairMeasured, events) if pair.status == "unsplit"]
    assert pair.v1_cosine is None
    assert pair.note


# --- what is chosen


def test_the_choice_of_projections_layers_and_stack(tmp_path):
    model = write(tmp_path / "m", llama_tensors(4))
    events = run(model, projections="K, gate", layers="1-2,0")
    assert {(plan.projection, plan.layer) for plan in events[0].matrices} == {
        (name, layer) for name in ("k", "gate") for layer in range(3)
    }
    assert set(pairs(events)) == {(name, layer, layer + 1) for name in ("k", "gate") for layer in range(2)}
    stack = events[0].matrices[0].stack
    assert len(run(model, stack=stack[:3].upper())[0].matrices) == 28


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"projections": "q,gat"}, "no projection 'gat'", "did you mean gate"),
        ({"layers": "9"}, "--layers 9: there is no such layer", "0 to 2"),
        ({"layers": "3-1"}, "'3-1' is no range", "0-15"),
        ({"layers": "a"}, "'a' is no range", "0-15"),
        ({"layers": "1,,2"}, "'' is no range", "0-15"),
        ({"layers": "-3"}, "'-3' is no range", "0-15"),
        ({"stack": "vision"}, "no such stack", "There are:"),
        ({"stack": ""}, "the name of the stack is empty", "There are:"),
        ({"top_k": 0}, "--top-k 0", "1 to 64"),
        ({"gap_tolerance": -0.1}, "--gap-tolerance -0.1", "0"),
        ({"gap_tolerance": math.nan}, "--gap-tolerance nan", "0"),
        ({"revision": "main"}, "--revision main", "leave it out"),
        ({"download": True}, "--download has no meaning", "leave it out"),
        ({"device": "abacus"}, "--device abacus", "auto"),
    ],
)
def test_what_cannot_be_chosen_is_said_before_the_first_event(tmp_path, options, problem, remedy):
    events = analysis.analyze(write(tmp_path / "m", llama_tensors()), **{"device": "cpu", **options})
    with pytest.raises(InputError) as raised:
        next(events)
    assert problem in str(raised.value)
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("model", ["", " ", "a" * 5000, "~nobody-of-this-name/x", "a\0b", "x\udcff", "/nope/x"])
def test_a_name_that_names_nothing_is_said(model):
    with pytest.raises(InputError) as raised:
        next(analysis.analyze(model, device="cpu"))
    assert raised.value.remedy


def test_a_folder_below_a_name_that_is_no_text(tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"x\xff")
    folder.mkdir()
    write(folder / "m", llama_tensors(2))
    monkeypatch.chdir(folder)
    assert isinstance(run("m")[-1], RunFinished)


def test_a_model_of_which_nothing_can_be_measured_is_refused(tmp_path):
    tensors = {
        f"model.layers.{layer}.self_attn.{part}_proj.{name}": tensor.clone()
        for layer in range(2)
        for part in "qk"
        for name, tensor in (
            ("qweight", torch.zeros(16, HIDDEN, dtype=torch.int32)),
            ("qzeros", torch.zeros(1, 16, dtype=torch.int32)),
            ("scales", torch.ones(1, HIDDEN)),
        )
    }
    config = LLAMA | {"_name_or_path": "who/original"}
    with pytest.raises(InputError, match="none of its weights can be measured: GPTQ") as raised:
        next(analysis.analyze(write(tmp_path / "m", tensors, config), device="cpu"))
    assert "who/original" in raised.value.remedy
    [started, *_] = run(write(tmp_path / "n", {**llama_tensors(2), **tensors}, config))
    assert {plan.status for plan in started.matrices} == {"ok", "quantized_refused"}


def test_prediction_layers_and_inner_matrices_are_left_out_unless_asked_for(tmp_path):
    tensors = llama_tensors(2)
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        for part in "qkv":
            del tensors[f"{prefix}{part}_proj.weight"]
        tensors[prefix + "q_a_proj.weight"] = spiked(48, HIDDEN, layer).float()
        tensors[prefix + "q_b_proj.weight"] = spiked(HIDDEN, 48, layer).float()
        tensors[prefix + "kv_a_proj_with_mqa.weight"] = spiked(40, HIDDEN, layer).float()
        tensors[prefix + "kv_b_proj.weight"] = spiked(2 * HIDDEN, 32, layer).float()
    for name in [name for name in tensors if ".layers.1." in name]:
        tensors[name.replace(".1.", ".2.")] = tensors[name].clone()
    for name in ("eh_proj", "enorm", "hnorm"):
        tensors[f"model.layers.2.{name}.weight"] = torch.ones(
            *((HIDDEN, 2 * HIDDEN) if name == "eh_proj" else (HIDDEN,))
        )
    config = LLAMA | {"model_type": "deepseek_v3", "num_hidden_layers": 2}
    model = write(tmp_path / "m", tensors, config)
    [started, *_] = run(model)
    assert {plan.projection for plan in started.matrices} == {"q_a", "kv_a", "o", "gate", "up", "down"}
    assert {plan.layer for plan in started.matrices} == {0, 1}
    reasons = {skipped.name: skipped.reason for skipped in started.skipped}
    assert "inner" in reasons["model.layers.#.self_attn.q_b_proj.weight"]
    assert any("--stack mtp" in reason for reason in reasons.values())
    assert {plan.layer for plan in run(model, stack="mtp")[0].matrices} == {2}
    assert {plan.projection for plan in run(model, projections="q_b")[0].matrices} == {"q_b"}


def test_every_option_of_an_analysis_is_in_its_parameters(tmp_path):
    import inspect

    options = set(inspect.signature(analysis.analyze).parameters) - {"use_cache", "device", "report"}
    assert options == set(analysis.Analysis.__struct_fields__)
    [started, *_] = run(write(tmp_path / "m", llama_tensors(2)), layers="0-1", projections="q")
    again = run(**{name: value for name, value in started.parameters.items() if value is not None})
    assert again[0].matrices == started.matrices


def test_what_it_goes_on_with_holds_in_any_folder(tmp_path, monkeypatch):
    write(tmp_path / "m", llama_tensors(2))
    (tmp_path / "own.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    started = run("m", layouts_file="own.toml")[0]
    assert started.model == "m"
    assert started.parameters["model"] == str(tmp_path / "m")
    assert started.parameters["layouts_file"] == str(tmp_path / "own.toml")


def test_parameters_that_were_edited_are_refused_by_their_name(tmp_path):
    parameters = run(write(tmp_path / "m", llama_tensors(2)))[0].parameters
    assert next(analysis.analyze_again(parameters, device="cpu")).parameters == parameters
    for change, problem in (
        ({"top_k": "many"}, "Expected int, got str - at top_k"),
        ({"topk": 3}, "unknown field topk"),
        ({"model": None}, "Expected str, got null - at model"),
    ):
        with pytest.raises(InputError, match=problem) as refused:
            analysis.analyze_again(parameters | change, device="cpu")
        assert refused.value.remedy
