"""A run pulled in one thread and looked at from another; here the threads take turns, so that nothing waits."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import synthetic
from geocont import run_control
from geocont.errors import InputError, JobError
from geocont.events import Event, Probe, RunFinished, RunStarted
from geocont.runs import Recording

from geocont_tui import state as states
from geocont_tui.job import Job, WatchedRun, ablation_job, watched_run


def job_of(events: Iterator[Event], folder: Path) -> Job[states.AblationState]:
    return ablation_job(synthetic.experiment(), Recording(events, folder), "cpu")


def journal(folder: Path) -> list[Event]:
    """Every line, whatever it begins with."""
    return [msgspec.json.decode(line, type=Event) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def fold_all(events: Iterator[Event]) -> states.AblationState:
    state = None
    for event in events:
        state = states.fold(state, event)
    assert state is not None
    return state


def test_before_the_first_event_the_plan_is_shown(tmp_path):
    job = job_of(synthetic.events(), tmp_path)
    state = job.snapshot.state
    assert state.status == "starting"
    assert state.steps_planned == fold_all(synthetic.events(until=0)).steps_planned
    assert not job.over
    job.recording.close()


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_a_run_to_its_end_gives_the_fold_of_its_events_and_its_findings(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr("geocont_tui.job._JUDGE_SECONDS", seconds)
    job = job_of(synthetic.events(), tmp_path)
    job.run()
    assert job.snapshot.state == fold_all(synthetic.events())
    assert job.snapshot.findings == states.findings(job.snapshot.state)
    assert job.snapshot.findings
    assert fold_all(iter(journal(tmp_path))) == job.snapshot.state
    assert job.over
    assert job.error is None


def test_snapshots_never_change_and_versions_grow(tmp_path):
    seen = []

    def watched() -> Iterator[Event]:
        for event in synthetic.events(until=0.1):
            seen.append(job.snapshot)
            yield event

    job = job_of(watched(), tmp_path)
    before = job.snapshot
    job.run()
    versions = [snapshot.version for snapshot in seen]
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]
    assert before.state.status == "starting"
    assert seen[2].state == fold_all(iter(list(synthetic.events())[:2]))


def test_stopping_closes_the_source_and_the_journal(tmp_path):
    closed = []

    def endless() -> Iterator[Event]:
        try:
            yield from synthetic.events(until=0.5)
            while True:
                job.stop()
                yield next(iter(synthetic.events()))
        finally:
            closed.append(True)

    job = job_of(endless(), tmp_path)
    job.run()
    assert closed == [True]
    assert job.snapshot.state.status == "stopped"
    assert journal(tmp_path)[-1].status == "stopped"


def test_a_worker_that_is_cancelled_leaves_the_run_to_the_next_who_goes_on(tmp_path):
    job = job_of(synthetic.events(), tmp_path)
    looks = iter([False] * 30 + [True])
    job.run(lambda: next(looks))
    assert not job.over
    assert job.recording.finished is None
    job.run()
    assert job.snapshot.state == fold_all(synthetic.events())
    assert fold_all(iter(journal(tmp_path))) == job.snapshot.state
    assert len(journal(tmp_path)) == len(list(synthetic.events()))


def test_a_pause_pulls_nothing_until_resumed_or_stopped(tmp_path):
    pulled = threading.Event()

    def watched() -> Iterator[Event]:
        for event in synthetic.events():
            pulled.set()
            yield event

    job = job_of(watched(), tmp_path)
    job.pause()
    assert job.paused
    looks = iter([False, False, True])
    job.run(lambda: next(looks))
    assert not pulled.is_set()
    assert job.paused
    job.stop()
    job.run()
    # A journal begins with how the run began: that much is pulled before it is stopped.
    first, last = journal(tmp_path)
    assert isinstance(first, RunStarted)
    assert isinstance(last, RunFinished)
    assert job.snapshot.state.status == "stopped"
    assert not job.paused


def test_resuming_goes_on(tmp_path):
    job = job_of(synthetic.events(), tmp_path)
    job.pause()
    worker = threading.Thread(target=job.run)
    worker.start()
    job.resume()
    worker.join(timeout=30)
    assert job.snapshot.state.status == "done"


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        (JobError("out of memory", "lower width"), "out of memory", "lower width"),
        (InputError("no such folder", "give another"), "no such folder", "give another"),
        (ZeroDivisionError("secret = 'token'"), "ZeroDivisionError: secret = 'token'", "error.log"),
    ],
)
@pytest.mark.parametrize("after", [0, 5])
def test_what_goes_wrong_is_in_the_state_with_its_remedy(tmp_path, error, problem, remedy, after):
    def failing() -> Iterator[Event]:
        for count, event in enumerate(synthetic.events()):
            if count == after:
                raise error
            yield event

    job = job_of(failing(), tmp_path)
    job.run()
    state = job.snapshot.state
    assert (state.status, state.problem) == ("failed", problem)
    assert remedy in state.remedy
    assert job.error is not None
    assert journal(tmp_path)[-1].status == "failed"
    assert len(journal(tmp_path)) == after + 1


def test_a_bug_in_the_fold_ends_the_run_with_a_closed_journal(tmp_path):
    """A probe of a network that was never planned."""

    def wrong() -> Iterator[Event]:
        events = synthetic.events()
        started = next(events)
        assert isinstance(started, RunStarted)
        yield started
        yield synthetic.probe(0, seed=99, step=0)

    job = job_of(wrong(), tmp_path)
    job.run()
    assert job.snapshot.state.status == "failed"
    assert "KeyError" in job.snapshot.state.problem
    assert job.recording.finished is not None


def endless(asks: Callable[[int], None]) -> Iterator[Event]:
    """Events for ever; `asks` is told how many there were."""
    yield from synthetic.events(until=0.1)
    last = list(synthetic.events(until=0.1))[-1]
    for count in itertools.count():
        asks(count)
        yield last


def test_it_does_what_a_watching_screen_asks_for_and_journals_the_pause(tmp_path):
    def asks(count: int) -> None:
        if count == 0:
            run_control.ask(tmp_path, "pause")
        elif count == 1:
            run_control.ask(tmp_path, "stop")
        assert count < 2

    def resume_once_paused() -> bool:
        if job.paused and job.snapshot.state.paused:
            run_control.ask(tmp_path, "resume")
        return False

    job = job_of(endless(asks), tmp_path)
    job.run(resume_once_paused)
    assert job.error is None
    assert job.snapshot.state.status == "stopped"
    names = [type(event).__name__ for event in journal(tmp_path)]
    assert names[-4:] == ["RunPaused", "RunResumed", "Progress", "RunFinished"]


def test_watching_folds_what_is_journaled_and_ends_with_the_run(tmp_path):
    job_of(synthetic.events(), tmp_path).run()
    watched = watched_run(tmp_path)
    watched.run()
    assert watched.over
    assert not watched.is_abandoned
    assert watched.snapshot.state.status == "done"
    assert watched.snapshot.findings == states.findings(fold_all(synthetic.events()))
    watched.pause()
    assert not watched.paused


def test_a_watched_run_that_nobody_writes_any_more_is_over(tmp_path):
    job = job_of(synthetic.events(until=0.2), tmp_path)
    looks = iter([False] * 40 + [True])
    job.run(lambda: next(looks))
    watched = WatchedRun(
        tmp_path,
        iter([*journal(tmp_path), None]),
        states.planned(synthetic.experiment(), ""),
        states.fold,
        lambda _: (),
    )
    watched.run(lambda: watched.over)
    assert watched.is_abandoned
    assert watched.over
    assert watched.snapshot.state.status == "running"
    job.close()


def test_a_watched_run_that_cannot_be_asked_says_so(tmp_path):
    watched = WatchedRun(tmp_path / "gone", iter([]), states.planned(synthetic.experiment(), ""), states.fold, tuple)
    with pytest.raises(InputError, match="cannot be asked to stop"):
        watched.stop()


def test_judging_reads_everything_only_now_and_then(tmp_path, monkeypatch):
    judged = []
    monkeypatch.setattr(states, "findings", lambda state: judged.append(state.probe_count) or ())
    monkeypatch.setattr("geocont_tui.job.time.monotonic", lambda: 100.0)
    job = job_of(synthetic.events(), tmp_path)
    job.run()
    assert judged == [1, sum(isinstance(event, Probe) for event in synthetic.events())]
