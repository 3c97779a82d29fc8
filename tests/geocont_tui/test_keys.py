"""The table of keys: nothing is bound twice, everything is explained, and every action exists."""

import inspect
from collections import Counter
from typing import get_args

import pytest
from rich.cells import cell_len
from textual.actions import parse
from textual.binding import Binding
from textual.keys import _character_to_key

from geocont_tui import keys
from geocont_tui.app import RunApp
from geocont_tui.screens.ablation import AblationScreen
from geocont_tui.screens.analysis import AnalysisScreen
from geocont_tui.screens.commands import Commands
from geocont_tui.screens.deletion import DeletionQuestion
from geocont_tui.screens.dialogs import ExportDialog, FilterDialog, QuitQuestion, StopQuestion
from geocont_tui.screens.entry import Entry
from geocont_tui.screens.help import help_text
from geocont_tui.screens.home import HomeScreen
from geocont_tui.screens.reader import Reader

SCREENS = {
    "home": HomeScreen,
    "entry": Entry,
    "deletion": DeletionQuestion,
    "ablation": AblationScreen,
    "analysis": AnalysisScreen,
    "reader": Reader,
    "question": StopQuestion,
    "quit": QuitQuestion,
    "export": ExportDialog,
    "filter": FilterDialog,
    "commands": Commands,
}
PLACES = get_args(keys.Place)


def normalized(name: str) -> str:
    return _character_to_key(name) if len(name) == 1 else name


def test_every_place_has_a_screen():
    assert set(PLACES) == set(SCREENS)


@pytest.mark.parametrize("place", PLACES)
def test_no_key_is_bound_twice(place):
    names = Counter(normalized(name) for key in keys.of(place) for name in key.keys)
    assert [name for name, count in names.items() if count > 1] == []


def test_ids_are_unique():
    ids = Counter((key.place, key.id) for key in keys.KEYS)
    assert max(ids.values()) == 1


@pytest.mark.parametrize("key", keys.KEYS, ids=lambda key: f"{key.place}.{key.id}")
def test_every_key_has_a_help_line_and_an_action_that_takes_its_arguments(key):
    assert key.help
    namespace, name, arguments = parse(key.action)
    owner = RunApp if namespace == "app" else SCREENS[key.place]
    action = getattr(owner, f"action_{name}")
    inspect.signature(action).bind(None, *arguments)


@pytest.mark.parametrize("place", PLACES)
def test_the_screen_binds_what_the_table_says(place):
    made = {binding.key for binding in Binding.make_bindings(keys.bindings(place))}
    assert made == {normalized(name) for key in keys.of(place) for name in key.keys}
    bound = SCREENS[place]._merge_bindings()
    for key in keys.of(place):
        for name in key.keys:
            assert bound.key_to_bindings[normalized(name)][0].action == key.action


def test_nothing_needs_a_control_letter():
    for key in keys.KEYS:
        others = [name for name in key.keys if not name.startswith("ctrl+")]
        assert others or key.id in ("repaint", "suspend")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [20, 58, 78, 138])
def test_the_line_of_keys_fits_and_names_the_most_important(place, ascii_only, width):
    line = keys.line(place, width, ascii_only)
    written = "  ".join(f"{label} {text}" for label, text in line)
    assert cell_len(written) <= width
    assert written.isascii() or not ascii_only
    if place in ("home", "ablation", "analysis"):
        assert {"? help", "q quit"} <= {f"{label} {text}" for label, text in line}


def test_keys_that_do_nothing_are_left_out_and_others_renamed():
    line = keys.line("ablation", 138, hidden={"stop"}, renamed={"pause": "resume"})
    assert ("␣", "resume") in line
    assert "stop" not in {text for _, text in line}


@pytest.mark.parametrize("place", ["home", "ablation", "analysis"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_help_names_every_key(ascii_only, place):
    text = help_text(place, ascii_only)
    said = [paragraph.text for paragraph in text]
    labels = " ".join(paragraph.label for paragraph in text)
    for key in keys.of(place):
        assert key.help in said
        assert keys.label(key, ascii_only) in labels
    assert labels.isascii() or not ascii_only
