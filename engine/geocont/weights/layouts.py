"""From the tensor names of a checkpoint to the projections of its layers, by a table (layouts.toml).

A name is cut at the layer index. What stands before it makes the stack, what stands behind it is looked up in the
table, whose rows say which projections a tensor holds and how they share its rows. Which axis is the input follows
from the width of the residual stream, not from names: GPT-2 and StarCoder have equal names and opposite axes. What
config.json must decide and does not is left unsplit, with the reason.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from jaxtyping import Shaped
from torch import Tensor

from geocont.errors import InputError
from geocont.events import MatrixPlan, SkippedTensors, Status
from geocont.toml_file import read_toml
from geocont.weights.checkpoint import Slice
from geocont.weights.quantization import Weight

LAYOUT_VERSION = 1
"""Counts the changes of the shipped table and of this module that give a projection another matrix."""

Side = Literal["v", "u", "both", "none"]
CutKind = Literal["whole", "concat", "equal", "heads", "groups", "blocks4", "interleaved", "unsplit", "skip"]
Config = Mapping[str, Any]

_ORDER = ("q", "q_a", "q_b", "k", "kv_a", "kv_b", "v", "attention_gate", "o", "gate", "up", "down")
"""Of the projections within a layer; all others stand between attention and MLP."""

_TABLE = Path(__file__).with_name("layouts.toml")
_SUFFIX = re.compile(r"\.(?:weight|qweight)$")
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"\{([a-z]+)\}")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of the table; layouts.toml says what each key means.

    `pattern` matches the whole name after the layer index, without ".weight". All conditions that are given must hold.
    """

    id: str
    pattern: str
    projections: tuple[str, ...] = ()
    cut: CutKind = "whole"
    model_types: tuple[str, ...] = ()
    config: dict[str, bool | int | float | str] = {}
    sibling: str = ""
    no_sibling: str = ""
    outputs: Literal["", "twice o", "twice down"] = ""
    side: Side | None = None
    orientation: Literal["", "in_out"] = ""
    expert_rows: bool = False
    stack: str = ""
    reason: str = ""

    @property
    def per_expert(self) -> bool:
        return any(projection.endswith("[E]") for projection in self.projections)

    @property
    def has_expert_group(self) -> bool:
        return "expert" in _compiled(self.pattern).groupindex


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    shared: bool = False


class _Shipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """layouts.toml as a whole."""

    index: tuple[_Index, ...]
    words: dict[str, str]
    sides: dict[Side, tuple[str, ...]]
    residual: dict[str, Any]
    stacks: dict[str, str]
    config: dict[str, tuple[str, ...]]
    layout: list[dict[str, Any]]

    def side(self, projection: str) -> Side | None:
        plain = projection.removesuffix("[E]").removeprefix("shared_")
        return next((side for side, names in self.sides.items() if plain in names or projection in names), None)


@cache
def _shipped() -> _Shipped:
    return msgspec.convert(tomllib.loads(_TABLE.read_text("utf-8")), _Shipped)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the table with its {words} filled in. Raises: re.error, KeyError for a word that does not exist."""
    words = _shipped().words
    return re.compile(_WORD.sub(lambda match: words[match[1]], pattern))


def _row(table: Mapping[str, Any], source: str) -> Layout:
    """Check one row. Raises: InputError naming the row's id."""
    where = f"{source}, layout {str(table.get('id', '(without id)'))!r}"
    remedy = "geocont/weights/layouts.toml in the installed package says in its first lines what a row may hold."
    try:
        row = msgspec.convert(table, Layout)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}", remedy) from None
    for key in ("pattern", "sibling", "no_sibling"):
        try:
            _compiled(getattr(row, key))
        except (re.error, RecursionError, OverflowError) as error:
            raise InputError(f"{where}: {key} is no regular expression: {error}", remedy) from None
        except KeyError as error:
            known = ", ".join(f"{{{word}}}" for word in _shipped().words)
            raise InputError(f"{where}: {key} has no word {{{error.args[0]}}}", f"The words are {known}.") from None
    count = len(row.projections)
    several = row.cut not in ("whole", "skip", "unsplit")
    if row.cut == "skip" and (count or not row.reason):
        raise InputError(f"{where}: a row that skips has a reason and no projections", remedy)
    if (row.cut == "whole" and count != 1) or (several and count < 2) or (row.cut == "unsplit" and not count):
        raise InputError(f"{where}: the cut {row.cut!r} does not fit {count} projections", remedy)
    if row.cut in ("concat", "groups") and count != 3:
        raise InputError(f"{where}: the cut {row.cut!r} takes a query, a key and a value", remedy)
    if len({projection.endswith("[E]") for projection in row.projections}) > 1 or len(set(row.projections)) < count:
        raise InputError(f"{where}: the projections do not go together", remedy)
    if row.has_expert_group and not row.per_expert:
        raise InputError(f"{where}: a pattern with a group named expert needs projections that end in [E]", remedy)
    return row


def read_layouts(path: Path | None = None) -> tuple[Layout, ...]:
    """The rows of the table in the order in which they are tried; a file's rows come before the shipped ones.

    Raises:
        InputError: as `read_toml` does; a row has an unknown key or cut or a bad pattern.
    """
    shipped = tuple(_row(table, _TABLE.name) for table in _shipped().layout)
    if path is None:
        return shipped
    tables = read_toml(path)
    rows = tables.pop("layout", [])
    if tables or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        unknown = ", ".join(tables) or "layout"
        raise InputError(f"{path}: {unknown} is not a list of layouts", "Write each layout as a [[layout]] table.")
    return (*(_row(row, str(path)) for row in rows), *shipped)


@dataclass(frozen=True)
class Cut:
    """Which output rows of a fused tensor are one projection's.

    The rows are taken as `repeats` runs of `period` rows; of each run, rows `start` up to `stop` belong to it.
    """

    repeats: int
    period: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.repeats * (self.stop - self.start)

    def of(self, matrix: Shaped[Tensor, "fused_out in"]) -> Shaped[Tensor, "out in"]:
        """The projection's rows; a view where memory allows it, else a copy of these rows alone."""
        runs = matrix.view(self.repeats, self.period, matrix.shape[1])
        return runs[:, self.start : self.stop].flatten(0, 1)

    def __str__(self) -> str:
        if self.repeats == 1:
            return f"rows {self.start}…{self.stop - 1} of {self.period}"
        return f"rows {self.start}…{self.stop - 1} of each {self.period}"


@dataclass(frozen=True)
class Placement:
    """One projection of one layer, and how its matrices are had from the tensors that hold it.

    `rows` and `cols` are those of one matrix [out, in] as y = W x sees it; for routed experts there are `experts` of
    them, else `experts` is 0. `cut` is None where the whole tensor is the projection; `transposed` says that the tensor
    is stored [in, out]. `bytes` is the projection's share of the tensors. `side` is "v" for a reader of the residual
    stream, "u" for a writer, "both" where the shape does not tell, "none" for an inner matrix. `rule` is the row of the
    table. A status other than "ok" means that there is nothing to measure, and `note` says why.
    """

    stack: str
    projection: str
    layer: int
    tensors: tuple[str, ...]
    rows: int
    cols: int
    dtype: str
    bytes: int
    side: Side
    rule: str
    cut: Cut | None = None
    transposed: bool = False
    experts: int = 0
    status: Status = "ok"
    note: str = ""

    @property
    def view(self) -> str:
        """In words, how the matrices are taken from the tensors; equal words, equal matrices."""
        experts = f"{self.experts} experts" if self.experts else ""
        return ", ".join(filter(None, (experts, "transposed" if self.transposed else "", str(self.cut or ""))))

    @property
    def stacked(self) -> int:
        """How many matrices one tensor holds, along its first dimension."""
        return self.experts if len(self.tensors) == 1 and self.experts else 1

    def matrices(
        self, read: Callable[[str], Tensor], read_slice: Callable[[Slice], Tensor] | None = None
    ) -> Iterator[Shaped[Tensor, "out in"]]:
        """The projection's matrix; for routed experts the matrix of each in turn, by `read_slice` where it is given.

        What is yielded may be a view of what was read and is valid until the next read. No more than one matrix is
        copied at a time.
        """
        for name in self.tensors:
            stored: Iterable[Tensor]
            if read_slice is not None and self.stacked > 1:
                stored = (read_slice(Slice(name, index, self.stacked)) for index in range(self.stacked))
            else:
                tensor = read(name)
                stored = tensor.reshape(self.stacked, -1, tensor.shape[-1])
            for part in stored:
                matrix = part.reshape(-1, part.shape[-1])
                oriented = matrix.mT if self.transposed else matrix
                yield oriented if self.cut is None else self.cut.of(oriented)

    def matrix_plan(self) -> MatrixPlan:
        """What the events say of it."""
        names = MatrixPlan.__struct_fields__
        return MatrixPlan(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Stack:
    """Layers that share a residual stream: its width, how many layers there are, and what their names begin with."""

    name: str
    width: int
    layers: int
    prefix: str


@dataclass(frozen=True)
class Plan:
    """What a checkpoint holds: the placements, stack by stack and layer by layer; what is left out and why."""

    placements: tuple[Placement, ...]
    skipped: tuple[SkippedTensors, ...]
    stacks: Mapping[str, Stack]
    notes: tuple[str, ...]


@dataclass
class _Stack:
    """The layers found under one prefix."""

    prefix: str
    name: str = ""
    modality: str = ""
    mtp: bool = False
    shared: bool = False
    width: int = 0
    layers: dict[int, list[tuple[str, Weight]]] = field(default_factory=lambda: defaultdict(list))
    """Of every layer the names after the layer index, without ".weight", and the weights."""


@dataclass(frozen=True)
class _Found:
    """The tensors of one layer that one row of the table describes: one, or one for each expert."""

    stack: _Stack
    layer: int
    rest: str
    layout: Layout
    weights: tuple[Weight, ...]


def plan(weights: Mapping[str, Weight], config: Config | None, layouts: Sequence[Layout]) -> Plan:
    """Find the projections of every layer.

    Args:
        weights: the weights of a checkpoint by name.
        config: config.json; None where there is none, which leaves fused tensors unsplit.
        layouts: the rows of the table in the order in which they are tried, from `read_layouts`.

    Raises:
        InputError: no row fits any tensor, and no two layers can be told by the numbers in the names either.
    """
    skipped: Counter[tuple[str, str]] = Counter()
    stacks = _stacks(weights, skipped)
    _name_stacks(stacks)

    @cache
    def fitting(rest: str) -> list[Layout]:
        """The rows whose pattern fits, the conditions apart: names repeat from layer to layer."""
        return [layout for layout in layouts if _compiled(layout.pattern).fullmatch(rest)]

    found: list[_Found] = []
    for stack in stacks:
        stack.width = _width(stack, config)
        for layer in stack.layers:
            found += _match(stack, layer, config, fitting, skipped)
    if not found:
        return _group_by_numbers(weights, config)
    placed = _place(found, config)
    placements = tuple(placement for _, placement in placed)
    return Plan(placements, _skipped(skipped), _stack_table(placed), _count_notes(stacks, config))


# ------------------------------------------------------------------------------------------------------------- stacks


def _stacks(weights: Mapping[str, Weight], skipped: Counter[tuple[str, str]]) -> list[_Stack]:
    """Sort the weights by what precedes the layer index, and by layer. Multi-token prediction is a stack of its own."""
    found: dict[str, _Stack] = {}
    indices = [(_compiled(index.pattern), index.shared) for index in _shipped().index]
    for name, weight in weights.items():
        for pattern, shared in indices:
            if match := pattern.fullmatch(name):
                stack = found.setdefault(match["stack"], _Stack(match["stack"], shared=shared))
                stack.layers[int(match["layer"])].append((_SUFFIX.sub("", match["rest"]), weight))
                break
        else:
            skipped[_template(name), "outside the layers"] += 1
    words = _shipped().stacks
    stacks: list[_Stack] = []
    for stack in found.values():
        beside = re.fullmatch(words["mtp"], stack.prefix) is not None
        sibling = re.compile(words["mtp_sibling"])
        last = {layer for layer, names in stack.layers.items() if any(sibling.fullmatch(rest) for rest, _ in names)}
        if beside or not last:
            stack.mtp = beside
            stacks.append(stack)
            continue
        predicting = _Stack(stack.prefix, mtp=True)
        for layer in last:
            predicting.layers[layer] = stack.layers.pop(layer)
        stacks += [stack, predicting] if stack.layers else [predicting]
    return stacks


def _name_stacks(stacks: list[_Stack]) -> None:
    """Call each stack by what tells it from the others: vision, text, encoder, stage 2; "layers" if it is alone."""
    words = _shipped().stacks

    def first(stack: _Stack, *choices: str) -> str:
        return next((word for word in choices if re.fullmatch(words[word], stack.prefix)), "")

    for stack in stacks:
        stack.modality = first(stack, "vision", "audio", "text")
    plain = "text" if any(stack.modality in ("vision", "audio") for stack in stacks) else "layers"
    alike = Counter((stack.modality, stack.mtp) for stack in stacks)
    for stack in stacks:
        stages = ".".join(part for part in stack.prefix.split(".") if part.isdecimal())
        several = alike[stack.modality, stack.mtp] > 1 and not stages
        role = first(stack, "encoder", "decoder") if several else ""
        stack.name = " ".join(filter(None, (stack.modality, role, stages and f"stage {stages}"))) or plain
        if stack.mtp:
            stack.name = "mtp" if stack.name == plain else f"{stack.name} mtp"
    taken = Counter(stack.name for stack in stacks)
    for stack in stacks:
        if taken[stack.name] > 1:
            stack.name = stack.prefix


def _width(stack: _Stack, config: Config | None) -> int:
    """The width of the residual stream: the commonest length of norm vectors, else config.json's, else by sizes.

    By sizes: of two that are the commonest the smaller, because MLPs widen, if there are matrices either way round;
    else it cannot be known, and is 0.
    """
    residual = _shipped().residual
    norm, inner = _compiled(residual["norm"]), _compiled(residual["inner_norm"])
    lengths: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    shapes: set[tuple[int, ...]] = set()
    for names in stack.layers.values():
        for rest, weight in names:
            if weight.refused:
                continue
            if len(weight.shape) == 1 and norm.fullmatch(rest) and not inner.fullmatch(rest):
                lengths[weight.shape[0]] += 1
            elif len(weight.shape) == 2:
                sizes.update(set(weight.shape))
                shapes.add(tuple(weight.shape))
    stated = _number("width", stack, config)
    best = max(lengths.values(), default=0)
    candidates = [length for length, count in lengths.items() if count == best]
    if not candidates:
        if stated is not None:
            return stated
        most = max(sizes.values(), default=0)
        commonest = [size for size, count in sizes.items() if count == most]
        is_known = len(commonest) == 1 or any(shape[::-1] in shapes for shape in shapes if shape[0] != shape[1])
        return min(commonest) if is_known and commonest else 0
    return max(candidates, key=lambda length: (length == stated, sizes[length]))


def _stack_table(placed: Iterable[tuple[_Stack, Placement]]) -> dict[str, Stack]:
    layers: dict[str, set[int]] = defaultdict(set)
    stacks: dict[str, _Stack] = {}
    for stack, placement in placed:
        stacks[placement.stack] = stack
        layers[placement.stack].add(placement.layer)
    return {name: Stack(name, stack.width, len(layers[name]), stack.prefix) for name, stack in stacks.items()}


def _count_notes(stacks: Sequence[_Stack], config: Config | None) -> tuple[str, ...]:
    main = [stack for stack in stacks if stack.name in ("layers", "text")]
    if len(main) != 1 or main[0].shared:
        return ()
    stated, there = _number("layers", main[0], config), len(main[0].layers)
    if stated is None or stated == there:
        return ()
    return (f"config.json tells of {stated} layers, the weights of {there}",)


# ------------------------------------------------------------------------------------------------------------- config


def _sections(stack: _Stack, config: Config | None) -> list[Config]:
    """The parts of config.json that speak of a stack, the nearest first."""
    if config is None:
        return []
    keys = _shipped().config
    kind = stack.modality or "text"
    parts = [config[key] for key in keys[kind] if isinstance(config.get(key), dict)]
    # The text model's numbers stand at the top where there is no part for it; those of a vision tower never do.
    if kind == "text" or not any(isinstance(config.get(key), dict) for key in keys["text"]):
        parts.append(config)
    nested = [part[key] for part in parts for key in ("attn_config", "ffn_config") if isinstance(part.get(key), dict)]
    return parts + nested


def _number(what: str, stack: _Stack, config: Config | None) -> int | None:
    for section in _sections(stack, config):
        for key in _shipped().config[what]:
            value = section.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _model_types(stack: _Stack, config: Config | None) -> list[str]:
    sections = [*_sections(stack, config), *([config] if config else [])]
    return list(dict.fromkeys(str(part["model_type"]) for part in sections if part.get("model_type")))


# ----------------------------------------------------------------------------------------------------------- matching


def _match(
    stack: _Stack,
    layer: int,
    config: Config | None,
    fitting: Callable[[str], Sequence[Layout]],
    skipped: Counter[tuple[str, str]],
) -> list[_Found]:
    """The rows that fit the tensors of one layer. What fits none is counted as skipped."""
    named = stack.layers[layer]
    names = [rest for rest, _ in named]
    types = _model_types(stack, config)
    sections = _sections(stack, config)

    def settled(layout: Layout) -> bool:
        """Whether its conditions hold, but for those on shapes."""
        wanted = layout.config.items()
        return (
            (not layout.model_types or not set(layout.model_types).isdisjoint(types))
            and all(next((part[key] for part in sections if key in part), None) == value for key, value in wanted)
            and (not layout.sibling or any(map(_compiled(layout.sibling).fullmatch, names)))
            and not (layout.no_sibling and any(map(_compiled(layout.no_sibling).fullmatch, names)))
        )

    def first(rest: str, weight: Weight, inputs: Mapping[str, int]) -> Layout | None:
        for layout in fitting(rest):
            stacked = layout.per_expert and not layout.expert_rows and not layout.has_expert_group
            if layout.cut != "skip" and not weight.refused and len(weight.shape) != (3 if stacked else 2):
                continue
            writer = layout.outputs.removeprefix("twice ")
            if writer and (weight.refused or _other(weight.shape, stack.width) != 2 * inputs.get(writer, -1)):
                continue
            if settled(layout):
                return layout
        return None

    inputs: dict[str, int] = {}
    for rest, weight in named:
        layout = first(rest, weight, {})
        if layout and layout.projections in (("o",), ("down",)) and not weight.refused and not layout.stack:
            inputs.setdefault(layout.projections[0], _other(weight.shape, stack.width))

    found: dict[tuple[tuple[str, ...], str], _Found] = {}
    for rest, weight in sorted(named, key=lambda item: _natural(item[0])):
        matrix = weight.refused or (len(weight.shape) > 1 and 0 not in weight.shape)
        layout = first(rest, weight, inputs) if matrix else None
        if layout is None or layout.cut == "skip":
            skipped[_template(weight.name), layout.reason if layout else _reason(weight)] += 1
            continue
        key = (layout.projections, layout.stack)
        there = found.get(key)
        if there is None:
            found[key] = _Found(stack, layer, rest, layout, (weight,))
        elif layout.has_expert_group and there.layout == layout:
            found[key] = replace(there, weights=(*there.weights, weight))
        else:
            skipped[_template(weight.name), f"another tensor holds {', '.join(layout.projections)} of the layer"] += 1
    return list(found.values())


def _reason(weight: Weight) -> str:
    """Why a tensor that no row describes is left out."""
    if 0 in weight.shape:
        return "empty"
    if len(weight.shape) < 2:
        return "a vector"
    if len(weight.shape) > 3:
        return "a convolution or another tensor that is no matrix"
    return "a bias" if weight.name.endswith("bias") else "no layout knows the name"


# ------------------------------------------------------------------------------------------------------------ placing


_NO_WIDTH = "without norms or config.json the width of the residual stream is not known"


def _other(shape: Sequence[int], width: int) -> int:
    """The size of the last two axes that is not the residual width; the width if both are."""
    rows, cols = shape[-2:]
    return rows if cols == width else cols


def _side(layout: Layout, projection: str, rows: int, cols: int, width: int) -> tuple[Side, str]:
    """Where a matrix [rows, cols] meets the residual stream, and a remark where that is not plain."""
    side = layout.side or _shipped().side(projection)
    if side is None:
        return _side_by_shape(rows, cols, width)
    if side == "none":
        return side, "inner: neither its input nor its output is the residual stream"
    if not width and not layout.orientation:
        return side, f"taken as stored [out, in]: {_NO_WIDTH}"
    if side == "v" and cols != width and not layout.stack:
        return "none", f"has {cols} inputs, the residual stream {width}"
    if side == "u" and rows != width:
        return "none", f"has {rows} outputs, the residual stream {width}"
    if side == "v" and layout.stack and projection != "q":
        return side, "reads the encoder's output"
    return side, ""


def _side_by_shape(rows: int, cols: int, width: int) -> tuple[Side, str]:
    if not width:
        return "none", _NO_WIDTH
    if rows == cols == width:
        return "both", "square: whether it reads or writes the residual stream is not known"
    if width in (rows, cols):
        return ("v", "") if cols == width else ("u", "")
    return "none", f"neither side has the {width} of the residual stream"


def _vote(found: Iterable[_Found]) -> Counter[tuple[str, bool]]:
    """How many tensors of a stack are stored [in, out] (positive) or [out, in] (negative).

    Counted apart for names with and without ".weight": expert parameters without it lie [in, out] beside [out, in]
    attention in one model.
    """
    votes: Counter[tuple[str, bool]] = Counter()
    for one in found:
        weight, side = one.weights[0], one.layout.side or _shipped().side(one.layout.projections[0])
        if weight.refused or one.layout.orientation or side not in ("v", "u"):
            continue
        rows, cols = weight.shape[-2:]
        meets_rows, meets_cols = rows == one.stack.width, cols == one.stack.width
        if meets_rows != meets_cols:
            votes[one.stack.name, _has_suffix(weight)] += 1 if meets_rows == (side == "v") else -1
    return votes


def _has_suffix(weight: Weight) -> bool:
    return _SUFFIX.search(weight.name) is not None


def _is_input_first(one: _Found, votes: Mapping[tuple[str, bool], int], config: Config | None) -> bool:
    """Whether a tensor is stored [in, out]: by its own shape, else as most of its stack, else as its family does."""
    weight = one.weights[0]
    if one.layout.orientation:
        return True
    side = one.layout.side or _shipped().side(one.layout.projections[0])
    rows, cols = weight.shape[-2:]
    meets_rows, meets_cols = rows == one.stack.width, cols == one.stack.width
    if side in ("v", "u") and meets_rows != meets_cols and not one.layout.stack:
        return meets_rows == (side == "v")
    vote = votes.get((one.stack.name, _has_suffix(weight)), 0)
    if vote:
        return vote > 0
    return not set(_model_types(one.stack, config)).isdisjoint(_shipped().residual["input_first"])


def _place(found: Sequence[_Found], config: Config | None) -> list[tuple[_Stack, Placement]]:
    """The placements and their stacks, stack by stack, layer by layer, in the customary order within a layer."""
    votes = _vote(found)
    inputs: dict[tuple[int, int, str], int] = {}
    for one in found:
        if one.layout.projections == ("o",) and not one.weights[0].refused:
            key = (id(one.stack), one.layer, one.layout.stack)
            inputs[key] = _other(one.weights[0].shape, one.stack.width)
    number = {id(stack): place for place, stack in enumerate({id(one.stack): one.stack for one in found}.values())}
    placed: list[tuple[tuple[int, str, int, float], _Stack, Placement]] = []
    for one in found:
        attention_width = inputs.get((id(one.stack), one.layer, one.layout.stack))
        for placement in _projections(one, _is_input_first(one, votes, config), attention_width, config):
            name = placement.projection.removesuffix("[E]").removeprefix("shared_").split("+")[0]
            place = _ORDER.index(name) if name in _ORDER else _ORDER.index("gate") - 0.5
            placed.append(((number[id(one.stack)], one.layout.stack, one.layer, place), one.stack, placement))
    return [(stack, placement) for _, stack, placement in sorted(placed, key=lambda entry: entry[0])]


def _projections(
    one: _Found, input_first: bool, attention_width: int | None, config: Config | None
) -> Iterator[Placement]:
    """The placements of one row's tensors."""
    layout, weight = one.layout, one.weights[0]
    stack = f"{one.stack.name} {layout.stack}" if layout.stack else one.stack.name
    size = sum(weight.bytes for weight in one.weights)
    refused = next((weight.refused for weight in one.weights if weight.refused), "")
    shape = weight.shape if len(weight.shape) > 1 else (weight.shape[0] if weight.shape else 0, 1)
    whole = Placement(
        stack=stack,
        projection="+".join(layout.projections),
        layer=one.layer,
        tensors=tuple(weight.name for weight in one.weights),
        rows=shape[-2],
        cols=shape[-1],
        dtype=weight.dtype,
        bytes=size,
        side="none",
        rule=layout.id,
    )
    if refused:
        sides = {layout.side or _shipped().side(projection) or "none" for projection in layout.projections}
        yield replace(whole, side=sides.pop() if len(sides) == 1 else "none", status="quantized_refused", note=refused)
        return
    experts, problem = 0, ""
    if layout.per_expert:
        experts = len(one.weights) if layout.has_expert_group else weight.shape[0]
    if layout.expert_rows:
        stated = _number("experts", one.stack, config)
        if stated is None or shape[0] % stated:
            problem = _unknown(one, config, "config.json does not give a number of experts that divides its rows")
        else:
            experts, shape = stated, (shape[0] // stated, shape[1])
    elif len({weight.shape for weight in one.weights}) > 1:
        problem = "its experts differ in shape"
    rows, cols = (shape[-1], shape[-2]) if input_first else (shape[-2], shape[-1])
    cuts = problem or _cuts(one, rows, attention_width, config)
    if isinstance(cuts, str):
        side, _ = _side(layout, layout.projections[0], rows, cols, one.stack.width)
        yield replace(whole, rows=rows, cols=cols, side=side, status="unsplit", note=cuts)
        return
    for projection, cut in zip(layout.projections, cuts, strict=True):
        out = rows if cut is None else cut.rows
        side, note = _side(layout, projection, out, cols, one.stack.width)
        status: Status = "ok"
        if one.stack.shared and len(one.stack.layers) == 1:
            status, note = "shared", "one set of weights is used by every layer: there are no layers to compare"
        yield replace(
            whole,
            projection=projection,
            rows=out,
            cols=cols,
            bytes=size * out // rows,
            side=side,
            cut=cut,
            transposed=input_first,
            experts=experts,
            status=status,
            note=note,
        )


def _unknown(one: _Found, config: Config | None, reason: str) -> str:
    if config is None:
        reason = "without config.json their order is unknown"
    return f"{one.rest} holds {' and '.join(one.layout.projections)} in one tensor, and {reason}"


def _cuts(one: _Found, rows: int, attention_width: int | None, config: Config | None) -> list[Cut | None] | str:
    """The rows of each projection of a tensor with `rows` outputs, or the reason why they cannot be told."""
    layout, count = one.layout, len(one.layout.projections)
    if layout.cut == "whole":
        return [None]
    if layout.cut == "unsplit":
        types = _model_types(one.stack, config)
        known = f"for model type {types[0]!r} their order is unknown" if types else "config.json has no model_type"
        return layout.reason or _unknown(one, config, known)
    if layout.cut == "concat":
        if attention_width is None:
            return _unknown(one, config, "the layer has no output projection that tells the size of q")
        rest = rows - attention_width
        if rest <= 0 or rest % 2:
            return _unknown(one, config, f"{rows} rows do not hold {attention_width} of q and two equal parts")
        bounds = [0, attention_width, attention_width + rest // 2, rows]
        return [Cut(1, rows, start, stop) for start, stop in pairwise(bounds)]
    if layout.cut in ("equal", "interleaved", "blocks4"):
        repeats = {"equal": 1, "blocks4": 4, "interleaved": max(1, rows // count)}[layout.cut]
    else:
        needed = "heads" if layout.cut == "heads" else "key_value_heads"
        stated = _number(needed, one.stack, config)
        if stated is None:
            return _unknown(one, config, f"config.json does not give the number of {needed.replace('_', '-')}")
        repeats = stated
    sizes = [1] * count
    if layout.cut == "groups":
        heads = _number("heads", one.stack, config)
        if heads is None or heads % repeats:
            return _unknown(one, config, f"config.json does not give a number of heads that {repeats} divides")
        sizes = [heads // repeats, 1, 1]
    if rows % (repeats * sum(sizes)):
        return _unknown(one, config, f"its {rows} rows are no multiple of {repeats * sum(sizes)}")
    period = rows // repeats
    unit = period // sum(sizes)
    bounds = [unit * sum(sizes[:part]) for part in range(count + 1)]
    return [Cut(repeats, period, start, stop) for start, stop in pairwise(bounds)]


# ----------------------------------------------------------------------------------------------------- unknown models


def _group_by_numbers(weights: Mapping[str, Weight], config: Config | None) -> Plan:
    """Matrices whose names differ in one number are taken as layers; the rest of the name is the projection.

    Raises:
        InputError: no two matrices have names that differ in a number alone.
    """
    families: dict[tuple[str, str], dict[int, Weight]] = {}
    places: dict[str, list[tuple[tuple[str, str], int]]] = {}
    for name, weight in weights.items():
        parts = name.split(".")
        if len(weight.shape) != 2 or 0 in weight.shape or weight.refused:
            continue
        for place, part in enumerate(parts):
            if _NUMBER.fullmatch(part):
                key = (".".join(parts[:place]), ".".join(parts[place + 1 :]))
                families.setdefault(key, {}).setdefault(int(part), weight)
                places.setdefault(name, []).append((key, int(part)))
    skipped: Counter[tuple[str, str]] = Counter()
    stacks: dict[str, _Stack] = {}
    for name, weight in weights.items():
        layered = [
            (key, layer)
            for key, layer in places.get(name, [])
            if len(families[key]) > 1 and families[key][layer] is weight
        ]
        if not layered:
            alone = len(weight.shape) == 2 and 0 not in weight.shape
            numbered = name in places
            lonely = "no other layer has a tensor of this name" if numbered else "no number of a layer in the name"
            reason = lonely if alone else _reason(weight)
            skipped[_template(name), weight.refused or reason] += 1
            continue
        (prefix, rest), layer = layered[0]
        stack = stacks.setdefault(prefix, _Stack(prefix, name=prefix or "layers"))
        stack.layers[layer].append((_SUFFIX.sub("", rest), weight))
    if not stacks:
        templates = Counter(
            (_template(name), "" if len(weight.shape) == 2 and all(weight.shape) else f", {_reason(weight)}")
            for name, weight in weights.items()
        )
        listed = ", ".join(f"{name} ({count}{reason})" for (name, reason), count in templates.most_common(10))
        holds_no_matrix = bool(templates) and all(reason for _, reason in templates)
        remedy = (
            "Save each projection as a matrix [out, in]" if holds_no_matrix else "Describe them in a file for --layouts"
        )
        raise InputError(
            f"no projections of adjacent layers are to be seen in the {len(weights)} tensor names",
            f"{remedy}. The commonest names: {listed or 'none at all'}.",
        )
    placed: list[tuple[_Stack, Placement]] = []
    for stack in stacks.values():
        width = stack.width = _width_by_numbers(stack, weights, config)
        for layer in sorted(stack.layers):
            for rest, weight in stack.layers[layer]:
                rows, cols = weight.shape
                side, note = _side_by_shape(rows, cols, width)
                placement = Placement(
                    stack=stack.name,
                    projection=rest,
                    layer=layer,
                    tensors=(weight.name,),
                    rows=rows,
                    cols=cols,
                    dtype=weight.dtype,
                    bytes=weight.bytes,
                    side=side,
                    rule="unknown names",
                    note=note,
                )
                placed.append((stack, placement))
    note = "no layout knows these names: they are grouped by the numbers in them, and taken as stored [out, in]"
    placements = tuple(placement for _, placement in placed)
    return Plan(placements, _skipped(skipped), _stack_table(placed), (note,))


def _width_by_numbers(stack: _Stack, weights: Mapping[str, Weight], config: Config | None) -> int:
    """The width of an unknown stack, its norm vectors found by the prefix."""
    layers = {number: list(names) for number, names in stack.layers.items()}
    start = f"{stack.prefix}." if stack.prefix else ""
    for name, weight in weights.items():
        number, _, rest = name.removeprefix(start).partition(".")
        if name.startswith(start) and len(weight.shape) == 1 and _NUMBER.fullmatch(number) and int(number) in layers:
            layers[int(number)].append((_SUFFIX.sub("", rest), weight))
    return _width(replace(stack, layers=layers), config)


# -------------------------------------------------------------------------------------------------------------- names


def _template(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _natural(name: str) -> str:
    """A key that sorts the numbers in names by their value."""
    return re.sub(r"\d+", lambda number: number[0].zfill(9), name)


def _skipped(counted: Mapping[tuple[str, str], int]) -> tuple[SkippedTensors, ...]:
    return tuple(SkippedTensors(name=name, count=count, reason=reason) for (name, reason), count in counted.items())
