"""From the state of an analysis, and what the user chose to see of it, to what its widgets show.

View                        the choices: projection, pair of layers, side, order and filter of the table
matrix_data(state, view)    projections × layers        bars_data(state, view)     means per projection
Views().map_data(…)         all pairs of layers         Views().table_data(…)      the adjacent pairs as a table
"""

from dataclasses import dataclass, field
from typing import Literal

from geocont import pairs
from geocont.events import PairMeasured, Status

from geocont_tui import analysis_state as states
from geocont_tui.analysis_state import AnalysisState, Row, Side
from geocont_tui.widgets.heat_map import HeatMapData
from geocont_tui.widgets.layer_matrix import LayerMatrixData, MatrixCell, MatrixRow
from geocont_tui.widgets.pair_table import PairRow, PairTableData, matching, sorted_rows
from geocont_tui.widgets.projection_bars import ProjectionBar, ProjectionBarsData, SideBar

Shown = Literal["residual", "v", "u"]


@dataclass(frozen=True)
class View:
    """What the user chose. `row` is a position in the state's rows; `pair` two layers, not only adjacent ones.

    `shown` is the side of matrix and map: the one that meets the residual stream, or v or u of every projection.
    """

    row: int = 0
    pair: tuple[int, int] | None = None
    shown: Shown = "residual"
    sort: int = 0
    reverse: bool = False
    words: str = ""


def row_of(state: AnalysisState, view: View) -> Row | None:
    """The selected projection; None before the plan is there."""
    rows = tuple(state.rows.values())
    return rows[min(view.row, len(rows) - 1)] if rows else None


def pair_of(row: Row, view: View) -> tuple[int, int] | None:
    """The selected pair of layers, the lower one first; the row's first where it has no such layers."""
    if view.pair is not None:
        lower, higher = sorted(view.pair)
        if lower in row.plans and higher in row.plans:
            return lower, higher
    return row.adjacent[0] if row.adjacent else None


def side_of(row: Row, view: View) -> Side:
    """The side that matrix and map show of a row."""
    return row.shown_side if view.shown == "residual" else view.shown


def compared(row: Row, layers: tuple[int, int]) -> PairMeasured:
    """Two layers of a row, adjacent or not, as far as they are measured."""
    found = row.pairs.get(layers)
    if found is not None:
        return found
    first, second = layers
    return pairs.pair(row.plans[first], row.plans[second], row.matrices.get(first), row.matrices.get(second))


def is_known(row: Row, layers: tuple[int, int]) -> bool:
    """Whether all that will be known of two layers is known."""
    return layers in row.pairs or all(layer in row.matrices or row.plans[layer].status != "ok" for layer in layers)


def matrix_data(state: AnalysisState, view: View) -> LayerMatrixData:
    """Every projection with its adjacent pairs, each under its lower layer."""
    layers = state.layers
    rows = []
    selected = 0
    for position, row in enumerate(state.rows.values()):
        side = side_of(row, view)
        after = dict(row.adjacent)
        found = states.summary(row, side)
        cells = tuple(_cell(row, layer, after[layer], side) if layer in after else ABSENT for layer in layers)
        rows.append(
            MatrixRow(
                label=row.label,
                side=states.NAMES[side][0],
                is_residual=row.is_residual(side),
                cells=cells,
                done=states.done_pairs(row),
                planned=len(row.adjacent),
                mean=found.mean if found else None,
            )
        )
        if position == view.row:
            pair = pair_of(row, view)
            selected = layers.index(pair[0]) if pair else 0
    return LayerMatrixData(layers, tuple(rows), (view.row, selected))


ABSENT = MatrixCell("absent")


def _cell(row: Row, first: int, second: int, side: Side) -> MatrixCell:
    pair = row.pairs.get((first, second))
    if pair is None:
        return MatrixCell("half" if first in row.matrices else "unread")
    level = pair.v1_chance if side == "v" else pair.u1_chance
    return MatrixCell(pair.status, states.cosine(pair, side), level)


def bars_data(state: AnalysisState, view: View) -> ProjectionBarsData:
    """Means over the adjacent pairs so far, with what was left out of them."""
    rows = tuple(ProjectionBar(row.label, _side_bar(row, "v"), _side_bar(row, "u")) for row in state.rows.values())
    return ProjectionBarsData(rows if state.pairs else (), view.row)


def _side_bar(row: Row, side: Side) -> SideBar:
    found, left_out = states.summary(row, side), states.left_out(row, side)
    return SideBar(
        mean=found.mean if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        chance=found.chance if found else None,
        limit=found.limit if found else None,
        is_residual=row.is_residual(side),
        left_out=", ".join(f"{count} {reason}" for reason, count in left_out.items()),
        left_out_count=sum(left_out.values()),
        is_unique=set(left_out) != {states.REASONS["not_unique"]},
    )


def left_out_text(state: AnalysisState) -> str:
    """How many pairs have no cosine on the side that counts, "" where none."""
    count = sum(sum(states.left_out(row, row.shown_side).values()) for row in state.rows.values())
    return f"{count} pair{'s' if count > 1 else ''} left out of the means" if count else ""


@dataclass
class Views:
    """Map and table of an analysis; makes a row's part again only when the row has new measurements."""

    _maps: dict[tuple[str, str, Side], tuple[Row, HeatMapData]] = field(default_factory=dict)
    _tables: dict[tuple[str, str], tuple[Row, tuple[PairRow, ...]]] = field(default_factory=dict)

    def map_data(self, state: AnalysisState, view: View) -> HeatMapData:
        """All pairs of layers of the selected projection."""
        row = row_of(state, view)
        if row is None:
            return HeatMapData()
        side = side_of(row, view)
        key = (row.stack, row.projection, side)
        known = self._maps.get(key)
        if known is None or known[0] is not row:
            cosines = states.all_cosines(row, side)
            known = (
                row,
                HeatMapData(
                    layers=row.layers,
                    cosines=cosines,
                    statuses={pair: _status(row, pair) for pair, value in cosines.items() if value is None},
                    chance=states.chance_of(row, side, row.layers[0]),
                    index=0 if side == "v" else 1,
                ),
            )
            self._maps[key] = known
        data = known[1]
        pair = pair_of(row, view)
        # The map is a square: the pair is where the user put it.
        selected = view.pair if view.pair is not None and pair == tuple(sorted(view.pair)) else pair
        return HeatMapData(data.layers, data.cosines, data.statuses, data.chance, selected, data.index)

    def table_data(self, state: AnalysisState, view: View) -> PairTableData:
        """The adjacent pairs measured so far, filtered and sorted."""
        rows = self.rows(state)
        row = row_of(state, view)
        pair = pair_of(row, view) if row else None
        return PairTableData(
            rows=sorted_rows(matching(rows, view.words), view.sort, view.reverse),
            selected=(row.stack, row.projection, *pair) if row and pair else None,
            sort=view.sort,
            reverse=view.reverse,
            total=len(rows),
        )

    def rows(self, state: AnalysisState) -> tuple[PairRow, ...]:
        """All adjacent pairs measured so far, in the order of the plan."""
        found: list[PairRow] = []
        for order, (key, row) in enumerate(state.rows.items()):
            known = self._tables.get(key)
            if known is None or known[0] is not row:
                known = row, tuple(_pair_row(row, order, row.pairs[pair]) for pair in row.adjacent if pair in row.pairs)
                self._tables[key] = known
            found += known[1]
        return tuple(found)


def _pair_row(row: Row, order: int, pair: PairMeasured) -> PairRow:
    gaps = [matrix.gap for layer in (pair.layer_a, pair.layer_b) if (matrix := row.matrices.get(layer)) is not None]
    is_u = row.shown_side == "u"
    return PairRow(
        key=(row.stack, row.projection, pair.layer_a, pair.layer_b),
        label=row.label,
        order=order,
        v1=states.cosine(pair, "v"),
        u1=states.cosine(pair, "u"),
        gram=pair.u_gram if is_u else pair.v_gram,
        gap=min((gap for gap in gaps if gap is not None), default=None),
        bound=pair.u_error_bound if is_u else pair.v_error_bound,
        status="ok" if pair.status == "ok" else states.REASONS.get(pair.status, pair.status),
        note=pair.note,
    )


def _status(row: Row, layers: tuple[int, int]) -> Status:
    """Why a pair has no cosine, in a word."""
    pair = row.pairs.get(layers)
    if pair is not None:
        return "shape_mismatch" if pair.status == "ok" else pair.status
    first, second = layers
    if pairs.is_shared(row.matrices.get(first), row.matrices.get(second)):
        return "shared"
    found = pairs.worst(*(pairs.status(row.plans[layer], row.matrices.get(layer)) for layer in layers))
    return "shape_mismatch" if found == "ok" else found
