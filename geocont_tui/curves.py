"""From a state, and what the user chose to see of it, to what chart and bars show.

View                                        the choices: quantity, variant, what is hidden, axes, smoothing
Trajectories().of(state, variant, quantity, projection) state.trajectory, computed again only after new measurements
chart_data(state, view, trajectories)       curves of all variants that are not hidden, or of all projections of one
bars_data(state, variant, quantity, index, projection)  one variant's pairs of adjacent layers as they are now
projection_bars_data(state, variant, quantity, index)   one variant's projections as they are now, v1 and u1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from geocont import chance
from geocont.ablations.experiment import AnyVariant
from geocont.events import Probe

from geocont_tui import state as states
from geocont_tui.state import AblationState, Quantity, Trajectory
from geocont_tui.widgets.bars import BarRow, BarsData, level_range
from geocont_tui.widgets.chart import ChartData, Curve, Level

SMOOTHINGS = (1, 3, 5, 9)
"""Over how many neighbouring measurements the mean goes; 1: as measured."""

# A linear axis leaves the shorter trainings too little room when the longest is this many times the median.
_MUCH_LONGER = 3
_Y_STEP = 0.05


@dataclass(frozen=True)
class View:
    """What the user chose. `projections_apart`: the projections of the selected variant, not one of all variants.

    `side_by_hand`: the user has left the residual side. `window` is the shown part of the x axis, as drawn, 0…1.
    """

    quantity: Quantity = states.WEIGHT_V1
    projection: str = states.HIDDEN
    side_by_hand: bool = False
    projections_apart: bool = False
    selected: int = 0
    hidden: frozenset[str] = frozenset()
    seeds_apart: bool = False
    log_x: bool = False
    auto_y: bool = False
    smoothing: int = 1
    window: tuple[float, float] = (0.0, 1.0)


@dataclass
class Trajectories:
    """Trajectories of a run; asks for one again only when its networks have new measurements."""

    _known: dict[tuple[str, Quantity, str], tuple[list[tuple[Probe, ...]], Trajectory]] = field(default_factory=dict)

    def of(self, state: AblationState, variant: str, quantity: Quantity, projection: str = states.HIDDEN) -> Trajectory:
        """As `state.trajectory`."""
        probes = [network.probes(projection) for network in state.of(variant)]
        known = self._known.get((variant, quantity, projection))
        if known is not None and all(old is new for old, new in zip(known[0], probes, strict=True)):
            return known[1]
        found = states.trajectory(state, variant, quantity, projection)
        self._known[variant, quantity, projection] = probes, found
        return found


def prefers_log_x(state: AblationState) -> bool:
    """Whether the lengths of the variants differ so much that a linear axis would hide the short ones."""
    lengths = sorted(variant.steps for variant in state.experiment.variants)
    return lengths[-1] > _MUCH_LONGER * lengths[len(lengths) // 2]


def chart_data(state: AblationState, view: View, trajectories: Trajectories) -> ChartData:
    """The curves of the variants that are not hidden, the selected one on top, with the chance level.

    With `projections_apart` those of the projections of the selected variant, the chosen one on top.
    """
    shown = _shown(state, view)
    curves: list[Curve] = []
    for position, (index, name, variant, projection) in enumerate(shown, 1):
        # The selected one, which is the last, stands out.
        is_faint = position < len(shown)
        found = trajectories.of(state, variant.name, view.quantity, projection)
        if view.seeds_apart:
            curves += [
                Curve(f"{name} seed {seed}", index, _floats(steps), _smooth(values, view.smoothing), is_faint=is_faint)
                for seed, (steps, values) in found.seeds.items()
            ]
        else:
            low, high = (_smooth(bound, view.smoothing) for bound in (found.low, found.high))
            mean = _smooth(found.mean, view.smoothing)
            curves.append(Curve(name, index, _floats(found.steps), mean, low, high, is_faint))
    length = max((variant.steps for _, _, variant, _ in shown), default=1)
    x_limits = _x_limits(length, view)
    return ChartData(
        curves=tuple(curves),
        x_limits=x_limits,
        y_limits=_y_limits(curves, x_limits) if view.auto_y else (0.0, 1.0),
        log_x=view.log_x,
        levels=_levels(state, [(variant.name, projection) for _, _, variant, projection in shown], view.quantity),
    )


def _shown(state: AblationState, view: View) -> list[tuple[int, str, AnyVariant, str]]:
    """Hue, name, variant and projection of the curves in the order in which they are drawn."""
    if view.projections_apart:
        variant = state.experiment.variants[view.selected]
        has = states.measured_projections(variant)
        numbered = [(index, name) for index, name in enumerate(state.projections) if name in has]
        numbered.sort(key=lambda each: each[1] == view.projection)
        marks = {name: "*" if states.residual_side(name) == view.quantity.side else "" for _, name in numbered}
        return [(index, f"{name}{marks[name]}", variant, name) for index, name in numbered]
    shown = [
        (index, variant.name, variant, view.projection)
        for index, variant in enumerate(state.experiment.variants)
        if variant.name not in view.hidden
    ]
    shown.sort(key=lambda each: each[0] == view.selected)
    return shown


def bars_data(
    state: AblationState, variant: str, quantity: Quantity, index: int, projection: str = states.HIDDEN
) -> BarsData:
    """|cos| of each pair of adjacent layers now, mean over seeds, with the chance level of one pair."""
    values = states.now(state, variant, quantity, projection)
    reason = states.missing(state, variant, quantity.kind, projection) or "not measured"
    rows = tuple(
        BarRow(
            label=f"{layer}-{layer + 1}",
            value=value,
            note="" if value is not None else reason,
            unique=value is not None or "not unique" not in reason,
        )
        for layer, value in enumerate(values)
    )
    size = states.dimension(state, variant, quantity, projection)
    level, limit = chance.mean_cosine(size), chance.band_of_mean(size, state.experiment.seeds)[1]
    return BarsData(
        rows=rows,
        chance=level,
        chance_limit=limit,
        chance_label=f"chance {level:.3f} ({size} dims)" if rows else "",
        limit_label=f"95 % below {limit:.3f}" if rows else "",
        index=index,
    )


def projection_bars_data(state: AblationState, variant: str, quantity: Quantity, index: int) -> BarsData:
    """Mean |cos| of adjacent layers now on both sides of every projection, * on the side of the residual stream."""
    rows: list[BarRow] = []
    levels: list[float] = []
    limits: list[float] = []
    for projection in states.measured_projections(states.variant_of(state, variant)):
        for one in (replace(quantity, side="v1"), replace(quantity, side="u1")):
            found = states.mean_now(state, variant, one, projection)
            level, limit = states.chance_level(state, variant, one, projection)
            reason = states.missing(state, variant, quantity.kind, projection) or "not measured"
            mark = "*" if states.residual_side(projection) == one.side else " "
            rows.append(
                BarRow(
                    label=f"{projection:<4} {one.side}{mark}",
                    value=None if found is None else found.mean,
                    note=reason if found is None else "" if found.std is None else f"±{found.std:.2f}",
                    unique=found is not None or "not unique" not in reason,
                    chance=level,
                    chance_limit=limit,
                )
            )
            levels.append(level)
            limits.append(limit)
    return BarsData(
        tuple(rows),
        chance=min(levels),
        chance_label=f"chance {level_range(levels)}",
        limit_label=f"95 % below {level_range(limits)}",
        index=index,
    )


def with_quantity(view: View, by: int) -> View:
    """The view of a quantity further on. Who chooses the side that is not the residual one keeps it."""
    position = (states.QUANTITIES.index(view.quantity) + by) % len(states.QUANTITIES)
    quantity = states.QUANTITIES[position]
    side = states.residual_side(view.projection)
    return replace(view, quantity=quantity, side_by_hand=side not in (None, quantity.side))


def with_projection(view: View, projection: str) -> View:
    """The view of another projection, on its residual side unless the user chose a side by hand."""
    side = states.residual_side(projection)
    if side is None or view.side_by_hand:
        return replace(view, projection=projection)
    return replace(view, projection=projection, quantity=replace(view.quantity, side=side))


def zoomed(window: tuple[float, float], by: int) -> tuple[float, float]:
    """The window at half (by=1) or twice (by=-1) the width, its start kept where that is possible."""
    start, end = window
    width = min(max((end - start) / 2**by, 1 / 64), 1.0)
    start = min(start, 1.0 - width)
    return start, start + width


def panned(window: tuple[float, float], by: int) -> tuple[float, float]:
    """The window moved by a quarter of its width, inside 0…1."""
    width = window[1] - window[0]
    start = min(max(window[0] + by * width / 4, 0.0), 1.0 - width)
    return start, start + width


def _x_limits(length: int, view: View) -> tuple[float, float]:
    if view.log_x:
        low, high = ((1 + length) ** place - 1 for place in view.window)
        return low, high
    return view.window[0] * length, view.window[1] * length


def _y_limits(curves: Sequence[Curve], x_limits: tuple[float, float]) -> tuple[float, float]:
    """What the curves need, in whole steps, so that the axis seldom changes."""
    shown = [
        value
        for curve in curves
        for values in (curve.y, curve.low, curve.high)
        for x, value in zip(curve.x, values or (), strict=False)
        if value is not None and math.isfinite(value) and x_limits[0] <= x <= x_limits[1]
    ]
    if not shown:
        return 0.0, 1.0
    low = max(math.floor(min(shown) / _Y_STEP) * _Y_STEP, 0.0)
    high = min(math.ceil(max(shown) / _Y_STEP) * _Y_STEP, 1.0)
    return low, max(high, low + _Y_STEP)


def _levels(state: AblationState, shown: Sequence[tuple[str, str]], quantity: Quantity) -> tuple[Level, ...]:
    sizes = sorted({states.dimension(state, variant, quantity, projection) for variant, projection in shown})
    return tuple(
        Level(
            chance.mean_cosine(size),
            f"chance {chance.mean_cosine(size):.3f}" + (f" ({size} dims)" if len(sizes) > 1 else ""),
        )
        for size in sizes
    )


def _floats(steps: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(step) for step in steps)


def _smooth(values: Sequence[float | None], window: int) -> tuple[float | None, ...]:
    """Mean over `window` neighbours around each value, fewer at the ends; what does not exist stays so."""
    if window == 1:
        return tuple(values)
    half = window // 2
    smooth: list[float | None] = []
    for place, value in enumerate(values):
        reach = min(half, place, len(values) - 1 - place)
        near = [other for other in values[place - reach : place + reach + 1] if other is not None]
        smooth.append(sum(near) / len(near) if value is not None else None)
    return tuple(smooth)
