"""The chart: survives any numbers at any size, shows what it is given, and repaints only what changed."""

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from geocont_tui.palette import Palette, palette_for
from geocont_tui.widgets import chart as chart_module
from geocont_tui.widgets.cells import Frame
from geocont_tui.widgets.chart import Chart, ChartData, Curve, Level, draw

DARK = palette_for("truecolor", dark=True)
MONO = palette_for("none", dark=True)
PLAIN = palette_for("none", dark=True, ascii_only=True)


def lines(frame: Frame) -> list[str]:
    return ["".join(character for character, _ in row) for row in frame]


def cells_of(frame: Frame, palette: Palette, index: int) -> set[tuple[int, int]]:
    """(row, column) of the cells in the style of curve `index`."""
    return {(y, x) for y, row in enumerate(frame) for x, cell in enumerate(row) if cell[1] is palette.curve(index)}


def curve(y: list[float | None], x: list[float] | None = None, **options: Any) -> Curve:
    steps = tuple(float(step) for step in range(len(y))) if x is None else tuple(x)
    return Curve(options.pop("name", "Res+GELU"), options.pop("index", 0), steps, tuple(y), **options)


# --- any numbers, any size


values = st.one_of(st.none(), st.floats(), st.floats(0, 1), st.sampled_from([1e30, -1e30, 1e308, -1e308, 0.0, 1.0]))
limits = st.one_of(st.tuples(st.floats(), st.floats()), st.sampled_from([(0.0, 1.0), (0.0, 1200.0), (1.0, 1000.0)]))


@st.composite
def any_curves(draw_from: st.DrawFn) -> Curve:
    length = draw_from(st.integers(0, 12))
    column = st.lists(values, min_size=length, max_size=length).map(tuple)
    x = draw_from(st.lists(st.one_of(st.floats(), st.floats(0, 1200)), min_size=length, max_size=length).map(tuple))
    band = draw_from(st.booleans())
    low, high = (draw_from(column), draw_from(column)) if band else (None, None)
    return Curve(draw_from(st.text(max_size=20)), draw_from(st.integers(0, 30)), x, draw_from(column), low, high)


any_data = st.builds(
    ChartData,
    curves=st.lists(any_curves(), max_size=4).map(tuple),
    x_limits=limits,
    y_limits=limits,
    log_x=st.booleans(),
    levels=st.lists(st.builds(Level, st.floats(), st.text(max_size=12)), max_size=2).map(tuple),
)


@example(ChartData((), (0.0, 1.0), (0.0, 1.9e307)), 20, 1, DARK)
@example(ChartData((), (0.0, 1e-300), log_x=True), 30, 8, DARK)
@settings(deadline=None, max_examples=150)
@given(any_data, st.integers(0, 90), st.integers(0, 24), st.sampled_from([DARK, MONO, PLAIN]))
def test_any_numbers_at_any_size_fill_the_frame_exactly(
    data: ChartData, width: int, height: int, palette: Palette
) -> None:
    frame = draw(data, width, height, palette)
    assert len(frame) == (height if width else 0)
    for row in frame:
        assert len(row) == width
        assert sum(cell_len(character) for character, _ in row) == width
        assert palette is not PLAIN or all(character.isascii() for character, _ in row)


HOSTILE = """
import math, sys
from geocont_tui.palette import palette_for
from geocont_tui.widgets.chart import ChartData, Curve, Level, draw
nan, inf = math.nan, math.inf
series = [
    (), (0.5,), (nan,), (inf,), (-inf,), (None,), (1e308, -1e308), (0.5, 1e30, 0.5), (0.5, -1e30, 0.5, 1e5, nan, 0.2),
    (0.3,) * 50, (nan,) * 50, (inf, 0.5, -inf, 0.5), (1e-320, 0.1), tuple(10.0 ** k for k in range(-300, 300, 7)),
]
horizontal = [lambda n: tuple(range(n)), lambda n: (1e308,) * n, lambda n: (nan,) * n, lambda n: (-inf, inf) * n,
              lambda n: tuple(10.0 ** (k % 300) for k in range(n)), lambda n: (0.0,) * n]
sizes = [(n, n) for n in range(21)] + [(0, 5), (5, 0), (1, 40), (200, 1), (60, 12)]
count = 0
for y in series:
    for make in horizontal:
        x = make(len(y))[: len(y)]
        curve = Curve("hostile", 0, x, y, y, y[::-1])
        for limits in ((0.0, 50.0), (0.0, 1e-300), (nan, inf), (5.0, 5.0), (1e300, -1e300)):
            data = ChartData((curve, curve), limits, (0.0, 1.0), count % 2 == 0, (Level(nan, "a"), Level(0.1, "b")))
            width, height = sizes[count % len(sizes)]
            draw(data, width, height, palette_for("none", True, count % 3 == 0))
            count += 1
for width, height in sizes:
    for y in series:
        curve = Curve("hostile", 0, tuple(range(len(y))), y, y, y)
        draw(ChartData((curve,), (0.0, 50.0)), width, height, palette_for("16", True))
print("alive")
"""


def test_hostile_numbers_do_not_end_the_process() -> None:
    # plotext answers such points with SIGABRT, which no `except` sees: only another process can tell.
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr[-2000:]


@pytest.mark.parametrize("place", [math.nan, math.inf, -0.01, 1.01, 1e30])
def test_the_last_door_before_plotext_is_shut(place: float) -> None:
    with pytest.raises(ValueError, match="unit square"):
        chart_module._rasterize((0.5, place), (0.5, 0.5), (), 10, 5, "braille")


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 30), st.integers(1, 12), st.sampled_from(["braille", "*"]))
def test_our_cells_are_plotexts_cells(u: float, v: float, columns: int, rows: int, marker: str) -> None:
    drawn = chart_module._rasterize((u,), (v,), (), columns, rows, marker)
    places = [(y, x) for y, line in enumerate(drawn) for x, character in enumerate(line) if character != " "]
    row, column = chart_module._cell(v, rows, upwards=True), chart_module._cell(u, columns)
    assert len(places) == 1
    # On the edge between two cells plotext may round the other way.
    assert abs(places[0][0] - row) <= (not 0.01 < (v * (rows - 1) + 0.5) % 1 < 0.99)
    assert abs(places[0][1] - column) <= (not 0.01 < (u * (columns - 1) + 0.5) % 1 < 0.99)


# --- what is shown


def test_a_rising_line_goes_from_bottom_left_to_top_right() -> None:
    frame = draw(ChartData((curve([0.0, 1.0], [0, 100]),), (0.0, 100.0)), 44, 14, DARK)
    line = sorted(cells_of(frame, DARK, 0), key=lambda cell: cell[1])
    assert line[0] == (11, 5)
    assert line[-2:] == [(0, 41), (0, 43)]
    assert frame[0][41] == ("●", DARK.curve(0))


@pytest.mark.parametrize("height", range(5, 25))
def test_the_marker_sits_on_the_end_of_its_line_at_every_height(height: int) -> None:
    frame = draw(ChartData((curve([0.5, 0.5], [0, 50]),), (0.0, 100.0)), 44, height, DARK)
    assert len({row for row, column in cells_of(frame, DARK, 0) if column < 42}) == 1


def test_missing_values_split_the_line() -> None:
    whole: list[float | None] = [0.5] * 40
    holes: list[float | None] = [0.5] * 15 + [None, math.nan, math.inf, -math.inf, None] * 2 + [0.5] * 15
    columns = [
        {column for row, column in cells_of(draw(ChartData((curve(y),), (0.0, 39.0)), 46, 12, MONO), MONO, 0)}
        for y in (whole, holes)
    ]
    gap = columns[0] - columns[1]
    assert 8 <= len(gap) <= 10
    assert max(gap) - min(gap) == len(gap) - 1


def test_one_spike_among_thousands_of_points_is_shown() -> None:
    y: list[float | None] = [0.1] * 5000
    y[2503] = 1.0
    frame = draw(ChartData((curve(y),), (0.0, 5000.0)), 60, 20, DARK)
    assert any(row == 0 for row, _ in cells_of(frame, DARK, 0))


def test_thinning_leaves_two_points_a_column_with_their_extremes() -> None:
    segment = [(i / 9999, (i * 37 % 1000) / 999) for i in range(10000)]
    thin = chart_module._thin(segment, 50)
    assert len(thin) <= 2 * 50 + 2
    assert [point for point in segment if point in set(thin)] == sorted(set(thin))
    for column in range(50):
        whole = [v for u, v in segment if chart_module._cell(u, 50) == column]
        kept = [v for u, v in thin if chart_module._cell(u, 50) == column]
        assert (min(kept), max(kept)) == (min(whole), max(whole))


def test_thousands_of_pieces_are_joined_where_the_gap_is_invisible() -> None:
    y: list[float | None] = [0.5, None] * 5000
    segments = chart_module._path(range(10000), y, chart_module._Scale(ChartData((), (0.0, 10000.0))), 40)
    assert sum(map(len, segments)) <= 4 * 40


def test_a_line_is_cut_where_it_crosses_the_x_limits() -> None:
    scale = chart_module._Scale(ChartData((), (0.0, 10.0)))
    assert chart_module._path((-10, 30), (0.0, 1.0), scale, 20) == [[(0.0, 0.25), (1.0, 0.5)]]
    assert chart_module._path((-10, 10), (0.0, 1.0), scale, 20) == [[(0.0, 0.5), (1.0, 1.0)]]
    assert chart_module._path((0, 20), (0.0, 1.0), scale, 20) == [[(0.0, 0.0), (1.0, 0.5)]]
    assert chart_module._path((-20, -10, 20, 30), (0.0, None, 0.0, 1.0), scale, 20) == []


def test_values_beyond_the_y_limits_are_drawn_at_the_border() -> None:
    frame = draw(ChartData((curve([7.0, 7.0], [0, 50]),), (0.0, 100.0)), 44, 14, DARK)
    assert {row for row, _ in cells_of(frame, DARK, 0)} == {0}


def test_the_later_curve_owns_a_shared_cell_and_the_dots_of_both_are_kept() -> None:
    both = (curve([0.5, 0.5], [0, 100]), curve([0.0, 1.0], [0, 100], index=1, name="Res+ReLU"))
    frame = draw(ChartData(both, (0.0, 100.0)), 44, 13, DARK)
    alone = [draw(ChartData((one,), (0.0, 100.0)), 44, 13, DARK) for one in both]
    shared = cells_of(alone[0], DARK, 0) & cells_of(alone[1], DARK, 1)
    crossing = [(row, column) for row, column in shared if column < 41]
    assert crossing
    for row, column in crossing:
        dots = [ord(one[row][column][0]) for one in alone]
        assert frame[row][column] == (chr(dots[0] | dots[1]), DARK.curve(1))


def test_names_stand_at_the_height_of_their_lines_and_are_moved_apart() -> None:
    curves = tuple(curve([0.5, 0.5], [0, 80], index=i, name=f"variant {i}") for i in range(3))
    text = lines(draw(ChartData(curves, (0.0, 100.0)), 80, 15, DARK))
    rows = {
        i: next(y for y, line in enumerate(text) if line.endswith(f"{DARK.marker(i)} variant {i}")) for i in range(3)
    }
    assert rows == {0: 6, 1: 7, 2: 8}


@given(st.lists(st.integers(0, 9), max_size=10).map(sorted))
def test_labels_moved_apart_keep_their_order_and_stay_inside(wanted: list[int]) -> None:
    placed = chart_module._apart(wanted, 10)
    assert placed == sorted(set(placed))
    assert len(placed) == len(wanted)
    assert all(0 <= row < 10 for row in placed)
    assert len(set(wanted)) < len(wanted) or placed == wanted


def test_a_narrow_chart_shows_markers_without_names() -> None:
    data = ChartData((curve([0.5, 0.5], [0, 100]),), (0.0, 100.0))
    assert any("Res+GELU" in line for line in lines(draw(data, 50, 12, DARK)))
    narrow = lines(draw(data, 49, 12, DARK))
    assert not any("Res" in line for line in narrow)
    assert any(line.endswith(" ●") for line in narrow)


def test_a_narrow_chart_names_curves_of_short_names() -> None:
    curves = (curve([0.8, 0.8], index=0, name="q*"), curve([0.2, 0.2], index=1, name="o"))
    text = lines(draw(ChartData(curves, (0.0, 1.0), levels=(Level(0.5, "chance 0.500"),)), 39, 12, DARK))
    assert [line[-4:].rstrip() for line in text if line[-4:].strip()] == ["● q*", "▲ o"]
    assert any("chance 0.500" in line for line in text)


def test_a_faint_curve_has_a_dim_line_and_a_clear_mark() -> None:
    dim, clear = curve([0.2, 0.2], index=0, is_faint=True), curve([0.8, 0.8], index=1)
    frame = draw(ChartData((dim, clear), (0.0, 1.0)), 39, 12, DARK)
    faint = [cell for row in frame for cell in row if cell[1] is DARK.faint(0)]
    assert len(faint) > 25
    assert ("●", DARK.curve(0)) in {cell for row in frame for cell in row}
    assert not any(cell[1] is DARK.faint(1) for row in frame for cell in row)
    # Dots of a faint curve are kept where a clear one lies over it.
    both = draw(ChartData((dim, curve([0.0, 1.0], index=1)), (0.0, 1.0)), 39, 12, DARK)
    alone = draw(ChartData((curve([0.0, 1.0], index=1),), (0.0, 1.0)), 39, 12, DARK)
    pairs = zip(sum(both, ()), sum(alone, ()), strict=True)
    assert any(one != other for one, other in pairs if one[1] is DARK.curve(1))


@pytest.mark.parametrize("width", [41, 100])
@pytest.mark.parametrize("palette", [DARK, PLAIN])
def test_the_level_is_dashed_and_named(width: int, palette: Palette) -> None:
    data = ChartData((curve([0.9, 0.9], [0, 100]),), (0.0, 100.0), levels=(Level(0.06, "chance .062"),))
    text = lines(draw(data, width, 14, palette))
    dashes = palette.glyphs.dash * 10 if palette is DARK else "- - - - - "
    assert dashes in text[11] or dashes in text[10]
    assert any("chance .062" in line for line in text)


@pytest.mark.parametrize(("width", "named"), [(100, "chance 0.071 (128 dims)"), (60, "chance 0.071")])
def test_the_label_of_a_level_is_whole_or_without_its_brackets(width: int, named: str) -> None:
    data = ChartData((curve([0.9, 0.9]),), (0.0, 1.0), levels=(Level(0.07, "chance 0.071 (128 dims)"),))
    (label,) = (line for line in lines(draw(data, width, 14, DARK)) if "chance" in line)
    assert label.rstrip().endswith(f"┄ {named}")


def test_a_level_outside_the_limits_is_not_drawn_at_the_border() -> None:
    data = ChartData((), (0.0, 100.0), (0.5, 1.0), levels=(Level(0.06, "chance .062"), Level(math.nan, "nothing")))
    text = "\n".join(lines(draw(data, 80, 14, DARK)))
    assert "┄" not in text
    assert "chance" not in text
    assert "nothing" not in text


def test_the_band_is_dotted_behind_the_curve_in_its_own_style() -> None:
    y: list[float | None] = [0.52, 0.52]
    banded = curve(y, [0, 100], low=(0.2, 0.2), high=(0.8, 0.8))
    frame = draw(ChartData((banded,), (0.0, 100.0)), 60, 22, DARK)
    bare = draw(ChartData((curve(y, [0, 100]),), (0.0, 100.0)), 60, 22, DARK)
    dotted = {(y, x) for y, row in enumerate(frame) for x, cell in enumerate(row) if cell[1] is DARK.band(0)}
    assert cells_of(frame, DARK, 0) == cells_of(bare, DARK, 0)
    assert {row for row, _ in dotted} == set(range(4, 16)) - {9}
    # Without colour the dots alone must tell it from a line.
    assert all(bin(ord(frame[row][column][0]) - 0x2800).count("1") <= 2 for row, column in dotted)
    assert all(ord(frame[row][column][0]) > 0x2800 for row, column in dotted)


@pytest.mark.parametrize(("palette", "along"), [(DARK, False), (MONO, True), (palette_for("16", dark=True), True)])
def test_where_hues_repeat_the_markers_stand_along_the_lines(palette: Palette, along: bool) -> None:
    curves = tuple(curve([i / 8, i / 8], [0, 100], index=i, name="") for i in range(8))
    text = lines(draw(ChartData(curves, (0.0, 100.0)), 120, 30, palette))
    for i in range(8):
        count = sum(line.count(palette.marker(i)) for line in text)
        assert count >= 6 if along else count == 2


def test_ascii_draws_each_curve_with_its_own_letter() -> None:
    curves = tuple(curve([0.2 + 0.3 * i, 0.2 + 0.3 * i], [0, 100], index=i, name="σ-層") for i in range(3))
    text = lines(draw(ChartData(curves, (0.0, 100.0)), 80, 20, PLAIN))
    for letter in "ABC":
        assert any(letter * 30 in line for line in text)
    assert any("A s-?" in line for line in text)


# --- ticks


@pytest.mark.parametrize(
    ("limits", "most", "labels"),
    [
        ((0.0, 1200.0), 5, ["0", "300", "600", "900", "1.2k"]),
        ((0.0, 4690.0), 6, ["0", "1k", "2k", "3k", "4k"]),
        ((0.0, 1.0), 5, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ((0.0, 1.0), 6, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0.2, 0.9), 4, ["0.3", "0.6", "0.9"]),
        ((0.0, 1.0), 0, ["0", "1"]),
        ((0.0, 2.5e6), 3, ["0", "1M", "2M"]),
    ],
)
def test_ticks_are_round_and_end_on_the_limit_if_they_can(
    limits: tuple[float, float], most: int, labels: list[str]
) -> None:
    assert chart_module._tick_labels(chart_module._ticks(*limits, most)) == labels


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(0, 20))
def test_ticks_lie_inside_and_are_few(low: float, span: float, most: int) -> None:
    ticks = chart_module._ticks(low, low + span, most)
    assert len(ticks) <= max(most, 2)
    assert ticks == sorted(ticks)
    slack = 1e-6 * max(abs(low), span)
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)


def test_logarithmic_ticks_keep_step_zero() -> None:
    y: list[float | None] = [0.5] * 1001
    text = lines(draw(ChartData((curve(y),), (0.0, 1000.0), log_x=True), 100, 14, DARK))
    assert text[-1].split() == ["0", "1", "10", "100", "1k"]
    text = lines(draw(ChartData((curve(y),), (1.0, 1000.0), log_x=True), 100, 14, DARK))
    assert text[-1].split() == ["1", "10", "100", "1k"]


# --- the widget


class ChartApp(App[None]):
    CSS = "Chart { border: solid white; }"

    def __init__(self, data: ChartData) -> None:
        super().__init__()
        self.data = data
        self.chart = RecordingChart(DARK)

    def compose(self) -> ComposeResult:
        yield self.chart

    def on_mount(self) -> None:
        self.chart.show(self.data)


class RecordingChart(Chart):
    """Notes what is asked of Textual and which rows Textual asks for."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette)
        self.refreshed: list[tuple[Region, ...]] = []
        self.rendered: set[int] = set()

    def refresh(self, *regions: Region, **options: Any) -> "RecordingChart":
        self.refreshed.append(regions)
        return super().refresh(*regions, **options)

    def render_line(self, y: int) -> Strip:
        self.rendered.add(y)
        return super().render_line(y)

    def forget(self) -> None:
        self.refreshed.clear()
        self.rendered.clear()


def trajectory(length: int) -> ChartData:
    y: list[float | None] = [1 - math.exp(-step / 40) for step in range(length)]
    return ChartData((curve(y),), (0.0, 200.0), levels=(Level(0.06, "chance .062"),))


async def test_only_the_changed_spans_are_refreshed() -> None:
    app = ChartApp(trajectory(100))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        before = draw(trajectory(100), 78, 22, DARK)
        after = draw(trajectory(104), 78, 22, DARK)
        rows = {y for y in range(22) if before[y] != after[y]}
        app.chart.forget()
        app.chart.show(trajectory(104))
        await pilot.pause()
        (regions,) = app.chart.refreshed
        assert {region.y for region in regions} == rows
        assert app.chart.rendered == rows
        assert 0 < sum(region.area for region in regions) < 40
        for y, (old, new) in enumerate(zip(before, after, strict=True)):
            for x in range(78):
                assert old[x] == new[x] or any(region.contains(x, y) for region in regions)
        assert [app.chart.render_line(y).text for y in range(22)] == lines(after)


async def test_an_equal_frame_refreshes_nothing() -> None:
    app = ChartApp(trajectory(100))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.chart.forget()
        app.chart.show(trajectory(100))
        # Other data, but of the same look: a point moved by less than a dot.
        x, y = trajectory(100).curves[0].x, trajectory(100).curves[0].y
        moved = tuple(None if value is None else value + 1e-9 for value in y)
        app.chart.show(ChartData((Curve("Res+GELU", 0, x, moved),), (0.0, 200.0), levels=(Level(0.06, "chance .062"),)))
        await pilot.pause()
        assert app.chart.refreshed == []
        assert app.chart.rendered == set()


async def test_the_chart_follows_a_resize_and_a_change_of_palette() -> None:
    app = ChartApp(trajectory(100))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert [app.chart.render_line(y).text for y in range(28)] == lines(draw(trajectory(100), 98, 28, DARK))
        app.chart.set_palette(PLAIN)
        await pilot.pause()
        assert [app.chart.render_line(y).text for y in range(28)] == lines(draw(trajectory(100), 98, 28, PLAIN))


async def test_a_hidden_chart_is_up_to_date_when_it_comes_back() -> None:
    app = ChartApp(trajectory(20))
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.display = False
        await pilot.pause()
        app.chart.show(trajectory(150))
        app.chart.display = True
        await pilot.pause()
        assert [app.chart.render_line(y).text for y in range(22)] == lines(draw(trajectory(150), 78, 22, DARK))
