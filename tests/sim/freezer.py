"""A process that stands still, as after SIGSTOP: what arrives meanwhile waits, and runs later, in order of arrival."""

from collections.abc import Callable
from functools import partial
from typing import Any

from .world import World


class Freezer:
    """Stops one life of a process for a while, as often as wanted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._until_us = 0
        self._waiting: list[Callable[[], None]] = []
        self._thawing = False

    @property
    def stands(self) -> bool:
        return self._world.now_us < self._until_us

    def freeze(self, duration_us: int) -> None:
        """Stop the process for `duration_us` from now, or until an earlier stop is over, if that is later."""
        self._until_us = max(self._until_us, self._world.now_us + duration_us)

    def begin_life(self) -> None:
        """Let a new process run; all that waits for the last one is lost."""
        self._until_us, self._waiting = 0, []

    def may_run(self, again: Callable[[Any], None], what: Any) -> bool:
        """Return whether the process runs at the moment. If not, `again(what)` is called later."""
        if self._thawing or not (self._waiting or self.stands):
            return True
        if not self._waiting:
            self._world.after(max(0, self._until_us - self._world.now_us), partial(self._thaw, self._waiting))
        self._waiting.append(partial(again, what))
        return False

    def _thaw(self, waiting: list[Callable[[], None]]) -> None:
        if waiting is not self._waiting:
            return  # of an earlier life
        remaining_us = self._until_us - self._world.now_us
        if remaining_us > 0:
            self._world.after(remaining_us, partial(self._thaw, waiting))
            return
        self._waiting, self._thawing = [], True
        try:
            for action in waiting:
                action()
        finally:
            self._thawing = False
