"""Waits for the end of an entry that is applied in part, for those who need the queries and the index to agree."""

from typing import Final

from cluster.core.core import Core

TIMEOUT_S: Final = 2.0
"""Maximum seconds to wait for one entry, which takes some milliseconds. Longer waits mean that the node is ending."""


async def between_entries(core: Core) -> bool:
    """Wait until no entry is applied in part; the caller goes on before the next one begins. Return False when one did
    not end within TIMEOUT_S, or the node stops.
    """
    while core.state.is_paused:
        if not await core.waiters.entries.wait(core.state.applied_index + 1, TIMEOUT_S):
            return False
    return True
