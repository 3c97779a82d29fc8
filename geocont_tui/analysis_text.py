"""An analysis as text for stdout: its results, a row a projection, and its plan. Pure functions of the state.

analysis_table(state, width) -> str      plan_table(state, width) -> str
"""

from collections import Counter

from geocont.events import Status

from geocont_tui import analysis_state as states
from geocont_tui.analysis_state import AnalysisState, Cosines, Row
from geocont_tui.plain_text import duration, printable, size, tables, wrapped

_SIDES = {"v": "v1", "u": "u1", "both": "v1 and u1", "none": "none"}
_SHOWN = 3


def analysis_table(state: AnalysisState, width: int | None = None) -> str:
    """The results: per projection mean, least and greatest |cos| of v1 and u1, chance, pairs and those flagged.

    Args:
        state: the analysis, over or not.
        width: columns of the terminal; what is wider goes on in a further table, text is wrapped. None: no limit.
    """
    word = {"running": "not finished", "done": "done"}.get(state.status, state.status)
    facts = [f"{state.over} of {state.planned} matrices", state.source, state.device]
    facts.append(f"{word} after {duration(state.elapsed)}")
    blocks = [
        wrapped([_head(state), ", ".join(facts)], width),
        *tables([_row(row) for row in state.rows.values()], width),
        wrapped(_notes(state), width),
        ["what this shows, compared with the source", *_findings(state, width)],
    ]
    return printable("\n\n".join("\n".join(block) for block in blocks) + "\n")


def plan_table(state: AnalysisState, width: int | None = None) -> str:
    """What will be read: per projection its layers, shape, storage, size, side and rule, and what is left out."""
    refused = state.planned - sum(_usable(row) for row in state.rows.values())
    facts = [f"to be read: {state.planned - refused} matrices, {size(state.bytes)}", state.source, state.device]
    if refused:
        facts.append(f"{refused} refused")
    skipped = [f"{each.count} {each.name}: {each.reason}" for each in state.skipped]
    notes = [f"{row.label}: {note}" for row in state.rows.values() for note in plan_notes(row)]
    warnings = [f"{message.level}: {message.text}" for message in state.messages if message.level != "info"]
    blocks = [
        wrapped([_head(state), ", ".join(facts), *warnings], width),
        *tables([_plan_row(row) for row in state.rows.values()], width),
        wrapped(notes, width),
        wrapped(["left out: tensors (# is the layer), and why", *(f"  {each}" for each in skipped)], width, indent=4),
    ]
    if not skipped:
        blocks.pop()
    return printable("\n\n".join("\n".join(block) for block in blocks if block) + "\n")


def _head(state: AnalysisState) -> str:
    return state.model + (f" at {state.revision}" if state.revision else "")


def _row(row: Row) -> dict[str, str]:
    v, u = states.summary(row, "v"), states.summary(row, "u")
    done, planned = states.done_pairs(row), len(row.adjacent)
    found = {"projection": row.label, "residual side": _SIDES[row.side]}
    for name, cosines in (("v1", v), ("u1", u)):
        found |= {
            f"{name} mean": _number(cosines.mean if cosines else None),
            f"{name} min": _number(cosines.low if cosines else None),
            f"{name} max": _number(cosines.high if cosines else None),
            f"{name} chance": _chance(cosines),
        }
    found["pairs"] = f"{done}" if done == planned else f"{done} of {planned}"
    found["flagged"] = f"{states.flagged(row)}"
    return found


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _chance(cosines: Cosines | None) -> str:
    return "n/a" if cosines is None or cosines.chance is None else f"{cosines.chance:.3f}"


def _notes(state: AnalysisState) -> list[str]:
    """What the numbers are, what was left out of them and why, and what was quantised."""
    summaries = [states.summary(row, side) for row in state.rows.values() for side in states.SIDES]
    halves = [found.limit - found.chance for found in summaries if found and found.limit and found.chance]
    notes = [
        "v1, u1: |cos| of adjacent layers; residual side: the side that meets the residual stream, the other is a "
        "basis of each layer's own; chance: mean |cos| of random directions"
        + (f", 95 % of such means over so many pairs lie within {max(halves):.3f} of it" if halves else "")
    ]
    for row in state.rows.values():
        out = {states.NAMES[side]: states.left_out(row, side) for side in states.SIDES}
        same = out["v1"] == out["u1"]
        for name, counts in out.items():
            if counts and not (same and name == "u1"):
                where = "" if same else f" {name}"
                reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
                notes.append(f"{row.label}{where}: left out of the means: {reasons}")
        notes += [f"{row.label}: {note}" for note in _reasons(row)]
    quantized: dict[str, list[str]] = {}
    for row in state.rows.values():
        if row.is_quantized:
            quantized.setdefault(some(row.dtypes), []).append(row.label)
    notes += [
        f"{', '.join(labels)}: stored as {dtypes}; σ and v1 carry the error of quantising"
        for dtypes, labels in quantized.items()
    ]
    return notes


def _reasons(row: Row) -> list[str]:
    """The words for pairs that are flagged, other than for vectors that are not unique; each once."""
    told: Counter[str] = Counter()
    quiet: tuple[Status, ...] = ("ok", "not_unique")
    for pair in row.pairs.values():
        if pair.status not in quiet and pair.note:
            told[f"{states.REASONS.get(pair.status, pair.status)}: {pair.note}"] += 1
    most = told.most_common(_SHOWN)
    rest = sum(told.values()) - sum(count for _, count in most)
    return [note for note, _ in most] + ([f"and {rest} more pairs; `--csv` writes all"] if rest else [])


def _findings(state: AnalysisState, width: int | None) -> list[str]:
    lines: list[str] = []
    for finding in states.findings(state):
        lines += wrapped([f"  {finding.verdict:<14}{finding.claim}: {finding.numbers}"], width, indent=16)
        if finding.reason:
            lines += wrapped([f"{'':16}{finding.reason}"], width, indent=16)
    return lines or ["  nothing can be said: no projection has enough pairs"]


def _plan_row(row: Row) -> dict[str, str]:
    plans = tuple(row.plans.values())
    shapes = Counter(f"{plan.rows}×{plan.cols}" for plan in plans)
    first = plans[0]
    more = f" and {len(first.tensors) - 1} more" if len(first.tensors) > 1 else ""
    return {
        "projection": row.label,
        "layers": f"{len(plans)}: {ranges(row.layers)}",
        "shape": some(tuple(shapes)),
        "stored": some(row.dtypes),
        "size": size(sum(plan.bytes for plan in plans)),
        "residual side": _SIDES[row.side],
        "rule": some(tuple(dict.fromkeys(plan.rule for plan in plans))),
        "first tensor": f"{first.tensors[0]}{more}" if first.tensors else "n/a",
    }


def plan_notes(row: Row) -> list[str]:
    """What the plan says of layers of a projection, each reason once."""
    notes = Counter(plan.note for plan in row.plans.values() if plan.note)
    return [f"{count} of {len(row.plans)} layers: {note}" for note, count in notes.items()]


def _usable(row: Row) -> int:
    return sum(plan.status == "ok" for plan in row.plans.values())


def some(words: tuple[str, ...]) -> str:
    """The first few of some words, and how many more there are."""
    return " / ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")


def ranges(layers: tuple[int, ...]) -> str:
    """Ascending numbers in short: 0-31, or 3, 7, 11."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], layer]
        else:
            parts.append([layer])
    return ", ".join("-".join(map(str, part)) for part in parts)
