"""A process that leaves the terminal to the shell and goes on: the same process, without a second one.

No process can put itself into the background, but one that stops gives the terminal back to the shell. So it stops, and
a helper in a session of its own lets it go on a moment later: Ctrl-Z and `bg` in one.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from geocont.runs import runs_folder

# More than once: the first may come before the process has stopped.
_CONTINUE = 'for _ in 1 2 3 4 5; do sleep 0.2 || sleep 1; kill -s CONT -- "-$1"; done'


def leave_terminal() -> None:
    """Go on in the background, if the shell waits for this process. Ctrl-C does not reach it any more."""
    if sys.platform == "win32":
        return
    for number in (signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH):
        # Textual's would draw the screen again.
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    group = os.getpgrp()
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.tcgetpgrp(terminal) != group:
            return
    except OSError:
        return
    finally:
        os.close(terminal)
    with suppress(OSError):
        nowhere = subprocess.DEVNULL
        subprocess.Popen(
            ["/bin/sh", "-c", _CONTINUE, "sh", str(group)],
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        # All of the group: the shell may have started a wrapper that waits for this process.
        os.killpg(group, signal.SIGSTOP)


def watch_name(folder: Path) -> str:
    """What `geocont-tui watch` finds the run by: its name where runs usually are, else its path."""
    return folder.name if folder.parent == runs_folder() else str(folder.absolute())
