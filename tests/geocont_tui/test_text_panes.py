"""Panes of text: wrapping, scrolling, claims, log, spectrum."""

import pytest
from geocont.claims import Finding
from geocont.events import Message
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from geocont_tui.palette import palette_for
from geocont_tui.widgets import claims_panel, lines
from geocont_tui.widgets.cells import NO_STYLE, Frame
from geocont_tui.widgets.claims_panel import ClaimsPanel
from geocont_tui.widgets.lines import Line, wrap
from geocont_tui.widgets.log_pane import LogPane
from geocont_tui.widgets.spectrum_table import FIELDS, SpectrumData, SpectrumTable
from geocont_tui.widgets.text_pane import Paragraph, TextPane

PALETTE = palette_for("truecolor", dark=True)
ASCII = palette_for("none", dark=True, ascii_only=True)


def text(line: Line) -> str:
    return "".join(piece for piece, _ in line)


def shown(frame: Frame) -> list[str]:
    return ["".join(character for character, _ in cells) for cells in frame]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "M"]), max_size=80), st.integers(4, 40))
def test_wrapping_loses_nothing_and_exceeds_nothing(words, width):
    wrapped = [text(line) for line in wrap(words, width, NO_STYLE, indent=2)]
    assert all(line.startswith("  ") and cell_len(line) <= width for line in wrapped)
    assert "".join("".join(wrapped).split()) == "".join(words.split())


def test_a_pane_says_which_lines_are_hidden():
    many = [((f"line {i}", NO_STYLE),) for i in range(10)]
    frame = shown(lines.draw(many, 20, 5, PALETTE, first=3))
    assert [line.strip() for line in frame] == ["line 3", "line 4", "line 5", "line 6", "4-7 of 10 ↑↓"]
    assert shown(lines.draw(many, 20, 5, PALETTE, first=99))[3].strip() == "line 9"
    assert shown(lines.draw(many[:5], 20, 5, PALETTE))[4].strip() == "line 4"


@given(st.integers(0, 30), st.integers(0, 12), st.integers(-5, 30))
def test_any_size_of_a_pane(width, height, first):
    frame = lines.draw([(("層 wide", NO_STYLE),)] * 7, width, height, PALETTE, first)
    assert len(frame) == (height if width else 0)
    assert all(cell_len(line) == width for line in shown(frame))


FINDINGS = (
    Finding(claim="gradients agree", verdict="supported", numbers="v1 0.89…0.91, chance 0.050", reason="7 of 7"),
    Finding(claim="Res+[b]None[/b] rises, then falls", verdict="not yet", numbers="not measured yet"),
    Finding(claim="radial", verdict="confounded", numbers="0.36±0.01", reason="the factor never leaves 1"),
    Finding(claim="spread", verdict="contradicted", numbers="0.1", reason=""),
)


@pytest.mark.parametrize("width", range(20, 120))
@pytest.mark.parametrize("palette", [PALETTE, ASCII])
def test_half_a_number_is_never_shown(width, palette):
    for finding, row in zip(
        FINDINGS, shown(lines.draw(claims_panel.compact(FINDINGS, width, palette), width, 4, palette)), strict=True
    ):
        after = row[15 + len(finding.claim) :].strip()
        numbers = finding.numbers.replace("…", "..").replace("±", "+-") if palette is ASCII else finding.numbers
        assert after in ("", numbers)


@pytest.mark.parametrize(("palette", "marks"), [(PALETTE, "✔…?✖"), (ASCII, "+.?x")])
def test_a_verdict_has_a_mark_and_a_word(palette, marks):
    rows = [text(line) for line in claims_panel.compact(FINDINGS, 90, palette)]
    assert [row[0] for row in rows] == list(marks)
    assert [row[2:15].strip() for row in rows] == ["supported", "not yet", "confounded", "contradicted"]
    assert "Res+[b]None[/b] rises" in rows[1]


@pytest.mark.parametrize("width", [30, 80])
def test_numbers_and_reasons_stand_below_where_there_is_room(width):
    rows = "\n".join(text(line) for line in claims_panel.full(FINDINGS, width, PALETTE))
    for finding in FINDINGS:
        assert finding.verdict in rows
    assert "the factor never leaves 1" in " ".join(rows.split())
    assert "chance 0.050" in " ".join(rows.split())


def test_before_anything_is_measured_that_is_said():
    panel = ClaimsPanel(PALETTE)
    assert "nothing is measured yet" in text(panel.lines(60, 5)[0])
    panel.show(())
    assert "none of the claims" in text(panel.lines(70, 5)[0])


def test_the_newest_message_is_on_top_and_brackets_are_literal():
    pane = LogPane(PALETTE)
    pane.show(
        (
            Message(level="info", text="started", time=1000.0),
            Message(level="error", text="[red]no space[/red]", time=1001.0),
        )
    )
    rows = [text(line) for line in pane.lines(60, 5)]
    assert rows[0].endswith("error: [red]no space[/red]")
    assert rows[1].endswith("started")


def spectrum(width: int, palette=PALETTE, factor: float | None = None) -> list[str]:
    assert FIELDS[-1] == "activation_factor"
    data = SpectrumData(
        ((0, (1.02, 0.04, 0.0, 0.0, None, factor)), (400, (2.9, 0.74, 0.01, 12.5, 0.02, factor))), 10, ("drift: first",)
    )
    table = SpectrumTable(palette)
    table.show(data)
    return [text(line) for line in table.lines(width, 20)]


def test_the_spectrum_is_newest_first_and_explains_its_columns():
    rows = spectrum(60)
    assert rows[0].split() == ["step", "σ1/σ2", "top10", "c·I", "ΔW/W", "drift"]
    assert rows[1].split() == ["400", "2.90", ".74", ".01", "12.5", ".02"]
    assert rows[2].split() == ["0", "1.02", ".04", ".00", "0.00", "n/a"]
    assert any("largest singular value over the second" in row for row in rows)
    assert any(row == "n/a drift: first" for row in rows)


def test_a_column_that_does_not_apply_is_left_out():
    assert "act." not in spectrum(60)[0]
    assert spectrum(60, factor=0.98)[1].split()[-1] == ".98"


def test_every_column_fits_the_pane_at_80_columns():
    assert all(cell_len(row) <= 41 for row in spectrum(41, factor=0.98))


def test_a_label_stands_in_the_indent_and_an_empty_paragraph_is_a_blank_line():
    pane = TextPane(PALETTE)
    pane.show((Paragraph("one two three", indent=6, label="key"), Paragraph(""), Paragraph("[b]last[/b]")))
    assert [text(line).rstrip() for line in pane.lines(12, 9)] == [
        "key   one",
        "      two",
        "      three",
        "",
        "[b]last[/b]",
    ]
