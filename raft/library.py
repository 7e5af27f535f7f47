"""The translator between PySyncObj 0.3.17 and this package: the only module that knows the library's private members.

The library is pinned because its private members are overridden: `check_library()` and its test fail when the version
changes, or one of the names listed here. Kept of the library: roles and terms, the election itself, the rule that only
a majority of the current term commits, check-quorum, leadership transfer. Everything else is cut off here and done by
the parts that `raft/handlers.py` composes. Rows are those of the table in docs/safe-pysyncobj.md.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj import syncobj as library
from pysyncobj.journal import Journal as LibraryJournal
from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport as LibraryTransport

from raft.errors import ProtocolError, SafetyViolation
from raft.journal import Journal
from store.log.errors import DiskFull
from store.properties import reads

VERSION = "0.3.17"

MODULE_NAMES: Final = frozenset(vars(library))
"""Names that the library's module had before any of them was replaced."""

library.PIPE_NOTIFIER_ENABLED = False
"""The notifier would wake `poll`, which nobody calls here, by a pipe that is never closed: two files per node."""

library.monotonicTime = time.monotonic
"""The library's own is a function of Python around a clock of the same kind; it is read twenty times per message."""

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
ROLE_NAMES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}

PRIVATE_NAMES: Final[Mapping[object, Collection[str]]] = {
    library: (
        # replaced
        "PIPE_NOTIFIER_ENABLED",
        "monotonicTime",
        "createJournal",
    ),
    SyncObj: (
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
        "_SyncObj__generateRaftTimeout",
        # methods overridden
        "_onTick",
        "_checkCommandsToApply",
        "_SyncObj__onBecomeLeader",
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
    ),
    LibraryTransport: (
        # called on the transport that a node is given
        "setOnMessageReceivedCallback",
        "setOnNodeConnectedCallback",
        "setOnNodeDisconnectedCallback",
        # called by transports
        *("_onMessageReceived", "_onNodeConnected", "_onNodeDisconnected"),
        # overridden
        *("send", "destroy"),
    ),
    # overridden in raft/journal.py
    LibraryJournal: (
        *("add", "clear", "deleteEntriesFrom", "deleteEntriesTo", "_destroy"),
        *("setRaftCommitIndex", "getRaftCommitIndex", "setCurrentTerm", "getCurrentTerm", "getVotedForNodeId"),
    ),
}
"""Names of the library that are no part of its documented interface, by what has them: its module or a class of it."""

Guard = Callable[[Callable[..., None]], Callable[..., None]]
"""Wraps a function that takes what the transport brings; the owner of a node stops the node when that raises."""


def now() -> float:
    """Monotonic seconds from the library's own clock, so that both halves of a node see the same time.

    Simulations replace `pysyncobj.syncobj.monotonicTime` (and `.random`); there is no other source of time or chance.
    """
    at_s: float = library.monotonicTime()
    return at_s


def check_library() -> None:
    """Raise SafetyViolation unless the installed PySyncObj is the pinned one, with every private name in place."""
    if library.VERSION != VERSION:
        raise SafetyViolation(
            f"PySyncObj {VERSION} is required, {library.VERSION} is installed: install the required version"
        )
    missing = [name for owner, names in PRIVATE_NAMES.items() for name in names if name not in _names_of(owner)]
    if missing:
        raise SafetyViolation(f"PySyncObj lacks {', '.join(missing)}: its source was changed")


def _names_of(owner: object) -> Collection[str]:
    """Return the names that the library's module, or a class of it with the fields that its constructor sets, has."""
    if owner is library:
        return MODULE_NAMES
    constructor = vars(owner).get("__init__")
    return set(vars(owner)) | set(constructor.__code__.co_names if constructor else ())


class Handlers(Protocol):
    """The functions that the translator calls; SafeRaft (raft/handlers.py) supplies them."""

    @property
    def commit_limit(self) -> int:
        """Highest index that the configuration in force allows to be called committed, whatever the library counts."""
        ...

    def on_tick(self) -> None: ...
    def on_message(self, peer: int, message: Any) -> None: ...
    def on_peer_connected(self, peer: int, incarnation: str) -> None: ...
    def on_peer_disconnected(self, peer: int) -> None: ...
    def on_role_changed(self, previous: int, role: int) -> None: ...
    def on_no_room_to_lead(self, error: DiskFull) -> None:
        """The node was elected and cannot append the no-op that a leadership begins with."""
        ...

    def send_heartbeats(self) -> None: ...
    def apply_committed(self) -> None: ...
    def ask_for_vote(self, peer: int, term: int, last_index: int, last_term: int) -> None: ...
    def ask_to_stand(self, peer: int, term: int) -> None: ...


PeerNode = LibraryNode


class PeerTransport(LibraryTransport):  # type: ignore[misc]  # the library is untyped
    """The base of a node's transports, with the library's callbacks under names of this package.

    `hand_over(node, message)` is for a message of a peer, `tell_connected(node)` and `tell_disconnected(node)` are for
    its connections.
    """

    hand_over = LibraryTransport._onMessageReceived
    tell_connected = LibraryTransport._onNodeConnected
    tell_disconnected = LibraryTransport._onNodeDisconnected


class _PeerLink(LibraryTransport):  # type: ignore[misc]  # the library is untyped
    """The transport as the library sees it: the library's own two messages are translated, nothing else leaves."""

    def __init__(self, owner: "PinnedSyncObj", transport: LibraryTransport, guard: Guard) -> None:
        super().__init__(None, None, None)
        self._owner = owner
        self._transport = transport
        transport.setOnMessageReceivedCallback(guard(self._onMessageReceived))
        transport.setOnNodeConnectedCallback(guard(self._onNodeConnected))
        transport.setOnNodeDisconnectedCallback(guard(self._onNodeDisconnected))

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        handlers = self._owner.handlers
        if message["type"] == "request_vote":
            handlers.ask_for_vote(node.id, message["term"], message["last_log_index"], message["last_log_term"])
        elif message["type"] == "timeout_now":
            handlers.ask_to_stand(node.id, message["term"])
        else:
            raise ProtocolError(
                f"the library tries to send a message of the type {message['type']!r}, which this node never sends"
            )
        return True

    def destroy(self) -> None:
        self._transport.destroy()


class PinnedSyncObj(SyncObj):  # type: ignore[misc]  # the library is untyped
    """The library's node with readable state and with every unsafe path cut off.

    `handlers` has to be set before anything else is called. Not thread-safe: one loop drives it.
    """

    handlers: Handlers

    # The library's own fields, as they are read below.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: int | None
    _SyncObj__raftLeader: LibraryNode | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLastApplied: int
    _SyncObj__transferInProgress: bool
    _SyncObj__otherNodes: set[LibraryNode]

    def __init__(
        self,
        node_id: int,
        peer_ids: list[int],
        conf: SyncObjConf,
        transport: LibraryTransport,
        journal: Journal,
        guard: Guard = lambda handler: handler,
    ) -> None:
        check_library()
        self._commit_index = 0
        self._election_allowed = False
        self._connected_ids: set[int] = set()
        self._journal = journal
        create_journal = library.createJournal
        library.createJournal = lambda _file: journal  # row 7: the library has no other way to be given a journal
        try:
            super().__init__(
                LibraryNode(node_id),
                [LibraryNode(peer) for peer in peer_ids],
                conf=conf,
                transport=_PeerLink(self, transport, guard),
            )
        finally:
            library.createJournal = create_journal
        self._nodes: dict[int, LibraryNode] = {node.id: node for node in self._SyncObj__otherNodes}

    # --- state -------------------------------------------------------------------------------------------------

    role: int = reads("_SyncObj__raftState")
    term: int = reads("_SyncObj__raftCurrentTerm")

    @property
    def voted_for(self) -> int | None:
        return self._SyncObj__votedForNodeId

    @property
    def transfer_in_progress(self) -> bool:
        """True when this node was asked to stand by a leader that gives its leadership away."""
        return self._SyncObj__transferInProgress

    def end_transfer(self) -> None:
        self._SyncObj__transferInProgress = False

    def begin_transfer(self) -> None:
        """Stop the old leader's heartbeats from putting off the election."""
        self._SyncObj__transferInProgress = True

    @property
    def leader_id(self) -> int | None:
        """Node id of the leader of the current term; None while this node knows of none."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else int(leader.id)

    def set_leader(self, node_id: int | None) -> None:
        self._SyncObj__raftLeader = None if node_id is None else self._node(node_id)

    def _set_last_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    last_applied: int = reads("_SyncObj__raftLastApplied", _set_last_applied)

    @property
    def election_deadline(self) -> float:
        return self._SyncObj__raftElectionDeadline

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    def postpone_election(self) -> None:
        """Start a new wait for a leader, of random length."""
        self.election_deadline = now() + self._SyncObj__generateRaftTimeout()

    def connected(self, node_id: int) -> bool:
        return node_id in self._connected_ids

    @property
    def connected_to_anyone(self) -> bool:
        return bool(self._SyncObj__connectedNodes) or not self._SyncObj__otherNodes

    def set_other_voters(self, node_ids: Collection[int]) -> None:
        """Set the nodes that the library asks for votes, hands over to, and counts for its majorities beside this one.

        They are voters; the library never hears of learners. A voter that is new to a leader has until check-quorum
        looks next to answer.
        """
        nodes = {self._node(node_id) for node_id in node_ids}
        for node in nodes - self._SyncObj__otherNodes:
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__lastResponseTime[node] = now()
        self._SyncObj__otherNodes = nodes

    def answered_within(self, node_id: int, timeout_s: float) -> bool:
        """Leader: return whether that node has answered within `timeout_s` seconds."""
        return now() - float(self._SyncObj__lastResponseTime.get(self._node(node_id), float("-inf"))) < timeout_s

    def _node(self, node_id: int) -> LibraryNode:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = LibraryNode(node_id)
        return node

    def tick(self, *, election_allowed: bool) -> None:
        """Run the library's own step: an election that is due, the commit rule, check-quorum, apply.

        The library compares deadline and clock again by itself, and would stand whenever the deadline has passed by
        then. `election_allowed` decides for this one step whether it may.
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

    def step_down(self) -> None:
        """Follow nobody in this term until a leader speaks."""
        self.become(FOLLOWER)
        self.set_leader(None)

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Adopt a term, and a vote in it; durable on return.

        On an error nothing has changed, not even in memory: the library by itself would be ahead of its disk.
        """
        self._journal.setCurrentTerm(term, voted_for)
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for

    def set_match(self, node_id: int, index: int) -> None:
        """Set the index up to which the library's commit rule counts that peer's copy."""
        self._SyncObj__raftMatchIndex[self._node(node_id)] = index

    def heard_from(self, node_id: int) -> None:
        """Note for check-quorum that the node has answered now."""
        self._SyncObj__lastResponseTime[self._node(node_id)] = now()

    def schedule_heartbeat(self) -> None:
        self._SyncObj__newAppendEntriesTime = now() + self.conf.appendEntriesPeriod

    @property
    def due_s(self) -> float:
        """The time, by `now`, of a leader's next heartbeat, or of the election of a node that does not lead."""
        leads = self._SyncObj__raftState == LEADER
        return float(self._SyncObj__newAppendEntriesTime if leads else self.election_deadline)

    # --- rows 6 and 8: the commit index never passes the own durable log ------------------------------------------

    def _set_commit_index(self, index: int) -> None:
        index = min(index, self._journal.durable_index)
        if hasattr(self, "handlers"):  # while the library is constructed nothing leads
            index = min(index, self.handlers.commit_limit)
        self._commit_index = max(self._commit_index, index)

    commit_index: int = reads("_commit_index", _set_commit_index)
    """Index of the last entry that is committed and on this node's own disk; never decreases."""

    _SyncObj__raftCommitIndex = commit_index

    # --- what the library calls --------------------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        self.handlers.on_tick()

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        try:
            super()._SyncObj__onBecomeLeader()
        except DiskFull as error:
            self.handlers.on_no_room_to_lead(error)

    def _SyncObj__onMessageReceived(self, node: LibraryNode, message: Any) -> None:  # noqa: N802
        self.handlers.on_message(node.id, message)

    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        self.set_term(term, votedForNodeId)

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self.handlers.send_heartbeats()

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        self.handlers.apply_committed()
        return False  # the commit index travels with the next append or heartbeat

    def _SyncObj__setState(self, role: int) -> None:  # noqa: N802
        previous = self.role
        self._SyncObj__raftState = role
        if previous != role:
            self.handlers.on_role_changed(previous, role)

    def _SyncObj__onNodeConnected(self, node: LibraryNode) -> None:  # noqa: N802
        self._SyncObj__connectedNodes.add(node)
        self._connected_ids.add(node.id)
        self.handlers.on_peer_connected(node.id, getattr(node, "incarnation", ""))

    def _SyncObj__onNodeDisconnected(self, node: LibraryNode) -> None:  # noqa: N802
        self._SyncObj__connectedNodes.discard(node)
        self._connected_ids.discard(node.id)
        self.handlers.on_peer_disconnected(node.id)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        return self._election_allowed

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Row 16: proposals do not go through the library's queue, and nothing is forwarded."""

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Row 2: the library never compacts, so it never sends or loads `serialized`."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise SafetyViolation("the library's snapshots must never be loaded")


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
