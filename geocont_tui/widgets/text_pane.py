"""Text in a pane, wrapped to its width: the details of a variant, the help, what went wrong.

pane = TextPane(palette)      pane.show((Paragraph("text", "selected"), Paragraph("more", indent=2)))
"""

from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from geocont_tui.palette import Palette
from geocont_tui.widgets.lines import Line, Lines, wrap

Emphasis = Literal["text", "dim", "selected"]


@dataclass(frozen=True)
class Paragraph:
    """Text after `indent` blanks; `label`, if any, stands before it in those blanks. An empty one is a blank line."""

    text: str
    emphasis: Emphasis = "text"
    indent: int = 0
    label: str = ""


class TextPane(Lines):
    """The paragraphs as a widget. Text is shown literally."""

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._paragraphs: tuple[Paragraph, ...] = ()

    def show(self, paragraphs: tuple[Paragraph, ...]) -> None:
        """Show `paragraphs`, repainting only what changed."""
        if paragraphs != self._paragraphs:
            self._paragraphs = paragraphs
            self.update_frame()

    def bring_paragraph_into_view(self, place: int) -> None:
        """Scroll as little as possible so that paragraph number `place` is seen."""
        counts = [len(self._wrapped(paragraph, self.content_size.width)) for paragraph in self._paragraphs[: place + 1]]
        if counts:
            self.bring_into_view(sum(counts) - 1)
            self.bring_into_view(sum(counts[:-1]))

    def lines(self, width: int, height: int) -> list[Line]:
        return [line for paragraph in self._paragraphs for line in self._wrapped(paragraph, width)]

    def _wrapped(self, paragraph: Paragraph, width: int) -> list[Line]:
        style = getattr(self._palette, paragraph.emphasis)
        wrapped = wrap(paragraph.text, width, style, paragraph.indent) or [((" ", style),)]
        if paragraph.label:
            label = paragraph.label + " " * max(paragraph.indent - cell_len(paragraph.label), 1)
            wrapped[0] = ((label, self._palette.selected), (wrapped[0][0][0][paragraph.indent :], style))
        return wrapped
