"""An analysis as text, without a screen: its results, its plan, and the run that prints them."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import synthetic_analysis
from geocont import chance
from geocont.errors import InputError, JobError
from geocont.events import AnalysisStarted, Event, RunFinished
from geocont.runs import Recording, read_events
from rich.cells import cell_len

from geocont_tui import analysis_state, doctor, headless
from geocont_tui.analysis_state import AnalysisState
from geocont_tui.analysis_text import analysis_table, plan_table
from geocont_tui.plain_text import size
from geocont_tui.screens.plan import plan_paragraphs
from geocont_tui.terminal import ExitCode

COLUMNS = (
    *("projection", "residual side", "v1 mean", "v1 min", "v1 max", "v1 chance"),
    *("u1 mean", "u1 min", "u1 max", "u1 chance", "pairs", "flagged"),
)


def folded(events: Iterator[Event]) -> AnalysisState:
    state = None
    for event in events:
        state = analysis_state.fold(state, event)
    assert state is not None
    return state


def cells(text: str) -> list[dict[str, str]]:
    """The rows of the table of projections, by the place of the columns in its first line."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("projection "))
    heads = list(re.finditer(r"\S+(?: \S+)*", lines[first]))
    starts = [head.start() for head in heads]
    rows = []
    for line in lines[first + 1 :]:
        if not line:
            break
        parts = [line[begin:end].strip() for begin, end in zip(starts, [*starts[1:], None], strict=True)]
        rows.append(dict(zip((head[0] for head in heads), parts, strict=True)))
    return rows


def test_a_row_a_projection_with_both_sides_against_chance() -> None:
    state = folded(synthetic_analysis.events())
    rows = cells(analysis_table(state))
    assert [tuple(row) for row in rows] == [COLUMNS] * 7
    assert [row["projection"] for row in rows] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert [row["residual side"] for row in rows] == ["v1", "v1", "v1", "u1", "v1", "v1", "u1"]
    values = [pair.v1_cosine for pair in state.rows["text", "v"].pairs.values() if pair.v1_cosine is not None]
    v = rows[2]
    assert (v["v1 mean"], v["v1 min"], v["v1 max"]) == tuple(
        f"{value:.3f}" for value in (sum(values) / len(values), min(values), max(values))
    )
    assert (v["v1 chance"], v["u1 chance"], v["pairs"], v["flagged"]) == ("0.012", "0.025", "31", "4")


def test_the_rest_says_what_the_numbers_are_and_what_they_show() -> None:
    text = analysis_table(folded(synthetic_analysis.events()))
    lines = text.splitlines()
    assert lines[0] == f"{synthetic_analysis.MODEL} at {synthetic_analysis.REVISION}"
    assert lines[1] == "224 of 224 matrices, streamed from huggingface.co, cpu, 2 threads, done after 40 s"
    assert "v: left out of the means: 4 not unique" in lines
    # The outputs of k and v are the shortest vectors, so that their band is the widest. Pairs 4 of v are left out.
    band = chance.band_of_mean(1024, 27)[1] - chance.mean_cosine(1024)
    assert f"95 % of such means over so many pairs lie within {band:.3f} of it" in text
    shown = lines[lines.index("what this shows, compared with the source") + 1 :]
    assert shown[0].startswith("  supported     readers align in v1: q 0.58")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_quantising_is_said_once_for_all_that_are_stored_alike() -> None:
    events = [
        msgspec.structs.replace(
            event, matrices=tuple(msgspec.structs.replace(plan, dtype="Q4_0") for plan in event.matrices)
        )
        if isinstance(event, AnalysisStarted)
        else event
        for event in synthetic_analysis.events()
    ]
    text = analysis_table(folded(events))
    assert text.count("the error of quantising") == 1
    assert "q, k, v, o, gate, up, down: stored as Q4_0; σ and v1 carry the error of quantising" in text


def test_the_plan_says_what_all_means() -> None:
    first, *_ = synthetic_analysis.events(until=0)
    assert isinstance(first, AnalysisStarted)
    asked = {"model": "m", "layers": None, "projections": None, "stack": None, "weights_file": None, "top_k": 8}
    state = folded([msgspec.structs.replace(first, parameters=asked), *_])
    said = next(paragraph.text for paragraph in plan_paragraphs(state) if paragraph.label == "parameters")
    assert said == ("layers 0-31 (all), projections q, k, v, o, gate, up, down (all), stack text (all), top_k 8")


def test_part_of_an_analysis_says_how_much() -> None:
    text = analysis_table(folded(synthetic_analysis.events(until=0.5)))
    assert {row["pairs"] for row in cells(text)} == {"15 of 31"}
    assert "112 of 224 matrices" in text
    assert "not finished" in text
    nothing = cells(analysis_table(folded(synthetic_analysis.events(until=0))))
    assert {value for row in nothing for name, value in row.items() if name[:2] in ("v1", "u1")} == {"n/a"}


def test_what_is_awkward_is_said_literally() -> None:
    text = analysis_table(folded(synthetic_analysis.awkward_events()))
    assert text.startswith("./models/odd[1]/it's\n")
    rows = {row["projection"]: row for row in cells(text)}
    assert rows["vision [tower] qkv"]["v1 mean"] == "n/a"
    assert rows["vision [tower] o"]["residual side"] == "v1 and u1"
    assert rows["text down[E]"]["flagged"] == "3"
    assert "text down[E]: left out of the means: 3 quantised, refused" in text
    assert "FP8 in blocks of 128×128 / GPTQ, 4 bits; σ and v1 carry the error of quantising" in text
    assert "text up u1: left out of the means: 1 shapes differ" in text
    assert "vision [tower] o: zero: one of the two is zero" in text


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize("make", [analysis_table, plan_table])
def test_a_terminal_gets_every_column_within_its_width(width: int, make: Callable[..., str]) -> None:
    text = make(folded(synthetic_analysis.events()), width)
    tables = [part for part in text.split("\n\n") if part.startswith("projection ")]
    found: dict[str, dict[str, str]] = {}
    for table in tables:
        for row in cells(table):
            found.setdefault(row["projection"], {}).update(row)
    assert list(found.values()) == cells(make(folded(synthetic_analysis.events())))
    assert max(map(cell_len, text.splitlines())) <= max(width, 54)


def test_nothing_of_a_header_moves_the_cursor() -> None:
    text = plan_table(folded(synthetic_analysis.events(until=0, model="a\x1b[2J\r\n\x07[b]")))
    assert text.startswith("a?[2J???[b] at ")
    assert all(character.isprintable() or character == "\n" for character in text)


def test_the_plan_names_rule_shape_storage_and_what_is_left_out() -> None:
    text = plan_table(folded(synthetic_analysis.awkward_events(until=0)))
    rows = {row["projection"]: row for row in cells(text)}
    assert rows["text q"]["layers"] == "3: 3, 7, 11"
    assert rows["text up"]["shape"] == "1024×512 / 768×512"
    assert rows["text gate[E]"]["rule"] == "experts"
    assert rows["text gate[E]"]["first tensor"] == "text.layers.0.mlp.experts.0.gate_proj.weight and 7 more"
    assert "to be read: 43 matrices, 41.16 MB" in text
    assert "8 refused" in text
    assert "warning: the index lists tensors that no file holds: [a], [b]" in text
    assert "vision [tower] qkv: 6 of 6 layers: config.json is missing" in text
    assert "  32 model.layers.#.input_layernorm.weight: a vector" in text


def test_sizes_in_words() -> None:
    assert [size(count) for count in (0, 999, 1500, 41_160_000, 13_958_643_712, 137_000_000_000)] == [
        "0 B", "999 B", "1.50 kB", "41.16 MB", "13.96 GB", "137 GB",
    ]  # fmt: skip


# --- A run without a screen


def test_a_run_prints_its_results_and_writes_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    events = list(synthetic_analysis.events())
    targets = {"csv": tmp_path / "tables", "json": tmp_path / "all.json", "parquet": tmp_path / "pairs.parquet"}
    assert headless.run_analysis("org/[m]", Recording(iter(events), folder), **targets) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out == analysis_table(folded(iter(events)))
    assert list(read_events(folder)) == events
    assert headless.read_state(folder) == folded(iter(events))
    assert {path.name for path in targets["csv"].iterdir()} == {"pairs.csv", "matrices.csv"}
    assert len(json.loads(targets["json"].read_text())["matrices"]) == 224
    assert targets["parquet"].is_file()
    lines = err.splitlines()
    assert lines[0] == f"org/[m]: kept in {folder}"
    assert lines[-1] == f"the run is kept in {folder}"
    parts = [int(line.split("%")[0]) for line in lines if re.match(r" *\d+%  ", line)]
    assert parts == sorted(parts)
    assert parts[-1] == 100
    assert any(re.search(r"\d+ of 224 matrices, [\d.]+ GB read  410 MB/s  \d+ s left", line) for line in lines)


def test_an_analysis_that_fails_still_gives_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cut() -> Iterator[Event]:
        yield from synthetic_analysis.events(until=0.5)
        raise JobError("the connection was cut", "run it again, it goes on from there")

    with pytest.raises(JobError, match="cut"):
        headless.run_analysis("m", Recording(cut(), tmp_path), csv=tmp_path / "tables")
    out, _ = capsys.readouterr()
    assert {row["pairs"] for row in cells(out)} == {"15 of 31"}
    assert "failed after" in out
    assert (tmp_path / "tables" / "pairs.csv").is_file()


def test_a_plan_prints_and_writes_json_and_pulls_no_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pulled: list[Event] = []

    def watched() -> Iterator[Event]:
        for event in synthetic_analysis.awkward_events():
            pulled.append(event)
            yield event

    headless.print_plan(watched(), tmp_path / "plan.json")
    out, err = capsys.readouterr()
    assert out == plan_table(folded(iter(pulled)))
    assert [type(event).__name__ for event in pulled] == ["AnalysisStarted", "Message", "AnalysisProgress"]
    assert "wrote" in err
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["model"] == "./models/odd[1]/it's"
    assert len(found["matrices"]) == 51
    assert found["warnings"] == ["the index lists tensors that no file holds: [a], [b]"]
    with pytest.raises(InputError, match="cannot be written"):
        headless.print_plan(synthetic_analysis.events(), tmp_path / "plan.json" / "below")


def test_ascii_where_the_reader_cannot_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    headless.print_summary(folded(synthetic_analysis.awkward_events()))
    text = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "FP8 in blocks of 128x128" in text
    assert "sigma and v1" in text
    assert "[tower]" in text


# --- doctor


def test_doctor_answers_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(doctor.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid/[x]")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = doctor.report()
    assert "no: Name or service not known" in text
    assert "https://hub.invalid/[x]" in text
    assert "there is one" in text
    assert "hf_secret" not in text
    for fact in (
        "geocont-tui",
        "torch",
        "python",
        "device",
        "memory",
        "result cache",
        "text cache",
        "runs",
        "screen",
        "colours",
    ):
        assert re.search(rf"^  {fact} +\S", text, re.M), fact
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in doctor.report()


def test_doctor_says_how_large_the_result_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from geocont import results
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "results"
    (folder / "ab").mkdir(parents=True)
    (folder / "ab" / "x.result").write_bytes(bytes(1_500_000))
    monkeypatch.setattr(results, "folder", lambda: folder)
    assert f"{folder}: 1.50 MB" in doctor.report()


def test_a_run_that_was_stopped_is_said_to_be(tmp_path: Path) -> None:
    state = analysis_state.fold(
        folded(synthetic_analysis.events(until=0.2)), RunFinished(status="stopped", time=0.0, elapsed=8.0)
    )
    assert "stopped after 8 s" in analysis_table(state)
