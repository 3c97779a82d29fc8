"""`geocont-tui runs --prune`: says what it would delete, and deletes only with --yes."""

import json
import os
import time
from pathlib import Path

import pytest
import synthetic
from geocont.runs import Recording

from geocont_tui import cli

NAMES = [f"2026-01-0{day}T00-00-00_run" for day in range(1, 4)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs, written to 50, 40 and 10 days ago."""
    for name, days in zip(NAMES, (50, 40, 10), strict=True):
        (tmp_path / name).mkdir()
        for _ in Recording(synthetic.events(), tmp_path / name):
            pass
        for path in (tmp_path / name).iterdir():
            os.utime(path, (time.time() - days * 86400,) * 2)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_first_it_only_says_what_would_go(runs, capfd):
    assert cli.run(["runs", "--run-dir", str(runs), "--prune"]) == 0
    out, err = capfd.readouterr()
    assert NAMES[0] in out
    assert NAMES[1] in out
    assert NAMES[2] not in out
    assert "nothing is deleted yet: with --yes 2 runs would be" in err
    assert names(runs) == NAMES


def test_with_yes_it_deletes_those(runs, capfd):
    assert cli.run(["runs", "--run-dir", str(runs), "--prune", "--yes"]) == 0
    assert names(runs) == NAMES[2:]
    assert "2 runs deleted" in capfd.readouterr().err
    assert cli.run(["runs", "--run-dir", str(runs), "--prune", "--yes"]) == 0
    assert "no such old run" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["--older-than", "45"], NAMES[:1]), (["--older-than", "0", "--keep", "2"], NAMES[:1]), (["--keep", "3"], [])],
)
def test_which_ones(runs, capfd, options, expected):
    assert cli.run(["runs", "--run-dir", str(runs), "--prune", "--json", *options]) == 0
    assert [run["folder"] for run in json.loads(capfd.readouterr().out)] == expected


def test_one_that_holds_other_things_stays_and_the_others_go(runs, capfd):
    (runs / NAMES[1] / "notes.txt").write_text("mine")
    os.utime(runs / NAMES[1] / "notes.txt", (0, 0))
    assert cli.run(["runs", "--run-dir", str(runs), "--prune", "--yes"]) == 1
    err = capfd.readouterr().err
    assert "holds notes.txt" in err
    assert "1 run deleted" in err
    assert names(runs) == NAMES[1:]


def test_its_options_alone_are_refused(runs, capfd):
    for options in (["--yes"], ["--keep", "1"], ["--older-than", "3"]):
        assert cli.run(["runs", "--run-dir", str(runs), *options]) == 2
        assert "add --prune" in capfd.readouterr().err
    assert names(runs) == NAMES
