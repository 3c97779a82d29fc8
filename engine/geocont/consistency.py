"""Whether the events of a journal fit together: each must belong to the run that the first one begins.

    run = Consistency()
    run.problem(event)      what is wrong with the next event, "" if it fits
    run.is_repeated(event)  whether it says what an earlier event has said

A journal may have been edited, or written by two processes on a file system without locks.
"""

from collections.abc import Iterable

from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    NetworkDiverged,
    NetworkFinished,
    PairMeasured,
    Probe,
    Progress,
    RunStarted,
)


class Consistency:
    """What is known of a run from its events so far."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], int] | None = None
        self._matrices: set[tuple[str, str, int]] | None = None
        self._measured: set[tuple[str | int, ...]] = set()
        self._probed: dict[tuple[str, int, str], int] = {}

    def problem(self, event: Event) -> str:
        """Why the event cannot be one of this run; "" if it can."""
        match event:
            case RunStarted() | AnalysisStarted():
                return self._begin(event)
            case Probe() | NetworkFinished() | NetworkDiverged():
                return self._of_networks([(event.variant, event.seed, event.step)])
            case Progress():
                return self._of_networks((network.variant, network.seed, network.step) for network in event.networks)
            case MatrixMeasured():
                if not len(event.others) == len(event.v1_cosines) == len(event.u1_cosines):
                    return "it has not as many cosines as layers to compare with"
                return self._of_matrices(event.stack, event.projection, event.layer, *event.others)
            case PairMeasured():
                return self._of_matrices(event.stack, event.projection, event.layer_a, event.layer_b)
            case AnalysisProgress():
                return self._of_matrices("", "")
            case _:
                return ""

    def is_repeated(self, event: Event) -> bool:
        """Whether an earlier event has said the same. A network's measurements come in the order of its steps."""
        name: tuple[str | int, ...]
        match event:
            case Probe():
                series = (event.variant, event.seed, event.projection)
                if event.step <= self._probed.get(series, -1):
                    return True
                self._probed[series] = event.step
                return False
            case NetworkFinished() | NetworkDiverged():
                name = event.variant, event.seed
            case MatrixMeasured():
                name = event.stack, event.projection, event.layer
            case PairMeasured():
                name = event.stack, event.projection, event.layer_a, event.layer_b
            case _:
                return False
        is_known = name in self._measured
        self._measured.add(name)
        return is_known

    def _begin(self, started: RunStarted | AnalysisStarted) -> str:
        if self._steps is not None or self._matrices is not None:
            return "the run begins a second time"
        if isinstance(started, AnalysisStarted):
            self._matrices = {(plan.stack, plan.projection, plan.layer) for plan in started.matrices}
            return "" if self._matrices else "the analysis has no matrices"
        self._steps = {(network.variant, network.seed): network.steps for network in started.networks}
        variants = started.experiment.get("variants", ())
        names = {variant.get("name") for variant in variants if isinstance(variant, dict)}
        unknown = [variant for variant, _ in self._steps if variant not in names]
        if names and unknown:
            return f"its experiment has no variant {unknown[0]!r}"
        if not self._steps or min(self._steps.values()) < 1 or len(self._steps) < len(started.networks):
            return "it has no networks, one without steps, or one twice"
        return ""

    def _of_networks(self, positions: Iterable[tuple[str, int, int]]) -> str:
        if self._steps is None:
            return "the run trains no networks"
        for variant, seed, step in positions:
            planned = self._steps.get((variant, seed))
            if planned is None:
                return f"the run has no network {variant!r} with seed {seed}"
            if not 0 <= step <= planned:
                return f"step {step} of {variant!r}, which has {planned}"
        return ""

    def _of_matrices(self, stack: str, projection: str, *layers: int) -> str:
        if self._matrices is None:
            return "the run analyses no model"
        for layer in layers:
            if (stack, projection, layer) not in self._matrices:
                return f"the model has no {projection!r} in layer {layer} of {stack!r}"
        return ""
