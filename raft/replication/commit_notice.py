"""Tells followers what is committed when no append is on its way that would."""

import asyncio
from collections.abc import Callable
from typing import Final

from raft.replication.replication import Replication
from raft.state import RaftState

COMMIT_NOTICE_MS: Final = 5
"""Followers hear of a commit after this time, or twice as long, if no append carries it before: those who read from
them see it then.
"""


class CommitNotice:
    """Owns the timer after which a heartbeat carries the commit index. Use it only on the event loop.

    While appends follow each other, each carries the commits of those before it, and no heartbeat is sent for them.
    """

    def __init__(
        self,
        state: RaftState,
        replication: Replication,
        may_send: Callable[[], bool],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Create the notice; nothing is sent while `may_send()` is False. An error ends the node by `on_failure`."""
        self._state = state
        self._replication = replication
        self._may_send = may_send
        self._on_failure = on_failure
        self._is_under_way = False

    def soon(self) -> None:
        """Have the followers hear of the last commit, unless they have heard of it or will by an earlier call."""
        commit_index = self._state.commit_index
        if not self._is_under_way and self._replication.awaits_word_of(commit_index):
            self._is_under_way = True
            asyncio.get_running_loop().call_later(COMMIT_NOTICE_MS / 1000, self._send_of, commit_index)

    def _send_of(self, commit_index: int) -> None:
        self._is_under_way = False
        if not self._may_send():
            return
        try:
            if self._replication.awaits_word_of(commit_index):
                self._replication.send_heartbeats()
            else:
                self.soon()  # of what was committed since
        except Exception as error:  # the loop would only log it
            self._on_failure(error)
