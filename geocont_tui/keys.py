"""The one table of keys. Bindings, the line of keys, the help and the list of commands are made from it.

No key needs a control-letter: tmux, screen and zellij keep those for themselves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from textual.binding import Binding, BindingType

Place = Literal[
    "home", "ablation", "analysis", "reader", "question", "quit", "export", "filter", "commands", "entry", "deletion"
]
"""A screen or a kind of dialog: a reader scrolls text (help, details), a question has answers."""


@dataclass(frozen=True)
class Key:
    """What a key does.

    `keys` are Textual's names or single characters, all of which do the same; `label` is how they are written on the
    screen, `ascii_label` where only ASCII can be shown. `text` is a word for the line of keys, `help` says it in full.
    `rank` is the importance in the line of keys (1 first; None: not there), `line_label` what stands there for several
    keys. `command` says whether the list of commands has it.
    """

    id: str
    place: Place
    keys: tuple[str, ...]
    label: str
    action: str
    help: str
    text: str = ""
    rank: int | None = None
    ascii_label: str | None = None
    command: bool = True
    line_label: str | None = None


KEYS: tuple[Key, ...] = (
    Key(
        "open",
        "home",
        ("enter", "w"),
        "⏎",
        "open",
        "open the run, start the preset, analyse the model",
        "open",
        2,
        "enter",
    ),
    Key("analyze", "home", ("a",), "a", "analyze", "analyse a model: type an id, a folder or a file", "analyse", 3),
    Key("new", "home", ("n",), "n", "new", "start an experiment from a TOML file", "new", 9),
    Key(
        "resume", "home", ("r",), "r", "resume", "go on with a run that was interrupted, stopped or failed", "resume", 4
    ),
    Key("export", "home", ("e",), "e", "export", "write the run's tables as CSV files", "export", 7),
    Key("rename", "home", ("m",), "m", "rename", "give the run another name", "rename", 8),
    Key("delete", "home", ("x", "delete"), "x", "delete", "delete the run (asks first; never a live one)", "delete", 5),
    Key("up", "home", ("up", "k"), "↑", "move(-1)", "row above", "", None, "up", False),
    Key("down", "home", ("down", "j"), "↓", "move(1)", "row below", "", None, "down", False),
    Key("first", "home", ("home", "g"), "home", "move(-10000)", "first row", command=False),
    Key("last", "home", ("end", "G"), "end", "move(10000)", "last row", command=False),
    Key("page_up", "home", ("pageup",), "pgup", "move(-8)", "a page up", command=False),
    Key("page_down", "home", ("pagedown",), "pgdn", "move(8)", "a page down", command=False),
    Key("runs", "home", ("1",), "1", "pane('runs')", "the runs"),
    Key("presets", "home", ("2",), "2", "pane('presets')", "experiments to start"),
    Key("models", "home", ("3",), "3", "pane('models')", "models to analyse"),
    Key("next_pane", "home", ("tab",), "tab", "next_pane(1)", "next pane", "pane", 6),
    Key("previous_pane", "home", ("shift+tab",), "shift+tab", "next_pane(-1)", "previous pane"),
    Key("theme", "home", ("t",), "t", "theme", "dark or light"),
    Key("repaint", "home", ("ctrl+l",), "ctrl+l", "repaint", "paint the whole screen again"),
    Key("commands", "home", (":", "ctrl+p"), ":", "commands", "all commands, by name", "cmds", 10, command=False),
    Key("help", "home", ("?",), "?", "help", "this help", "help", 1),
    Key("quit", "home", ("q", "ctrl+c"), "q", "app.quit", "quit; live runs go on", "quit", 1),
    Key("pause", "ablation", ("space",), "␣", "pause", "pause the training, or resume it", "pause", 2, "space"),
    Key("stop", "ablation", ("x",), "x", "stop", "stop the training and keep what is there (asks first)", "stop", 4),
    Key(
        "up",
        "ablation",
        ("up", "k"),
        "↑",
        "move(-1)",
        "variant above; scrolls in a pane of text",
        ascii_label="up",
        command=False,
    ),
    Key(
        "down",
        "ablation",
        ("down", "j"),
        "↓",
        "move(1)",
        "variant below; scrolls in a pane of text",
        ascii_label="down",
        command=False,
    ),
    Key(
        "first", "ablation", ("home", "g"), "home", "move(-1000)", "first variant, or start of the text", command=False
    ),
    Key("last", "ablation", ("end", "G"), "end", "move(1000)", "last variant, or end of the text", command=False),
    Key("page_up", "ablation", ("pageup",), "pgup", "move(-8)", "a page up", command=False),
    Key("page_down", "ablation", ("pagedown",), "pgdn", "move(8)", "a page down", command=False),
    Key(
        "details",
        "ablation",
        ("enter",),
        "⏎",
        "details",
        "settings of the variant and its seeds",
        "details",
        7,
        "enter",
    ),
    Key("hide", "ablation", ("v",), "v", "hide", "hide the variant in the curves, or show it again", "hide", 9),
    Key("previous_quantity", "ablation", ("[",), "[", "quantity(-1)", "previous quantity: weight, gradient, …"),
    Key("next_quantity", "ablation", ("]",), "]", "quantity(1)", "next quantity", "quantity", 5, line_label="[ ]"),
    Key("previous_projection", "ablation", ("P",), "P", "projection(-1)", "previous projection of transformers"),
    Key(
        "next_projection",
        "ablation",
        ("p",),
        "p",
        "projection(1)",
        "next projection: Q, K, V, O, Gate, Up, Down",
        "projection",
        5,
    ),
    Key(
        "projections",
        "ablation",
        ("b",),
        "b",
        "projections",
        "curves and bars of all projections of the variant, or back",
        "all of them",
        9,
    ),
    Key(
        "curves",
        "ablation",
        ("1",),
        "1",
        "view('curves')",
        "curves: the quantity over the training steps",
        "views",
        6,
        line_label="1-5",
    ),
    Key("layers", "ablation", ("2",), "2", "view('layers')", "layers: the quantity of each pair of adjacent layers"),
    Key("spectrum", "ablation", ("3",), "3", "view('spectrum')", "spectrum: σ1/σ2, top-k overlap, c·I share, drift, …"),
    Key("claims", "ablation", ("4",), "4", "view('claims')", "claims: what the numbers so far say about the source"),
    Key("log", "ablation", ("5",), "5", "view('log')", "log: messages of the run"),
    Key("next_pane", "ablation", ("tab",), "tab", "pane(1)", "next pane", "pane", 10),
    Key("previous_pane", "ablation", ("shift+tab",), "shift+tab", "pane(-1)", "previous pane"),
    Key("zoom", "ablation", ("z",), "z", "zoom", "the pane on the whole screen, or back", "zoom", 8),
    Key("back", "ablation", ("escape",), "esc", "back", "back from the zoom", command=False),
    Key("seeds", "ablation", ("a",), "a", "seeds", "seeds one by one, or as mean and band"),
    Key("log_x", "ablation", ("L",), "L", "log_x", "steps on a logarithmic or a linear axis"),
    Key("auto_y", "ablation", ("Y",), "Y", "auto_y", "height of the curves: 0…1, or what they need"),
    Key("smoother", "ablation", ("+", "="), "+", "smooth(1)", "smoother curves: mean over neighbouring measurements"),
    Key("rougher", "ablation", ("-",), "-", "smooth(-1)", "less smooth curves (off: as measured)"),
    Key("zoom_in", "ablation", (".",), ".", "zoom_x(1)", "fewer steps on the x axis"),
    Key("zoom_out", "ablation", ("comma",), ",", "zoom_x(-1)", "more steps on the x axis"),
    Key("earlier", "ablation", ("left", "h"), "←", "pan(-1)", "earlier steps, when zoomed in", ascii_label="left"),
    Key("later", "ablation", ("right", "l"), "→", "pan(1)", "later steps, when zoomed in", ascii_label="right"),
    Key("whole", "ablation", ("0",), "0", "whole_x", "the whole training on the x axis"),
    Key("export", "ablation", ("e",), "e", "export", "write the tables as CSV files", "export", 11),
    Key("picture", "ablation", ("s",), "s", "picture", "save a picture of the screen (SVG)", "picture", 12),
    Key("copy", "ablation", ("y",), "y", "copy", "copy the variant's numbers by way of the terminal (OSC 52)"),
    Key("theme", "ablation", ("t",), "t", "theme", "dark or light"),
    Key("repaint", "ablation", ("ctrl+l",), "ctrl+l", "repaint", "paint the whole screen again"),
    Key("suspend", "ablation", ("ctrl+z",), "ctrl+z", "app.suspend_process", "suspend; `fg` in the shell comes back"),
    Key("commands", "ablation", (":", "ctrl+p"), ":", "commands", "all commands, by name", "cmds", 3, command=False),
    Key("help", "ablation", ("?",), "?", "help", "this help", "help", 1),
    Key("quit", "ablation", ("q", "ctrl+c"), "q", "app.quit", "quit (asks while the training runs)", "quit", 1),
    Key("pause", "analysis", ("space",), "␣", "pause", "pause the analysis, or resume it", "pause", 2, "space"),
    Key("stop", "analysis", ("x",), "x", "stop", "stop the analysis and keep what is there (asks first)", "stop", 4),
    Key("up", "analysis", ("up", "k"), "↑", "move(-1)", "projection or row above; scrolls text", "", None, "up", False),
    Key(
        "down",
        "analysis",
        ("down", "j"),
        "↓",
        "move(1)",
        "projection or row below; scrolls text",
        "",
        None,
        "down",
        False,
    ),
    Key("left", "analysis", ("left", "h"), "←", "side(-1)", "pair of layers to the left", "", None, "left", False),
    Key("right", "analysis", ("right", "l"), "→", "side(1)", "pair of layers to the right", "", None, "right", False),
    Key("first", "analysis", ("home", "g"), "home", "move(-10000)", "first row, or start of the text", command=False),
    Key("last", "analysis", ("end", "G"), "end", "move(10000)", "last row, or end of the text", command=False),
    Key("page_up", "analysis", ("pageup",), "pgup", "move(-8)", "a page up", command=False),
    Key("page_down", "analysis", ("pagedown",), "pgdn", "move(8)", "a page down", command=False),
    Key(
        "details", "analysis", ("enter",), "⏎", "details", "the pair of layers with all its numbers", "pair", 7, "enter"
    ),
    Key("previous_row", "analysis", ("[",), "[", "projection(-1)", "previous projection"),
    Key("next_row", "analysis", ("]",), "]", "projection(1)", "next projection", "projection", 6, line_label="[ ]"),
    Key(
        "show_v",
        "analysis",
        ("v",),
        "v",
        "show('v')",
        "v1 of every projection: the input side",
        "side",
        5,
        None,
        True,
        "v/u/b",
    ),
    Key("show_u", "analysis", ("u",), "u", "show('u')", "u1 of every projection: the output side"),
    Key("show_residual", "analysis", ("b",), "b", "show('residual')", "the side that meets the residual stream (*)"),
    Key("matrix", "analysis", ("1",), "1", "matrix", "layers: projections × layers", "views", 3, None, True, "1-8"),
    Key("bars", "analysis", ("2",), "2", "view('bars')", "bars: mean over adjacent pairs, v1 and u1"),
    Key("map", "analysis", ("3",), "3", "view('map')", "map: all pairs of layers of the projection"),
    Key("table", "analysis", ("4",), "4", "view('table')", "table: all adjacent pairs"),
    Key("pair", "analysis", ("5",), "5", "view('pair')", "pair: the two layers with all their numbers"),
    Key("claims", "analysis", ("6",), "6", "view('claims')", "claims: what the numbers say about the source"),
    Key("log", "analysis", ("7",), "7", "view('log')", "log: messages of the run"),
    Key("plan", "analysis", ("8",), "8", "view('plan')", "plan: what is read, by which rule, and what is left out"),
    Key("next_pane", "analysis", ("tab",), "tab", "pane(1)", "next pane", "pane", 11),
    Key("previous_pane", "analysis", ("shift+tab",), "shift+tab", "pane(-1)", "previous pane"),
    Key("zoom", "analysis", ("z",), "z", "zoom", "the pane on the whole screen, or back", "zoom", 9),
    Key("filter", "analysis", ("/",), "/", "filter", "filter the table: words, or v1>.5, gap<.1, layer<8", "filter", 8),
    Key("sort", "analysis", ("o",), "o", "sort", "sort the table by the next column", "sort", 10),
    Key("reverse", "analysis", ("O",), "O", "reverse", "reverse the order of the table"),
    Key("back", "analysis", ("escape",), "esc", "back", "back from the zoom; clears the filter", command=False),
    Key("export", "analysis", ("e",), "e", "export", "write the tables as CSV files", "export", 12),
    Key("picture", "analysis", ("s",), "s", "picture", "save a picture of the screen (SVG)", "picture", 13),
    Key("copy", "analysis", ("y",), "y", "copy", "copy the pair's numbers by way of the terminal (OSC 52)"),
    Key("theme", "analysis", ("t",), "t", "theme", "dark or light"),
    Key("repaint", "analysis", ("ctrl+l",), "ctrl+l", "repaint", "paint the whole screen again"),
    Key("suspend", "analysis", ("ctrl+z",), "ctrl+z", "app.suspend_process", "suspend; `fg` in the shell comes back"),
    Key("commands", "analysis", (":", "ctrl+p"), ":", "commands", "all commands, by name", "cmds", 3, command=False),
    Key("help", "analysis", ("?",), "?", "help", "this help", "help", 1),
    Key("quit", "analysis", ("q", "ctrl+c"), "q", "app.quit", "quit (asks while the analysis runs)", "quit", 1),
    Key("reader_up", "reader", ("up", "k"), "↑", "scroll(-1)", "a line up", "", None, "up"),
    Key("reader_down", "reader", ("down", "j"), "↓", "scroll(1)", "a line down", "scroll", 2, "down"),
    Key("reader_page_up", "reader", ("pageup",), "pgup", "scroll(-10)", "a page up"),
    Key("reader_page_down", "reader", ("pagedown", "space"), "pgdn", "scroll(10)", "a page down"),
    Key("reader_first", "reader", ("home", "g"), "home", "scroll(-10000)", "to the start"),
    Key("reader_last", "reader", ("end", "G"), "end", "scroll(10000)", "to the end"),
    Key("reader_close", "reader", ("escape", "q", "enter", "?"), "esc", "close", "close", "close", 1),
    Key("keep", "question", ("escape", "enter", "q"), "esc", "keep", "go on", "go on", 1),
    Key("stop_now", "question", ("x",), "x", "confirm", "stop, keep what is there", "stop", 2),
    Key("background", "quit", ("enter",), "⏎", "background", "keep it running in the background", "leave", 1, "enter"),
    Key("stop_and_quit", "quit", ("x",), "x", "stop", "stop it and keep what is there", "stop", 2),
    Key("stay", "quit", ("escape", "q"), "esc", "cancel", "stay here", "stay", 3),
    Key("write", "export", ("enter",), "⏎", "write", "write the tables", "write", 1, "enter"),
    Key("cancel_export", "export", ("escape",), "esc", "cancel", "write nothing", "cancel", 2),
    Key("apply_filter", "filter", ("enter",), "⏎", "apply", "filter the table", "filter", 1, "enter"),
    Key("cancel_filter", "filter", ("escape",), "esc", "cancel", "leave it as it was", "back", 2),
    Key("command_up", "commands", ("up",), "↑", "choose(-1)", "command above", "", None, "up"),
    Key("command_down", "commands", ("down", "tab"), "↓", "choose(1)", "command below", "choose", 2, "down"),
    Key("run_command", "commands", ("enter",), "⏎", "run", "run the command", "run", 1, "enter"),
    Key("entry_up", "entry", ("up",), "↑", "choose(-1)", "suggestion above", "", None, "up"),
    Key("entry_down", "entry", ("down",), "↓", "choose(1)", "suggestion below", "choose", 3, "down"),
    Key("complete", "entry", ("tab",), "tab", "complete", "complete the name", "complete", 4),
    Key("enter", "entry", ("enter",), "⏎", "enter", "take it", "take it", 1, "enter"),
    Key("cancel_entry", "entry", ("escape",), "esc", "cancel", "back", "back", 2),
    Key("keep_run", "deletion", ("escape", "enter", "q"), "esc", "keep", "keep the run", "keep it", 1),
    Key("delete_now", "deletion", ("x",), "x", "confirm", "delete the run", "delete it", 2),
    Key("cancel_command", "commands", ("escape",), "esc", "cancel", "back", "back", 3),
)


def of(place: Place) -> tuple[Key, ...]:
    """The keys of a screen or a kind of dialog, in the order of the table."""
    return tuple(key for key in KEYS if key.place == place)


def bindings(place: Place) -> list[BindingType]:
    """The keys as Textual's bindings, with their ids, so that a keymap can change them."""
    return [
        Binding(
            ",".join(key.keys),
            key.action,
            key.help,
            show=False,
            id=f"{place}.{key.id}",
        )
        for key in of(place)
    ]


def label(key: Key, ascii_only: bool) -> str:
    """How the key is written on the screen."""
    return key.ascii_label or key.label if ascii_only else key.label


def line(
    place: Place,
    width: int,
    ascii_only: bool = False,
    hidden: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """The line of keys: (label, text) in the order of the table, as many of the most important ones as fit `width`.

    Args:
        place: the screen or dialog.
        width: cells to fill.
        ascii_only: whether labels must be ASCII.
        hidden: ids of keys that do nothing now.
        renamed: texts other than the table's, by id, for keys that now do the opposite.
    """
    names = dict(renamed or {})
    ranked = sorted((key for key in of(place) if key.rank and key.id not in hidden), key=lambda key: key.rank or 0)
    chosen: list[Key] = []
    used = 0
    for key in ranked:
        size = cell_len(key.line_label or label(key, ascii_only)) + 1 + cell_len(names.get(key.id, key.text)) + 2
        if used + size <= width:
            chosen.append(key)
            used += size
    return tuple(
        (key.line_label or label(key, ascii_only), names.get(key.id, key.text)) for key in of(place) if key in chosen
    )
