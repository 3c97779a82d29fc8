"""Rows of cells: what is written keeps its width, and a difference is found exactly."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.app import App, ComposeResult
from textual.strip import Strip

from geocont_tui.palette import palette_for
from geocont_tui.widgets.cells import (
    BLANK,
    JOINED_GAP,
    NO_STYLE,
    CellWidget,
    Frame,
    changed_spans,
    head,
    mark_hidden,
    strip_of,
    tail,
    write,
)

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


@given(st.text(), st.integers(0, 30), st.booleans())
def test_what_is_cut_fits_and_says_so_on_the_side_where_it_is_cut(text: str, room: int, ascii_only: bool) -> None:
    sign = ".." if ascii_only else "…"
    for cut, is_signed in (
        (head(text, room, ascii_only), lambda cut: cut.endswith(sign)),
        (tail(text, room, ascii_only), lambda cut: cut.startswith(sign)),
    ):
        assert cell_len(cut) <= room
        assert cut == text or not cut or is_signed(cut)


@pytest.mark.parametrize(
    ("above", "below", "edges"), [(False, False, "  "), (True, False, "↑ "), (False, True, " ↓"), (True, True, "↑↓")]
)
def test_a_list_that_goes_on_says_where(above: bool, below: bool, edges: str) -> None:
    rows = [[BLANK] * 4 for _ in range(3)]
    mark_hidden(rows, above, below, palette_for("none", dark=True))
    assert [row[-1][0] for row in (rows[0], rows[-1])] == list(edges)
    assert all(cell == BLANK for cell in rows[1])
    mark_hidden([], above, below, palette_for("none", dark=True))


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


# --- what is sent to the terminal


def apply(sequences: str, screen: list[list[str]]) -> int:
    """Write what a terminal would show of cursor moves, styles and narrow characters; return how many characters."""
    row = column = count = 0
    for move, _, text in re.findall(r"\x1b\[(\d+;\d+)H|\x1b\[([\d;]*)m|([^\x1b]+)", sequences):
        if move:
            row, column = (int(number) - 1 for number in move.split(";"))
        for character in text:
            screen[row][column] = character
            column += 1
            count += 1
    return count


def test_textual_sends_a_span_and_nothing_beside_it() -> None:
    strips = [{0: strip_of((("a", NO_STYLE),) * 10), 10: None, 15: strip_of((("b", BOLD),) * 5)}]
    update = ChopsUpdate(strips, [(0, 3, 5), (0, 8, 17)], [[10, 15, 20]])
    screen = [["."] * 20]
    count = apply(update.render_segments(Console(color_system=None)), screen)
    assert "".join(screen[0]) == "...aa...aa.....bb..."
    assert count == 6


def test_what_is_to_be_painted_below_the_screen_is_left_out() -> None:
    update = ChopsUpdate([{0: Strip.blank(5)}], [(0, 1, 2), (3, 0, 5)], [[5]])
    assert update.render_segments(Console()).count("H") == 1


class Letters(CellWidget):
    """The same letter everywhere but for some cells."""

    other: frozenset[tuple[int, int]] = frozenset()

    def draw_frame(self, width: int, height: int) -> Frame:
        return tuple(
            tuple(("x" if (x, y) in self.other else "o", NO_STYLE) for x in range(width)) for y in range(height)
        )


class LettersApp(App[None]):
    CSS = "Letters { border: solid white; margin: 1 2; padding: 0 1; }"

    def compose(self) -> ComposeResult:
        yield Letters(palette_for("none", dark=True))


def rows_of(strips: list[Strip]) -> list[list[str]]:
    return [list(strip.text) for strip in strips]


async def test_the_terminal_ends_up_with_what_the_widget_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    app = LettersApp()
    async with app.run_test(size=(60, 16)) as pilot:
        await pilot.pause()
        compositor = app.screen._compositor
        terminal = rows_of(compositor.render_strips())
        updates: list[ChopsUpdate] = []
        render = type(compositor).render_partial_update

        def record(self: object) -> ChopsUpdate | None:
            update = render(compositor)
            updates.extend([] if update is None else [update])
            return update

        monkeypatch.setattr(type(compositor), "render_partial_update", record)
        letters = app.query_one(Letters)
        sent = 0
        for other in ({(0, 0), (53, 11), (30, 5)}, {(30, 5), (5, 5), (6, 5), (50, 5)}, set()):
            letters.other = frozenset(other)
            letters.update_frame()
            await pilot.pause()
            console = Console(color_system=None)
            sent += sum(apply(update.render_segments(console), terminal) for update in updates)
            updates.clear()
            assert terminal == rows_of(compositor.render_strips())
        assert sum(row.count("x") for row in terminal) == 0
        assert 0 < sent <= 3 + 5 + 4
