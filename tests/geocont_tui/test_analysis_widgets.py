"""Matrix, map, bars and table of an analysis as pure functions: what is seen at which size."""

from dataclasses import replace

import pytest
import synthetic_analysis
from geocont import chance
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from geocont_tui import analysis_state as states
from geocont_tui import analysis_view as views
from geocont_tui.analysis_view import View, Views
from geocont_tui.palette import palette_for
from geocont_tui.widgets import heat_map, layer_matrix, pair_table, projection_bars, shades
from geocont_tui.widgets.cells import Frame, tail
from geocont_tui.widgets.heat_map import Layout

PALETTE = palette_for("truecolor", dark=True)
LADDER = palette_for("16", dark=True)
PLAIN = palette_for("none", dark=True, ascii_only=True)


def folded(events):
    state = None
    for event in events:
        state = states.fold(state, event)
    return state


WHOLE = folded(synthetic_analysis.events())
HALF = folded(synthetic_analysis.events(until=0.5))
ODD = folded(synthetic_analysis.awkward_events())


def texts(frame: Frame) -> list[str]:
    return ["".join(character for character, _ in row) for row in frame]


SIZES = st.tuples(st.integers(0, 160), st.integers(0, 50))
STATES = {"whole": WHOLE, "half": HALF, "odd": ODD, "opening": states.opening("m")}


@settings(max_examples=40, deadline=None)
@given(
    SIZES, st.sampled_from(sorted(STATES)), st.booleans(), st.integers(0, 6), st.sampled_from(["residual", "v", "u"])
)
def test_every_size_is_filled_exactly(size, name, is_plain, row, shown):
    (width, height), state, palette = size, STATES[name], PLAIN if is_plain else PALETTE
    view = View(row=min(row, max(len(state.rows) - 1, 0)), shown=shown)
    frames = (
        layer_matrix.draw(views.matrix_data(state, view), width, height, palette),
        heat_map.draw(Views().map_data(state, view), width, height, palette),
        projection_bars.draw(views.bars_data(state, view), width, height, palette),
        pair_table.draw(Views().table_data(state, view), width, height, palette),
    )
    for frame in frames:
        lines = texts(frame)
        assert len(lines) == (height if width else 0)
        assert all(cell_len(line) == width for line in lines)
        assert not is_plain or all(line.isascii() for line in lines)


# --- Shades


def test_shades_rise_with_the_cosine_and_begin_at_twice_chance():
    level = chance.mean_cosine(4096)
    ladder = [shades.shade(value, level, PALETTE)[0] for value in (0.0, 1.9 * level, 2.1 * level, 0.4, 0.6, 0.8, 1.0)]
    assert "".join(ladder) == "··░▒▓██"
    assert shades.shade(0.0, None, PALETTE)[0] == "░"


def test_what_has_no_cosine_has_a_mark_of_its_own():
    marks = {status: shades.mark(status, PALETTE)[0] for status in ("not_unique", "shape_mismatch", "shared")}
    assert marks == {"not_unique": "▨", "shape_mismatch": "×", "shared": "="}
    assert not set(marks.values()) & set(PALETTE.glyphs.shades)
    assert shades.legend(PALETTE) == "·<2×chance ░<.4 ▒<.6 ▓<.8 █≥.8 ▨not unique ×n/a"


def test_a_long_name_keeps_its_end():
    assert tail("encoder stage 3 gate[E]", 12) == "…e 3 gate[E]"
    assert tail("gate", 4, ascii_only=True) == "gate"
    assert tail("gates", 4, ascii_only=True) == "..es"


# --- Projections × layers


def matrix(state, width=80, height=9, view=View(), palette=PALETTE):  # noqa: B008
    return texts(layer_matrix.draw(views.matrix_data(state, view), width, height, palette))


def test_the_matrix_fills_in_layer_by_layer():
    start = matrix(folded(synthetic_analysis.events(until=0)))
    assert start[1].startswith("▶q    v*◆")
    assert start[2].startswith(" k    v*" + "_" * 31 + " ")
    half = matrix(HALF)
    assert "›" + "_" * 15 in half[2]
    assert "15/31" in half[2]
    whole = matrix(WHOLE)
    assert "_" not in "".join(whole)
    assert whole[3].count("▨") == 4
    assert whole[4].startswith(" o    u*")
    assert all(line.split()[-2] == "31/31" for line in whole[1:8])
    assert whole[1].rstrip().endswith("0.58")


def test_layers_that_a_row_lacks_are_blank():
    line = next(line for line in matrix(ODD) if "text q" in line)
    cells = line.split("v*")[1]
    assert cells[:6] == " " * 6
    assert cells[6] != " "
    assert cells[8] == " "
    assert cells.split()[-2:] == ["2/2", "0.56"]


def test_many_layers_scroll_with_the_selected_pair():
    state = folded(synthetic_analysis.events(layers=100))
    first = matrix(state, view=View(pair=(0, 1)))
    assert first[0].rstrip().endswith("of 100")
    assert first[0].split()[1] == "0"
    last = matrix(state, view=View(pair=(98, 99)))
    assert last[0].split()[1] != "0"
    assert "◆" in last[1]
    assert "94" in last[0].split()


def test_many_rows_scroll_with_the_selected_one():
    lines = matrix(WHOLE, height=4, view=View(row=6))
    assert lines[-1].startswith("▶down")
    assert "rows 5-7 of 7" in lines[0]


# --- Map


def test_the_map_is_symmetrical_and_its_diagonal_is_no_value():
    data = Views().map_data(WHOLE, View(pair=(3, 9)))
    lines = [line[3:67] for line in texts(heat_map.draw(data, 70, 33, LADDER))[1:]]
    for one in range(32):
        assert lines[one][2 * one] == "\\"
        for other in range(32):
            if {one, other} != {3, 9}:
                assert lines[one][2 * other] == lines[other][2 * one]
    # The value is seen beside the cursor.
    assert lines[3][18:20] == "◆" + lines[9][6]
    assert lines[9][6] != "◆"


def test_two_values_fit_into_a_cell_where_there_are_colours():
    cosines = {(0, 1): 0.9, (0, 2): 0.1, (1, 2): 0.001}
    data = heat_map.HeatMapData((0, 1, 2), cosines, {}, chance=0.01)
    first, second = heat_map.draw(data, 5, 3, PALETTE)[1:]
    high, low = PALETTE.value(0.9).color, PALETTE.value(0.1).color
    # Column 0: nothing of layer 0 with itself, its value with 1 below; column 1 the other way; column 2: as chance.
    assert [(character, style.color) for character, style in first[2:]] == [("▄", high), ("▀", high), ("▀", low)]
    assert (second[2][0], second[2][1].color) == ("▀", low)
    assert second[3][0] == "·"
    cursor = heat_map.draw(replace(data, selected=(0, 1)), 5, 3, PALETTE)[1][3]
    assert (cursor[0], cursor[1].bgcolor) == ("◆", high)


def test_the_scale_stands_beside_the_map_where_there_is_room():
    data = Views().map_data(WHOLE, View())
    for palette in (PALETTE, LADDER, PLAIN):
        assert "not measured yet" in "".join(texts(heat_map.draw(data, 70, 20, palette)))
        assert "not measured yet" not in "".join(texts(heat_map.draw(data, 40, 20, palette)))


def test_a_block_is_the_mean_of_its_pairs():
    assert heat_map.layout(32, 70, 33, halves=True) == Layout(1, 2, is_half=False)
    assert heat_map.layout(32, 70, 32, halves=True) == Layout(1, 1, is_half=True)
    assert heat_map.layout(32, 70, 17, halves=True) == Layout(1, 1, is_half=True)
    assert heat_map.layout(32, 70, 16, halves=True) == Layout(2, 1, is_half=True)
    assert heat_map.layout(32, 70, 32, halves=False) == Layout(2, 2, is_half=False)
    assert heat_map.layout(32, 20, 17, halves=False) == Layout(2, 1, is_half=False)
    cosines = {(0, 1): 0.9, (0, 2): 0.1, (0, 3): 0.5, (1, 2): 0.5, (1, 3): None, (2, 3): None}
    statuses = {(1, 3): "not_unique", (2, 3): "not_unique"}
    data = heat_map.HeatMapData((0, 1, 2, 3), cosines, statuses, chance=0.01)
    lines = texts(heat_map.draw(data, 4, 3, LADDER))
    # Means 0.9; (0.1 + 0.5 + 0.5)/3, what does not exist left out; nothing but a vector that is not unique.
    assert [line[2:] for line in lines[1:]] == ["█░", "░▨"]


# --- Bars


def test_bars_say_mean_side_chance_and_what_was_left_out():
    data = views.bars_data(WHOLE, View())
    lines = texts(projection_bars.draw(data, 78, 10, PALETTE))
    assert [line.split()[0] for line in lines[1:8]] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert "0.58*" in lines[1]
    assert "0.45*" in lines[7]
    assert "4 not unique" in lines[3]
    assert "chance 0.007-0.012" in lines[8]
    stacked = texts(projection_bars.draw(data, 68, 20, PALETTE))
    assert "[0.35-0.81] *" in stacked[1]
    assert "4 n/a" in stacked[3]
    assert sum("chance" in line for line in stacked) == 2


def test_a_projection_without_any_cosine_says_why():
    lines = texts(projection_bars.draw(views.bars_data(ODD, View()), 100, 10, PALETTE))
    line = next(line for line in lines if "qkv" in line)
    assert "n/a  5 not split" in line
    assert "█" not in line


# --- Table


def rows(state=WHOLE):
    return Views().rows(state)


def test_sorting_goes_by_numbers_and_puts_what_does_not_exist_last():
    for sort, name in enumerate(pair_table.SORTS):
        value = pair_table.COLUMNS[sort].value
        for reverse in (False, True):
            found = [value(row) for row in pair_table.sorted_rows(rows(), sort, reverse)]
            present = [number for number in found if number is not None]
            assert present == sorted(present, reverse=reverse), name
            assert None not in found[: len(present)]
    assert len(pair_table.sorted_rows(rows(), 2, False)) == 217


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", lambda row: row.label),
        ("gate", lambda row: row.label == "gate"),
        ("not unique", lambda row: row.status == "not unique"),
        ("v1>.6", lambda row: row.v1 is not None and row.v1 > 0.6),
        ("u1<=0.01", lambda row: row.u1 is not None and row.u1 <= 0.01),
        ("layer=7", lambda row: 7 in row.key[2:]),
        ("GATE layer<3", lambda row: row.label == "gate" and row.key[2] < 3),
        ("gap<.3 v1>.5", lambda row: row.gap < 0.3 and row.v1 is not None and row.v1 > 0.5),
        ("3-4", lambda row: "3-4" in row.layers),
    ],
)
def test_filters(words, expected):
    assert pair_table.problem(words) == ""
    found = pair_table.matching(rows(), words)
    assert found == tuple(row for row in rows() if expected(row))
    assert found


@pytest.mark.parametrize("words", ["v1>", ">.5", "v3<1", "v1>>2", "q v1>x"])
def test_comparisons_that_are_none_are_refused(words):
    assert "v1>.5" in pair_table.problem(words)


def test_numbers_of_the_table():
    assert pair_table.cosine_text(-0.0004, 3, sign=True) == pair_table.cosine_text(0.0, 3, sign=True) == "0.000"
    assert pair_table.cosine_text(-0.0006, 3, sign=True) == "-0.001"
    assert [pair_table.ratio(gap) for gap in (None, 0.002, 0.2, 8.99, 99.0, 1e6)] == [
        "n/a", "1.002", "1.200", "9.990", "100.0", "1e+06",
    ]  # fmt: skip
    assert [pair_table.small(value) for value in (None, 2e-4, 1.0)] == ["n/a", "2e-4", "1e+00"]


def test_the_selected_row_is_always_seen_and_the_sorted_column_kept():
    view = View(row=6, pair=(30, 31), sort=6)
    lines = texts(pair_table.draw(Views().table_data(WHOLE, view), 44, 6, PALETTE))
    assert any(line.startswith("▶down") and "30-31" in line for line in lines)
    assert "↑bound" in lines[0]


# --- What is made once


def test_map_and_table_are_made_again_only_for_rows_with_news():
    made = Views()
    first = made.map_data(HALF, View()).cosines
    assert made.map_data(HALF, View(pair=(0, 5))).cosines is first
    known = made.rows(HALF)
    plans = [plan for plan in synthetic_analysis.plan() if plan.projection == "up"]
    more = states.fold(HALF, synthetic_analysis.pair(plans[15], plans[16]))
    again = made.rows(more)
    assert len(again) == len(known) + 1
    assert sum(one is other for one in known for other in again) == len(known) - sum(row.label == "up" for row in known)
