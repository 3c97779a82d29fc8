"""What is said of a model's pattern: the three real models of the facts, and everything that must not be claimed."""

import msgspec
import pytest
from geocont import chance, pattern
from geocont.events import MatrixPlan, PairMeasured

SIDES = {"q": "v", "k": "v", "v": "v", "o": "u", "gate": "v", "up": "v", "down": "u"}


def model(means, dimension, layers, *, stack="text", ff=None):
    """Plans and adjacent pairs whose cosines are the given means: {projection: (v1, u1)}."""
    plans, pairs = [], []
    for name, (v1, u1) in means.items():
        side = SIDES.get(name, "v")
        rows, cols = (ff or dimension, dimension) if side == "v" else (dimension, ff or dimension)
        for layer in range(layers):
            plans.append(
                MatrixPlan(
                    stack=stack, projection=name, layer=layer, tensors=(f"{name}{layer}",), rows=rows, cols=cols,
                    dtype="F32", bytes=4 * rows * cols, side=side, rule="plain",
                )
            )  # fmt: skip
        pairs += [
            PairMeasured(
                stack=stack, projection=name, layer_a=layer, layer_b=layer + 1, v1_cosine=v1, u1_cosine=u1,
                v_dim=cols, u_dim=rows, v1_chance=chance.mean_cosine(cols), u1_chance=chance.mean_cosine(rows),
                residual_side=side,
            )
            for layer in range(layers - 1)
        ]  # fmt: skip
    return plans, pairs


SMOL = {
    "q": (0.419, 0.051), "k": (0.567, 0.088), "v": (0.078, 0.052), "o": (0.025, 0.393),
    "gate": (0.670, 0.036), "up": (0.392, 0.025), "down": (0.015, 0.764),
}  # fmt: skip
STORIES = {
    "q": (0.845, 0.1), "k": (0.873, 0.1), "v": (0.066, 0.1), "o": (0.1, 0.361),
    "gate": (0.106, 0.1), "up": (0.168, 0.1), "down": (0.1, 0.492),
}  # fmt: skip


def verdicts(findings):
    return {finding.claim: finding.verdict for finding in findings}


def test_a_model_with_the_sources_pattern():
    findings = pattern.judge(*model(SMOL, 576, 30))
    found = verdicts(findings)
    assert found["readers align in v1"] == found["writers align in u1"] == found["v is low in v1"] == "supported"
    assert "q 0.42, k 0.57, gate 0.67, up 0.39; chance 0.033" in findings[0].numbers
    assert findings[2].reason == "above chance, 16 % of the mean of q and k"


def test_a_model_without_it_is_said_to_be_without_it():
    findings = pattern.judge(*model(STORIES, 64, 5))
    assert findings[0].verdict == "contradicted"
    assert findings[0].reason == "at chance: gate, up"
    assert findings[1].verdict == "supported"
    assert findings[2].verdict == "supported"
    assert findings[2].reason == "at chance"


def test_a_value_that_is_not_clearly_low():
    findings = pattern.judge(*model({"q": (0.294, 0.1), "k": (0.247, 0.1), "v": (0.208, 0.1)}, 384, 6))
    assert verdicts(findings)["v is low in v1"] == "contradicted"


def test_continuity_where_the_source_has_none_is_told():
    findings = pattern.judge(*model({"up": (0.724, 0.611), "down": (0.01, 0.574)}, 384, 6))
    assert findings[-1].claim == "also above twice chance"
    assert findings[-1].numbers == "up u1 0.61"


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_run_that_goes_on_claims_nothing_yet(kept):
    plans, pairs = model(SMOL, 576, 30)
    partial = [pair for pair in pairs if pair.layer_a < kept]
    findings = pattern.judge(plans, partial)
    assert {finding.verdict for finding in findings if finding.claim != "also above twice chance"} == {"not yet"}
    if kept:
        assert findings[0].reason.startswith(f"{4 * kept} of 116 pairs")


def test_pairs_without_a_cosine_are_left_out_and_counted():
    plans, pairs = model(SMOL, 576, 30)
    blind = [
        msgspec.structs.replace(pair, v1_cosine=None, u1_cosine=None, status="not_unique")
        if pair.projection == "q" and pair.layer_a < 3
        else pair
        for pair in pairs
    ]
    [readers, *_] = pattern.judge(plans, blind)
    assert readers.verdict == "supported"
    assert "3 of 116 pairs left out: not unique" in readers.reason


def test_nothing_to_judge_by():
    plans, pairs = model({"q": (0.5, 0.1)}, 576, 30)
    none = [msgspec.structs.replace(pair, v1_cosine=None, u1_cosine=None, status="not_unique") for pair in pairs]
    [finding] = pattern.judge(plans, none)
    assert (finding.verdict, finding.numbers) == ("confounded", "n/a")
    assert "not unique" in finding.reason
    [two] = pattern.judge(*model({"q": (0.5, 0.01)}, 576, 3))
    assert two.verdict == "confounded"
    assert "too few" in two.reason
    [*_, value] = pattern.judge(*model({"q": (0.5, 0.01), "v": (0.01, 0.01)}, 576, 2))
    assert (value.claim, value.verdict) == ("v is low in v1", "confounded")
    assert value.reason == "1 pair a projection is too few to judge by"
    assert pattern.judge([], []) == ()
    assert pattern.judge(*model({"in_proj": (0.01, 0.01)}, 576, 30)) == ()


def test_stacks_are_judged_apart():
    plans, pairs = model(SMOL, 576, 30)
    other_plans, other_pairs = model(STORIES, 64, 5, stack="vision")
    found = verdicts(pattern.judge([*plans, *other_plans], [*pairs, *other_pairs]))
    assert found["readers align in v1 (text)"] == "supported"
    assert found["readers align in v1 (vision)"] == "contradicted"


def test_experts_count_as_their_projection():
    findings = pattern.judge(*model({"gate[E]": (0.5, None)}, 576, 30))
    assert verdicts(findings) == {"readers align in v1": "supported"}
