"""The screen of an analysis: what it shows at which size and in which colours, and what its keys do.

The snapshots in `snapshots/` are the screen's characters; `GEOCONT_UPDATE_SNAPSHOTS=1 pytest …` writes them anew.
"""

import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import synthetic_analysis
from geocont.errors import InputError, JobError
from geocont.events import AnalysisStarted, Event
from geocont.runs import Recording
from rich.color import ColorType
from staged_run import (
    DARK,
    FEW_COLOURS,
    LIGHT,
    NO_COLOUR,
    PLAIN,
    SIZES,
    SNAPSHOTS,
    Run,
    Source,
    compare,
    contrast,
    exported,
    staged,
)
from textual.color import Color
from textual.events import Key
from textual.widgets import Input

from geocont_tui.app import AnalysisApp
from geocont_tui.job import analysis_job
from geocont_tui.screens.analysis import AnalysisScreen
from geocont_tui.screens.dialogs import FilterDialog, StopQuestion
from geocont_tui.screens.reader import Reader
from geocont_tui.terminal import Settings
from geocont_tui.widgets.cells import CellWidget
from geocont_tui.widgets.text_pane import TextPane

RUN = "2026-12-01T14-03-11_Llama-3.1-8B_k3f9"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch):
    """Local time is UTC, words are found once all events are there, the environment is what the settings say."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr("geocont_tui.job._JUDGE_SECONDS", math.inf)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield
    monkeypatch.undo()
    time.tzset()


@asynccontextmanager
async def running(
    tmp_path: Path,
    size: tuple[int, int] = (80, 24),
    settings: Settings = DARK,
    events: Iterator[Event] | None = None,
    error: Exception | None = None,
) -> AsyncIterator[Run]:
    """The app, painted, at the point where `events` (65 % of the synthetic analysis) are all folded."""
    folder = tmp_path / RUN
    folder.mkdir()
    source = Source(synthetic_analysis.events(until=0.65) if events is None else events, error)
    app = AnalysisApp(analysis_job(synthetic_analysis.MODEL, Recording(source, folder)), settings)
    async with staged(app, source, folder, size, is_over=error is not None) as run:
        yield run


# --- What it looks like


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("dark", DARK), ("16", FEW_COLOURS), ("none", NO_COLOUR), ("ascii", PLAIN)],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_live_screen(tmp_path, size, name, settings):
    async with running(tmp_path, size, settings) as run:
        compare(f"analysis_{size[0]}x{size[1]}_{name}.txt", run.text)
        assert all(sum(segment.cell_length for segment in row) == size[0] for row in run.rows)
        assert len(run.rows) == size[1]
        assert run.text.isascii() or not settings.ascii


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_light_screen_says_the_same(tmp_path, size):
    async with running(tmp_path, size, LIGHT) as run:
        assert run.text + "\n" == (SNAPSHOTS / f"analysis_{size[0]}x{size[1]}_dark.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("view", ["2", "3", "4", "5", "6", "7", "8"])
@pytest.mark.parametrize("size", [(60, 15), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_views(tmp_path, view, size):
    async with running(tmp_path, size) as run:
        compare(f"analysis_view{view}_{size[0]}x{size[1]}.txt", await run.press(view))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_an_awkward_model(tmp_path, size):
    async with running(tmp_path, size, events=synthetic_analysis.awkward_events()) as run:
        compare(f"analysis_awkward_{size[0]}x{size[1]}.txt", run.text)


@pytest.mark.parametrize(("name", "key"), [("help", "question_mark"), ("details", "enter"), ("filter", "/")])
async def test_the_dialogs(tmp_path, name, key):
    async with running(tmp_path) as run:
        compare(f"analysis_{name}_80x24.txt", await run.press(key))


@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [("dark", DARK, (80, 24)), ("light", LIGHT, (140, 40))],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_pictures(tmp_path, name, settings, size):
    async with running(tmp_path, size, settings) as run:
        compare(f"analysis_{size[0]}x{size[1]}_{name}.svg", run.app.export_screenshot().rstrip("\n"))


@pytest.mark.parametrize(("settings", "kinds"), [(NO_COLOUR, {ColorType.DEFAULT}), (FEW_COLOURS, None)])
async def test_few_colours_are_the_terminals_own_and_none_are_none(tmp_path, settings, kinds):
    async with running(tmp_path, (140, 40), settings) as run:
        found = set()
        for keys in ((), ("3",), ("question_mark",), ("escape", "/"), ("escape", "enter")):
            await run.press(*keys)
            for row in run.rows:
                for segment in row:
                    for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                        if colour is not None:
                            found.add(colour.type)
        assert found == (kinds or {ColorType.DEFAULT, ColorType.STANDARD})


@pytest.mark.parametrize("settings", [DARK, LIGHT], ids=["dark", "light"])
async def test_everything_can_be_read_on_its_background(tmp_path, settings):
    async with running(tmp_path, (140, 40), settings) as run:
        for keys in ((), ("question_mark",), ("escape", "/"), ("escape", "8")):
            await run.press(*keys)
            for row in run.rows:
                for segment in row:
                    words = segment.text.strip(" ─│┌┐└┘━┃┏┓┗┛┊▀▄")
                    if words and segment.style is not None and segment.style.color is not None:
                        front = Color.from_rich_color(segment.style.color)
                        back = Color.from_rich_color(segment.style.bgcolor)
                        assert contrast(front, back) >= 3.0, (words, front, back)


async def test_brackets_in_names_are_shown_literally(tmp_path):
    async with running(tmp_path, (140, 40), events=synthetic_analysis.awkward_events()) as run:
        assert "./models/odd[1]/it's" in run.lines[0]
        assert "text gate[E]" in run.text
        assert "vision [tower] o" in await run.press("8", "z")
        assert "[a], [b]" in await run.press("7")
        assert "text.layers.0.[down[E]].weight" in await run.press("z", "1", "down", "enter")


async def test_a_screen_too_small_says_so_and_recovers(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        await run.pilot.resize_terminal(50, 12)
        await run.pilot.pause()
        assert [line for line in run.lines if line] == ["needs 60×15, is 50×12"]
        await run.pilot.resize_terminal(80, 24)
        await run.pilot.pause()
        assert run.text + "\n" == (SNAPSHOTS / "analysis_80x24_dark.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(1, 1), (60, 15), (300, 90), (200, 16)])
async def test_any_size_can_be_drawn(tmp_path, size):
    async with running(tmp_path, size, events=synthetic_analysis.awkward_events(until=0.5)) as run:
        for key in ("2", "3", "4", "5", "6", "7", "8", "1", "tab", "z", "down", "right", "tab", "tab"):
            await run.press(key)


async def test_it_opens_on_the_plan_and_goes_over_to_the_bars(tmp_path):
    (started,) = [event for event in synthetic_analysis.events(until=0) if isinstance(event, AnalysisStarted)]
    async with running(tmp_path, events=iter([started])) as run:
        assert "[plan]" in run.text
        assert "224 matrices, 13.96 GB" in run.text
        assert "0 of 224 matrices" in run.lines[1]
        assert "0/31" in run.text
    async with running(tmp_path / "x" if (tmp_path / "x").mkdir() is None else tmp_path) as run:
        assert "[bars]" in run.text


async def test_a_view_that_was_chosen_stays(tmp_path):
    async with running(tmp_path, events=synthetic_analysis.events(until=0)) as run:
        await run.press("7")
        for event in synthetic_analysis.events(until=0.2):
            run.app.job._fold(event)
        run.app.paint()
        await run.pilot.pause()
        assert "[log]" in run.text
        assert "38" not in run.lines[1].split("of")[1]


async def test_before_the_first_event_every_key_can_be_pressed(tmp_path):
    async with running(tmp_path, events=iter(())) as run:
        assert "reading the headers" in run.lines[0]
        for key in ("1", "2", "3", "4", "5", "6", "7", "8", "enter", "y", "]", "up", "right", "o", "O", "v", "u", "b"):
            await run.press(key)


# --- Bytes


async def test_what_does_not_change_is_not_painted_again(tmp_path, monkeypatch):
    async with running(tmp_path, (140, 40)) as run:
        refreshed = []
        original = CellWidget.refresh
        monkeypatch.setattr(
            CellWidget, "refresh", lambda self, *regions, **kw: refreshed.append(self) or original(self, *regions, **kw)
        )
        for _ in range(5):
            run.app.paint()
        run.screen.paint(run.app.job.snapshot, run.app.phase, everything=True)
        assert refreshed == []


async def test_one_more_pair_repaints_a_few_cells(tmp_path, monkeypatch):
    async with running(tmp_path, (140, 40)) as run:
        regions = []
        original = CellWidget.refresh
        monkeypatch.setattr(
            CellWidget, "refresh", lambda self, *spans, **kw: regions.append(spans) or original(self, *spans, **kw)
        )
        plans = [plan for plan in synthetic_analysis.plan() if plan.projection == "up"]
        run.app.job._fold(synthetic_analysis.measured(plans[21], plans[:21]))
        run.app.job._fold(synthetic_analysis.pair(plans[20], plans[21]))
        run.screen.paint(run.app.job.snapshot, run.app.phase, everything=False)
        assert regions
        assert all(spans for spans in regions), "a whole widget was sent"
        assert sum(span.area for spans in regions for span in spans) < 120


# --- Pause, stop, quit, fail


async def test_space_pauses_and_resumes(tmp_path):
    async with running(tmp_path) as run:
        assert "‖ paused" in await run.press("space")
        assert run.app.job.paused
        assert "● running" in await run.press("space")


async def test_stop_asks_and_keeps_what_is_there(tmp_path):
    async with running(tmp_path) as run:
        text = await run.press("x")
        assert isinstance(run.app.screen, StopQuestion)
        assert "stop the analysis?" in text
        assert "63 %" in text
        await run.press("x")
        await run.settle()
        assert "■ stopped" in run.text
        assert "20/31" in run.text
        last = (run.folder / "events.jsonl").read_bytes().splitlines()[-1]
        assert msgspec.json.decode(last, type=Event).status == "stopped"
        assert run.app.exit_code == 130


async def test_quit_asks_while_it_runs_and_not_afterwards(tmp_path):
    async with running(tmp_path) as run:
        await run.press("q", "escape")
        assert isinstance(run.app.screen, AnalysisScreen)
        await run.press("q", "x")
        await run.settle()
    assert run.app.return_code == 130
    (tmp_path / "done").mkdir()
    async with running(tmp_path / "done", events=synthetic_analysis.events()) as run:
        assert "✔ done" in run.text
        assert "100 %" in run.lines[1]
        await run.press("q")
    assert run.app.return_code == 0


@pytest.mark.parametrize(
    ("error", "code"), [(JobError("the line was cut", "try again"), 1), (InputError("no [such] file", "give one"), 2)]
)
async def test_a_job_that_fails_says_what_and_what_to_do(tmp_path, error, code):
    async with running(tmp_path, error=error) as run:
        assert "✖ failed" in run.lines[0]
        assert str(error) in run.text
        assert error.remedy in run.text
        assert "2-8" in run.text
        assert "0.5" in await run.press("2")
        assert str(error) in await run.press("7")
        await run.press("q")
    assert run.app.return_code == code


async def test_a_bug_in_an_analysis_is_explained_with_the_log(tmp_path):
    secret = "hf_secret"

    def read() -> Iterator[Event]:
        yield from synthetic_analysis.events(until=0.3)
        token = secret  # noqa: F841 - a local variable that must not be shown
        raise ZeroDivisionError("division by zero")

    async with running(tmp_path, events=read()) as run:
        await run.settle()
        assert "ZeroDivisionError: division by zero" in run.text
        assert "error.log" in run.text.replace("\n", "").replace("│", "").replace(" ", "")
        assert secret not in run.text + (run.folder / "error.log").read_text()
        last = (run.folder / "events.jsonl").read_bytes().splitlines()[-1]
        assert msgspec.json.decode(last, type=Event).status == "failed"
        await run.press("q")
    assert run.app.return_code == 1


# --- What the keys do to the view


def pane(run: Run, title: str) -> str:
    """The lines of a pane, from the one with `title` to its lower frame."""
    top = next(number for number, line in enumerate(run.lines) if title in line)
    rows = run.lines[top:]
    bottom = next(number for number, row in enumerate(rows) if number and row.endswith(("┘", "┛")))
    return "\n".join(rows[: bottom + 1])


async def test_arrows_and_clicks_select_a_pair_and_its_numbers_are_said(tmp_path):
    async with running(tmp_path) as run:
        assert "q 0-1 v1" in pane(run, "1 layers")
        await run.press("down", "right", "right")
        assert "k 2-3 v1" in pane(run, "1 layers")
        await run.press("end", "left")
        assert "down 1-2 u1" in pane(run, "1 layers")
        await run.press("home", *(["left"] * 5))
        assert run.screen.pair == (0, 1)
        await run.press(*(["right"] * 40))
        assert run.screen.pair == (30, 31)
        assert "not measured yet" in pane(run, "1 layers")
        await run.pilot.click(offset=(9 + 7, 6))
        assert run.screen.row.projection == "v"
        assert run.screen.pair == (7, 8)
        assert "v 7-8 v1 n/a: not unique" in pane(run, "1 layers")
        await run.press("]")
        assert run.screen.row.projection == "o"
        await run.press("[", "[")
        assert run.screen.row.projection == "k"


async def test_v_u_and_b_choose_the_side(tmp_path):
    async with running(tmp_path) as run:
        before = run.text
        text = await run.press("u")
        assert "u1 (output)" in text
        assert "q 0-1 u1" in text
        assert " q    u " in text.replace("▶", " ")
        text = await run.press("v")
        assert "down v " in text
        await run.press("b")
        assert run.text == before


async def test_the_map_has_a_cursor_on_any_two_layers(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        await run.press("3", "down", "down", "down", "right")
        assert run.screen.view.pair == (4, 2)
        row = run.screen.row
        value = row.matrices[4].v1_cosines[2]
        assert f"q 2-4 v1 {value:.4f}" in pane(run, "[map]")
        await run.press("right")
        # Over the diagonal: a layer has no pair with itself.
        assert run.screen.view.pair == (4, 3)
        await run.press("right")
        assert run.screen.view.pair == (4, 5)
        text = await run.press("enter")
        assert "4-5" in text
        await run.press("escape", "left", "left", "enter")
        assert "of adjacent layers only" in run.text


async def test_the_map_says_what_a_cell_is(tmp_path):
    async with running(tmp_path, settings=FEW_COLOURS) as run:
        assert "mean of 4×4 pairs" in await run.press("3")
        assert "mean of 2×2 pairs" in await run.press("z")
        await run.pilot.resize_terminal(80, 40)
        await run.pilot.pause()
        assert "mean of" not in run.text


async def test_the_map_shows_every_pair_where_two_fit_into_a_cell(tmp_path):
    async with running(tmp_path) as run:
        text = await run.press("3")
        assert "mean of" not in text
        assert "layers: residual side" not in text
        assert "layers: residual side" in await run.press("tab")


@pytest.mark.parametrize(("key", "title"), [("3", "of all pairs"), ("4", "adjacent pairs"), ("6", "what this shows")])
async def test_no_pane_repeats_the_view(tmp_path, key, title):
    async with running(tmp_path, (140, 40)) as run:
        assert title in run.text
        assert title not in await run.press(key)
        assert title in await run.press("2")
        # The view that a key chooses has the arrows.
        assert run.screen._pane == "view"


async def test_a_filter_selects_a_row_that_fits_it(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        await run.press("/")
        run.app.screen.query_one(Input).value = "down"
        text = await run.press("enter")
        assert run.screen.row.projection == "down"
        assert "filter: down; 19 of " in text


async def test_the_table_is_sorted_and_filtered(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        await run.press("4", "z")
        await run.press("o", "o")
        first = next(number for number, line in enumerate(run.lines) if "↑v1" in line) + 1
        values = [float(re.findall(r"-\d+ +(\d\.\d+)", line)[0]) for line in run.lines[first : first + 20]]
        assert values == sorted(values)
        await run.press("O")
        values = [float(re.findall(r"-\d+ +(\d\.\d+)", line)[0]) for line in run.lines[first : first + 20]]
        assert values == sorted(values, reverse=True)
        await run.press("/")
        assert isinstance(run.app.screen, FilterDialog)
        run.app.screen.query_one(Input).value = "not unique"
        text = await run.press("enter")
        assert "filter: not unique" in text
        assert text.count("not unique") == 1 + 4
        await run.press("home", "down")
        assert run.screen.row.projection == "v"
        await run.press("z", "escape")
        assert "filter:" not in run.text


async def test_a_filter_that_is_none_is_explained_and_not_applied(tmp_path):
    async with running(tmp_path) as run:
        await run.press("/")
        run.app.screen.query_one(Input).value = "v3>.5"
        await run.pilot.pause()
        assert "v3>.5: compare v1" in await run.press("enter")
        run.app.screen.query_one(Input).value = "v1>.9"
        assert "no pair fits the filter" in await run.press("enter")
        await run.press("/")
        assert run.app.screen.query_one(Input).value == "v1>.9"
        await run.press("escape", "escape")
        assert "no pair fits" not in run.text


async def test_text_and_enter_in_one_chunk_are_taken_in_their_order(tmp_path):
    async with running(tmp_path) as run:
        await run.press("/")
        for key in (*"down", "enter"):
            run.app.post_message(Key(key, key if len(key) == 1 else "\r"))
        await run.pilot.pause()
        await run.pilot.pause()
        assert run.screen.view.words == "down"


async def test_what_is_left_out_of_the_means_is_said(tmp_path):
    async with running(tmp_path) as run:
        assert "▨▨" in pane(run, "1 layers")
        assert "4 not unique" in pane(run, "[bars]")
        assert "4 pairs left out of the means" in pane(run, "[bars]")


async def test_zoom_and_tab(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        before = run.text
        await run.press("z")
        for title in ("[bars]", "what this shows", "of all pairs of layers", "adjacent pairs", "1 layers"):
            text = await run.press("tab")
            assert title in run.lines[2]
            assert [sum(map(text.count, corners)) for corners in ("┏┌", "┛┘")] == [1, 1]
        await run.press("escape")
        assert run.text == before


@pytest.mark.parametrize("key", ["escape", "q", "enter"])
async def test_the_details_of_a_pair(tmp_path, key):
    async with running(tmp_path, (100, 30)) as run:
        before = run.text
        text = await run.press("enter")
        assert isinstance(run.app.screen, Reader)
        for words in ("|cos v1|", "meets the residual stream", "centred Gram cosine", "σ1/σ2", "q_proj.weight", "BF16"):
            assert words in text, words
        await run.press(key)
        assert run.text == before


async def test_a_refused_matrix_says_why_in_its_details(tmp_path):
    async with running(tmp_path, (140, 40), events=synthetic_analysis.awkward_events()) as run:
        await run.press("down", "right", "right", "right")
        await run.press("enter")
        text = "\n".join(
            "".join(piece for piece, _ in line) for line in run.app.screen.query_one(TextPane).lines(200, 9)
        )
        assert "quantised, refused" in text
        assert "GPTQ weights are not read" in text
        assert "FP8 in blocks of 128×128: σ and v1 carry the error of quantising" in text


# --- What leaves the screen


async def test_export_offers_the_tables_of_an_analysis(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, (140, 40)) as run:
        assert "pairs.csv, matrices.csv" in await run.press("e")
        run.app.screen.query_one(Input).value = str(tmp_path / "a folder")
        await run.press("enter")
        await exported(run)
        assert (tmp_path / "a folder" / "pairs.csv").read_text().startswith("model,revision,stack,projection,layer_a")
        assert (tmp_path / "a folder" / "matrices.csv").exists()


async def test_a_picture_is_an_svg_in_the_runs_folder(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("s")
        (picture,) = run.folder.glob("*.svg")
        assert "meta-llama/Llama-3.1-8B" in picture.read_text(encoding="utf-8").replace("&#160;", " ")
        assert picture.name in text


async def test_copying_hands_the_pair_to_the_terminal(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("right", "y")
        assert "sent to the terminal" in text
        header, row = run.app.clipboard.split("\n")
        numbers = dict(zip(header.split("\t"), row.split("\t"), strict=True))
        assert (numbers["projection"], numbers["layer_a"], numbers["layer_b"]) == ("q", "1", "2")
        assert float(numbers["v1_cosine"]) == run.screen.row.pairs[1, 2].v1_cosine
