"""The view `events`, with one row per event of a message or transaction, as Arrow and Spark schemas.

Both schemas are made from one list, because a batch whose types differ from the declared ones fails the query.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

HALF: Final = "HALF"
"""A half message was stored; it is invisible until its transaction is committed."""
COMMIT: Final = "COMMIT"
"""A transaction was committed. Its messages are PUBLISH or SCHEDULE rows of the same entry."""
ROLLBACK: Final = "ROLLBACK"
CHECK: Final = "CHECK"
"""The broker asked a producer for the outcome of a transaction."""
DISCARD: Final = "DISCARD"
"""The broker discarded a transaction, because no producer answered its checks."""
RESUME: Final = "RESUME"
"""An operator turned a discarded transaction back into a prepared one."""
PUBLISH: Final = "PUBLISH"
"""A message received its offset."""
SCHEDULE: Final = "SCHEDULE"
"""A message was accepted and waits for its delivery time; PUBLISH follows."""
CANCEL: Final = "CANCEL"
"""A scheduled message was cancelled."""
ACK: Final = "ACK"
"""A group's committed offset moved over [offset, offset_end)."""
RETRY: Final = "RETRY"
"""A group gave a message back for redelivery."""
DLQ: Final = "DLQ"
"""A group gave a message back for the last time: it became a dead letter."""
EXPIRE: Final = "EXPIRE"
"""A scheduled message was dropped because its topic no longer exists."""
RESET: Final = "RESET"
"""A group's committed offset was set from `offset` to `offset_end`; without `offset` the group begins there."""
PURGE: Final = "PURGE"
"""The messages [offset, offset_end) of a queue were removed by a purge."""
GROUP_PAUSE: Final = "GROUP_PAUSE"
"""An operator paused a group: it was handed out nothing until GROUP_RESUME."""
GROUP_RESUME: Final = "GROUP_RESUME"

TYPES: Final = frozenset(
    {
        *(HALF, COMMIT, ROLLBACK, CHECK, DISCARD, RESUME),
        *(PUBLISH, SCHEDULE, CANCEL, ACK, RETRY, DLQ, EXPIRE, RESET, PURGE),
        *(GROUP_PAUSE, GROUP_RESUME),
    }
)

OF_CONSUMERS: Final = (ACK, RETRY, DLQ, RESET, GROUP_PAUSE, GROUP_RESUME)
"""Types whose group is a consumer group."""

_COLUMNS: Final = (
    ("event_id", StringType()),
    ("ts", TimestampType()),
    ("type", StringType()),
    ("message_id", StringType()),
    ("transaction_id", StringType()),
    ("topic", StringType()),
    ("queue", IntegerType()),
    ("offset", LongType()),
    ("offset_end", LongType()),
    ("group", StringType()),
    ("client", StringType()),
    ("attempt", IntegerType()),
    ("trace_id", StringType()),
    ("causation_id", StringType()),
    ("key", StringType()),
    ("raft_term", LongType()),
    ("raft_index", LongType()),
    ("bytes", LongType()),
    ("tag", StringType()),
    ("properties", StringType()),
    ("filter", StringType()),
)
_ARROW_TYPES: Final = {
    StringType: pa.string(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}

EVENTS_SPARK: Final = StructType([StructField(name, of_type) for name, of_type in _COLUMNS])
"""Spark schema of the view. `event_id` is `<raft group>:<raft index>:<n>`, where n is the number of the row within its
entry. `ts` is the entry's time. `offset_end` is set for ACK, RESET and PURGE only. `group` is the producer group or the
consumer group. `bytes` is the length of the body. `properties` is a JSON object without what other columns have.
`filter` is set for ACK of groups that select messages."""

EVENTS_ARROW: Final = pa.schema([pa.field(name, _ARROW_TYPES[type(of_type)]) for name, of_type in _COLUMNS])
"""Arrow schema with the same columns; every column may be null."""
