"""What happens to the terminal under a screen: signals that end the program, and the loss of the line.

    with TerminalGuard(end, lose) as guard:
        app.run()

Textual handles neither SIGTERM nor SIGHUP, and its loop stands still while the line is stalled. So a signal handler
only writes into a pipe, and a thread acts: it asks for the end, and where that does not come in time it gives the
terminal back itself and ends the process. After kill -9 a `Restorer` does.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from geocont_tui.terminal_restorer import Restorer

if sys.platform != "win32":
    import termios

# What runs has 3 s to write where it is. A process that was told to end is gone within 5.
_PATIENCE_SECONDS = 4.0
_GIVING_BACK_SECONDS, _STEP_SECONDS = 0.3, 0.02
_LEFT = 0
# CAN cuts off a sequence that may have been sent in half; then paste, wrapping, keys and mouse as they were, the main
# screen and the cursor.
_RESTORED = (
    b"\x18\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[0m"
)


class TerminalGuard:
    """Watches the signals and the terminal of this process, from entering to leaving. Not on Windows.

    Args:
        end: asked, from another thread, to bring what runs to its end after SIGTERM or SIGINT. A second one of these
            signals, or 4 s, end the process at once, with 128 + the signal's number.
        lose: told, from another thread, that the line is lost: SIGHUP, or a terminal that has hung up.
        has_screen: whether there is a screen that has to be away before others can use the terminal.

    Attributes:
        signal: the first SIGTERM or SIGINT that has come, at once.
        is_lost: whether the line is lost. SIGHUP is ignored from then on.
    """

    def __init__(self, end: Callable[[], None], lose: Callable[[], None], *, has_screen: bool = True) -> None:
        self.is_lost = False
        self.signal: int | None = None
        self._has_screen = has_screen
        self._is_away = False
        self._is_ending = False
        self._device: int | None = None
        self._end = end
        self._lose = lose
        self._terminal: int | None = None
        self._attributes: list[Any] | None = None
        self._restorer: Restorer | None = None
        self._deadline: float | None = None
        self._before: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="terminal-guard", daemon=True)

    def __enter__(self) -> Self:
        if sys.platform == "win32":
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        with suppress(OSError, StopIteration, termios.error):
            stream = next(stream for stream in range(3) if os.isatty(stream))
            self._device = os.fstat(stream).st_rdev
            # A descriptor of its own never blocks and does not go when the standard streams do.
            self._terminal = os.open(os.ttyname(stream), os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._attributes = termios.tcgetattr(self._terminal)
            if self._has_screen:
                self._restorer = Restorer(self._terminal, self._attributes, _RESTORED)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # One that is ignored (nohup) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform == "win32":
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.is_lost:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(self._pipe[1], bytes([_LEFT]))
        self._thread.join()
        for descriptor in self._pipe:
            os.close(descriptor)
        self._dismiss()
        self._close()

    def leave(self) -> None:
        """The screen has gone in order: turn the standard streams that are the terminal to nowhere."""
        self._is_away = True
        if self.signal is None:
            self._deadline = None
        self._dismiss()
        self._let_go()

    def _dismiss(self) -> None:
        if self._restorer is not None:
            self._restorer.dismiss()

    def _let_go(self) -> None:
        if self._device is None:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            # A terminal that has hung up does not say any more that it is one.
            with suppress(OSError):
                if os.fstat(stream).st_rdev == self._device:
                    os.dup2(nowhere, stream)
        os.close(nowhere)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP and self.signal is None:
            self.signal = number
        # Nothing more is safe here: the main thread may hold any lock.
        with suppress(OSError):
            os.write(self._pipe[1], bytes([number]))

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._pipe[0], select.POLLIN)
        if self._terminal is not None:
            # Only what poll always reports: that it has hung up.
            poller.register(self._terminal, 0)
        while True:
            deadline = self._deadline
            rest = None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
            ready = dict(poller.poll(rest))
            if self._pipe[0] in ready:
                number = os.read(self._pipe[0], 1)[0]
                if number == _LEFT:
                    return
                self._act(number)
            if self._terminal in ready:
                poller.unregister(self._terminal)
                # At once: whoever still writes there gets errors.
                self._hang_up()
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                if self._is_ending:
                    self._exit()
                # The screen did not go away by itself: its line is stalled.
                self._deadline = None
                self._let_go()
                self._give_back()

    def _act(self, number: int) -> None:
        if number == signal.SIGHUP:
            if not self.is_lost and not self._is_away:
                self.is_lost = True
                if self._has_screen:
                    self._deadline = time.monotonic() + _PATIENCE_SECONDS
                self._lose()
        elif not self._is_ending:
            self._is_ending = True
            self._deadline = time.monotonic() + _PATIENCE_SECONDS
            self._end()
        else:
            self._exit()

    def _hang_up(self) -> None:
        self._dismiss()
        self._let_go()
        self._close()
        if not self.is_lost:
            self.is_lost = True
            self._lose()

    def _close(self) -> None:
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _exit(self) -> None:
        assert self.signal is not None
        self._let_go()
        self._give_back()
        self._dismiss()
        os._exit(128 + self.signal)

    def _give_back(self) -> None:
        """Bring the terminal into the state it was in, without waiting for a line that is stalled."""
        if self._terminal is None or self._is_away or not self._has_screen or sys.platform == "win32":
            return
        written = 0
        deadline = time.monotonic() + _GIVING_BACK_SECONDS
        while written < len(_RESTORED) and time.monotonic() < deadline:
            # What the line has not taken is about a screen that is no more, and would leave no room.
            with suppress(termios.error):
                termios.tcflush(self._terminal, termios.TCOFLUSH)
            with suppress(OSError):
                written = os.write(self._terminal, _RESTORED)
            if written < len(_RESTORED):
                time.sleep(_STEP_SECONDS)
        if self._attributes is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._attributes)
