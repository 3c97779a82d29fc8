"""The line to the terminal: it may be slow, or stand still, and nothing waits for it but the picture.

    class RunApp(LineApp[None])         an app whose frames are dropped, never queued, while its line is busy
    app.line_is_idle                    whether everything that was painted has arrived: time for another frame

A write to a terminal tells little: a pseudo-terminal holds 20 kB and an SSH connection megabytes, minutes at 9600 baud.
So after each frame the terminal is asked where its cursor is, and its answer says that the frame has arrived. Of a
terminal that never answers is known only what the operating system has taken.
"""

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import RenderableType
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App, ReturnType
from textual.driver import Driver
from textual.events import CursorPosition
from textual.geometry import Region
from textual.message import Message
from textual.screen import Screen

if sys.platform != "win32":
    from textual.drivers.linux_driver import LinuxDriver

_QUESTION = "\x1b[6n"
# The answer to a key is painted at once while no more than this is on its way: a second at 19200 baud.
_BUSY_BYTES = 2048
# Who writes more than any screen holds has to wait for the line.
_FULL_BYTES = 1 << 20
_CHUNK_BYTES = 1024
_LOOK_SECONDS = 0.1
# How long an answer is waited for: the first one ever; then a later one, and longer each time that none comes.
_FIRST_PATIENCE_SECONDS = 0.5
_PATIENCE_SECONDS = 4.0
_MOST_PATIENCE_SECONDS = 16.0
# How long the end of the screen waits for answers, which would else be typed into the shell.
_LEAVING_SECONDS = 1.0


class Line:
    """What is written to a terminal, in a thread of its own, and how much of it has not arrived yet.

    Args:
        stream: a descriptor of the terminal. Once it is of something else, what is written goes nowhere.
        moved: called from other threads when something has arrived.
        clock: seconds, of any origin.
    """

    def __init__(self, stream: int, moved: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._device = os.fstat(stream).st_rdev
        self._descriptor = _opened_again(stream)
        self._moved = moved
        self._clock = clock
        self._state = threading.Condition()
        self._buffer = bytearray()
        self._written = 0
        # For each question that is not answered yet: how much had been written with it, and when.
        self._asked: deque[tuple[int, float]] = deque()
        self._arrived = 0
        self._answers: bool | None = None
        self._patience = _FIRST_PATIENCE_SECONDS
        self._is_closed = False
        self._thread = threading.Thread(target=self._send, name="terminal-line", daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """Bytes written so far."""
        return self._written

    @property
    def pending(self) -> int:
        """Bytes that are on their way, as far as that can be known."""
        with self._state:
            unsent = len(self._buffer)
            if not self._asked:
                return unsent
            if self._clock() - self._asked[-1][1] > self._patience:
                # The terminal does not answer at all, or the line stands still. One more frame finds out.
                self._asked.clear()
                if self._answers is None:
                    self._answers = False
                self._patience = min(max(2 * self._patience, _PATIENCE_SECONDS), _MOST_PATIENCE_SECONDS)
                return unsent
            if self._answers is False:
                return unsent
            return max(unsent, self._asked[-1][0] - self._arrived)

    def write(self, text: str) -> None:
        """Have `text` sent. Waits only where a megabyte is on its way."""
        data = text.encode("utf-8", "replace")
        with self._state:
            self._state.wait_for(lambda: len(self._buffer) < _FULL_BYTES or self._is_closed)
            self._buffer += data
            self._written += len(data)
            self._state.notify_all()

    def ask(self) -> None:
        """Ask the terminal whether all this has arrived."""
        self.write(_QUESTION)
        with self._state:
            self._asked.append((self._written, self._clock()))

    def answered(self) -> None:
        """The terminal has answered: what was written before the oldest question has arrived."""
        with self._state:
            self._answers = True
            self._patience = _PATIENCE_SECONDS
            if self._asked:
                self._arrived = self._asked.popleft()[0]
            self._state.notify_all()
        self._moved()

    def wait_for_answers(self, seconds: float) -> None:
        """Wait for the answers that are to come, if the terminal answers at all."""
        with self._state:
            self._state.wait_for(lambda: not self._asked or self._answers is False, seconds)

    def close(self) -> None:
        """Send the rest, and wait until the line has taken it."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        self._thread.join()
        if self._descriptor != self._stream:
            os.close(self._descriptor)

    def _send(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._buffer or self._is_closed)
                if not self._buffer:
                    return
                chunk = bytes(self._buffer[:_CHUNK_BYTES])
            sent = self._send_some(chunk)
            with self._state:
                del self._buffer[:sent]
                is_empty = not self._buffer
                self._state.notify_all()
            if is_empty:
                self._moved()

    def _send_some(self, chunk: bytes) -> int:
        """How many bytes of `chunk` are done with: sent, or of no use since the terminal has gone away."""
        try:
            if os.fstat(self._stream).st_rdev != self._device:
                return len(chunk)
            return os.write(self._descriptor, chunk)
        except BlockingIOError:
            select.select([], [self._descriptor], [], _LOOK_SECONDS)
            return 0
        except OSError:
            # The job goes on without its terminal, and so does who writes here.
            return len(chunk)


def _opened_again(stream: int) -> int:
    """The terminal behind `stream` by a descriptor that never blocks; `stream` itself where it has no name.

    A write that blocks would hold the terminal against who has to give it back. That descriptor must be ours alone: a
    shell shares the flags of `stream`.
    """
    try:
        return os.open(os.ttyname(stream), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return stream


if sys.platform != "win32":

    class LineDriver(LinuxDriver):
        """Textual's driver, writing through a `Line`; `line` is None before and after the screen."""

        def __init__(self, app: App[Any], **options: Any) -> None:
            super().__init__(app, **options)
            self.line: Line | None = None

        def start_application_mode(self) -> None:
            self.line = Line(sys.__stderr__.fileno() if sys.__stderr__ else 2, self._moved)
            super().start_application_mode()  # type: ignore[no-untyped-call]
            if self._must_signal_resume:
                # Still in the background of its shell: it was stopped again.
                self.close()

        def _sigcont_application(self, *_: object) -> None:
            # Textual begins once more whenever this signal comes, and what was begun before would never end. It comes
            # with every hang-up too, and where another process had stopped this one.
            if self.line is None:
                if self._must_signal_resume:
                    super()._sigcont_application()
            elif os.isatty(self.fileno):
                self.suspend_application_mode()
                self._must_signal_resume = True
                super()._sigcont_application()

        def _request_terminal_sync_mode_support(self) -> None:
            # Keys are read from here on, and so are answers.
            super()._request_terminal_sync_mode_support()
            if self.line is not None:
                self.line.ask()

        def write(self, data: str) -> None:
            if self.line is not None:
                self.line.write(data)

        def process_message(self, message: Message) -> None:
            if not isinstance(message, CursorPosition):
                super().process_message(message)
            elif self.line is not None:
                self.line.answered()

        def disable_input(self) -> None:
            if self.line is not None:
                self.line.wait_for_answers(_LEAVING_SECONDS)
            super().disable_input()

        def close(self) -> None:
            if self.line is not None:
                self.line.close()
                self.line = None
            super().close()

        def _moved(self) -> None:
            # The loop may be closed by now.
            if isinstance(self._app, LineApp) and self._app.holds_back:
                with suppress(RuntimeError):
                    self._app.call_later(self._app.paint_held)


class LineApp(App[ReturnType]):
    """An app that paints no more than its line takes. What changes meanwhile is painted once, as it is by then."""

    def __init__(self) -> None:
        super().__init__()
        self._held: set[Region] = set()

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        return LineDriver if sys.platform != "win32" and found is LinuxDriver else found

    @property
    def line(self) -> Line | None:
        """The line, where there is a terminal."""
        return getattr(self._driver, "line", None)

    @property
    def line_is_idle(self) -> bool:
        """Whether all that was painted has arrived, as far as that can be known."""
        return self.line is None or self.line.pending == 0

    @property
    def holds_back(self) -> bool:
        """Whether there is something to paint that has to wait for the line."""
        return bool(self._held)

    def paint_held(self) -> None:
        """Paint what could not be painted while the line was busy, unless it still is."""
        if not self._held or not self.is_running or self._batch_count:
            return
        if self.line is None or self.line.pending <= _BUSY_BYTES:
            visible = (region.intersection(self.screen.size.region) for region in self._held)
            self.screen._compositor._dirty_regions |= {region for region in visible if region}
            self._held.clear()
            self.screen._compositor_refresh()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        # Textual has no public way to put a frame off. This is the one place through which all frames go.
        line = self.line
        if line is None:
            super()._display(screen, renderable)
            return
        if line.pending > _BUSY_BYTES:
            if isinstance(renderable, LayoutUpdate):
                self._held.add(renderable.region)
            elif isinstance(renderable, ChopsUpdate):
                self._held |= {Region(first, y, last - first, 1) for y, first, last in renderable.spans}
            return
        written = line.written
        super()._display(screen, renderable)
        if line.written > written:
            line.ask()
