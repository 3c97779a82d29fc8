"""The screen of a run of ablations: variants, curves, layers, claims and log, as many at once as there is room for.

    screen = AblationScreen(snapshot, palette, kept)
    screen.paint(snapshot, phase, everything=False)     called by the app at its own rate; repaints what changed

It shows snapshots and holds what the user chose to see (`curves.View`); it neither pulls events nor knows a thread.
"""

from dataclasses import replace
from typing import Any, ClassVar

from geocont.ablations.experiment import LanguageExperiment
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from geocont_tui import curves, keys
from geocont_tui import state as states
from geocont_tui.job import Snapshot
from geocont_tui.palette import Palette
from geocont_tui.screens.reader import Reader
from geocont_tui.screens.run import NORMAL, OVER, SIGNS, Pane, Phase, RunScreen
from geocont_tui.screens.variant import row_text, variant_paragraphs
from geocont_tui.widgets.bars import Bars
from geocont_tui.widgets.cells import CellWidget
from geocont_tui.widgets.chart import Chart
from geocont_tui.widgets.claims_panel import ClaimsPanel
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.lines import Lines
from geocont_tui.widgets.log_pane import LogPane
from geocont_tui.widgets.run_table import RunTable, RunTableData, VariantRow
from geocont_tui.widgets.spectrum_table import SpectrumTable, spectrum_of
from geocont_tui.widgets.status_line import StatusData, StatusLine
from geocont_tui.widgets.text_pane import TextPane

WORDS: dict[Phase, str] = {"starting": "loading the data"}
TEXT_VIEWS = ("spectrum", "claims", "log")
NUMBERED_TABS = 104


class AblationScreen(RunScreen):
    """The screen; see the module's docstring."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings("ablation"))
    PLACE = "ablation"
    WORK = "training"
    VIEWS = ("curves", "layers", "spectrum", "claims", "log")
    CONTAINERS = ("#top", "#bottom", "#side")
    LOG_KEY = "5"
    TABLE_FILES = ("training.csv", "training_pairs.csv", "networks.csv", "claims.csv")

    def __init__(self, snapshot: Snapshot[states.AblationState], palette: Palette, kept: str) -> None:
        super().__init__(snapshot, palette, kept, "variants")
        self.view = curves.View(log_x=curves.prefers_log_x(snapshot.state), projection=snapshot.state.projections[0])
        self._trajectories = curves.Trajectories()

    @property
    def state(self) -> states.AblationState:
        state: states.AblationState = self._snapshot.state
        return state

    @property
    def variant(self) -> str:
        """Name of the selected variant."""
        return self.state.experiment.variants[self.view.selected].name

    @property
    def _quantity_title(self) -> str:
        """The quantity, and of transformers the projection, with * on the side that meets the residual stream."""
        quantity, projection = self.view.quantity, self.view.projection
        if projection == states.HIDDEN:
            return quantity.title
        mark = "*" if states.residual_side(projection) == quantity.side else ""
        return f"{projection} {quantity.title}{mark}"

    def compose(self) -> ComposeResult:
        palette = self.palette
        yield StatusLine(palette, id="status")
        with Horizontal(id="top"):
            with Pane(palette, id="variants"):
                yield RunTable(palette)
            with Pane(palette, id="view"):
                yield Chart(palette, id="curves")
                yield Bars(palette, id="layers")
                yield SpectrumTable(palette, id="spectrum")
                yield ClaimsPanel(palette, id="claims")
                yield LogPane(palette, id="log")
                yield TextPane(palette, id="failure")
        with Horizontal(id="bottom"):
            with Pane(palette, id="bottom-layers"):
                yield Bars(palette)
            with Vertical(id="side"):
                with Pane(palette, id="bottom-claims"):
                    yield ClaimsPanel(palette)
                with Pane(palette, id="bottom-log"):
                    yield LogPane(palette)
        yield TextPane(palette, id="too-small")
        yield KeyLine(palette, "ablation", id="keys")

    # What is where

    @property
    def _is_single(self) -> bool:
        """Claims have the screen to themselves: their numbers do not fit beside the table."""
        has_claims = self._shown_view == "claims" and self._pane == "view" and not self.has_class("-wide")
        return has_claims or super()._is_single

    @property
    def _panes(self) -> list[str]:
        """The panes that can be in focus at this size."""
        panes = ["variants", "view"]
        is_wide = self.has_class("-wide")
        if is_wide:
            panes.append("bottom-layers")
        if not self.has_class("-short") and self.size.width >= NORMAL[0]:
            panes.append("bottom-claims")
        if is_wide:
            panes.append("bottom-log")
        return [pane for pane in panes if not (is_wide and pane == f"bottom-{self._shown_view}")]

    def _arrange(self) -> None:
        super()._arrange()
        for view in ("layers", "claims", "log"):
            # Nothing is shown twice where all views have a pane.
            self.query_one("#bottom").set_class(self._shown_view == view, f"-{view}-elsewhere")

    def _entitle(self) -> None:
        """Titles change with what the user chooses, not with every event: a title repaints its whole pane."""
        experiment = self.state.experiment
        seeds = f"{experiment.seeds} seeds" if experiment.seeds != 1 else "1 seed"
        selected = self.palette.glyphs.signs["selected"]
        is_roomy = self.size.width >= NUMBERED_TABS or self._is_single
        # In a narrow pane there is no room for both marks, so the tab in focus has the mark of the pane.
        marked = f"{selected}{{}}" if self._pane == "view" and not is_roomy else "[{}]"
        tabs = [marked.format(name) if name == self._shown_view else name for name in self.VIEWS]
        if is_roomy:
            tabs = [f"{number} {tab}" for number, tab in enumerate(tabs, 1)]
        if self._shown_view == "failure":
            tabs = [marked.format("failed"), *(tabs if is_roomy else ["(1-5: what was measured)"])]
        titles = {
            "variants": (f"{len(experiment.variants)} variants, {seeds}", self._hidden_text),
            "view": (" ".join(tabs), self._view_subtitle(seeds)),
            "bottom-layers": (
                f"projections now: {self.view.quantity.kind}, * residual side"
                if self.view.projections_apart
                else f"layers now: {self._quantity_title}",
                self.variant,
            ),
            "bottom-claims": ("what this shows", ""),
            "bottom-log": ("log", ""),
        }
        for pane in self.query(Pane):
            title, subtitle = titles[pane.id or ""]
            if self._is_single and pane.id == "variants":
                title = f"{title}   (tab: curves)"
            has_mark = pane.id == self._pane and (pane.id != "view" or is_roomy)
            mark = f"{selected} " if has_mark else ""
            pane.entitle(mark + title, subtitle)

    @property
    def _hidden_text(self) -> str:
        return f"{len(self.view.hidden)} hidden (v)" if self.view.hidden else ""

    def _view_subtitle(self, seeds: str) -> str:
        view = self.view
        match self._shown_view:
            case "curves":
                is_apart = view.projections_apart
                parts = [f"{self.variant}, {view.quantity.title}" if is_apart else self._quantity_title]
                # What the user has changed comes before what may be cut.
                parts += [f"smoothed over {view.smoothing}"] if view.smoothing > 1 else []
                parts += ["auto y"] if view.auto_y else []
                parts += ["zoomed"] if view.window != (0.0, 1.0) else []
                parts += ["log steps"] if view.log_x else []
                parts.append("each seed" if view.seeds_apart else seeds)
                return ", ".join(parts)
            case "layers":
                if view.projections_apart:
                    return f"{self.variant}, {view.quantity.kind}, * residual side"
                return f"{self.variant}, {self._quantity_title}, {seeds}"
            case "spectrum":
                of = "" if view.projection == states.HIDDEN else f", {view.projection}"
                return f"{self.variant}{of}, {seeds}"
        return ""

    # Painting

    def _paint_fast(self) -> None:
        self._paint_status()
        if self._shown_view == "curves":
            self.query_one("#curves", Chart).show(curves.chart_data(self.state, self.view, self._trajectories))

    def _paint_status(self) -> None:
        state = self.state
        is_over = self._phase in OVER
        rate, share = None if is_over else state.steps_per_second, state.probe_share
        tokens = None if is_over else state.tokens_per_second
        rates = [f"{rate:,.{0 if rate >= 10 else 1}f} steps/s"] if rate is not None else []
        rates += [f"{tokens:,.0f} tokens/s"] if tokens is not None else []
        self.query_one("#status", StatusLine).show(
            StatusData(
                title=f"ablate {state.experiment.name}",
                device=state.device,
                sign=SIGNS[self._phase],
                state=self._with_journal(WORDS.get(self._phase, self._phase)),
                elapsed=None if self._phase == "starting" else state.elapsed,
                eta=state.eta if self._phase == "running" else None,
                done=f"{state.steps_planned - state.steps_left:,} of {state.steps_planned:,} steps",
                progress=state.progress,
                rate=", ".join(rates),
                note=f"probes {100 * share:.1f} % of the time" if share is not None else "",
                kept=self._kept,
            )
        )

    def _paint_rest(self) -> None:
        state, view = self.state, self.view
        is_text = isinstance(state.experiment, LanguageExperiment)
        followed = states.peak_quantity(view.projection)
        rows = tuple(
            VariantRow(
                index=index,
                summary=states.summary(state, variant.name, view.projection),
                trend=self._trajectories.of(state, variant.name, followed, view.projection).mean,
                is_hidden=variant.name in view.hidden,
            )
            for index, variant in enumerate(state.experiment.variants)
        )
        side = states.residual_side(view.projection)
        self.query_one(RunTable).show(RunTableData(rows, view.selected, is_text, side))
        if view.projections_apart:
            bars = curves.projection_bars_data(state, self.variant, view.quantity, view.selected)
        else:
            bars = curves.bars_data(state, self.variant, view.quantity, view.selected, view.projection)
        for widget in self.query(Bars):
            widget.show(bars)
        if self._shown_view == "spectrum":
            self.query_one(SpectrumTable).show(spectrum_of(state, self.variant, view.projection))
        for panel in self.query(ClaimsPanel):
            panel.show(self._snapshot.findings if state.probe_count else None)
        for pane in self.query(LogPane):
            pane.show(self._messages())

    def _change(self, **choices: Any) -> None:
        self._see(replace(self.view, **choices))

    def _see(self, view: curves.View) -> None:
        self.view = view
        self._repaint()

    # What the keys do to the view

    def action_move(self, by: int) -> None:
        """Another variant; in a pane of text, scroll. Bars scroll by the page only."""
        for widget in self.query_one(f"#{self._pane}", Pane).query(CellWidget):
            if widget.display and (isinstance(widget, Lines) or (isinstance(widget, Bars) and abs(by) > 1)):
                widget.scroll_rows(by)
                return
        self._select(self.view.selected + by)

    def on_run_table_chosen(self, event: RunTable.Chosen) -> None:
        self._select(event.row)

    def _select(self, position: int) -> None:
        last = len(self.state.experiment.variants) - 1
        self._change(selected=min(max(position, 0), last))

    def action_hide(self) -> None:
        self._change(hidden=self.view.hidden ^ {self.variant})

    def action_quantity(self, by: int) -> None:
        self._see(curves.with_quantity(self.view, by))

    def action_projection(self, by: int) -> None:
        projections = self.state.projections
        position = (projections.index(self.view.projection) + by) % len(projections)
        self._see(curves.with_projection(self.view, projections[position]))

    def _idle_keys(self) -> frozenset[str]:
        return frozenset() if len(self.state.projections) > 1 else frozenset({"next_projection", "projections"})

    def action_projections(self) -> None:
        """The projections of one variant, or one projection of the variants, as curves; residual MLPs have one."""
        if len(self.state.projections) > 1:
            self._change(projections_apart=not self.view.projections_apart)

    def action_view(self, name: str) -> None:
        self._shown_view = name
        self.focus_pane("view" if self._is_single or name in TEXT_VIEWS else self._pane)

    def action_seeds(self) -> None:
        self._change(seeds_apart=not self.view.seeds_apart)

    def action_log_x(self) -> None:
        self._change(log_x=not self.view.log_x)

    def action_auto_y(self) -> None:
        self._change(auto_y=not self.view.auto_y)

    def action_smooth(self, by: int) -> None:
        position = curves.SMOOTHINGS.index(self.view.smoothing) + by
        self._change(smoothing=curves.SMOOTHINGS[min(max(position, 0), len(curves.SMOOTHINGS) - 1)])

    def action_zoom_x(self, by: int) -> None:
        self._change(window=curves.zoomed(self.view.window, by))

    def action_pan(self, by: int) -> None:
        self._change(window=curves.panned(self.view.window, by))

    def action_whole_x(self) -> None:
        self._change(window=(0.0, 1.0))

    # What the keys ask of the app

    def action_details(self) -> None:
        paragraphs = variant_paragraphs(self.state, self.variant, self.view.projection)
        self.app.push_screen(Reader(self.palette, self.variant, paragraphs))

    def action_copy(self) -> None:
        text = row_text(self.state, self.variant, self.view.projection)
        self.copied(f"the numbers of {self.variant}", text, "the numbers were sent to the terminal")
