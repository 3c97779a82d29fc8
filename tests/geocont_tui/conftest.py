"""What the tests of the program share."""

from collections.abc import Callable, Iterator

import pytest
from program import Screen


@pytest.fixture
def screen() -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(*arguments: str) -> Screen:
        opened.append(Screen(*arguments))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
