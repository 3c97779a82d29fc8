"""The log: what the run said, and what the program answered, newest first.

pane = LogPane(palette)      pane.show(messages)
"""

import time

from geocont.events import Message

from geocont_tui.palette import Palette
from geocont_tui.widgets.lines import Line, Lines, wrap

CLOCK = 9


class LogPane(Lines):
    """Messages with the local time, newest first, because the newest is what one looks for."""

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._messages: tuple[Message, ...] = ()

    def show(self, messages: tuple[Message, ...]) -> None:
        """Show `messages`, given oldest first."""
        if messages != self._messages:
            self._messages = messages
            self.update_frame()

    def lines(self, width: int, height: int) -> list[Line]:
        lines: list[Line] = []
        for message in reversed(self._messages):
            clock = time.strftime("%H:%M:%S", time.localtime(message.time))
            word = "" if message.level == "info" else f"{message.level}: "
            style = self._palette.dim if message.level == "info" else self._palette.verdicts["contradicted"]
            wrapped = wrap(word + message.text, width, self._palette.text, CLOCK)
            if wrapped:
                lines.append(((f"{clock} ", style), (wrapped[0][0][0][CLOCK:], self._palette.text)))
                lines += wrapped[1:]
        return lines or [(("nothing yet", self._palette.dim),)]
