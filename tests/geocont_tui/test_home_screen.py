"""The home screen: what it shows at which size and in which colours, what its keys do, what it never does.

`GEOCONT_UPDATE_SNAPSHOTS=1 pytest …` writes the snapshots anew. The runs are made from synthetic events.
"""

import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import synthetic
import synthetic_analysis
from geocont.errors import JobError
from geocont.runs import Recording
from rich.segment import Segment
from staged_run import DARK, FEW_COLOURS, NO_COLOUR, PLAIN, compare
from textual.pilot import Pilot
from textual.widgets import Input

from geocont_tui import home_state
from geocont_tui.home import HomeApp, Left, Open, Start, run_home
from geocont_tui.screens.deletion import DeletionQuestion
from geocont_tui.screens.entry import Entry
from geocont_tui.screens.home import HomeScreen
from geocont_tui.screens.reader import Reader
from geocont_tui.terminal import Settings
from geocont_tui.widgets.cells import CellWidget

SIZES = [(60, 15), (80, 24), (140, 40)]
LIVE, DONE, FAILED, ANALYSIS, CUT = (
    "2026-12-01T14-03-11_mlp_k3f9",
    "2026-12-01T12-00-00_mlp_a01z",
    "2026-12-01T11-00-00_wide_9qq2",
    "2026-11-30T09-30-00_Llama-3.1-8B_77qq",
    "2026-11-20T08-00-00_mlp_x0x0",
)


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clock stands still, the home folder is tmp_path, the hub's cache is empty."""
    monkeypatch.setattr("geocont_tui.home_state.time.time", lambda: synthetic.START + 7200.0)
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def recorded(folder: Path, events: Iterator, count: int | None = None, cut: bool = False) -> None:
    """A run in `folder` from the first `count` events; `cut`: without its end, as after kill -9."""
    folder.mkdir(parents=True)
    with Recording(islice(events, count), folder) as recording:
        for _ in range(count or 10**9):
            if next(recording, None) is None:
                break
    if cut:
        journal = folder / "events.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))


def failing() -> Iterator:
    yield from islice(synthetic.events(), 40)
    raise JobError("out of memory", "lower the width")


@pytest.fixture
def some(tmp_path: Path) -> Iterator[Path]:
    """Runs of all kinds."""
    runs = tmp_path / "runs"
    recorded(runs / CUT, synthetic.events(), 60, cut=True)
    recorded(runs / ANALYSIS, iter(synthetic_analysis.events()))
    recorded(runs / DONE, synthetic.events())
    with pytest.raises(JobError):
        recorded(runs / FAILED, failing())
    (runs / LIVE).mkdir()
    with Recording(synthetic.events(), runs / LIVE) as recording:
        for _ in range(80):
            next(recording)
        yield runs


@dataclass
class Home:
    """The app in a pilot."""

    app: HomeApp
    pilot: Pilot

    @property
    def rows(self) -> list[list[Segment]]:
        return [list(strip) for strip in self.app.screen._compositor.render_strips()]

    @property
    def lines(self) -> list[str]:
        return ["".join(segment.text for segment in row).rstrip() for row in self.rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def settle(self) -> str:
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()
        return self.text


@asynccontextmanager
async def showing(
    runs: Path, size: tuple[int, int] = (80, 24), settings: Settings = DARK, said: tuple[str, str] | None = None
) -> AsyncIterator[Home]:
    app = HomeApp(settings, runs, said)
    async with app.run_test(size=size) as pilot:
        home = Home(app, pilot)
        await home.settle()
        yield home


# --- What it looks like


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_runs_of_all_kinds(some, size):
    async with showing(some, size) as home:
        compare(f"home_{size[0]}x{size[1]}_dark.txt", home.text)
        assert all(sum(segment.cell_length for segment in row) == size[0] for row in home.rows)
        assert len(home.rows) == size[1]


@pytest.mark.parametrize(
    ("name", "settings"), [("16", FEW_COLOURS), ("none", NO_COLOUR), ("ascii", PLAIN)], ids=lambda value: str(value)[:5]
)
async def test_other_colours_and_ascii(some, name, settings):
    async with showing(some, (80, 24), settings) as home:
        compare(f"home_80x24_{name}.txt", home.text)
        assert home.text.isascii() or not settings.ascii
        for keys in ((), ("question_mark",), ("escape", "a"), ("escape", "down", "x")):
            await home.press(*keys)
            for segment in (segment for row in home.rows for segment in row):
                for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert name == "16" or colour is None or colour.is_default, (keys, segment)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_first_start_explains_itself(tmp_path, size):
    (tmp_path / "runs").mkdir()
    async with showing(tmp_path / "runs", size) as home:
        compare(f"home_empty_{size[0]}x{size[1]}.txt", home.text)
        assert "There are no runs yet." in home.text
        assert "? shows every key" in home.text


@pytest.mark.parametrize(
    ("name", "keys"), [("analyze", "a"), ("delete", "down x"), ("rename", "down m"), ("help", "question_mark")]
)
async def test_the_dialogs(some, tmp_path, name, keys):
    (tmp_path / "work" / "pythia").mkdir()
    (tmp_path / "work" / "pythia" / "model.safetensors").touch()
    (tmp_path / "work" / "plain").mkdir()
    async with showing(some) as home:
        compare(f"home_{name}_80x24.txt", await home.press(*keys.split()))


@pytest.mark.parametrize("size", [(1, 1), (59, 14), (79, 30)])
async def test_any_size_can_be_drawn(some, size):
    async with showing(some, size) as home:
        for keys in (("2",), ("3",), ("a",), ("escape",), ("question_mark",), ("escape",), ("1", "end")):
            await home.press(*keys)
        assert ("needs" in home.text) == (size == (59, 14))


async def test_a_folder_that_cannot_be_listed_is_explained(tmp_path):
    async with showing(tmp_path / "nowhere") as home:
        assert "cannot be listed" in home.text
        assert "there is no folder" in home.text


async def test_the_numbers_are_those_of_the_journal(some):
    async with showing(some, (140, 40)) as home:
        row = next(line for line in home.lines if "mlp_a01z" in line)
        assert "done" in row
        assert "100%" in row
        state = home.app.home.state
        best = next(run for run in state.runs if run.title == "mlp_a01z").headline[0]
        assert best in row
        words = {run.title: run.state for run in state.runs}
        assert words == {
            "mlp_k3f9": "live",
            "mlp_a01z": "done",
            "wide_9qq2": "failed",
            "Llama-3.1-8B_77qq": "done",
            "mlp_x0x0": "interrupted",
        }
        assert "out of memory" in next(line for line in home.lines if "wide_9qq2" in line)
        assert "1 live" in home.lines[0]


async def test_it_stands_still(some, monkeypatch):
    async with showing(some) as home:
        refreshed = []
        original = CellWidget.refresh
        monkeypatch.setattr(
            CellWidget, "refresh", lambda self, *regions, **kw: refreshed.append(self) or original(self, *regions, **kw)
        )
        for _ in range(3):
            home.app.read()
            await home.settle()
        assert refreshed == []


async def test_unchanged_journals_are_not_read_again(some, monkeypatch):
    monkeypatch.setattr(home_state, "_SHARE", math.inf)
    reader = home_state.HomeReader(some)
    before = reader.read()
    monkeypatch.setattr(home_state, "headline", lambda *_: pytest.fail("read again"))
    assert reader.read() == before


@pytest.mark.parametrize(("share", "is_new"), [(math.inf, True), (1e-9, False)])
def test_a_journal_that_grows_is_read_again_but_not_all_the_time(tmp_path, monkeypatch, share, is_new):
    monkeypatch.setattr(home_state, "_SHARE", share)
    (tmp_path / LIVE).mkdir()
    reader = home_state.HomeReader(tmp_path)
    with Recording(synthetic.events(), tmp_path / LIVE) as recording:
        for _ in range(60):
            next(recording)
        before = reader.read().runs[0]
        for _ in range(60):
            next(recording)
        after = reader.read().runs[0]
        assert (after.summary != before.summary) == is_new
    # That it has ended is shown at once.
    assert reader.read().runs[0].state == "stopped"


# --- What the keys do


async def test_enter_opens_the_selected_run(some):
    async with showing(some) as home:
        await home.press("down", "enter")
    assert home.app.return_value == Open(some / DONE)


@pytest.mark.parametrize("key", ["r", "x", "m"])
async def test_a_live_run_is_left_alone(some, key):
    async with showing(some) as home:
        assert "the run is live" in (await home.press(key)).splitlines()[-1]
        assert isinstance(home.app.screen, HomeScreen)
        assert "watch" in await home.press("down", "up")
    assert (some / LIVE).exists()


async def test_an_interrupted_run_is_resumed_in_the_background(some):
    async with showing(some) as home:
        await home.press("end", "r")
    assert home.app.return_value == Start(("resume", str(some / CUT)))


async def test_a_finished_run_is_not_resumed(some):
    async with showing(some) as home:
        assert "nothing to go on with" in (await home.press("down", "r")).splitlines()[-1]


async def test_deleting_asks_first(some):
    async with showing(some) as home:
        await home.press("down", "x")
        assert isinstance(home.app.screen, DeletionQuestion)
        await home.press("enter")
        assert (some / DONE).exists()
        await home.press("x", "x")
        text = await home.settle()
        assert not (some / DONE).exists()
        assert "mlp_a01z is deleted" in text.splitlines()[-1]
        assert "runs: 4" in text


async def test_a_run_that_became_live_meanwhile_is_not_deleted(some):
    async with showing(some) as home:
        await home.press("end", "x")
        (some / CUT / "events.jsonl").unlink()
        with Recording(synthetic.events(), some / CUT) as recording:
            next(recording)
            await home.press("x")
            await home.settle()
            assert isinstance(home.app.screen, Reader)
            assert "is being written by process" in home.text.replace("\n", " ")
    assert (some / CUT).exists()


async def test_renaming(some):
    async with showing(some) as home:
        await home.press("down", "m")
        home.app.screen.query_one(Input).value = "the best"
        await home.press("enter")
        text = await home.settle()
        assert (some / "2026-12-01T12-00-00_the best").is_dir()
        assert "is now called the best" in text.splitlines()[-1]
        await home.press("m")
        home.app.screen.query_one(Input).value = "a/b"
        await home.press("enter")
        assert "cannot be the name of a run" in home.text


async def test_exporting(some, tmp_path):
    async with showing(some) as home:
        await home.press("down", "e", "enter")
        await home.settle()
        assert (tmp_path / "work" / f"{DONE}_tables" / "training.csv").is_file()


async def test_exporting_to_a_path_that_no_file_system_takes_is_refused_where_it_is_typed(some, tmp_path):
    async with showing(some) as home:
        await home.press("e")
        home.app.screen.query_one(Input).value = str(tmp_path / ("x" * 300))
        await home.pilot.pause()
        assert "cannot be looked into: File name too long" in home.text


async def test_what_goes_wrong_behind_the_screen_is_shown_with_its_log(some, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("geocont_tui.home_state.HomeReader.read", fail)
    async with showing(some) as home:
        log = home.app.error_log
        while not log.exists():
            await home.pilot.pause(0.01)
        assert "ZeroDivisionError: division by zero" in await home.settle()
    assert "division by zero" in log.read_text()


async def test_a_preset_is_started(some):
    async with showing(some) as home:
        await home.press("2", "enter")
    assert home.app.return_value == Start(("ablate", "mlp"))


async def test_a_file_that_is_no_experiment_is_refused_where_it_is_typed(some, tmp_path):
    (tmp_path / "work" / "bad.toml").write_text("widht = 3\n")
    (tmp_path / "work" / "good.toml").write_text('name = "x"\n[[variants]]\nname = "a"\n')
    async with showing(some) as home:
        await home.press("n", *"ba", "tab", "enter")
        assert isinstance(home.app.screen, Entry)
        assert "bad.toml" in home.text
        assert "name" in home.text
        home.app.screen.query_one(Input).value = "good.toml"
        await home.press("enter")
    assert home.app.return_value == Start(("ablate", "good.toml"))


async def test_a_model_analysed_before_is_one_key_away(some):
    async with showing(some) as home:
        assert "analysed" in await home.press("3", "down")
        name = home.app.home.state.recent[0]
        await home.press("enter")
    assert home.app.return_value == Start(("analyze", name))


async def test_a_name_is_typed_and_completed(some, tmp_path):
    snapshot = tmp_path / "cache" / "models--org--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").touch()
    (tmp_path / "cache" / "models--org--nothing").mkdir()
    async with showing(some) as home:
        home.app.read()
        await home.settle()
        text = await home.press("a", *"tin")
        assert "org/tiny" in text
        assert "org/nothing" not in text
        await home.press("tab")
        assert home.app.screen.query_one(Input).value == "org/tiny"
        await home.press("enter")
    assert home.app.return_value == Start(("analyze", "org/tiny"))


async def test_a_folder_on_the_way_is_entered_not_analysed(some, tmp_path):
    (tmp_path / "work" / "models" / "pythia").mkdir(parents=True)
    (tmp_path / "work" / "models" / "pythia" / "model.safetensors").touch()
    async with showing(some) as home:
        await home.press("a", *"mod", "down", "enter")
        assert home.app.screen.query_one(Input).value == "models/"
        await home.press("down", "enter")
    assert home.app.return_value == Start(("analyze", "models/pythia/"))


async def test_an_empty_name_is_asked_for_again(some):
    async with showing(some) as home:
        assert "type the name of a model" in await home.press("a", "enter")
        await home.press("escape")
        assert isinstance(home.app.screen, HomeScreen)


async def test_what_went_wrong_since_is_said(some):
    async with showing(some, said=("there is no model org/nothing", "check the name")) as home:
        assert "there is no model org/nothing" in home.text
        assert "check the name" in home.text
        await home.press("escape", "q")
    assert home.app.return_value is None


async def test_the_selected_run_stays_selected_when_another_begins(some):
    async with showing(some) as home:
        await home.press("down")
        recorded(some / "2026-12-02T00-00-00_new_1111", synthetic.events(), 10)
        home.app.read()
        await home.settle()
        assert home.app.home.selected.folder.name == DONE


async def test_nothing_blinks(some):
    async with showing(some) as home:
        for key in ("a", "escape", "n", "escape", "down", "m"):
            await home.press(key)
            assert not any(field.cursor_blink for field in home.app.screen.query(Input))


def test_no_color_is_still_there_for_the_next_screen(some, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(HomeApp, "run", lambda _: None)
    assert run_home(NO_COLOUR, some) == Left(None, 0, NO_COLOUR)
    assert os.environ["NO_COLOR"] == "1"


async def test_the_theme_goes_on_to_the_next_screen(some):
    async with showing(some) as home:
        await home.press("t")
        assert not home.app.current_theme.dark
        assert not home.app.settings.dark
        await home.press("t")
        assert home.app.settings.dark


async def test_every_preset_is_in_reach_and_explained_at_80x24(some):
    async with showing(some, (80, 24)) as home:
        text = await home.press("2")
        names = [name for name, _ in home.app.home._presets]
        for name in names:
            assert sum(f"▶ {name}" in line for line in home.lines) == 1, text
            said = home.app.home._explanation
            assert len(said) > 40
            # All of it, to the last word.
            assert said in " ".join(line.strip("│┃ ") for line in home.lines), text
            text = await home.press("down")
        assert len(names) == 8


async def test_the_device_of_the_selected_run_is_shown_at_80x24(some):
    async with showing(some, (80, 24)) as home:
        run = home.app.home.selected
        assert run.summary.device == "cpu, 2 threads"
        assert f"{run.summary.device}: {run.folder.name}" in home.text
