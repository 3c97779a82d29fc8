import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import synthetic
from geocont.ablations import crew
from geocont.ablations.experiment import Experiment
from geocont.errors import InputError, JobError
from geocont.events import Alignment, Event, NetworkDiverged, Probe, RunFinished, RunStarted
from geocont.runs import Recording, RunSummary, read_events
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from geocont_tui import headless
from geocont_tui.headless import read_state, run_ablation, runs_table, summary_table, watch_run, write_out
from geocont_tui.plain_text import duration
from geocont_tui.state import AblationState, findings, fold
from geocont_tui.terminal import ExitCode

EXPERIMENT = synthetic.experiment()
NAMES = [variant.name for variant in EXPERIMENT.variants]
COLUMNS = (
    "variant",
    "status",
    "steps",
    "test accuracy",
    "weight v1",
    "weight u1",
    "peak v1",
    "at step",
    "gradient v1 at step 0",
    "gradient v1",
    "σ1/σ2",
    "top-10 overlap",
    "‖ΔW‖/‖W0‖",
)


def folded(events: Iterator[Event] | Sequence[Event]) -> AblationState:
    state: AblationState | None = None
    for event in events:
        state = fold(state, event)
    assert state is not None
    return state


def cells(table: str) -> list[dict[str, str]]:
    """The rows of the table of variants, by the place of the columns in its first line."""
    lines = table.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("variant "))
    heads = list(re.finditer(r"\S+(?: \S+)*", lines[first]))
    starts = [head.start() for head in heads]
    rows = []
    for line in lines[first + 1 :]:
        if not line:
            break
        parts = [line[begin:end].strip() for begin, end in zip(starts, [*starts[1:], None], strict=True)]
        rows.append(dict(zip((head[0] for head in heads), parts, strict=True)))
    return rows


def test_a_row_for_every_variant_with_every_column() -> None:
    rows = cells(summary_table(folded(synthetic.events())))
    assert [tuple(row) for row in rows] == [COLUMNS] * len(NAMES)
    assert [row["variant"] for row in rows] == NAMES
    assert NAMES[-1].endswith("[b]"), "brackets must come through as they are"
    gelu = rows[0]
    assert (gelu["status"], gelu["steps"], gelu["test accuracy"]) == ("done", "400", "0.962 ± 0.000")
    for name in COLUMNS[3:]:
        if name != "at step":
            assert re.fullmatch(r"\d+\.\d+ ± \d+\.\d+", gelu[name]), name


def test_numbers_are_means_over_seeds_at_the_end_at_the_start_and_at_the_peak() -> None:
    rising = Alignment(v1=(0.5, 0.7), u1=(0.1, 0.2))
    state = folded(
        msgspec.structs.replace(event, gradient=rising) if isinstance(event, Probe) and event.step else event
        for event in synthetic.events()
    )
    probes = [probe for network in state.of("Res+None") for probe in network.probes()]

    def mean(pairs: Callable[[Probe], Sequence[float | None]], at: int) -> float:
        values = [pairs(probe) for probe in probes if probe.step == at]
        assert len(values) == 3
        return sum(sum(value) / len(value) for value in values) / 3

    row = next(row for row in cells(summary_table(state)) if row["variant"] == "Res+None")
    first = {name: value.split(" ± ")[0] for name, value in row.items()}
    assert first["weight v1"] == f"{mean(lambda probe: probe.weight.v1, 3200):.3f}"
    assert first["weight u1"] == f"{mean(lambda probe: probe.weight.u1, 3200):.3f}"
    assert first["gradient v1 at step 0"] == f"{mean(lambda probe: probe.gradient.v1, 0):.3f}"
    assert first["gradient v1"] == "0.600"
    peak = int(first["at step"])
    assert 0 < peak < 3200
    assert first["peak v1"] == f"{mean(lambda probe: probe.weight.v1, peak):.3f}"
    assert float(first["peak v1"]) == max(round(mean(lambda probe: probe.weight.v1, p.step), 3) for p in probes)


def test_one_seed_has_no_spread_and_what_is_not_there_is_n_a() -> None:
    rows = cells(summary_table(folded(list(synthetic.events(seeds=1, until=0.0)))))
    assert not any("±" in value for row in rows for value in row.values())
    assert {row["test accuracy"] for row in rows} == {"n/a"}
    assert {row["steps"] for row in rows} == {f"0 of {variant.steps}" for variant in EXPERIMENT.variants}
    assert {row["status"] for row in rows} == {"unfinished"}
    nothing = cells(summary_table(folded([next(synthetic.events())])))
    assert {row["status"] for row in nothing} == {"unfinished"}
    assert {value for row in nothing for name, value in row.items() if name not in COLUMNS[:3]} == {"n/a"}


def test_a_variant_that_diverged_says_so() -> None:
    events = list(synthetic.events(until=0.4))
    events.append(NetworkDiverged(variant="Res+None", seed=1, step=77, reason="the loss is not finite"))
    rows = cells(summary_table(folded(events)))
    assert {row["variant"]: row["status"] for row in rows}["Res+None"] == "diverged at step 77 (1 of 3)"


def test_the_reason_why_a_number_is_not_there() -> None:
    events = list(synthetic.events(seeds=1, until=0.0))
    zero = {"update_ratio": None, "missing": {"update_ratio": "W0 is zero"}}
    events.append(synthetic.probe(NAMES.index("Res+None"), 0, 3, **zero))
    assert "Res+None: ‖ΔW‖/‖W0‖ n/a: W0 is zero" in summary_table(folded(events))


def test_the_rest_of_the_summary() -> None:
    text = summary_table(folded(synthetic.events()))
    lines = text.splitlines()
    assert lines[0] == "mlp: synthetic"
    assert lines[1] == ("24 networks, cpu, 2 threads, done after 50 s, 3.2% of the computing time went into probes")
    assert any(line.startswith("chance level: 0.050 (95 % of such means are below 0.0") for line in lines)
    claims = lines[lines.index("claims of the source") + 1 :]
    verdicts = {line.split("  ")[1].strip() for line in claims if line.startswith("  ") and line[2] != " "}
    assert verdicts
    assert verdicts <= {"supported", "not yet", "confounded", "contradicted"}
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_widths_that_differ_have_their_own_chance_levels() -> None:
    narrow = msgspec.structs.replace(EXPERIMENT.variants[0], width=16)
    experiment = msgspec.structs.replace(EXPERIMENT, variants=(narrow, *EXPERIMENT.variants[1:]))
    started = next(synthetic.events())
    assert isinstance(started, RunStarted)
    text = summary_table(folded([msgspec.structs.replace(started, experiment=msgspec.to_builtins(experiment))]))
    levels = {name.split(":")[0]: name for name in text.splitlines() if name.startswith("chance level")}
    assert levels["chance level for Res+GELU"] > "chance level for Res+GELU: 0.1"
    assert "chance level for Res+ReLU, Res+None" in "".join(levels)


@pytest.mark.parametrize("width", [40, 80, 100, 140])
def test_a_terminal_gets_every_column_within_its_width(width: int) -> None:
    state = folded(synthetic.events())
    text = summary_table(state, width)
    rows: dict[str, dict[str, str]] = {}
    for part in text.split("\n\n"):
        if part.startswith("variant "):
            for row in cells(part):
                rows.setdefault(row["variant"], {}).update(row)
    assert list(rows.values()) == cells(summary_table(state))
    assert max(map(cell_len, text.splitlines())) <= max(width, 42)


def test_nothing_of_a_journal_moves_the_cursor() -> None:
    started = next(synthetic.events())
    assert isinstance(started, RunStarted)
    text = summary_table(folded([msgspec.structs.replace(started, device="cpu\x1b[2J\r\x07\u202e")]))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "cpu?[2J????" not in text
    assert "cpu?[2J???" in text


def test_the_list_of_runs() -> None:
    common = {"kind": "ablation", "name": "mlp", "started": 0.0, "size": 1_234_567}
    done = RunSummary(
        folder="b_mlp",
        path="/r/b_mlp",
        state="stopped",
        steps_done=1,
        steps_planned=4,
        headline="24 networks",
        **common,
    )
    broken = RunSummary(
        folder="a_[red]x[/]\x1b", path="/", state="unreadable", steps_done=None, steps_planned=None,
        reason="damaged in line 3", **common,
    )  # fmt: skip
    lines = [re.split(r"  +", line) for line in runs_table([done, broken]).splitlines()]
    assert lines == [
        ["run", "state", "done", "size", "what"],
        ["b_mlp", "stopped", "25%", "1.2 MB", "24 networks"],
        ["a_[red]x[/]?", "unreadable", "n/a", "1.2 MB", "damaged in line 3"],
    ]


@given(st.floats(min_value=0, max_value=1e7))
def test_durations_read_back_to_the_second_or_the_minute(seconds: float) -> None:
    text = duration(seconds)
    units = {"s": 1, "min": 60, "h": 3600}
    parts = re.findall(r"(\d+) (s|min|h)", text)
    assert " ".join(f"{number} {unit}" for number, unit in parts) == text
    found = sum(int(number) * units[unit] for number, unit in parts)
    assert abs(found - seconds) <= (0.5 if seconds < 3599.5 else 60)
    assert all(int(number) < 60 for number, unit in parts if unit != "h")


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the training by given events. One that is a function is called in its place instead."""

    def replace(*events: Event | Callable[[], None]) -> None:
        def fake(experiment: Experiment, device: str) -> Iterator[Event]:
            for event in events:
                if callable(event):
                    event()
                else:
                    yield event

        monkeypatch.setattr(crew, "train", fake)

    return replace


def first(part: float) -> list[Event]:
    """The events up to `part` of the steps, without an end, as a journal gives them back."""
    return journaled(synthetic.events(until=part))


def journaled(events: Iterator[Event]) -> list[Event]:
    return [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in events]


def test_a_run_that_ends_well(train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = journaled(synthetic.events())
    train(*events)
    targets = {"csv": tmp_path / "tables", "json": tmp_path / "all.json", "parquet": tmp_path / "training.parquet"}
    assert run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path), **targets) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == summary_table(folded(events)), "stdout has the results and nothing else"
    assert list(read_events(tmp_path)) == events
    assert read_state(tmp_path) == folded(events)
    assert sorted(path.name for path in targets["csv"].iterdir()) == [
        "claims.csv", "networks.csv", "training.csv", "training_pairs.csv",
    ]  # fmt: skip
    written = json.loads(targets["json"].read_text())
    assert len(written["networks"]) == 24
    found = findings(folded(events))
    assert [(row["claim"], row["variants"], row["verdict"], row["numbers"]) for row in written["claims"]] == [
        (finding.claim, "; ".join(finding.variants), finding.verdict, finding.numbers) for finding in found
    ]
    assert "Res+None" in {row["variants"] for row in written["claims"]}
    assert targets["parquet"].is_file()
    lines = err.splitlines()
    assert lines[0] == f"mlp: kept in {tmp_path}"
    assert "24 networks, 60,000 training images" in lines
    assert f"wrote {targets['json']}" in lines
    assert lines[-1] == f"the run is kept in {tmp_path}"
    parts = [int(line.split("%")[0]) for line in lines if re.match(r" *\d+%  ", line)]
    assert parts == sorted(parts)
    assert parts[-1] == 100
    assert 10 < len(parts) <= 20
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_progress_says_how_far_how_fast_and_how_long(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*synthetic.events())
    run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path))
    assert re.search(r"^ *\d+%  [\d,]+ of 18,000 network-steps  412/s  \d+ s left$", capsys.readouterr().err, re.M)


def test_a_slow_run_says_something_every_minute(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(headless, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ten_seconds() -> None:
        clock[0] += 10

    *started, progress = first(0.0)
    train(*started, *([ten_seconds, progress] * 31), RunFinished(status="done", time=0.0))
    run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  0%  ")]
    assert 4 <= len(lines) <= 5


def test_what_diverges_is_said_at_once(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diverged = NetworkDiverged(variant=NAMES[-1], seed=1, step=77, reason="the loss is not finite")
    train(*first(0.4), diverged, RunFinished(status="done", time=0.0))
    assert run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path)) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert f"warning: {NAMES[-1]}, seed 1, diverged at step 77: the loss is not finite\n" in err
    assert "diverged at step 77 (1 of 3)" in out


def test_a_run_that_fails_still_gives_what_there_is(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    train(*first(0.4), fail)
    with pytest.raises(JobError, match="out of memory") as caught:
        run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path), csv=tmp_path / "t")
    assert str(tmp_path / "error.log") in caught.value.remedy
    assert "RuntimeError" in (tmp_path / "error.log").read_text()
    out, err = capsys.readouterr()
    assert "failed after" in out
    assert [row["variant"] for row in cells(out)] == NAMES
    assert (tmp_path / "t" / "training.csv").is_file()
    assert "Traceback" not in out + err
    *kept, last = read_events(tmp_path)
    assert kept == first(0.4)
    assert isinstance(last, RunFinished)
    assert (last.status, last.problem) == ("failed", str(caught.value))


def test_a_run_that_cannot_begin_prints_no_table(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise InputError("no such device", "use cpu")

    train(refuse)
    with pytest.raises(InputError, match="no such device"):
        run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path))
    assert capsys.readouterr().out == ""


def test_tables_that_cannot_be_written_fail_the_run_after_the_results(
    train: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = journaled(synthetic.events())
    train(*events)
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match="file"):
        run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path), csv=tmp_path / "file" / "tables")
    assert capsys.readouterr().out == summary_table(folded(events))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_a_signal_ends_the_run_in_order(
    train: Callable[..., None],
    number: signal.Signals,
    code: ExitCode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    events = first(0.4)
    train(*events, lambda: signal.raise_signal(number), events[-1], *events)
    assert (
        run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path), json=tmp_path / "t.json") == code
    )
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    out, err = capsys.readouterr()
    assert cells(out) == cells(summary_table(folded(events)))
    assert "stopped after" in out
    assert (tmp_path / "t.json").is_file()
    assert re.search(rf"^interrupted, \d+% done; the run is kept in {re.escape(str(tmp_path))}$", err, re.M)
    *kept, last = read_events(tmp_path)
    # The event in hand when the signal came is kept as well.
    assert kept == [*events, events[-1]]
    assert isinstance(last, RunFinished)
    assert last.status == "stopped"


@pytest.mark.parametrize(
    ("events", "code"),
    [
        (journaled(synthetic.events()), ExitCode.DONE),
        ([*first(0.4), RunFinished(status="failed", time=0.0, problem="no memory", remedy="less")], ExitCode.FAILED),
        ([*first(0.4), RunFinished(status="stopped", time=0.0)], ExitCode.INTERRUPTED),
        (first(0.4), ExitCode.INTERRUPTED),
    ],
)
def test_watching_without_a_screen_prints_the_results_and_says_how_the_run_ended(
    events: list[Event], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    assert watch_run(tmp_path, json=tmp_path / "t.json") == code
    out, err = capsys.readouterr()
    assert out == summary_table(folded(events))
    assert "24 networks, 60,000 training images" in err.splitlines()
    assert (tmp_path / "t.json").is_file()


def test_watching_a_journal_that_is_damaged_in_the_middle_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [msgspec.json.encode(event) + b"\n" for event in first(0.4)]
    (tmp_path / "events.jsonl").write_bytes(b"".join([*lines[:5], b"{broken\n", *lines[5:]]))
    with pytest.raises(InputError, match="is damaged in line 6"):
        watch_run(tmp_path)
    assert capsys.readouterr().out


def test_a_run_that_is_deleted_while_it_is_watched_did_not_end_somehow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in first(0.4)))
    # When it is asked who writes the run, it is gone.
    monkeypatch.setattr("geocont.journal.run_lock.holder", shutil.rmtree)
    with pytest.raises(JobError, match="was deleted while it was watched"):
        watch_run(folder)


def test_an_ignored_signal_stays_ignored(train: Callable[..., None], tmp_path: Path) -> None:
    train(*first(0.4), lambda: signal.raise_signal(signal.SIGINT), RunFinished(status="done", time=0.0))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_ablation(EXPERIMENT, Recording(crew.train(EXPERIMENT, "cpu"), tmp_path)) == ExitCode.DONE
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_empty_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(InputError, match="is empty"):
        read_state(tmp_path)


def test_ascii_keeps_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    write_out("σ1/σ2 2.89 ± 0.04 ‖ΔW‖ ∂ … ☃\n", ascii_only=True)
    assert stream.buffer.getvalue() == b"sigma1/sigma2 2.89 +- 0.04 |dW| d ... \\u2603\n"  # type: ignore[attr-defined]


# Streams of the operating system: in a process of its own. It trains nothing, and needs no torch.
PROGRAM = """
import sys
from pathlib import Path
import synthetic
from geocont.errors import GeocontError
from geocont.runs import Recording
from geocont_tui.headless import run_ablation
def main():
    try:
        return run_ablation(synthetic.experiment(), Recording(synthetic.events(), Path(sys.argv[1])))
    except GeocontError as error:
        print("error:", error, file=sys.stderr)
        print("try:", error.remedy, file=sys.stderr)
        return 1
"""
EXIT = "sys.exit(main())"
RESULTS = summary_table(folded(synthetic.events()))


def environment(**changes: str) -> dict[str, str]:
    # Unbuffered, nothing is left to be flushed at exit, where a stream that is gone shows itself again.
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**clean, "PYTHONPATH": str(Path(synthetic.__file__).parent), "LC_ALL": "C.UTF-8", **changes}


def run(folder: Path, before: str = "", **changes: object) -> subprocess.CompletedProcess[bytes]:
    """Run the program with pipes, or the streams and the environment given."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **changes}
    command = [sys.executable, "-c", f"{PROGRAM}{before}\n{EXIT}", str(folder)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False, **options)  # type: ignore[call-overload]


def last_event(folder: Path) -> Event:
    *_, last = read_events(folder)
    return last


def test_a_pipe_gets_complete_lines_whatever_the_size_of_the_terminal(tmp_path: Path) -> None:
    result = run(tmp_path, env=environment(COLUMNS="40", FORCE_COLOR="1", TERM="xterm-256color"))
    assert result.returncode == 0
    assert result.stdout.decode() == RESULTS
    assert b"\x1b" not in result.stderr


@pytest.mark.parametrize("changes", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_ascii_where_the_reader_cannot_have_more(changes: dict[str, str], tmp_path: Path) -> None:
    result = run(tmp_path, env=environment(**changes))
    assert result.returncode == 0
    text = result.stdout.decode("ascii")
    assert "|dW|/|W0|" in text
    assert "0.962 +- 0.000" in text


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    result = run(tmp_path, stdout=write)
    os.close(write)
    assert result.returncode == 0
    assert result.stderr.decode().splitlines()[-1] == f"the run is kept in {tmp_path}"
    assert b"Error" not in result.stderr


def test_nobody_reading_the_progress_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    result = run(tmp_path, stderr=write)
    os.close(write)
    assert (result.returncode, result.stdout.decode()) == (0, RESULTS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_that_cannot_be_written_are_said_and_kept(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        result = run(tmp_path, stdout=full)
    assert result.returncode == 1
    *_, problem, remedy = result.stderr.decode().splitlines()
    assert problem == "error: the results cannot be written to standard output: No space left on device"
    assert remedy.startswith("try: `geocont-tui export")
    assert last_event(tmp_path).status == "done"  # type: ignore[union-attr]


DEAF = """
import signal, threading, time
all_events = synthetic.events
def deaf():
    yield from all_events(until=0.2)
    Path(sys.argv[1]).with_name("signalled").write_text(str(time.monotonic()))
    for _ in range(COUNT):
        signal.raise_signal(signal.SIGINT)
    threading.Event().wait(60)
synthetic.events = deaf
"""


@pytest.mark.parametrize(("count", "least", "most"), [(1, 3, 5), (2, 0, 1)])
def test_a_second_signal_ends_a_deaf_job_at_once_and_the_first_within_5_seconds(
    count: int, least: float, most: float, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    result = run(folder, DEAF.replace("COUNT", str(count)))
    # From the signal on, which another process has timed with the same clock.
    assert least < time.monotonic() - float((tmp_path / "signalled").read_text()) < most + 4
    assert result.returncode == 130
    assert list(read_events(folder)) == first(0.2)


def test_a_full_disk_ends_the_run_and_what_was_written_reads_back(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"
    result = run(tmp_path, limit)
    assert result.returncode == 1
    lines = result.stderr.decode().splitlines()
    assert lines[-2].startswith(f"error: the journal {tmp_path / 'events.jsonl'} cannot be written: File too large")
    assert "--run-dir" in lines[-1]
    kept = list(read_events(tmp_path))
    assert kept == journaled(synthetic.events())[: len(kept)]
    assert len(kept) > 100
    assert [row["variant"] for row in cells(result.stdout.decode())] == NAMES
    assert "failed after" in result.stdout.decode()


def in_terminal(folder: Path, term: str, *streams: str) -> tuple[str, subprocess.CompletedProcess[bytes]]:
    """What comes out of a pseudo-terminal of 80 columns that is given as `streams`, and the rest."""
    parent, child = pty.openpty()
    taken: list[bytes] = []
    process = subprocess.Popen(
        [sys.executable, "-c", f"{PROGRAM}\n{EXIT}", str(folder)],
        stdin=subprocess.DEVNULL,
        env=environment(TERM=term, COLUMNS="80"),
        **{name: child if name in streams else subprocess.PIPE for name in ("stdout", "stderr")},  # type: ignore[call-overload]
    )
    os.close(child)
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        taken.append(piece)
    out, err = process.communicate(timeout=60)
    os.close(parent)
    return b"".join(taken).decode(), subprocess.CompletedProcess([], process.returncode, out, err)


def test_a_terminal_gets_a_bar_and_the_pipe_beside_it_plain_data(tmp_path: Path) -> None:
    shown, result = in_terminal(tmp_path, "xterm-256color", "stderr")
    assert (result.returncode, result.stdout.decode()) == (0, RESULTS)
    assert "\x1b[" in shown
    assert "━" in shown
    assert "100%" in shown
    assert "18,000 of 18,000 network-steps" in shown


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    shown, result = in_terminal(tmp_path, "dumb", "stderr")
    assert result.returncode == 0
    assert "\x1b" not in shown
    assert re.search(r"^ 50%  ", shown, re.M)


def test_a_terminal_gets_tables_that_fit(tmp_path: Path) -> None:
    shown, result = in_terminal(tmp_path, "xterm-256color", "stdout")
    assert result.returncode == 0
    assert shown.replace("\r\n", "\n") == summary_table(folded(synthetic.events()), 80)


TINY = ("--seeds", "1", "--set", "defaults.width=16", "--set", "defaults.depth=3", "--set", "data.images=2000")


def ablate(*arguments: str) -> "subprocess.Popen[str]":
    """The real program, without a screen, on a small experiment."""
    return subprocess.Popen(
        [sys.executable, "-m", "geocont_tui", "ablate", "mlp", *TINY, "--device", "cpu", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=Path(synthetic.__file__).parents[1],
    )


def test_the_program_trains_and_prints(tmp_path: Path) -> None:
    process = ablate("--steps", "6", "--run-dir", str(tmp_path), "--csv", str(tmp_path / "tables"))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (folder,) = (path for path in tmp_path.iterdir() if path.name != "tables")
    assert out == summary_table(read_state(folder))
    assert {row["status"] for row in cells(out)} == {"done"}
    assert (tmp_path / "tables" / "training_pairs.csv").is_file()
    assert err.splitlines()[-1] == f"the run is kept in {folder}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_complete_journal_and_says_where(number: signal.Signals, tmp_path: Path) -> None:
    process = ablate("--steps", "1000000", "--run-dir", str(tmp_path))
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "training images" in line:
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, "".join(said) + err
    (folder,) = tmp_path.iterdir()
    last = last_event(folder)
    assert isinstance(last, RunFinished)
    assert last.status == "stopped"
    assert out == summary_table(read_state(folder))
    assert f"the run is kept in {folder}" in err
    assert "Traceback" not in err
