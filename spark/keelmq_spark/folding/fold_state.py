"""State of the fold between batches: everything that may still change, and nothing else.

Its size is bounded by the undecided, scheduled and retried messages (at most OPEN_MAX of them), by the number of
topics, groups and queues, and by the deliveries that are not committed yet.
"""

from typing import Final

import msgspec

from keelmq_spark.folding.intervals import Ranges

OPEN_MAX: Final = 200_000
"""Maximum number of open messages, and of open transactions. Beyond it, the one open for longest is settled as it is,
and written again if it changes."""
FILTERS_MAX: Final = 16
"""Maximum number of filters of a group and queue whose ranges are remembered; beyond it, the one used first goes."""
GROUP_PLACES_MAX: Final = 100_000
"""Maximum number of remembered deliveries per `%RETRY%` or `%DLQ%` topic."""


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
    """Node ids of the half messages of the transaction."""


class Delivery(msgspec.Struct, array_like=True):
    """A message in a topic of a group: node id of the message, node id of this delivery, and where the message was
    first; the topic is empty when that is not known.
    """

    origin: str
    copy: str
    topic: str = ""
    queue: int = 0
    offset: int = 0


class FoldState(msgspec.Struct):
    raft_index: int = 0
    """Raft index up to which everything is folded."""
    hubs: dict[str, NodeRow] = {}
    """Nodes of topics and groups, by node id."""
    messages: dict[str, NodeRow] = {}
    transactions: dict[str, OpenTransaction] = {}
    waiting: dict[str, list[Delivery]] = {}
    """Messages that were given back and are not redelivered yet, by group, message id and attempt."""
    group_places: dict[str, dict[int, Delivery]] = {}
    """Deliveries by `%RETRY%` or `%DLQ%` topic and offset."""
    given_back: dict[str, list[int]] = {}
    """Offsets of given-back messages by group, topic and queue, until the group's committed offset passes them."""
    consumed: dict[str, Ranges] = {}
    """Ranges of offsets that the group has ever processed, by group, topic and queue: its offset passed them, except
    for what it gave back. A message that is processed later, in a delivery or after a reset, closes its gap."""
    selected: dict[str, dict[str, Ranges]] = {}
    """The same of groups that select messages, by filter: of each range, the group processed what it selects."""
    ends: dict[str, int] = {}
    """Offset behind the last message that was published, by topic and queue. A message below it is of a topic that was
    deleted and made again. States of earlier versions have none."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FoldState).decode


def encode_state(state: FoldState) -> bytes:
    return _encode(state)


def decode_state(data: bytes) -> FoldState:
    """Decode a state. Raises ValueError for a state of another version."""
    return _decode(data)


def key_of(*parts: object) -> str:
    """Join the parts of a key; names never contain the separator."""
    return "\n".join(map(str, parts))
