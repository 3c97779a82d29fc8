"""The table of variants and the status lines, as pure functions: what is seen at which size."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from geocont_tui.palette import palette_for
from geocont_tui.state import Spread, Summary
from geocont_tui.widgets import run_table, status_line
from geocont_tui.widgets.cells import Frame
from geocont_tui.widgets.run_table import RunTableData, VariantRow, fraction, number
from geocont_tui.widgets.status_line import StatusData, clock

PALETTE = palette_for("truecolor", dark=True)
ASCII = palette_for("none", dark=True, ascii_only=True)


def row(name: str = "Res+GELU", index: int = 0, status: str = "training", **numbers: float | None) -> VariantRow:
    known = {"weight_v1": 0.93, "weight_u1": 0.9, "loss": 0.21, "accuracy": 0.962, **numbers}
    spreads = {field: None if value is None else Spread(value, 0.01, 3) for field, value in known.items()}
    fields = {field.name: None for field in dataclasses.fields(Summary)}
    summary = Summary(**{**fields, "variant": name, "step": 199, "steps": 400, "status": status, **spreads})
    return VariantRow(index, dataclasses.replace(summary, below_peak=-0.21), (0.1, 0.5, 0.9))


def texts(frame: Frame) -> list[str]:
    return ["".join(character for character, _ in cells) for cells in frame]


def table(rows: list[VariantRow], width: int = 60, height: int = 6, selected: int = 0, palette=PALETTE) -> list[str]:
    return texts(run_table.draw(RunTableData(tuple(rows), selected), width, height, palette))


def test_the_most_telling_numbers_stay_when_it_is_narrow():
    narrow, wide = table([row()], 36), table([row()], 90)
    assert narrow[0].split() == ["variant", "loss", "acc", "v1", "Δpeak"]
    assert wide[0].split() == ["variant", "step", "loss", "acc", "v1", "±", "u1", "Δpeak", "trend"]
    assert wide[1].split() == ["▶", "●", "Res+GELU", "199", "49%", "0.21", ".96", ".93", ".01", ".90", "-.21", "▁▅█"]


def test_the_header_over_short_names_is_whole_where_there_is_room():
    assert table([row("SiLU")], 37)[0].split()[0] == "variant"
    assert table([row("SiLU")], 90)[0].split()[0] == "variant"


def test_no_zero_has_a_sign():
    assert [number(-0.001), fraction(-0.001), fraction(-0.001, sign=True)] == ["0.00", ".00", ".00"]


def test_what_does_not_exist_is_said():
    assert table([row(weight_v1=None, accuracy=None)], 40)[1].split()[-3:] == ["n/a", "n/a", "-.21"]


def test_test_accuracy_takes_the_place_of_the_training_accuracy():
    assert ".91" in table([row(test_accuracy=0.91)], 40)[1]


def test_names_are_literal_and_a_cut_is_seen():
    lines = table([row("[red]a[/red]"), row("a name that is far too long for this")], 34)
    assert "[red]a[/red]" in lines[1]
    assert "…" in lines[2]


@pytest.mark.parametrize("palette", [PALETTE, ASCII])
def test_names_that_differ_at_their_end_only_are_told_apart_at_80_columns(palette):
    lines = table([row("Res+Radial"), row("Res+Radial scaled")], 36, palette=palette)
    assert "Res+Radial scaled " in lines[2]


def test_the_selected_row_is_always_seen():
    rows = [row(f"variant {i}", i) for i in range(20)]
    for selected in range(20):
        lines = table(rows, 60, 6, selected)
        assert next(line for line in lines if line.startswith("▶")).split()[2:4] == ["variant", str(selected)]
    assert len([line for line in table(rows, 60, 6, 19) if "variant 15" in line]) == 1


def test_marks_say_what_colours_say():
    hidden = dataclasses.replace(row(), is_hidden=True)
    assert table([hidden])[1].startswith("▶ · ")
    assert table([row(status="done")])[1].startswith("▶✔● ")
    assert table([row(), row(index=1)])[2].startswith("  ▲ ")


@pytest.mark.parametrize("width", range(30, 100))
def test_a_network_that_broke_says_so_in_whole_words(width):
    line = table([row("Res+Radial scaled", status="diverged at step 57 (1 of 3)")], width)[1]
    assert "✖" in line
    words = ("diverged", "diverged 1/3", "diverged 1 of 3", "diverged @57 (1 of 3)", "diverged at step 57 (1 of 3)")
    assert line.endswith(words)


def test_that_all_seeds_broke_leaves_room_for_when():
    line = table([row("Res+Radial scaled", status="diverged at step 57 (3 of 3)")], 36)[1]
    assert line.endswith("diverged @57")


@given(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)))
def test_numbers_fit_their_columns(value: float | None):
    if value is None or not math.isfinite(value):
        assert fraction(value) == number(value) == "n/a"
    elif abs(value) < 1e9:
        assert len(number(value)) <= 6
        if abs(value) <= 1:
            assert len(fraction(value, sign=True)) <= 5
            assert float(fraction(value, sign=True)) == pytest.approx(value, abs=0.00501)


names = st.text(min_size=1, max_size=30)
rows = st.builds(row, names, st.integers(0, 30), st.sampled_from(["training", "done", "diverged at step 1", "waiting"]))


@given(st.lists(rows, max_size=6), st.integers(0, 100), st.integers(0, 9), st.booleans())
def test_any_names_at_any_size_fill_the_frame_exactly(rows, width, height, ascii_only):
    palette = ASCII if ascii_only else PALETTE
    lines = table(rows, width, height, selected=max(len(rows) - 1, 0), palette=palette)
    assert len(lines) == (height if width else 0)
    assert all(cell_len(line) == width for line in lines)
    if ascii_only:
        assert all(line.isascii() for line in lines)


STATUS = StatusData(
    "ablate mlp",
    "cpu:2",
    "running",
    "running",
    47.2,
    3725.0,
    "5,700 of 18,000 steps",
    0.3166,
    "412 steps/s",
    "probes 3.1 % of the time",
    "2026-12-01T14-03-11_mlp_k3f9",
)


def test_the_status_lines_say_everything_where_there_is_room():
    first, second = texts(status_line.draw(STATUS, 140, 2, PALETTE))
    assert first.split("   ")[:6] == [
        " ablate mlp", "cpu:2", "● running", "00:47", "1:02:05 left", "kept in 2026-12-01T14-03-11_mlp_k3f9",
    ]  # fmt: skip
    assert second.startswith(" 5,700 of 18,000 steps   ██")
    assert "31 %   412 steps/s   probes 3.1 % of the time" in second


@given(st.integers(40, 200), st.text(max_size=60))
def test_the_state_is_seen_at_any_width_with_any_name(width, name):
    first, second = texts(status_line.draw(dataclasses.replace(STATUS, title=f"ablate {name}"), width, 2, PALETTE))
    assert first.startswith(" ablate ")
    assert "● running" in first
    assert "31 %" in second
    assert cell_len(first) == cell_len(second) == width


def test_a_title_that_is_cut_says_so():
    long = dataclasses.replace(STATUS, title="analyze " + "x" * 60)
    (first,) = texts(status_line.draw(long, 40, 1, PALETTE))
    assert first == " analyze " + "x" * 18 + "…   ● running"
    assert "xxx.   " in texts(status_line.draw(long, 40, 1, ASCII))[0]


def test_a_clock_has_hours_only_when_there_are_some():
    assert (clock(0), clock(59.9), clock(3600), clock(-1)) == ("00:00", "00:59", "1:00:00", "00:00")
