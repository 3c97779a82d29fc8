"""TOML files that people write, and what is wrong with one that cannot be taken.

read_toml(path) -> table
"""

import tomllib
from pathlib import Path
from typing import Any

from geocont.errors import InputError

# No file of ours needs a fifth of it; who goes through a table may call itself for each level.
_DEEPEST = 50


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a file.

    Raises:
        InputError: it cannot be read, is no text or no TOML (with line and column), is nested more than 50 deep, or has
            an integer that nobody counts to.
    """
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file (byte {error.start} is not UTF-8)", "give a TOML file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end of the file"
        reason = str(error).replace("at end of document", end)
        raise InputError(f"{path} is not valid TOML: {reason}", "correct the file at that place") from None
    except ValueError:
        # Python refuses to read integers of more than some thousand digits.
        raise InputError(f"{path} has an integer of thousands of digits", "give a smaller number") from None
    except RecursionError:
        raise _too_deep(path) from None
    if is_deep(table):
        raise _too_deep(path)
    return table


def is_deep(table: dict[str, Any]) -> bool:
    """Whether tables and lists are nested deeper than any of ours."""
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    return bool(level)


def _too_deep(path: Path) -> InputError:
    return InputError(f"{path} is nested too deeply", "give a file as the presets are")
