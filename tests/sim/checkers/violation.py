"""The one exception of all checkers."""


class Violation(AssertionError):
    """An invariant does not hold: which one, and what was seen. Ends the run of the seed."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail
