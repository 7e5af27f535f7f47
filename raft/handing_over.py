"""A leader gives its leadership away (Raft thesis 3.10): who has everything is told to stand for election at once."""

import asyncio
import logging

from raft.handlers import SafeRaft
from raft.library import LEADER

log = logging.getLogger(__name__)

HAND_OVER_TIMEOUT_MS = 3_000
"""How long a leader waits for another to take over, before it goes on or just leaves."""


async def hand_over(raft: SafeRaft) -> None:
    """Returns when this node leads no more, or the time is over. The caller proposes nothing meanwhile.

    What is under way is committed first, so that its proposers are told; for half of the time, since the disk of this
    node may hang.
    """
    loop = asyncio.get_running_loop()
    patient_until_s = loop.time() + HAND_OVER_TIMEOUT_MS / 2000
    try:
        async with asyncio.timeout(HAND_OVER_TIMEOUT_MS / 1000):
            while raft.state.role == LEADER:
                if raft.state.commit_index >= raft.state.log.last_index or loop.time() >= patient_until_s:
                    raft.leadership.ask_successor()
                await asyncio.sleep(raft.state.config.heartbeat_ms / 1000)
        log.info("leadership handed over")
    except TimeoutError:
        log.warning("nobody took over within %d ms", HAND_OVER_TIMEOUT_MS)
