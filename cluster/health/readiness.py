"""Readiness of a node for requests and for writes, as `/readyz` reports it to load balancers."""

from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.health.index_rebuild import IndexRebuild
from cluster.health.loop_watch import STALL_S
from raft.health.vital_signs import BACKLOG_ENTRIES

STUCK_S: Final = 5.0
"""Seconds without an applied entry after which a node that lacks entries counts as stuck: its state is too old to serve
reads. The same holds for a node that has more than BACKLOG_ENTRIES left to apply.
"""


class Readiness:
    """Decides whether this node is ready. Use on the event loop only. `conditions` has to be asked about once a second,
    as it notices the time without progress.
    """

    def __init__(self, core: Core, index_rebuild: IndexRebuild) -> None:
        self._core = core
        self._index_rebuild = index_rebuild
        self._caught_up = False
        self._applied_index = -1
        self._moved_at_s = 0.0

    def reason(self) -> str | None:
        """Return the reason why this node should get no requests, or None."""
        raft = self._core.raft
        if raft.removed_by is not None:
            return f"node {raft.removed_by} says that this node was removed from the cluster; stop it"
        if raft.replicas.is_suspect and (raft.replicas.differs or raft.role != "leader"):
            return "this replica differs from others: keelmq cluster status names them and the next step"
        if raft.receiving_percent is not None:
            return f"this node is being sent a snapshot: {raft.receiving_percent} %"
        if raft.is_catching_up:
            return f"the log ends at entry {raft.durable_index}, the snapshot at {raft.applied_index}"
        if raft.leader_id is None:
            if not raft.configuration.members:
                return "waiting to be added to the cluster: keelmq cluster add-node"
            return raft.vacancy.why_nobody_leads()
        return self._reason_of_state()

    def _reason_of_state(self) -> str | None:
        """Return a reason if the state may be too old to serve reads, or the event loop is late; otherwise None."""
        core, raft = self._core, self._core.raft
        if self._index_rebuild.progress is not None:
            return f"the index is being rebuilt from the log: {self._index_rebuild.progress}"
        # An applied entry of this term was committed by this term's leader, and all older entries with it.
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
        """Return the reason why this node would not accept a write now, or None."""
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
        """Return the seconds for which this node has applied no entry although the leader has committed more."""
        raft, now_s = self._core.raft, self._core.steady_ms() / 1000
        has_all = raft.applied_index >= max(raft.commit_index, raft.known_committed_index)
        if has_all or raft.applied_index != self._applied_index:
            self._applied_index, self._moved_at_s = raft.applied_index, now_s
        return now_s - self._moved_at_s

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm when this node is stuck or far behind."""
        stuck_s, raft = self._stuck_s(), self._core.raft
        if raft.leader_id is not None and (stuck_s >= STUCK_S or self._is_far_behind()):
            yield Condition(
                "node_behind",
                "critical",
                f"this node has applied {raft.applied_index} of {raft.known_committed_index} entries that its leader "
                "called committed, and takes no requests (/readyz). Check that its disk has room, and read its log",
            )
