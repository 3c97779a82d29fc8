"""Every colour mode keeps curves apart by hue and marker, and ASCII means ASCII."""

import itertools
from dataclasses import fields

import pytest
from rich.cells import cell_len

from geocont_tui.palette import ASCII, UNICODE, ColourMode, palette_for

MODES: tuple[ColourMode, ...] = ("truecolor", "256", "16", "none")


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_eight_variants_differ_in_hue_and_marker_together(mode: ColourMode, ascii_only: bool, dark: bool) -> None:
    palette = palette_for(mode, dark, ascii_only)
    looks = [(palette.curve(i), palette.marker(i)) for i in range(8)]
    assert len(set(looks)) == 8


def test_no_colour_names_no_colour() -> None:
    palette = palette_for("none", dark=True)
    styles = [*palette.hues, *palette.bands, palette.text, palette.dim, palette.reference, *palette.verdicts.values()]
    assert all(style.color is None and style.bgcolor is None for style in styles)


def test_sixteen_colours_are_the_terminals_own() -> None:
    for dark in (True, False):
        palette = palette_for("16", dark)
        numbers = [style.color.number for style in palette.hues if style.color is not None]
        assert len(numbers) == 6
        assert all(number is not None and number < 16 for number in numbers)


def test_ascii_glyphs_are_ascii_and_every_glyph_is_one_cell() -> None:
    for glyphs in (ASCII, UNICODE):
        for field in fields(glyphs):
            value = getattr(glyphs, field.name)
            texts = value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else [value]
            characters = list(itertools.chain.from_iterable(texts))
            assert all(cell_len(character) == 1 for character in characters), field.name
            assert glyphs is UNICODE or all(character.isascii() for character in characters), field.name


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("mode", ["truecolor", "256"])
def test_the_ramp_goes_evenly_away_from_the_background(mode: ColourMode, dark: bool) -> None:
    ramp = palette_for(mode, dark).ramp
    light = []
    for style in ramp:
        assert style.color is not None
        red, green, blue = style.color.get_truecolor()
        light.append(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)
    assert light == sorted(light, reverse=not dark)
    assert len(set(ramp)) == len(ramp)


@pytest.mark.parametrize("mode", ["16", "none"])
def test_without_enough_colours_there_is_no_ramp(mode: ColourMode) -> None:
    assert palette_for(mode, dark=True).ramp == ()
