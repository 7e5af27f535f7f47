"""The tables `nodes` and `edges`, as Arrow sees them, and how their rows are called."""

from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

ATTRIBUTES: Final = pa.struct(
    [
        pa.field("message_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("queue", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("transaction_id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("client", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("trace_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("raft_index", pa.int64()),
    ]
)
"""What is known beside the state; `raft_index` is that of the entry which changed the node last."""

NODES: Final = pa.schema(
    [
        pa.field("node_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("first_ts", TIMESTAMP),
        pa.field("last_ts", TIMESTAMP),
        pa.field("state", pa.string()),
        pa.field("attrs", ATTRIBUTES),
    ]
)
EDGES: Final = pa.schema(
    [
        pa.field("src", pa.string()),
        pa.field("dst", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("ts", TIMESTAMP),
        pa.field("event_id", pa.string()),
    ]
)

# Kinds of nodes, which are the beginnings of their ids too.
MESSAGE: Final = "message"
TOPIC: Final = "topic"
PRODUCER_GROUP: Final = "producer_group"
CONSUMER_GROUP: Final = "consumer_group"
TRANSACTION: Final = "transaction"

PRODUCED: Final = "PRODUCED"
"""producer group -> message"""
IN_TOPIC: Final = "IN_TOPIC"
"""message -> topic, once it is visible there; a dead letter also to `%DLQ%<group>`"""
DECIDED_BY: Final = "DECIDED_BY"
"""message -> the transaction that was committed or rolled back"""
CONSUMED_BY: Final = "CONSUMED_BY"
"""message -> consumer group, when the group's offset passed it, or the delivery of it that was not given back"""
CAUSED_BY: Final = "CAUSED_BY"
"""message -> the message that was processed when it was sent"""
RETRY_OF: Final = "RETRY_OF"
"""delivery that a group asked for by giving a message back -> the message"""
DEAD_LETTERED: Final = "DEAD_LETTERED"
"""message -> the consumer group that gave it up"""

# States of a message.
HALF: Final = "half"
SCHEDULED: Final = "scheduled"
PUBLISHED: Final = "published"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
# Of a transaction; a message that was never visible has that of its transaction.
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
DISCARDED: Final = "discarded"
ACTIVE: Final = "active"
"""Of topics and groups."""

ANY_TOPIC: Final = "?"
"""Stands for the topic of a cause that was named by its id alone."""
GROUP_TOPICS: Final = ("%RETRY%", "%DLQ%")


def message_node(topic: str, message_id: str) -> str:
    return f"{MESSAGE}:{topic}/{message_id}"


def node(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def cause_nodes(causation_id: str) -> list[str]:
    """The messages that `causation_id` of an event names: ids with commas between, with their topics where known."""
    nodes = []
    for cause in causation_id.split(","):
        topic, slash, message_id = cause.rpartition("/")
        if message_id:
            nodes.append(message_node(topic if slash else ANY_TOPIC, message_id))
    return nodes
