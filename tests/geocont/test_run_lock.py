"""One writer at a time, whoever looks, however the writer ends."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from geocont import run_lock
from geocont.errors import InputError, JobError
from geocont.run_lock import Holder, RunLock, holder

HOLD = """
import sys
from pathlib import Path
from geocont.run_lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def writer(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_nobody_holds_a_folder_without_a_lock_or_after_release(tmp_path):
    assert holder(tmp_path) is None
    with RunLock(tmp_path) as lock:
        assert lock.is_supported
        found = holder(tmp_path)
        assert found is not None
        assert (found.pid, found.host) == (os.getpid(), socket.gethostname())
    assert holder(tmp_path) is None
    lock.release()


def test_a_second_writer_is_refused_with_pid_and_host_and_disturbs_nobody(tmp_path):
    with writer(tmp_path) as process:
        with pytest.raises(InputError) as caught:
            RunLock(tmp_path).acquire()
        assert f"is being written by process {process.pid} on {socket.gethostname()}" in str(caught.value)
        assert caught.value.remedy == f"watch it with `geocont-tui watch {tmp_path.name}`"
        assert holder(tmp_path) == Holder(process.pid, socket.gethostname(), holder(tmp_path).started)
        process.stdin.close()
        assert process.wait() == 0
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


def test_a_killed_writer_leaves_nothing_behind(tmp_path):
    with writer(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "lock").read_bytes()
    assert holder(tmp_path) is None
    RunLock(tmp_path).acquire()


def test_who_looks_never_keeps_a_writer_out(tmp_path):
    look = "import sys, pathlib\nfrom geocont.run_lock import holder\nprint(flush=True)\n"
    look += "while True: holder(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", look, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(200):
            with RunLock(tmp_path):
                pass
        process.kill()


def test_a_file_system_without_locks_keeps_nobody_out_and_says_so(tmp_path, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    lock = RunLock(tmp_path)
    with lock:
        assert not lock.is_supported
        assert holder(tmp_path) is None


def test_a_folder_that_has_gone_is_an_error_of_the_job(tmp_path):
    with pytest.raises(JobError, match="cannot be written: No such file"):
        RunLock(tmp_path / "gone").acquire()


def test_a_holder_whose_file_is_not_written_yet_is_a_holder(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        assert holder(tmp_path) == Holder(pid=0, host="an unknown host")
