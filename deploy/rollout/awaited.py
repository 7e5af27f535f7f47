"""The nodes and hosts for which the tool waits at the moment, and words of it for whoever runs the tool.

Whoever asks a host (transport.py, holding.py) or a node (health.py) notes it here, so no verb stands in silence while
one does not answer.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from deploy.reporting.report import Report
from deploy.rollout.inventory import Node

SILENCE_S: Final = 3.0
"""Seconds of silence after which the report says which calls are waited for."""
CALL_S_MIN: Final = 1.0
"""Seconds without an answer after which a call is named in the report."""
AGAIN_S: Final = 15.0
"""Seconds after which the report names the same calls again."""
TICK_S: Final = 0.25

Limit = Callable[[float], str]
"""Function that says how long a call will still wait, given the seconds that it has waited."""


class _Call:
    """A call that has not been answered."""

    def __init__(self, node: Node, action: str, limit: Limit) -> None:
        self.begun_s = time.monotonic()
        self.told_s: float | None = None
        self._node, self._action, self._limit = node, action, limit

    def is_due(self, now_s: float) -> bool:
        return self.told_s is None or now_s - self.told_s >= AGAIN_S

    def text(self, now_s: float) -> str:
        waited_s = now_s - self.begun_s
        return f"node {self._node.id} ({self._node.host}): {self._action} for {waited_s:.0f} s, {self._limit(waited_s)}"


class Awaited:
    """Keeps the calls that have not been answered, and tells of them. Threads may call it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[_Call] = []

    @contextlib.contextmanager
    def call(self, node: Node, action: str, limit: Limit) -> Iterator[None]:
        """Note within the block that the node or its host is waited for."""
        call = _Call(node, action, limit)
        with self._lock:
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)

    @contextlib.contextmanager
    def told(self, report: Report) -> Iterator[None]:
        """Tell the report within the block what is waited for, whenever it has been silent for SILENCE_S."""

        def tell() -> None:
            if report.silent_s() >= SILENCE_S and (text := self.text()):
                report.event(text)

        with report.every(TICK_S, tell):
            yield

    def text(self) -> str:
        """Return the line that is due, empty if there is nothing new."""
        now_s = time.monotonic()
        with self._lock:
            calls = [each for each in self._calls if now_s - each.begun_s >= CALL_S_MIN]
            if not any(each.is_due(now_s) for each in calls):
                return ""
            for each in calls:
                each.told_s = now_s
        return f"waiting for {'; '.join(each.text(now_s) for each in calls)}"


AWAITED: Final = Awaited()
"""The calls of this process."""


def at_most(longest_s: float) -> Limit:
    """Return the limit of a call that ends after this time."""
    return lambda _: f"at most {longest_s:.0f} s"
