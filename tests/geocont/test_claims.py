"""The verdicts on made-up numbers, each claim in each of its outcomes, and on networks that are really trained."""

import pytest
from geocont import chance, claims
from geocont.ablations.experiment import Adam, Data, Experiment, Normal, Probes, Variant
from geocont.ablations.training import train
from geocont.events import Alignment, NetworkFinished, Probe, mean_of_pairs

WIDTH, PAIRS = 256, 15
LEVEL = chance.mean_cosine(WIDTH)


def alignment(v1: float | None, u1: float | None = None) -> Alignment:
    return Alignment(v1=(v1,) * PAIRS, u1=(v1 if u1 is None else u1,) * PAIRS)


def probe(variant: str, seed: int, step: int, v1: float = LEVEL, **changes) -> Probe:
    gradient = changes.pop("gradient", (0.95, 0.95))
    values = {
        "variant": variant,
        "seed": seed,
        "step": step,
        "projection": "hidden",
        "v_dim": WIDTH,
        "u_dim": WIDTH,
        "loss": 1.0,
        "accuracy": 0.9,
        "weight": alignment(v1),
        "gradient": alignment(*gradient),
        "cumulative": alignment(None),
        "update": alignment(None),
        "weight_v_weighted": None,
        "weight_u_weighted": None,
        "update_ratio": 0.0 if step == 0 else 1.0,
        "sigma_ratio": 1.02 if step == 0 else 1.5,
        "top_overlap_v": 0.3,
        "top_overlap_u": 0.3,
        "cumulative_match": None,
        "drift": None,
        "identity_share": 0.0,
        "activation_factor": None,
        "gradient_norm": 1.0,
        "exact": False,
    }
    return Probe(**values | changes)


def judge(variants: list[Variant], curves: dict[str, list[list[Probe]]], done: bool = True, seeds: int = 3):
    experiment = Experiment(name="test", seeds=seeds, variants=tuple(variants))
    probes = {(name, seed): run for name, runs in curves.items() for seed, run in enumerate(runs)}
    finished = {
        key: NetworkFinished(variant=key[0], seed=key[1], step=run[-1].step, test_loss=0.1, test_accuracy=0.9)
        for key, run in probes.items()
        if done
    }
    return {finding.claim: finding for finding in claims.judge(experiment, probes, finished)}


def curve(name: str, values: dict[int, float], spread: float = 0.01, **changes) -> list[list[Probe]]:
    """Three seeds around a trajectory of weight v1; `changes` apply to every probe but the first."""
    return [
        [
            probe(name, seed, step, value + (seed - 1) * spread * (step > 0), **(changes if step else {}))
            for step, value in values.items()
        ]
        for seed in range(3)
    ]


GELU = Variant(name="GELU", activation="gelu")
NONE = Variant(name="None", activation="none")
RADIAL = Variant(name="Radial", activation="radial")
PLAIN = Variant(name="Plain", residual=False)
LN = Variant(name="LN", activation="none", normalization="layernorm")
BOTH = Variant(name="Both", activation="gelu", normalization="layernorm")
COHERENT = "gradients coherent at step 0 with residuals"
CHANCE = "gradients at chance at step 0 without residuals"
KEPT = "an elementwise activation keeps continuity"


@pytest.mark.parametrize(("value", "verdict"), [(0.95, "supported"), (LEVEL, "contradicted")])
def test_gradient_coherence_is_judged_against_the_band_of_chance(value, verdict):
    runs = [[probe("GELU", seed, 0, gradient=(value, value))] for seed in range(3)]
    assert judge([GELU], {"GELU": runs}, done=False)[COHERENT].verdict == verdict
    assert judge([GELU], {}, done=False)[COHERENT].verdict == "not yet"


@pytest.mark.parametrize(
    ("gradient", "verdict"),
    [
        ((LEVEL, LEVEL), "supported"),
        ((0.3, LEVEL), "confounded"),
        ((LEVEL, 0.3), "confounded"),
        ((0.3, 0.3), "contradicted"),
    ],
)
def test_gradients_without_residuals(gradient, verdict):
    runs = [[probe("Plain", seed, 0, gradient=gradient)] for seed in range(3)]
    assert judge([PLAIN], {"Plain": runs}, done=False)[CHANCE].verdict == verdict


@pytest.mark.parametrize(
    ("end", "moved", "done", "verdict"),
    [
        (LEVEL, 1.0, True, "supported"),
        (LEVEL, 1.0, False, "not yet"),
        (LEVEL, 1e-9, True, "confounded"),
        (0.5, 1.0, True, "contradicted"),
    ],
)
def test_a_network_that_does_not_train_proves_nothing(end, moved, done, verdict):
    runs = curve("Plain", {0: LEVEL, 100: end}, spread=0.001, update_ratio=moved)
    assert judge([PLAIN], {"Plain": runs}, done=done)["no weight continuity without residuals"].verdict == verdict


@pytest.mark.parametrize(
    ("values", "changes", "verdict"),
    [
        ({0: LEVEL, 50: 0.9, 100: 0.4}, {}, "supported"),
        ({0: LEVEL, 50: 0.9, 100: 0.895}, {}, "not yet"),
        ({0: LEVEL, 50: LEVEL, 100: LEVEL}, {"spread": 0.0}, "contradicted"),
        ({0: LEVEL, 50: LEVEL, 100: LEVEL}, {"spread": 0.0, "update_ratio": 0.1}, "confounded"),
        ({0: LEVEL, 50: 0.9, 100: 0.4}, {"sigma_ratio": 1.01}, "confounded"),
        ({0: LEVEL, 50: 0.9, 100: 0.4}, {"spread": 0.6}, "not yet"),
    ],
)
def test_rise_and_fall_of_the_linear_network(values, changes, verdict):
    found = judge([NONE], {"None": curve("None", values, **changes)})["None rises, then falls"]
    assert found.verdict == verdict, found


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "supported"), (0.995, "confounded")])
def test_a_radial_activation_that_never_acts_is_confounded(factor, verdict):
    runs = curve("Radial", {0: LEVEL, 50: 0.9, 100: 0.4}, activation_factor=factor)
    found = judge([RADIAL], {"Radial": runs})["Radial rises, then falls"]
    assert found.verdict == verdict
    assert verdict != "confounded" or "linear" in found.reason


@pytest.mark.parametrize(
    ("kept", "lost", "done", "verdict"),
    [
        ({0: LEVEL, 50: 0.9, 100: 0.95}, {0: LEVEL, 50: 0.9, 100: 0.4}, True, "supported"),
        ({0: LEVEL, 50: 0.9, 100: 0.95}, {0: LEVEL, 50: 0.9, 100: 0.92}, False, "not yet"),
        ({0: LEVEL, 50: 0.9, 100: 0.3}, {0: LEVEL, 50: 0.9, 100: 0.92}, True, "contradicted"),
        ({0: LEVEL, 50: 0.9, 100: 0.6}, {0: LEVEL, 50: 0.9, 100: 0.4}, True, "contradicted"),
        ({0: LEVEL, 50: 0.9, 100: 0.9}, {0: LEVEL, 50: 0.9, 100: 0.9}, True, "not yet"),
    ],
)
def test_the_verdict_on_activations_comes_from_the_difference_against_the_spread(kept, lost, done, verdict):
    found = judge([GELU, NONE], {"GELU": curve("GELU", kept), "None": curve("None", lost)}, done=done)
    assert found[KEPT].verdict == verdict, found[KEPT]


def test_one_seed_has_no_spread_to_judge_by():
    curves = {name: curve(name, {0: LEVEL, 50: 0.9, 100: 0.4})[:1] for name in ("GELU", "None")}
    found = judge([GELU, NONE], curves, seeds=1)
    assert found[KEPT].verdict == found["None rises, then falls"].verdict == "not yet"
    assert "one seed" in found[KEPT].reason


def test_normalization_is_judged_by_width_and_gap_and_the_combination_by_the_nearer_one():
    curves = {
        "GELU": curve("GELU", {0: LEVEL, 100: 0.95}, top_overlap_v=0.5, sigma_ratio=2.0),
        "LN": curve("LN", {0: LEVEL, 100: 0.7}, top_overlap_v=0.7, sigma_ratio=1.1),
        "Both": curve("Both", {0: LEVEL, 100: 0.93}),
    }
    found = judge([GELU, LN, BOTH], curves)
    assert found["LN spreads continuity over several directions"].verdict == "supported"
    assert found["Both: the activation's mode wins"].verdict == "supported"
    curves["Both"] = curve("Both", {0: LEVEL, 100: 0.72})
    curves["LN"] = curve("LN", {0: LEVEL, 100: 0.7}, top_overlap_v=0.1, sigma_ratio=3.0)
    found = judge([GELU, LN, BOTH], curves)
    assert found["LN spreads continuity over several directions"].verdict == "contradicted"
    assert found["Both: the activation's mode wins"].verdict == "contradicted"


def test_variants_are_compared_only_with_others_of_the_same_settings():
    other = Variant(name="None slow", activation="none", optimizer=Adam(learning_rate=1e-5))
    curves = {name: curve(name, {0: LEVEL, 50: 0.9, 100: 0.4}) for name in ("GELU", "None slow")}
    assert KEPT not in judge([GELU, other], curves)


def test_nothing_is_claimed_before_anything_is_measured():
    found = judge([GELU, NONE, RADIAL, PLAIN, LN, BOTH], {}, done=False)
    assert len(found) == 8
    assert {finding.verdict for finding in found.values()} == {"not yet"}


def test_the_claims_that_need_few_steps_hold_for_networks_that_are_really_trained():
    experiment = Experiment(
        name="small",
        seeds=3,
        data=Data(images=5000),
        probes=Probes(leading=4),
        variants=tuple(
            Variant(depth=8, width=64, initialization=Normal(std=0.01), steps=120, **settings)
            for settings in (
                {"name": "GELU", "activation": "gelu"},
                {"name": "None", "activation": "none"},
                {"name": "Radial", "activation": "radial_scaled"},
                {"name": "Plain", "activation": "gelu", "residual": False},
            )
        ),
    )
    probes: dict[tuple[str, int], list[Probe]] = {}
    finished = {}
    for event in train(experiment, "cpu"):
        if isinstance(event, Probe):
            probes.setdefault((event.variant, event.seed), []).append(event)
        if isinstance(event, NetworkFinished):
            finished[event.variant, event.seed] = event
    found = {finding.claim: finding for finding in claims.judge(experiment, probes, finished)}
    assert found[COHERENT].verdict == "supported", found[COHERENT]
    assert found[CHANCE].verdict == "supported", found[CHANCE]
    assert found["Radial rises, then falls"].verdict == "supported", found["Radial rises, then falls"]
    ends = {
        name: mean_of_pairs([v for seed in range(3) for v in probes[name, seed][-1].weight.v1])
        for name in ("GELU", "Plain", "Radial")
    }
    high = chance.band_of_mean(64, 7 * 3)[1]
    assert ends["GELU"] > ends["Radial"] + 0.1, ends
    assert ends["GELU"] > 3 * high
    assert ends["Plain"] < high
