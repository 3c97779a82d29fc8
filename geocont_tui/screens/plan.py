"""What an analysis will read and what it leaves out, projection by projection, as paragraphs."""

from collections import Counter

from geocont_tui.analysis_state import AnalysisState, Row
from geocont_tui.widgets.status_line import clock
from geocont_tui.widgets.text_pane import Paragraph

LABEL = 13
SIDES = {"v": "input", "u": "output", "both": "input and output", "none": "neither side"}
SHOWN = 3


def plan_paragraphs(state: AnalysisState) -> tuple[Paragraph, ...]:
    """The model and where it is, every projection with its rule, what is skipped, the parameters."""
    if state.status == "starting":
        return (Paragraph(f"reading the headers of {state.model}"),)
    refused = sum(plan.status != "ok" for row in state.rows.values() for plan in row.plans.values())
    reading = f"{state.planned - refused} matrices, {gigabytes(state.bytes)}"
    lines = [
        _fact("model", state.model),
        _fact("revision", state.revision or "n/a: not from the hub"),
        _fact("read from", state.source),
        _fact("to be read", f"{reading}, about {left(state)}" if state.status == "running" else reading),
    ]
    if refused:
        lines.append(_fact("refused", f"{refused} matrices; the reasons stand below"))
    lines += [
        _fact("device", state.device),
        _fact("parameters", ", ".join(f"{name} {_value(value)}" for name, value in state.parameters.items())),
        Paragraph(""),
        Paragraph("projections: layers, shape, storage, side that meets the residual stream, rule, tensors", "dim"),
    ]
    width = max((len(row.label) for row in state.rows.values()), default=0) + 2
    for row in state.rows.values():
        lines.append(Paragraph(row_text(row), indent=min(width, 20), label=row.label))
        lines += [Paragraph(note, "dim", indent=min(width, 20)) for note in _notes(row)]
    if state.skipped:
        lines += [Paragraph(""), Paragraph("left out: tensors, and why", "dim")]
        lines += [Paragraph(f"{each.count} × {each.name}: {each.reason}", indent=2) for each in state.skipped]
    return tuple(lines)


def row_text(row: Row) -> str:
    """One projection in a line."""
    shapes = Counter(f"{plan.rows}×{plan.cols}" for plan in row.plans.values())
    side = SIDES[row.side]
    first = next(iter(row.plans.values()))
    tensors = f"{first.tensors[0]}" + (f" and {len(first.tensors) - 1} more" if len(first.tensors) > 1 else "")
    size = sum(plan.bytes for plan in row.plans.values())
    layers = f"{len(row.plans)} layer{'s' if len(row.plans) > 1 else ''} {_ranges(row.layers)}"
    parts = (layers, some(tuple(shapes)), some(row.dtypes), gigabytes(size), side, f"rule {first.rule}", tensors)
    return ", ".join(parts)


def gigabytes(size: int) -> str:
    """Bytes in the unit that leaves three digits or so."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}" if size < 9.995 * factor else f"{size / factor:.1f} {unit}"
    return f"{size} B"


def left(state: AnalysisState) -> str:
    """How long it will take, as far as that is known."""
    return f"{clock(state.eta)} left" if state.eta is not None else "n/a s (no rate is known yet)"


def some(words: tuple[str, ...]) -> str:
    """The first few of some words."""
    return "/".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")


def _ranges(layers: tuple[int, ...]) -> str:
    """Ascending numbers as 0-11 or 3,7,11."""
    if len(layers) > 1 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]}-{layers[-1]}"
    return some(tuple(map(str, layers))).replace("/", ",")


def _notes(row: Row) -> list[str]:
    """Why layers are refused, or what else the plan says of them; one line a reason."""
    notes = Counter(plan.note for plan in row.plans.values() if plan.note)
    return [f"{count} of {len(row.plans)} layers: {note}" for note, count in notes.items()]


def _fact(label: str, text: str) -> Paragraph:
    return Paragraph(text, indent=LABEL, label=label)


def _value(value: object) -> str:
    if value is None:
        return "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
