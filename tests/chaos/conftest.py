"""Fixtures of the tests of the checkers."""

import pytest

from tests.chaos.violations import Violations


@pytest.fixture
def violations() -> Violations:
    """Return a collection without violations, which checkers add to."""
    return Violations()
