"""The screen of an analysis: the plan, projections × layers, bars, map, table, pair, claims and log.

    screen = AnalysisScreen(snapshot, palette, kept)
    screen.paint(snapshot, phase, everything=False)     called by the app at its own rate; repaints what changed

It opens on the plan and goes over to the bars when the first pair is measured, unless the user chose before.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from geocont_tui import analysis_state as states
from geocont_tui import analysis_view as views
from geocont_tui import keys
from geocont_tui.analysis_state import AnalysisState, Row
from geocont_tui.job import Snapshot
from geocont_tui.palette import Palette
from geocont_tui.plain_text import size
from geocont_tui.screens.dialogs import FilterDialog
from geocont_tui.screens.pair import cosine_line, pair_paragraphs, pair_text, pair_title
from geocont_tui.screens.plan import plan_paragraphs
from geocont_tui.screens.reader import Reader
from geocont_tui.screens.run import NORMAL, OVER, SIGNS, Pane, Phase, RunScreen
from geocont_tui.widgets import pair_table, shades
from geocont_tui.widgets.claims_panel import ClaimsPanel
from geocont_tui.widgets.heat_map import HeatMap, rows_for
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.layer_matrix import LayerMatrix
from geocont_tui.widgets.lines import Lines
from geocont_tui.widgets.log_pane import LogPane
from geocont_tui.widgets.pair_table import PairTable
from geocont_tui.widgets.projection_bars import ProjectionBars
from geocont_tui.widgets.status_line import StatusData, StatusLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane

NUMBERED_TABS = 58
SHORTEST_PAIR_OF_PANES = 18
SHORTEST_MATRIX = 4
HEAD_AND_KEYS = 3
FRAME = 2
FILTER = (
    "Words that a row must have in its projection, layers, status or note (q, 3-4, not unique), and comparisons of v1, "
    "u1, gram, gap (σ1/σ2 - 1), bound and layer with a number: v1>.5 gap<0.1 layer<8. All must fit."
)
NO_CLAIMS = "nothing can be said yet: no projection has enough pairs"


class AnalysisScreen(RunScreen):
    """The screen; see the module's docstring."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings("analysis"))
    PLACE = "analysis"
    WORK = "analysis"
    VIEWS = ("bars", "map", "table", "pair", "claims", "log", "plan")
    CONTAINERS = ("#lower", "#left", "#right")
    LOG_KEY = "7"
    TABLE_FILES = ("pairs.csv", "matrices.csv")

    def __init__(self, snapshot: Snapshot[AnalysisState], palette: Palette, kept: str) -> None:
        super().__init__(snapshot, palette, kept, "matrix")
        self.view = views.View()
        self._views = views.Views()
        self._shown_view = "plan"
        self._view_chosen = False

    @property
    def state(self) -> AnalysisState:
        state: AnalysisState = self._snapshot.state
        return state

    @property
    def row(self) -> Row | None:
        """The selected projection."""
        return views.row_of(self.state, self.view)

    @property
    def pair(self) -> tuple[int, int] | None:
        """The selected pair of layers."""
        return views.pair_of(self.row, self.view) if self.row else None

    def compose(self) -> ComposeResult:
        palette = self.palette
        yield StatusLine(palette, id="status")
        with Pane(palette, id="matrix"):
            yield LayerMatrix(palette)
        with Horizontal(id="lower"):
            with Vertical(id="left"):
                with Pane(palette, id="view"):
                    yield ProjectionBars(palette, id="bars")
                    yield HeatMap(palette, id="map")
                    yield PairTable(palette, id="table")
                    yield TextPane(palette, id="pair")
                    yield ClaimsPanel(palette, id="claims", none=NO_CLAIMS)
                    yield LogPane(palette, id="log")
                    yield TextPane(palette, id="plan")
                    yield TextPane(palette, id="failure")
                with Pane(palette, id="claims-pane"):
                    yield ClaimsPanel(palette, none=NO_CLAIMS)
            with Vertical(id="right"):
                with Pane(palette, id="map-pane"):
                    yield HeatMap(palette)
                with Pane(palette, id="table-pane"):
                    yield PairTable(palette)
        yield TextPane(palette, id="too-small")
        yield KeyLine(palette, "analysis", id="keys")

    # What is where

    @property
    def _is_single(self) -> bool:
        if self._zoomed or self.size.width < NORMAL[0] or self.size.height < SHORTEST_PAIR_OF_PANES:
            return True
        # The map shows every pair rather than the matrix anything.
        return self._shown_view == "map" and self._pane == "view" and 0 <= self._beside_map < SHORTEST_MATRIX

    @property
    def _beside_map(self) -> int:
        """How many rows are left for the matrix where the map shows every pair; negative where it cannot."""
        layers = len(self.row.layers) if self.row else 0
        return self.size.height - HEAD_AND_KEYS - FRAME - rows_for(layers, self.palette)

    @property
    def _panes(self) -> list[str]:
        panes = ["matrix", "view"]
        if self.has_class("-wide"):
            panes += ["claims-pane", "map-pane"]
        if self.has_class("-wide") or self.has_class("-middle"):
            panes.append("table-pane")
        # What the view shows need not be seen twice.
        return [pane for pane in panes if pane != f"{self._shown_view}-pane"]

    def _arrange(self) -> None:
        # A frame, the numbers of the layers and the rows, but not more than leaves the other panes their part.
        rows = len(self.state.rows) or 7
        height = max(min(rows + 3, 10 if self.size.height < 34 else 14, (self.size.height - 3) // 2), SHORTEST_MATRIX)
        if self._shown_view == "map" and SHORTEST_MATRIX <= self._beside_map < height:
            height = self._beside_map
        self.query_one("#matrix").styles.height = "1fr" if self._is_single else height
        for pane in ("map-pane", "table-pane", "claims-pane"):
            self.query_one(f"#{pane}").set_class(pane == f"{self._shown_view}-pane", "-shown-elsewhere")
        for view in ("map", "table"):
            self.query_one("#right").set_class(self._shown_view == view, f"-{view}-elsewhere")
        super()._arrange()

    def _entitle(self) -> None:
        """Titles change with what the user chooses, and the subtitles with the selected pair."""
        row, pair = self.row, self.pair
        selected = self.palette.glyphs.signs["selected"]
        is_roomy = self._view_width >= NUMBERED_TABS
        tabs = [f"[{name}]" if name == self._shown_view else name for name in self.VIEWS]
        if is_roomy:
            tabs = [f"{number} {tab}" for number, tab in enumerate(tabs, 2)]
        if self._shown_view == "failure":
            tabs = ["[failed]", f"({self._view_keys}: what was measured)"]
        side = {"residual": "residual side", "v": "v1 (input)", "u": "u1 (output)"}[self.view.shown]
        shown = views.side_of(row, self.view) if row else "v"
        what = f"|cos {states.NAMES[shown]}| of all pairs of layers" + (f" of {row.label}" if row else "")
        said = cosine_line(row, pair, shown) if row and pair else ""
        filtered = ""
        if self.view.words:
            table = self._views.table_data(self.state, self.view)
            filtered = f"filter: {self.view.words}; {len(table.rows)} of {table.total}"
        left_out = views.left_out_text(self.state)
        legend = f"  {shades.legend(self.palette)}" if self.size.width >= NORMAL[0] else ""
        starred = "* residual side" + (f"; {left_out}" if left_out else "")
        map_id = "#map" if self._shown_view == "map" else "#map-pane HeatMap"
        block = self.query_one(map_id, HeatMap).block
        blocks = f"mean of {block}×{block} pairs; " if block > 1 else ""
        titles: Mapping[str, tuple[str, str]] = {
            "matrix": (f"1 layers: {side}{legend}", said),
            "view": (
                " ".join(tabs),
                {"bars": starred, "claims": left_out, "map": f"{blocks}{said}", "table": filtered}.get(
                    self._shown_view, ""
                ),
            ),
            "claims-pane": ("what this shows", left_out),
            "map-pane": (what, f"{blocks}{said}"),
            "table-pane": ("adjacent pairs", filtered),
        }
        for pane in self.query(Pane):
            title, subtitle = titles[pane.id or ""]
            if self._is_single and pane.id == "matrix":
                title = f"{title}   (tab: bars)"
            mark = f"{selected} " if pane.id == self._pane else ""
            pane.entitle(mark + title, subtitle)

    @property
    def _view_width(self) -> int:
        width = self.size.width
        if self._is_single or not (self.has_class("-wide") or self.has_class("-middle")):
            return width
        return width // 2 if self.has_class("-wide") else width - 44

    # Painting

    def paint(self, snapshot: Snapshot[Any], phase: Phase, *, everything: bool) -> None:
        """Show `snapshot`; see `RunScreen.paint`."""
        had_rows = bool(self.state.rows)
        self._snapshot = snapshot
        if self._is_composed and not self._view_chosen and self._shown_view == "plan" and self.state.pairs:
            self._shown_view = "bars"
            self._arrange()
        elif self._is_composed and self.state.rows and not had_rows:
            self._arrange()
        super().paint(snapshot, phase, everything=everything)

    def _paint_fast(self) -> None:
        state = self.state
        is_over = self._phase in OVER
        rate = None if is_over else state.bytes_per_second
        notes = [f"cached {state.cached}"] * bool(state.cached)
        read = f"{size(state.bytes_read)} of {size(state.bytes)}"
        revision = f"  {state.revision[:7]}" if state.revision else ""
        self.query_one("#status", StatusLine).show(
            StatusData(
                title=f"analyze {state.model}{revision}",
                device=state.device,
                sign=SIGNS[self._phase],
                state=self._with_journal("reading the headers" if self._phase == "starting" else self._phase),
                elapsed=None if self._phase == "starting" else state.elapsed,
                eta=state.eta if self._phase == "running" else None,
                done=f"{state.over:,} of {state.planned:,} matrices  {read}" if state.rows else "",
                progress=state.progress,
                rate=f"{size(round(rate))}/s" if rate else "",
                note=", ".join(notes),
                kept=self._kept,
            )
        )
        self.query_one(LayerMatrix).show(views.matrix_data(state, self.view))

    def _paint_rest(self) -> None:
        state, view = self.state, self.view
        if self._shown_view == "bars":
            self.query_one("#bars", ProjectionBars).show(views.bars_data(state, view))
        if self._shows("map", "map-pane"):
            heat = self._views.map_data(state, view)
            for heat_map in self.query(HeatMap):
                heat_map.show(heat)
        if self._shows("table", "table-pane"):
            table = self._views.table_data(state, view)
            for each in self.query(PairTable):
                each.show(table)
        row, pair = self.row, self.pair
        if self._shown_view == "pair":
            nothing = (Paragraph("there is no pair of layers here", "dim"),)
            self.query_one("#pair", TextPane).show(pair_paragraphs(row, pair) if row and pair else nothing)
        for panel in self.query(ClaimsPanel):
            panel.show(self._snapshot.findings if state.pairs else None)
        for pane in self.query(LogPane):
            pane.show(self._messages())
        if self._shown_view == "plan":
            self.query_one("#plan", TextPane).show(plan_paragraphs(state))
        self._entitle()

    def _shows(self, view: str, pane: str) -> bool:
        return self._shown_view == view or pane in self._panes

    def _change(self, **choices: Any) -> None:
        self.view = replace(self.view, **choices)
        self._repaint()

    # What the keys do to the view

    def action_view(self, name: str) -> None:
        self._view_chosen = True
        self._shown_view = name
        self.focus_pane("view")

    def action_matrix(self) -> None:
        self.focus_pane("matrix")

    @property
    def _focus(self) -> str:
        """What the arrows move in: "matrix", "map", "table", or a text."""
        return {"view": self._shown_view, "map-pane": "map", "table-pane": "table", "claims-pane": "claims"}.get(
            self._pane, self._pane
        )

    def action_move(self, by: int) -> None:
        """Another projection; in the map another layer, in the table another row; text scrolls."""
        for widget in self.query_one(f"#{self._pane}", Pane).query(Lines):
            if widget.display:
                widget.scroll_rows(by)
                return
        if self._focus == "map":
            self._move_in_map(by, 0)
        elif self._focus == "table":
            self._move_in_table(by)
        else:
            self._select_row(self.view.row + by)

    def action_side(self, by: int) -> None:
        """The pair of layers to the left or right; in the map the other layer."""
        row, pair = self.row, self.pair
        if row is None or pair is None:
            return
        if self._focus == "map":
            self._move_in_map(0, by)
            return
        firsts = [first for first, _ in row.adjacent]
        place = min(range(len(firsts)), key=lambda position: abs(firsts[position] - pair[0]))
        self._change(pair=row.adjacent[min(max(place + by, 0), len(firsts) - 1)])

    def _move_in_map(self, down: int, right: int) -> None:
        row, pair = self.row, self.pair
        if row is None or pair is None or len(row.layers) < 2:
            return
        layers = row.layers
        shown = self.view.pair if self.view.pair is not None and tuple(sorted(self.view.pair)) == pair else pair
        places = [layers.index(layer) for layer in shown]
        for axis, by in ((0, down), (1, right)):
            moved = min(max(places[axis] + by, 0), len(layers) - 1)
            if moved == places[1 - axis]:
                # Over the diagonal, where there is room beyond it.
                moved += 1 if by > 0 else -1
            if by and 0 <= moved < len(layers):
                places[axis] = moved
        self._change(pair=(layers[places[0]], layers[places[1]]))

    def _move_in_table(self, by: int) -> None:
        table = self._views.table_data(self.state, self.view)
        if not table.rows:
            return
        places = [place for place, row in enumerate(table.rows) if row.key == table.selected]
        place = min(max(places[0] + by, 0), len(table.rows) - 1) if places else 0
        self._select_pair(table.rows[place])

    def _select_pair(self, chosen: pair_table.PairRow) -> None:
        stack, projection, first, second = chosen.key
        self._change(row=list(self.state.rows).index((stack, projection)), pair=(first, second))

    def _select_row(self, position: int) -> None:
        position = min(max(position, 0), max(len(self.state.rows) - 1, 0))
        self._change(row=position)

    def action_projection(self, by: int) -> None:
        if self.state.rows:
            self._select_row((self.view.row + by) % len(self.state.rows))

    def on_heat_map_resized(self) -> None:
        self._entitle()

    def on_layer_matrix_chosen(self, event: LayerMatrix.Chosen) -> None:
        row = tuple(self.state.rows.values())[event.row]
        layer = self.state.layers[event.column]
        pair = min(row.adjacent, key=lambda pair: abs(pair[0] - layer), default=None)
        self._change(row=event.row, pair=pair)

    def on_pair_table_chosen(self, event: PairTable.Chosen) -> None:
        self._select_pair(event.row)

    def action_show(self, side: views.Shown) -> None:
        self._change(shown=side)

    def action_sort(self) -> None:
        self._change(sort=(self.view.sort + 1) % len(pair_table.SORTS))

    def action_reverse(self) -> None:
        self._change(reverse=not self.view.reverse)

    def action_filter(self) -> None:
        def answered(words: str | None) -> None:
            if words is not None:
                if not self._shows("table", "table-pane"):
                    self.action_view("table")
                self._change(words=words)
                rows = self._views.table_data(self.state, self.view)
                if rows.rows and all(row.key != rows.selected for row in rows.rows):
                    self._select_pair(rows.rows[0])

        self.app.push_screen(FilterDialog(self.palette, self.view.words, FILTER, pair_table.problem), answered)

    def action_back(self) -> None:
        if self._zoomed:
            self.action_zoom()
        elif self.view.words:
            self._change(words="")

    def action_details(self) -> None:
        row, pair = self.row, self.pair
        if row and pair:
            self.app.push_screen(Reader(self.palette, pair_title(row, pair), pair_paragraphs(row, pair)))

    def action_copy(self) -> None:
        row, pair = self.row, self.pair
        if row and pair:
            self.copied(
                f"the numbers of {pair_title(row, pair)}", pair_text(row, pair), "the numbers were sent to the terminal"
            )
