"""Bytes a live chart and its bars send to the terminal a frame: changed spans only against whole widgets, in one pty.

    python tests/benchmarks/chart_bytes.py

Eight curves with bands grow by one probe a frame over a fixed range, and sixteen bars change with every fourth frame,
as on the live screen (4 frames a second, bars once a second). Start and end of the application are measured without
frames and subtracted. Unix only, as it needs a pseudo-terminal.
"""

import fcntl
import math
import os
import pty
import struct
import sys
import termios
import time

FRAMES = 60
FRAMES_PER_SECOND = 4
SIZES = ((80, 24), (140, 40))


def chart_data(probes: int) -> "object":
    from geocont_tui.widgets.chart import ChartData, Curve, Level

    x = tuple(1200 * i / (FRAMES + 40) for i in range(probes))
    curves = []
    for index in range(8):
        y = tuple(
            (0.2 + 0.1 * index) * (1 - math.exp(-step / (60 + 20 * index))) + 0.004 * math.sin(step) for step in x
        )
        low, high = tuple(value - 0.02 for value in y), tuple(value + 0.02 for value in y)
        curves.append(Curve(f"variant {index}", index, x, y, low, high))
    return ChartData(tuple(curves), (0.0, 1200.0), levels=(Level(0.05, "chance .050"),))


def bars_data(frame: int) -> "object":
    from geocont_tui.widgets.bars import BarRow, BarsData

    rows = tuple(BarRow(f"{i}-{i + 1}", 0.9 - 0.03 * i + 0.004 * math.sin(frame + i)) for i in range(16))
    return BarsData(rows, 0.05, 0.09, "chance .050 (256 dims)")


def show(whole: bool, frames: int) -> None:
    """The child: an application on the pseudo-terminal that shows `frames` frames and ends."""
    os.environ.update(TEXTUAL_FPS="60", TEXTUAL_ANIMATIONS="none")
    from textual.app import App, ComposeResult

    from geocont_tui.palette import palette_for
    from geocont_tui.widgets.bars import Bars
    from geocont_tui.widgets.chart import Chart

    class Live(App[None]):
        CSS = "Chart, Bars { border: solid white; }"
        frame = 0

        def compose(self) -> ComposeResult:
            yield Chart(palette_for("truecolor", dark=True))
            yield Bars(palette_for("truecolor", dark=True))

        def on_mount(self) -> None:
            self.query_one(Chart).show(chart_data(40))
            self.query_one(Bars).show(bars_data(0))
            self.set_timer(0.5, self.start)

        def start(self) -> None:
            self.set_interval(0.04, self.paint)

        def paint(self) -> None:
            if self.frame == frames:
                self.exit()
                return
            self.frame += 1
            chart, bars = self.query_one(Chart), self.query_one(Bars)
            chart.show(chart_data(40 + self.frame))
            if self.frame % 4 == 0:
                bars.show(bars_data(self.frame))
            if whole:
                chart.refresh()
                if self.frame % 4 == 0:
                    bars.refresh()

    Live().run()


def bytes_sent(size: tuple[int, int], whole: bool, frames: int) -> int:
    """Run the application in a pseudo-terminal of `size` columns × rows and count what it writes."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [sys.executable, __file__, "child", "whole" if whole else "spans", str(frames)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    count = 0
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        count += len(chunk)
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise SystemExit(f"the application ended with status {status}")
    return count


def milliseconds_a_frame(width: int, height: int) -> float:
    """Median time to draw a frame in which all eight curves have changed."""
    from geocont_tui.palette import palette_for
    from geocont_tui.widgets.chart import draw

    times = []
    for probes in range(60, 81):
        data = chart_data(probes)
        start = time.perf_counter()
        draw(data, width, height, palette_for("truecolor", dark=True))
        times.append(time.perf_counter() - start)
    return 1000 * sorted(times)[len(times) // 2]


def main() -> None:
    print("| screen | whole widgets, B/frame | changed spans, B/frame | ratio | at 4 frames/s | chart drawn in |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        idle = bytes_sent(size, False, 0)
        whole = (bytes_sent(size, True, FRAMES) - idle) / FRAMES
        spans = (bytes_sent(size, False, FRAMES) - idle) / FRAMES
        print(
            f"| {size[0]}×{size[1]} | {whole:.0f} | {spans:.0f} | {whole / spans:.1f} "
            f"| {spans * FRAMES_PER_SECOND / 1024:.1f} KiB/s | {milliseconds_a_frame(*size):.0f} ms |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        show(sys.argv[2] == "whole", int(sys.argv[3]))
    else:
        main()
