"""The script that drew the pictures of the documentation draws them still."""

import runpy
import sys
from pathlib import Path

import pytest
import synthetic
import synthetic_analysis
from geocont.runs import Recording

SCRIPT = Path(__file__).parents[1] / "docs" / "picture.py"


@pytest.mark.parametrize(
    ("events", "keys", "shown"),
    [(synthetic.events, "5", "▶log"), (synthetic_analysis.events, "3", "[map]")],
)
def test_a_picture_is_drawn_from_a_journal(tmp_path, monkeypatch, events, keys, shown):
    run, file = tmp_path / "run", tmp_path / "picture.svg"
    run.mkdir()
    for _ in Recording(events(), run):
        pass
    monkeypatch.setattr(sys, "argv", ["picture.py", str(run), str(file), "--size", "100x30", "--press", keys])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert shown in file.read_text("utf-8")
