"""All tables of a run: those that its events give, and what its screen says about the claims of the source.

run_tables(events) -> list[Table]      of a run of either kind, in one pass
"""

from collections.abc import Iterable, Iterator

from geocont import tables
from geocont.events import AnalysisStarted, Event
from geocont.tables import Table

from geocont_tui import state as states
from geocont_tui.state import AblationState


def run_tables(events: Iterable[Event]) -> list[Table]:
    """The tables of a run, the claims last. They are judged as on the screen, by what a state keeps of a long run.

    Errors raised by `events` (a damaged journal) pass through.
    """
    state: AblationState | None = None

    def folded() -> Iterator[Event]:
        nonlocal state
        coming = iter(events)
        for event in coming:
            yield event
            if isinstance(event, AnalysisStarted):
                yield from coming
                return
            state = states.fold(state, event)

    found = list(tables.tables(folded()))
    return found if state is None else [*found, tables.claims_table(state.experiment, states.findings(state))]
