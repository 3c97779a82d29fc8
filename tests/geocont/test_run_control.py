"""Requests through the folder of a run."""

import os

import pytest
from geocont.errors import InputError
from geocont.run_control import Control, ask


def test_each_request_is_taken_once_by_the_writer_that_is_there(tmp_path):
    ask(tmp_path, "stop")
    control = Control(tmp_path)
    assert control.take() is None
    ask(tmp_path, "pause")
    assert control.take() == "pause"
    assert control.take() is None
    ask(tmp_path, "pause")
    ask(tmp_path, "resume")
    assert control.take() == "resume"
    assert control.take() is None
    assert Control(tmp_path).take() is None


def test_a_request_that_could_not_be_read_is_taken_at_the_next_look(tmp_path):
    ask(tmp_path, "pause")
    control = Control(tmp_path)
    ask(tmp_path, "stop")
    path = tmp_path / "control"
    whole, status = path.read_bytes(), path.stat()
    path.write_bytes(b"")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert control.take() is None
    path.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert control.take() == "stop"
    assert control.take() is None


def test_what_somebody_else_left_there_is_no_request(tmp_path):
    control = Control(tmp_path)
    (tmp_path / "control").write_bytes(b"rm -rf /\n")
    assert control.take() is None
    (tmp_path / "control").unlink()
    assert control.take() is None
    ask(tmp_path, "stop")
    assert control.take() == "stop"


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(InputError, match=r"the run cannot be asked to pause: .*No such file") as caught:
        ask(tmp_path / "gone", "pause")
    assert caught.value.remedy
