"""What can go wrong that is not a bug: one line that says what is wrong, one that says what to do."""


class GeocontError(Exception):
    """An error a user can act on. `str(error)` is the problem; `error.remedy` says what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class InputError(GeocontError):
    """The user's input is wrong: a file, a name, a value. Exit code 2."""


class JobError(GeocontError):
    """A job that had started could not go on. Exit code 1."""
