"""Turn bugs that the services log about themselves into violations: nobody else may notice them."""

import logging
from asyncio import InvalidStateError
from collections.abc import Iterator
from contextlib import contextmanager

from .checkers import Violation
from .replica import Replica
from .threads import Running

_WATCHED = ("cluster", "aiohttp")
_SILENT = ("raft", "asyncio")  # what they log in earnest the simulation sees anyway


class _Watch(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Record an error as a violation. A node that has just died fails everything it was doing and logs that, which
        is none.
        """
        node = Running.node
        if isinstance(node, Replica) and node.alive and node.observer.found is None:
            if record.name == "cluster.health.alarms" and isinstance(record.args, tuple):
                node.observer.note(f"alarm: {record.args[0]}")  # told to operators, and no bug
                return
            error = record.exc_info[1] if record.exc_info else None
            if record.name.startswith("aiohttp") and isinstance(error, InvalidStateError):
                return  # at its shutdown aiohttp cancels what the handler that it cuts off then wants to fulfil
            node.observer.found = Violation("error_logged", f"node {node.node_id}: {record.getMessage()}: {error!r}")


@contextmanager
def logged_errors_are_violations() -> Iterator[None]:
    """Silence all logging below errors and end the run at an error of the services."""
    watch, disabled = _Watch(logging.ERROR), logging.root.manager.disable
    levels = {name: logging.getLogger(name).level for name in _SILENT}
    propagated = {name: logging.getLogger(name).propagate for name in _WATCHED}
    logging.disable(logging.WARNING)
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for name in _WATCHED:
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(watch)
    try:
        yield
    finally:
        for name in _WATCHED:
            logging.getLogger(name).propagate = propagated[name]
            logging.getLogger(name).removeHandler(watch)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(disabled)
