import copy
import math

import msgspec
import pytest
from geocont import chance
from geocont.ablations.experiment import Data, Experiment, Normal, Probes, Variant
from geocont.ablations.training import train
from geocont.events import (
    Event,
    Message,
    NetworkDiverged,
    NetworkPlan,
    NetworkProgress,
    Probe,
    Progress,
    RunContinued,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
)
from hypothesis import given
from hypothesis import strategies as st

from geocont_tui import state as states

EXPERIMENT = Experiment(
    name="small",
    seeds=2,
    data=Data(images=300),
    probes=Probes(leading=3),
    variants=tuple(
        Variant(depth=3, width=8, batch_size=16, initialization=Normal(std=0.1), steps=12, **settings)
        for settings in ({"name": "GELU"}, {"name": "None [x]", "activation": "none"})
    ),
)


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(train(EXPERIMENT, "cpu"))


def folded(events: list[Event]) -> states.AblationState:
    state = None
    for event in events:
        state = states.fold(state, event)
    return state


def test_a_replayed_journal_gives_the_state_of_the_live_run(events):
    replayed = [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event in events]
    assert folded(events) == folded(replayed)
    assert folded(events).status == "done"
    assert folded(events).progress == 1
    assert folded(events).experiment == EXPERIMENT


def test_fold_leaves_the_state_before_as_it_was(events):
    state = None
    for event in events:
        before = copy.deepcopy(state) if state is None else (dict(state.networks), state.messages, state.status)
        after = states.fold(state, event)
        if state is not None:
            assert (dict(state.networks), state.messages, state.status) == before
        state = after


def test_a_run_begins_with_its_start(events):
    with pytest.raises(ValueError, match="RunStarted"):
        states.fold(None, events[1])


def test_the_trajectory_is_the_mean_over_pairs_and_seeds_with_the_sample_deviation_as_band(events):
    found = states.trajectory(folded(events), "GELU", states.WEIGHT_V1)
    probes = [event for event in events if isinstance(event, Probe) and event.variant == "GELU"]
    assert found.steps == tuple(sorted({probe.step for probe in probes}))
    first = [sum(probe.weight.v1) / 2 for probe in probes if probe.step == 0]
    assert found.mean[0] == pytest.approx(sum(first) / 2)
    assert found.high[0] - found.mean[0] == pytest.approx(abs(first[0] - first[1]) / math.sqrt(2))
    assert found.low[0] == pytest.approx(2 * found.mean[0] - found.high[0])
    assert set(found.seeds) == {0, 1}
    update = states.trajectory(folded(events), "GELU", states.Quantity("update", "v1"))
    assert update.mean[0] is None
    assert update.mean[1] is not None


def test_a_step_that_only_some_seeds_have_reached_is_left_out_of_the_mean(events):
    partial = [event for event in events if not (isinstance(event, Probe) and event.seed == 1 and event.step > 1)]
    found = states.trajectory(folded(partial), "GELU", states.WEIGHT_V1)
    assert max(found.steps) == 1
    assert states.summary(folded(partial), "GELU").weight_v1.count == 2


def test_the_summary_and_the_bars_speak_of_the_latest_common_probe(events):
    state = folded(events)
    summary = states.summary(state, "None [x]")
    last = [e for e in events if isinstance(e, Probe) and e.variant == "None [x]" and e.step == 12]
    assert summary.weight_v1.mean == pytest.approx(sum(sum(p.weight.v1) / 2 for p in last) / 2)
    assert states.now(state, "None [x]", states.WEIGHT_V1)[1] == pytest.approx(sum(p.weight.v1[1] for p in last) / 2)
    assert summary.status == "done"
    assert summary.activation_factor is None
    assert states.missing(state, "None [x]", "activation_factor") == "the activation is not radial"
    assert summary.below_peak <= 0
    assert states.chance_level(state, "GELU", states.WEIGHT_V1) == (
        chance.mean_cosine(8),
        chance.band_of_mean(8, 4)[1],
    )


def test_divergence_messages_and_the_end_are_kept():
    start = RunStarted(
        name="x",
        experiment=msgspec.to_builtins(EXPERIMENT),
        networks=tuple(NetworkPlan(variant="GELU", seed=seed, steps=12) for seed in (0, 1)),
        device="cpu:1",
        versions={},
        time=5.0,
    )
    state = folded(
        [
            start,
            Message(level="info", text="hello [bold]", time=6.0),
            Progress(
                networks=(NetworkProgress(variant="GELU", seed=0, step=6, loss=None),),
                elapsed=2.0,
                steps_per_second=3.0,
                probe_share=None,
            ),
            NetworkDiverged(variant="GELU", seed=1, step=4, reason="loss"),
        ]
    )
    assert state.progress == pytest.approx(1 - 6 / 24)
    assert state.eta == pytest.approx(2.0)
    assert states.summary(state, "GELU").status == "diverged at step 4 (1 of 2)"
    assert states.summary(state, "GELU").weight_v1 is None
    assert [message.text for message in state.messages] == ["started on cpu:1", "hello [bold]"]
    failed = states.fold(state, RunFinished(status="failed", time=9.0, problem="p", remedy="r"))
    assert (failed.status, failed.problem, failed.remedy, failed.eta, failed.elapsed) == ("failed", "p", "r", None, 2.0)


def test_the_log_says_when_a_run_stood_still_and_where_it_went_on(events):
    stopped = [
        RunPaused(time=6.0),
        RunResumed(time=7.0),
        RunFinished(status="stopped", time=8.0),
        RunContinued(device="cpu:2", versions={}, time=9.0),
    ]
    said = [(message.text, message.time) for message in folded([events[0], *stopped]).messages[1:]]
    assert said == [("paused", 6.0), ("went on", 7.0), ("stopped", 8.0), ("resumed on cpu:2", 9.0)]


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=6))
def test_spreads_leave_out_what_does_not_exist(values):
    present = [value for value in values if value is not None and math.isfinite(value)]
    found = states.spread(values)
    assert (found is None) == (not present)
    if found:
        assert found.count == len(present)
        assert (found.std is None) == (len(present) == 1)
