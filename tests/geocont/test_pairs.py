from itertools import permutations
from typing import get_args

import msgspec
import pytest
from geocont import chance, pairs
from geocont.events import MatrixMeasured, MatrixPlan, Status


def plan(layer: int, **changes) -> MatrixPlan:
    fields = {"rows": 64, "cols": 32, "side": "v", "tensors": (f"t{layer}",)}
    return MatrixPlan(
        stack="text", projection="q", layer=layer, dtype="F32", bytes=1, rule="plain", **{**fields, **changes}
    )


def measured(layer: int, **changes) -> MatrixMeasured:
    fields = {"status": "ok", "v1_error_bound": 1e-3, "u1_error_bound": 2e-3}
    return MatrixMeasured(
        stack="text", projection="q", layer=layer, singular_values=(2.0, 1.0), gap=1.0, stable_rank=1.0, frobenius=2.0,
        **{**fields, **changes},
    )  # fmt: skip


LATER = measured(1, others=(0,), v1_cosines=(0.5,), u1_cosines=(0.25,))


def test_a_plain_pair():
    pair = pairs.pair(plan(0), plan(1), measured(0), LATER)
    assert (pair.v1_cosine, pair.u1_cosine, pair.status, pair.note) == (0.5, 0.25, "ok", "")
    assert (pair.v_dim, pair.u_dim) == (32, 64)
    assert (pair.v1_chance, pair.u1_chance) == (chance.mean_cosine(32), chance.mean_cosine(64))
    assert (pair.v_error_bound, pair.u_error_bound) == (pytest.approx(2e-3), pytest.approx(4e-3))


def test_the_cosine_is_found_in_whichever_layer_was_measured_later():
    early = measured(0, others=(1,), v1_cosines=(0.75,), u1_cosines=(None,))
    assert pairs.pair(plan(0), plan(1), early, measured(1)).v1_cosine == 0.75


def test_nothing_is_said_of_what_is_not_measured():
    pair = pairs.pair(plan(0), plan(1), measured(0), None)
    assert (pair.v1_cosine, pair.v_error_bound, pair.status) == (None, None, "ok")


@pytest.mark.parametrize(
    ("side", "changes", "status"),
    [
        ("v", {"cols": 16}, "shape_mismatch"),
        ("v", {"rows": 16}, "ok"),
        ("u", {"cols": 16}, "ok"),
        ("u", {"rows": 16}, "shape_mismatch"),
        ("both", {"rows": 16}, "ok"),
        ("none", {"cols": 16}, "ok"),
        ("both", {"rows": 16, "cols": 16}, "shape_mismatch"),
    ],
)
def test_shapes_that_differ(side, changes, status):
    pair = pairs.pair(plan(0, side=side), plan(1, side=side, **changes), measured(0), measured(1))
    assert pair.status == status
    assert ("v n/a (32 vs 16)" in pair.note) == ("cols" in changes)
    assert ("u n/a (64 vs 16)" in pair.note) == ("rows" in changes)
    assert (pair.v1_chance is None) == ("cols" in changes)


def test_the_worse_status_of_two_layers_is_the_pairs():
    statuses = get_args(Status)
    assert {pairs.worst("ok", status) for status in statuses} == set(statuses)
    for one, other in permutations(statuses, 2):
        assert pairs.worst(one, other) == pairs.worst(other, one) in (one, other)
    pair = pairs.pair(
        plan(0), plan(1, status="quantized_refused", note="GPTQ"), measured(0, status="zero", note="all 0"), None
    )
    assert (pair.status, pair.note) == ("quantized_refused", "layer 0: all 0; layer 1: GPTQ")
    alike = pairs.pair(plan(0, note="weights were FP8"), plan(1, note="weights were FP8"), measured(0), LATER)
    assert (alike.status, alike.note) == ("ok", "both layers: weights were FP8")


def test_equal_weights_are_shared():
    third = measured(2, same_as=0, others=(0, 1), v1_cosines=(1.0, 0.5), u1_cosines=(1.0, 0.5))
    for first in (measured(0), measured(1, same_as=0)):
        pair = pairs.pair(plan(first.layer), plan(2), first, third)
        assert (pair.status, pair.v1_cosine, pair.note) == ("shared", None, "both layers hold the same weights")
    assert pairs.pair(plan(1), plan(2), measured(1), third).v1_cosine == 0.5


def test_layers_apart():
    assert pairs.pair(plan(0), plan(3), None, None, adjacent=True).note == "3 layers apart"
    assert pairs.pair(plan(0), plan(1), None, None, adjacent=True).note == ""
    assert pairs.pair(plan(0), plan(3), None, None).note == ""


def test_bounds_never_pass_one():
    wide = msgspec.structs.replace(LATER, v1_error_bound=0.9)
    assert pairs.pair(plan(0), plan(1), measured(0, v1_error_bound=0.9), wide).v_error_bound == 1


def test_in_one_dimension_there_is_nothing_to_compare():
    layers = [plan(layer, rows=1) for layer in (0, 1)]
    found = pairs.pair(*layers, measured(0), measured(1, others=(0,), v1_cosines=(0.5,), u1_cosines=(1.0,)))
    assert (found.v1_cosine, found.u1_cosine, found.status) == (0.5, None, "ok")
    assert "u n/a (in one dimension" in found.note
