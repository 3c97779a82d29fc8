"""The screen of a run of ablations: variants, curves, layers, claims and log, as many at once as there is room for.

    screen = AblationScreen(snapshot, palette, kept)
    screen.paint(snapshot, phase, everything=False)     called by the app at its own rate; repaints what changed

It shows snapshots and holds what the user chose to see (`curves.View`); it neither pulls events nor knows a thread.
"""

import time
from dataclasses import replace
from typing import Any, ClassVar, Literal

from geocont.events import Message
from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Click
from textual.message import Message as TextualMessage
from textual.screen import Screen

from geocont_tui import curves, keys
from geocont_tui import state as states
from geocont_tui.job import Snapshot
from geocont_tui.palette import Palette, Sign
from geocont_tui.screens.commands import Commands
from geocont_tui.screens.help import help_text
from geocont_tui.screens.reader import Reader
from geocont_tui.screens.variant import row_text, variant_paragraphs
from geocont_tui.widgets.bars import Bars
from geocont_tui.widgets.cells import ASCII_FOR, BLANK, NO_STYLE, CellWidget, write
from geocont_tui.widgets.chart import Chart
from geocont_tui.widgets.claims_panel import ClaimsPanel
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.lines import Lines
from geocont_tui.widgets.log_pane import LogPane
from geocont_tui.widgets.run_table import RunTable, RunTableData, VariantRow
from geocont_tui.widgets.spectrum_table import SpectrumTable, spectrum_of
from geocont_tui.widgets.status_line import StatusData, StatusLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane

Phase = Literal["starting", "running", "paused", "stopping", "done", "stopped", "failed"]
SIGNS: dict[Phase, Sign] = {
    "starting": "waiting",
    "running": "running",
    "paused": "paused",
    "stopping": "running",
    "done": "done",
    "stopped": "stopped",
    "failed": "failed",
}
WORDS: dict[Phase, str] = {"starting": "loading the data"}

VIEWS = ("curves", "layers", "spectrum", "claims", "log")
TEXT_VIEWS = ("spectrum", "claims", "log")
SMALLEST = (60, 15)
NORMAL = (80, 24)
MIDDLE = 100
NUMBERED_TABS = 104
WIDE = (130, 34)


class Pane(Vertical):
    """A frame with a title; the one in focus has a heavy border and a mark."""

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._is_ascii = palette.ascii_only
        self._titles = ("", "")
        self._fitted: tuple[str, str] | None = None

    def on_click(self, event: Click) -> None:
        event.stop()
        screen = self.screen
        if isinstance(screen, AblationScreen) and self.id is not None:
            screen.focus_pane(self.id)

    def entitle(self, title: str, subtitle: str) -> None:
        """Set title and subtitle, shown literally."""
        self._titles = (title, subtitle)
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        """Cut the titles to the frame: Textual would cut them with a sign that is not ASCII."""
        title, subtitle = (self._cut(text, self.outer_size.width - 6) for text in self._titles)
        # A new title repaints the whole pane.
        if (title, subtitle) != self._fitted:
            self._fitted = (title, subtitle)
            self.border_title, self.border_subtitle = Content(title), Content(subtitle)

    def _cut(self, text: str, room: int) -> str:
        cells = [BLANK] * max(room, 0)
        end = write(cells, 0, text, NO_STYLE, room, self._is_ascii)
        shown = "".join(character for character, _ in cells[:end])
        needed = cell_len(text.translate(ASCII_FOR) if self._is_ascii else text)
        if needed <= room or not shown:
            return shown
        return shown[:-1] + ("." if self._is_ascii else "…")


class AblationScreen(Screen[None]):
    """The screen; see the module's docstring."""

    class PauseAsked(TextualMessage):
        """Pause the job, or go on."""

    class StopAsked(TextualMessage):
        """Stop the job, after asking."""

    class ExportAsked(TextualMessage):
        """Write the tables, after asking where."""

    class PictureAsked(TextualMessage):
        """Save a picture of the screen."""

    class ThemeAsked(TextualMessage):
        """Dark instead of light, or the other way."""

    BINDINGS: ClassVar[list[BindingType]] = list(keys.bindings("ablation"))
    AUTO_FOCUS = ""

    def __init__(self, snapshot: Snapshot, palette: Palette, kept: str) -> None:
        super().__init__()
        self.palette = palette
        self.view = curves.View(log_x=curves.prefers_log_x(snapshot.state))
        self._kept = kept
        self._snapshot = snapshot
        self._phase: Phase = "starting"
        self._trajectories = curves.Trajectories()
        self._answers: tuple[Message, ...] = ()
        self._shown_view = "curves"
        self._pane = "variants"
        self._zoomed = False
        self._failure_shown = False
        self._is_composed = False

    @property
    def state(self) -> states.AblationState:
        return self._snapshot.state

    @property
    def variant(self) -> str:
        """Name of the selected variant."""
        return self.state.experiment.variants[self.view.selected].name

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

    def on_mount(self) -> None:
        self._is_composed = True
        self._arrange()
        self.paint(self._snapshot, self._phase, everything=True)

    def on_resize(self) -> None:
        # The first one may come before there is anything to arrange.
        if not self._is_composed:
            return
        self._arrange()
        self.paint(self._snapshot, self._phase, everything=True)

    # What is where

    def _arrange(self) -> None:
        """Choose the layout for the size, and show the panes and the view that belong to it."""
        width, height = self.size
        is_too_small = width < SMALLEST[0] or height < SMALLEST[1]
        is_wide = width >= WIDE[0] and height >= WIDE[1]
        self.set_class(is_too_small, "-too-small")
        self.set_class(is_wide, "-wide")
        self.set_class(not is_wide and width >= MIDDLE, "-middle")
        self.set_class(not is_wide and height >= WIDE[1], "-tall")
        self.set_class(height < NORMAL[1], "-short")
        self.set_class(self._is_single, "-single")
        if self._pane not in self._panes:
            self._pane = "view"
        for pane in self.query(Pane):
            pane.set_class(pane.id == self._pane, "-current")
        for place in ("#top", "#bottom", "#side"):
            holds = any(pane.id == self._pane for pane in self.query_one(place).query(Pane))
            self.query_one(place).set_class(not holds, "-away")
        for name in (*VIEWS, "failure"):
            self.query_one(f"#{name}").display = name == self._shown_view
        self.query_one("#too-small", TextPane).show(
            (Paragraph(f"needs {SMALLEST[0]}×{SMALLEST[1]}, is {width}×{height}"),)
        )
        self._entitle()

    @property
    def _is_single(self) -> bool:
        return self._zoomed or self.size.width < NORMAL[0]

    @property
    def _panes(self) -> list[str]:
        """The panes that can be in focus at this size."""
        panes = ["variants", "view"]
        if self.has_class("-wide"):
            panes.append("bottom-layers")
        if not self.has_class("-short") and self.size.width >= NORMAL[0]:
            panes.append("bottom-claims")
        if self.has_class("-wide"):
            panes.append("bottom-log")
        return panes

    def _entitle(self) -> None:
        """Titles change with what the user chooses, not with every event: a title repaints its whole pane."""
        view, experiment = self.view, self.state.experiment
        seeds = f"{experiment.seeds} seeds" if experiment.seeds != 1 else "1 seed"
        selected = self.palette.glyphs.signs["selected"]
        is_roomy = self.size.width >= NUMBERED_TABS or self._is_single
        # In a narrow pane there is no room for both marks, so the tab in focus has the mark of the pane.
        marked = f"{selected}{{}}" if self._pane == "view" and not is_roomy else "[{}]"
        tabs = [marked.format(name) if name == self._shown_view else name for name in VIEWS]
        if is_roomy:
            tabs = [f"{number} {tab}" for number, tab in enumerate(tabs, 1)]
        if self._shown_view == "failure":
            tabs = [marked.format("failed"), *(tabs if is_roomy else ["(1-5: what was measured)"])]
        titles = {
            "variants": (f"{len(experiment.variants)} variants, {seeds}", self._hidden_text),
            "view": (" ".join(tabs), self._view_subtitle(seeds)),
            "bottom-layers": (f"layers now: {view.quantity.title}", self.variant),
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
                parts = [view.quantity.title]
                parts.append("each seed" if view.seeds_apart else seeds)
                parts += ["log steps"] if view.log_x else []
                parts += ["auto y"] if view.auto_y else []
                parts += [f"smoothed over {view.smoothing}"] if view.smoothing > 1 else []
                parts += ["zoomed"] if view.window != (0.0, 1.0) else []
                return ", ".join(parts)
            case "layers":
                return f"{self.variant}, {view.quantity.title}, {seeds}"
            case "spectrum":
                return f"{self.variant}, {seeds}"
        return ""

    # Painting

    def paint(self, snapshot: Snapshot, phase: Phase, *, everything: bool) -> None:
        """Show `snapshot`: status and curves; with `everything` also the table, the bars and the texts."""
        self._snapshot, self._phase = snapshot, phase
        if not self._is_composed:
            return
        if phase == "failed" and not self._failure_shown:
            self._failure_shown = True
            self._shown_view = "failure"
            self._pane = "view"
            self._arrange()
        self._paint_status()
        if self._shown_view == "curves":
            self.query_one("#curves", Chart).show(curves.chart_data(self.state, self.view, self._trajectories))
        if everything:
            self._paint_rest()

    def _paint_status(self) -> None:
        state = self.state
        is_over = self._phase in ("done", "stopped", "failed")
        self.query_one("#keys", KeyLine).show(
            frozenset({"pause", "stop"} if is_over else ()), {"pause": "go on"} if self._phase == "paused" else {}
        )
        self.query_one("#status", StatusLine).show(
            StatusData(
                name=state.experiment.name,
                device=state.device,
                sign=SIGNS[self._phase],
                state=WORDS.get(self._phase, self._phase),
                elapsed=None if self._phase == "starting" else state.elapsed,
                eta=state.eta if self._phase == "running" else None,
                steps=state.steps_planned - state.steps_left,
                planned=state.steps_planned,
                progress=state.progress,
                steps_per_second=None if is_over else state.steps_per_second,
                probe_share=state.probe_share,
                kept=self._kept,
            )
        )

    def _paint_rest(self) -> None:
        state, view = self.state, self.view
        rows = tuple(
            VariantRow(
                index=index,
                summary=states.summary(state, variant.name),
                trend=self._trajectories.of(state, variant.name, states.WEIGHT_V1).mean,
                is_hidden=variant.name in view.hidden,
            )
            for index, variant in enumerate(state.experiment.variants)
        )
        self.query_one(RunTable).show(RunTableData(rows, view.selected))
        bars = curves.bars_data(state, self.variant, view.quantity, view.selected)
        for widget in self.query(Bars):
            widget.show(bars)
        if self._shown_view == "spectrum":
            self.query_one(SpectrumTable).show(spectrum_of(state, self.variant))
        for panel in self.query(ClaimsPanel):
            panel.show(self._snapshot.findings if state.probe_count else None)
        messages = tuple(sorted((*state.messages, *self._answers), key=lambda message: message.time))
        for pane in self.query(LogPane):
            pane.show(messages)
        if self._phase == "failed":
            self.query_one("#failure", TextPane).show(
                (
                    Paragraph(state.problem or "the run failed", "selected"),
                    Paragraph(""),
                    Paragraph(state.remedy or ""),
                    Paragraph(""),
                    Paragraph("What was measured until then can be looked at (1-5) and written as tables (e).", "dim"),
                )
            )

    def set_palette(self, palette: Palette) -> None:
        """Use other colours."""
        self.palette = palette
        for widget in self.query(CellWidget):
            widget.set_palette(palette)

    def answer(self, message: Message, brief: str = "") -> None:
        """Say what a key did: in the log, and until the next key in the bottom line (there as `brief` if too long)."""
        self._answers = (*self._answers, message)
        fits = cell_len(message.text) <= self.size.width - 2
        self.query_one("#keys", KeyLine).say(message.text if fits or not brief else f"{brief}; 5: log")
        self._repaint()

    def on_key(self) -> None:
        self.query_one("#keys", KeyLine).say("")

    def _repaint(self) -> None:
        self._entitle()
        self.paint(self._snapshot, self._phase, everything=True)

    def _change(self, **choices: Any) -> None:
        self.view = replace(self.view, **choices)
        self._repaint()

    # What the keys do to the view

    def focus_pane(self, pane: str) -> None:
        """Put a pane into focus."""
        self._pane = pane
        self._arrange()
        self._repaint()

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
        quantities = states.QUANTITIES
        position = (quantities.index(self.view.quantity) + by) % len(quantities)
        self._change(quantity=quantities[position])

    def action_view(self, name: str) -> None:
        self._shown_view = name
        self.focus_pane("view" if self._is_single or name in TEXT_VIEWS else self._pane)

    def action_pane(self, by: int) -> None:
        panes = self._panes
        self.focus_pane(panes[(panes.index(self._pane) + by) % len(panes)])

    def action_zoom(self) -> None:
        self._zoomed = not self._zoomed
        self.focus_pane(self._pane)

    def action_back(self) -> None:
        if self._zoomed:
            self.action_zoom()

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
        self.app.push_screen(Reader(self.palette, self.variant, variant_paragraphs(self.state, self.variant)))

    def action_help(self) -> None:
        self.app.push_screen(Reader(self.palette, "help", help_text("ablation", self.palette.ascii_only)))

    def action_commands(self) -> None:
        async def run(key: keys.Key | None) -> None:
            if key is not None:
                await self.run_action(key.action)

        self.app.push_screen(Commands(self.palette, "ablation"), run)

    def action_pause(self) -> None:
        self.post_message(self.PauseAsked())

    def action_stop(self) -> None:
        self.post_message(self.StopAsked())

    def action_export(self) -> None:
        self.post_message(self.ExportAsked())

    def action_picture(self) -> None:
        self.post_message(self.PictureAsked())

    def action_theme(self) -> None:
        self.post_message(self.ThemeAsked())

    def action_repaint(self) -> None:
        self.refresh(layout=True)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(row_text(self.state, self.variant))
        text = f"the numbers of {self.variant} were sent to the terminal's clipboard, if it takes them (OSC 52)"
        self.answer(Message(level="info", text=text, time=time.time()), "the numbers were sent to the terminal")
