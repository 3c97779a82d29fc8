import pytest
from geocont.ablations import slices
from geocont.ablations.slices import Slice, report
from geocont.events import NetworkFinished, NetworkProgress, Progress, RunFinished


def test_pauses_are_not_counted(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(slices.time, "perf_counter", lambda: now[0])
    clock = slices._Clock()
    now[0] += 2.0
    clock.leave()
    now[0] += 0.1
    clock.enter()
    assert clock.elapsed == pytest.approx(2.1)
    clock.leave()
    now[0] += 3600
    clock.enter()
    assert clock.elapsed == pytest.approx(2.1)


def part(step: int, *events, positions: bool = True) -> Slice:
    where = (NetworkProgress(variant="a", seed=0, step=step, loss=1.0),) if positions else ()
    return Slice(events=events, positions=where, training_seconds=3.0, probe_seconds=1.0, network_steps=10)


def test_slices_become_events_progress_and_an_end(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(slices.time, "perf_counter", lambda: now[0])
    finished = NetworkFinished(variant="a", seed=0, step=20, test_loss=0.1, test_accuracy=0.9)

    def work():
        yield part(10)
        now[0] += 2.0
        yield part(20, finished)
        now[0] += 1.0
        yield None

    first, second, third, fourth, last = report(work())
    assert first == finished
    assert isinstance(second, Progress)
    # A network that has finished has no position of its own any more.
    assert second.networks == ()
    assert second.probe_share == pytest.approx(0.25)
    assert isinstance(third, Progress)
    assert isinstance(fourth, Progress)
    # The last one speaks of the whole run.
    assert fourth.steps_per_second == pytest.approx(20 / 3)
    assert fourth.tokens_per_second is None
    assert isinstance(last, RunFinished)
    assert (last.network_steps, last.training_seconds, last.probe_seconds) == (20, 6.0, 2.0)
    assert last.status == "done"
