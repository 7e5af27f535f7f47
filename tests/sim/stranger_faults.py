"""Messages that no member can send, forged or garbled in memory, over a connection of a member."""

from collections.abc import Mapping
from typing import Any, Final

from raft.library import LEADER
from raft.messages import (
    AppendReply,
    PreVote,
    PreVoteReply,
    Recall,
    RequestVote,
    SnapshotAck,
    SnapshotBegin,
    TimeoutNow,
    VoteReply,
    encode,
    make_append,
)
from store.index.index import FORMAT
from store.log.record import KIND_NOOP, Entry

from .fault import Action, Fault
from .replica import Replica
from .world import World

LEAP = 1 << 32  # of raft/distrust.py; deliberately not taken from there
TERM_MAX = (1 << 63) - 1
ELECTIONS_MAX: Final = 10_000
"""A frozen node hears a message later, and may be in a later term by then: more elections than any run has."""
MESSAGES_MIN, MESSAGES_MAX = 1, 12


class StrangerFaults:
    """Send the messages of strangers. None of them may raise a term, take a leadership, or end a node."""

    def __init__(self, world: World, replicas: Mapping[int, Replica]) -> None:
        self._world, self._replicas = world, replicas
        self._contradicted: set[int] = set()  # nodes against whose committed entries the leader's voice has spoken
        self.table: dict[str, Action] = {"stranger": self._speak}

    def _speak(self, fault: Fault) -> None:
        alive = [replica for replica in self._replicas.values() if replica.alive and replica.has_recovered]
        if not alive or len(self._replicas) == 1:
            return
        replica = fault.random.choice(alive)
        source = fault.random.choice([node_id for node_id in self._replicas if node_id != replica.node_id])
        messages = fault.random.randint(MESSAGES_MIN, MESSAGES_MAX)
        fault.happened(replica.node_id, source, messages)
        for _ in range(messages):
            if replica.alive and replica.has_recovered:
                replica.receive(source, self._frame(fault, replica, source), forged=True)

    def _frame(self, fault: Fault, replica: Replica, source: int) -> bytes:
        random, term = fault.random, replica.raft.state.term
        asked = term + random.choice((1, 7, LEAP, TERM_MAX - term))
        far = random.choice((term + LEAP + ELECTIONS_MAX, TERM_MAX))
        last = random.choice((0, 5, 1 << 40))
        forged: list[Any] = [
            PreVote(asked, last, asked, False),
            PreVote(asked, last, asked, True),
            RequestVote(far, last, far, False),
            VoteReply(far, True),
            PreVoteReply(far, term, True),
            AppendReply(far, True, last),
            TimeoutNow(far),
            Recall(far, replica.incarnation, far, far, last),
            SnapshotAck(far, 1, 1),
            make_append(far, last, term, last, ()),
            make_append(term, last, term + 1, last, ()),
            make_append(term, 0, 0, last, (), commit_term=term + 1),
            Recall(term, replica.incarnation, term + 1, 0, 0),
            Recall(term, replica.incarnation, 0, term + 1, last),
            *self._against_the_leader(fault, replica, source),
        ]
        frame = bytearray(b"".join(encode(random.choice(forged))))
        if random.random() < 0.25:
            frame[random.randrange(12, len(frame))] ^= 1 << random.randrange(8)
        return bytes(frame)

    def _against_the_leader(self, fault: Fault, replica: Replica, source: int) -> list[Any]:
        """Return forgeries of the leader of the present term: of another leader, or of this one's second history."""
        state, random = replica.raft.state, fault.random
        term, log, leader = state.term, state.log, state.leader_id
        if state.role == LEADER:
            return [make_append(term, random.choice((0, 5, 1 << 40)), term, 0, ())]
        if leader is None:
            return []
        if leader != source:
            at = random.randint(max(state.commit_index, log.base.index, 1), log.last_index)
            return [make_append(term, at, log.term_at(at), 0, [Entry(b"", at + 1, term, KIND_NOOP, -1)])] * 4
        if replica.node_id in self._contradicted:  # who goes on with it is right to end the node
            return []
        self._contradicted.add(replica.node_id)
        base = max(state.commit_index, log.base.index)
        return [
            make_append(term, 0, 0, 0, [Entry(b"", 1, term, KIND_NOOP, -1)]),
            SnapshotBegin(term, 1, 0, base, log.term_at(base) + 1, base, "", FORMAT.decode(), 1),
        ]
