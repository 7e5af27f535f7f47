"""Gives back messages that were popped for clients that went away before they were answered.

Nobody can acknowledge them: without this they would wait until their time is over. A worker that is closed leaves a pop
under way. They come again after the group's backoff: at once, clients that do not wait for a slow cluster would use up
the attempts of messages that no handler has seen.
"""

import asyncio
from functools import partial
from typing import Final

from cluster.core.core import Core
from cluster.limits import POP_MESSAGES_MAX
from raft.proposals import Applied
from store.commands.entry import Proposal
from store.commands.pops import ChangeInvisible, PopHandle, Popped

REASON: Final = "the client went away"


class LeftPops:
    """Use on the event loop only. Call `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._left: dict[str, list[PopHandle]] = {}
        """The messages to give back, by group."""
        self._woken = asyncio.Event()
        self._task = core.background.task("left-pops", "give back what was popped for nobody", self._round)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def note(self, popped: Popped) -> None:
        """Note messages that no client was told of."""
        left = [each.handle(offset) for each in popped.messages for offset in each.offsets]
        if left:
            self._left.setdefault(popped.group, []).extend(left)
            self._woken.set()

    async def _round(self) -> float:
        await self._woken.wait()
        self._woken.clear()
        left, self._left = self._left, {}
        for group, handles in left.items():
            for begin in range(0, len(handles), POP_MESSAGES_MAX):
                give_back = partial(ChangeInvisible, group, invisible_ms=None, reason=REASON)
                commands = [give_back(handle=each) for each in handles[begin : begin + POP_MESSAGES_MAX]]
                # What is refused, or fails with its leader, comes when its time is over.
                for outcome in await self._core.propose_all([Proposal(each) for each in commands]):
                    if isinstance(outcome, Applied) and outcome.result.outcome in ("scheduled", "dead_lettered"):
                        self._core.metrics.given_back[outcome.result.outcome].inc()
        return 0.0
