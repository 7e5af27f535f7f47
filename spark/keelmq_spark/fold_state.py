"""What the fold remembers from one batch to the next: everything that may still change, and nothing else.

Bounded: by what is undecided, scheduled or waiting for a retry, at most OPEN_MAX of it, by the number of topics, groups
and queues, and by what is delivered and not committed yet.
"""

from typing import Final

import msgspec

from keelmq_spark.intervals import Ranges

OPEN_MAX: Final = 200_000
"""Open messages and transactions each; what has been open longest is let go as it is, and comes again if it changes."""
GROUP_PLACES_MAX: Final = 100_000
"""Deliveries of `%RETRY%` and `%DLQ%` topics whose messages are remembered, per topic."""


class NodeRow(msgspec.Struct, array_like=True):
    """A row of the table `nodes`; times are microseconds since 1970."""

    node_id: str
    kind: str
    first_us: int
    last_us: int
    state: str
    message_id: str | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    transaction_id: str | None = None
    group: str | None = None
    client: str | None = None
    attempt: int | None = None
    trace_id: str | None = None
    key: str | None = None
    bytes: int | None = None
    raft_index: int = 0

    def change(self, state: str, us: int, raft_index: int) -> None:
        self.state = state
        self.last_us = max(self.last_us, us)
        self.raft_index = max(self.raft_index, raft_index)


class OpenTransaction(msgspec.Struct, array_like=True):
    row: NodeRow
    messages: list[str]
    """Node ids of its half messages."""


class Delivery(msgspec.Struct, array_like=True):
    """A message in a topic of a group: its node, and that of the delivery."""

    origin: str
    copy: str


class FoldState(msgspec.Struct):
    raft_index: int = 0
    """Everything up to it is folded."""
    hubs: dict[str, NodeRow] = {}
    """Topics and groups."""
    messages: dict[str, NodeRow] = {}
    transactions: dict[str, OpenTransaction] = {}
    waiting: dict[str, list[Delivery]] = {}
    """Given back and not delivered again: by group, message id and attempt."""
    group_places: dict[str, dict[int, Delivery]] = {}
    """By `%RETRY%` or `%DLQ%` topic and offset."""
    given_back: dict[str, list[int]] = {}
    """Offsets by group, topic and queue that the group's committed offset has not passed yet."""
    committed: dict[str, Ranges] = {}
    """By group, topic and queue: offsets that the group's offset has passed at some time."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FoldState).decode


def encode_state(state: FoldState) -> bytes:
    return _encode(state)


def decode_state(data: bytes) -> FoldState:
    """Raises ValueError when it is not a state of this version."""
    return _decode(data)


def key_of(*parts: object) -> str:
    """Names have none of the separator in them."""
    return "\n".join(map(str, parts))
