"""The screen of a run: what it shows at which size and in which colours, and what its keys do.

The snapshots in `snapshots/` are the screen's characters; `GEOCONT_UPDATE_SNAPSHOTS=1 pytest …` writes them anew. The
events are synthetic and the run stands still at a known event, so nothing here waits for a clock.
"""

import gc
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import synthetic
from geocont.errors import InputError, JobError
from geocont.events import Event, NetworkDiverged
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
from textual.strip import Strip
from textual.widgets import Input

from geocont_tui import keys
from geocont_tui.app import AblationApp
from geocont_tui.job import WatchedRun, ablation_job
from geocont_tui.screens.ablation import AblationScreen
from geocont_tui.screens.dialogs import ExportDialog, QuitQuestion, StopQuestion
from geocont_tui.screens.reader import Reader
from geocont_tui.state import fold, planned
from geocont_tui.terminal import Settings
from geocont_tui.widgets.cells import CellWidget
from geocont_tui.widgets.text_pane import TextPane

RUN = "2026-12-01T14-03-11_mlp_k3f9"


@pytest.fixture(autouse=True)
def _fixed(monkeypatch):
    """Local time is UTC, claims are judged once all events are there, the environment is what the settings say."""
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
    """The app, painted, at the point where `events` (the first 60 % of the synthetic run) are all folded."""
    folder = tmp_path / RUN
    folder.mkdir()
    source = Source(synthetic.events(until=0.6, probes=24) if events is None else events, error)
    app = AblationApp(ablation_job(synthetic.experiment(), Recording(source, folder), "cpu"), settings)
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
        compare(f"live_{size[0]}x{size[1]}_{name}.txt", run.text)
        assert all(sum(segment.cell_length for segment in row) == size[0] for row in run.rows)
        assert len(run.rows) == size[1]
        assert run.text.isascii() or not settings.ascii


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_light_screen_says_the_same(tmp_path, size):
    async with running(tmp_path, size, LIGHT) as run:
        assert run.text + "\n" == (SNAPSHOTS / f"live_{size[0]}x{size[1]}_dark.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("view", ["2", "3", "4", "5"])
@pytest.mark.parametrize("size", [(60, 15), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_other_views(tmp_path, view, size):
    async with running(tmp_path, size) as run:
        compare(f"view{view}_{size[0]}x{size[1]}.txt", await run.press(view))


@pytest.mark.parametrize(
    ("name", "key"),
    [("help", "question_mark"), ("details", "enter"), ("export", "e"), ("stop", "x"), ("quit", "q"), ("commands", ":")],
)
@pytest.mark.parametrize("size", [(60, 15), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_dialogs(tmp_path, monkeypatch, name, key, size):
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me"))
    async with running(tmp_path, size) as run:
        compare(f"{name}_{size[0]}x{size[1]}.txt", await run.press(key))


@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [("dark", DARK, (80, 24)), ("light", LIGHT, (140, 40))],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_pictures(tmp_path, name, settings, size):
    async with running(tmp_path, size, settings) as run:
        compare(f"live_{size[0]}x{size[1]}_{name}.svg", run.app.export_screenshot().rstrip("\n"))


async def test_with_no_color_there_is_none(tmp_path):
    async with running(tmp_path, (140, 40), NO_COLOUR) as run:
        for keys in ((), ("question_mark",), ("escape", "x"), ("escape", "e"), ("escape", ":")):
            await run.press(*keys)
            for row in run.rows:
                for segment in row:
                    for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                        assert colour is None or colour.is_default, (keys, segment)


async def test_16_colours_are_the_terminals_own(tmp_path):
    async with running(tmp_path, (140, 40), FEW_COLOURS) as run:
        kinds = set()
        for keys in ((), ("question_mark",), ("escape", "x"), ("escape", "e")):
            await run.press(*keys)
            for row in run.rows:
                for segment in row:
                    for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                        if colour is not None:
                            kinds.add(colour.type)
        assert kinds == {ColorType.DEFAULT, ColorType.STANDARD}


@pytest.mark.parametrize("settings", [DARK, LIGHT], ids=["dark", "light"])
async def test_everything_can_be_read_on_its_background(tmp_path, settings):
    async with running(tmp_path, (140, 40), settings) as run:
        for keys in ((), ("question_mark",), ("escape", "x"), ("escape", "e"), ("escape", ":")):
            await run.press(*keys)
            for row in run.rows:
                for segment in row:
                    words = segment.text.strip(" ─│┌┐└┘━┃┏┓┗┛┊┄")
                    if not words or segment.style is None or segment.style.color is None:
                        continue
                    front = Color.from_rich_color(segment.style.color)
                    back = Color.from_rich_color(segment.style.bgcolor)
                    # A band may be faint: it lies behind the curves.
                    least = 1.5 if all("\u2800" <= letter <= "\u28ff" for letter in words) else 3.0
                    assert front.get_contrast_text is not None
                    assert contrast(front, back) >= least, (words, front, back)


async def test_brackets_in_names_are_shown_literally(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("end", "2")
        assert text.count("Res+GELU+LN [b]") >= 2
        assert "Res+GELU+LN [b]" in await run.press("enter")


async def test_a_screen_too_small_says_so_and_recovers(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        await run.pilot.resize_terminal(50, 12)
        await run.pilot.pause()
        assert "needs 60×15, is 50×12" in run.text
        assert [line for line in run.lines if line] == [line for line in run.lines if "needs" in line]
        await run.pilot.resize_terminal(80, 24)
        await run.pilot.pause()
        assert run.text + "\n" == (SNAPSHOTS / "live_80x24_dark.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(1, 1), (59, 15), (300, 90), (200, 16)])
async def test_any_size_can_be_drawn(tmp_path, size):
    async with running(tmp_path, size) as run:
        for keys in (("2",), ("3",), ("4",), ("5",), ("tab",), ("z",), ("question_mark",), ("escape",), ("e",)):
            await run.press(*keys)


async def test_before_the_first_event_the_plan_is_there(tmp_path):
    async with running(tmp_path, events=iter(())) as run:
        assert "loading" in run.lines[0]
        assert "0 of 18,000 steps" in run.lines[1]
        assert "Res+Radial scaled" in run.text
        for key in ("2", "3", "4", "5", "enter", "escape", "1", "L", "Y"):
            await run.press(key)


async def test_a_diverged_network_is_marked_with_its_step(tmp_path):
    events = [
        *synthetic.events(until=0.2),
        NetworkDiverged(variant="Res+ReLU", seed=1, step=57, reason="the training loss was not finite"),
    ]
    async with running(tmp_path, (140, 40), events=iter(events)) as run:
        row = next(line for line in run.lines if "Res+ReLU" in line)
        assert "✖" in row
        assert "diverged at step 57" in row
        await run.press("down", "enter")
        lines = run.app.screen.query_one(TextPane).lines(200, 100)
        seed = next(line for line in lines if line[0][0].startswith("seed 1"))
        assert "diverged at step 57: the training loss was not finite" in "".join(text for text, _ in seed)


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


async def test_nothing_moves_by_itself(tmp_path):
    async with running(tmp_path) as run:
        for keys in (("e",), ("escape", ":"), ("escape",)):
            await run.press(*keys)
            assert not any(widget.loading for widget in run.app.screen.query("*"))
            assert not any(field.cursor_blink for field in run.app.screen.query(Input))


# --- Pause, stop, quit, fail


async def test_space_pauses_and_resumes(tmp_path):
    async with running(tmp_path) as run:
        text = await run.press("space")
        assert "‖ paused" in text
        assert "go on" in run.lines[-1]
        assert run.app.job.paused
        text = await run.press("space")
        assert "● running" in text
        assert "pause" in run.lines[-1]


async def test_stop_asks_and_keeps_the_journal(tmp_path):
    async with running(tmp_path) as run:
        await run.press("x")
        assert isinstance(run.app.screen, StopQuestion)
        await run.press("escape")
        assert not run.app.job.over
        await run.press("x", "x")
        assert "stopping" in run.text
        await run.settle()
        assert "■ stopped" in run.text
        assert run.source.closed
        last = (run.folder / "events.jsonl").read_bytes().splitlines()[-1]
        assert msgspec.json.decode(last, type=Event).status == "stopped"
        assert run.app.exit_code == 130
        assert "stop" not in run.lines[-1].split()
        assert run.app.is_running


async def test_quit_asks_while_the_training_runs(tmp_path):
    async with running(tmp_path) as run:
        await run.press("q")
        assert isinstance(run.app.screen, QuitQuestion)
        await run.press("q")
        assert isinstance(run.app.screen, AblationScreen)
        assert run.app.is_running
        await run.press("q", "x")
        await run.settle()
    assert run.app.return_code == 130
    assert not run.app.goes_on


async def test_a_watched_run_that_nobody_writes_says_how_to_go_on_and_is_left_without_a_question(tmp_path):
    events = iter([*synthetic.events(until=0.3), None])
    job = WatchedRun(tmp_path, events, planned(synthetic.experiment(), ""), fold, lambda _: ())
    app = AblationApp(job, DARK)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.workers.wait_for_complete()
        app.paint()
        await pilot.pause()
        run = Run(app, pilot, Source(iter(())), tmp_path)
        assert "■ interrupted" in run.lines[0]
        assert "the run was interrupted" in run.lines[-1]
        assert "geocont-tui resume" in (await run.press("5")).replace("\n", " ")
        assert "pause" not in run.lines[-1]
        await run.press("q")
    assert app.return_code == 0
    # No request is left for whoever goes on with it.
    assert not (tmp_path / "control").exists()


async def test_quitting_leaves_the_job_open_to_go_on_without_the_screen(tmp_path):
    async with running(tmp_path) as run:
        await run.press("space", "q")
        assert "To come back: geocont-tui watch" in run.text
        run.source.released.set()
        await run.press("enter")
    assert run.app.goes_on
    # What is to run in the background is not paused there, where nobody sees it.
    assert not run.app.job.paused
    assert not run.app.job.over
    run.app.job.close()


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_a_finished_run_stays_and_quits_at_once(tmp_path, key):
    async with running(tmp_path, events=synthetic.events(probes=24)) as run:
        assert "✔ done" in run.text
        assert "pause" not in run.lines[-1]
        await run.press(key)
    assert run.app.return_code == 0


@pytest.mark.parametrize(
    ("error", "code"), [(JobError("out of memory", "lower the width"), 1), (InputError("no folder", "give one"), 2)]
)
async def test_a_job_that_fails_says_what_and_what_to_do(tmp_path, error, code):
    async with running(tmp_path, error=error) as run:
        assert "✖ failed" in run.lines[0]
        assert str(error) in run.text
        assert error.remedy in run.text
        assert "weight v1" in await run.press("1")
        assert str(error) in await run.press("5")
        await run.press("q")
    assert run.app.return_code == code


async def test_a_job_that_fails_before_anything_is_measured_promises_no_measurements(tmp_path):
    def failing() -> Iterator[Event]:
        yield next(iter(synthetic.events()))
        raise JobError("out of memory", "lower the width")

    async with running(tmp_path, (140, 40), events=failing()) as run:
        await run.settle()
        assert "Nothing had been measured until then." in run.text
        # Problem and remedy are one message, in this order.
        assert "error: out of memory; lower the width" in await run.press("5")


async def test_commands_below_the_list_come_into_view_where_lines_are_broken(tmp_path):
    async with running(tmp_path, (60, 15)) as run:
        await run.press(":")
        for key in [key for key in keys.of("ablation") if key.command]:
            assert key.help[:20] in run.text
            selected = next(line for line in run.lines if "▶" in line and key.help[:20] in line)
            assert f" {key.label} " in selected
            await run.press("down")


async def test_a_bug_in_a_training_step_is_explained_with_the_log(tmp_path):
    secret = "hf_secret"

    def step() -> Iterator[Event]:
        yield from synthetic.events(until=0.2)
        token = secret  # noqa: F841 - a local variable that must not be shown
        raise ZeroDivisionError("division by zero")

    async with running(tmp_path, events=step()) as run:
        await run.settle()
        assert "ZeroDivisionError: division by zero" in run.text
        assert "error.log" in run.text.replace("\n", "").replace("│", "").replace(" ", "")
        assert secret not in (run.folder / "error.log").read_text()
        await run.press("q")
    assert run.app.return_code == 1


# --- What the keys do to the view


def chart(run: Run) -> str:
    """The pane of curves, with its frame."""
    top = next(number for number, line in enumerate(run.lines) if "[curves]" in line)
    left = run.lines[top].index("[curves]") - 6
    rows = [line[left:] for line in run.lines[top:]]
    bottom = next(number for number, row in enumerate(rows) if row.endswith(("┘", "┛")))
    return "\n".join(rows[: bottom + 1])


async def test_a_hidden_variant_leaves_the_chart_and_comes_back(tmp_path):
    async with running(tmp_path) as run:
        before = run.text
        assert "■" in chart(run)
        text = await run.press("down", "down", "v")
        assert "■" not in chart(run)
        assert "1 hidden" in text
        await run.press("v", "up", "up")
        assert run.text == before


async def test_up_and_down_stop_at_the_ends_and_a_click_selects(tmp_path):
    async with running(tmp_path) as run:
        await run.press("up")
        assert run.screen.variant == "Res+GELU"
        await run.press("j", "j", "k")
        assert run.screen.variant == "Res+ReLU"
        await run.press("end", "down")
        assert run.screen.variant == "Res+GELU+LN [b]"
        await run.pilot.click(offset=(10, 6))
        assert run.screen.variant == "Res+None"


async def test_brackets_change_the_quantity(tmp_path):
    async with running(tmp_path) as run:
        assert "weight v1" in chart(run)
        await run.press("]")
        assert "weight u1" in chart(run)
        await run.press("[", "[")
        assert "update u1" in chart(run)


async def test_zoom_shows_one_pane_and_goes_back(tmp_path):
    async with running(tmp_path) as run:
        before = run.text
        text = await run.press("tab", "z")
        assert "what this shows" not in text
        assert "variants" not in text
        assert "[curves]" in text
        assert "what this shows" in await run.press("tab")
        await run.press("shift+tab")
        await run.press("escape", "shift+tab")
        assert run.text == before
        await run.press("z")
        assert "[curves]" not in run.text
        await run.press("z")
        assert run.text == before


async def test_axes_and_smoothing_are_said_when_they_are_not_the_usual(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        assert "log steps" in chart(run)
        await run.press("L")
        assert "log steps" not in chart(run)
        assert "smooth" not in chart(run)
        await run.press("+")
        assert "smoothed over 3" in run.text
        await run.press("-", "-")
        assert "smooth" not in run.text
        await run.press("0")
        whole = run.text
        assert "1k" in chart(run).splitlines()[-2]
        await run.press(".", ".")
        assert "1k" not in chart(run).splitlines()[-2]
        assert run.text != whole
        await run.press("right", ",", ",", ",")
        assert run.text == whole
        await run.press(".", "0")
        assert run.text == whole
        await run.press("Y")
        assert "1.0" not in chart(run)
        await run.press("Y")
        assert run.text == whole


async def test_seeds_one_by_one(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        before = run.text
        await run.press("a")
        assert run.text != before
        assert "each seed" in run.text
        await run.press("a")
        assert run.text == before


async def test_claims_and_log_scroll_when_they_are_in_focus(tmp_path):
    async with running(tmp_path) as run:
        await run.press("tab", "tab")
        assert "1-4 of 9" in run.text
        await run.press("down")
        assert "2-5 of 9" in run.text
        await run.press("end")
        assert "6-9 of 9" in run.text
        assert run.screen.variant == "Res+GELU"


async def test_a_command_is_found_by_its_name_and_run(tmp_path):
    async with running(tmp_path) as run:
        await run.press(":")
        text = await run.press(*"hide")
        assert "hide the variant" in text
        assert "stop the training" not in text
        await run.press("enter")
        assert run.screen.view.hidden == {"Res+GELU"}
        await run.press(":", *"nonesuch")
        assert "no command" in run.text
        await run.press("enter")
        assert isinstance(run.app.screen, AblationScreen)


@pytest.mark.parametrize("key", ["escape", "q", "enter"])
async def test_help_and_details_close(tmp_path, key):
    async with running(tmp_path) as run:
        before = run.text
        await run.press("?")
        assert isinstance(run.app.screen, Reader)
        await run.press("end", "home", "down", key)
        assert run.text == before
        await run.press("enter")
        assert isinstance(run.app.screen, Reader)
        assert "learning rate 0.001" in run.text
        await run.press(key)
        assert run.text == before


# --- What leaves the screen


async def test_export_writes_tables_and_says_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("e")
        assert isinstance(run.app.screen, ExportDialog)
        assert f"geocont-tui export {RUN} --csv" in text
        field = run.app.screen.query_one(Input)
        field.value = str(tmp_path / "a folder")
        await run.press("enter")
        await exported(run)
        await run.pilot.pause()
        assert (tmp_path / "a folder" / "training.csv").read_text().startswith("experiment,variant,seed,step")
        assert "tables" in run.lines[-1]


async def test_export_that_cannot_write_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    async with running(tmp_path) as run:
        await run.press("e")
        run.app.screen.query_one(Input).value = str(tmp_path / "file" / "below")
        await run.press("enter")
        await exported(run)
        await run.pilot.pause()
        assert "cannot be written" in await run.press("5")


async def test_export_to_a_path_that_no_file_system_takes_says_so_and_nothing_ends(tmp_path):
    async with running(tmp_path) as run:
        await run.press("e")
        run.app.screen.query_one(Input).value = str(tmp_path / ("x" * 10_000))
        await run.pilot.pause()
        assert "cannot be looked into: File name too long" in run.text
        await run.press("enter")
        await exported(run)
        await run.pilot.pause()
        assert "error:" in await run.press("5")
        assert not run.app.job.over


async def test_export_where_the_working_directory_was_deleted_asks_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    async with running(tmp_path) as run:
        await run.press("e")
        assert run.app.screen.query_one(Input).value == f"{RUN}_tables"
        await run.press("enter")
        await exported(run)
        await run.pilot.pause()
        assert "No such file" in await run.press("5")


async def test_a_bug_in_an_export_is_shown_with_its_log(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("geocont_tui.app.tables.write_csv", fail)
    async with running(tmp_path) as run:
        await run.press("e", "enter")
        await run.pilot.pause()
        while not (run.folder / "error.log").exists():
            await run.pilot.pause(0.01)
        await run.pilot.pause()
        assert "something went wrong, see error.log" in run.lines[-1]
        assert "ZeroDivisionError" in await run.press("5")
        assert run.app.is_running
        assert not run.app.job.over


async def test_a_picture_is_an_svg_in_the_runs_folder(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("s")
        pictures = list(run.folder.glob("*.svg"))
        assert len(pictures) == 1
        assert "Res+GELU" in pictures[0].read_text(encoding="utf-8").replace("&#160;", " ")
        assert pictures[0].name in text
        await run.press("s")
        assert len(list(run.folder.glob("*.svg"))) == 2


@pytest.mark.parametrize(("key", "view"), [("2", "layers"), ("4", "claims"), ("5", "log")])
async def test_a_wide_screen_shows_nothing_twice(tmp_path, key, view):
    async with running(tmp_path, (140, 40)) as run:
        screen = run.app.screen
        below = screen.query_one(f"#bottom-{view}")
        assert below.display
        await run.press("tab", "tab", key)
        assert not below.display
        assert screen.focused is None or screen.focused.display
        for _ in range(4):
            await run.press("tab")
            assert screen._pane != f"bottom-{view}"
        await run.press("1")
        assert below.display


async def test_copying_hands_the_row_to_the_terminal(tmp_path):
    async with running(tmp_path, (140, 40)) as run:
        text = await run.press("down", "y")
        assert "sent to the terminal" in text
        header, row = run.app.clipboard.split("\n")
        numbers = dict(zip(header.split("\t"), row.split("\t"), strict=True))
        assert numbers["variant"] == "Res+ReLU"
        assert float(numbers["weight_v1"]) == pytest.approx(0.75, abs=0.02)


async def test_the_theme_changes_between_dark_and_light(tmp_path):
    async with running(tmp_path) as run:
        before = run.text
        await run.press("t")
        assert not run.app.current_theme.dark
        assert run.text == before
        backgrounds = {segment.style.bgcolor.get_truecolor() for row in run.rows for segment in row if segment.style}
        assert min(sum(colour) for colour in backgrounds) > 3 * 127


async def test_a_tick_after_the_end_paints_nothing(tmp_path):
    async with running(tmp_path) as run:
        app = run.app
    # Whatever is new by then: the widgets are gone.
    app._painted = None
    app._tick()


async def test_a_closed_dialog_leaves_nothing_of_what_it_drew(tmp_path):
    def drawn() -> int:
        gc.collect()
        return sum(isinstance(thing, Strip) for thing in gc.get_objects())

    async with running(tmp_path, (140, 40)) as run:
        await run.press("question_mark")
        await run.press("escape")
        before = drawn()
        for _ in range(4):
            await run.press("question_mark")
            await run.press("escape")
        assert drawn() < before + 40
