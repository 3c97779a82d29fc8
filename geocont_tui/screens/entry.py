"""A dialog that asks for a name: a field, what the typed text may become, and what is wrong with it."""

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from geocont_tui import keys
from geocont_tui.completion import Suggestion
from geocont_tui.palette import Palette
from geocont_tui.widgets.choice_list import ChoiceList
from geocont_tui.widgets.key_line import KeyLine
from geocont_tui.widgets.text_pane import Paragraph, TextPane


class Entry(ModalScreen[str | None]):
    """The name that was chosen; None: none.

    Args:
        palette: colours and glyphs.
        title: what is asked for.
        value: what stands in the field at first.
        explanation: what can be typed.
        check: what is wrong with a text, "" if nothing is; asked when it is entered.
        complete: what a text may become, if there is anything to complete.
    """

    BINDINGS = keys.bindings("entry")

    def __init__(
        self,
        palette: Palette,
        title: str,
        value: str,
        explanation: str,
        check: Callable[[str], str],
        complete: Callable[[str], Sequence[Suggestion]] | None = None,
    ) -> None:
        super().__init__(classes="-ascii" if palette.ascii_only else None)
        self._palette = palette
        self._title = title
        self._value = value
        self._explanation = explanation
        self._check = check
        self._complete = complete
        self._suggestions: Sequence[Suggestion] = ()
        self._selected: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog entry" if self._complete else "dialog") as dialog:
            dialog.border_title = Content(self._title)
            yield Input(self._value, select_on_focus=False, compact=True)
            if self._complete:
                yield ChoiceList(self._palette, none="nothing that is known, or on this disk, begins so")
            yield TextPane(self._palette)
            yield KeyLine(self._palette, "entry")

    def on_mount(self) -> None:
        field = self.query_one(Input)
        field.cursor_blink = False
        field.focus()
        if not self._complete:
            self.query_one(KeyLine).show(frozenset({"entry_down", "complete"}), {})
        self._suggest()

    def on_input_changed(self) -> None:
        self._suggest()

    def on_input_submitted(self) -> None:
        # The field takes this key itself, in turn with what was typed before it.
        self.action_enter()

    def _suggest(self) -> None:
        self._suggestions = self._complete(self._typed) if self._complete else ()
        self._selected = None
        self._explain("")
        self._list()

    @property
    def _typed(self) -> str:
        return self.query_one(Input).value.strip()

    def _explain(self, problem: str) -> None:
        said = Paragraph(problem, "selected") if problem else Paragraph(self._explanation, "dim")
        self.query_one(TextPane).show((said,))

    def _list(self) -> None:
        if not self._complete:
            return
        rows = tuple((each.name, each.note) for each in self._suggestions)
        self.query_one(ChoiceList).show(rows, self._selected)

    def _replace(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)

    def on_choice_list_chosen(self, event: ChoiceList.Chosen) -> None:
        self._replace(self._suggestions[event.row].name)

    def action_choose(self, by: int) -> None:
        if self._suggestions:
            before = self._selected if self._selected is not None else -1 if by > 0 else 0
            self._selected = (before + by) % len(self._suggestions)
            self._list()

    def action_complete(self) -> None:
        """Take over the chosen suggestion, else what all of them have in common, else the first."""
        if self._selected is not None:
            self._replace(self._suggestions[self._selected].name)
        elif self._suggestions:
            common = _common([each.name for each in self._suggestions])
            is_longer = len(common) > len(self._typed) and common.lower().startswith(self._typed.lower())
            self._replace(common if is_longer else self._suggestions[0].name)

    def action_enter(self) -> None:
        chosen = None if self._selected is None else self._suggestions[self._selected]
        if chosen is not None and chosen.is_path_only:
            self._replace(chosen.name)
            return
        text = self._typed if chosen is None else chosen.name
        problem = self._check(text)
        if problem:
            self._explain(problem)
        else:
            self.dismiss(text)

    def action_cancel(self) -> None:
        self.dismiss(None)


def _common(names: list[str]) -> str:
    """The beginning that all names share."""
    low, high = min(names), max(names)
    length = next((place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:length]
