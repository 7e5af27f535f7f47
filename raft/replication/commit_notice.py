"""Tells followers what is committed when no append is on its way that would."""

import asyncio
from collections.abc import Callable
from typing import Final

from raft.replication.replication import Replication

COMMIT_NOTICE_MS: Final = 5
"""Followers hear of a commit this soon, if no append carries it before: those who read from them see it then."""


class CommitNotice:
    """Owns the timer after which a heartbeat carries the commit index. Use it only on the event loop."""

    def __init__(self, replication: Replication, may_send: Callable[[], bool]) -> None:
        """Create the notice; nothing is sent while `may_send()` is False."""
        self._replication = replication
        self._may_send = may_send
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Send the notice in COMMIT_NOTICE_MS, if by then a follower has not heard of a commit that concerns it."""
        if self._timer is None and self._replication.has_unannounced_commit:
            self._timer = asyncio.get_running_loop().call_later(COMMIT_NOTICE_MS / 1000, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._may_send() and self._replication.has_unannounced_commit:
            self._replication.send_heartbeats()
