"""Experiments on text whose text cannot be used, or is not waited for: what the command line says and leaves behind."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = ("data.vocabulary=257", "defaults.sequence_length=1000")


def started(text: Path, *settings: str) -> subprocess.Popen[str]:
    """`geocont-tui ablate transformer_small` on a text, with a cache and runs beside it."""
    command = [sys.executable, "-m", "geocont_tui", "ablate", "transformer_small", "--headless", "--steps", "2"]
    chosen = [argument for setting in (f"data.path={text}", *settings) for argument in ("--set", setting)]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'engine'}",
        "XDG_CACHE_HOME": str(text.parent / "cache"),
    }
    return subprocess.Popen(
        [*command, "--run-dir", str(text.parent / "runs"), *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


def left(folder: Path) -> list[str]:
    """What is there beside the text: neither runs nor tokens, finished or not."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".txt"]


@pytest.mark.parametrize(
    ("content", "settings", "problem", "remedy"),
    [
        (b"\x7fELF\0" * 99, (), "program.txt is not a text file (byte 4 is not UTF-8 text)", "parquet"),
        (b"a b c " * 999, ("data.vocabulary=5000",), "supports 2", "--set data.vocabulary=2"),
        (b"", (), "program.txt holds no text", "--set data.path"),
        (b"a b c " * 999, SHORT, "sequence_length: 1000 tokens are more than the held-out text has", "lower seq"),
    ],
)
def test_a_text_that_cannot_be_used_is_two_lines_and_no_run(
    content: bytes, settings: tuple[str, ...], problem: str, remedy: str, tmp_path: Path
) -> None:
    text = tmp_path / "program.txt"
    text.write_bytes(content)
    process = started(text, *settings)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    *_, first, second = err.splitlines()
    assert first.startswith("error: ")
    assert problem in first
    assert second.startswith("  try: ")
    assert remedy in second
    assert "Traceback" not in err
    # A text that is only too short is tokenized by then, and what is whole stays in the cache.
    assert [path for path in left(tmp_path) if settings != SHORT or not path.startswith("cache")] == []


def test_an_interrupt_while_a_text_is_tokenized_leaves_nothing(tmp_path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(20_000)]
    text = tmp_path / "long.txt"
    text.write_text(" ".join(draw.choices(words, k=2_000_000)))
    process = started(text)
    assert process.stderr is not None
    while "training a vocabulary" not in (line := process.stderr.readline()):
        assert line, "the program ended"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert left(tmp_path) == []
