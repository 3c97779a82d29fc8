"""Tidy tables from the events of a run: one observation a row, stable columns, for CSV, JSON and Parquet.

A number that does not exist, or is not finite, is None here: empty in CSV, null in JSON and Parquet. Columns and their
order are a contract with the users' notebooks.
"""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest
from pathlib import Path

import msgspec

from geocont import pairs
from geocont.ablations.experiment import AnyExperiment, LanguageExperiment
from geocont.atomic import atomic_file
from geocont.claims import Finding
from geocont.errors import InputError
from geocont.events import (
    RESIDUAL_SIDES,
    AnalysisStarted,
    Event,
    MatrixMeasured,
    MatrixPlan,
    NetworkDiverged,
    NetworkFinished,
    PairMeasured,
    Probe,
    Progress,
    RunContinued,
    RunFinished,
    RunStarted,
    mean_of_pairs,
    perplexity,
)

Value = str | int | float | None

_CHOOSE_ANOTHER = "choose another place; `geocont-tui export RUN` writes the tables again at any time"

_PRECISION = "float32"
"""What networks are trained in where the experiment does not say."""

TRAINING = {
    "experiment": str,
    "variant": str,
    "seed": int,
    "step": int,
    "projection": str,
    "loss": float,
    "accuracy": float,
    "weight_v1": float,
    "weight_u1": float,
    "weight_v_weighted": float,
    "weight_u_weighted": float,
    "gradient_v1": float,
    "gradient_u1": float,
    "cumulative_v1": float,
    "cumulative_u1": float,
    "update_v1": float,
    "update_u1": float,
    "update_ratio": float,
    "sigma_ratio": float,
    "top_overlap_v": float,
    "top_overlap_u": float,
    "cumulative_match": float,
    "drift": float,
    "identity_share": float,
    "activation_factor": float,
    "held_out_loss": float,
    "perplexity": float,
    "precision": str,
    "residual_side": str,
}
"""Columns of the training table: a row per probe. v1 and u1 are means over the adjacent pairs that have the cosine.

perplexity: exp of held_out_loss, which is evaluated at some steps only. precision: what the network was trained in.
residual_side: v1 or u1, where the projection of a transformer meets the residual stream; None without a stream, and for
residual MLPs, whose matrices both read from it and write to it.
"""

TRAINING_PAIRS = {
    "experiment": str,
    "variant": str,
    "seed": int,
    "step": int,
    "projection": str,
    "layer_a": int,
    "layer_b": int,
    "weight_v1": float,
    "weight_u1": float,
    "gradient_v1": float,
    "gradient_u1": float,
    "cumulative_v1": float,
    "cumulative_u1": float,
    "update_v1": float,
    "update_u1": float,
    "precision": str,
    "residual_side": str,
}
"""Columns of the training_pairs table: a row per probe and pair of adjacent layers, counted from 0.

residual_side: as in the training table.
"""

NETWORKS = {
    "experiment": str,
    "variant": str,
    "seed": int,
    "status": str,
    "steps": int,
    "planned_steps": int,
    "test_loss": float,
    "test_accuracy": float,
    "note": str,
    "precision": str,
}
"""Columns of the networks table: a row per network. status: finished, diverged, unfinished; note: why, in words.

test_loss of a network trained on text: the loss on text that is not trained on, in nats a token.
"""

CLAIMS: dict[str, type] = {
    "experiment": str,
    "claim": str,
    "variants": str,
    "verdict": str,
    "numbers": str,
    "reason": str,
    "precision": str,
}
"""Columns of the claims table: a row per claim of the source that the experiment puts to the test.

variants: the names of those whose networks were asked, joined by "; ". verdict: supported, not yet, confounded or
contradicted; numbers and reason: why, in words.
"""


PAIRS = {
    "model": str,
    "revision": str,
    "stack": str,
    "projection": str,
    "layer_a": int,
    "layer_b": int,
    "v1_cosine": float,
    "u1_cosine": float,
    "v_dim": int,
    "u_dim": int,
    "v1_chance": float,
    "u1_chance": float,
    "residual_side": str,
    "v_gram": float,
    "u_gram": float,
    "v_weighted": float,
    "u_weighted": float,
    "v_overlap": float,
    "u_overlap": float,
    "v_error_bound": float,
    "u_error_bound": float,
    "status": str,
    "note": str,
    "adjacent": str,
    "v_gram_error": float,
    "u_gram_error": float,
    "weighted_share": float,
    "overlap_k": int,
}
"""Columns of the pairs table: a row per two layers of a stack that have the projection.

`adjacent` is yes or no; what follows the cosines is measured of adjacent layers only. The overlaps are those of the
leading `overlap_k` vectors. residual_side: v, u, both (unknown orientation) or none.
"""

MATRICES = {
    "model": str,
    "revision": str,
    "stack": str,
    "projection": str,
    "layer": int,
    "tensor": str,
    "rows": int,
    "cols": int,
    "dtype": str,
    "sigma1": float,
    "sigma2": float,
    "gap": float,
    "stable_rank": float,
    "frobenius": float,
    "v1_error_bound": float,
    "status": str,
    "note": str,
    "u1_error_bound": float,
}
"""Columns of the matrices table: a row per planned matrix, those not measured too. gap: σ1/σ2 − 1."""


@dataclass(frozen=True)
class Table:
    """`columns` maps each column to its type; each row has one value per column, None for what does not exist."""

    name: str
    columns: dict[str, type]
    rows: list[tuple[Value, ...]]


@dataclass(frozen=True)
class Tables:
    """The tables of one run of ablations."""

    training: Table
    training_pairs: Table
    networks: Table

    def __iter__(self) -> Iterator[Table]:
        return iter((self.training, self.training_pairs, self.networks))


@dataclass(frozen=True)
class AnalysisTables:
    """The tables of one analysis."""

    pairs: Table
    matrices: Table

    def __iter__(self) -> Iterator[Table]:
        return iter((self.pairs, self.matrices))


def tables(events: Iterable[Event]) -> Tables | AnalysisTables:
    """Fold the events of a run into its tables, in one pass; which ones says the first event.

    Errors raised by `events` (a damaged journal) pass through.
    """
    coming = iter(events)
    first = next(coming, None)
    if isinstance(first, AnalysisStarted):
        return _analysis_tables(first, coming)
    return _ablation_tables(coming if first is None else chain([first], coming))


def claims_table(experiment: AnyExperiment, findings: Iterable[Finding]) -> Table:
    """What a run of `experiment` says about the claims of the source, in the order of `findings`."""
    precision = experiment.precision if isinstance(experiment, LanguageExperiment) else _PRECISION
    rows: list[tuple[Value, ...]] = [
        (
            experiment.name,
            finding.claim,
            "; ".join(finding.variants) or None,
            finding.verdict,
            finding.numbers,
            finding.reason or None,
            precision,
        )
        for finding in findings
    ]
    return Table("claims", CLAIMS, rows)


def _ablation_tables(events: Iterable[Event]) -> Tables:
    """Rows in the order of the events."""
    experiment, precision = "", _PRECISION
    without_stream: set[str] = set()
    training: list[tuple[Value, ...]] = []
    pairs: list[tuple[Value, ...]] = []
    networks: dict[tuple[str, int], _Network] = {}
    end = _end(None)

    def network(variant: str, seed: int) -> "_Network":
        return networks.setdefault((variant, seed), _Network())

    for event in events:
        match event:
            case RunStarted():
                experiment, precision = event.name, event.experiment.get("precision", _PRECISION)
                settings = event.experiment.get("variants", ())
                without_stream = {each["name"] for each in settings if not each.get("residual", True)}
                for plan in event.networks:
                    network(plan.variant, plan.seed).planned_steps = plan.steps
            case Progress():
                for where in event.networks:
                    network(where.variant, where.seed).steps = where.step
            case Probe():
                network(event.variant, event.seed).steps = event.step
                side = RESIDUAL_SIDES.get(event.projection) if event.variant not in without_stream else None
                last = (precision, f"{side}1" if side else None)
                training.append((*_training_row(experiment, event), *last))
                pairs.extend((*row, *last) for row in _pair_rows(experiment, event))
            case NetworkFinished():
                finished = network(event.variant, event.seed)
                finished.status, finished.steps = "finished", event.step
                finished.test_loss, finished.test_accuracy = _finite(event.test_loss), _finite(event.test_accuracy)
            case NetworkDiverged():
                diverged = network(event.variant, event.seed)
                diverged.status, diverged.steps, diverged.note = "diverged", event.step, event.reason
            case RunContinued():
                end = _end(None)
            case RunFinished():
                end = _end(event)
    network_rows: list[tuple[Value, ...]] = [
        (
            experiment,
            variant,
            seed,
            item.status,
            item.steps,
            item.planned_steps,
            item.test_loss,
            item.test_accuracy,
            item.note or (end if item.status == "unfinished" else None),
            precision,
        )
        for (variant, seed), item in networks.items()
    ]
    return Tables(
        training=Table("training", TRAINING, training),
        training_pairs=Table("training_pairs", TRAINING_PAIRS, pairs),
        networks=Table("networks", NETWORKS, network_rows),
    )


def _analysis_tables(started: AnalysisStarted, events: Iterable[Event]) -> AnalysisTables:
    """Rows in the order of the plan: stack by stack, projection by projection, layer by layer."""
    measured: dict[tuple[str, str, int], MatrixMeasured] = {}
    compared: dict[tuple[str, str, int, int], PairMeasured] = {}
    end: RunFinished | None = None
    for event in events:
        match event:
            case MatrixMeasured():
                measured[event.stack, event.projection, event.layer] = event
            case PairMeasured():
                compared[event.stack, event.projection, event.layer_a, event.layer_b] = event
            case RunContinued():
                end = None
            case RunFinished():
                end = event
    rows: dict[tuple[str, str], list[MatrixPlan]] = {}
    for plan in started.matrices:
        rows.setdefault((plan.stack, plan.projection), []).append(plan)
    missing = "not measured: " + _end(end)
    matrix_rows: list[tuple[Value, ...]] = []
    pair_rows: list[tuple[Value, ...]] = []
    for name, plans in rows.items():
        plans.sort(key=lambda plan: plan.layer)
        for plan in plans:
            matrix_rows.append(_matrix_row(started, plan, measured.get((*name, plan.layer)), missing))
        for (number, first), (other, second) in combinations(enumerate(plans), 2):
            ends = [measured.get((*name, plan.layer)) for plan in (first, second)]
            pair = compared.get((*name, first.layer, second.layer)) or pairs.pair(first, second, *ends)
            if any(plan.status == "ok" and one is None for plan, one in zip((first, second), ends, strict=True)):
                pair = msgspec.structs.replace(pair, note="; ".join(filter(None, (pair.note, missing))))
            pair_rows.append(_layer_pair_row(started, pair, adjacent=other == number + 1))
    return AnalysisTables(Table("pairs", PAIRS, pair_rows), Table("matrices", MATRICES, matrix_rows))


def check_targets(
    csv: Path | None = None, json: Path | None = None, parquet: Path | None = None, *, source: Path | None = None
) -> None:
    """See that tables can be written, and make the folders they need, before a long job relies on it.

    Args:
        csv, json, parquet: as given to `write_csv`, `write_json`, `write_parquet`.
        source: the file or folder that the job reads. No file of it is ever replaced.

    Raises:
        InputError: nothing can be written there, two targets are one file, or it is a file of `source`.
    """
    taken: dict[Path, str] = {}
    for target, suffix in ((csv, ".csv"), (json, ".json"), (parquet, ".parquet")):
        if target is None:
            continue
        file = _files(target, suffix, [target.stem])[0]
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            is_device = _is_device(target)
            is_writable = os.access(target if is_device else file.parent, os.W_OK)
            resolved = target.resolve()
            is_of_source = source is not None and file.is_file() and file.resolve().is_relative_to(source.resolve())
        except OSError as error:
            raise _unwritable(target, error) from None
        if not is_writable:
            raise InputError(f"{target} cannot be written: {file.parent} is not writable", _CHOOSE_ANOTHER)
        if is_of_source:
            raise InputError(f"{file} is there already, and {source} is what is read", _CHOOSE_ANOTHER)
        before = taken.setdefault(resolved, suffix)
        if before != suffix and not is_device and (file == target or before == ".json" or resolved.suffix == before):
            raise InputError(f"{target} is to hold two kinds of tables, {before[1:]} and {suffix[1:]}", _CHOOSE_ANOTHER)


def write_csv(tables: Iterable[Table], target: Path) -> list[Path]:
    """Write a file per table (training.csv, training_pairs.csv, …; pairs.csv, matrices.csv) into the folder `target`.

    The folder is made if missing. A `target` that ends in .csv gets the first table alone. UTF-8, one header line,
    floats as repr gives them, empty for what does not exist. Returns the files written.

    Raises:
        InputError: the target cannot be written. A file that was there before is then unchanged.
    """
    tables = list(tables)
    files = _files(target, ".csv", [table.name for table in tables])
    for table, path in zip(tables, files, strict=False):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(table.rows)
        _write(path, text.getvalue().encode("utf-8"))
    return files


def write_json(tables: Iterable[Table], target: Path) -> list[Path]:
    """Write one object with a list per table, {"training": [{column: value, …}, …], …}, into a file.

    Raises:
        InputError: the target cannot be written. A file that was there before is then unchanged.
    """
    files = _files(target, ".json", [])
    rows = {table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in tables}
    _write(files[0], msgspec.json.encode(rows) + b"\n")
    return files


def write_parquet(tables: Iterable[Table], target: Path) -> list[Path]:
    """As `write_csv`, in Parquet: string, int64 and double columns, null for what does not exist.

    A `target` that ends in .parquet gets the first table alone.

    Raises:
        InputError: the target cannot be written. A file that was there before is then unchanged.
    """
    import pyarrow
    import pyarrow.parquet

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    tables = list(tables)
    files = _files(target, ".parquet", [table.name for table in tables])
    for table, path in zip(tables, files, strict=False):
        values = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
        columns = [
            pyarrow.array(column, types[kind]) for column, kind in zip(values, table.columns.values(), strict=True)
        ]
        content = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table(columns, names=list(table.columns)), content)
        _write(path, content.getvalue().to_pybytes())
    return files


def _end(event: RunFinished | None) -> str:
    if event is None:
        return "the journal ends before the run does"
    return f"the run {event.status}: {event.problem}" if event.problem else f"the run was {event.status}"


def _matrix_row(
    started: AnalysisStarted, plan: MatrixPlan, measured: MatrixMeasured | None, missing: str
) -> tuple[Value, ...]:
    sigma = measured.singular_values if measured else ()
    notes = [plan.note, measured.note if measured else missing if plan.status == "ok" else ""]
    if measured and measured.same_as is not None:
        notes.append(f"the same weights as layer {measured.same_as}")
    return (
        started.model,
        started.revision,
        plan.stack,
        plan.projection,
        plan.layer,
        " ".join(plan.tensors),
        plan.rows,
        plan.cols,
        plan.dtype,
        _finite(sigma[0]) if sigma else None,
        _finite(sigma[1]) if len(sigma) > 1 else None,
        _finite(measured.gap) if measured else None,
        _finite(measured.stable_rank) if measured else None,
        _finite(measured.frobenius) if measured else None,
        _finite(measured.v1_error_bound) if measured else None,
        pairs.status(plan, measured),
        "; ".join(filter(None, notes)) or None,
        _finite(measured.u1_error_bound) if measured else None,
    )


def _layer_pair_row(started: AnalysisStarted, pair: PairMeasured, adjacent: bool) -> tuple[Value, ...]:
    return (
        started.model,
        started.revision,
        pair.stack,
        pair.projection,
        pair.layer_a,
        pair.layer_b,
        _finite(pair.v1_cosine),
        _finite(pair.u1_cosine),
        pair.v_dim,
        pair.u_dim,
        _finite(pair.v1_chance),
        _finite(pair.u1_chance),
        pair.residual_side,
        _finite(pair.v_gram),
        _finite(pair.u_gram),
        _finite(pair.v_weighted),
        _finite(pair.u_weighted),
        _finite(pair.v_overlap[-1]) if pair.v_overlap else None,
        _finite(pair.u_overlap[-1]) if pair.u_overlap else None,
        _finite(pair.v_error_bound),
        _finite(pair.u_error_bound),
        pair.status,
        pair.note or None,
        "yes" if adjacent else "no",
        _finite(pair.v_gram_error),
        _finite(pair.u_gram_error),
        _finite(pair.weighted_share),
        max(len(pair.v_overlap), len(pair.u_overlap)) or None,
    )


@dataclass
class _Network:
    status: str = "unfinished"
    steps: int = 0
    planned_steps: int | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    note: str | None = None


def _training_row(experiment: str, probe: Probe) -> tuple[Value, ...]:
    numbers = (
        probe.loss,
        probe.accuracy,
        mean_of_pairs(probe.weight.v1),
        mean_of_pairs(probe.weight.u1),
        probe.weight_v_weighted,
        probe.weight_u_weighted,
        mean_of_pairs(probe.gradient.v1),
        mean_of_pairs(probe.gradient.u1),
        mean_of_pairs(probe.cumulative.v1),
        mean_of_pairs(probe.cumulative.u1),
        mean_of_pairs(probe.update.v1),
        mean_of_pairs(probe.update.u1),
        probe.update_ratio,
        probe.sigma_ratio,
        probe.top_overlap_v,
        probe.top_overlap_u,
        probe.cumulative_match,
        probe.drift,
        probe.identity_share,
        probe.activation_factor,
        probe.held_out_loss,
        perplexity(probe.held_out_loss),
    )
    return (experiment, probe.variant, probe.seed, probe.step, probe.projection, *map(_finite, numbers))


def _pair_rows(experiment: str, probe: Probe) -> Iterator[tuple[Value, ...]]:
    alignments = (probe.weight, probe.gradient, probe.cumulative, probe.update)
    cosines = zip_longest(*(side for alignment in alignments for side in (alignment.v1, alignment.u1)))
    for layer, row in enumerate(cosines):
        yield (
            experiment,
            probe.variant,
            probe.seed,
            probe.step,
            probe.projection,
            layer,
            layer + 1,
            *map(_finite, row),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _files(target: Path, suffix: str, names: Iterable[str]) -> list[Path]:
    """The files that `target` stands for: itself for the first table alone (or for JSON), or one a name in a folder."""
    try:
        is_folder = target.is_dir()
        if suffix == ".json":
            if is_folder:
                raise InputError(f"{target} is a folder; JSON goes into one file", "give the name of a file")
            # Standard output by its name may be a file that is named well.
            if target.is_file() and suffix not in (target.suffix.lower(), target.resolve().suffix.lower()):
                raise InputError(
                    f"{target} is there already, and its name does not end in {suffix}: it may be no table",
                    f"give a file name ending in {suffix}, or one that is not there yet",
                )
            return [target]
        if target.suffix.lower() == suffix and not is_folder:
            return [target]
        if target.exists() and not is_folder:
            raise InputError(
                f"{target} is a file whose name does not end in {suffix}",
                f"give a folder for all tables, or a file name ending in {suffix} for the main table alone",
            )
    except OSError as error:
        raise _unwritable(target, error) from None
    return [target / f"{name}{suffix}" for name in names]


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(content)
    except OSError as error:
        raise _unwritable(path, error) from None


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written: {error.strerror or error}", _CHOOSE_ANOTHER)
