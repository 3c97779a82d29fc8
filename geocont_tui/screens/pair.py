"""A pair of layers in full: cosines against chance, the whole spectrum, both matrices; and a line to copy."""

from geocont.events import PairMeasured

from geocont_tui import analysis_state as states
from geocont_tui.analysis_state import Row, Side
from geocont_tui.analysis_view import compared, is_known
from geocont_tui.widgets.pair_table import cosine_text, ratio, small
from geocont_tui.widgets.text_pane import Paragraph

LABEL = 14
TENSORS = 4
COPIED = (
    *("stack", "projection", "layer_a", "layer_b", "v1_cosine", "u1_cosine", "v1_chance", "u1_chance"),
    *("v_gram", "u_gram", "v_error_bound", "u_error_bound", "status", "note"),
)
SPACES: dict[Side, str] = {"v": "input", "u": "output"}


def pair_title(row: Row, layers: tuple[int, int]) -> str:
    """The projection and its two layers."""
    return f"{row.label} {layers[0]}-{layers[1]}"


def pair_paragraphs(row: Row, layers: tuple[int, int]) -> tuple[Paragraph, ...]:
    """Everything that is known of two layers of a projection."""
    if not is_known(row, layers):
        return (Paragraph(f"{pair_title(row, layers)} is not measured yet", "dim"), *_matrices(row, layers))
    pair = compared(row, layers)
    lines = [Paragraph(pair_title(row, layers), "selected")]
    for side in states.SIDES:
        lines.append(_line(f"|cos {states.NAMES[side]}|", _cosine(row, pair, side)))
    status = "ok" if pair.status == "ok" else states.REASONS.get(pair.status, pair.status)
    lines.append(_line("status", f"{status}: {pair.note}" if pair.note else status))
    if layers in row.pairs:
        for side in states.SIDES:
            lines.append(_line(f"spectrum {side}", _spectrum(pair, side)))
    else:
        lines.append(_line("spectrum", "n/a: of adjacent layers only"))
    return (*lines, *_matrices(row, layers))


def cosine_line(row: Row, layers: tuple[int, int], side: Side) -> str:
    """The pair's cosine on one side in a few words, for a title."""
    name = states.NAMES[side]
    if not is_known(row, layers):
        return f"{pair_title(row, layers)} {name} not measured yet"
    pair = compared(row, layers)
    value = states.cosine(pair, side)
    if value is None:
        reason = states.REASONS.get(pair.status, "shapes differ")
        return f"{pair_title(row, layers)} {name} n/a: {reason}"
    level = pair.v1_chance if side == "v" else pair.u1_chance
    chance = f", chance {level:.3f}" if level is not None else ""
    return f"{pair_title(row, layers)} {name} {cosine_text(value)}{chance}"


def pair_text(row: Row, layers: tuple[int, int]) -> str:
    """The pair's numbers as one tab-separated line with a line of names above it."""
    pair = compared(row, layers)
    values = [getattr(pair, column) for column in COPIED]
    return "\t".join(COPIED) + "\n" + "\t".join("n/a" if value is None else str(value) for value in values)


def _cosine(row: Row, pair: PairMeasured, side: Side) -> str:
    value = states.cosine(pair, side)
    is_v = side == "v"
    size = pair.v_dim if is_v else pair.u_dim
    level = pair.v1_chance if is_v else pair.u1_chance
    bound = pair.v_error_bound if is_v else pair.u_error_bound
    meets = ", meets the residual stream" if row.is_residual(side) else ", private basis"
    parts = [cosine_text(value)]
    if value is not None and bound is not None:
        parts[0] += f" ± {small(bound)}"
    if level is not None:
        parts.append(f"chance {level:.4f} ({size} dims)")
    return ", ".join(parts) + f"; {SPACES[side]} side{meets}"


def _spectrum(pair: PairMeasured, side: Side) -> str:
    is_v = side == "v"
    gram, error = (pair.v_gram, pair.v_gram_error) if is_v else (pair.u_gram, pair.u_gram_error)
    weighted, overlap = (pair.v_weighted, pair.v_overlap) if is_v else (pair.u_weighted, pair.u_overlap)
    parts = [f"centred Gram cosine {cosine_text(gram, 4, sign=True)}"]
    if gram is not None and error is not None:
        parts[0] += f" ± {small(error)}" if error else ", exact"
    if overlap:
        parts.append(f"overlap of the leading 1…{len(overlap)}: " + " ".join(f"{value:z.2f}" for value in overlap))
    share = "" if pair.weighted_share is None else f" of {100 * pair.weighted_share:.0f} % of the squared norm"
    parts.append(f"σ²-weighted {cosine_text(weighted)}" + (share if weighted is not None else ""))
    return "; ".join(parts)


def _matrices(row: Row, layers: tuple[int, int]) -> list[Paragraph]:
    lines: list[Paragraph] = []
    for layer in layers:
        plan, found = row.plans[layer], row.matrices.get(layer)
        lines += [Paragraph(""), Paragraph(f"layer {layer}: {plan.rows}×{plan.cols}, {plan.dtype}", "selected")]
        if plan.dtype not in states.PLAIN_DTYPES:
            lines.append(_line("stored as", f"{plan.dtype}: σ and v1 carry the error of quantising"))
        if found is not None:
            sigmas = " ".join(f"{value:.4g}" for value in found.singular_values)
            lines.append(_line("σ", sigmas or "n/a"))
            lines.append(_line("σ1/σ2", ratio(found.gap)))
            lines.append(_line("stable rank", "n/a" if found.stable_rank is None else f"{found.stable_rank:.1f}"))
            lines.append(_line("error bounds", f"v1 {small(found.v1_error_bound)}, u1 {small(found.u1_error_bound)}"))
            note = f"{found.status.replace('_', ' ')}{': ' + found.note if found.note else ''}"
            lines.append(_line("status", f"{note}{', from the result cache' if found.cached else ''}"))
        elif plan.status != "ok":
            lines.append(_line("status", f"{states.REASONS.get(plan.status, plan.status)}: {plan.note}"))
        else:
            lines.append(_line("status", "not read yet"))
        if plan.note and found is not None:
            lines.append(_line("note", plan.note))
        more = f" and {len(plan.tensors) - TENSORS} more" if len(plan.tensors) > TENSORS else ""
        lines.append(_line("tensors", ", ".join(plan.tensors[:TENSORS]) + more))
        lines.append(_line("rule", plan.rule))
    return lines


def _line(label: str, text: str) -> Paragraph:
    return Paragraph(text, indent=LABEL, label=label)
