"""The leader takes proposals into its log, and tells those who wait for them what became of them.

Rows are those of the table in docs/safe-pysyncobj.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

from raft.election.stalls import Stalls
from raft.entries.log_writer import LogWriter
from raft.errors import MembershipRefused, NoLeader, NotLeader, SafetyViolation, UnknownOutcome
from raft.library import LEADER
from raft.membership import Configuration, encode_configuration, is_next
from raft.replication.replication import Replication
from raft.state import RaftState
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry

OnOutcome = Callable[[Entry | None, Any], None]
"""Called once: with the entry and the result of its apply, or with None and an UnknownOutcome."""


class Proposing:
    """Invariant: every proposal that was taken gets exactly one outcome while the node runs. Loop-only."""

    def __init__(self, state: RaftState, log_writer: LogWriter, replication: Replication, stalls: Stalls) -> None:
        self._state = state
        self._log_writer = log_writer
        self._replication = replication
        self._stalls = stalls
        self._waiting: dict[int, tuple[int, OnOutcome]] = {}  # index -> (term, who wants to know)

    def propose(self, payload: bytes, on_outcome: OnOutcome) -> int:
        """Append an entry and return its index; `send` sends it. Leader only (row 16): raises NotLeader or NoLeader.

        `on_outcome(entry, result)` is called once: after apply, or with (None, UnknownOutcome) when leadership is
        lost first. The entry is not durable on return; the caller asks for a sync. Raises DiskFull with nothing
        appended.
        """
        return self._propose(KIND_ENTRY, payload, on_outcome)

    def propose_configuration(self, configuration: Configuration, on_outcome: OnOutcome) -> int:
        """Append a configuration that differs from the present one by one voter at most; it is in force at once.

        As `propose`, and raises MembershipRefused `change_in_progress` while the present configuration is not
        committed, or nothing of this leadership is: else two leaders could each change the same configuration, and
        count majorities that share nobody.
        """
        state = self._state
        if state.role == LEADER and state.membership.index > state.commit_index:
            raise MembershipRefused(
                "change_in_progress", "the last change of the cluster's nodes is not committed yet; try again"
            )
        if state.role == LEADER and state.commit_index < self._replication.leads_from:
            raise MembershipRefused("change_in_progress", "the leader is new and has committed nothing yet; try again")
        if not is_next(state.configuration, configuration):
            raise SafetyViolation(f"more than one voter changes from {state.configuration} to {configuration}")
        if state.node_id not in configuration.voters:
            raise MembershipRefused(
                "change_in_progress", "a leader must hand leadership over before it is removed; try again"
            )
        return self._propose(KIND_CONFIG, encode_configuration(configuration), on_outcome)

    def send(self) -> None:
        """Send the entry that was appended last. Raises SafetyViolation, which says nothing about the entry: whatever
        is raised here, it may commit.
        """
        self._replication.send_appends()
        if self._state.membership.index == self._state.log.last_index:
            self._replication.send_heartbeats()  # to nodes that are new

    def _propose(self, kind: int, payload: bytes, on_outcome: OnOutcome) -> int:
        state = self._state
        self._stalls.notice()
        if state.role != LEADER:
            raise NoLeader if state.leader_id is None else NotLeader(state.leader_id)
        index = state.log.last_index + 1
        self._log_writer.append(Entry(payload, index, state.term, kind, -1))
        self._waiting[index] = (state.term, on_outcome)
        return index

    def resolve(self, entries: Sequence[Entry], results: Sequence[Any]) -> None:
        """Tell those who wait for these entries the results of their apply."""
        for entry, result in zip(entries, results, strict=True):
            term, on_outcome = self._waiting.pop(entry.index, (0, None))
            if on_outcome is not None:
                if term == entry.term:
                    on_outcome(entry, result)
                else:
                    on_outcome(None, UnknownOutcome("another leader's entry took this place; retry with the same id"))

    def lose(self) -> None:
        """Tell all who wait that their outcome is unknown: this node no longer leads."""
        waiting, self._waiting = self._waiting, {}
        for _, on_outcome in waiting.values():
            on_outcome(None, UnknownOutcome("leadership was lost before the entry was committed"))
