"""The run on disk: what is journaled, what happens when the job or the disk fails, and finding runs again."""

import errno
import io
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from geocont import runs
from geocont.ablations import experiment as experiments
from geocont.ablations.experiment import Experiment, Variant
from geocont.errors import InputError, JobError
from geocont.events import (
    JOURNAL_VERSION,
    AnalysisProgress,
    AnalysisStarted,
    MatrixMeasured,
    MatrixPlan,
    Message,
    NetworkDiverged,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    Progress,
    RunFinished,
    RunStarted,
)
from geocont.run_lock import holder
from geocont.runs import (
    Recording,
    create_analysis_folder,
    create_run_folder,
    find_run,
    list_runs,
    read_analysis,
    read_events,
    runs_folder,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXPERIMENT = Experiment(name="mlp", variants=(Variant(name="Res+GELU"),))
STARTED = RunStarted(
    name="mlp",
    experiment={"name": "mlp"},
    networks=(NetworkPlan(variant="a", seed=0, steps=10), NetworkPlan(variant="a", seed=1, steps=30)),
    device="cpu",
    versions={"torch": "2.13"},
    time=1000.5,
)
DONE = RunFinished(status="done", time=1002.0, elapsed=1.5)
OVER = NetworkFinished(variant="a", seed=0, step=10, test_loss=0.5, test_accuracy=0.9)


def progress(step: int, seed: int = 0, elapsed: float = 0.5) -> Progress:
    return Progress(
        networks=(NetworkProgress(variant="a", seed=seed, step=step, loss=0.25),),
        elapsed=elapsed,
        steps_per_second=100.0,
        probe_share=0.01,
    )


class Job:
    """A source of events that knows whether it was closed, and can raise instead of an event or while closing."""

    def __init__(self, *items, while_closing: BaseException | None = None):
        self.items = list(items)
        self.while_closing = while_closing
        self.closed = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.closed or not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self):
        self.closed = True
        if self.while_closing:
            raise self.while_closing


def journal(folder: Path) -> list:
    return list(read_events(folder))


def write_journal(folder: Path, *events, tail: bytes = b"") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    (folder / "events.jsonl").write_bytes(lines + tail)
    return folder


# Folders


def test_folder_name_sorts_by_time_and_is_safe(tmp_path):
    folder = create_run_folder(Experiment(name="../a b\x1b[1m/ü", variants=EXPERIMENT.variants), tmp_path / "new")
    assert folder.parent == tmp_path / "new"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_a-b-1m_[a-z0-9]{4}", folder.name)
    nameless = create_run_folder(Experiment(name="//", variants=EXPERIMENT.variants), tmp_path)
    assert re.fullmatch(r"[\dT-]+_run_[a-z0-9]{4}", nameless.name)


def test_folders_of_the_same_second_differ(tmp_path):
    assert len({create_run_folder(EXPERIMENT, tmp_path) for _ in range(5)}) == 5


def test_default_place_is_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert runs_folder() == tmp_path / "geocont-tui" / "runs"
    assert list_runs() == []
    folder = create_run_folder(EXPERIMENT)
    assert folder.parent == runs_folder()
    assert find_run(folder.name) == folder


def test_experiment_file_reads_back_equal(tmp_path):
    for name in experiments.presets():
        change = "data.vocabulary=500" if name.startswith("transformer") else "data.images=500"
        experiment = experiments.read(name, (change, 'description="tab\\t \\"q\\" σ"'))
        folder = create_run_folder(experiment, tmp_path)
        assert experiments.read(str(folder / "experiment.toml")) == experiment
        assert [path.name for path in folder.iterdir()] == ["experiment.toml"]


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Not a directory") as caught:
        create_run_folder(EXPERIMENT, tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    assert "--run-dir" in caught.value.remedy


def test_no_half_made_folder_stays(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobError, match="No space left"):
        create_run_folder(EXPERIMENT, tmp_path)
    assert list(tmp_path.iterdir()) == []


# Recording


def test_each_event_is_on_disk_before_it_is_handed_out(tmp_path):
    job = Job(STARTED, progress(1), progress(2), DONE)
    recording = Recording(job, tmp_path)
    assert recording.folder == tmp_path
    seen = []
    for event in recording:
        seen.append(event)
        assert journal(tmp_path) == seen
    assert seen == [STARTED, progress(1), progress(2), DONE]
    assert job.closed
    assert recording.finished == DONE
    assert recording.stop() == DONE
    recording.close()
    assert journal(tmp_path) == seen


def test_stop_closes_the_job_and_ends_the_journal(tmp_path):
    job = Job(STARTED, progress(3, elapsed=0.75), DONE)
    recording = Recording(job, tmp_path)
    next(recording)
    next(recording)
    stopped = recording.stop()
    assert (stopped.status, stopped.elapsed) == ("stopped", 0.75)
    assert job.closed
    assert journal(tmp_path) == [STARTED, progress(3, elapsed=0.75), stopped]
    assert recording.stop() == stopped
    assert list(recording) == []


def test_the_context_manager_stops_a_generator(tmp_path):
    released = []

    def job():
        try:
            yield STARTED
            yield DONE
        finally:
            released.append(True)

    with Recording(job(), tmp_path) as recording:
        next(recording)
    assert released == [True]
    assert journal(tmp_path)[-1].status == "stopped"


def test_stop_from_another_thread_waits_for_the_pull(tmp_path):
    pulling, go = threading.Event(), threading.Event()

    def job():
        yield STARTED
        pulling.set()
        go.wait(20)
        yield progress(1)
        yield DONE

    recording = Recording(job(), tmp_path)
    worker = threading.Thread(target=lambda: list(recording))
    worker.start()
    pulling.wait(20)
    stopper = threading.Thread(target=recording.stop)
    stopper.start()
    go.set()
    stopper.join(20)
    worker.join(20)
    events = journal(tmp_path)
    assert events[0] == STARTED
    assert [event for event in events if isinstance(event, RunFinished)] == events[-1:]


def test_a_job_that_raises(tmp_path):
    def job():
        token = "hf_" + "token"  # noqa: F841
        yield STARTED
        raise RuntimeError("CUDA out of memory\nmore lines")

    recording = Recording(job(), tmp_path)
    next(recording)
    with pytest.raises(JobError) as caught:
        next(recording)
    assert str(caught.value) == "RuntimeError: CUDA out of memory"
    log = tmp_path / "error.log"
    assert str(log) in caught.value.remedy
    assert "more lines" in log.read_text("utf-8")
    assert "in job" in log.read_text("utf-8")
    assert "hf_token" not in log.read_text("utf-8")
    *_, last = journal(tmp_path)
    assert (last.status, last.problem, last.remedy) == ("failed", str(caught.value), caught.value.remedy)
    assert recording.finished == last
    assert list(recording) == []


def test_an_error_with_a_remedy_goes_on_as_it_is(tmp_path):
    recording = Recording(Job(STARTED, InputError("no folder x", "give one")), tmp_path)
    next(recording)
    with pytest.raises(InputError, match="no folder x") as caught:
        next(recording)
    assert caught.value.remedy == "give one"
    last = journal(tmp_path)[-1]
    assert (last.status, last.problem, last.remedy) == ("failed", "no folder x", "give one")
    assert not (tmp_path / "error.log").exists()


def test_a_job_that_ends_without_saying_how(tmp_path):
    recording = Recording(Job(STARTED), tmp_path)
    next(recording)
    with pytest.raises(JobError, match="without saying how"):
        next(recording)
    assert journal(tmp_path)[-1].status == "failed"


def test_an_event_that_cannot_be_written_as_json(tmp_path):
    job = Job(STARTED, Message(level="info", text="\udcff", time=0.0), DONE)
    recording = Recording(job, tmp_path)
    next(recording)
    with pytest.raises(JobError, match="UnicodeEncodeError"):
        next(recording)
    assert job.closed
    assert journal(tmp_path)[-1].status == "failed"


@pytest.mark.parametrize("stop", [True, False])
def test_a_job_that_raises_while_closing(tmp_path, stop):
    job = Job(STARTED, DONE, while_closing=RuntimeError("a worker hangs"))
    recording = Recording(job, tmp_path)
    next(recording)
    with pytest.raises(JobError, match="RuntimeError: a worker hangs"):
        recording.stop() if stop else next(recording)
    assert [event.status for event in journal(tmp_path) if isinstance(event, RunFinished)] == ["failed"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_passes_through_after_the_journal_is_closed(tmp_path, interrupt):
    job = Job(STARTED, progress(2), interrupt)
    recording = Recording(job, tmp_path)
    next(recording)
    next(recording)
    with pytest.raises(type(interrupt)):
        next(recording)
    assert job.closed
    assert [type(event) for event in journal(tmp_path)] == [RunStarted, Progress, RunFinished]
    assert recording.finished.status == "stopped"


def test_an_interrupt_while_writing_leaves_whole_lines(tmp_path, monkeypatch):
    recording = Recording(Job(STARTED, progress(2), DONE), tmp_path)
    next(recording)

    def interrupted(descriptor):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "fstat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(recording)
    assert [type(event) for event in journal(tmp_path)] == [RunStarted, RunFinished]


def test_a_second_interrupt_while_closing(tmp_path):
    recording = Recording(Job(STARTED, KeyboardInterrupt(), while_closing=KeyboardInterrupt()), tmp_path)
    next(recording)
    with pytest.raises(KeyboardInterrupt):
        next(recording)
    assert journal(tmp_path)[-1].status == "stopped"


def test_a_folder_that_holds_a_run_already(tmp_path):
    write_journal(tmp_path, STARTED, DONE)
    job = Job(STARTED)
    with pytest.raises(InputError, match="holds a run already"):
        Recording(job, tmp_path)
    assert job.closed
    assert journal(tmp_path) == [STARTED, DONE]


def test_a_journal_that_cannot_be_opened(tmp_path):
    job = Job(STARTED)
    with pytest.raises(JobError, match="No such file or directory") as caught:
        Recording(job, tmp_path / "absent")
    assert str(tmp_path / "absent") in str(caught.value)
    assert job.closed


def test_a_full_device(tmp_path):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    job = Job(STARTED, DONE)
    recording = Recording(job, tmp_path)
    with pytest.raises(JobError, match="No space left on device") as caught:
        next(recording)
    assert str(tmp_path / "events.jsonl") in str(caught.value)
    assert "--run-dir" in caught.value.remedy
    assert job.closed
    assert recording.stop().status == "failed"
    assert list(recording) == []


def test_a_full_disk_leaves_the_journal_intact(tmp_path):
    program = """
import resource, signal, sys
from pathlib import Path
from geocont.errors import JobError
from geocont.events import Message, NetworkPlan, RunStarted
from geocont.runs import Recording
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
def job():
    try:
        networks = (NetworkPlan(variant="a", seed=0, steps=10),)
        yield RunStarted(name="x", experiment={}, networks=networks, device="cpu", versions={}, time=0.0)
        while True:
            yield Message(level="info", text="x" * 321, time=0.0)
    finally:
        print("closed")
handed_out = 0
try:
    for event in Recording(job(), Path(sys.argv[1])):
        handed_out += 1
except JobError as error:
    print(error)
    print(error.remedy)
print(handed_out)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60, check=True
    )
    closed, problem, remedy, handed_out = result.stdout.splitlines()
    assert closed == "closed"
    assert problem == f"the journal {tmp_path / 'events.jsonl'} cannot be written: File too large"
    assert "--run-dir" in remedy
    content = (tmp_path / "events.jsonl").read_bytes()
    assert 9_000 < len(content) <= 10_000
    assert content.endswith(b"\n")
    assert len(journal(tmp_path)) == int(handed_out)


def test_a_folder_deleted_during_the_run(tmp_path):
    folder = create_run_folder(EXPERIMENT, tmp_path)
    job = Job(STARTED, progress(1), DONE)
    recording = Recording(job, folder)
    next(recording)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(JobError, match="deleted") as caught:
        next(recording)
    assert str(folder) in str(caught.value)
    assert job.closed


def removed(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_a_run_that_outlives_its_deleted_folder(tmp_path):
    folder = create_run_folder(EXPERIMENT, tmp_path)
    before = [STARTED, progress(1), progress(2, seed=1)]
    given = [*before, progress(4), progress(5), progress(6, seed=1), OVER, DONE]
    recording = Recording(Job(*given), folder, outlives_journal=True)
    handed_out = [next(recording) for _ in range(4)]
    assert recording.lost is None
    removed(folder)
    handed_out += list(recording)
    # What it will do is said at the beginning, and what it has done when it comes to that.
    said = [event for event in handed_out if isinstance(event, Message)]
    assert [message.level for message in said] == ["info", "warning"]
    assert "deleted" in said[1].text
    assert "it ends after 3 of 40 network-steps" in said[1].text
    assert said[1].text.startswith(recording.lost)
    assert [event for event in handed_out if not isinstance(event, Message)] == given
    assert recording.finished == DONE
    # Everything can be read again, but of the heartbeats since only where each network is.
    *found, last, end = recording.events()
    assert [event for event in found if not isinstance(event, Message)] == [*before, OVER]
    assert {(network.seed, network.step) for network in last.networks} == {(0, 5), (1, 6)}
    assert end == DONE
    assert not folder.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("outlives", [True, False])
def test_a_disk_that_cannot_be_written_any_more_keeps_what_it_has(tmp_path, number, outlives):
    recording = Recording(Job(STARTED, progress(1), progress(2), DONE), tmp_path, outlives_journal=outlives)
    count = 3 if outlives else 2
    before = [next(recording) for _ in range(count)]

    class Broken(io.FileIO):
        def write(self, data):
            # Half a line gets there, as on a disk that is full.
            if len(data) > 40:
                return super().write(data[:40])
            raise OSError(number, os.strerror(number))

    recording._journal.close()
    recording._journal = Broken(tmp_path / "events.jsonl", "a+")
    if outlives:
        rest = list(recording)
        assert rest[-1] == DONE
        assert list(recording.events())[: count + 1] == [*before, rest[1]]
        assert os.strerror(number) in recording.lost
    else:
        with pytest.raises(JobError, match=os.strerror(number)):
            next(recording)
    assert journal(tmp_path) == before
    assert (tmp_path / "events.jsonl").read_bytes().endswith(b"\n")
    assert holder(tmp_path) is None


def test_a_run_that_outlives_a_sync_that_fails_at_its_end(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(runs, "fsync", broken)
    recording = Recording(Job(STARTED, DONE), tmp_path, outlives_journal=True)
    assert list(recording)[-1] == DONE
    assert recording.finished == DONE
    assert "Input/output error" in recording.lost
    assert holder(tmp_path) is None


def test_a_journal_that_cannot_be_read_back_either_ends_the_run(tmp_path):
    job = Job(STARTED, progress(1), progress(2), DONE)
    recording = Recording(job, tmp_path, outlives_journal=True)
    next(recording)
    recording._journal.truncate(0)
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(JobError, match="deleted"):
        next(recording)
    assert job.closed


def test_a_sync_that_fails_at_the_end(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(runs, "fsync", broken)
    recording = Recording(Job(STARTED, DONE), tmp_path)
    next(recording)
    with pytest.raises(JobError, match="Input/output error"):
        next(recording)
    assert recording.finished.status == "failed"


def test_a_traceback_that_cannot_be_kept(tmp_path):
    (tmp_path / "error.log").mkdir()
    recording = Recording(Job(STARTED, ValueError("odd")), tmp_path)
    next(recording)
    with pytest.raises(JobError, match="ValueError: odd") as caught:
        next(recording)
    assert "could not be kept" in caught.value.remedy


# Reading


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000))
def test_a_journal_cut_anywhere_reads_up_to_the_cut(tmp_path, cut):
    events = [STARTED, progress(1), Message(level="info", text="σ\n", time=0.0), DONE]
    whole = write_journal(tmp_path, *events) / "events.jsonl"
    content = whole.read_bytes()
    cut %= len(content) + 1
    whole.write_bytes(content[:cut])
    read = journal(tmp_path)
    assert read == events[: len(read)]
    assert len(read) in (content[:cut].count(b"\n"), content[: cut + 1].count(b"\n"))


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10_000), replacement=st.binary(max_size=4))
def test_a_damaged_journal_gives_events_or_an_input_error(tmp_path, position, replacement):
    whole = write_journal(tmp_path, STARTED, progress(1), DONE) / "events.jsonl"
    content = whole.read_bytes()
    position %= len(content)
    whole.write_bytes(content[:position] + replacement + content[position + 1 :])
    with suppress(InputError):
        journal(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"\0" * 40 + b"\n",
        b"\n",
        b'{"event":"Nothing"}\n',
        b'{"event":"RunFinished","status":"perhaps","time":1}\n',
        b'{"event":"RunStarted","name":"x","experiment":{"a":' + b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    write_journal(tmp_path, STARTED, progress(1), tail=line + msgspec.json.encode(DONE) + b"\n")
    read = []
    with pytest.raises(InputError, match="damaged in line 3: ") as caught:
        read.extend(read_events(tmp_path))
    assert str(tmp_path / "events.jsonl") in str(caught.value)
    assert "the 2 events before" in caught.value.remedy


def test_a_torn_end_is_dropped(tmp_path):
    for tail in (b'{"event":"Progr', b"\0" * 4096, b"\xff"):
        write_journal(tmp_path, STARTED, tail=tail)
        assert journal(tmp_path) == [STARTED]
    write_journal(tmp_path, tail=b'{"event"')
    assert journal(tmp_path) == []


def test_a_journal_of_a_newer_version(tmp_path):
    line = json.dumps({"event": "RunStarted", "version": JOURNAL_VERSION + 1, "networks": "another shape"})
    write_journal(tmp_path, tail=line.encode() + b'\n{"event":"New"}\n')
    with pytest.raises(InputError, match=f"journal version {JOURNAL_VERSION + 1}") as caught:
        journal(tmp_path)
    assert "upgrade" in caught.value.remedy


def test_unknown_fields_of_the_same_version_are_ignored(tmp_path):
    line = msgspec.json.encode(DONE)[:-1] + b',"later":[1,{}]}\n'
    write_journal(tmp_path, STARTED, tail=line)
    assert journal(tmp_path) == [STARTED, DONE]


def test_what_is_not_a_journal(tmp_path):
    write_journal(tmp_path, progress(1))
    with pytest.raises(InputError, match="does not begin with RunStarted or AnalysisStarted but Progress"):
        journal(tmp_path)
    with pytest.raises(InputError, match="has no journal"):
        journal(tmp_path / "absent")
    (tmp_path / "folder" / "events.jsonl").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be read"):
        journal(tmp_path / "folder")


# Lists


def test_list_of_runs(tmp_path):
    write_journal(tmp_path / "2000-01-01_done", STARTED, progress(10), progress(30, seed=1), DONE)
    write_journal(tmp_path / "2000-01-02_interrupted", STARTED, progress(10), progress(10, seed=1), tail=b'{"ev')
    write_journal(
        tmp_path / "2000-01-03_failed",
        STARTED,
        NetworkDiverged(variant="a", seed=0, step=4, reason="loss"),
        NetworkFinished(variant="a", seed=1, step=30, test_loss=None, test_accuracy=None),
        RunFinished(status="failed", time=1.0, problem="no memory", remedy="less"),
    )
    write_journal(tmp_path / "2000-01-04_unreadable", STARTED, tail=b"rubbish\n{}\n")
    not_started = create_run_folder(EXPERIMENT, tmp_path)
    (tmp_path / "not a run").mkdir()
    (tmp_path / "file").write_text("")

    newest, unreadable, failed, interrupted, done = list_runs(tmp_path)
    assert (newest.folder, newest.state, newest.fraction) == (not_started.name, "interrupted", None)
    assert (unreadable.state, unreadable.folder) == ("unreadable", "2000-01-04_unreadable")
    assert "damaged in line 2" in unreadable.reason
    assert (failed.state, failed.reason, failed.steps_done) == ("failed", "no memory", 34)
    assert failed.headline == "variants: 1, networks: 2, diverged: 1"
    assert (interrupted.state, interrupted.fraction, interrupted.reason) == ("interrupted", 0.5, None)
    folder = tmp_path / "2000-01-01_done"
    assert done == runs.RunSummary(
        folder=folder.name,
        path=str(folder),
        kind="ablation",
        name="mlp",
        state="done",
        started=1000.5,
        steps_done=40,
        steps_planned=40,
        size=(folder / "events.jsonl").stat().st_size,
        headline="variants: 1, networks: 2",
        device="cpu",
    )
    assert done.fraction == 1.0
    assert json.loads(msgspec.json.encode(done))["state"] == "done"


def test_a_folder_of_runs_that_cannot_be_listed(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, expected in ((tmp_path / "absent", "there is no folder"), (tmp_path / "file", "cannot be read")):
        with pytest.raises(InputError, match=expected):
            list_runs(folder)


def test_a_run_that_may_not_be_looked_into_is_listed(tmp_path, monkeypatch):
    write_journal(tmp_path / "closed", STARTED)

    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "exists", denied)
    (closed,) = list_runs(tmp_path)
    assert (closed.state, "Permission denied" in closed.reason) == ("unreadable", True)


def test_find_run(tmp_path, monkeypatch):
    first = write_journal(tmp_path / "runs" / "2026-01-01T10_mlp_aaaa", STARTED)
    second = write_journal(tmp_path / "runs" / "2026-01-01T11_mlp_bbbb", STARTED)
    parent = tmp_path / "runs"
    assert find_run(first.name, parent) == first
    assert find_run("2026-01-01T11", parent) == second
    assert find_run(str(second)) == second
    monkeypatch.chdir(parent)
    assert find_run(f"./{second.name}").resolve() == second
    write_journal(parent / (second.name + "x"), STARTED)
    assert find_run(second.name, parent).name == second.name


def test_find_run_says_what_is_wrong(tmp_path):
    parent = tmp_path / "runs"
    for hour in range(10, 15):
        write_journal(parent / f"2026-01-01T{hour}_mlp_aaaa", STARTED)
    (tmp_path / "empty").mkdir()
    for name, expected, remedy in (
        ("2026", "5 runs begin with '2026': .*, …", "more of the name"),
        ("", "there is no run ''", "runs` lists"),
        ("2026-01-01T12_mpl_aaaa", "there is no run", "did you mean 2026-01-01T12_mlp_aaaa?"),
        ("zzz", "there is no run 'zzz'", "runs` lists"),
        (str(tmp_path / "empty"), "is not a run", "folder of a run"),
        (str(tmp_path / "empty" / "absent"), "there is no run", "runs` lists"),
        ("x" * 300, "cannot be read: File name too long", "path"),
    ):
        with pytest.raises(InputError, match=expected) as caught:
            find_run(name, parent)
        assert remedy in caught.value.remedy
    with pytest.raises(InputError) as caught:
        find_run("2026", tmp_path / "empty")
    assert "no runs yet" in caught.value.remedy


def analysis_events(done: int = 2) -> list:
    plans = tuple(
        MatrixPlan(
            stack="text", projection="q", layer=layer, tensors=("t",), rows=4, cols=4, dtype="F32", bytes=64, side="v",
            rule="plain",
        )
        for layer in range(3)
    )  # fmt: skip
    started = AnalysisStarted(
        model="org/model", revision="abc", source="here", parameters={"model": "org/model"}, matrices=plans, skipped=(),
        bytes=192, device="cpu", versions={}, time=1000.5,
    )  # fmt: skip
    measured = MatrixMeasured(
        stack="text", projection="q", layer=0, singular_values=(2.0,), gap=None, stable_rank=1.0, frobenius=2.0,
        v1_error_bound=0.0, u1_error_bound=0.0, status="ok",
    )  # fmt: skip
    progress = AnalysisProgress(matrices=done, bytes_read=64, elapsed=7.5, bytes_per_second=None)
    return [started, measured, progress]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("/models/my model [1]/", "my-model-1"),
        ("C:\\models\\x", "x"),
        ("./a.safetensors", "a.safetensors"),
        ("..", "model"),
        ("/", "model"),
        ("ü" * 300, "run"),
        ("x" * 300, "x" * 100),
    ],
)
def test_folder_of_an_analysis(tmp_path, model, name):
    parameters = {"model": model, "revision": None, "top_k": 8, "gap_tolerance": 0.005, "exact_gram": False}
    folder = create_analysis_folder(model, parameters, tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_" + re.escape(name) + "_[a-z0-9]{4}", folder.name)
    assert read_analysis(folder) == {name: value for name, value in parameters.items() if value is not None}
    assert [path.name for path in folder.iterdir()] == ["analysis.toml"]


def test_analysis_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="is not the run of an analysis"):
        read_analysis(tmp_path)
    (tmp_path / "analysis.toml").write_bytes(b"\xff = ")
    with pytest.raises(InputError, match="is not a text file"):
        read_analysis(tmp_path)


def test_an_analysis_is_recorded_listed_and_found(tmp_path):
    folder = create_analysis_folder("org/model", {"model": "org/model"}, tmp_path)
    with Recording(iter(analysis_events()), folder) as recording:
        for _ in range(3):
            next(recording)
    events = list(read_events(folder))
    assert events[:3] == analysis_events()
    assert (events[-1].status, events[-1].elapsed) == ("stopped", 7.5)
    [summary] = list_runs(tmp_path)
    assert (summary.kind, summary.name, summary.state, summary.started) == ("analysis", "org/model", "stopped", 1000.5)
    assert (summary.steps_done, summary.steps_planned, summary.fraction) == (2, 3, 2 / 3)
    assert summary.headline == "layers: 3, matrices: 3"
    assert find_run(folder.name, tmp_path) == folder


def test_a_run_of_each_kind_is_a_run(tmp_path):
    create_analysis_folder("org/model", {"model": "org/model"}, tmp_path)
    create_run_folder(EXPERIMENT, tmp_path)
    assert {summary.state for summary in list_runs(tmp_path)} == {"interrupted"}
    assert len(list_runs(tmp_path)) == 2
