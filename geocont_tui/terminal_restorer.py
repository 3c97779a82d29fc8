"""Gives the terminal back where its screen was killed (kill -9), which no process can do for itself.

    restorer = Restorer(terminal, attributes, sequences)      a small process, asleep as long as this one lives
    restorer.dismiss()                                        the screen has gone in order

It holds the other end of a pipe: where that ends without a word, whoever had the screen is dead.
"""

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

# In a group of its own and deaf to signals, so that what ends the screen does not end it. A shell that has the terminal
# again has set its attributes; otherwise nobody has, and the group of the dead is still in the foreground.
_PROGRAM = """
import os, signal, sys, termios
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGTSTP", "SIGTTIN", "SIGTTOU"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
pipe, terminal, group, *flags, characters, sequences = sys.argv[1:]
if not os.read(int(pipe), 1):
    try:
        os.write(int(terminal), bytes.fromhex(sequences))
        if os.tcgetpgrp(int(terminal)) == int(group):
            attributes = [*map(int, flags), [bytes([one]) for one in bytes.fromhex(characters)]]
            termios.tcsetattr(int(terminal), termios.TCSANOW, attributes)
    except (OSError, termios.error):
        pass
"""


class Restorer:
    """Watches over this process for the sake of its terminal. Not on Windows.

    Args:
        terminal: a descriptor of it.
        attributes: what termios said of it before there was a screen.
        sequences: what brings back the main screen, the cursor, the mouse.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, terminal: int, attributes: list[Any], sequences: bytes) -> None:
        *flags, characters = attributes
        written = bytes(one if isinstance(one, int) else one[0] for one in characters)
        pipe, self._pipe = os.pipe()
        told = (pipe, terminal, os.getpgrp(), *flags, written.hex(), sequences.hex())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *map(str, told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(pipe, terminal),
                process_group=0,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(pipe)

    def dismiss(self) -> None:
        """It is not needed any more. May be called again."""
        if self._pipe < 0:
            return
        pipe, self._pipe = self._pipe, -1
        with suppress(OSError):
            os.write(pipe, b".")
        os.close(pipe)
        self._process.wait()
