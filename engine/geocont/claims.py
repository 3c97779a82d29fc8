"""What the source claims (arXiv 2605.04971), and what the numbers so far say about it."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from geocont.ablations.experiment import Experiment
from geocont.events import NetworkFinished, Probe

Verdict = Literal["supported", "not yet", "confounded", "contradicted"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of the source, the numbers so far, and one word for how they stand to each other."""

    claim: str
    verdict: Verdict
    numbers: str
    reason: str = ""


def judge(
    experiment: Experiment,
    probes: Mapping[tuple[str, int], Sequence[Probe]],
    finished: Mapping[tuple[str, int], NetworkFinished],
) -> tuple[Finding, ...]:
    """Judge every claim that `experiment` puts to the test. Both mappings are keyed by (variant, seed)."""
    return ()
