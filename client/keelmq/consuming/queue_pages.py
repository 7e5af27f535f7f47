"""Where a queue's pages come from: the leader, and a follower while what is read is old."""

import logging
import time
from typing import Final

from keelmq.consuming.group_session import Pulled, TopicQueue, pull, pull_at_follower
from keelmq.consuming.selection import Selection
from keelmq.errors import KeelMQError, Unavailable
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Backoff, Clock

FOLLOWER_TIMEOUT_MS: Final = 1_000
"""What a follower that hangs costs, once until its pause is over."""
FOLLOWER_PAUSE_MS: Final = 1_000
FOLLOWER_PAUSE_MAX_MS: Final = 60_000

log = logging.getLogger("keelmq")


class QueuePages:
    """The pages of `place`, for one reader.

    A page that its node read from the disk, and that is not the queue's last one, says that the reader catches up: the
    next page is asked of a follower, so that it costs producers less. A follower's page counts if it has something new
    and goes on where the reader is. Whatever else a follower answers, or does not, the leader is asked at once, and
    for a while nobody but the leader. That a queue ends, has expired, or is not there only the leader is believed.

    Not `follower_reads`: every page is asked of the leader.
    """

    def __init__(
        self, connection: Connection, place: TopicQueue, *, follower_reads: bool, clock: Clock = time.monotonic
    ) -> None:
        self._connection = connection
        self._place = place
        self._follower_reads = follower_reads
        self._clock = clock
        self._is_catching_up = False
        self._leader_only_until_s = 0.0
        self._pauses = Backoff(FOLLOWER_PAUSE_MS, FOLLOWER_PAUSE_MAX_MS)
        self._required_index = 0

    def require(self, applied_index: int) -> None:
        """No page that is asked for from now on counts of a node that had not applied this entry by then."""
        self._required_index = applied_index

    async def next(
        self, offset: int, *, max_messages: int, max_bytes: int, wait_ms: int, selection: Selection
    ) -> Pulled:
        """The page at `offset`; waits up to `wait_ms` for its first message. Raises what `pull` raises, and
        Unavailable (`node_behind`)."""
        required_index = self._required_index
        if self._is_catching_up and self._clock() >= self._leader_only_until_s:
            pulled = await self._at_follower(offset, max_messages, max_bytes, selection)
            if pulled is not None and pulled.applied_index is not None and pulled.applied_index >= required_index:
                self._is_catching_up = pulled.is_old
                self._pauses.reset()
                return pulled
            self._leader_only_until_s = self._clock() + self._pauses.next_s()
        pulled = await pull(
            self._connection,
            self._place,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            selection=selection,
        )
        if pulled.applied_index is not None and pulled.applied_index < required_index:
            # Another one while the leader is slow, or a new leader that has not applied everything yet.
            detail = f"the node that answered had applied entry {pulled.applied_index}, not yet {required_index}"
            raise Unavailable("node_behind", detail)
        self._is_catching_up = pulled.is_old and self._follower_reads
        return pulled

    async def _at_follower(self, offset: int, max_messages: int, max_bytes: int, selection: Selection) -> Pulled | None:
        """A page that goes on at `offset`, of a follower that may be behind; None if there is none."""
        try:
            pulled = await pull_at_follower(
                self._connection,
                self._place,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                selection=selection,
                timeout_ms=FOLLOWER_TIMEOUT_MS,
            )
        except KeelMQError as exc:
            log.warning("%s/%d: a page of a follower is no good: %s", *self._place, exc)
            return None
        goes_on = pulled is not None and pulled.min_offset <= offset < pulled.next_offset
        return pulled if goes_on else None
