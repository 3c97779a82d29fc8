"""Runs renamed, deleted and pruned: never a live one, never what is not of a run."""

import os
import time
from pathlib import Path

import pytest
import synthetic
from geocont import run_list
from geocont.errors import InputError
from geocont.run_list import delete, last_change, prunable, rename
from geocont.runs import Recording, list_runs

DAY = 86400


def run_in(parent: Path, name: str = "2026-12-01T14-03-11_mlp_k3f9", days: float = 0.0) -> Path:
    """A finished run, last written to `days` ago."""
    folder = parent / name
    folder.mkdir()
    (folder / "experiment.toml").write_text('name = "mlp"\n')
    for _ in Recording(synthetic.events(), folder):
        pass
    for path in folder.iterdir():
        os.utime(path, (time.time() - days * DAY,) * 2)
    return folder


def test_a_renamed_run_keeps_its_time_and_everything_else(tmp_path):
    folder = run_in(tmp_path)
    before = (folder / "events.jsonl").read_bytes()
    new = rename(folder, " best one ")
    assert new == tmp_path / "2026-12-01T14-03-11_best one"
    assert not folder.exists()
    assert (new / "events.jsonl").read_bytes() == before
    assert [run.folder for run in list_runs(tmp_path)] == [new.name]
    assert rename(new, new.name) == new
    assert rename(new, "2020-01-01T00-00-00_other").name == "2026-12-01T14-03-11_other"
    assert run_list.title("2026-12-01T14-03-11_other") == "other"


def test_a_run_without_a_time_is_renamed_as_a_whole(tmp_path):
    assert rename(run_in(tmp_path, "mine"), "yours") == tmp_path / "yours"


@pytest.mark.parametrize("name", ["", "  ", "..", ".hidden", "a/b", "a\\b", "a\nb", "ü" * 150])
def test_names_that_are_none(tmp_path, name):
    folder = run_in(tmp_path)
    with pytest.raises(InputError):
        rename(folder, name)
    assert folder.exists()


def test_a_name_that_is_taken(tmp_path):
    folder = run_in(tmp_path)
    other = run_in(tmp_path, "2026-12-01T14-03-11_other")
    with pytest.raises(InputError, match="already"):
        rename(folder, "other")
    assert folder.exists()
    assert len(list(other.iterdir())) > 0


def test_a_live_run_is_neither_renamed_nor_deleted(tmp_path):
    folder = tmp_path / "2026-12-01T14-03-11_mlp_k3f9"
    folder.mkdir()
    with Recording(synthetic.events(), folder) as recording:
        next(recording)
        for touch in (delete, lambda folder: rename(folder, "other")):
            with pytest.raises(InputError, match=f"is being written by process {os.getpid()}") as refused:
                touch(folder)
            assert "watch" in refused.value.remedy
        next(recording)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    delete(folder)
    assert list(tmp_path.iterdir()) == []


def test_deleting_takes_all_that_is_of_the_run(tmp_path):
    folder = run_in(tmp_path)
    (folder / "checkpoint").mkdir()
    (folder / "models" / "silu_0").mkdir(parents=True)
    of_a_run = ("checkpoint/a.safetensors", "models/silu_0/config.json", "error.log", "screen-1.svg", "control")
    for name in (*of_a_run, ".0123.tmp"):
        (folder / name).write_text("")
    delete(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    folder = run_in(tmp_path)
    (folder / "thesis.tex").write_text("years of work")
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        delete(folder)
    assert sorted(folder.iterdir()) == before


def test_what_a_link_points_to_is_not_deleted(tmp_path):
    folder = run_in(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(InputError, match="symbolic link"):
        delete(link)
    assert folder.exists()


def test_what_is_not_there(tmp_path):
    for touch in (delete, lambda folder: rename(folder, "other")):
        with pytest.raises(InputError, match="there is no run"):
            touch(tmp_path / "gone")
    assert last_change(tmp_path / "gone") == 0


def test_old_runs_are_found_live_and_unreadable_ones_are_not(tmp_path):
    names = [f"2026-01-0{day}T00-00-00_run" for day in range(1, 7)]
    for name, days in zip(names, (50, 40, 20, 60, 70, 80), strict=True):
        run_in(tmp_path, name, days)
    (tmp_path / names[4] / "events.jsonl").write_text('{"event":"RunStarted","version":99}\n')
    os.utime(tmp_path / names[4] / "events.jsonl", (0, 0))
    with Recording(synthetic.events(), _emptied(tmp_path / names[5])) as recording:
        next(recording)
        for path in (tmp_path / names[5]).iterdir():
            os.utime(path, (0, 0))
        assert [run.folder for run in prunable(tmp_path)] == [names[3], names[1], names[0]]
        assert [run.folder for run in prunable(tmp_path, older_than=45)] == [names[3], names[0]]
        assert [run.folder for run in prunable(tmp_path, older_than=0, keep=4)] == [names[1], names[0]]
        assert prunable(tmp_path, older_than=1000) == []


def _emptied(folder: Path) -> Path:
    (folder / "events.jsonl").unlink()
    return folder
