"""A loop that stood: the others may have elected another leader meanwhile."""

import logging

from raft.election.election import Election
from raft.library import LEADER, now
from raft.state import RaftState

log = logging.getLogger(__name__)


class Stalls:
    """Invariant: a leader that did nothing for an election timeout does not lead in the next thing it does.

    Loop-only.
    """

    def __init__(self, state: RaftState, election: Election) -> None:
        self._state = state
        self._election = election
        self._limit_s = state.config.election_timeout_ms / 1000
        self._awake_at = now()

    @property
    def has_stood(self) -> bool:
        """True when this node has done nothing for an election timeout, up to now."""
        return self._has_stood_at(now())

    def _has_stood_at(self, at_s: float) -> bool:
        return at_s - self._awake_at > self._limit_s

    def notice(self) -> None:
        """Look for a stall; called before anything else is done.

        After a stall of an election timeout a leader steps down: answers that piled up in its sockets look as if its
        followers had just spoken. A node that does not lead first hears the messages that came in meanwhile: it is not
        the leader's fault that it saw no heartbeat.
        """
        at_s, state = now(), self._state
        has_stood, before, self._awake_at = self._has_stood_at(at_s), self._awake_at, at_s
        if not has_stood or not state.other_voters:
            return
        self._election.hear_first()
        if state.role == LEADER:
            stalled_ms = 1000 * (self._awake_at - before)
            log.warning(
                "stepping down as leader: this node did nothing for %d ms, and another node may lead now", stalled_ms
            )
            state.library.step_down()
