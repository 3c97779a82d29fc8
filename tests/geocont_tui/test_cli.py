"""The command line: what it takes, what it refuses, how it says so, and to whom it hands over."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import synthetic
import synthetic_analysis
from geocont import __version__, runs
from geocont.ablations import crew
from geocont.ablations.experiment import presets
from geocont.ablations.experiment import read as read_experiment
from geocont.errors import InputError
from geocont.events import Event
from hypothesis import given
from hypothesis import strategies as st

from geocont_tui import cli, headless, terminal

PROGRAM = [sys.executable, "-m", "geocont_tui"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run in tmp_path, without training."""
    folder = runs.create_run_folder(synthetic.experiment(), tmp_path)
    for _ in runs.Recording(synthetic.events(), folder):
        pass
    return folder


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str], code: int = 2) -> tuple[str, str]:
    """The problem and the remedy that `arguments` get: two lines on stderr, nothing on stdout."""
    assert cli.run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("  try: ")
    return first.removeprefix("error: "), second.removeprefix("  try: ")


def test_help_and_version_load_nothing_heavy() -> None:
    program = """
import sys
from geocont_tui import cli
code = cli.run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""
    for arguments in (["--help"], ["ablate", "--help"], ["analyze", "--help"], ["--version"], []):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        loaded = {name.partition(".")[0] for name in done.stderr.split()}
        assert "typer" in loaded
        assert not loaded & {"torch", "numpy", "textual", "plotext", "pyarrow"}, arguments
        assert done.stdout


def test_the_module_is_the_program() -> None:
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"geocont-tui {__version__}\n"
    done = subprocess.run([*PROGRAM, "ablte"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command 'ablte'\n  try: 'ablate'; `geocont-tui --help` lists all\n"


def test_alone_it_shows_the_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    alone = capfd.readouterr()
    assert cli.run(["--help"]) == 0
    assert capfd.readouterr() == alone
    assert all(command in alone.out for command in ("ablate", "analyze", "export", "runs", "doctor"))


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        (["ablate", "--sedes", "3"], "no such option: --sedes", "--seeds; `geocont-tui ablate --help` lists all"),
        (["ablate", "--seeds", "0"], "--seeds", "geocont-tui ablate --help"),
        (["ablate", "--steps", "0"], "--steps", "geocont-tui ablate --help"),
        (["ablate", "--steps", "many"], "--steps", "geocont-tui ablate --help"),
        (["ablate", "--fps", "0"], "--fps", "geocont-tui ablate --help"),
        (["ablate", "--theme", "pink"], "--theme", "geocont-tui ablate --help"),
        (["ablate", "mlp", "more"], "more", "geocont-tui ablate --help"),
        (["export"], "RUN", "geocont-tui export --help"),
        (["analyze"], "MODEL", "geocont-tui analyze --help"),
        (["analyze", "m", "--top-k", "0"], "--top-k", "geocont-tui analyze --help"),
        (["analyze", "m", "--gap-tolerance", "-1"], "--gap-tolerance", "geocont-tui analyze --help"),
        (["analyze", "m", "--projection", "q"], "no such option: --projection", "--projections"),
        (["analyze", "m", "--plan", "--csv", "x"], "--plan measures nothing", "--json"),
        (["analyze", "m", "--no-headless"], "there is no screen", "--no-headless"),
        (["ablate", "mpl"], "there is no preset 'mpl'", "did you mean mlp?"),
        (["ablate", "nowhere.toml"], "there is no file nowhere.toml", "presets"),
        (["ablate", "--set", "defaults.width=0"], "defaults.width: expected int >= 2, got 0", "correct"),
        (["ablate", "--set", "defaults.widht=8"], "defaults.widht: unknown key", "did you mean width?"),
        (["ablate", "--set", "width"], "--set width: expected key.path=value", "--set seeds=5"),
        (["ablate", "--device", "gpu"], "--device gpu: not a device", "auto, cpu, cuda"),
        (["ablate", "--set", "data.path=/nowhere/at/all"], "/nowhere/at/all", ""),
        (["ablate", "--set", "data.images=100"], "batch_size 128 is more than the 100 training images", "lower"),
        (["export", "nothing"], "there is no run 'nothing'", "geocont-tui ablate"),
        (["runs", "--run-dir", "/nowhere"], "/nowhere", ""),
        (["ablate", "--run-dir", __file__], "Not a directory", "choose a folder, not a file"),
        (["runs", "--run-dir", ""], "the path is empty", "geocont-tui runs --help"),
        (["ablate", "--csv", ""], "the path is empty", "geocont-tui ablate --help"),
    ],
)
def test_wrong_usage_and_input(
    arguments: list[str], problem: str, remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = refused(arguments, capfd)
    assert problem in found[0]
    assert remedy in found[1]
    assert not runs.runs_folder().exists()


@pytest.mark.parametrize(
    ("terminals", "said"),
    [
        ({"stdin", "stdout"}, "there is no screen, as stderr is no terminal\n"),
        ({"stdin", "stdout", "stderr"}, "there is no screen, as TERM is dumb or not set\n"),
        ({"stdin", "stderr"}, ""),
    ],
)
def test_why_there_is_no_screen_is_said_where_someone_looks(
    terminals: set[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = [getattr(sys, name) for name in terminals]
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: stream in here)
    monkeypatch.setenv("TERM", "dumb")
    assert not cli._is_on_screen(None)
    assert not cli._is_on_screen(True)
    assert capsys.readouterr().out == said


def test_unreadable_toml_is_named_by_line_and_column(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nseeds = = 3\n')
    problem, _ = refused(["ablate", str(file)], capfd)
    assert str(file) in problem
    assert "line 2, column 9" in problem


def test_table_targets_are_checked_before_anything_is_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headless, "run_ablation", lambda *_, **__: pytest.fail("trained"))
    (tmp_path / "file.txt").write_text("mine")
    for option in ("--csv", "--parquet"):
        problem, _ = refused(["ablate", option, str(tmp_path / "file.txt")], capfd)
        assert "file.txt is a file" in problem
    problem, _ = refused(["ablate", "--json", str(tmp_path)], capfd)
    assert "is a folder" in problem


def test_a_screen_cannot_be_forced(capfd: pytest.CaptureFixture[str]) -> None:
    problem, remedy = refused(["ablate", "--no-headless"], capfd)
    assert "there is no screen" in problem
    assert "--no-headless" in remedy


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])), max_size=4))
def test_any_arguments_get_help_or_two_lines(words: list[str]) -> None:
    # A command that trains would be none of this test's business.
    arguments = [word for word in words if word not in ("ablate", "analyze")]
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(cli, "_complain", lambda problem, remedy, code: said.append(problem + remedy) or code)
        assert cli.run(arguments) in (0, 2)


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_error_is_two_lines(problem: str, remedy: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda text, **_: lines.append(text))
        assert cli._complain(problem, remedy, 1) == 1
    assert len(lines) == 2
    assert all(len(line.splitlines()) <= 1 for line in lines)


def test_a_bug_is_two_lines_unless_debug_asks_for_more(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        secret = "hf_token"
        raise ZeroDivisionError(f"no{secret[:0]}")

    monkeypatch.setattr(runs, "list_runs", fail)
    problem, remedy = refused(["runs"], capfd, code=1)
    assert problem == "ZeroDivisionError: no"
    assert "--debug" in remedy
    with pytest.raises(ZeroDivisionError):
        cli.run(["runs", "--debug"])


def test_a_traceback_shows_no_local_variables() -> None:
    program = """
import sys
from geocont import runs
from geocont_tui import cli
def fail(*_):
    secret = "hf_" + "token"
    raise ZeroDivisionError
runs.list_runs = fail
sys.argv = ["geocont-tui", "runs", "--debug"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "hf_token" not in done.stderr


def test_ctrl_c_before_anything_has_begun(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "list_runs", interrupt)
    assert cli.run(["runs"]) == 130
    assert "Traceback" not in capfd.readouterr().err


def test_runs_and_export(run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    here = ["--run-dir", str(tmp_path)]
    assert cli.run(["runs", *here]) == 0
    assert f"{run_folder.name}  done" in capfd.readouterr().out
    assert cli.run(["runs", "--json", *here]) == 0
    assert [each["folder"] for each in json.loads(capfd.readouterr().out)] == [run_folder.name]
    assert cli.run(["export", run_folder.name[:19], *here]) == 0
    out, err = capfd.readouterr()
    assert out == headless.summary_table(headless.read_state(run_folder))
    assert err == ""
    target = tmp_path / "tables"
    assert cli.run(["export", str(run_folder), "--csv", str(target), "--json", str(tmp_path / "all.json")]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("wrote ") == 5
    assert {path.name for path in target.iterdir()} == {
        "training.csv",
        "training_pairs.csv",
        "networks.csv",
        "claims.csv",
    }


def test_no_runs_yet_is_said_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["runs"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "there are no runs" in err
    assert cli.run(["runs", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


def test_without_a_screen_it_hands_over_to_headless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    devices: list[str] = []

    def train(_experiment: Any, device: str, _folder: Path, _say: Any) -> Iterator[Event]:
        devices.append(device)
        return synthetic.events()

    def run(experiment: Any, recording: runs.Recording, **named: Any) -> int:
        calls.append((experiment, next(recording), recording.folder, named))
        return 7

    monkeypatch.setattr(crew, "train", train)
    monkeypatch.setattr(headless, "run_ablation", run)
    options = ["--seeds", "2", "--steps", "5", "--set", "seeds=9", "--set", "defaults.width=32", "--device", "cpu"]
    assert cli.run(["ablate", *options, "--run-dir", str(tmp_path), "--csv", str(tmp_path / "t")]) == 7
    experiment, first, folder, named = calls[0]
    assert (experiment.name, experiment.seeds, devices) == ("mlp", 2, ["cpu"])
    # The first event was taken, to see whether the job refuses, and comes again.
    assert first == next(synthetic.events())
    assert {(variant.steps, variant.width) for variant in experiment.variants} == {(5, 32)}
    assert folder.parent == tmp_path
    assert read_experiment(str(folder / "experiment.toml")) == experiment
    assert named == {"csv": tmp_path / "t", "json": None, "parquet": None, "ascii_only": None}


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("stopped", 130)])
def test_with_a_screen_it_hands_over_to_the_app_and_prints_what_came_out(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[terminal.Settings] = []

    def show(_experiment: Any, recording: runs.Recording, settings: terminal.Settings) -> int:
        seen.append(settings)
        for _ in recording if status == "done" else islice(recording, 40):
            pass
        recording.close()
        return code

    monkeypatch.setattr(crew, "train", lambda *_: synthetic.events())
    monkeypatch.setattr(terminal, "has_screen", lambda: True)
    monkeypatch.setitem(sys.modules, "geocont_tui.app", types.SimpleNamespace(run_ablation=show))
    monkeypatch.setattr("geocont_tui.app", types.SimpleNamespace(run_ablation=show), raising=False)
    for name in ("TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_FPS", "TEXTUAL_ANIMATIONS", "TEXTUAL_SMOOTH_SCROLL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("NO_COLOR", "1")
    options = ["--theme", "light", "--fps", "2", "--ascii", "--run-dir", str(tmp_path), "--json", str(tmp_path / "t")]
    assert cli.run(["ablate", *options]) == code
    assert (seen[0].dark, seen[0].fps, seen[0].ascii, seen[0].colours) == (False, 2, True, "none")
    assert os.environ["TEXTUAL_THEME"] == "ansi-light"
    assert (tmp_path / "t").exists()
    assert "Res+GELU+LN [b]" in capfd.readouterr().out


@pytest.fixture
def analyses(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the analysis by synthetic events; what it was asked for."""
    from geocont import analysis

    asked: list[dict[str, Any]] = []

    def analyze(model: str, **options: Any) -> Iterator[Event]:
        asked.append({"model": model, **options})
        yield from synthetic_analysis.awkward_events()

    monkeypatch.setattr(analysis, "analyze", analyze)
    return asked


def test_every_option_of_an_analysis_reaches_the_engine(
    analyses: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [
        *("--revision", "step1000", "--projections", "q,gate", "--layers", "0-15", "--stack", "text", "--top-k", "4"),
        *("--gap-tolerance", "0", "--exact-gram", "--no-cache", "--weights", "w.safetensors", "--layouts", "l.toml"),
        *("--subfolder", "transformer", "--download", "--device", "cpu", "--run-dir", str(tmp_path)),
    ]
    assert cli.run(["analyze", "org/[m]", *options]) == 0
    assert analyses == [
        {
            "model": "org/[m]",
            "revision": "step1000",
            "projections": "q,gate",
            "layers": "0-15",
            "stack": "text",
            "top_k": 4,
            "gap_tolerance": 0.0,
            "exact_gram": True,
            "weights_file": "w.safetensors",
            "layouts_file": "l.toml",
            "subfolder": "transformer",
            "download": True,
            "use_cache": False,
            "device": "cpu",
            "report": cli._say,
        }
    ]
    out, err = capfd.readouterr()
    assert "vision [tower] o" in out
    assert err.startswith("reading the headers of org/[m]; what the hub's cache lacks is downloaded first")


def test_an_analysis_is_listed_and_exported_like_any_run(
    analyses: list[dict[str, Any]], run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = ["--run-dir", str(tmp_path)]
    assert cli.run(["analyze", "org/[m]", *here, "--csv", str(tmp_path / "tables")]) == 0
    printed, _ = capfd.readouterr()
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"pairs.csv", "matrices.csv"}
    assert cli.run(["runs", *here]) == 0
    listed = capfd.readouterr().out.splitlines()
    assert len(listed) == 3
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir() and path not in (run_folder, tmp_path / "tables"))
    assert any(folder.name in line and "done" in line for line in listed)
    assert cli.run(["export", folder.name, *here]) == 0
    assert capfd.readouterr().out == printed
    assert cli.run(["export", folder.name, *here, "--parquet", str(tmp_path / "p")]) == 0
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"pairs.parquet", "matrices.parquet"}


def test_a_plan_keeps_no_run(analyses: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.run(["analyze", "org/[m]", "--plan", "--run-dir", str(tmp_path), "--json", str(tmp_path / "p.json")]) == 0
    )
    out, err = capfd.readouterr()
    assert "to be read: 43 matrices" in out
    assert err == f"wrote {tmp_path / 'p.json'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]
    assert len(json.loads((tmp_path / "p.json").read_text())["matrices"]) == 51


def test_a_model_that_is_refused_keeps_no_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from geocont import analysis

    def refuse(_model: str, **_: Any) -> Iterator[Event]:
        raise InputError("org/[m] is gated", "accept its licence")
        yield  # a generator, which raises when its first event is asked for

    monkeypatch.setattr(analysis, "analyze", refuse)
    assert cli.run(["analyze", "org/[m]", "--run-dir", str(tmp_path)]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[-2:] == ["error: org/[m] is gated", "  try: accept its licence"]
    assert not list(tmp_path.iterdir())


def test_an_analysis_on_a_screen_is_handed_to_the_app(
    analyses: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def show(model: str, recording: runs.Recording, settings: terminal.Settings) -> int:
        assert (model, settings.dark) == ("org/[m]", False)
        for _ in recording:
            pass
        return 0

    monkeypatch.setattr(terminal, "has_screen", lambda: True)
    monkeypatch.setitem(sys.modules, "geocont_tui.app", types.SimpleNamespace(run_analysis=show))
    monkeypatch.setattr("geocont_tui.app", types.SimpleNamespace(run_analysis=show), raising=False)
    for name in ("TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_FPS", "TEXTUAL_ANIMATIONS", "TEXTUAL_SMOOTH_SCROLL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.run(["analyze", "org/[m]", "--theme", "light", "--run-dir", str(tmp_path)]) == 0
    assert "text gate[E]" in capfd.readouterr().out


def test_doctor_prints_in_ascii_where_asked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert cli.run(["doctor", "--ascii"]) == 0
    out = capfd.readouterr().out
    assert out.isascii()
    assert "result cache" in out


def test_every_preset_is_offered_by_a_wrong_name(capfd: pytest.CaptureFixture[str]) -> None:
    _, remedy = refused(["ablate", "nothing-like-it"], capfd)
    assert all(name in remedy for name in presets())


def test_what_is_typed_moves_no_cursor_where_it_is_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze", "no/such\x1b[2J\x07/model", "--plan"]) == 2
    out, err = capfd.readouterr()
    assert "no/such?[2J?/model" in err
    assert "\x1b" not in out + err
    assert "\x07" not in out + err


def test_a_working_directory_that_was_deleted_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert refused(["runs"], capfd)[0].startswith("the working directory cannot be used")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ablate", "--help"]])
def test_help_that_cannot_be_written_is_no_bug(arguments):
    command = [sys.executable, "-m", "geocont_tui", *arguments]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "error: standard output cannot be written: No space left on device",
        "  try: write it elsewhere",
    ]
