"""Text for stdout: tables of aligned columns, wrapped lines, durations and sizes in words; nothing moves the cursor."""

import textwrap

from rich.cells import cell_len

_IN_ASCII = str.maketrans(
    {
        "±": "+-",
        "σ": "sigma",
        "‖": "|",
        "Δ": "d",
        "×": "x",
        "−": "-",
        "–": "-",
        "…": "...",
        "≥": ">=",
        "≤": "<=",
        "∂": "d",
    }
)


def in_ascii(text: str) -> str:
    """The field's own signs in ASCII; any other character stays."""
    return text.translate(_IN_ASCII)


def duration(seconds: float) -> str:
    """Seconds in words: 9 s, 2 min 05 s, 3 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def printable(text: str) -> str:
    """Control characters as question marks: a journal or a header may come from anywhere."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def one_line(text: str) -> str:
    """`text`, from wherever it comes, as one line that moves no cursor."""
    return printable(text.replace("\n", " "))


def tables(rows: list[dict[str, str]], width: int | None, leading: int = 1) -> list[list[str]]:
    """The rows as lines of aligned columns, in as many tables as `width` asks for, the `leading` columns in each."""
    columns = [[name, *(row[name].replace("\n", "?") for row in rows)] for name in rows[0]]
    padded = []
    for column in columns:
        room = max(cell_len(cell) for cell in column)
        padded.append([cell + " " * (room - cell_len(cell)) for cell in column])
    names = padded[:leading]
    parts = [list(names)]
    for column in padded[leading:]:
        used = sum(cell_len(each[0]) + 2 for each in parts[-1])
        if width is not None and len(parts[-1]) > leading and used + cell_len(column[0]) > width:
            parts.append(list(names))
        parts[-1].append(column)
    return [["  ".join(cells).rstrip() for cells in zip(*part, strict=True)] for part in parts]


def wrapped(lines: list[str], width: int | None, indent: int = 2) -> list[str]:
    """The lines broken at spaces to `width` cells, what goes on after `indent` blanks. None: as they are."""
    lines = [line.replace("\n", "?") for line in lines]
    if width is None:
        return lines
    room = max(width, 2 * indent)
    return [part for line in lines for part in textwrap.wrap(line, room, subsequent_indent=" " * indent)]


def size(count: int) -> str:
    """Bytes in words: 13.96 GB, 4.1 MB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}" if count < 99.995 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"
