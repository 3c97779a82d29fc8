"""The fold over the events of an analysis, and the numbers made from it."""

import statistics
from collections.abc import Iterable

import msgspec
import pytest
import synthetic
import synthetic_analysis
from geocont import chance
from geocont.events import AnalysisProgress, Event, PairMeasured, RunFinished

from geocont_tui import analysis_state as states
from geocont_tui.analysis_state import AnalysisState, fold, opening


def folded(events: Iterable[Event]) -> AnalysisState:
    state = None
    for event in events:
        state = fold(state, event)
    assert state is not None
    return state


WHOLE = folded(synthetic_analysis.events())
ODD = folded(synthetic_analysis.awkward_events())


def test_before_the_first_event_only_the_model_is_known():
    state = opening("org/[model]")
    assert (state.model, state.status, state.progress, state.eta, state.planned) == (
        "org/[model]", "starting", 0.0, None, 0,
    )  # fmt: skip


def test_rows_are_the_projections_in_the_order_of_the_plan():
    assert [row.label for row in WHOLE.rows.values()] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert [row.label for row in ODD.rows.values()] == [
        "text gate[E]", "text down[E]", "text up", "text q", "vision [tower] qkv", "vision [tower] o",
    ]  # fmt: skip
    assert WHOLE.layers == tuple(range(32))
    assert (WHOLE.planned, WHOLE.measured, WHOLE.over, WHOLE.progress) == (224, 224, 224, 1.0)


def test_a_mean_is_over_the_adjacent_pairs_that_exist():
    row = WHOLE.rows["text", "v"]
    found = states.summary(row, "v")
    assert found is not None
    values = [pair.v1_cosine for pair in row.pairs.values() if pair.v1_cosine is not None]
    assert len(values) == 27
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert (found.low, found.high, found.count) == (min(values), max(values), 27)
    assert found.chance == pytest.approx(chance.mean_cosine(4096))
    assert found.limit == pytest.approx(chance.band_of_mean(4096, 27)[1])
    assert states.left_out(row, "v") == {"not unique": 4}
    assert states.flagged(row) == 4
    assert states.done_pairs(row) == 31


def test_what_is_private_and_differs_leaves_the_residual_side():
    row = ODD.rows["text", "up"]
    assert states.left_out(row, "u") == {"shapes differ": 1}
    assert states.left_out(row, "v") == {}
    assert states.summary(row, "v").count == 11
    assert states.summary(row, "u").count == 10
    assert states.summary(row, "u").chance == pytest.approx(
        (5 * chance.mean_cosine(1024) + 5 * chance.mean_cosine(768)) / 10
    )


def test_what_was_refused_in_the_plan_counts_as_over_and_as_left_out():
    row = ODD.rows["vision [tower]", "qkv"]
    assert states.summary(row, "v") is None
    assert states.left_out(row, "v") == {"not split": 5}
    assert (states.done_pairs(row), states.flagged(row)) == (5, 5)
    down = ODD.rows["text", "down[E]"]
    assert states.left_out(down, "u") == {"quantised, refused": 3}
    assert down.is_quantized
    assert not ODD.rows["text", "up"].is_quantized


def test_gaps_of_a_hybrid_are_pairs_of_the_layers_that_have_it():
    row = ODD.rows["text", "q"]
    assert row.adjacent == ((3, 7), (7, 11))
    assert set(row.pairs) == {(3, 7), (7, 11)}


def test_every_pair_of_layers_has_its_cosine():
    row = WHOLE.rows["text", "q"]
    every = states.all_cosines(row, "v")
    assert len(every) == 32 * 31 // 2
    assert every[3, 4] == row.pairs[3, 4].v1_cosine
    place = row.matrices[9].others.index(2)
    assert every[2, 9] == row.matrices[9].v1_cosines[place]
    assert states.all_cosines(row, "u")[2, 9] == row.matrices[9].u1_cosines[place]


def test_progress_and_what_is_left_go_by_bytes():
    events = list(synthetic_analysis.events(until=0.5))
    half = folded(events)
    assert half.over == 112
    assert half.progress == pytest.approx(0.5)
    assert half.eta == pytest.approx(half.bytes / 2 / 410e6)
    assert half.status == "running"
    assert half.bytes_read == pytest.approx(half.bytes / 2)
    slow = fold(half, AnalysisProgress(matrices=112, bytes_read=1, elapsed=1.0, bytes_per_second=None))
    assert slow.eta is None


def test_a_fold_leaves_the_state_before_as_it_was_and_survives_the_journal():
    before = folded(synthetic_analysis.events(until=0.3))
    text = repr(before)
    for event in synthetic_analysis.events(until=0.5):
        if isinstance(event, PairMeasured):
            fold(before, event)
    assert repr(before) == text
    journal = [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in synthetic_analysis.events()]
    assert folded(journal) == WHOLE


def test_a_failure_is_in_the_log_too():
    failed = fold(WHOLE, RunFinished(status="failed", time=1.0, problem="no disk", remedy="free some"))
    assert (failed.status, failed.problem, failed.remedy) == ("failed", "no disk", "free some")
    assert failed.messages[-1].text == "no disk; free some"


def test_events_that_do_not_belong_are_refused():
    with pytest.raises(ValueError, match="begins"):
        fold(None, RunFinished(status="done", time=0.0))
    with pytest.raises(ValueError, match="RunStarted"):
        fold(WHOLE, next(synthetic.events()))
