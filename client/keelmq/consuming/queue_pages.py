"""Source of a queue's pages: the leader, or a follower while the reader is catching up."""

import time
from collections.abc import Callable
from typing import Final

from keelmq.consuming.group_session import Pulled, TopicQueue, pull, pull_at_follower
from keelmq.consuming.selection import Selection
from keelmq.errors import KeelMQError, Unavailable
from keelmq.line_log import log
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Backoff, Clock

FOLLOWER_TIMEOUT_MS: Final = 1_000
"""Time that a hanging follower costs, once until its pause is over."""
FOLLOWER_PAUSE_MS: Final = 1_000
FOLLOWER_PAUSE_MAX_MS: Final = 60_000

NamedGroup = Callable[[], str | None]
"""Returns the group that a pull names; None while there may be nodes that refuse the name."""


class QueuePages:
    """Fetches the pages of `place` for one reader.

    A page that its node read from the disk, and that is not the queue's last one, shows that the reader is catching up:
    the next page is requested from a follower, so that reading it costs producers less. A follower's page counts if it
    has something new and continues at the reader's offset. After any other answer of a follower, or none, the leader is
    asked at once, and for a while only the leader. Only the leader is believed that a queue ends, has expired, or does
    not exist.

    Without `follower_reads`, every page is requested from the leader. `group` names the group for which messages are
    read: a paused one gets none.
    """

    def __init__(
        self,
        connection: Connection,
        place: TopicQueue,
        *,
        follower_reads: bool,
        group: NamedGroup = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._connection = connection
        self._place = place
        self._follower_reads = follower_reads
        self._group = group
        self._clock = clock
        self._is_catching_up = False
        self._leader_only_until_s = 0.0
        self._pauses = Backoff(FOLLOWER_PAUSE_MS, FOLLOWER_PAUSE_MAX_MS)
        self._required_index = 0

    def require(self, applied_index: int) -> None:
        """Require that every node asked from now on had applied this entry; pages of other nodes do not count."""
        self._required_index = applied_index

    async def next(
        self, offset: int, *, max_messages: int, max_bytes: int, wait_ms: int, selection: Selection
    ) -> Pulled:
        """Return the page at `offset`; wait up to `wait_ms` for its first message.

        Raises what `pull` raises, and Unavailable (`node_behind`) when the node has not applied the required entry."""
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
            group=self._group(),
        )
        if pulled.applied_index is not None and pulled.applied_index < required_index:
            # Another node answered while the leader is slow, or a new leader has not applied everything yet.
            detail = f"the node that answered had applied entry {pulled.applied_index}, not yet {required_index}"
            raise Unavailable("node_behind", detail)
        self._is_catching_up = pulled.is_old and self._follower_reads
        return pulled

    async def _at_follower(self, offset: int, max_messages: int, max_bytes: int, selection: Selection) -> Pulled | None:
        """Return a page that continues at `offset` from a follower, which may lag; None if there is no such page."""
        try:
            pulled = await pull_at_follower(
                self._connection,
                self._place,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                selection=selection,
                timeout_ms=FOLLOWER_TIMEOUT_MS,
                group=self._group(),
            )
        except KeelMQError as exc:
            log.warning("%s/%d: a page of a follower is no good: %s", *self._place, exc)
            return None
        goes_on = pulled is not None and pulled.min_offset <= offset < pulled.next_offset
        return pulled if goes_on else None
