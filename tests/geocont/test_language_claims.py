"""The verdicts on transformers, each claim in each of its outcomes, on made-up numbers."""

import itertools
import math
import time

import msgspec
import numpy as np
import pytest
from geocont import chance, language_claims
from geocont.ablations.experiment import LanguageExperiment, LanguageVariant
from geocont.events import RESIDUAL_SIDES, Alignment, NetworkFinished, Probe

WIDTH, PAIRS, SEEDS = 128, 7, 3
LEVEL = chance.mean_cosine(WIDTH)
STEPS = (0, 50, 200, 600)
LOSSES = (7.6, 6.0, 5.0, 4.4)
# Around the mean, so that three seeds have a spread.
JITTER = (-0.01, 0.0, 0.01)

SILU = LanguageVariant(name="SiLU", activation="silu")
NONE = LanguageVariant(name="None", activation="none")
RADIAL = LanguageVariant(name="Radial", activation="radial")

GRADIENTS = "gradients coherent at step 0 on the residual side"
READERS = "readers Q, K, Gate, Up continuous in v1"
WRITERS = "writers O, Down continuous in u1"
LOW = "V low on both sides"
RISE = "O rises, then falls in u1"
V1 = "Gate loses v1 continuity: None"
U1 = "Gate loses u1 continuity: None"

# Weight (v1, u1) by projection at each of STEPS: every claim about the usual network holds.
USUAL = {
    "q": ((LEVEL, LEVEL), (0.5, LEVEL), (0.6, LEVEL), (0.6, LEVEL)),
    "k": ((LEVEL, LEVEL), (0.5, LEVEL), (0.6, LEVEL), (0.5, LEVEL)),
    "v": ((LEVEL, LEVEL), (0.2, LEVEL), (0.2, LEVEL), (0.15, LEVEL)),
    "o": ((LEVEL, LEVEL), (LEVEL, 0.5), (LEVEL, 0.4), (LEVEL, 0.25)),
    "gate": ((LEVEL, LEVEL), (0.5, 0.2), (0.6, 0.3), (0.6, 0.3)),
    "up": ((LEVEL, LEVEL), (0.5, LEVEL), (0.6, LEVEL), (0.5, LEVEL)),
    "down": ((LEVEL, LEVEL), (LEVEL, 0.5), (LEVEL, 0.6), (LEVEL, 0.6)),
}
LOST = USUAL | {"gate": ((LEVEL, LEVEL), (0.4, LEVEL), (0.3, LEVEL), (0.2, LEVEL))}

Network = dict[str, list[Probe]]


def alignment(v1: float | None, u1: float | None) -> Alignment:
    return Alignment(v1=(v1,) * PAIRS, u1=(u1,) * PAIRS)


def network(variant: LanguageVariant, seed: int, table=USUAL, losses=LOSSES, shift: float | None = None, **changes):
    """One network; `shift` moves every weight alignment but the first, `changes` apply to every probe but the first."""
    shift = JITTER[seed % 3] if shift is None else shift
    found: Network = {}
    for projection, course in table.items():
        side = RESIDUAL_SIDES[projection]
        gradient = changes.get("gradient", (0.5, LEVEL) if side == "v" else (LEVEL, 0.5))
        for step, (v1, u1), loss in zip(STEPS, course, losses, strict=True):
            values = {
                "variant": variant.name,
                "seed": seed,
                "step": step,
                "projection": projection,
                "v_dim": WIDTH,
                "u_dim": WIDTH,
                "loss": loss,
                "accuracy": None,
                "weight": alignment(v1 + shift * (step > 0), u1 + shift * (step > 0)),
                "gradient": alignment(*gradient),
                "cumulative": alignment(None, None),
                "update": alignment(None, None),
                "weight_v_weighted": None,
                "weight_u_weighted": None,
                "update_ratio": 1.0,
                "sigma_ratio": 1.5 if step else 1.03,
                "top_overlap_v": 0.3,
                "top_overlap_u": 0.3,
                "cumulative_match": None,
                "drift": None,
                "identity_share": None,
                "activation_factor": None,
                "gradient_norm": 1.0,
                "exact": False,
                "held_out_loss": loss,
            }
            later = {key: value for key, value in changes.items() if key != "gradient"} if step else {}
            found.setdefault(projection, []).append(Probe(**values | later))
    return found


def networks(variant: LanguageVariant, table=USUAL, seeds: int = SEEDS, **changes) -> dict[tuple[str, int], Network]:
    return {(variant.name, seed): network(variant, seed, table, **changes) for seed in range(seeds)}


def judge(variants, probes, *, done: bool = True, seeds: int = SEEDS):
    experiment = LanguageExperiment(name="test", seeds=seeds, variants=tuple(variants))
    finished = {
        (name, seed): NetworkFinished(variant=name, seed=seed, step=STEPS[-1], test_loss=4.4, test_accuracy=None)
        for name, seed in probes
        if done
    }
    return {finding.claim: finding for finding in language_claims.judge(experiment, probes, finished)}


def moved(table, projection: str, course) -> dict:
    return table | {projection: course}


CHANCE = ((LEVEL, LEVEL),) * 4


def test_all_claims_can_be_supported():
    probes = networks(SILU) | networks(NONE, LOST)
    found = judge([SILU, NONE], probes)
    assert list(found) == [GRADIENTS, READERS, WRITERS, LOW, RISE, V1, U1]
    assert {claim: finding.verdict for claim, finding in found.items()} == dict.fromkeys(found, "supported"), found


def test_nothing_is_claimed_before_anything_is_measured():
    found = judge([SILU, NONE], {}, done=False)
    assert {finding.verdict for finding in found.values()} == {"not yet"}
    assert {finding.numbers for finding in found.values()} == {"not measured yet"}


def test_one_seed_decides_nothing():
    found = judge([SILU, NONE], networks(SILU, seeds=1) | networks(NONE, LOST, seeds=1), seeds=1)
    assert {finding.verdict for finding in found.values()} == {"not yet"}
    assert all("one seed" in finding.reason for finding in found.values())


@pytest.mark.parametrize(
    ("gradient", "start", "verdict"),
    [
        ((0.5, 0.5), LEVEL, "supported"),
        ((LEVEL, LEVEL), LEVEL, "contradicted"),
        ((0.5, 0.5), 0.4, "confounded"),
    ],
)
def test_coherent_gradients_say_something_where_the_weights_are_at_chance(gradient, start, verdict):
    table = {projection: ((start, start), *course[1:]) for projection, course in USUAL.items()}
    assert judge([SILU], networks(SILU, table, gradient=gradient), done=False)[GRADIENTS].verdict == verdict


@pytest.mark.parametrize(
    ("course", "changes", "done", "verdict"),
    [
        (USUAL["q"], {}, False, "supported"),
        (CHANCE, {"shift": 0.0}, False, "not yet"),
        (CHANCE, {"shift": 0.0}, True, "contradicted"),
        (CHANCE, {"shift": 0.0, "sigma_ratio": 1.04}, True, "confounded"),
        (CHANCE, {"shift": 0.0, "losses": (7.6,) * 4}, True, "confounded"),
        (USUAL["q"], {"losses": (7.6,) * 4}, True, "confounded"),
        (USUAL["q"], {"losses": (7.6,) * 4}, False, "not yet"),
    ],
)
def test_readers_are_judged_by_v1_against_chance(course, changes, done, verdict):
    found = judge([SILU], networks(SILU, moved(USUAL, "q", course), **changes), done=done)
    assert found[READERS].verdict == verdict, found[READERS]
    if verdict == "contradicted":
        assert "Q of SiLU" in found[READERS].reason


def test_one_lucky_seed_is_not_enough():
    probes = networks(SILU)
    for seed in (0, 1):
        probes["SiLU", seed] = network(SILU, seed, moved(USUAL, "down", CHANCE), shift=0.0)
    assert judge([SILU], probes)[WRITERS].verdict == "not yet"


def test_writers_are_judged_by_u1():
    found = judge([SILU], networks(SILU, moved(USUAL, "down", ((0.6, LEVEL),) * 4), shift=0.0))
    assert found[WRITERS].verdict == "contradicted"
    assert "Down of SiLU" in found[WRITERS].reason


@pytest.mark.parametrize(
    ("end", "changes", "done", "verdict"),
    [
        ((0.15, LEVEL), {}, False, "not yet"),
        ((0.15, LEVEL), {"losses": (7.6,) * 4}, True, "confounded"),
        ((0.15, LEVEL), {"sigma_ratio": 1.04}, True, "confounded"),
        ((0.9, LEVEL), {}, True, "contradicted"),
        ((0.15, 0.9), {}, True, "contradicted"),
        ((0.5, LEVEL), {}, True, "not yet"),
    ],
)
def test_v_is_judged_against_the_others_and_against_chance(end, changes, done, verdict):
    found = judge([SILU], networks(SILU, moved(USUAL, "v", (*USUAL["v"][:3], end)), **changes), done=done)[LOW]
    assert found.verdict == verdict, found


def test_a_low_v_whose_gap_is_closed_counts_where_its_leading_subspace_is_low_too():
    probes = networks(SILU, sigma_ratio=1.04)
    for seed in range(SEEDS):
        run = probes["SiLU", seed]["v"]
        run[:] = [msgspec.structs.replace(probe, top_overlap_v=0.05 + JITTER[seed]) for probe in run]
    assert judge([SILU], probes)[LOW].verdict == "supported"


@pytest.mark.parametrize(
    ("u1", "changes", "done", "verdict"),
    [
        ((LEVEL, 0.5, 0.4, 0.25), {}, False, "supported"),
        ((LEVEL, 0.3, 0.4, 0.5), {}, False, "not yet"),
        ((LEVEL, 0.3, 0.4, 0.5), {}, True, "not yet"),
        ((0.5, 0.5, 0.4, 0.25), {}, True, "not yet"),
        ((LEVEL,) * 4, {"shift": 0.0}, False, "not yet"),
        ((LEVEL,) * 4, {"shift": 0.0}, True, "contradicted"),
        ((LEVEL,) * 4, {"shift": 0.0, "sigma_ratio": 1.04}, True, "confounded"),
        ((LEVEL, 0.5, 0.4, 0.25), {"losses": (7.6,) * 4}, True, "confounded"),
    ],
)
def test_o_rises_and_falls(u1, changes, done, verdict):
    table = moved(USUAL, "o", tuple((LEVEL, value) for value in u1))
    found = judge([SILU], networks(SILU, table, **changes), done=done)[RISE]
    assert found.verdict == verdict, found


def test_a_fall_of_o_that_comes_with_the_closing_gap_is_confounded():
    probes = networks(SILU)
    for by_projection in probes.values():
        by_projection["o"][-1] = msgspec.structs.replace(by_projection["o"][-1], sigma_ratio=1.03)
    found = judge([SILU], probes)[RISE]
    assert (found.verdict, "gap" in found.reason) == ("confounded", True)


def test_the_numbers_of_o_are_its_start_its_peak_and_its_end():
    numbers = judge([SILU], networks(SILU))[RISE].numbers
    assert "peak 0.50±0.01 at 50" in numbers
    assert "0.25±0.01 at 600" in numbers


@pytest.mark.parametrize(
    ("gate", "changes", "done", "verdict"),
    [
        (LOST["gate"], {}, True, "supported"),
        (LOST["gate"], {}, False, "not yet"),
        (USUAL["gate"], {}, True, "not yet"),
        (((LEVEL, LEVEL), (0.9, 0.9), (0.9, 0.9), (0.9, 0.9)), {}, True, "contradicted"),
        (LOST["gate"], {"losses": (7.6,) * 4}, True, "confounded"),
        (LOST["gate"], {"sigma_ratio": 1.04}, True, "confounded"),
        (LOST["gate"], {"losses": (20.0, 15.0, 10.0, 9.0)}, True, "confounded"),
    ],
)
@pytest.mark.parametrize("claim", [V1, U1])
def test_what_the_gate_loses_is_the_difference_between_the_variants(gate, changes, done, verdict, claim):
    probes = networks(SILU) | networks(NONE, moved(USUAL, "gate", gate), **changes)
    found = judge([SILU, NONE], probes, done=done)[claim]
    assert found.verdict == verdict, found


def test_a_difference_within_the_spread_of_the_seeds_is_none():
    probes = networks(SILU)
    for seed, shift in enumerate((0.3, -0.3, 0.25)):
        probes["None", seed] = network(
            NONE, seed, moved(USUAL, "gate", ((LEVEL, LEVEL), *((0.4, 0.1),) * 3)), shift=shift
        )
    assert judge([SILU, NONE], probes)[V1].verdict == "not yet"


def test_differences_that_agree_by_luck_are_no_difference_where_the_seeds_differ_more():
    probes = {}
    for variant, gate in ((SILU, 0.65), (NONE, 0.6)):
        table = moved(USUAL, "gate", ((LEVEL, LEVEL), *((gate, gate),) * 3))
        for seed, shift in enumerate((-0.1, 0.1, 0.0)):
            probes[variant.name, seed] = network(variant, seed, table, shift=shift)
    found = judge([SILU, NONE], probes)
    assert "difference +0.05±0.00" in found[V1].numbers
    assert found[V1].verdict == found[U1].verdict == "not yet"


def test_the_gate_is_compared_at_equal_perplexity_and_not_at_the_end():
    # Both follow the same course with the loss; the one without activation has only gone further, and lower again.
    course = ((LEVEL, LEVEL), (0.5, LEVEL), (0.6, LEVEL), (0.2, LEVEL))
    behind = ((LEVEL, LEVEL), (0.5, LEVEL), (0.55, LEVEL), (0.599, LEVEL))
    probes = networks(SILU, moved(USUAL, "gate", behind), losses=(7.6, 6.0, 5.5, 5.0))
    probes |= networks(NONE, moved(USUAL, "gate", course), losses=(7.6, 6.0, 5.0, 3.0))
    found = judge([SILU, NONE], probes)[V1]
    assert found.verdict == "not yet", found
    assert f"held-out perplexity {math.exp(5.0):.4g}" in found.numbers
    assert "difference +0.00±0.00 (95 %)" in found.numbers
    assert found.numbers.endswith(f"chance {LEVEL:.2f}")
    assert "at the end SiLU 0.60±0.01, None 0.20±0.01" in found.numbers


def test_without_held_out_losses_the_training_loss_is_the_measure():
    probes = networks(SILU, held_out_loss=None) | networks(NONE, LOST, held_out_loss=None)
    found = judge([SILU, NONE], probes)[V1]
    assert found.verdict == "supported"
    assert "training perplexity" in found.numbers


def test_between_two_measurements_the_loss_is_met_on_the_line_between_them():
    ahead = networks(NONE, LOST, losses=(7.6, 6.0, 5.0, 3.0), shift=0.0)
    numbers = judge([SILU, NONE], networks(SILU, losses=(7.6, 6.0, 5.0, 4.0)) | ahead)[V1].numbers
    # Half of the way from 0.3 at 5.0 to 0.2 at 3.0.
    assert "None 0.25±0.00" in numbers


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "supported"), (0.995, "confounded")])
def test_a_radial_gate_that_never_acts_is_the_linear_one(factor, verdict):
    probes = networks(SILU) | networks(RADIAL, LOST, activation_factor=factor)
    found = judge([SILU, RADIAL], probes)["Gate loses v1 continuity: Radial"]
    assert found.verdict == verdict
    assert f"factor {factor:.3f}" in found.numbers
    assert verdict != "confounded" or "linear" in found.reason


def test_a_gate_below_one_activation_and_above_another_has_no_verdict():
    relu = LanguageVariant(name="ReLU", activation="relu")
    high = moved(USUAL, "gate", ((LEVEL, LEVEL), *((0.9, 0.9),) * 3))
    middle = moved(USUAL, "gate", ((LEVEL, LEVEL), *((0.75, 0.6),) * 3))
    found = judge([SILU, relu, NONE], networks(SILU) | networks(relu, high) | networks(NONE, middle))
    assert found[V1].verdict == found[U1].verdict == "not yet"


def test_variants_are_compared_only_with_others_of_the_same_settings():
    wide = LanguageVariant(name="None", activation="none", mlp_width=512)
    ungated = LanguageVariant(name="None", activation="none", gate=False)
    for other in (wide, ungated):
        assert V1 not in judge([SILU, other], networks(SILU) | networks(other, LOST))


def test_without_gates_there_is_nothing_for_a_gate_to_lose():
    ungated = [msgspec.structs.replace(variant, gate=False) for variant in (SILU, NONE)]
    assert V1 not in judge(ungated, {})


def test_a_network_without_gate_has_three_readers():
    ungated = LanguageVariant(name="SiLU", activation="silu", gate=False)
    table = {projection: course for projection, course in USUAL.items() if projection != "gate"}
    found = judge([ungated], networks(ungated, table))
    assert found[READERS].verdict == found[LOW].verdict == found[GRADIENTS].verdict == "supported"
    assert list(found) == [GRADIENTS, READERS, WRITERS, LOW, RISE]


def test_the_order_of_the_seeds_does_not_matter():
    first = judge([SILU, NONE], networks(SILU) | networks(NONE, LOST))
    for order in itertools.permutations(range(SEEDS)):
        probes = {
            (variant.name, seed): network(variant, seed, table, shift=JITTER[place])
            for variant, table in ((SILU, USUAL), (NONE, LOST))
            for seed, place in enumerate(order)
        }
        found = judge([SILU, NONE], dict(reversed(probes.items())))
        assert {c: f.verdict for c, f in found.items()} == {c: f.verdict for c, f in first.items()}


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_numbers_that_do_not_exist_are_left_out(nothing):
    changes = {
        "weight": Alignment(v1=(nothing,) * PAIRS, u1=(nothing,) * PAIRS),
        "sigma_ratio": nothing,
        "top_overlap_v": nothing,
        "held_out_loss": nothing,
        "activation_factor": nothing,
    }
    probes = networks(SILU, **changes) | networks(RADIAL, **changes | {"loss": nothing})
    found = judge([SILU, RADIAL], probes)
    assert {found[claim].verdict for claim in (READERS, WRITERS, LOW, RISE)} <= {"not yet", "contradicted"}
    assert all("nan" not in finding.numbers for finding in found.values())


def noise(generator: np.random.Generator) -> dict[str, tuple[tuple[float, float], ...]]:
    """A course for every projection: chance at first, then independent numbers about 0.5."""
    return {
        projection: ((LEVEL, LEVEL), *(tuple(0.5 + generator.normal(0, 0.1, 2).clip(-0.4, 0.4)) for _ in STEPS[1:]))
        for projection in USUAL
    }


def test_equal_gates_are_told_apart_as_seldom_as_the_level_says():
    generator = np.random.default_rng(0)
    draws, told = 400, {V1: 0, U1: 0}
    for _ in range(draws):
        probes = {
            (variant.name, seed): network(variant, seed, noise(generator), shift=0.0)
            for variant in (SILU, NONE)
            for seed in range(SEEDS)
        }
        found = judge([SILU, NONE], probes)
        for claim in told:
            told[claim] += found[claim].verdict in ("supported", "contradicted")
        assert found[LOW].verdict in ("not yet", "contradicted")
    # 5 % of the draws, and three standard deviations.
    assert max(told.values()) <= draws * 0.05 + 3 * math.sqrt(draws * 0.05 * 0.95), told
    assert min(told.values()) > 0, "the level is not used"


def test_a_course_that_only_fluctuates_is_called_a_fall_as_seldom_as_the_level_says():
    generator = np.random.default_rng(2)
    draws, told = 200, 0
    for _ in range(draws):
        probes = {}
        for seed in range(SEEDS):
            made = network(SILU, seed)
            first, last = made["o"][0], made["o"][-1]
            heights = 0.5 + generator.normal(0, 0.1, 40).clip(-0.3, 0.3)
            made["o"] = [
                first,
                *(
                    msgspec.structs.replace(last, step=step, weight=alignment(LEVEL, height))
                    for step, height in enumerate(heights, 1)
                ),
            ]
            probes["SiLU", seed] = made
        told += judge([SILU], probes)[RISE].verdict == "supported"
    # 2.5 % of the draws, and three standard deviations.
    assert told <= draws * 0.025 + 3 * math.sqrt(draws * 0.025 * 0.975), told


def test_random_directions_support_nothing_about_weights():
    generator = np.random.default_rng(1)
    for _ in range(100):
        probes = {}
        for seed in range(SEEDS):
            made = network(SILU, seed, USUAL)
            for projection, run in made.items():
                made[projection] = [
                    msgspec.structs.replace(
                        probe, weight=Alignment(v1=random_cosines(generator), u1=random_cosines(generator))
                    )
                    for probe in run
                ]
            probes["SiLU", seed] = made
        found = judge([SILU], probes)
        assert "supported" not in {found[claim].verdict for claim in (READERS, WRITERS, LOW, RISE)}, found


def random_cosines(generator: np.random.Generator) -> tuple[float, ...]:
    return tuple(np.abs(generator.normal(0, 1 / math.sqrt(WIDTH), PAIRS)).tolist())


def test_a_full_screen_is_judged_between_two_frames():
    variants = [SILU, LanguageVariant(name="ReLU", activation="relu"), NONE, RADIAL]
    probes = {}
    for variant in variants:
        for key, made in networks(variant).items():
            probes[key] = {
                projection: [
                    msgspec.structs.replace(run[min(step // 100, 3)], step=step, activation_factor=0.5)
                    for step in range(400)
                ]
                for projection, run in made.items()
            }
    began = time.process_time()
    judge(variants, probes)
    # 30 ms where it was written; once a second, in a thread of its own.
    assert time.process_time() - began < 1
