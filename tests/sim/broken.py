"""The expectation of the tests of checkers: an action that breaks an invariant, named."""

from collections.abc import Callable

import pytest

from .checkers import Violation


def broken(invariant: str, action: Callable[[], None]) -> None:
    """Fail unless `action` raises Violation of the invariant."""
    with pytest.raises(Violation, match=f"^{invariant}: "):
        action()
