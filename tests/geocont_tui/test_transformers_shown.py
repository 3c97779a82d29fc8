"""Runs of transformers: projections as the second axis in the state, the tables, the final table and on the screen."""

import itertools
import math
import random
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
import synthetic
from geocont import tables
from geocont.ablations.experiment import LanguageExperiment, LanguageVariant
from geocont.events import RESIDUAL_SIDES, Alignment, Event, NetworkFinished, NetworkPlan, Probe, Progress, RunStarted
from geocont.runs import Recording
from staged_run import DARK, FEW_COLOURS, LIGHT, NO_COLOUR, PLAIN, SNAPSHOTS, Source, compare, staged

from geocont_tui import curves, headless
from geocont_tui import state as states
from geocont_tui.app import AblationApp
from geocont_tui.job import ablation_job
from geocont_tui.run_tables import run_tables
from geocont_tui.widgets.spectrum_table import FIELDS, spectrum_of

STEPS = (0, 10, 40, 100)
# How far each projection comes on its residual side, from chance.
RISES = {"q": 0.75, "k": 0.65, "v": 0.15, "o": 0.65, "gate": 0.55, "up": 0.45, "down": 0.35}
MODES = {"dark": DARK, "light": LIGHT, "16": FEW_COLOURS, "none": NO_COLOUR, "ascii": PLAIN}
EXPERIMENT = LanguageExperiment(
    name="tiny",
    seeds=2,
    precision="bf16",
    variants=(
        LanguageVariant(name="SiLU", depth=4, width=64, steps=100),
        LanguageVariant(name="None", activation="none", gate=False, depth=4, width=64, steps=100),
    ),
)


def probe(variant: str, seed: int, step: int, projection: str) -> Probe:
    chance = random.Random(f"{variant} {seed} {step} {projection}")
    risen = 0.1 + RISES[projection] * step / 100
    level = {"v": (risen, 0.1), "u": (0.1, risen)}[RESIDUAL_SIDES[projection]]
    v1, u1 = (tuple(value + 0.01 * chance.random() for _ in range(3)) for value in level)
    return synthetic.probe(
        0,
        seed,
        step,
        variant=variant,
        projection=projection,
        v_dim=64,
        u_dim=16 if projection in ("k", "v") else 64,
        accuracy=None,
        loss=7.0 - step / 50 if step else None,
        weight=Alignment(v1=v1, u1=u1),
        held_out_loss=7.0 - step / 40 if step in (0, 100) else None,
    )


def events() -> Iterator[Event]:
    networks = [(variant, seed) for variant in EXPERIMENT.variants for seed in range(2)]
    yield RunStarted(
        name="tiny",
        experiment=msgspec.to_builtins(EXPERIMENT),
        networks=tuple(NetworkPlan(variant=variant.name, seed=seed, steps=100) for variant, seed in networks),
        device="cpu, 2 threads",
        versions={},
        time=synthetic.START,
    )
    for step in STEPS:
        for variant, seed in networks:
            for projection in states.measured_projections(variant):
                yield probe(variant.name, seed, step, projection)
        yield Progress(networks=(), elapsed=step / 2, steps_per_second=2.0, probe_share=0.03, tokens_per_second=4096.0)
    yield NetworkFinished(variant="SiLU", seed=0, step=100, test_loss=4.4, test_accuracy=None)


@pytest.fixture(autouse=True)
def _judged_at_the_end(monkeypatch):
    monkeypatch.setattr("geocont_tui.job._JUDGE_SECONDS", math.inf)


@pytest.fixture(scope="module")
def state() -> states.AblationState:
    state = None
    for event in events():
        state = states.fold(state, event)
    return state


def test_each_projection_has_a_trajectory_of_its_own(state):
    for projection in state.projections:
        found = states.trajectory(state, "SiLU", states.WEIGHT_U1, projection)
        assert found.steps == STEPS
        last = [probe("SiLU", seed, 100, projection) for seed in (0, 1)]
        assert found.mean[-1] == pytest.approx(sum(sum(each.weight.u1) / 3 for each in last) / 2)
    assert states.trajectory(state, "None", states.WEIGHT_V1, "gate").steps == ()
    assert states.dimension(state, "SiLU", states.WEIGHT_U1, "k") == 16
    assert states.measured_projections(EXPERIMENT.variants[1]) == ("q", "k", "v", "o", "up", "down")


def test_the_peak_is_on_the_residual_side(state):
    assert states.summary(state, "SiLU", "o").peak_step == 100
    assert states.summary(state, "SiLU", "o").peak.mean > 0.7
    assert states.summary(state, "SiLU", "q").peak.mean > 0.7


def test_the_overlap_is_of_the_residual_side(state):
    down, query = (last(projection)[0] for projection in ("down", "q"))
    assert down.top_overlap_u != down.top_overlap_v
    assert states.summary(state, "SiLU", "down").top_overlap.mean == pytest.approx(down.top_overlap_u)
    assert states.summary(state, "SiLU", "q").top_overlap.mean == pytest.approx(query.top_overlap_v)
    for projection, expected, directions in (
        ("down", down.top_overlap_u, "output"),
        ("q", query.top_overlap_v, "input"),
    ):
        data = spectrum_of(state, "SiLU", projection)
        assert dict(data.rows)[100][FIELDS.index("top_overlap")] == pytest.approx(expected)
        assert data.directions == directions


def test_the_perplexity_is_of_the_latest_loss_on_held_out_text(state):
    found = states.summary(state, "SiLU", "q").perplexity
    assert found.mean == pytest.approx((math.exp(4.4) + math.exp(4.5)) / 2)
    assert states.perplexity(800.0) is None
    assert states.perplexity(math.nan) is None


def test_the_claims_are_those_about_transformers(state):
    claims = [finding.claim for finding in states.findings(state)]
    assert any(claim.startswith("readers Q, K, Gate, Up") for claim in claims)


def test_of_very_many_measurements_the_first_the_peak_and_the_latest_are_kept():
    first = synthetic.probe(0, 0, 0, projection="o")
    series = {seed: states.Series() for seed in (0, 1)}
    for step in range(20_001):
        for seed in series:
            level = 0.9 if step == 7_777 + seed else 0.5
            weight = Alignment(v1=(1 - level,), u1=(level,))
            series[seed] = series[seed].added(msgspec.structs.replace(first, step=step, weight=weight))
    for seed, each in series.items():
        steps = [probe.step for probe in each.probes]
        assert len(steps) <= 403
        assert steps == sorted(set(steps))
        assert {0, 7_777 + seed, 20_000} <= set(steps)
    common = set.intersection(*({probe.step for probe in each.probes} for each in series.values()))
    assert len(common) > 150


def test_the_tables_have_a_row_per_projection_and_say_the_precision():
    found = tables.tables(events())
    rows = [dict(zip(found.training.columns, row, strict=True)) for row in found.training.rows]
    assert len(rows) == len(STEPS) * 2 * (7 + 6)
    assert {row["precision"] for table in found for row in [dict(zip(table.columns, table.rows[0], strict=True))]} == {
        "bf16"
    }
    last = next(row for row in rows if row["step"] == 100)
    assert last["perplexity"] == pytest.approx(math.exp(last["held_out_loss"]))
    assert next(row for row in rows if row["step"] == 10)["perplexity"] is None


def test_the_tables_say_which_side_meets_the_residual_stream():
    changed = (EXPERIMENT.variants[0], msgspec.structs.replace(EXPERIMENT.variants[1], residual=False))
    settings = msgspec.to_builtins(msgspec.structs.replace(EXPERIMENT, variants=changed))
    first, *rest = events()
    found = tables.tables([msgspec.structs.replace(first, experiment=settings), *rest])
    for table in (found.training, found.training_pairs):
        assert list(table.columns)[-1] == "residual_side"
        sides = {(row[1], row[4]): row[-1] for row in table.rows}
        assert sides["SiLU", "q"] == "v1"
        assert sides["SiLU", "o"] == "u1"
        assert sides["None", "q"] is None


def test_the_claims_are_a_table_of_their_own(state):
    *_, claims = run_tables(events())
    assert claims.name == "claims"
    rows = [dict(zip(claims.columns, row, strict=True)) for row in claims.rows]
    findings = states.findings(state)
    assert [row["claim"] for row in rows] == [finding.claim for finding in findings]
    assert [(row["verdict"], row["numbers"], row["reason"] or "") for row in rows] == [
        (finding.verdict, finding.numbers, finding.reason) for finding in findings
    ]
    assert {row["precision"] for row in rows} == {"bf16"}
    readers = next(row for row in rows if row["claim"].startswith("readers"))
    assert readers["variants"] == "SiLU"
    assert rows[0]["variants"] == "SiLU; None"


def test_the_final_table_has_a_row_per_projection(state):
    text = headless.summary_table(state)
    lines = text.splitlines()
    assert sum(line.startswith("SiLU") for line in lines) == 7
    assert sum(line.startswith("None") for line in lines) == 6
    down = next(line for line in lines if line.startswith("SiLU") and " down " in line)
    v1, u1 = (states.spread([mean(each, side) for each in last("down")]).mean for side in ("v1", "u1"))
    assert f"{v1:.3f} ±" in down
    assert f"{u1:.3f} ±" in down
    assert down.count("*") == 1
    assert down.index("*") > down.index(f"{u1:.3f}")
    assert "trained in bf16" in text
    assert "4,096 tokens/s" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_each_part_of_the_final_table_names_variant_and_projection(state, width):
    wide = headless.summary_table(state).split("\n\n")[1].splitlines()
    blocks = [block.splitlines() for block in headless.summary_table(state, width).split("\n\n")]
    parts = [block for block in blocks if block[0].startswith("variant ")]
    assert len(parts) > 1
    for part in parts:
        assert max(map(len, part)) <= width
        assert [line.split()[:2] for line in part] == [line.split()[:2] for line in wide]
    cells = [re.split(r"  +", part[1])[2:] for part in parts]
    assert [cell for part in cells for cell in part] == re.split(r"  +", wide[1])[2:]


def last(projection: str) -> list[Probe]:
    return [probe("SiLU", seed, 100, projection) for seed in (0, 1)]


def mean(each: Probe, side: str) -> float:
    return sum(getattr(each.weight, side)) / 3


@asynccontextmanager
async def shown(tmp_path, size=(80, 24), settings=DARK):
    source = Source(events())
    app = AblationApp(ablation_job(EXPERIMENT, Recording(source, tmp_path), "cpu"), settings)
    async with staged(app, source, tmp_path, size) as run:
        yield run


@pytest.mark.parametrize(
    ("name", "keys", "sizes", "modes"),
    [
        ("curves", (), [(100, 30), (140, 40)], ["dark"]),
        ("curves", (), [(80, 24)], ["dark", "16", "none", "ascii"]),
        ("writer", ("p", "p", "p"), [(80, 24)], ["dark"]),
        ("projections", ("1", "b"), [(60, 15), (140, 40)], ["dark"]),
        ("projections", ("1", "b"), [(80, 24)], ["dark", "none", "ascii"]),
        ("bars", ("b", "2"), [(60, 15), (80, 24), (100, 30)], ["none"]),
        ("claims", ("4",), [(60, 15), (80, 24), (100, 30)], ["dark"]),
    ],
)
async def test_what_the_screen_shows(tmp_path, name, keys, sizes, modes):
    for size, mode in itertools.product(sizes, modes):
        # Its name is on the screen.
        folder = tmp_path / f"{size[0]} {mode}" / "2026-12-01T14-03-11_tiny_k3f9"
        folder.mkdir(parents=True)
        async with shown(folder, size, MODES[mode]) as run:
            text = await run.press(*keys)
            compare(f"transformer_{name}_{size[0]}x{size[1]}_{mode}.txt", text)
            assert all(sum(segment.cell_length for segment in row) == size[0] for row in run.rows)


@pytest.mark.parametrize(("name", "keys"), [("curves", ()), ("projections", ("1", "b"))])
async def test_a_light_screen_says_the_same(tmp_path, name, keys):
    folder = tmp_path / "2026-12-01T14-03-11_tiny_k3f9"
    folder.mkdir()
    async with shown(folder, (80, 24), LIGHT) as run:
        text = await run.press(*keys)
        assert text + "\n" == (SNAPSHOTS / f"transformer_{name}_80x24_dark.txt").read_text(encoding="utf-8")


async def test_the_view_stays_on_the_residual_side_until_the_user_leaves_it(tmp_path):
    async with shown(tmp_path) as run:
        assert "v1*" in run.lines[3]
        assert "u1" not in run.lines[3]
        text = await run.press("p", "p", "p")
        assert "o weight u1*" in text
        assert "u1*" in run.lines[3]
        assert "v1" not in run.lines[3]
        level = states.spread([mean(each, "u1") for each in last("o")]).mean
        assert f"{level:.2f}".lstrip("0") in run.lines[4].split()
        assert "gate weight v1*" in await run.press("p")
        assert "gate weight u1 " in (await run.press("]")).replace(",", " ")
        assert "down weight u1*" in await run.press("p", "p")
        assert "q weight u1 " in (await run.press("p")).replace(",", " ")
        assert "q gradient v1*" in await run.press("]")
        assert "down gradient u1*" in await run.press("P")


async def test_claims_take_the_whole_width_beside_no_table(tmp_path):
    async with shown(tmp_path) as run:
        text = await run.press("4")
        assert "2 variants" not in text
        assert run.lines[2].endswith("┓")
        text = await run.press("tab", "shift+tab", "shift+tab")
        assert "2 variants" in text
        assert "[claims]" in text
        assert "2 variants" in await run.press("1")


async def test_claims_scroll_and_no_number_is_cut(tmp_path, state):
    async with shown(tmp_path, (60, 15)) as run:
        await run.press("4")
        seen = []
        while not seen or run.lines[3:-2] != seen[-1]:
            seen.append(run.lines[3:-2])
            await run.press("down")
        assert len(seen) > 3
        words = " ".join(line.strip("┃ ") for screen in seen for line in screen).split()
        for finding in states.findings(state):
            assert set(finding.numbers.split()) <= set(words)


async def test_projections_are_named_in_the_narrow_chart_and_the_selected_one_stands_out(tmp_path, state):
    async with shown(tmp_path) as run:
        text = await run.press("b", "p", "p", "p")
        assert all(name in text for name in ("● q ", "◆ o* ", "△ down*"))
    view = curves.View(states.WEIGHT_U1, "o", projections_apart=True)
    for each in (view, replace(view, seeds_apart=True), replace(view, projections_apart=False, selected=1)):
        shown_curves = curves.chart_data(state, each, curves.Trajectories()).curves
        clear = {curve.name.split()[0] for curve in shown_curves if not curve.is_faint}
        assert clear == {"o*" if each.projections_apart else "None"}


async def test_no_zero_has_a_sign(tmp_path):
    nothing = Alignment(v1=(-1e-9,) * 3, u1=(-1e-9,) * 3)
    changed = [
        msgspec.structs.replace(event, weight=nothing, gradient=nothing) if isinstance(event, Probe) else event
        for event in events()
    ]
    state = None
    for event in changed:
        state = states.fold(state, event)
    assert re.findall(r"-0*\.0+\b", headless.summary_table(state)) == []
    source = Source(iter(changed))
    app = AblationApp(ablation_job(EXPERIMENT, Recording(source, tmp_path), "cpu"), DARK)
    async with staged(app, source, tmp_path, (140, 40)) as run:
        for key in ("1", "2", "b", "3", "4", "enter"):
            assert re.findall(r"[-−]0*\.0+\b", await run.press(key)) == []


def test_equal_reasons_are_one_sentence():
    variants = tuple(
        msgspec.structs.replace(EXPERIMENT.variants[0], name=name, activation=activation)
        for name, activation in (("SiLU", "silu"), ("ReLU", "relu"))
    )
    experiment = msgspec.structs.replace(EXPERIMENT, variants=variants)
    rising = states.planned(experiment, "cpu")
    for step in STEPS:
        for variant in variants:
            for seed in range(2):
                rising = states.fold(rising, probe(variant.name, seed, step, "o"))
    found = next(each for each in states.findings(rising) if each.claim.startswith("O rises"))
    assert found.reason == "no fall yet: SiLU, ReLU"


@pytest.mark.parametrize("settings", [DARK, PLAIN], ids=["dark", "ascii"])
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (140, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_screen_goes_through_the_projections(tmp_path, size, settings):
    async with shown(tmp_path, size, settings) as run:
        assert " p projection" in run.text or size[0] == 60
        if size[0] > 60:
            assert "ppl" in run.text
            assert " acc" not in run.text
            assert "q weight v1*" in run.text
        await run.press("p", "p", "p")
        assert run.screen.view.projection == "o"
        await run.press("P")
        assert run.screen.view.projection == "v"
        text = await run.press("b", "2")
        assert run.screen.view.projections_apart
        rows = dict(re.findall(r"((?:q|gate) +[vu]1\*?) .*?(\d\.\d\d)", text))
        for side in ("v1", "u1"):
            star = "*" if side == "v1" else ""
            expected = states.spread([mean(each, side) for each in last("q")]).mean
            assert float(rows[f"q    {side}{star}"]) == pytest.approx(expected, abs=0.006)
        assert "* residual side" in text
        assert run.text.isascii() or not settings.ascii
        text = await run.press("enter")
        assert "of projection v" in text or size[0] < 140
