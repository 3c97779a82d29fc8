"""What the home screen and the screens of runs have in common as apps.

That is: settings and colours, a screen that any thread can take away, and two lines instead of a traceback, with a log,
when the screen itself fails.
"""

import io
import os
import traceback
from pathlib import Path

from geocont.atomic import atomic_file
from rich.console import Console, RenderableType
from rich.text import Text
from textual.app import ReturnType
from textual.worker import Worker, WorkerState

from geocont_tui.palette import Palette, palette_for
from geocont_tui.screens.dialogs import WIDTHS
from geocont_tui.terminal import ExitCode, Settings
from geocont_tui.terminal_line import LineApp

_LOG_WIDTH = 120


class ScreenApp(LineApp[ReturnType]):
    """An app with `settings`."""

    CSS_PATH = "theme.tcss"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, settings: Settings) -> None:
        # Textual chooses its colour filters in App.__init__, by the theme it finds.
        self._reactive_theme = settings.textual_theme
        super().__init__()
        self.settings = settings
        self._is_called_off = False
        self.set_class(settings.ascii, "-ascii")

    @property
    def palette(self) -> Palette:
        """The palette for the theme of now."""
        return palette_for(self.settings.colours, self.current_theme.dark, self.settings.ascii)

    @property
    def error_log(self) -> Path:
        """The file that says what went wrong with the screen."""
        raise NotImplementedError

    def on_mount(self) -> None:
        if self._is_called_off:
            self.call_after_refresh(self.exit)

    def call_off(self) -> None:
        """Take the screen away, from whatever thread. What runs is left as it is."""
        self._is_called_off = True
        # Not before all widgets are there: a screen that is mounted without them fails.
        if self.is_running:
            self.call_after_refresh(self.exit)

    def explain(self, problem: str, remedy: str, brief: str) -> None:
        """Say on the screen what went wrong behind it; `brief` where there is one line only."""
        raise NotImplementedError

    def _fatal_error(self) -> None:
        """What Textual calls on a bug in the screen: no local variables, which may hold secrets, are shown or kept."""
        self.panic()

    def panic(self, *renderables: RenderableType) -> None:
        """What Textual calls on an error it has a picture of. Here it is two lines, and the log has the rest."""
        error = self._exception
        if error is None and not os.isatty(0):
            # Keys cannot be read where the line is lost. That is no bug, and what runs goes on.
            self.call_off()
            return
        self._return_code = ExitCode.FAILED
        if error is None:
            text = io.StringIO()
            Console(file=text, width=_LOG_WIDTH).print(*renderables)
            problem, details = "the keys cannot be read", text.getvalue()
        else:
            problem, details = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        remedy = self._keep_log(details)
        if not self._exit_renderables:
            self._exit_renderables.append(Text(f"the screen failed: {problem}\n{remedy}"))
        self._close_messages_no_wait()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show what went wrong in a worker, which Textual would keep to itself."""
        error = event.worker.error
        if event.state is WorkerState.ERROR and error is not None:
            remedy = self._keep_log("".join(traceback.format_exception(error)))
            self.explain(f"{type(error).__name__}: {error}", remedy, f"something went wrong, see {self.error_log.name}")

    def _keep_log(self, text: str) -> str:
        """Write what went wrong with the screen into its log; a remedy that says where that is."""
        log = self.error_log
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(log) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            return f"please report this; what led to it could not be kept ({log}: {error.strerror})"
        return f"please report this with {log}"
