"""Events of an analysis that looks like a Llama's, made from formulas: always the same, without any weights.

`events()` is 32 layers × 7 projections; `awkward_events()` has what checkpoints really bring: vectors that are not
unique, shapes that differ, zero and refused matrices, experts, a hybrid with gaps, several stacks, brackets in names.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from geocont import chance
from geocont.events import (
    AnalysisProgress,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    MatrixPlan,
    Message,
    PairMeasured,
    RunFinished,
    SkippedTensors,
)

START = 1_796_000_000.0
MODEL = "meta-llama/Llama-3.1-8B"
REVISION = "a1b2c3d4e5f60718293a4b5c6d7e8f9001122334"

# Projection, tensor, rows, columns, side, mean v1, mean u1.
_LLAMA: tuple[tuple[str, str, int, int, Literal["v", "u"], float, float], ...] = (
    ("q", "self_attn.q_proj", 4096, 4096, "v", 0.58, 0.11),
    ("k", "self_attn.k_proj", 1024, 4096, "v", 0.61, 0.09),
    ("v", "self_attn.v_proj", 1024, 4096, "v", 0.07, 0.06),
    ("o", "self_attn.o_proj", 4096, 4096, "u", 0.10, 0.44),
    ("gate", "mlp.gate_proj", 14336, 4096, "v", 0.47, 0.02),
    ("up", "mlp.up_proj", 14336, 4096, "v", 0.39, 0.02),
    ("down", "mlp.down_proj", 4096, 14336, "u", 0.02, 0.41),
)
_NOT_UNIQUE = {("v", 7), ("v", 19)}


def plan(layers: int = 32) -> tuple[MatrixPlan, ...]:
    """The matrices of a Llama, layer by layer."""
    return tuple(
        MatrixPlan(
            stack="text",
            projection=projection,
            layer=layer,
            tensors=(f"model.layers.{layer}.{tensor}.weight",),
            rows=rows,
            cols=cols,
            dtype="BF16",
            bytes=2 * rows * cols,
            side=side,
            rule="plain",
        )
        for layer in range(layers)
        for projection, tensor, rows, cols, side, *_ in _LLAMA
    )


def started(matrices: Sequence[MatrixPlan], **changes: Any) -> AnalysisStarted:
    """The first event for a plan; `changes` replace fields."""
    fields: dict[str, Any] = {
        "model": MODEL,
        "revision": REVISION,
        "source": "streamed from huggingface.co",
        "parameters": {"gap_tolerance": 0.005, "top_k": 8},
        "matrices": tuple(matrices),
        "skipped": (
            SkippedTensors(name="model.embed_tokens.weight", count=1, reason="not a projection of a layer"),
            SkippedTensors(name="lm_head.weight", count=1, reason="not a projection of a layer"),
            SkippedTensors(name="model.layers.#.input_layernorm.weight", count=32, reason="a vector"),
        ),
        "bytes": sum(matrix.bytes for matrix in matrices if matrix.status == "ok"),
        "device": "cpu, 2 threads",
        "versions": {"geocont-tui": "0.1.0", "torch": "2.13"},
        "time": START,
    }
    return AnalysisStarted(**(fields | changes))


def events(until: float = 1.0, layers: int = 32, **changes: Any) -> Iterator[Event]:
    """The analysis of a Llama up to the share `until` of its matrices; RunFinished(done) when that is 1."""
    matrices = plan(layers)
    yield started(matrices, **changes)
    yield Message(level="info", text=f"{len(matrices)} matrices, 2 sets of files: model.safetensors used", time=START)
    yield from _measured(matrices, until)
    if until >= 1:
        yield RunFinished(status="done", time=START + 40, elapsed=40.0)


def awkward() -> tuple[MatrixPlan, ...]:
    """A plan with everything that can be odd."""

    def one(stack: str, projection: str, layer: int, rows: int, cols: int, side: Any, **changes: Any) -> MatrixPlan:
        fields: dict[str, Any] = {
            "stack": stack,
            "projection": projection,
            "layer": layer,
            "tensors": (f"{stack}.layers.{layer}.[{projection}].weight",),
            "rows": rows,
            "cols": cols,
            "dtype": "BF16",
            "bytes": 2 * rows * cols,
            "side": side,
            "rule": "plain",
        }
        return MatrixPlan(**(fields | changes))

    found: list[MatrixPlan] = []
    for layer in range(12):
        if layer % 4 == 3:
            found.append(one("text", "q", layer, 512, 512, "v"))
        experts = tuple(f"text.layers.{layer}.mlp.experts.{expert}.gate_proj.weight" for expert in range(8))
        found.append(one("text", "gate[E]", layer, 8 * 256, 512, "v", tensors=experts, rule="experts"))
        refused = layer in (4, 5)
        found.append(
            one(
                "text",
                "down[E]",
                layer,
                512,
                256,
                "u",
                dtype="GPTQ, 4 bits" if refused else "FP8 in blocks of 128×128",
                status="quantized_refused" if refused else "ok",
                note="GPTQ weights are not read; analyse the model before it was quantised" if refused else "",
            )
        )
        found.append(one("text", "up", layer, 1024 if layer < 6 else 768, 512, "v"))
    for layer in range(6):
        found.append(
            one("vision [tower]", "qkv", layer, 768, 256, "v", status="unsplit", note="config.json is missing")
        )
        found.append(one("vision [tower]", "o", layer, 256, 256, "both"))
    return tuple(found)


def awkward_events(until: float = 1.0) -> Iterator[Event]:
    """The analysis of `awkward()`."""
    matrices = awkward()
    yield started(matrices, model="./models/odd[1]/it's", revision=None, source="folder /models/odd[1]")
    yield Message(level="warning", text="the index lists tensors that no file holds: [a], [b]", time=START)
    yield from _measured(matrices, until)
    if until >= 1:
        yield RunFinished(status="done", time=START + 40, elapsed=40.0)


def _measured(matrices: Sequence[MatrixPlan], until: float) -> Iterator[Event]:
    yield AnalysisProgress(matrices=0, bytes_read=0, elapsed=0.0, bytes_per_second=None)
    before: dict[tuple[str, str], list[MatrixPlan]] = {}
    read = 0
    for count, matrix in enumerate(matrices, 1):
        if count > until * len(matrices):
            return
        others = before.setdefault((matrix.stack, matrix.projection), [])
        if matrix.status == "ok":
            yield measured(matrix, [other for other in others if other.status == "ok"])
            read += matrix.bytes
        if others:
            yield pair(others[-1], matrix)
        others.append(matrix)
        yield AnalysisProgress(matrices=count, bytes_read=read, elapsed=0.2 * count, bytes_per_second=410e6)


def measured(matrix: MatrixPlan, others: Sequence[MatrixPlan], **changes: Any) -> MatrixMeasured:
    """One matrix; its cosines fall with the distance between the layers."""
    status = _status(matrix)
    chosen = random.Random(f"{matrix.stack} {matrix.projection} {matrix.layer}")
    is_usable = status in ("ok", "not_unique")
    sigma = 30 + 10 * chosen.random()
    gap = 0.002 if status == "not_unique" else 0.2 + chosen.random()
    both = [_cosines(other, matrix) for other in others]
    fields: dict[str, Any] = {
        "stack": matrix.stack,
        "projection": matrix.projection,
        "layer": matrix.layer,
        "singular_values": (sigma, sigma / (1 + gap), sigma / (1.2 + gap)) if is_usable else (0.0,),
        "gap": gap if is_usable else None,
        "stable_rank": 12.5 if is_usable else None,
        "frobenius": 3.5 * sigma if is_usable else 0.0,
        "v1_error_bound": 2e-4 if is_usable else None,
        "u1_error_bound": 2e-4 if is_usable else None,
        "status": status,
        "note": {"not_unique": "σ1/σ2 = 1.002", "zero": "all its numbers are 0"}.get(status, ""),
        "cached": matrix.layer < 2,
        "others": tuple(other.layer for other in others),
        "v1_cosines": tuple(v for v, _ in both),
        "u1_cosines": tuple(u for _, u in both),
    }
    return MatrixMeasured(**(fields | changes))


def pair(first: MatrixPlan, second: MatrixPlan, **changes: Any) -> PairMeasured:
    """Two consecutive layers."""
    v, u = _cosines(first, second)
    status = next((found for found in (_status(first), _status(second)) if found != "ok"), "ok")
    note = {"not_unique": "σ1/σ2 = 1.002 in one of the two", "zero": "one of the two is zero"}.get(status, "")
    if status == "ok" and first.rows != second.rows:
        note = f"u n/a ({first.rows} vs {second.rows})"
    fields: dict[str, Any] = {
        "stack": first.stack,
        "projection": first.projection,
        "layer_a": first.layer,
        "layer_b": second.layer,
        "v1_cosine": v,
        "u1_cosine": u,
        "v_dim": first.cols,
        "u_dim": first.rows if first.rows == second.rows else None,
        "v1_chance": chance.mean_cosine(first.cols),
        "u1_chance": chance.mean_cosine(first.rows) if first.rows == second.rows else None,
        "residual_side": first.side,
        "v_gram": None if v is None else 0.8 * v,
        "u_gram": None if u is None else 0.8 * u,
        "v_gram_error": None if v is None else 0.001,
        "u_gram_error": None if u is None else 0.001,
        "v_weighted": None if v is None else 0.1 * v,
        "u_weighted": None if u is None else 0.1 * u,
        "weighted_share": 0.31,
        "v_overlap": () if v is None else (v**2, 0.9 * v, 0.8 * v),
        "u_overlap": () if u is None else (u**2, 0.9 * u, 0.8 * u),
        "v_error_bound": None if v is None else 4e-4,
        "u_error_bound": None if u is None else 4e-4,
        "status": status,
        "note": note,
    }
    return PairMeasured(**(fields | changes))


def _status(matrix: MatrixPlan) -> Any:
    if (matrix.projection, matrix.layer) in _NOT_UNIQUE:
        return "not_unique"
    if (matrix.stack, matrix.projection, matrix.layer) == ("vision [tower]", "o", 3):
        return "zero"
    return matrix.status


def _cosines(first: MatrixPlan, second: MatrixPlan) -> tuple[float | None, float | None]:
    if _status(first) != "ok" or _status(second) != "ok":
        return None, None
    means = {projection: (v, u) for projection, *_, v, u in _LLAMA}
    v, u = means.get(matrix_name(first), (0.5, 0.2))
    chosen = random.Random(f"{first.stack} {first.projection} {first.layer} {second.layer}")
    shrink = 0.93 ** (second.layer - first.layer - 1)

    def around(mean: float, size: int) -> float:
        if mean < 0.2:
            return abs(chosen.gauss(0, mean + 1 / size**0.5))
        return min(max(mean * shrink + 0.25 * chosen.uniform(-1, 1), 0.0), 1.0)

    v1, u1 = around(v, first.cols), around(u, first.rows)
    return (v1 if first.cols == second.cols else None), (u1 if first.rows == second.rows else None)


def matrix_name(matrix: MatrixPlan) -> str:
    """The projection without what says that it is one of experts."""
    return matrix.projection.partition("[")[0]
