"""Draw the live screen as it stood at the end of a run, from the run's journal.

    python docs/picture.py RUN docs/ablation.svg [--size 140x40] [--light]

RUN is a name that `geocont-tui runs` lists, or a run's folder. The picture in the README is made this way.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import msgspec
from geocont.ablations.experiment import Experiment
from geocont.events import RunStarted
from geocont.runs import Recording, find_run, read_events

from geocont_tui.app import AblationApp
from geocont_tui.job import ablation_job
from geocont_tui.terminal import Settings


async def draw(run: Path, size: tuple[int, int], dark: bool) -> str:
    """The screen as SVG after all events of the run."""
    started = next(read_events(run))
    if not isinstance(started, RunStarted):
        raise SystemExit(f"{run} does not begin with the start of a run")
    experiment = msgspec.convert(started.experiment, Experiment)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        copy.mkdir()
        app = AblationApp(ablation_job(experiment, Recording(read_events(run), copy)), Settings(dark=dark))
        async with app.run_test(size=size) as pilot:
            await app.workers.wait_for_complete()
            app.paint()
            await pilot.pause()
            return app.export_screenshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", default="140x40")
    parser.add_argument("--light", action="store_true")
    options = parser.parse_args()
    columns, rows = (int(part) for part in options.size.split("x"))
    options.file.write_text(asyncio.run(draw(find_run(options.run), (columns, rows), not options.light)), "utf-8")


if __name__ == "__main__":
    main()
