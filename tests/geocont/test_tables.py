"""The tables that users take away: exact columns, exact bytes, honest gaps."""

import csv
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from geocont.errors import InputError
from geocont.events import (
    Alignment,
    AnalysisStarted,
    MatrixMeasured,
    MatrixPlan,
    NetworkDiverged,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    PairMeasured,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)
from geocont.tables import check_targets, tables, write_csv, write_json, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

TRAINING_HEADER = (
    b"experiment,variant,seed,step,projection,loss,accuracy,weight_v1,weight_u1,weight_v_weighted,weight_u_weighted,"
    b"gradient_v1,gradient_u1,cumulative_v1,cumulative_u1,update_v1,update_u1,update_ratio,sigma_ratio,top_overlap_v,"
    b"top_overlap_u,cumulative_match,drift,identity_share,activation_factor,held_out_loss,perplexity,precision,"
    b"residual_side\n"
)
PAIRS_HEADER = (
    b"experiment,variant,seed,step,projection,layer_a,layer_b,weight_v1,weight_u1,gradient_v1,gradient_u1,"
    b"cumulative_v1,cumulative_u1,update_v1,update_u1,precision,residual_side\n"
)
NETWORKS_HEADER = b"experiment,variant,seed,status,steps,planned_steps,test_loss,test_accuracy,note,precision\n"

NONE = Alignment(v1=(None, None), u1=(None, None))


def probe(variant="Res+GELU", seed=0, step=7, **changes) -> Probe:
    fields = {
        "projection": "mlp",
        "v_dim": 256,
        "u_dim": 256,
        "loss": 0.1,
        "accuracy": 0.875,
        "weight": Alignment(v1=(0.5, None), u1=(0.25, 0.75)),
        "gradient": Alignment(v1=(0.1, 0.3), u1=(1e-17, 0.0)),
        "cumulative": NONE,
        "update": NONE,
        "weight_v_weighted": 0.3,
        "weight_u_weighted": None,
        "update_ratio": 0.0,
        "sigma_ratio": 1.5,
        "top_overlap_v": 0.04,
        "top_overlap_u": 0.05,
        "cumulative_match": None,
        "drift": None,
        "identity_share": 1 / 3,
        "activation_factor": None,
        "gradient_norm": 2.0,
        "exact": True,
        "missing": {"drift": "first snapshot"},
    }
    return Probe(variant=variant, seed=seed, step=step, **{**fields, **changes})


def started(*plans: tuple[str, int, int]) -> RunStarted:
    networks = tuple(NetworkPlan(variant=variant, seed=seed, steps=steps) for variant, seed, steps in plans)
    return RunStarted(name="mlp", experiment={}, networks=networks, device="cpu", versions={}, time=0.0)


def run(*events):
    return [started(("Res+GELU", 0, 10)), *events, RunFinished(status="done", time=1.0)]


def read_csv(path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def test_csv_bytes_of_the_training_table(tmp_path):
    files = write_csv(tables(run(probe())), tmp_path / "out")
    assert [file.name for file in files] == ["training.csv", "training_pairs.csv", "networks.csv"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(file.name for file in files)
    assert files[0].read_bytes() == TRAINING_HEADER + (
        b"mlp,Res+GELU,0,7,mlp,0.1,0.875,0.5,0.5,0.3,,0.2,5e-18,,,,,0.0,1.5,0.04,0.05,,,0.3333333333333333,,,,float32,\n"
    )


def test_csv_bytes_of_the_pairs_table(tmp_path):
    write_csv(tables(run(probe())), tmp_path)
    assert (tmp_path / "training_pairs.csv").read_bytes() == PAIRS_HEADER + (
        b"mlp,Res+GELU,0,7,mlp,0,1,0.5,0.25,0.1,1e-17,,,,,float32,\n"
        b"mlp,Res+GELU,0,7,mlp,1,2,,0.75,0.3,0.0,,,,,float32,\n"
    )


def test_csv_bytes_of_the_networks_table(tmp_path):
    events = [
        started(("a", 0, 10), ("a", 1, 10), ("b", 0, 20), ("b", 1, 20)),
        NetworkFinished(variant="a", seed=0, step=10, test_loss=0.5, test_accuracy=0.9),
        NetworkDiverged(variant="a", seed=1, step=4, reason="the loss is not finite"),
        Progress(
            networks=(NetworkProgress(variant="b", seed=0, step=3, loss=0.2),),
            elapsed=1.0,
            steps_per_second=None,
            probe_share=None,
        ),
        RunFinished(status="stopped", time=1.0),
    ]
    write_csv(tables(events), tmp_path)
    assert (tmp_path / "networks.csv").read_bytes() == NETWORKS_HEADER + (
        b"mlp,a,0,finished,10,10,0.5,0.9,,float32\n"
        b"mlp,a,1,diverged,4,10,,,the loss is not finite,float32\n"
        b"mlp,b,0,unfinished,3,20,,,the run was stopped,float32\n"
        b"mlp,b,1,unfinished,0,20,,,the run was stopped,float32\n"
    )


def test_notes_of_a_failed_run_and_of_one_without_an_end():
    failed = tables([started(("a", 0, 10)), RunFinished(status="failed", time=1.0, problem="no memory", remedy="less")])
    assert failed.networks.rows[0][-2] == "the run failed: no memory"
    assert tables([started(("a", 0, 10))]).networks.rows[0][-2] == "the journal ends before the run does"


def test_a_csv_file_gets_the_training_table_alone(tmp_path):
    target = tmp_path / "new" / "mine.CSV"
    assert write_csv(tables(run(probe())), target) == [target]
    assert target.read_bytes().startswith(TRAINING_HEADER)
    assert [path.name for path in target.parent.iterdir()] == ["mine.CSV"]


def test_an_empty_run_gives_headers(tmp_path):
    write_csv(tables([]), tmp_path)
    assert (tmp_path / "training.csv").read_bytes() == TRAINING_HEADER
    write_parquet(tables([]), tmp_path)
    assert pyarrow.parquet.read_table(tmp_path / "training.parquet").num_rows == 0


def test_names_with_commas_quotes_and_newlines(tmp_path):
    name = 'σ "1,5"\nRes'
    write_csv(tables([started((name, 0, 1)), probe(variant=name)]), tmp_path)
    assert read_csv(tmp_path / "training.csv")[0]["variant"] == name


def test_json_round_trip(tmp_path):
    folded = tables(run(probe(), probe(step=8)))
    write_json(folded, tmp_path / "run.json")
    read = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert list(read) == ["training", "training_pairs", "networks"]
    for table in folded:
        assert [list(row) for row in read[table.name]] == [list(table.columns)] * len(table.rows)
        assert [tuple(row.values()) for row in read[table.name]] == table.rows
    assert read["training"][0]["drift"] is None


def test_parquet_round_trip(tmp_path):
    folded = tables(run(probe(), probe(step=8)))
    files = write_parquet(folded, tmp_path / "out")
    assert [file.name for file in files] == ["training.parquet", "training_pairs.parquet", "networks.parquet"]
    for table, file in zip(folded, files, strict=True):
        read = pyarrow.parquet.read_table(file)
        assert read.column_names == list(table.columns)
        assert [tuple(row.values()) for row in read.to_pylist()] == table.rows
    schema = pyarrow.parquet.read_schema(files[0])
    assert [str(schema.field(name).type) for name in ("variant", "step", "drift")] == ["string", "int64", "double"]
    assert write_parquet(folded, tmp_path / "one.parquet") == [tmp_path / "one.parquet"]
    assert pyarrow.parquet.read_schema(tmp_path / "one.parquet").names == list(folded.training.columns)


not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
numbers = st.none() | not_finite | st.floats(allow_nan=False, allow_infinity=False)
sides = st.lists(st.none() | not_finite | st.floats(0, 1), max_size=4).map(tuple)
alignments = st.builds(Alignment, v1=sides, u1=sides)


@settings(deadline=None, max_examples=60)
@given(weight=alignments, gradient=alignments, loss=numbers, drift=numbers)
def test_no_number_that_does_not_exist_gets_out(tmp_path_factory, weight, gradient, loss, drift):
    folder = tmp_path_factory.mktemp("numbers")
    event = probe(weight=weight, gradient=gradient, loss=loss, drift=drift)
    finished = NetworkFinished(variant="Res+GELU", seed=0, step=7, test_loss=loss, test_accuracy=drift)
    folded = tables(run(event, finished))

    def refuse(constant):
        raise AssertionError(constant)

    write_json(folded, folder / "run.json")
    read = json.loads((folder / "run.json").read_text("utf-8"), parse_constant=refuse)
    assert [tuple(row.values()) for row in read["training_pairs"]] == folded.training_pairs.rows
    write_csv(folded, folder)
    values = {value for name in ("training", "training_pairs", "networks") for row in read_csv(folder / f"{name}.csv")
              for value in row.values()}  # fmt: skip
    assert not values & {"nan", "inf", "-inf", "None"}
    exist = [value for value in weight.v1 if value is not None and math.isfinite(value)]
    row = dict(zip(folded.training.columns, folded.training.rows[0], strict=True))
    assert (row["weight_v1"] is None) == (not exist)
    if exist:
        assert min(exist) - 1e-9 <= row["weight_v1"] <= max(exist) + 1e-9
    assert len(folded.training_pairs.rows) == max(
        len(side) for side in (*(weight.v1, weight.u1, gradient.v1, gradient.u1), NONE.v1)
    )


def test_the_journal_gives_the_same_tables_as_the_live_events():
    events = run(probe(loss=math.nan, weight=Alignment(v1=(math.inf, 0.1), u1=(0.1 + 0.2, None))))
    replayed = [msgspec.json.decode(msgspec.json.encode(event), type=type(event)) for event in events]
    assert tables(replayed) == tables(events)


def test_existing_files_are_replaced_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "file.csv"
    real.write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to(real)
    write_csv(tables(run(probe())), link)
    assert link.is_symlink()
    assert real.read_bytes().startswith(TRAINING_HEADER)


def test_unwritable_targets(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    folded = tables(run(probe()))
    for write, target, suffix, expected in (
        (write_csv, file, ".csv", "does not end in .csv"),
        (write_parquet, file, ".parquet", "does not end in .parquet"),
        (write_csv, file / "below", ".csv", "Not a directory"),
        (write_csv, file / "below.csv", ".csv", "cannot be written"),
        (write_json, tmp_path, ".json", "is a folder"),
        (write_json, tmp_path / ("x" * 300) / "run.json", ".json", "File name too long"),
    ):
        with pytest.raises(InputError) as caught:
            write(folded, target)
        assert expected in str(caught.value)
        assert str(target) in str(caught.value)
        assert caught.value.remedy
        with pytest.raises(InputError, match=expected):
            check_targets(**{suffix[1:]: target})
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_checking_targets_makes_the_folder_and_no_file(tmp_path, monkeypatch):
    check_targets(csv=tmp_path / "a" / "b", json=tmp_path / "c" / "run.json")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/b", "c"]
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="not writable"):
        check_targets(csv=tmp_path / "a")


def test_json_never_takes_the_place_of_what_may_be_no_table(tmp_path):
    (tmp_path / "events.jsonl").write_text("mine")
    with pytest.raises(InputError, match=r"does not end in \.json"):
        check_targets(json=tmp_path / "events.jsonl")
    with pytest.raises(InputError, match=r"does not end in \.json"):
        write_json(tables(run(probe())), tmp_path / "events.jsonl")
    assert (tmp_path / "events.jsonl").read_text() == "mine"


@pytest.mark.parametrize("source", ["model", "model/config.json"])
def test_a_file_of_what_is_read_is_never_replaced(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("model/config.json")
    for target in (Path("model/config.json"), Path("model/../link.json")):
        with pytest.raises(InputError, match="is what is read"):
            check_targets(json=target, source=tmp_path / source)
    check_targets(json=Path("model/new.json"), source=tmp_path / source)


@pytest.mark.parametrize(
    ("targets", "is_possible"),
    [
        ({"csv": "x.csv", "json": "x.csv"}, False),
        ({"json": "q", "parquet": "q"}, False),
        ({"csv": "q", "json": "q"}, False),
        ({"csv": "x.csv", "parquet": "./x.csv"}, False),
        ({"csv": "q", "parquet": "q"}, True),
        ({"csv": "/dev/null", "json": "/dev/null"}, False),
        ({"csv": "x.csv", "json": "x.json", "parquet": "x.parquet"}, True),
    ],
)
def test_two_kinds_of_tables_never_share_a_file(tmp_path, monkeypatch, targets, is_possible):
    monkeypatch.chdir(tmp_path)
    targets = {kind: Path(target) for kind, target in targets.items()}
    if is_possible:
        check_targets(**targets)
    else:
        with pytest.raises(InputError):
            check_targets(**targets)


def test_devices_are_written_to_and_stay_devices(tmp_path):
    check_targets(json=tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    write_json(tables(run(probe())), tmp_path / "pipe")
    output, _ = reader.communicate(timeout=20)
    assert json.loads(output)["training"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_full_disk_leaves_the_old_file_alone(tmp_path):
    with pytest.raises(InputError, match="No space left"):
        write_json(tables(run(probe())), Path("/dev/full"))
    (tmp_path / "run.json").write_text("old")
    program = f"""
import resource, signal
from pathlib import Path
from geocont.errors import InputError
from geocont.events import NetworkPlan, RunStarted
from geocont.tables import tables, write_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
plans = tuple(NetworkPlan(variant="a", seed=seed, steps=1) for seed in range(100))
events = [RunStarted(name="x", experiment={{}}, networks=plans, device="cpu", versions={{}}, time=0.0)]
try:
    write_json(tables(events), Path({str(tmp_path / "run.json")!r}))
except InputError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "File too large" in result.stdout
    assert (tmp_path / "run.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_import_is_light():
    program = "import sys, geocont.tables, geocont.runs; print({'torch', 'pyarrow', 'textual'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"


PAIRS_OF_LAYERS_HEADER = (
    b"model,revision,stack,projection,layer_a,layer_b,v1_cosine,u1_cosine,v_dim,u_dim,v1_chance,u1_chance,"
    b"residual_side,v_gram,u_gram,v_weighted,u_weighted,v_overlap,u_overlap,v_error_bound,u_error_bound,status,note,"
    b"adjacent,v_gram_error,u_gram_error,weighted_share,overlap_k\n"
)
MATRICES_HEADER = (
    b"model,revision,stack,projection,layer,tensor,rows,cols,dtype,sigma1,sigma2,gap,stable_rank,frobenius,"
    b"v1_error_bound,status,note,u1_error_bound\n"
)


def matrix(layer, projection="q", **changes) -> MatrixPlan:
    fields = {"rows": 64, "cols": 32, "side": "v", "tensors": (f"layers.{layer}.{projection}",)}
    return MatrixPlan(
        stack="text",
        projection=projection,
        layer=layer,
        dtype="BF16",
        bytes=4096,
        rule="plain",
        **{**fields, **changes},
    )


def measured(layer, others=(), v1=(), u1=(), projection="q", **changes) -> MatrixMeasured:
    fields = {"singular_values": (3.0, 2.0), "gap": 0.5, "stable_rank": 4.5, "frobenius": 6.0, "status": "ok"}
    bounds = {"v1_error_bound": 1e-4, "u1_error_bound": 2e-4}
    return MatrixMeasured(
        stack="text", projection=projection, layer=layer, others=others, v1_cosines=v1, u1_cosines=u1,
        **{**fields, **bounds, **changes},
    )  # fmt: skip


def analysed(*plans, revision="abc"):
    return AnalysisStarted(
        model="org/model", revision=revision, source="here", parameters={}, matrices=plans, skipped=(), bytes=1,
        device="cpu", versions={}, time=0.0,
    )  # fmt: skip


def adjacent(layer_a, layer_b, **changes) -> PairMeasured:
    fields = {"v1_cosine": 0.5, "u1_cosine": 0.25, "v_dim": 32, "u_dim": 64, "v1_chance": 0.14, "u1_chance": 0.1}
    return PairMeasured(
        stack="text", projection="q", layer_a=layer_a, layer_b=layer_b, residual_side="v", **{**fields, **changes}
    )


def analysis():
    """Three layers of which the last is not unique, and a refused projection."""
    return [
        analysed(matrix(0), matrix(1), matrix(2), matrix(0, "down", status="quantized_refused", note="GPTQ")),
        measured(0),
        measured(1, (0,), (0.5,), (0.25,)),
        adjacent(
            0, 1, v_gram=0.75, v_gram_error=0.001, v_overlap=(0.2, 0.4), u_overlap=(0.1, 0.3), v_weighted=0.6,
            weighted_share=0.9, v_error_bound=2e-4, u_error_bound=4e-4,
        ),
        measured(2, (0, 1), (None, None), (None, None), status="not_unique", note="σ1/σ2 = 1.001"),
        adjacent(1, 2, v1_cosine=None, u1_cosine=None, status="not_unique", note="layer 2: σ1/σ2 = 1.001"),
        RunFinished(status="done", time=1.0),
    ]  # fmt: skip


def test_analysis_columns_are_the_contract(tmp_path):
    files = write_csv(tables(analysis()), tmp_path)
    assert [path.name for path in files] == ["pairs.csv", "matrices.csv"]
    assert files[0].read_bytes().startswith(PAIRS_OF_LAYERS_HEADER)
    assert files[1].read_bytes().startswith(MATRICES_HEADER)


def test_analysis_rows():
    pairs, matrices = tables(analysis())
    rows = [dict(zip(pairs.columns, row, strict=True)) for row in pairs.rows]
    assert [(row["layer_a"], row["layer_b"], row["adjacent"]) for row in rows] == [
        (0, 1, "yes"), (0, 2, "no"), (1, 2, "yes"),
    ]  # fmt: skip
    first, distant, last = rows
    assert first | {"v1_chance": 0, "u1_chance": 0} == {
        "model": "org/model", "revision": "abc", "stack": "text", "projection": "q", "layer_a": 0, "layer_b": 1,
        "v1_cosine": 0.5, "u1_cosine": 0.25, "v_dim": 32, "u_dim": 64, "v1_chance": 0, "u1_chance": 0,
        "residual_side": "v", "v_gram": 0.75, "u_gram": None, "v_weighted": 0.6, "u_weighted": None, "v_overlap": 0.4,
        "u_overlap": 0.3, "v_error_bound": 2e-4, "u_error_bound": 4e-4, "status": "ok", "note": None,
        "adjacent": "yes", "v_gram_error": 0.001, "u_gram_error": None, "weighted_share": 0.9, "overlap_k": 2,
    }  # fmt: skip
    assert (distant["status"], distant["v1_cosine"], distant["v_gram"]) == ("not_unique", None, None)
    assert last["note"] == "layer 2: σ1/σ2 = 1.001"
    columns = [dict(zip(matrices.columns, row, strict=True)) for row in matrices.rows]
    assert [(row["projection"], row["layer"], row["status"]) for row in columns] == [
        ("q", 0, "ok"), ("q", 1, "ok"), ("q", 2, "not_unique"), ("down", 0, "quantized_refused"),
    ]  # fmt: skip
    assert (columns[0]["sigma1"], columns[0]["sigma2"], columns[0]["gap"]) == (3.0, 2.0, 0.5)
    assert (columns[3]["sigma1"], columns[3]["note"], columns[3]["rows"]) == (None, "GPTQ", 64)


def test_a_distant_pair_has_its_cosines():
    events = [
        analysed(matrix(0), matrix(1), matrix(3)),
        measured(0),
        measured(1, (0,), (0.5,), (0.25,)),
        measured(3, (0, 1), (0.125, 0.375), (0.0625, None)),
    ]
    rows = {row[4:6]: row for row in tables(events).pairs.rows}
    assert rows[0, 3][6:8] == (0.125, 0.0625)
    assert rows[1, 3][6:8] == (0.375, None)


def test_what_was_not_measured_says_so():
    *events, _ = analysis()
    found = tables([*events[:2], RunFinished(status="stopped", time=1.0)])
    rows = [dict(zip(found.pairs.columns, row, strict=True)) for row in found.pairs.rows]
    assert [row["v1_cosine"] for row in rows] == [None] * 3
    assert {row["note"] for row in rows} == {"not measured: the run was stopped"}
    assert found.matrices.rows[1][-2] == "not measured: the run was stopped"
    assert found.matrices.rows[0][-2] is None
    assert tables(events[:1]).matrices.rows[0][-2] == "not measured: the journal ends before the run does"


def test_an_analysis_in_every_format(tmp_path):
    found = tables(analysis())
    write_json(found, tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_bytes())
    assert list(content) == ["pairs", "matrices"]
    assert content["pairs"][0]["v1_cosine"] == 0.5
    assert write_csv(found, tmp_path / "one.csv") == [tmp_path / "one.csv"]
    assert (tmp_path / "one.csv").read_bytes().startswith(PAIRS_OF_LAYERS_HEADER)
    files = write_parquet(found, tmp_path / "parquet")
    assert [path.name for path in files] == ["pairs.parquet", "matrices.parquet"]
    columns = pyarrow.parquet.read_table(files[0])
    assert columns.column("v1_cosine").to_pylist() == [0.5, None, None]
    assert columns.schema.field("layer_a").type == pyarrow.int64()
