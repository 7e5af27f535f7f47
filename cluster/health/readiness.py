"""Whether a node should be sent requests, and whether it would take a write: what `/readyz` says to load balancers."""

from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.health.index_rebuild import IndexRebuild
from cluster.health.loop_watch import STALL_S
from raft.vital_signs import BACKLOG_ENTRIES

STUCK_S: Final = 5.0
"""A node that lacks entries and applied none for this long shows a past that is too long ago; so does one that has
BACKLOG_ENTRIES to apply.
"""


class Readiness:
    """Loop-only. `conditions` has to be asked about once a second: it is how time without progress is noticed."""

    def __init__(self, core: Core, index_rebuild: IndexRebuild) -> None:
        self._core = core
        self._index_rebuild = index_rebuild
        self._caught_up = False
        self._applied_index = -1
        self._moved_at_s = 0.0

    def reason(self) -> str | None:
        """Why this node should not be sent requests, or None."""
        raft = self._core.raft
        if raft.removed_by is not None:
            return f"node {raft.removed_by} says that this node was removed from the cluster; stop it"
        if raft.replicas.is_suspect and (raft.replicas.differs or raft.role != "leader"):
            return "this replica differs from others: keelmq cluster status says which, and what to do"
        if raft.receiving_percent is not None:
            return f"this node is being sent a snapshot: {raft.receiving_percent} %"
        if raft.is_catching_up:
            return f"the log ends at entry {raft.durable_index}, the snapshot at {raft.applied_index}"
        if raft.leader_id is None:
            if not raft.configuration.members:
                return "waiting to be added to the cluster: keelmq cluster add-node"
            return raft.leadership.why_nobody_leads()
        return self._reason_of_state()

    def _reason_of_state(self) -> str | None:
        """What it shows may be too old, or it is too late with everything."""
        core, raft = self._core, self._core.raft
        if self._index_rebuild.progress is not None:
            return f"the index is being made anew from the log: {self._index_rebuild.progress}"
        # An applied entry of this term was committed by this term's leader, and everything older with it.
        if core.state.applied_term != raft.term and (raft.role == "leader" or not self._caught_up):
            return f"nothing of term {raft.term} is applied yet"
        committed = max(raft.commit_index, raft.known_committed_index)
        if not self._caught_up:
            if raft.applied_index < committed:
                return f"applied {raft.applied_index} of {committed} entries"
            self._caught_up = True
        if self._is_far_behind():
            return f"applied {raft.applied_index} of {committed} committed entries"
        if self._stuck_s() >= STUCK_S:
            return (
                f"stuck: applied {raft.applied_index} of {committed} committed entries, and nothing for "
                f"{self._stuck_s():.0f} s"
            )
        if core.loop_delay_s >= STALL_S:
            return f"the event loop is late: it stood for {core.loop_delay_s:.1f} s until a moment ago"
        return None

    def reason_for_writes(self) -> str | None:
        """Why this node would not take a write now, or None."""
        reason = self.reason()
        if reason is not None:
            return reason
        core, raft = self._core, self._core.raft
        if not core.is_leader():
            return f"node {raft.leader_id} leads" if raft.leader_id != raft.node_id else "leadership is handed over"
        if not raft.leadership.has_majority():
            answering, voters = sorted(raft.answering_voters()), len(raft.configuration.voters)
            return f"of {voters} voters only {answering} answer"
        return core.why_no_room()

    def _is_far_behind(self) -> bool:
        raft = self._core.raft
        return max(raft.commit_index, raft.known_committed_index) - raft.applied_index > BACKLOG_ENTRIES

    def _stuck_s(self) -> float:
        """For how long this node has applied nothing though the leader called more committed."""
        raft, now_s = self._core.raft, self._core.steady_ms() / 1000
        has_all = raft.applied_index >= max(raft.commit_index, raft.known_committed_index)
        if has_all or raft.applied_index != self._applied_index:
            self._applied_index, self._moved_at_s = raft.applied_index, now_s
        return now_s - self._moved_at_s

    def conditions(self) -> Iterator[Condition]:
        """For the alarms of the node."""
        stuck_s, raft = self._stuck_s(), self._core.raft
        if raft.leader_id is not None and (stuck_s >= STUCK_S or self._is_far_behind()):
            yield Condition(
                "node_behind",
                "critical",
                f"this node has applied {raft.applied_index} of {raft.known_committed_index} entries that its leader "
                "called committed, and takes no requests (/readyz). See whether its disk has room, and its log",
            )
