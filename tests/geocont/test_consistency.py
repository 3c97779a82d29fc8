"""A journal whose events do not fit together is refused by its line, and nothing in it counts twice."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
import synthetic
import synthetic_analysis
from geocont.consistency import Consistency
from geocont.errors import InputError
from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    NetworkFinished,
    PairMeasured,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)
from geocont.journal import JOURNAL, follow, journaled, read_events, thinned_events
from geocont.runs import list_runs

from geocont_tui import cli

ABLATION = list(synthetic.events(seeds=2))
ANALYSIS = list(synthetic_analysis.events())


def first(kind: type[Event], events: list[Event] = ABLATION) -> Any:
    return next(event for event in events if isinstance(event, kind))


def changed(kind: type[Event], events: list[Event] = ABLATION, **changes: Any) -> list[Event]:
    """The events with the first of a kind changed."""
    return [msgspec.structs.replace(one, **changes) if one is first(kind, events) else one for one in events]


def write(folder: Path, events: list[Event]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / JOURNAL).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return folder


PLAN = first(RunStarted).networks[0]
BAD: dict[str, tuple[list[Event], str]] = {
    "a network that there is not": (changed(Probe, variant="Ghost"), "the run has no network 'Ghost' with seed 0"),
    "a seed that there is not": (changed(NetworkFinished, seed=9), "with seed 9"),
    "a step beyond the last": (changed(Probe, step=10**30), "which has 400"),
    "a step before the first": (changed(Probe, step=-1), "step -1 of 'Res+GELU'"),
    "a position that there is not": (
        changed(Progress, networks=(msgspec.structs.replace(first(Progress).networks[0], variant="Ghost"),)),
        "'Ghost'",
    ),
    "no networks": (changed(RunStarted, networks=()), "it has no networks, one without steps, or one twice"),
    "no steps": (changed(RunStarted, networks=(msgspec.structs.replace(PLAN, steps=0),)), "one without steps"),
    "a network twice": (changed(RunStarted, networks=(PLAN, PLAN)), "or one twice"),
    "a variant that there is not": (
        changed(RunStarted, networks=(msgspec.structs.replace(PLAN, variant="Ghost"),)),
        "its experiment has no variant 'Ghost'",
    ),
    "a second start": ([*ABLATION[:9], ABLATION[0], *ABLATION[9:]], "the run begins a second time"),
    "an analysis in a training": ([*ABLATION[:9], first(MatrixMeasured, ANALYSIS)], "the run analyses no model"),
    "its progress": ([*ABLATION[:9], first(AnalysisProgress, ANALYSIS)], "the run analyses no model"),
    "a training in an analysis": ([*ANALYSIS[:9], first(Probe)], "the run trains no networks"),
    "no matrices": (changed(AnalysisStarted, ANALYSIS, matrices=()), "the analysis has no matrices"),
    "a layer that there is not": (changed(MatrixMeasured, ANALYSIS, layer=99), "in layer 99"),
    "a pair that there is not": (changed(PairMeasured, ANALYSIS, layer_b=99), "in layer 99"),
    "cosines with nobody": (changed(MatrixMeasured, ANALYSIS, v1_cosines=(0.5,)), "not as many cosines"),
}


@pytest.mark.parametrize("read", [read_events, thinned_events, follow, journaled])
@pytest.mark.parametrize(("events", "problem"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_named_with_its_line(tmp_path, events, problem, read: Callable[[Path], Any]):
    write(tmp_path, events)
    with pytest.raises(InputError) as refused:
        # What `journaled` returns is reached in no case.
        list(read(tmp_path))
    assert problem in str(refused.value)
    assert f"{tmp_path / JOURNAL} is damaged in line " in str(refused.value)
    assert "restore the file" in refused.value.remedy


@pytest.mark.parametrize(("events", "problem"), BAD.values(), ids=BAD)
def test_every_command_says_it_in_two_lines_and_the_other_runs_are_still_listed(
    tmp_path, events, problem, capfd: pytest.CaptureFixture[str]
):
    write(tmp_path / "bad", events)
    write(tmp_path / "good", ABLATION)
    for command in (["export", "bad"], ["export", "bad", "--parquet", str(tmp_path / "tables")], ["resume", "bad"]):
        assert cli.run([*command, "--run-dir", str(tmp_path)]) == 2
        problem_line, remedy_line = capfd.readouterr().err.splitlines()
        assert problem in problem_line
        assert remedy_line.startswith("  try: restore the file")
    bad, good = sorted(list_runs(tmp_path), key=lambda run: run.folder)
    assert (bad.state, good.state) == ("unreadable", "done")
    assert problem in (bad.reason or "")


@pytest.mark.parametrize("events", [ABLATION, ANALYSIS], ids=["ablation", "analysis"])
def test_what_a_run_has_once_counts_once(tmp_path, events):
    doubled = [one for event in events[1:] for one in ([event, event] if measured(event) else [event])]
    found = list(read_events(write(tmp_path, [events[0], *doubled])))
    assert list(map(msgspec.json.encode, found)) == list(map(msgspec.json.encode, events))


def measured(event: Event) -> bool:
    return isinstance(event, Probe | NetworkFinished | MatrixMeasured | PairMeasured)


@pytest.mark.parametrize("events", [ABLATION, ANALYSIS], ids=["ablation", "analysis"])
def test_what_fits_is_taken_up_to_wherever_it_ends(events):
    for count in range(0, len(events), 7):
        run = Consistency()
        assert not any(run.problem(event) or run.is_repeated(event) for event in islice(events, count))
    assert isinstance(events[-1], RunFinished)


def test_an_experiment_that_was_edited_is_refused(tmp_path, capfd: pytest.CaptureFixture[str]):
    experiment = first(RunStarted).experiment
    write(tmp_path / "run", changed(RunStarted, experiment=experiment | {"seeds": "many"})[:-1])
    for command in ("export", "resume"):
        assert cli.run([command, str(tmp_path / "run")]) == 2
        err = capfd.readouterr().err
        assert "the experiment of the run cannot be read" in err
        assert "bug" not in err
