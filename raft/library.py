"""PySyncObj 0.3.17 under readable names: the only module that knows its private members.

The library is pinned because its private members are overridden: `check_library()` and its test fail when the version
or one of `PRIVATE_NAMES` changes. What we keep of it: roles and terms, the election itself, the rule that only a
majority of the current term commits, check-quorum, leadership transfer. What we replace is in `raft/handlers.py`.
"""

from collections.abc import Collection
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj import syncobj as library
from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport as LibraryTransport

from raft.errors import SafetyViolation

VERSION = "0.3.17"

library.PIPE_NOTIFIER_ENABLED = False
"""It would wake `poll`, which nobody calls here, by a pipe that is never closed: two files of the process per node."""

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
ROLE_NAMES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}

PRIVATE_NAMES = (
    # state read or written
    "_SyncObj__raftState",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__votedForNodeId",
    "_SyncObj__raftLeader",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__connectedNodes",
    "_SyncObj__otherNodes",
    "_SyncObj__transferInProgress",
    # methods called
    "_SyncObj__onBecomeLeader",
    "_SyncObj__generateRaftTimeout",
    # methods overridden
    "_SyncObj__connectedToAnyone",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__onMessageReceived",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__applyLogEntries",
    "_SyncObj__setState",
    "_SyncObj__tryLogCompaction",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
)


def now() -> float:
    """Monotonic seconds from the library's own clock, so that both halves of a node see the same time.

    Simulations replace `pysyncobj.syncobj.monotonicTime` (and `.random`); there is no other source of time or chance.
    """
    return float(library.monotonicTime())


def check_library() -> None:
    """Raises SafetyViolation unless the installed PySyncObj is the pinned one with every private name in place."""
    if library.VERSION != VERSION:
        raise SafetyViolation(f"PySyncObj {VERSION} is required, {library.VERSION} is installed")
    source_names = set(vars(SyncObj)) | set(SyncObj.__init__.__code__.co_names)
    missing = [name for name in PRIVATE_NAMES if name not in source_names]
    if missing:
        raise SafetyViolation(f"PySyncObj lacks {', '.join(missing)}: its source was changed")


class PinnedSyncObj(SyncObj):  # type: ignore[misc]  # the library is untyped
    """The library's node with readable state and with every unsafe path cut off.

    A subclass supplies `handle_message`, `send_appends`, `apply_committed`, `on_role_changed`, `on_peer_connected` and
    `on_peer_disconnected`. Not thread-safe: one loop drives it.
    """

    def __init__(self, node_id: int, peer_ids: list[int], conf: SyncObjConf, transport: LibraryTransport, journal: Any):
        check_library()
        self._commit_index = 0
        self._election_allowed = False
        self._journal = journal
        create_journal = library.createJournal
        library.createJournal = lambda _file: journal  # row 7: the library has no other way to be given a journal
        try:
            super().__init__(
                LibraryNode(node_id), [LibraryNode(peer) for peer in peer_ids], conf=conf, transport=transport
            )
        finally:
            library.createJournal = create_journal
        self._SyncObj__otherNodes: set[LibraryNode]
        self._nodes: dict[int, LibraryNode] = {node.id: node for node in self._SyncObj__otherNodes}

    # --- state -------------------------------------------------------------------------------------------------

    role = property(lambda self: self._SyncObj__raftState)
    term = property(lambda self: self._SyncObj__raftCurrentTerm)
    voted_for = property(lambda self: self._SyncObj__votedForNodeId)
    transfer_in_progress = property(lambda self: self._SyncObj__transferInProgress)

    def end_transfer(self) -> None:
        self._SyncObj__transferInProgress = False

    def begin_transfer(self) -> None:
        """From now on the old leader's heartbeats do not put off the election."""
        self._SyncObj__transferInProgress = True

    @property
    def leader_id(self) -> int | None:
        """The leader of the current term as far as known here."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    def set_leader(self, node_id: int | None) -> None:
        self._SyncObj__raftLeader = None if node_id is None else self._node(node_id)

    @property
    def last_applied(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @last_applied.setter
    def last_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    @property
    def election_deadline(self) -> float:
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    def postpone_election(self) -> None:
        """Starts a new, randomly long, wait for a leader."""
        self.election_deadline = now() + self._SyncObj__generateRaftTimeout()

    def connected(self, node_id: int) -> bool:
        return self._node(node_id) in self._SyncObj__connectedNodes

    @property
    def connected_to_anyone(self) -> bool:
        return bool(self._SyncObj__connectedNodes) or not self._SyncObj__otherNodes

    def set_other_voters(self, node_ids: Collection[int]) -> None:
        """Whom the library asks for votes, hands over to, and counts for its majorities beside this node: voters only,
        so learners are none of its business. A voter that is new to a leader has until check-quorum's next look to
        answer.
        """
        nodes = {self._node(node_id) for node_id in node_ids}
        for node in nodes - self._SyncObj__otherNodes:
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__lastResponseTime[node] = now()
        self._SyncObj__otherNodes = nodes

    def answered_within(self, node_id: int, timeout_s: float) -> bool:
        """Leader: whether that node has answered lately."""
        return now() - float(self._SyncObj__lastResponseTime.get(self._node(node_id), float("-inf"))) < timeout_s

    def _node(self, node_id: int) -> LibraryNode:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = LibraryNode(node_id)
        return node

    def tick(self, *, election_allowed: bool) -> None:
        """The library's own step. It looks at the deadline and the clock again by itself, and would stand whenever the
        deadline has passed by then; so the permission decides, for this one step.
        """
        self._election_allowed = election_allowed
        if election_allowed:
            self.election_deadline = 0.0
        try:
            super()._onTick(0.0)
        finally:
            self._election_allowed = False

    # --- transitions -------------------------------------------------------------------------------------------

    def become(self, role: int) -> None:
        self._SyncObj__setState(role)

    def become_leader(self) -> None:
        self._SyncObj__onBecomeLeader()

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable on return; on an error nothing has changed, in memory either (the library would be ahead of its
        disk).
        """
        self._journal.setCurrentTerm(term, voted_for)
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for

    def set_match(self, node_id: int, index: int) -> None:
        """What the library's commit rule may count for that peer."""
        self._SyncObj__raftMatchIndex[self._node(node_id)] = index

    def counted(self, node_id: int) -> int:
        """What it was last told to count for that peer."""
        return int(self._SyncObj__raftMatchIndex[self._nodes[node_id]])

    def heard_from(self, node_id: int) -> None:
        """Feeds check-quorum."""
        self._SyncObj__lastResponseTime[self._node(node_id)] = now()

    def schedule_heartbeat(self) -> None:
        self._SyncObj__newAppendEntriesTime = now() + self.conf.appendEntriesPeriod

    # --- rows 6 and 8: the commit index never passes the own durable log ------------------------------------------

    @property
    def commit_index(self) -> int:
        """Committed and on this node's own disk; never decreases."""
        return self._commit_index

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._commit_index = max(self._commit_index, min(index, self._journal.durable_index, self.commit_limit))

    _SyncObj__raftCommitIndex = commit_index

    # --- what the library calls --------------------------------------------------------------------------------

    def _SyncObj__onMessageReceived(self, node: LibraryNode, message: Any) -> None:  # noqa: N802
        self.handle_message(node.id, message)

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        self.set_term(term, votedForNodeId)

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self.send_appends(heartbeat=True)

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        self.apply_committed()
        return False  # the commit index travels with the next append or heartbeat

    def _SyncObj__setState(self, role: int) -> None:  # noqa: N802
        previous = self.role
        self._SyncObj__raftState = role
        if previous != role:
            self.on_role_changed(previous, role)

    def _SyncObj__onNodeConnected(self, node: LibraryNode) -> None:  # noqa: N802
        self._SyncObj__connectedNodes.add(node)
        self.on_peer_connected(node.id, getattr(node, "incarnation", ""))

    def _SyncObj__onNodeDisconnected(self, node: LibraryNode) -> None:  # noqa: N802
        self._SyncObj__connectedNodes.discard(node)
        self.on_peer_disconnected(node.id)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        return self._election_allowed

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Row 16: proposals do not go through the library's queue, and nothing is forwarded."""

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Row 2: the library never compacts, so it never sends or loads `serialized`."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise SafetyViolation("the library's snapshots must never be loaded")

    # --- supplied by the subclass ------------------------------------------------------------------------------

    @property
    def commit_limit(self) -> int:
        """What the configuration in force allows to be called committed, whatever the library's rule counts."""
        raise NotImplementedError

    def handle_message(self, peer: int, message: Any) -> None:
        raise NotImplementedError

    def send_appends(self, *, heartbeat: bool) -> None:
        raise NotImplementedError

    def apply_committed(self) -> None:
        raise NotImplementedError

    def on_role_changed(self, previous: int, role: int) -> None:
        raise NotImplementedError

    def on_peer_connected(self, peer: int, incarnation: str) -> None:
        raise NotImplementedError

    def on_peer_disconnected(self, peer: int) -> None:
        raise NotImplementedError


def library_configuration(*, election_timeout_ms: int, heartbeat_ms: int, max_message_bytes: int) -> SyncObjConf:
    """The library's settings; everything that could take an unsafe path is off."""
    minimum = election_timeout_ms / 1000
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=minimum,
        raftMaxTimeout=2 * minimum,
        appendEntriesPeriod=heartbeat_ms / 1000,
        appendEntriesUseBatch=False,
        appendEntriesBatchSizeBytes=max_message_bytes,
        connectionTimeout=2 * minimum,
        leaderFallbackTimeout=2 * minimum,  # row 14: check-quorum
        dynamicMembershipChange=False,  # row 11
        commandsWaitLeader=False,
        logCompactionMinEntries=2**62,
        logCompactionMinTime=2**62,
        fullDumpFile=None,
        journalFile=None,
    )
