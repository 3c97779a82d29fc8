"""The same jobs without a screen: progress on stderr, the results on stdout, in the end where the run is kept.

stdout is data: complete lines, never cut, no colour, no markup; a terminal only gets wide tables in several parts.
`summary_table` is a pure function of the state, so a run read back from its journal prints the same.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec
from geocont import tables
from geocont.ablations.experiment import AnyExperiment, LanguageExperiment
from geocont.atomic import atomic_file
from geocont.errors import GeocontError, InputError, JobError
from geocont.events import RESIDUAL_SIDES, Event, Message, NetworkDiverged
from geocont.journal import has_journal
from geocont.runs import Recording, RunSummary, read_events
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from geocont_tui import analysis_state, detached
from geocont_tui.analysis_state import AnalysisState
from geocont_tui.analysis_text import analysis_table, plan_table
from geocont_tui.job import AnyState, Job, fold, resumed_job, watched_run, where_kept
from geocont_tui.plain_text import duration, in_ascii, one_line, printable, size, wrapped
from geocont_tui.plain_text import tables as columns
from geocont_tui.run_tables import run_tables
from geocont_tui.state import (
    HIDDEN,
    WEIGHT_U1,
    WEIGHT_V1,
    AblationState,
    Spread,
    Summary,
    chance_level,
    findings,
    measured_projections,
    missing,
    planned,
    summary,
)
from geocont_tui.terminal import ExitCode, is_terminal, needs_ascii
from geocont_tui.terminal_guard import TerminalGuard

State = AnyState

_PART = 0.05
_REFRESH_SECONDS = 0.25
_SILENCE_SECONDS = 60.0


def run_ablation(
    experiment: AnyExperiment,
    recording: Recording,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
    ascii_only: bool | None = None,
) -> int:
    """Pull the training of `experiment`, print its results and write the tables asked for.

    SIGINT and SIGTERM end the run in order: the journal is closed, and what there is by then is printed and written. A
    second one ends the process at once. A terminal that goes away does not end it.

    Returns:
        The exit code: DONE, INTERRUPTED (also where a watching screen has stopped it) or TERMINATED.

    Raises:
        GeocontError: the job, or writing the results, failed. What there is has been printed and written by then.
    """
    job = _job(recording, planned(experiment, ""))
    return _run(job, experiment.name, csv, json, parquet, ascii_only)


def run_analysis(
    model: str,
    recording: Recording,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
    ascii_only: bool | None = None,
) -> int:
    """As `run_ablation`, for the analysis of `model`."""
    job = _job(recording, analysis_state.opening(model))
    return _run(job, model, csv, json, parquet, ascii_only)


def resume_run(
    recording: Recording,
    first: Event,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
    ascii_only: bool | None = None,
) -> int:
    """As `run_ablation`, for a run that goes on; `first` is the first event of the job that does."""
    job = resumed_job(recording, first)
    return _run(job, _name(job.snapshot.state), csv, json, parquet, ascii_only)


def watch_run(
    run_folder: Path,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
    ascii_only: bool | None = None,
) -> int:
    """Say how a run that another process writes goes on; at its end print its results and write the tables asked for.

    SIGINT and SIGTERM end the watching, not the run.

    Returns:
        The exit code: DONE, FAILED, or INTERRUPTED, as the run ended; after a signal 128 + its number.

    Raises:
        InputError: the journal cannot be read, is damaged, or is empty.
        JobError: it was deleted meanwhile.
        GeocontError: writing the results failed.
    """
    job = watched_run(run_folder)
    guard = TerminalGuard(lambda: None, lambda: None, has_screen=False)
    with guard, _display(_name(job.snapshot.state)) as display:
        job.run(lambda: guard.signal is not None or guard.is_lost, display.show)
    if guard.signal is not None or guard.is_lost:
        return 128 + (guard.signal or signal.SIGHUP)
    if job.is_abandoned and not has_journal(run_folder):
        raise JobError(
            f"{run_folder} was deleted while it was watched", "watch another run; `geocont-tui runs` lists them"
        )
    events = partial(read_events, run_folder)
    failure = _print_and_write(job.snapshot.state, events, csv, json, parquet, ascii_only, job.error)
    if failure is not None:
        raise failure
    codes = {"done": ExitCode.DONE, "failed": ExitCode.FAILED}
    return codes.get(job.snapshot.state.status, ExitCode.INTERRUPTED)


def _run(
    job: Job[State],
    name: str,
    csv: Path | None,
    json: Path | None,
    parquet: Path | None,
    ascii_only: bool | None,
) -> int:
    folder = job.folder
    detached.begun(folder)
    guard = TerminalGuard(lambda: None, lambda: None, has_screen=False)
    try:
        _say(f"{name}: kept in {folder}")
        with guard, _display(name) as display:
            job.run(lambda: guard.signal is not None, display.show)
            if guard.signal is not None:
                job.stop()
                job.run()
    finally:
        job.close()
    state = job.snapshot.state
    failure = job.error
    if job.has_begun:
        failure = _print_and_write(state, job.recording.events, csv, json, parquet, ascii_only, failure)
    done = f"{state.progress:.0%} done" if job.has_begun else "nothing done"
    is_stopped = state.status == "stopped"
    _say(f"{f'interrupted, {done}; ' if is_stopped else ''}{where_kept(job.recording)}")
    if failure is not None:
        raise failure
    if guard.signal is not None:
        return 128 + guard.signal
    return ExitCode.INTERRUPTED if is_stopped else ExitCode.DONE


def _print_and_write(
    state: State,
    events: Callable[[], Iterator[Event]],
    csv: Path | None,
    json: Path | None,
    parquet: Path | None,
    ascii_only: bool | None,
    failure: GeocontError | None = None,
) -> GeocontError | None:
    """Write the tables and print the results, both whatever happens; what went wrong first."""
    try:
        write_tables(events, csv=csv, json=json, parquet=parquet)
    except GeocontError as error:
        failure = _first(failure, error)
    try:
        print_summary(state, ascii_only)
    except GeocontError as error:
        failure = _first(failure, error)
    return failure


def _job(recording: Recording, state: State) -> Job[State]:
    """A job without findings, which nobody would see before its end."""
    return Job(recording, state, fold, lambda _state: ())


def _name(state: State) -> str:
    return state.model if isinstance(state, AnalysisState) else state.experiment.name


def _display(name: str) -> "_Bar | _Lines":
    return _Bar(name) if _can_redraw(sys.stderr) else _Lines()


def _first(failure: GeocontError | None, error: GeocontError) -> GeocontError:
    """What is to be reported last, as the reason: the failure there was already. Then `error` is a line of its own."""
    if failure is None:
        return JobError(str(error), error.remedy)
    _say(f"{error}; {error.remedy}")
    return failure


def read_state(run_folder: Path) -> State:
    """The state of a run as its journal has it. Raises InputError as `read_events` does, and if it is empty."""
    return folded(read_events(run_folder), run_folder)


def folded(events: Iterator[Event], run_folder: Path) -> State:
    """The state of the run in `run_folder` after `events`. Raises InputError if there are none."""
    state: State | None = None
    for event in events:
        state = fold(state, event)
    if state is None:
        raise InputError(f"the journal in {run_folder} is empty", "give a run that has started")
    return state


def write_tables(
    events: Callable[[], Iterator[Event]],
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
) -> None:
    """Write the tables of a run, from what `events` reads, to the places given; say on stderr which files they are.

    Raises:
        InputError: the journal cannot be read or a table not written.
    """
    if csv is None and json is None and parquet is None:
        return
    found = run_tables(events())
    written: list[Path] = []
    if csv is not None:
        written += tables.write_csv(found, csv)
    if json is not None:
        written += tables.write_json(found, json)
    if parquet is not None:
        written += tables.write_parquet(found, parquet)
    for path in written:
        _say(f"wrote {path}")


def print_summary(state: State, ascii_only: bool | None = None) -> None:
    """Print the results on stdout, to the width of a terminal, in ASCII where it cannot show more."""
    width = _width()
    text = analysis_table(state, width) if isinstance(state, AnalysisState) else summary_table(state, width)
    write_out(text, needs_ascii(sys.stdout) if ascii_only is None else ascii_only)


def print_plan(events: Iterator[Event], json: Path | None = None, ascii_only: bool | None = None) -> None:
    """Print what an analysis will read on stdout, and write it into the file `json`; nothing more is pulled.

    Raises:
        InputError: the file cannot be written.
    """
    started = next(events)
    state = analysis_state.fold(None, started)
    for event in events:
        if not isinstance(event, Message):
            break
        state = analysis_state.fold(state, event)
    if json is not None:
        warnings = [message.text for message in state.messages if message.level != "info"]
        content = msgspec.json.encode({**msgspec.to_builtins(started), "warnings": warnings})
        try:
            with atomic_file(json) as file:
                file.write(msgspec.json.format(content, indent=2) + b"\n")
        except OSError as error:
            raise InputError(f"{json} cannot be written: {error.strerror or error}", "choose another place") from None
        _say(f"wrote {json}")
    write_out(plan_table(state, _width()), needs_ascii(sys.stdout) if ascii_only is None else ascii_only)


def _width() -> int | None:
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None


def write_out(text: str, ascii_only: bool = False) -> None:
    """Write `text` to stdout. A reader that has gone away (`| head`) is no error.

    Raises:
        JobError: stdout cannot be written.
    """
    if sys.stdout is None:
        return
    encoding = "ascii" if ascii_only else sys.stdout.encoding or "utf-8"
    if ascii_only:
        text = in_ascii(text)
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise JobError(
            f"the results cannot be written to standard output: {error.strerror}",
            "`geocont-tui export RUN` prints them again",
        ) from None


def summary_table(state: AblationState, width: int | None = None) -> str:
    """The results of a run as text: a row per variant, the chance level, the claims, the share of the probes.

    Transformers have a row per variant and projection.

    Args:
        state: the run, over or not.
        width: columns of the terminal; what is wider goes on in a further table, text is wrapped. None: no limit.
    """
    experiment = state.experiment
    summaries = [
        (projection, summary(state, variant.name, projection))
        for variant in experiment.variants
        for projection in measured_projections(variant)
    ]
    is_text = isinstance(experiment, LanguageExperiment)
    rows = [
        _projection_row(found, state, projection) if is_text else _row(found, state) for projection, found in summaries
    ]
    count = len(state.networks)
    word = {"running": "not finished", "done": "done"}.get(state.status, state.status)
    facts = [f"{count} network{'s' if count > 1 else ''}", state.device, f"{word} after {duration(state.elapsed)}"]
    if state.probe_share is not None:
        facts.append(f"{state.probe_share:.1%} of the computing time went into probes")
    if isinstance(experiment, LanguageExperiment):
        facts.append(f"trained in {experiment.precision}")
        if state.tokens_per_second is not None:
            facts.append(f"{state.tokens_per_second:,.0f} tokens/s")
    head = f"{experiment.name}: {experiment.description}" if experiment.description else experiment.name
    blocks = [
        wrapped([head, ", ".join(facts)], width),
        # What a row is about stands in each part.
        *columns(rows, width, leading=2 if is_text else 1),
        wrapped(_notes(state, summaries), width),
        ["claims of the source", *_claims(state, width)],
    ]
    text = "\n\n".join("\n".join(block) for block in blocks) + "\n"
    return printable(text)


def runs_table(runs: Sequence[RunSummary]) -> str:
    """The runs as text, a line each."""
    rows = [
        {
            "run": each.folder,
            "state": each.state,
            "done": "n/a" if each.fraction is None else f"{each.fraction:.0%}",
            "size": f"{each.size / 1e6:.1f} MB",
            "what": each.reason or each.headline or "n/a",
        }
        for each in runs
    ]
    return printable("\n".join(columns(rows, None)[0]) + "\n")


def _row(found: Summary, state: AblationState) -> dict[str, str]:
    status = found.status
    if status in ("training", "waiting"):
        status = "unfinished"
    return {
        "variant": found.variant,
        "status": status,
        "steps": f"{found.step}" if found.step == found.steps else f"{found.step} of {found.steps}",
        "test accuracy": _number(found.test_accuracy),
        "weight v1": _number(found.weight_v1),
        "weight u1": _number(found.weight_u1),
        "peak v1": _number(found.peak),
        "at step": "n/a" if found.peak_step is None else f"{found.peak_step}",
        "gradient v1 at step 0": _number(found.gradient_v1_at_start),
        "gradient v1": _number(found.gradient_v1),
        "σ1/σ2": _number(found.sigma_ratio, 2),
        "top-{k} overlap".replace("{k}", str(state.experiment.probes.leading)): _number(found.top_overlap),
        "‖ΔW‖/‖W0‖": _number(found.update_ratio, 2),
    }


def _projection_row(found: Summary, state: AblationState, projection: str) -> dict[str, str]:
    side = RESIDUAL_SIDES[projection]
    columns = {
        name: f"{_number(value)}{'*' if side == name[0] and value is not None else ''}"
        for name, value in (("v1", found.weight_v1), ("u1", found.weight_u1))
    }
    levels = [chance_level(state, found.variant, quantity, projection)[0] for quantity in (WEIGHT_V1, WEIGHT_U1)]
    return {
        "variant": found.variant,
        "projection": projection,
        "steps": f"{found.step}" if found.step == found.steps else f"{found.step} of {found.steps}",
        **columns,
        "chance v1, u1": f"{levels[0]:.3f}, {levels[1]:.3f}",
        "peak of *": _number(found.peak),
        "at step": "n/a" if found.peak_step is None else f"{found.peak_step}",
        "σ1/σ2": _number(found.sigma_ratio, 2),
        f"top-{state.experiment.probes.leading} overlap of *": _number(found.top_overlap),
        "perplexity": _number(found.perplexity, 1),
    }


def _number(found: Spread | None, digits: int = 3) -> str:
    if found is None:
        return "n/a"
    # z: no number is -0.000.
    style = f"z.{digits}f" if max(abs(found.mean), found.std or 0.0) < 1e5 else ".2e"
    mean = f"{found.mean:{style}}"
    return mean if found.std is None else f"{mean} ± {found.std:{style}}"


def _notes(state: AblationState, summaries: list[tuple[str, Summary]]) -> list[str]:
    """What the numbers are, what chance would give, and why a number is not there."""
    several = state.experiment.seeds > 1
    notes = [f"{'mean ± standard deviation over seeds; ' if several else ''}v1, u1: mean |cos| of adjacent layers"]
    levels: dict[tuple[str, str], list[str]] = {}
    is_text = isinstance(state.experiment, LanguageExperiment)
    if is_text:
        notes.append("* the side that meets the residual stream; perplexity: of text that is not trained on")
    for projection, found in summaries:
        if is_text:
            continue
        mean, high = chance_level(state, found.variant, WEIGHT_V1, projection)
        levels.setdefault((f"{mean:.3f}", f"{high:.3f}"), []).append(found.variant)
    for (level, upper), names in levels.items():
        of = f" for {', '.join(names)}" if len(levels) > 1 else ""
        notes.append(f"chance level{of}: {level} (95 % of such means are below {upper})")
    reasons: dict[tuple[str, str], list[str]] = {}
    for projection, found in summaries:
        for title, value, field in (
            ("weight v1, u1", found.weight_v1 and found.weight_u1, "weight"),
            ("gradient v1", found.gradient_v1, "gradient"),
            ("σ1/σ2", found.sigma_ratio, "sigma_ratio"),
            ("‖ΔW‖/‖W0‖", found.update_ratio, "update_ratio"),
        ):
            reason = missing(state, found.variant, field, projection)
            if value is None and reason:
                reasons.setdefault((found.variant, f"{title} n/a: {reason}"), []).append(projection)
    for (variant, reason), projections in reasons.items():
        of = "" if projections == [HIDDEN] else f" {', '.join(projections)}"
        notes.append(f"{variant}{of}: {reason}")
    return notes


def _claims(state: AblationState, width: int | None) -> list[str]:
    """A line per claim under test, beginning with the one word, then the reason where there is one."""
    lines: list[str] = []
    for finding in findings(state):
        lines += wrapped([f"  {finding.verdict:<14}{finding.claim}: {finding.numbers}"], width, indent=16)
        if finding.reason:
            lines += wrapped([f"{'':16}{finding.reason}"], width, indent=16)
    return lines or ["  none of them is under test with these variants"]


class _Lines:
    """Progress as plain lines, one per 5 % and at least one a minute: for logs, pipes and screen readers."""

    def __init__(self) -> None:
        self._shown = 0
        self._said = time.monotonic()

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, state: State, event: Event) -> None:
        text = _news(event)
        if text:
            _say(text)
        part = int(state.progress / _PART + 1e-9)
        if part > self._shown or time.monotonic() - self._said > _SILENCE_SECONDS:
            self._shown = part
            self._said = time.monotonic()
            # Rounded down: 100 % means the end.
            _say(f"{int(100 * state.progress + 1e-9):3d}%  {_position(state)}")


class _Bar:
    """Progress as one live line on a terminal."""

    def __init__(self, name: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[position]}", markup=False),
            console=Console(stderr=True, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
        )
        self._task = self._progress.add_task(one_line(name), total=1.0, position="")
        self._drawn = 0.0

    def __enter__(self) -> "_Bar":
        with suppress(OSError):
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._progress.refresh()
            self._progress.stop()

    def show(self, state: State, event: Event) -> None:
        # A terminal that has gone away does not end the run.
        with suppress(OSError):
            text = _news(event)
            if text:
                self._progress.console.print(one_line(text), soft_wrap=True)
            self._progress.update(self._task, completed=state.progress, position=_position(state))
            if time.monotonic() - self._drawn > _REFRESH_SECONDS:
                self._drawn = time.monotonic()
                self._progress.refresh()


def _news(event: Event) -> str | None:
    """What an event has to say in words beyond the progress."""
    if isinstance(event, Message):
        return event.text if event.level == "info" else f"{event.level}: {event.text}"
    if isinstance(event, NetworkDiverged):
        return f"warning: {event.variant}, seed {event.seed}, diverged at step {event.step}: {event.reason}"
    return None


def _position(state: State) -> str:
    if isinstance(state, AnalysisState):
        parts = [f"{state.over:,} of {state.planned:,} matrices, {size(state.bytes_read)} read"]
        if state.bytes_per_second:
            parts.append(f"{size(round(state.bytes_per_second))}/s")
    else:
        parts = [f"{state.steps_planned - state.steps_left:,} of {state.steps_planned:,} network-steps"]
        if state.steps_per_second:
            parts.append(f"{state.steps_per_second:,.0f}/s")
    if state.eta is not None:
        parts.append(f"{duration(state.eta)} left")
    return "  ".join(parts)


def _can_redraw(stream: TextIO | None) -> bool:
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _say(text: str) -> None:
    """A line on stderr, for people. Nobody there to read it is no error."""
    if sys.stderr is None:
        return
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send all that is still to be written, the buffer at exit too, nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
