"""Rows of cells: what is written keeps its width, and a difference is found exactly."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from geocont_tui.widgets.cells import BLANK, JOINED_GAP, NO_STYLE, changed_spans, strip_of, write

BOLD = Style(bold=True)
cells = st.tuples(st.sampled_from("ab "), st.sampled_from([NO_STYLE, BOLD]))
two_rows = st.integers(0, 40).flatmap(
    lambda width: st.tuples(
        st.lists(cells, min_size=width, max_size=width), st.lists(cells, min_size=width, max_size=width)
    )
)


@given(st.text(), st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_any_text_keeps_the_row_at_its_width(text: str, width: int, x: int, ascii_only: bool) -> None:
    row = [BLANK] * width
    write(row, x, text, BOLD, width, ascii_only)
    assert sum(cell_len(character) for character, _ in row) == width
    assert strip_of(tuple(row)).cell_length == width
    assert cell_len(strip_of(tuple(row)).text) == width
    assert not ascii_only or strip_of(tuple(row)).text.isascii()


def test_a_wide_character_is_not_cut_in_half() -> None:
    row = [BLANK] * 3
    assert write(row, 0, "層層", NO_STYLE, 3) == 2
    assert [character for character, _ in row] == ["層", "", " "]


def test_control_characters_never_reach_the_terminal() -> None:
    row = [BLANK] * 8
    write(row, 0, "a\x1b[2J\tb", NO_STYLE, 8)
    assert "".join(character for character, _ in row) == "a?[2J?b "


@given(two_rows)
def test_spans_cover_exactly_what_differs_but_for_short_gaps(rows: tuple[list, list]) -> None:
    old, new = map(tuple, rows)
    spans = changed_spans(old, new)
    covered = {x for start, end in spans for x in range(start, end)}
    different = {x for x in range(len(new)) if old[x] != new[x]}
    assert different <= covered
    assert all(start in different and end - 1 in different for start, end in spans)
    assert all(later[0] - earlier[1] >= JOINED_GAP for earlier, later in itertools.pairwise(spans))


def test_a_span_takes_both_cells_of_a_wide_character() -> None:
    old = (("層", NO_STYLE), ("", NO_STYLE), BLANK)
    new = (("a", NO_STYLE), ("b", NO_STYLE), BLANK)
    shifted = (BLANK, ("層", NO_STYLE), ("", NO_STYLE))
    assert changed_spans(old, new) == [(0, 2)]
    assert changed_spans(old, shifted) == [(0, 3)]
