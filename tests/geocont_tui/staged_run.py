"""A run on the screen that stands still at a known event, its characters, and their snapshots.

`GEOCONT_UPDATE_SNAPSHOTS=1 pytest …` writes the snapshots anew.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import synthetic
from geocont.events import AnalysisProgress, Event, Message, Progress
from rich.segment import Segment
from textual.color import Color
from textual.pilot import Pilot

from geocont_tui import job as job_module
from geocont_tui.app import RunApp
from geocont_tui.terminal import Settings

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = [(60, 15), (80, 24), (100, 30), (140, 40)]
DARK = Settings(fps=1)
LIGHT = Settings(fps=1, dark=False)
FEW_COLOURS = Settings(fps=1, colours="16")
NO_COLOUR = Settings(fps=1, colours="none")
PLAIN = Settings(fps=1, colours="none", ascii=True)


class Source(Iterator[Event]):
    """The given events and a heartbeat; then it raises `error`, or waits and, released, sends only heartbeats."""

    def __init__(self, events: Iterator[Event], error: Exception | None = None) -> None:
        self._events = events
        self._error = error
        self._heartbeat: Event | None = None
        self.reached = threading.Event()
        self.released = threading.Event()
        self.closed = False

    def __next__(self) -> Event:
        try:
            event = next(self._events, None)
        except Exception:
            self.reached.set()
            raise
        if isinstance(event, Progress):
            self._heartbeat = msgspec.structs.replace(event, networks=())
        elif isinstance(event, AnalysisProgress):
            self._heartbeat = event
        if event is not None:
            return event
        if self._heartbeat is not None and job_module._JUDGE_SECONDS:
            job_module._JUDGE_SECONDS = 0.0
            return self._heartbeat
        self.reached.set()
        if self._error is not None:
            raise self._error
        if not self.released.wait(20):
            raise TimeoutError("no test released the source of events")
        return self._heartbeat or Message(level="info", text="still here", time=synthetic.START)

    def close(self) -> None:
        self.closed = True
        self.reached.set()


@dataclass
class Run:
    """An app in a pilot, with its source of events."""

    app: RunApp
    pilot: Pilot[None]
    source: Source
    folder: Path

    @property
    def screen(self) -> Any:
        return self.app.run_screen

    @property
    def lines(self) -> list[str]:
        return ["".join(segment.text for segment in row).rstrip() for row in self.rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def rows(self) -> list[list[Segment]]:
        return [list(strip) for strip in self.app.screen._compositor.render_strips()]

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def settle(self) -> None:
        """Until the run has ended and the screen shows it."""
        self.source.released.set()
        await self.app.workers.wait_for_complete()
        self.app.paint()
        await self.pilot.pause()


@asynccontextmanager
async def staged(
    app: RunApp, source: Source, folder: Path, size: tuple[int, int], is_over: bool = False
) -> AsyncIterator[Run]:
    """The app, painted, at the point where all events of `source` are folded."""
    try:
        async with app.run_test(size=size) as pilot:
            assert await asyncio.to_thread(source.reached.wait, 20)
            if is_over or source.closed:
                await app.workers.wait_for_complete()
            app.paint()
            await pilot.pause()
            yield Run(app, pilot, source, folder)
            source.released.set()
    finally:
        source.released.set()


async def exported(run: Run) -> None:
    """Until the tables are written. Textual takes an empty list of workers for all of them, the job included."""
    exporting = [worker for worker in run.app.workers if worker.group == "export"]
    if exporting:
        await run.app.workers.wait_for_complete(exporting)
    await run.pilot.pause()


def compare(name: str, text: str) -> None:
    """Compare with the snapshot of that name, or write it when asked to."""
    path = SNAPSHOTS / name
    if os.environ.get("GEOCONT_UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8"), f"{name} differs; GEOCONT_UPDATE_SNAPSHOTS=1 accepts it"


def contrast(first: Color, second: Color) -> float:
    """WCAG 2 contrast ratio."""

    def luminance(colour: Color) -> float:
        parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
