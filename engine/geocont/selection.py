"""Which of a checkpoint's projections an analysis measures: what the user asked for, without what says nothing."""

import difflib
import re
from collections import Counter
from collections.abc import Sequence

from geocont.errors import InputError
from geocont.events import SkippedTensors
from geocont.weights.layouts import Placement


def parse_layers(text: str) -> frozenset[int]:
    """The numbers in "0-15", "3,7" or "0-3,8".

    Raises:
        InputError: it is not written so.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start, end = int(first), int(last if dash else first)
        except ValueError:
            start, end = 1, 0
        if not 0 <= start <= end <= 100_000:
            raise InputError(f"--layers {text}: {part.strip()!r} is no range of layers", "write it as 0-15 or 3,7,11")
        found.update(range(start, end + 1))
    return frozenset(found)


def choose(
    placements: Sequence[Placement], *, projections: str | None, layers: str | None, stack: str | None
) -> tuple[list[Placement], list[SkippedTensors]]:
    """What the user asked for of all projections, in the order of the plan, and what is left out by itself.

    Multi-token prediction layers are measured when their stack is asked for, inner matrices (no side of theirs is the
    residual stream) when their projection is, or when there is nothing else.

    Args:
        placements: all of a checkpoint.
        projections, layers, stack: as typed; None for all.

    Raises:
        InputError: a name that does not exist, or nothing is left.
    """
    kept, skipped = list(placements), Counter[tuple[str, str]]()

    def leave_out(placement: Placement, reason: str) -> None:
        kept.remove(placement)
        for tensor in placement.tensors:
            skipped[re.sub(rf"(?<!\d){placement.layer}(?!\d)", "#", tensor, count=1), reason] += 1

    if stack is None:
        for placement in [one for one in kept if one.stack.split()[-1:] == ["mtp"]]:
            leave_out(placement, "predicts further tokens, beside the stack of layers; --stack mtp measures it")
    else:
        kept = _of_stack(kept, stack)
    if projections is not None:
        kept = _of_projections(kept, projections)
    elif any(placement.side != "none" for placement in kept):
        for placement in [one for one in kept if one.side == "none" and one.status == "ok"]:
            leave_out(placement, placement.note)
    if layers is not None:
        numbers, before = parse_layers(layers), sorted({placement.layer for placement in kept})
        kept = [placement for placement in kept if placement.layer in numbers]
        if not kept and before:
            raise InputError(
                f"--layers {layers}: there is no such layer here", f"the layers are {before[0]} to {before[-1]}"
            )
    return kept, [SkippedTensors(name=name, count=count, reason=reason) for (name, reason), count in skipped.items()]


def _of_stack(placements: Sequence[Placement], typed: str) -> list[Placement]:
    names = list(dict.fromkeys(placement.stack for placement in placements))
    if not typed.strip():
        raise InputError("--stack: the name of the stack is empty", _known(typed, names))
    wanted = [name for name in names if name == typed] or [
        name
        for name in names
        if name.casefold().startswith(typed.casefold()) or typed.casefold() in name.casefold().split()
    ]
    if not wanted:
        raise InputError(f"--stack {typed}: this model has no such stack", _known(typed, names))
    return [placement for placement in placements if placement.stack in wanted]


def _of_projections(placements: Sequence[Placement], typed: str) -> list[Placement]:
    names = list(dict.fromkeys(placement.projection for placement in placements))
    wanted: set[str] = set()
    for part in typed.split(","):
        plain = part.strip().casefold()
        found = [name for name in names if plain in (name.casefold(), name.casefold().removesuffix("[e]"))]
        if not found:
            raise InputError(
                f"--projections {typed}: there is no projection {part.strip()!r} here", _known(part.strip(), names)
            )
        wanted.update(found)
    return [placement for placement in placements if placement.projection in wanted]


def _known(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return (f"did you mean {near[0]}? " if near else "") + f"There are: {shown}"
