"""Draw the live screen as it stood at the end of a run, from the run's journal.

    python docs/picture.py RUN docs/ablation.svg [--size 140x40] [--light] [--press 3,down]

RUN is a name that `geocont-tui runs` lists, or a run's folder. The picture in the README is made this way.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from geocont.ablations.experiment import plain
from geocont.events import AnalysisStarted, RunStarted
from geocont.runs import Recording, find_run, read_events

from geocont_tui.app import AblationApp, AnalysisApp, RunApp
from geocont_tui.job import ablation_job, analysis_job
from geocont_tui.terminal import Settings


async def draw(run: Path, size: tuple[int, int], dark: bool, keys: list[str]) -> str:
    """The screen as SVG after all events of the run and some keys."""
    started = next(read_events(run))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        copy.mkdir()
        recording = Recording(read_events(run), copy)
        app: RunApp
        if isinstance(started, AnalysisStarted):
            app = AnalysisApp(analysis_job(started.model, recording), Settings(dark=dark))
        elif isinstance(started, RunStarted):
            app = AblationApp(ablation_job(plain(started.experiment), recording), Settings(dark=dark))
        else:
            raise SystemExit(f"{run} does not begin with the start of a run")
        async with app.run_test(size=size) as pilot:
            await app.workers.wait_for_complete()
            app.paint()
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()
            return app.export_screenshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", default="140x40")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--press", default="", help="keys, comma-separated, before the picture is taken")
    options = parser.parse_args()
    columns, rows = (int(part) for part in options.size.split("x"))
    keys = [key for key in options.press.split(",") if key]
    picture = asyncio.run(draw(find_run(options.run), (columns, rows), not options.light, keys))
    options.file.write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
