"""The exception that all checkers raise."""


class Violation(AssertionError):
    """Raised when an invariant does not hold, with its name and the observation. It ends the run of the seed."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail
