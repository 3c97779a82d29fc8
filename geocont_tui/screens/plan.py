"""What an analysis will read and what it leaves out, projection by projection, as paragraphs."""

from collections import Counter

from geocont_tui.analysis_state import AnalysisState, Row
from geocont_tui.analysis_text import plan_notes, ranges, some
from geocont_tui.plain_text import size
from geocont_tui.widgets.status_line import clock
from geocont_tui.widgets.text_pane import Paragraph

LABEL = 13
SIDES = {"v": "input", "u": "output", "both": "input and output", "none": "neither side"}


def plan_paragraphs(state: AnalysisState) -> tuple[Paragraph, ...]:
    """The model and where it is, every projection with its rule, what is skipped, the parameters."""
    if state.status == "starting":
        return (Paragraph(f"reading the headers of {state.model}"),)
    refused = sum(plan.status != "ok" for row in state.rows.values() for plan in row.plans.values())
    reading = f"{state.planned - refused} matrices, {size(state.bytes)}"
    lines = [
        _fact("model", state.model),
        _fact("revision", state.revision or "n/a: not from the hub"),
        _fact("read from", state.source),
        _fact("to be read", f"{reading}, {left(state)}" if state.status == "running" else reading),
    ]
    if refused:
        lines.append(_fact("refused", f"{refused} matrices; the reasons stand below"))
    lines += [
        _fact("device", state.device),
        _fact("parameters", ", ".join(f"{name} {_value(name, value, state)}" for name, value in _asked(state))),
        Paragraph(""),
        Paragraph("projections: layers, shape, storage, side that meets the residual stream, rule, tensors", "dim"),
    ]
    width = max((len(row.label) for row in state.rows.values()), default=0) + 2
    for row in state.rows.values():
        lines.append(Paragraph(row_text(row), indent=min(width, 20), label=row.label))
        lines += [Paragraph(note, "dim", indent=min(width, 20)) for note in plan_notes(row)]
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
    total = size(sum(plan.bytes for plan in row.plans.values()))
    layers = f"{len(row.plans)} layer{'s' if len(row.plans) > 1 else ''} {ranges(row.layers)}"
    parts = (layers, some(tuple(shapes)), some(row.dtypes), total, side, f"rule {first.rule}", tensors)
    return ", ".join(parts)


def left(state: AnalysisState) -> str:
    """How long it will take, as far as that is known."""
    return "time left not known yet" if state.eta is None else f"about {clock(state.eta)} left"


def _fact(label: str, text: str) -> Paragraph:
    return Paragraph(text, indent=LABEL, label=label)


def _asked(state: AnalysisState) -> list[tuple[str, object]]:
    """The parameters that say what is measured and how; what says where it lies stands above, or was not given."""
    where = ("model", "revision", "weights_file", "layouts_file", "subfolder", "download")
    return [
        (name, value) for name, value in state.parameters.items() if name not in where or (value and name != "model")
    ]


def _value(name: str, value: object, state: AnalysisState) -> str:
    if value is None:
        rows = state.rows.values()
        meant = {
            "layers": ranges(state.layers),
            "projections": ", ".join(dict.fromkeys(row.projection for row in rows)),
            "stack": ", ".join(dict.fromkeys(row.stack for row in rows if row.stack)) or "one",
        }
        return f"{meant[name]} (all)" if meant.get(name) else "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
