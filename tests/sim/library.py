"""Replacements, for the length of a run, of PySyncObj's surroundings: clock, randomness, poller, pipes."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pysyncobj.syncobj as library
from pysyncobj.node import Node

from .world import MICROSECONDS_PER_SECOND, World


class SimNode(Node):  # type: ignore[misc]  # untyped library
    """A library node whose hash does not depend on PYTHONHASHSEED: the library iterates over sets of nodes."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)

    def __hash__(self) -> int:
        return int(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and bool(self.id == other.id)


class _NoPoller:
    """A poller without sockets: every message arrives as an event of the world."""

    def subscribe(self, descriptor: Any, callback: Any, mask: Any) -> None:
        raise AssertionError("the simulation has no file descriptors")

    def poll(self, timeout: float) -> None:
        pass


@contextmanager
def simulated_library(world: World, *, draw: Callable[[], float] | None = None) -> Iterator[None]:
    """Patch the library's clock, randomness, poller and self-pipe; silence its log of the damage it does.

    The library's only use of chance is to draw election timeouts: by `draw`, or by a generator of the world's.
    """
    chance = SimpleNamespace(random=draw or world.random_of("library").random)

    def now() -> float:
        return (world.now_us + world.skew_us) / MICROSECONDS_PER_SECOND

    logger = logging.getLogger("pysyncobj")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with (
        mock.patch.object(library, "monotonicTime", now),
        mock.patch.object(library, "random", chance),
        mock.patch.object(library, "createPoller", return_value=_NoPoller()),
        mock.patch.object(library, "PIPE_NOTIFIER_ENABLED", False),
    ):
        try:
            yield
        finally:
            logger.setLevel(level)
