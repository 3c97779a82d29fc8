"""The command line: it parses, checks what can be checked, and hands over to the screen or to `headless`.

Imports nothing heavy, so that `--help` answers at once: torch, textual and tables are imported where they are needed.
Every error ends here, as two lines on stderr: what is wrong, and what to do.
"""

import difflib
import errno
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from geocont import __version__
from geocont.errors import GeocontError, InputError, JobError
from typer.exceptions import TyperException

from geocont_tui import completion, detached

if TYPE_CHECKING:
    from geocont.runs import Recording, RunSummary

    from geocont_tui.terminal import Settings

PROGRAM = "geocont-tui"
_DONE, _FAILED, _WRONG_USAGE, _INTERRUPTED = 0, 1, 2, 130  # terminal.ExitCode, which would import rich
_ENDED = (129, 143)  # by SIGHUP, SIGTERM

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _path(text: str) -> Path:
    """A path on the command line. An empty one, from a variable that is not set, would be the working directory."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


Csv = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="DIR-or-FILE",
        parser=_path,
        help="Write the tables as CSV: all into a folder, or one .csv file.",
    ),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", parser=_path, help="Write the tables as JSON.")]
Parquet = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="DIR-or-FILE",
        parser=_path,
        help="Write the tables as Parquet, into a folder or one file.",
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        parser=_path,
        help="The folder that holds the runs. Default: in your data folder.",
    ),
]
Headless = Annotated[
    bool | None,
    typer.Option(
        "--headless/--no-headless",
        help="Print instead of drawing a screen; by itself where there is no terminal. Suits screen readers.",
    ),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Start it in the background, safe from a lost connection, and say how to watch it."),
]
OnDiskError = Annotated[
    Literal["stop", "continue"],
    typer.Option(
        "--on-disk-error",
        help="When the journal cannot be written (disk full, folder deleted): stop, or continue without it.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")]
Theme = Annotated[
    Literal["dark", "light"] | None, typer.Option("--theme", help="Colours for a dark or a light terminal.")
]
Fps = Annotated[
    int | None,
    typer.Option("--fps", metavar="N", min=1, max=30, help="How often a second a screen is painted anew, 1 to 30."),
]
Ascii = Annotated[bool, typer.Option("--ascii", help="Draw and print with ASCII characters only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted, 143 ended."""
    try:
        return _execute(arguments)
    except TyperException as error:
        return _explain_usage(error)
    except GeocontError as error:
        if "--debug" in arguments:
            raise
        return _complain(str(error), error.remedy, _WRONG_USAGE if isinstance(error, InputError) else _FAILED)
    except Exception as error:
        if "--debug" in arguments:
            raise
        # Whatever else is written has words of its own for this.
        is_about_itself = not {"--help", "-h", "--version"}.isdisjoint(arguments)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and is_about_itself:
            return _complain(f"standard output cannot be written: {error.strerror}", "write it elsewhere", _FAILED)
        problem = f"{type(error).__name__}: {error}"
        return _complain(problem, "report this as a bug, with what --debug prints", _FAILED)


def _execute(arguments: list[str]) -> int:
    """Run a command; its errors go on."""
    try:
        Path.cwd()
    except OSError as error:
        raise InputError(
            f"the working directory cannot be used: {error.strerror}", "change into a folder that is there"
        ) from None
    if "--detach" in arguments and not detached.is_detached():
        return _detach(arguments)
    # Typer itself turns Ctrl-C into 130.
    code: int | None = typer.main.get_command(app).main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    return code or _DONE


def _detach(arguments: list[str]) -> int:
    """Run a command in a process of its own; say what its run is called and how to watch it."""
    from geocont_tui.background import watch_name

    try:
        folder = detached.start(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    name = watch_name(folder)
    print(name)
    print(f"it runs in the background; `{PROGRAM} watch {shlex.quote(name)}` shows it", file=sys.stderr)
    return _DONE


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Watch the leading singular vectors of adjacent layers align, or fail to: in training and in pretrained models.

    Without a command, in a terminal: the home screen, with the runs there are and what can be started.

    Progress goes to stderr, data to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted,
    143 terminated.
    """
    if version:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return _DONE
    if _is_on_screen(None):
        return _come_home()
    print(context.get_help())
    return _DONE


def _come_home() -> int:
    """Show the home screen, do what is chosen there, and come back until the user quits."""
    settings = _prepared(None, None, False)

    from geocont_tui.app import watch_run
    from geocont_tui.home import Open, run_home

    said = None
    while True:
        left = run_home(settings, said=said)
        settings, said = left.settings, None
        if left.choice is None:
            return left.code
        try:
            folder = left.choice.folder if isinstance(left.choice, Open) else detached.start(left.choice.arguments)
            code = watch_run(folder, settings)
        except GeocontError as error:
            said = (str(error), error.remedy)
        else:
            # There is no home on a terminal that is lost, or for a process that was told to end.
            if code in _ENDED or not _is_on_screen(None):
                return code


@app.command(short_help="Train the variants of an experiment.")
def ablate(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A preset or a TOML file.")] = "mlp",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a key: --set defaults.width=128. Repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train every variant from this many seeds.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train every variant for this many updates.")
    ] = None,
    headless: Headless = None,
    detach: Detach = False,
    device: Device = "auto",
    run_dir: RunDir = None,
    on_disk_error: OnDiskError = "stop",
    csv: Csv = None,
    json: Json = None,
    parquet: Parquet = None,
    theme: Theme = None,
    fps: Fps = None,
    ascii_only: Ascii = False,
    _debug: Debug = False,
) -> int:
    """Train the variants of an experiment and watch continuity form and collapse, live or headless.

    Press q to leave it running or to stop it; Ctrl-C stops a headless run. `watch` shows it again, `resume` goes on.
    """
    from geocont.ablations.experiment import read, with_steps
    from geocont.runs import Recording, check_place, create_run_folder, run_path
    from geocont.tables import check_targets

    overrides = (*(assignments or []), *([f"seeds={seeds}"] if seeds is not None else []))
    chosen = read(experiment, overrides)
    if steps is not None:
        chosen = with_steps(chosen, steps)
    is_on_screen = not detach and _is_on_screen(headless)
    check_place(run_dir)
    check_targets(csv, json, parquet, source=None if chosen.data.path is None else Path(chosen.data.path))

    from geocont.ablations.crew import train

    from geocont_tui import headless as printed
    from geocont_tui.job import Begun

    folder = run_path(chosen.name, run_dir)
    # What can be refused is refused here: the job itself checks the data and the device before its first event.
    with closing(Begun(train(chosen, device, folder, _say))) as events:
        create_run_folder(chosen, path=folder)
        with Recording(events, folder, outlives_journal=on_disk_error == "continue") as recording:
            if not is_on_screen:
                return printed.run_ablation(
                    chosen, recording, csv=csv, json=json, parquet=parquet, ascii_only=ascii_only or None
                )
            settings = _prepared(theme, fps, ascii_only)

            from geocont_tui import app as screens

            code = screens.run_ablation(chosen, recording, settings)
    _print_results(recording, code, csv, json, parquet, ascii_only)
    return code


@app.command(short_help="Show the continuity of a pretrained model.")
def analyze(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An id on the hub, a folder, or a file of weights.")],
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit on the hub. Default: its main branch.")
    ] = None,
    projections: Annotated[
        str | None, typer.Option(metavar="q,k,gate", help="Only these projections, as --plan names them.")
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="0-15", help="Only these layers: 0-15 or 3,7,11.")] = None,
    stack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this stack of layers, as --plan names it.")
    ] = None,
    top_k: Annotated[
        int, typer.Option(metavar="K", min=1, max=64, help="How many singular vectors a side are compared.")
    ] = 8,
    gap_tolerance: Annotated[
        float,
        typer.Option(metavar="GAP", min=0.0, help="v1 counts as not unique where σ1/σ2 - 1 is below this; 0: never."),
    ] = 0.005,
    exact_gram: Annotated[
        bool, typer.Option("--exact-gram", help="Whole-spectrum alignment by whole products: exact, and slow.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure again what was measured before, and keep no results.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="Which file of weights, or which index, where there are several.")
    ] = None,
    layouts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="A TOML file with layouts of your own, which go first."),
    ] = None,
    subfolder: Annotated[str | None, typer.Option(metavar="NAME", help="The folder of MODEL with the weights.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Read the headers only and print what would be read; --json writes it.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Keep the files of the hub in its cache instead of streaming them.")
    ] = False,
    headless: Headless = None,
    detach: Detach = False,
    device: Device = "auto",
    run_dir: RunDir = None,
    on_disk_error: OnDiskError = "stop",
    csv: Csv = None,
    json: Json = None,
    parquet: Parquet = None,
    theme: Theme = None,
    fps: Fps = None,
    ascii_only: Ascii = False,
    _debug: Debug = False,
) -> int:
    """Compare the leading singular vectors of adjacent layers of a pretrained model, one matrix at a time.

    The model is never built. HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are obeyed. Press q to leave it running or to
    stop it; Ctrl-C stops a headless analysis. What is measured is kept, so that the next time goes on from there.
    """
    is_on_screen = not plan and not detach and _is_on_screen(headless)
    if plan and detach:
        raise InputError("--plan leaves nothing to run in the background", "leave out --detach, or --plan")
    if plan and (csv or parquet):
        raise InputError(
            "--plan measures nothing that --csv or --parquet could hold", "use --json, or leave --plan out"
        )

    from geocont.runs import Recording, check_place, create_analysis_folder
    from geocont.tables import check_targets

    check_targets(csv, json, parquet, source=completion.expanded(model))

    if not plan:
        check_place(run_dir)
        first = "; what the hub's cache lacks is downloaded first" if download else ""
        _say(f"reading the headers of {model}{first}")
    if is_on_screen:
        settings = _prepared(theme, fps, ascii_only)
        # Loaded before the headers are read, so that the screen is there as soon as they are.
        from geocont_tui import app as screens

    from geocont.analysis import analyze as analysis_of

    from geocont_tui import headless as printed
    from geocont_tui.analysis_state import fold
    from geocont_tui.job import Begun

    events = Begun(
        analysis_of(
            model,
            revision=revision,
            projections=projections,
            layers=layers,
            stack=stack,
            top_k=top_k,
            gap_tolerance=gap_tolerance,
            exact_gram=exact_gram,
            weights_file=weights,
            layouts_file=None if layouts is None else str(layouts),
            subfolder=subfolder,
            download=download,
            use_cache=not no_cache,
            device=device,
            report=_say,
        )
    )
    with closing(events):
        if plan:
            printed.print_plan(events, json, ascii_only or None)
            return _DONE
        folder = create_analysis_folder(model, fold(None, events.first).parameters, run_dir)
        with Recording(events, folder, outlives_journal=on_disk_error == "continue") as recording:
            if not is_on_screen:
                return printed.run_analysis(
                    model, recording, csv=csv, json=json, parquet=parquet, ascii_only=ascii_only or None
                )
            code = screens.run_analysis(model, recording, settings)
    _print_results(recording, code, csv, json, parquet, ascii_only)
    return code


Run = Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's name, the beginning of it, or its folder.")]


@app.command(short_help="Show a run that another process writes, or one that is over.")
def watch(
    run: Run = None,
    headless: Headless = None,
    run_dir: RunDir = None,
    csv: Csv = None,
    json: Json = None,
    parquet: Parquet = None,
    theme: Theme = None,
    fps: Fps = None,
    ascii_only: Ascii = False,
    _debug: Debug = False,
) -> int:
    """Show a run that another process writes, as that process would, or one that is over.

    Without RUN: the newest that is live, else the newest. It can be paused and stopped from here; leaving with q leaves
    it alone. Several may watch.
    """
    from geocont.runs import find_run
    from geocont.tables import check_targets

    folder = find_run(run, run_dir) if run is not None else _newest(run_dir)
    is_on_screen = _is_on_screen(headless)
    check_targets(csv, json, parquet)
    if not is_on_screen:
        from geocont_tui import headless as printed

        return printed.watch_run(folder, csv=csv, json=json, parquet=parquet, ascii_only=ascii_only or None)
    settings = _prepared(theme, fps, ascii_only)

    from geocont_tui import app as screens

    code = screens.watch_run(folder, settings)
    if code == _DONE:
        from geocont.runs import read_events

        from geocont_tui.headless import write_tables

        write_tables(lambda: read_events(folder), csv=csv, json=json, parquet=parquet)
    return code


@app.command(short_help="Go on with a run that was interrupted or stopped.")
def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the beginning of it, or its folder.")],
    headless: Headless = None,
    detach: Detach = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")
    ] = None,
    run_dir: RunDir = None,
    on_disk_error: OnDiskError = "stop",
    csv: Csv = None,
    json: Json = None,
    parquet: Parquet = None,
    theme: Theme = None,
    fps: Fps = None,
    ascii_only: Ascii = False,
    _debug: Debug = False,
) -> int:
    """Go on with a run that was interrupted, stopped or failed, from where its checkpoints or kept results are.

    On the same CPU the numbers are those of a run that was never interrupted.
    """
    from geocont.runs import Recording, find_run, resume_run
    from geocont.tables import check_targets

    folder = find_run(run, run_dir)
    asked = resume_run(folder)
    is_on_screen = not detach and _is_on_screen(headless)
    check_targets(csv, json, parquet)

    from geocont.ablations.crew import train

    from geocont_tui import headless as printed
    from geocont_tui.job import Begun

    if asked.experiment is not None:
        job = train(asked.experiment, device or "auto", folder, _say)
    else:
        from geocont.analysis import analyze_again

        job = analyze_again(asked.analysis or {}, device=device or "auto", report=_say)
    outlives_journal = on_disk_error == "continue"
    with (
        closing(Begun(job)) as events,
        Recording(events, folder, resume=True, outlives_journal=outlives_journal) as recording,
    ):
        if not is_on_screen:
            return printed.resume_run(
                recording, events.first, csv=csv, json=json, parquet=parquet, ascii_only=ascii_only or None
            )
        settings = _prepared(theme, fps, ascii_only)

        from geocont_tui import app as screens

        code = screens.resume_run(recording, events.first, settings)
    _print_results(recording, code, csv, json, parquet, ascii_only)
    return code


def _newest(run_dir: Path | None) -> Path:
    """The newest run that a process writes, else the newest. Raises InputError where there is none."""
    from geocont.run_lock import holder
    from geocont.runs import run_folders, runs_folder

    folders = run_folders(run_dir)
    if not folders:
        raise InputError(f"there are no runs in {run_dir or runs_folder()}", f"`{PROGRAM} ablate` makes one")
    return next((folder for folder in folders if holder(folder) is not None), folders[0])


@app.command(short_help="Write or print the results of a run again.")
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the beginning of it, or its folder.")],
    run_dir: RunDir = None,
    csv: Csv = None,
    json: Json = None,
    parquet: Parquet = None,
    ascii_only: Ascii = False,
    _debug: Debug = False,
) -> int:
    """Write the tables of a run again, from its journal; without a place to write to, print its results."""
    from geocont.runs import find_run, read_events
    from geocont.tables import check_targets

    from geocont_tui.headless import print_summary, read_state, write_tables

    folder = find_run(run, run_dir)
    if csv is None and json is None and parquet is None:
        print_summary(read_state(folder), ascii_only or None)
    else:
        check_targets(csv, json, parquet)
        write_tables(lambda: read_events(folder), csv=csv, json=json, parquet=parquet)
    return _DONE


@app.command()
def runs(
    run_dir: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="List the old runs that --yes would delete; without --yes none is.")
    ] = False,
    older_than: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.0, help="With --prune: not written to for so long. 30 days.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="With --prune: leave the newest N runs. Default: 0.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --prune: delete them.")] = False,
    _debug: Debug = False,
) -> int:
    """List the runs, newest first, or delete old ones. A run that is live is never deleted."""
    import msgspec
    from geocont.run_list import prunable
    from geocont.runs import list_runs, runs_folder

    from geocont_tui.headless import runs_table, write_out
    from geocont_tui.terminal import needs_ascii

    if not prune and (yes or older_than is not None or keep is not None):
        raise InputError("--older-than, --keep and --yes say what --prune does", "add --prune")
    if prune:
        found = prunable(run_dir, older_than=30.0 if older_than is None else older_than, keep=keep or 0)
    else:
        found = list_runs(run_dir)
    if as_json:
        write_out(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    elif found:
        write_out(runs_table(found), needs_ascii(sys.stdout))
    elif not prune:
        print(
            f"there are no runs in {run_dir or runs_folder()}: `{PROGRAM} ablate` or `{PROGRAM} analyze` makes one",
            file=sys.stderr,
        )
    return _prune(found, yes) if prune else _DONE


def _prune(found: "list[RunSummary]", yes: bool) -> int:
    """Delete the runs, or say what would be; one that cannot be deleted does not keep the others."""
    from geocont.run_list import delete

    from geocont_tui.plain_text import size

    freed, failures = 0, 0
    for run in found if yes else ():
        try:
            delete(Path(run.path))
            freed += run.size
        except GeocontError as error:
            failures += 1
            _complain(str(error), error.remedy, _FAILED)
    if not found:
        said = "there is no such old run"
    elif yes:
        said = f"{_counted(len(found) - failures)} deleted, {size(freed)}"
    else:
        total = size(sum(run.size for run in found))
        said = f"nothing is deleted yet: with --yes {_counted(len(found))} would be, {total}"
    print(said, file=sys.stderr)
    return _FAILED if failures else _DONE


def _counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


@app.command()
def doctor(ascii_only: Ascii = False, _debug: Debug = False) -> int:
    """Print versions, device and memory, whether the hub answers, what is kept where, what the terminal can do."""
    from geocont_tui.doctor import report
    from geocont_tui.headless import write_out
    from geocont_tui.terminal import needs_ascii

    write_out(report(), ascii_only or needs_ascii(sys.stdout))
    return _DONE


def _is_on_screen(headless: bool | None) -> bool:
    """Whether a screen is to be drawn. Raises InputError where one is asked for and cannot be."""
    from geocont_tui import terminal

    has_screen = terminal.has_screen()
    if headless is False and not has_screen:
        raise InputError(
            "--no-headless: there is no screen: stdin, stdout and stderr must be terminals, and TERM not dumb",
            "leave --no-headless out, or run it in a terminal",
        )
    if headless is None and not has_screen and all(map(terminal.is_terminal, (sys.stdin, sys.stdout))):
        # Whoever sent stderr elsewhere looks at stdout.
        why = "stderr is no terminal" if not terminal.is_terminal(sys.stderr) else "TERM is dumb or not set"
        print(f"there is no screen, as {why}", flush=True)
    return has_screen and not headless


def _prepared(theme: str | None, fps: int | None, ascii_only: bool) -> "Settings":
    """The settings of the screen, in force for Textual, which must not have been imported yet."""
    from geocont_tui import terminal

    settings = terminal.detect(theme=theme, fps=fps, ascii_only=ascii_only or None)
    terminal.prepare(settings)
    return settings


def _say(text: str) -> None:
    """What happens before there is a screen."""
    from geocont_tui.plain_text import one_line

    print(one_line(text), file=sys.stderr, flush=True)


def _print_results(
    recording: "Recording", code: int, csv: Path | None, json: Path | None, parquet: Path | None, ascii_only: bool
) -> None:
    """Write the tables of a run that was on the screen, and print its results."""
    from geocont_tui.headless import folded, print_summary, write_tables

    try:
        write_tables(recording.events, csv=csv, json=json, parquet=parquet)
        print_summary(folded(recording.events(), recording.folder), ascii_only or None)
    except InputError as error:
        # A run that failed has said why; one that could not even begin has nothing to write.
        if code != _FAILED:
            raise JobError(str(error), error.remedy) from None


def _explain_usage(error: TyperException) -> int:
    """The two lines for an error that Typer found: its message, and the nearest name or where to read on."""
    message = " ".join(error.format_message().split())
    problem, _, near = message.partition(". Did you mean ")
    near = near.rstrip("?")
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        problem = error.message
        near = difflib.get_close_matches(getattr(error, "option_name", ""), possibilities, n=1, cutoff=0.0)[0]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else PROGRAM
    remedy = f"{near}; `{command} --help` lists all" if near else f"{command} --help"
    problem = problem.rstrip(".")
    return _complain(problem[:1].lower() + problem[1:], remedy, error.exit_code)


def _complain(problem: str, remedy: str, code: int) -> int:
    if detached.is_detached():
        detached.refused(problem, remedy, code)
        return code
    from geocont_tui.plain_text import one_line

    for start, text in (("error: ", problem), ("  try: ", remedy)):
        print(start + one_line(" ".join(text.split())), file=sys.stderr)
    return code
