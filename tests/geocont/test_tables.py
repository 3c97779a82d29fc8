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
import pyarrow.parquet
import pytest
from geocont.errors import InputError
from geocont.events import (
    Alignment,
    NetworkDiverged,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)
from geocont.tables import check_target, tables, write_csv, write_json, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

TRAINING_HEADER = (
    b"experiment,variant,seed,step,projection,loss,accuracy,weight_v1,weight_u1,weight_v_weighted,weight_u_weighted,"
    b"gradient_v1,gradient_u1,cumulative_v1,cumulative_u1,update_v1,update_u1,update_ratio,sigma_ratio,top_overlap_v,"
    b"top_overlap_u,cumulative_match,drift,identity_share,activation_factor\n"
)
PAIRS_HEADER = (
    b"experiment,variant,seed,step,projection,layer_a,layer_b,weight_v1,weight_u1,gradient_v1,gradient_u1,"
    b"cumulative_v1,cumulative_u1,update_v1,update_u1\n"
)
NETWORKS_HEADER = b"experiment,variant,seed,status,steps,planned_steps,test_loss,test_accuracy,note\n"

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
        b"mlp,Res+GELU,0,7,mlp,0.1,0.875,0.5,0.5,0.3,,0.2,5e-18,,,,,0.0,1.5,0.04,0.05,,,0.3333333333333333,\n"
    )


def test_csv_bytes_of_the_pairs_table(tmp_path):
    write_csv(tables(run(probe())), tmp_path)
    assert (tmp_path / "training_pairs.csv").read_bytes() == PAIRS_HEADER + (
        b"mlp,Res+GELU,0,7,mlp,0,1,0.5,0.25,0.1,1e-17,,,,\nmlp,Res+GELU,0,7,mlp,1,2,,0.75,0.3,0.0,,,,\n"
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
        b"mlp,a,0,finished,10,10,0.5,0.9,\n"
        b"mlp,a,1,diverged,4,10,,,the loss is not finite\n"
        b"mlp,b,0,unfinished,3,20,,,the run was stopped\n"
        b"mlp,b,1,unfinished,0,20,,,the run was stopped\n"
    )


def test_notes_of_a_failed_run_and_of_one_without_an_end():
    failed = tables([started(("a", 0, 10)), RunFinished(status="failed", time=1.0, problem="no memory", remedy="less")])
    assert failed.networks.rows[0][-1] == "the run failed: no memory"
    assert tables([started(("a", 0, 10))]).networks.rows[0][-1] == "the journal ends before the run does"


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
            check_target(target, suffix)
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_check_target_makes_the_folder_and_no_file(tmp_path, monkeypatch):
    check_target(tmp_path / "a" / "b", ".csv")
    check_target(tmp_path / "c" / "run.json", ".json")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/b", "c"]
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="not writable"):
        check_target(tmp_path / "a", ".csv")


def test_devices_are_written_to_and_stay_devices(tmp_path):
    check_target(tmp_path / "pipe", ".json")
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
