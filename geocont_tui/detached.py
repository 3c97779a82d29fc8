"""Start a command of the program in a session of its own, which no terminal can end.

    folder = start(["ablate", "mlp", "--detach"])     in the process that the user waits for

The new process says through a pipe that its run has begun, or why not, and only then lets go of the terminal: until
then it may say there what takes so long.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from geocont.errors import InputError, JobError

_VARIABLE = "GEOCONT_TUI_DETACHED"
_OUTPUT = "output.log"
_INPUT_ERROR = 2


class _Begun(msgspec.Struct, tag=True):
    """Where the run is kept."""

    folder: str


class _Refused(msgspec.Struct, tag=True):
    """Why there is none."""

    problem: str
    remedy: str
    code: int


def start(arguments: Sequence[str]) -> Path:
    """Start the program with `arguments`, which have --detach, and wait until its run has begun; the run's folder.

    Raises:
        InputError, JobError: what the program refused.
        SystemExit: it ended well without a run (--help).
    """
    if sys.platform == "win32":
        raise InputError("--detach does not work on Windows", "leave it out")
    reading, writing = os.pipe()
    with open(reading, "rb") as answers:  # noqa: PTH123
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "geocont_tui", *arguments],
                stdin=subprocess.DEVNULL,
                env={**os.environ, _VARIABLE: str(writing)},
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            told = answers.read()
        except BaseException:
            # Ctrl-C does not reach it.
            process.terminate()
            raise
    if told:
        answer = msgspec.json.decode(told, type=_Begun | _Refused)
        if isinstance(answer, _Begun):
            # Nobody waits for it, which subprocess would warn of.
            process.returncode = 0
            return Path(answer.folder)
        process.wait()
        raise (InputError if answer.code == _INPUT_ERROR else JobError)(answer.problem, answer.remedy)
    code = process.wait()
    if code == 0:
        raise SystemExit(0)
    raise JobError(f"the process ended with exit code {code} before its run had begun", "try it without --detach")


def is_detached() -> bool:
    """Whether this process is one that `start` has started, and its run has not begun yet."""
    return _VARIABLE in os.environ


def begun(folder: Path) -> None:
    """Say that the run has begun, and write what the terminal was for into the run's folder. Else do nothing."""
    if not is_detached():
        return
    _tell(_Begun(str(folder.absolute())))
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        output = nowhere
        with suppress(OSError):
            output = os.open(folder / _OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (1, 2):
            os.dup2(output, stream)


def refused(problem: str, remedy: str, code: int) -> None:
    """Say why there is no run. Else do nothing."""
    if is_detached():
        _tell(_Refused(problem, remedy, code))


def _tell(answer: _Begun | _Refused) -> None:
    # Nobody need wait for it any more.
    with suppress(OSError), os.fdopen(int(os.environ.pop(_VARIABLE)), "wb") as answers:
        answers.write(msgspec.json.encode(answer))
