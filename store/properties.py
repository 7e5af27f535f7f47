"""Properties that cost no call of a Python function."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any


def reads(path: str, write: Callable[[Any, Any], None] | None = None) -> Any:
    """Return a property that reads the attribute at `path`, whose parts are separated by dots, for what is read dozens
    of times per message. Assigning calls `write`, or raises AttributeError.
    """
    return property(attrgetter(path), write)
