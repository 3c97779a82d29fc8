"""Which projections of a pretrained model show continuity, in which space, and how that compares with the source.

arXiv 2605.04971 finds v1 aligned from layer to layer in Q, K, Gate and Up, u1 in O and Down, and V low. Nothing here
takes that for a law: a projection shows continuity where the mean |cos| of its adjacent pairs is above the 95 % band of
means over so many independent random pairs, and not otherwise.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from geocont import chance
from geocont.claims import Finding
from geocont.events import MatrixPlan, PairMeasured

Side = Literal["v", "u"]

_EXPECTED: Mapping[str, Side] = {"q": "v", "k": "v", "gate": "v", "up": "v", "o": "u", "down": "u"}
# V counts as low under this part of the mean of Q and K.
_LOW = 0.5
# Pairs under which the band of chance says little.
_FEWEST_PAIRS = 3


@dataclass(frozen=True)
class Level:
    """The adjacent pairs of one projection in one space: mean |cos|, how many have one, and the band of chance."""

    mean: float
    pairs: int
    chance: float
    band: tuple[float, float]

    @property
    def is_above_chance(self) -> bool:
        return self.mean > self.band[1]

    @property
    def is_clear(self) -> bool:
        """Above chance by so much that it can matter: many pairs in a large space tell 0.013 from 0.012."""
        return self.is_above_chance and self.mean >= 2 * self.chance

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.mean >= 0.1 else f"{self.mean:.3f}"


def level(pairs: Iterable[PairMeasured], side: Side) -> Level | None:
    """The mean over the pairs of one projection that have a cosine on `side`; None where none has."""
    found = [
        (cosine, dimension)
        for pair in pairs
        for cosine, dimension in [(pair.v1_cosine, pair.v_dim) if side == "v" else (pair.u1_cosine, pair.u_dim)]
        if cosine is not None and dimension is not None
    ]
    if not found:
        return None
    # Layers may differ in size; the smallest space has the highest chance level.
    dimension = min(size for _, size in found)
    return Level(
        statistics.fmean(cosine for cosine, _ in found),
        len(found),
        chance.mean_cosine(dimension),
        chance.band_of_mean(dimension, len(found)),
    )


def judge(matrices: Sequence[MatrixPlan], pairs: Sequence[PairMeasured]) -> tuple[Finding, ...]:
    """What the pairs so far say, a finding a stack and question; partial runs say how many pairs they rest on.

    Verdicts: "supported" and "contradicted" are about the source's pattern, "not yet" says that pairs are missing, and
    "confounded" that there is nothing to judge by (no v1 is unique, too few pairs).
    """
    findings: list[Finding] = []
    stacks = list(dict.fromkeys(plan.stack for plan in matrices))
    for stack in stacks:
        where = f" ({stack})" if len(stacks) > 1 else ""
        rows: dict[str, list[PairMeasured]] = {}
        planned: dict[str, int] = {}
        for plan in matrices:
            if plan.stack == stack:
                rows.setdefault(plan.projection, [])
                planned[plan.projection] = planned.get(plan.projection, -1) + 1
        for pair in pairs:
            if pair.stack == stack:
                rows.setdefault(pair.projection, []).append(pair)
        readers = [name for name in rows if _EXPECTED.get(_plain(name)) == "v"]
        writers = [name for name in rows if _EXPECTED.get(_plain(name)) == "u"]
        if readers:
            findings.append(_aligned(f"readers align in v1{where}", "v", readers, rows, planned))
        if writers:
            findings.append(_aligned(f"writers align in u1{where}", "u", writers, rows, planned))
        for value in (name for name in rows if _plain(name) == "v"):
            findings.append(_value_is_low(f"{value} is low in v1{where}", value, rows, planned))
        findings += _elsewhere(where, rows)
    return tuple(findings)


def _aligned(
    claim: str, side: Side, names: Sequence[str], rows: Mapping[str, Sequence[PairMeasured]], planned: Mapping[str, int]
) -> Finding:
    levels = {name: level(rows[name], side) for name in names}
    known = {name: found for name, found in levels.items() if found is not None}
    numbers = _numbers(known)
    unfinished = _unfinished(names, rows, planned)
    if not known:
        if unfinished:
            return Finding(claim=claim, verdict="not yet", numbers="not measured yet")
        reason = f"no pair has the cosine: {_reasons(pair for name in names for pair in rows[name])}"
        return Finding(claim=claim, verdict="confounded", numbers="n/a", reason=reason)
    low = [name for name, found in known.items() if not found.is_above_chance]
    weak = [name for name, found in known.items() if found.is_above_chance and not found.is_clear]
    parts = [f"at chance: {', '.join(low)}"] if low else []
    parts += [f"hardly above chance: {', '.join(weak)}"] if weak else []
    parts += [f"n/a: {', '.join(name for name in names if name not in known)}"] if len(known) < len(names) else []
    parts += _left_out(names, rows, side)
    if unfinished:
        return Finding(claim=claim, verdict="not yet", numbers=numbers, reason="; ".join([unfinished, *parts]))
    if all(found.pairs < _FEWEST_PAIRS for found in known.values()):
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=_too_few(known.values()))
    verdict: Literal["supported", "contradicted"] = "contradicted" if low or weak else "supported"
    return Finding(claim=claim, verdict=verdict, numbers=numbers, reason="; ".join(parts))


def _value_is_low(
    claim: str, value: str, rows: Mapping[str, Sequence[PairMeasured]], planned: Mapping[str, int]
) -> Finding:
    others = [name for name in rows if _plain(name) in ("q", "k")]
    names = [value, *others]
    levels = {name: level(rows[name], "v") for name in names}
    known = {name: found for name, found in levels.items() if found is not None}
    unfinished = _unfinished(names, rows, planned)
    if unfinished:
        return Finding(claim=claim, verdict="not yet", numbers=_numbers(known) or "not measured yet", reason=unfinished)
    if value not in known:
        reason = f"no pair has the cosine: {_reasons(rows[value])}"
        return Finding(claim=claim, verdict="confounded", numbers="n/a", reason=reason)
    compared = [found.mean for name, found in known.items() if name != value and found.is_above_chance]
    numbers = _numbers(known)
    if known[value].pairs < _FEWEST_PAIRS:
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason=_too_few([known[value]]))
    if not known[value].is_above_chance:
        return Finding(claim=claim, verdict="supported", numbers=numbers, reason="at chance")
    if not compared:
        return Finding(claim=claim, verdict="confounded", numbers=numbers, reason="no Q or K above chance beside it")
    part = known[value].mean / statistics.fmean(compared)
    reason = f"above chance, {part:.0%} of the mean of {' and '.join(others)}".replace("%", " %")
    return Finding(claim=claim, verdict="supported" if part < _LOW else "contradicted", numbers=numbers, reason=reason)


def _too_few(levels: Iterable[Level]) -> str:
    most = max(found.pairs for found in levels)
    return f"{most} pair{'s' if most > 1 else ''} a projection {'are' if most > 1 else 'is'} too few to judge by"


def _elsewhere(where: str, rows: Mapping[str, Sequence[PairMeasured]]) -> list[Finding]:
    """Continuity that the source's pattern does not name: other projections, and the side away from the residual."""
    found: dict[str, str] = {}
    for name, pairs in rows.items():
        for side in ("v", "u"):
            if _EXPECTED.get(_plain(name)) == side or (_plain(name) == "v" and side == "v"):
                continue
            here = level(pairs, side)
            if (
                here is not None
                and here.pairs >= _FEWEST_PAIRS
                and here.is_above_chance
                and here.mean > 2 * here.chance
            ):
                found[f"{name} {side}1"] = str(here)
    if not found:
        return []
    numbers = ", ".join(f"{name} {value}" for name, value in found.items())
    return [
        Finding(
            claim=f"also above twice chance{where}",
            verdict="supported",
            numbers=numbers,
            reason="not part of the source's pattern",
        )
    ]


def _plain(projection: str) -> str:
    return projection.casefold().removesuffix("[e]").removeprefix("shared_")


def _numbers(levels: Mapping[str, Level]) -> str:
    if not levels:
        return ""
    low, high = min(found.chance for found in levels.values()), max(found.chance for found in levels.values())
    level_text = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f}…{high:.3f}"
    return ", ".join(f"{name} {found}" for name, found in levels.items()) + f"; chance {level_text}"


def _unfinished(names: Sequence[str], rows: Mapping[str, Sequence[PairMeasured]], planned: Mapping[str, int]) -> str:
    done, total = sum(len(rows[name]) for name in names), sum(planned.get(name, 0) for name in names)
    return f"{done} of {total} pairs" if done < total else ""


def _left_out(names: Sequence[str], rows: Mapping[str, Sequence[PairMeasured]], side: Side) -> list[str]:
    pairs = [pair for name in names for pair in rows[name]]
    missing = [pair for pair in pairs if (pair.v1_cosine if side == "v" else pair.u1_cosine) is None]
    return [f"{len(missing)} of {len(pairs)} pairs left out: {_reasons(missing)}"] if missing else []


def _reasons(pairs: Iterable[PairMeasured]) -> str:
    statuses = sorted({pair.status for pair in pairs})
    return ", ".join(status.replace("_", " ") for status in statuses) or "there are none"
