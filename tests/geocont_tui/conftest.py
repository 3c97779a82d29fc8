"""What the tests of the program share."""

from collections.abc import Callable, Iterator

import pytest
import textual._wait
from program import Screen

# After every key a pilot waits for a moment without work. Textual's moments are four times as long; that was a third
# of the time of the tests of the ablation screen.
textual._wait.SLEEP_GRANULARITY, textual._wait.SLEEP_IDLE = 1 / 200, 1 / 2000


@pytest.fixture
def screen() -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(*arguments: str) -> Screen:
        opened.append(Screen(*arguments))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
