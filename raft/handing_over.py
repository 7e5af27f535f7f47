"""Hands leadership over (Raft thesis 3.10): a follower that holds every entry is told to stand for election at once."""

import asyncio
import logging

from raft.handlers import SafeRaft
from raft.library import LEADER

log = logging.getLogger(__name__)

HAND_OVER_TIMEOUT_MS = 3_000
"""Milliseconds a leader waits for another node to take over, before it goes on leading or just leaves."""


async def hand_over(raft: SafeRaft, to: int | None = None) -> None:
    """Hand over leadership, to the voter `to` or else to the fittest. Returns when this node no longer leads or
    HAND_OVER_TIMEOUT_MS is over. The caller proposes nothing meanwhile.

    Entries under way are committed first, so that their proposers are told. This takes at most half of the time, since
    the disk of this node may hang.
    """
    loop = asyncio.get_running_loop()
    patient_until_s = loop.time() + HAND_OVER_TIMEOUT_MS / 2000
    try:
        async with asyncio.timeout(HAND_OVER_TIMEOUT_MS / 1000):
            while raft.state.role == LEADER:
                if raft.state.commit_index >= raft.state.log.last_index or loop.time() >= patient_until_s:
                    raft.leadership.ask_successor(to)
                await asyncio.sleep(raft.state.config.heartbeat_ms / 1000)
        log.info("leadership handed over")
    except TimeoutError:
        log.warning("no other node took the leadership over within %d ms", HAND_OVER_TIMEOUT_MS)
