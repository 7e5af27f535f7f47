"""Finds out which replicas differ: every node compares itself with every other one (docs/decisions.md, 27).

Each `Vitals` names the last entry that its sender has applied, and the hashes of its log and its state there. The
receiver compares them with its own at the same entry, at once or when it has applied as far. A node differs when
voters contradict it that agree with each other and are a majority. Where neither side is a majority, it is unknown
which one differs, and all nodes report that.

A difference, once there, stays in the hashes, so the first differing entry is found by bisection: `Compare` asks for
the hashes at some entries, `Compared` brings them.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from raft.library import now
from raft.membership import Membership
from raft.messages import AGREES_MAX, COMPARED_MAX, Compare, Compared, Comparison, ReplicaState, StateAt
from store.log.commit_log import CommitLog
from store.log.differs import Difference
from store.log.record_chain import Link
from store.state.state_history import HASH_KIND, StateDigest, StateHistory

log = logging.getLogger(__name__)

FRESH_INTERVALS: Final = 5
"""Number of intervals between two `Vitals` for which the last word of another node counts."""
ASK_AGAIN_INTERVALS: Final = 2
"""Number of intervals after which an unanswered request for hashes is repeated."""


class Doubt(NamedTuple):
    """Another node that is known to differ from this node."""

    node_id: int
    difference: Difference
    is_settled: bool
    """True when the other node is the one that differs, by a majority or its own word; otherwise the fault is unknown.
    """


class _Peer:
    """State of the comparison with another node since it connected."""

    def __init__(self) -> None:
        self.incarnation = ""
        self.said: ReplicaState | None = None
        self.heard_s = float("-inf")
        self.pending: StateAt | None = None
        """The other node's state at an entry that is not applied here yet."""
        self.agreed = 0
        """The last entry at which the other node is known to be equal; 0 if there is none."""
        self.difference: Difference | None = None
        self.asked: tuple[int, ...] = ()
        self.asked_s = float("-inf")


class Replicas:
    """Compares this replica with the others, and owns the results. Without a `history` (of the state machine that is
    fed) there is nothing to compare. Use it only on the event loop.

    `send(peer, message)` sends to another node. The owner acts upon `difference`, durably.
    """

    def __init__(
        self, node_id: int, commit_log: CommitLog, membership: Membership, interval_ms: int, send: Callable[..., None]
    ) -> None:
        self.history: StateHistory | None = None
        self.difference: Difference | None = None
        """How this node differs from a majority of the voters; None while no such difference is known. Never reset."""
        self.against: tuple[int, ...] = ()
        """Nodes that agree with each other and not with this node."""
        self.is_suspect = False
        """True when this node differs, or when it and another node differ and it is unknown which one is wrong: this
        node may lead, but must serve nothing else.
        """
        self.is_leaving = False
        """True when this copy is about to be given up: the others are told that it does not vote, so that none of them
        relies on it when it gives up its own copy.
        """
        self._node_id = node_id
        self._log = commit_log
        self._membership = membership
        self.interval_s = interval_ms / 1000
        self._send = send
        self._peers: dict[int, _Peer] = {}

    def compare(self, history: StateHistory, difference: Difference | None) -> None:
        """Compare by the state that `history` describes from now on; `difference` was noted before a restart."""
        self.history = history
        self.difference = difference

    @property
    def differs(self) -> bool:
        """True when this node is known to be the node that differs."""
        return self.difference is not None

    # --- what nodes tell each other ------------------------------------------------------------------------------

    def state(self, *, votes: bool) -> ReplicaState | None:
        """Return this node's applied state and comparisons for its `Vitals`; None without a history."""
        if self.history is None:
            return None
        agrees = tuple(self.agreed_with().items())
        difference = self.difference
        return ReplicaState(
            HASH_KIND,
            self._at(self.history.now),
            votes and not self.is_leaving,
            agrees[:AGREES_MAX],
            0 if difference is None else max(difference.index, 1),
        )

    def met(self, peer: int, incarnation: str) -> None:
        """Note a new connection of the peer. A peer with another incarnation is a new disk: all results about it are
        dropped.
        """
        known = self._peers.get(peer)
        if known is None or known.incarnation not in ("", incarnation):
            known = self._peers[peer] = _Peer()
        known.incarnation = incarnation
        known.pending, known.asked = None, ()

    def parted(self, peer: int) -> None:
        """Note that the connection is lost: the peer may have lost its data since, so its last word counts no more."""
        if peer in self._peers:
            self._peers[peer].heard_s = float("-inf")

    def hear(self, peer: int, said: ReplicaState | None) -> None:
        known = self._peers.setdefault(peer, _Peer())
        known.heard_s = now()
        known.said = said
        if said is not None and said.differs_from and known.difference is None:  # the peer says so itself
            known.difference = Difference(said.differs_from, 0, records=False)
        if said is not None and said.kind == HASH_KIND and known.pending is None:
            known.pending = said.at
            if known.difference is None:  # else it is the time of a question that has to be asked again if it was lost
                known.asked_s = now()
        self.look()

    def on_message(self, peer: int, message: Comparison) -> None:
        if isinstance(message, Compare):
            self._on_compare(peer, message)
        else:
            self._on_compared(peer, message)

    def _on_compare(self, peer: int, message: Compare) -> None:
        history = self.history
        found = [history.at(index) for index in message.indexes] if history is not None else []
        states = [self._at(digest) for digest in found if digest is not None]
        known = {state.index for state in states}
        chained = [(index, self._link(index)) for index in message.indexes if index not in known]
        states += [StateAt(index, b"", -1, 0, link) for index, link in chained if link is not None]
        self._send(peer, Compared(HASH_KIND, tuple(states)))

    def _on_compared(self, peer: int, message: Compared) -> None:
        """Narrow the difference down with the peer's hashes, and ask for the next ones."""
        known = self._peers.get(peer)
        if known is None or message.kind != HASH_KIND or not known.asked:
            return
        asked, known.asked = known.asked, ()
        difference = known.difference
        if difference is None:
            for state in message.states:
                if state.index in asked:
                    self._note(peer, known, state)
            return
        for state in sorted(message.states, key=lambda each: each.index):
            if state.index not in asked or not difference.agreed < state.index < difference.index:
                continue
            verdict = self._compare(state, records=difference.records)
            if verdict is None:
                difference = Difference(difference.index, state.index, difference.records)
            elif verdict:
                difference = Difference(state.index, difference.agreed, difference.records)
                break
        if difference != known.difference:
            known.difference = difference
            self._bisect(peer, known)

    # --- what comes of it ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare every state that can be compared by now, and draw the conclusion."""
        for peer in [each for each in self._peers if self._membership.current.find(each) is None]:
            if not self._is_fresh(self._peers[peer]):
                del self._peers[peer]  # the node was removed
        for peer, known in self._peers.items():
            pending = known.pending
            if pending is not None and self.history is not None and pending.index <= self.history.now.index:
                known.pending = None
                self._note(peer, known, pending)
            if now() - known.asked_s > ASK_AGAIN_INTERVALS * self.interval_s:
                self._ask(peer, known)
        if any(known.difference is not None for known in self._peers.values()):
            self._judge()
        self.is_suspect = self.differs or any(not doubt.is_settled for doubt in self.doubts())

    def contradicted(self, peer: int, difference: Difference) -> None:
        """Note that the peer, which leads, contradicts records that this node knows to be committed."""
        known = self._peers.setdefault(peer, _Peer())
        if known.difference is None:
            log.error("node %d and this node differ, and a majority decides which is right: %s", peer, difference)
            known.difference = difference
            self._judge()

    def doubts(self) -> list[Doubt]:
        """Return the nodes that differ from this node; empty while this node itself is known to be the node that
        differs."""
        if self.differs:
            return []
        found = [
            Doubt(peer, known.difference, self._is_settled(known))
            for peer, known in self._peers.items()
            if known.difference is not None
        ]
        return sorted(found, key=lambda doubt: doubt.node_id)

    def holders(self, since_s: float = float("-inf")) -> set[int]:
        """Return the voters heard lately and after `since_s` that would vote and do not differ: they hold what is
        committed.
        """
        return {
            peer
            for peer in self._membership.current.voters - {self._node_id}
            if (known := self._peers.get(peer)) is not None
            and self._is_fresh(known)
            and known.heard_s > since_s
            and known.said is not None
            and known.said.votes
            and not known.said.differs_from
        }

    def why_voteless(self, peer: int) -> str:
        """Return in words why that node may not vote, by its last word; empty if it may, or nothing recent is known."""
        known = self._peers.get(peer)
        if known is None or known.said is None or not self._is_fresh(known):
            return ""
        if known.said.differs_from:
            return "its copy of the data differs"
        return "" if known.said.votes else "its disk is new"

    def applied_by(self, peer: int) -> int:
        """Return the last entry that the node has applied, by its last word; 0 if nothing recent is known."""
        known = self._peers.get(peer)
        return known.said.at.index if known is not None and known.said is not None and self._is_fresh(known) else 0

    def agreed_with(self) -> dict[int, int]:
        """Return, per node, the last entry at which it was found equal to this one."""
        return {
            peer: known.agreed
            for peer, known in sorted(self._peers.items())
            if known.agreed and known.difference is None
        }

    # --- inside --------------------------------------------------------------------------------------------------

    def _is_fresh(self, known: _Peer) -> bool:
        return now() - known.heard_s <= FRESH_INTERVALS * self.interval_s

    def _is_settled(self, known: _Peer) -> bool:
        if known.said is not None and known.said.differs_from:
            return True
        assert known.difference is not None
        agreeing = {
            peer
            for peer, other in self._peers.items()
            if other.difference is None and other.agreed >= known.difference.index
        }
        return self._membership.current.has_majority({self._node_id, *agreeing})

    def _at(self, digest: StateDigest) -> StateAt:
        index, state_hash, rows_from, rows_hash = digest
        return StateAt(index, state_hash, rows_from, rows_hash, self._link(index))

    def _link(self, index: int) -> Link | None:
        return self._log.chain.at(index) if self._log.base.index <= index <= self._log.last_index else None

    def _compare(self, state: StateAt, *, records: bool | None = None) -> str | None:
        """Return what differs at that entry, `records` or `state`; None if nothing does, empty if that cannot be told.

        `records=True` compares only the records, `records=False` only the state, None both.
        """
        own = self.history.at(state.index) if self.history is not None else None
        link = self._link(state.index) if records is not False else None
        theirs = None if state.chain is None else Link(*state.chain)
        if link is not None and theirs is not None and link.differs(theirs):
            return "records"
        if records:
            return None if link is not None and theirs is not None and link == theirs else ""
        if own is None or not state.state_hash:
            return ""
        return "state" if own.differs(StateDigest(*state[:4])) else None

    def _note(self, peer: int, known: _Peer, state: StateAt) -> None:
        verdict = self._compare(state)
        if verdict is None:
            if self._is_whole(state):
                known.agreed = max(known.agreed, state.index)
            if known.difference is not None and state.index >= known.difference.index:
                known.difference = None  # the peer was rebuilt
        elif verdict and known.difference is None:
            known.difference = Difference(state.index, min(known.agreed, state.index - 1), verdict == "records")
            log.error("node %d and this node differ, and a majority decides which is right: %s", peer, known.difference)
            self._bisect(peer, known)

    def _is_whole(self, state: StateAt) -> bool:
        """Return whether rows and records were compared too, and not only the state hash. A node vouches for this
        replica, or against it, only when it equals this replica in everything that can differ.
        """
        own = None if self.history is None else self.history.at(state.index)
        link = self._link(state.index)
        if own is None or link is None or state.chain is None:
            return False
        return own.rows_from == state.rows_from and link[:2] == tuple(state.chain[:2])

    def _judge(self) -> None:
        """Conclude that this node differs if voters that agree with each other and are a majority contradict it."""
        against = {
            peer: known
            for peer, known in self._peers.items()
            if known.difference is not None and known.said is not None and not known.said.differs_from
        }
        for peer, known in against.items():
            assert known.said is not None
            assert known.difference is not None
            # A node that equals the peer at that entry or later cannot equal this node there: differences stay.
            index = known.difference.index
            group = {peer, *(other for other, agreed in known.said.agrees if agreed >= index)} - {self._node_id}
            if self._membership.current.has_majority(group):
                first = min((against[each].difference for each in group & against.keys()), key=_index_of)
                if first is not None and (self.difference is None or first != self.difference):
                    self._conclude(first, group)
                return

    def _conclude(self, difference: Difference, against: Iterable[int]) -> None:
        if self.difference is None:
            log.critical(
                "this replica differs from nodes %s, which agree with each other: %s. It neither leads nor votes now. "
                "Rebuild it with 'keelmq cluster rebuild %d'",
                sorted(against),
                difference,
                self._node_id,
            )
        if self.difference is None or not self.difference.is_exact or difference.index < self.difference.index:
            self.difference, self.against = difference, tuple(sorted(against))

    def _ask(self, peer: int, known: _Peer) -> None:
        """Bisect a known difference, or ask a peer that is ahead for its hashes at this node's last applied entry."""
        if known.difference is not None:
            self._bisect(peer, known)
        elif known.pending is not None and self.history is not None:
            known.asked, known.asked_s, known.pending = (self.history.now.index,), now(), None
            self._send(peer, Compare(known.asked))

    def _bisect(self, peer: int, known: _Peer) -> None:
        """Ask for the hashes of entries between the last equal and the first differing one, where this node has its
        own.
        """
        difference = known.difference
        if difference is None or difference.is_exact:
            return
        first, last = difference.agreed + 1, difference.index - 1
        between: range | list[int] = range(max(first, self._log.first_index), min(last, self._log.last_index) + 1)
        if not difference.records:
            between = self.history.known_between(first, last) if self.history is not None else []
        if not between:
            return
        step = max(1, len(between) // (COMPARED_MAX + 1))
        known.asked = tuple(sorted({*between[step::step][: COMPARED_MAX - 1], between[0]}))[:COMPARED_MAX]
        known.asked_s = now()
        self._send(peer, Compare(known.asked))


def _index_of(difference: Difference | None) -> int:
    return difference.index if difference is not None else 1 << 63
