"""Arrow schemas of the tables `nodes` and `edges`, and the names of node kinds, edge kinds and states."""

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
"""Attributes of a node besides its state; `raft_index` is the index of the entry that changed the node last."""

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

SCHEMA: Final = 2
"""Version of the tables' columns. A later version only adds columns, which tables of earlier ones get when a job
begins; commits name the version."""
ADDED_COLUMNS: Final = {
    "events": {"tag": pa.string(), "properties": pa.string(), "filter": pa.string()},
    "nodes": {},
    "edges": {},
}
"""Columns that tables of the first version lack."""

# Kinds of nodes, which are also the prefixes of their ids.
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
"""message -> consumer group, when the group's offset passed the message, or its delivery that was not given back"""
PURGED_FROM: Final = "PURGED_FROM"
"""message -> the topic of which a purge removed it, consumed or not"""
CAUSED_BY: Final = "CAUSED_BY"
"""message -> the message that was being processed when it was sent"""
RETRY_OF: Final = "RETRY_OF"
"""redelivery that a group requested by giving a message back -> the message"""
DEAD_LETTERED: Final = "DEAD_LETTERED"
"""message -> the consumer group whose dead letter it became"""

# States of a message.
HALF: Final = "half"
SCHEDULED: Final = "scheduled"
PUBLISHED: Final = "published"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
# States of a transaction; a message that was never visible has the state of its transaction.
PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
DISCARDED: Final = "discarded"
ACTIVE: Final = "active"
"""State of topics and groups."""

ANY_TOPIC: Final = "?"
"""Placeholder for the topic of a cause that was named only by its id."""
GROUP_TOPICS: Final = ("%RETRY%", "%DLQ%")


def message_node(topic: str, message_id: str) -> str:
    return f"{MESSAGE}:{topic}/{message_id}"


def node(kind: str, name: str) -> str:
    return f"{kind}:{name}"


ONE_CAUSE: Final = "^[^,]*/[^,/]+$"
"""Pattern of causation ids that name one message with its topic, whose node is `message:` and that."""


def cause_nodes(causation_id: str) -> list[str]:
    """Return the messages that `causation_id` of an event names: comma-separated ids, with topics where known."""
    nodes = []
    for cause in causation_id.split(","):
        topic, slash, message_id = cause.rpartition("/")
        if message_id:
            nodes.append(message_node(topic if slash else ANY_TOPIC, message_id))
    return nodes
