"""What can be said of two layers of one projection: dimensions, chance levels, status, and why a cosine is n/a."""

from collections.abc import Iterable
from typing import Literal

from geocont import chance
from geocont.events import MatrixMeasured, MatrixPlan, PairMeasured, Status

# From the best to the worst; a pair has the worse status of its two layers.
_ORDER: tuple[Status, ...] = (
    "ok",
    "shared",
    "not_unique",
    "not_converged",
    "shape_mismatch",
    "zero",
    "not_finite",
    "unsplit",
    "quantized_refused",
)
_REASONS: dict[Status, str] = {
    "not_unique": "v1 is not unique",
    "not_converged": "v1 is known roughly only",
    "zero": "the matrix is zero",
    "not_finite": "the matrix is not finite",
}
# Cosines are given where both layers have one of these.
_COMPARABLE = ("ok", "not_converged")


def worst(*statuses: Status) -> Status:
    """The worst of some statuses: ok, shared, not_unique, …, quantized_refused."""
    return max(statuses, key=_ORDER.index)


def status(plan: MatrixPlan, measured: MatrixMeasured | None) -> Status:
    """The status of one layer: what the plan says, or what the measurement found."""
    return plan.status if measured is None else worst(plan.status, measured.status)


def is_shared(first: MatrixMeasured | None, second: MatrixMeasured | None) -> bool:
    """Whether two layers hold the same numbers, under whatever names."""
    if first is None or second is None:
        return False
    return _original(first) == _original(second)


def has_cosines(first: Status, second: Status) -> bool:
    """Whether the cosines between layers of these statuses mean something."""
    return first in _COMPARABLE and second in _COMPARABLE


def pair(
    plan_a: MatrixPlan,
    plan_b: MatrixPlan,
    measured_a: MatrixMeasured | None,
    measured_b: MatrixMeasured | None,
    *,
    adjacent: bool = False,
) -> PairMeasured:
    """Two layers of one stack and projection with their cosines, without what needs more than v1 and u1.

    Args:
        plan_a, plan_b: the two layers as planned, the earlier one first.
        measured_a, measured_b: as measured; None where a layer is refused or not measured yet.
        adjacent: they are consecutive layers among those that have the projection: a gap between them is said.
    """
    statuses = [status(plan_a, measured_a), status(plan_b, measured_b)]
    reasons = [
        f"layer {plan.layer}: {note}"
        for plan, measured, one in zip((plan_a, plan_b), (measured_a, measured_b), statuses, strict=True)
        if (note := _reason(plan, measured, one))
    ]
    if len({reason.partition(": ")[2] for reason in reasons}) == 1 and len(reasons) == 2:
        reasons = [f"both layers: {reasons[0].partition(': ')[2]}"]
    v_dim = plan_a.cols if plan_a.cols == plan_b.cols else None
    u_dim = plan_a.rows if plan_a.rows == plan_b.rows else None
    if v_dim is None:
        reasons.append(f"v n/a ({plan_a.cols} vs {plan_b.cols})")
        statuses += ["shape_mismatch"] * _is_needed("v", plan_a, u_dim is None)
    if u_dim is None:
        reasons.append(f"u n/a ({plan_a.rows} vs {plan_b.rows})")
        statuses += ["shape_mismatch"] * _is_needed("u", plan_a, v_dim is None)
    if is_shared(measured_a, measured_b):
        reasons.append("both layers hold the same weights")
        statuses.append("shared")
    if adjacent and plan_b.layer - plan_a.layer > 1:
        reasons.append(f"{plan_b.layer - plan_a.layer} layers apart")
    v1_cosine, u1_cosine = (None, None) if "shared" in statuses else _cosines(measured_a, measured_b)
    for side, dimension in (("v", v_dim), ("u", u_dim)):
        if dimension == 1:
            reasons.append(f"{side} n/a (in one dimension all vectors align)")
    v1_cosine, u1_cosine = (None if v_dim == 1 else v1_cosine), (None if u_dim == 1 else u1_cosine)
    return PairMeasured(
        stack=plan_a.stack,
        projection=plan_a.projection,
        layer_a=plan_a.layer,
        layer_b=plan_b.layer,
        v1_cosine=v1_cosine,
        u1_cosine=u1_cosine,
        v_dim=v_dim,
        u_dim=u_dim,
        v1_chance=chance.mean_cosine(v_dim) if v_dim else None,
        u1_chance=chance.mean_cosine(u_dim) if u_dim else None,
        residual_side=plan_a.side,
        v_error_bound=_sum(one.v1_error_bound if one else None for one in (measured_a, measured_b)),
        u_error_bound=_sum(one.u1_error_bound if one else None for one in (measured_a, measured_b)),
        status=worst(*statuses),
        note="; ".join(reasons),
    )


def _original(measured: MatrixMeasured) -> int:
    return measured.layer if measured.same_as is None else measured.same_as


def _is_needed(side: Literal["v", "u"], plan: MatrixPlan, other_differs: bool) -> bool:
    """Whether nothing meaningful is left when the dimension of `side` differs."""
    return plan.side == side or (plan.side in ("both", "none") and other_differs)


def _reason(plan: MatrixPlan, measured: MatrixMeasured | None, found: Status) -> str:
    notes = dict.fromkeys(note for note in (plan.note, measured.note if measured else "") if note)
    if not notes and found in _REASONS:
        return _REASONS[found]
    return "; ".join(notes)


def _cosines(first: MatrixMeasured | None, second: MatrixMeasured | None) -> tuple[float | None, float | None]:
    """As the later measured of the two has them."""
    if first is None or second is None:
        return None, None
    for one, other in ((second, first), (first, second)):
        if other.layer in one.others:
            index = one.others.index(other.layer)
            return one.v1_cosines[index], one.u1_cosines[index]
    return None, None


def _sum(bounds: Iterable[float | None]) -> float | None:
    """The angle between two computed vectors is off by at most the sum of their own errors."""
    total = 0.0
    for bound in bounds:
        if bound is None:
            return None
        total += bound
    return min(total, 1.0)
