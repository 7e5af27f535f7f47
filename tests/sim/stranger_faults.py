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
    TimeoutNow,
    VoteReply,
    encode,
    make_append,
)

from .fault import Action, Fault
from .replica import Replica
from .world import World

LEAP = 1 << 32  # of raft/election/distrust.py; deliberately not taken from there
TERM_MAX = (1 << 63) - 1
ELECTIONS_MAX: Final = 10_000
"""A frozen node hears a message later, and may be in a later term by then: more elections than any run has."""
MESSAGES_MIN, MESSAGES_MAX = 1, 12


class StrangerFaults:
    """Send the messages of strangers. None of them may raise a term, take a leadership, or end a node."""

    def __init__(self, world: World, replicas: Mapping[int, Replica]) -> None:
        self._world, self._replicas = world, replicas
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
                replica.receive(source, self._frame(fault, replica), forged=True)

    def _frame(self, fault: Fault, replica: Replica) -> bytes:
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
        ]
        if replica.raft.state.role == LEADER:
            forged.append(make_append(term, last, term, last, ()))
        frame = bytearray(b"".join(encode(random.choice(forged))))
        if random.random() < 0.25:
            frame[random.randrange(12, len(frame))] ^= 1 << random.randrange(8)
        return bytes(frame)
