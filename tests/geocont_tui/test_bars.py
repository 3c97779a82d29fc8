"""Bars: exact lengths, honest gaps, and rows that do not change are not sent again."""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region

from geocont_tui.palette import ASCII, UNICODE, Palette, palette_for
from geocont_tui.widgets.bars import BarRow, Bars, BarsData, draw, level_range, sparkline
from geocont_tui.widgets.cells import Frame

DARK = palette_for("truecolor", dark=True)
PLAIN = palette_for("none", dark=True, ascii_only=True)

values = st.one_of(st.none(), st.floats(), st.floats(0, 1))
any_rows = st.lists(
    st.builds(BarRow, st.text(max_size=12), values, st.text(max_size=20), st.booleans()), max_size=12
).map(tuple)
any_data = st.builds(BarsData, any_rows, values, values, st.text(max_size=20), st.floats(), st.integers(0, 20))


def lines(frame: Frame) -> list[str]:
    return ["".join(character for character, _ in row) for row in frame]


def pairs(count: int, value: float = 0.9) -> tuple[BarRow, ...]:
    return tuple(BarRow(f"{i}-{i + 1}", value - i / 100) for i in range(count))


@example(BarsData((), math.nan, math.inf, "chance", math.nan), 10, 1, 0, DARK)
@example(BarsData((BarRow("Q", 0.5),), math.nan, math.inf, "chance"), 30, 3, 0, DARK)
@settings(deadline=None)
@given(any_data, st.integers(0, 90), st.integers(0, 15), st.integers(-3, 20), st.sampled_from([DARK, PLAIN]))
def test_any_numbers_at_any_size_fill_the_frame_exactly(
    data: BarsData, width: int, height: int, first: int, palette: Palette
) -> None:
    frame = draw(data, width, height, palette, first)
    assert len(frame) == (height if width else 0)
    for row in frame:
        assert len(row) == width
        assert sum(cell_len(character) for character, _ in row) == width
        assert palette is not PLAIN or all(character.isascii() for character, _ in row)


@given(st.floats(0, 1))
def test_the_bar_is_the_value_to_an_eighth_of_a_cell(value: float) -> None:
    (text,) = lines(draw(BarsData((BarRow("Q", value),)), 60, 1, DARK))
    bar = text[2:55].rstrip()
    eighths = sum(UNICODE.blocks.index(block) + 1 for block in bar)
    assert abs(eighths - value * 53 * 8) <= 0.5
    assert float(text[55:].strip()) == pytest.approx(value, abs=0.00501)


def test_ascii_bars_have_half_steps() -> None:
    data = BarsData((BarRow("Q", 1.0), BarRow("K", 0.5), BarRow("V", 0.55), BarRow("O", 0.0)))
    assert lines(draw(data, 17, 4, PLAIN)) == [
        "Q ========== 1.00",
        "K =====      0.50",
        "V =====-     0.55",
        "O            0.00",
    ]


def test_what_does_not_exist_says_so_with_its_reason() -> None:
    data = BarsData(
        (BarRow("0-1", None, "shapes differ"), BarRow("1-2", 0.7, unique=False), BarRow("2-3", math.nan)), chance=0.05
    )
    text = lines(draw(data, 60, 3, DARK))
    assert text[0].rstrip() == "0-1 n/a  shapes differ"
    assert text[1].rstrip() == "1-2 ▨▨▨ n/a  not unique"
    assert text[2].rstrip() == "2-3 n/a  not finite"


def test_the_chance_level_and_its_band_stand_at_their_places() -> None:
    data = BarsData((BarRow("a", 0.1), BarRow("b", 0.9)), chance=0.3, chance_limit=0.5, chance_label="chance .300")
    frame = draw(data, 107, 3, DARK)
    assert [x for x, cell in enumerate(frame[0]) if cell[0] == "┊"] == [2 + 30, 2 + 50]
    # Over a bar only the level itself stays, cut out of the bar; an end of the band below the value says nothing more.
    assert [x for x, cell in enumerate(frame[1]) if cell[0] == "┊"] == [2 + 30]
    assert frame[1][32][1].reverse
    assert lines(frame)[2].rstrip() == " " * 32 + "┊ chance .300"


def test_the_second_line_is_named_where_there_is_room() -> None:
    labels = {"chance_label": "chance 0.050", "limit_label": "95 % below 0.100"}
    data = BarsData(pairs(3), chance=0.05, chance_limit=0.1, **labels)
    assert lines(draw(data, 60, 4, DARK))[-1].strip() == "┊ chance 0.050, 95 % below 0.100"
    assert lines(draw(data, 20, 4, DARK))[-1].strip() == "┊ chance 0.050"
    assert level_range([0.1, 0.0501, 0.05]) == "0.050-0.100"
    assert level_range([0.05, 0.0501]) == "0.050"
    assert level_range([]) == ""


def test_hidden_rows_are_announced() -> None:
    data = BarsData(pairs(15), chance=0.05, chance_label="chance .050")
    assert lines(draw(data, 60, 8, DARK))[7].endswith("1-7 of 15 ↓")
    assert lines(draw(data, 60, 8, DARK, first=3))[7].endswith("4-10 of 15 ↑↓")
    last = lines(draw(data, 60, 8, DARK, first=99))
    assert last[7].endswith("9-15 of 15 ↑")
    assert last[6].startswith("14-15")
    assert "of 15" not in lines(draw(data, 60, 16, DARK))[15]


def test_notes_stand_behind_the_value_where_there_is_room() -> None:
    data = BarsData((BarRow("Q", 0.5, "residual"), BarRow("K", 0.5)))
    assert lines(draw(data, 60, 2, DARK))[0].endswith("0.50 residual ")
    assert "residual" not in lines(draw(data, 30, 2, DARK))[0]


class BarsApp(App[None]):
    CSS = "Bars { border: solid white; }"

    def __init__(self) -> None:
        super().__init__()
        self.bars = RecordingBars(DARK)

    def compose(self) -> ComposeResult:
        yield self.bars


class RecordingBars(Bars):
    def __init__(self, palette: Palette) -> None:
        super().__init__(palette)
        self.refreshed: list[tuple[Region, ...]] = []

    def refresh(self, *regions: Region, **options: Any) -> "RecordingBars":
        self.refreshed.append(regions)
        return super().refresh(*regions, **options)


async def test_only_the_row_that_changed_is_refreshed() -> None:
    app = BarsApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.bars.show(BarsData(pairs(5)))
        await pilot.pause()
        app.bars.refreshed.clear()
        app.bars.show(BarsData(pairs(5)))
        assert app.bars.refreshed == []
        changed = (*pairs(5)[:2], BarRow("2-3", 0.2), *pairs(5)[3:])
        app.bars.show(BarsData(changed))
        (regions,) = app.bars.refreshed
        assert {region.y for region in regions} == {2}
        assert [app.bars.render_line(y).text for y in range(5)] == lines(draw(BarsData(changed), 58, 5, DARK))


async def test_scrolling_stops_at_both_ends() -> None:
    app = BarsApp()
    async with app.run_test(size=(60, 10)) as pilot:
        data = BarsData(pairs(20))
        app.bars.show(data)
        await pilot.pause()
        for delta, first in ((4, 4), (99, 13), (-1, 12), (-99, 0)):
            app.bars.scroll_rows(delta)
            assert [app.bars.render_line(y).text for y in range(8)] == lines(draw(data, 58, 8, DARK, first))


def test_a_sparkline_shows_shape_and_gaps() -> None:
    assert sparkline((0.0, 0.5, 1.0), 3, UNICODE) == "▁▅█"
    assert sparkline((0.0, 0.5, 1.0), 3, ASCII) == "_=#"
    assert sparkline((0.9, None, math.nan, 0.9), 6, UNICODE) == "█··█  "
    assert sparkline((0.0, 0.0, 1.0, 1.0), 2, UNICODE) == "▁█"
    assert sparkline((), 4, UNICODE) == "    "


@given(st.lists(values, max_size=200), st.integers(-1, 40), st.sampled_from([ASCII, UNICODE]))
def test_a_sparkline_has_its_width(numbers: list[float | None], width: int, glyphs: Any) -> None:
    text = sparkline(numbers, width, glyphs)
    assert cell_len(text) == max(width, 0)
