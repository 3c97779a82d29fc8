"""Reading a journal while it grows, and a long one in part."""

import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
import synthetic
from geocont.errors import InputError
from geocont.events import JOURNAL_VERSION, Event, Probe, Progress, RunFinished, RunStarted
from geocont.journal import JOURNAL, follow, journaled, read_events, thinned_events
from geocont.run_lock import RunLock

# As they come back from JSON, with lists for tuples.
EVENTS = [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in synthetic.events(seeds=1)]
STARTED = next(event for event in EVENTS if isinstance(event, RunStarted))
LONG = msgspec.structs.replace(
    STARTED, networks=[msgspec.structs.replace(network, steps=10**6) for network in STARTED.networks]
)
PROBE = next(event for event in EVENTS if isinstance(event, Probe))


def lines(*events: Event) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def write(folder: Path, *events: Event, tail: bytes = b"") -> None:
    (folder / JOURNAL).write_bytes(lines(*events) + tail)


def append(folder: Path, text: bytes) -> None:
    with (folder / JOURNAL).open("ab") as file:
        file.write(text)


def probes_of(steps: int, *projections: str) -> list[Probe]:
    """As they are journaled: all projections of a step, one after the other."""
    return [
        msgspec.structs.replace(PROBE, step=step, projection=projection, exact=False)
        for step in range(steps)
        for projection in projections
    ]


def test_what_nobody_writes_is_read_to_its_end_and_the_torn_line_left_out(tmp_path):
    write(tmp_path, *EVENTS, tail=lines(EVENTS[-1])[:20])
    assert list(follow(tmp_path)) == EVENTS


def test_a_line_counts_once_its_end_is_there(tmp_path):
    write(tmp_path, STARTED, tail=lines(PROBE)[:30])
    with RunLock(tmp_path):
        events = follow(tmp_path)
        assert next(events) == STARTED
        assert next(events) is None
        append(tmp_path, lines(PROBE)[30:])
        assert next(event for event in events if event is not None) == PROBE


def test_several_follow_a_journal_that_grows_and_none_holds_up_the_writer(tmp_path):
    heard: list[list[Event]] = [[], []]

    def watch(into: list[Event]) -> None:
        into.extend(event for event in follow(tmp_path) if event is not None)

    with RunLock(tmp_path):
        watching = [threading.Thread(target=watch, args=(into,)) for into in heard]
        for thread in watching:
            thread.start()
        text = lines(*EVENTS)
        for start in range(0, len(text), 997):
            append(tmp_path, text[start : start + 997])
    for thread in watching:
        thread.join(30)
    assert heard == [EVENTS, EVENTS]


def test_what_was_written_before_the_writer_went_is_read(tmp_path):
    write(tmp_path, STARTED)
    lock = RunLock(tmp_path)
    lock.acquire()
    events = follow(tmp_path)
    assert next(events) == STARTED
    append(tmp_path, lines(PROBE))
    lock.release()
    assert [event for event in events if event is not None] == [PROBE]


def test_a_folder_deleted_while_it_is_followed_ends_at_its_last_line(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder, STARTED)
    lock = RunLock(folder)
    lock.acquire()
    events = follow(folder)
    assert next(events) == STARTED
    shutil.rmtree(folder)
    assert [event for event in events if event is not None] == []
    lock.release()


def test_a_folder_without_a_journal_is_waited_for_only_while_somebody_holds_it(tmp_path):
    with pytest.raises(InputError, match="has no journal"):
        next(follow(tmp_path))
    with RunLock(tmp_path):
        events = follow(tmp_path)
        assert next(events) is None
        write(tmp_path, STARTED)
        assert next(event for event in events if event is not None) == STARTED


@pytest.mark.parametrize("read", [follow, lambda folder: follow(folder, thin=True), thinned_events, read_events])
def test_a_newer_version_is_refused_by_every_reader(tmp_path, read):
    write(tmp_path, msgspec.structs.replace(STARTED, version=JOURNAL_VERSION + 1))
    with pytest.raises(InputError, match="newer geocont-tui"):
        list(read(tmp_path))


def test_a_short_journal_is_not_thinned(tmp_path):
    write(tmp_path, *EVENTS)
    assert list(thinned_events(tmp_path)) == EVENTS


@pytest.mark.parametrize("projections", [("hidden",), ("q", "k", "v", "o", "gate", "up", "down")])
def test_of_a_long_one_each_projection_keeps_the_same_steps_the_first_and_the_last(tmp_path, projections):
    write(tmp_path, LONG, *probes_of(1000, *projections))
    kept = [event for event in thinned_events(tmp_path, probes=100) if isinstance(event, Probe)]
    steps = {name: [event.step for event in kept if event.projection == name] for name in projections}
    expected = steps[projections[0]]
    assert all(of == expected for of in steps.values())
    assert (expected[0], expected[-1]) == (0, 999)
    assert 50 <= len(expected) <= 101


def test_exact_measurements_are_kept_and_of_progress_the_latest(tmp_path):
    exact = msgspec.structs.replace(PROBE, step=333, exact=True)
    beats = [
        msgspec.structs.replace(next(event for event in EVENTS if isinstance(event, Progress)), elapsed=float(second))
        for second in range(500)
    ]
    plain = probes_of(1000, "hidden")
    write(tmp_path, LONG, *plain[:333], exact, *plain[334:], *beats)
    kept = list(thinned_events(tmp_path, probes=10))
    assert exact in kept
    assert [event for event in kept if isinstance(event, Progress)] == beats[-64:]


def test_what_is_left_out_is_left_out_of_following_too_and_new_lines_are_not(tmp_path):
    plain = probes_of(2000, "hidden")
    write(tmp_path, LONG, *plain)
    with RunLock(tmp_path):
        events = follow(tmp_path, thin=True)
        first = []
        for event in events:
            if event is None:
                break
            first.append(event)
        assert first == list(thinned_events(tmp_path))
        assert len(first) < 600
        finished = RunFinished(status="done", time=synthetic.START, elapsed=1.0)
        append(tmp_path, lines(finished))
        assert next(event for event in events if event is not None) == finished


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_journal_that_may_not_be_read_is_an_error_of_input(tmp_path):
    write(tmp_path, STARTED)
    (tmp_path / JOURNAL).chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        list(thinned_events(tmp_path))


@pytest.mark.parametrize("read", [follow, journaled, read_events])
def test_a_folder_that_cannot_be_looked_into_is_an_error_of_input(tmp_path, read):
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        list(read(tmp_path / ("x" * 300)))
