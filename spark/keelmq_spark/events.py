"""The view `events`: one row for everything that happened to a message, as Arrow and as Spark see it.

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
"""The broker asked a producer about a transaction."""
DISCARD: Final = "DISCARD"
"""Nobody answered: the broker gave a transaction up."""
RESUME: Final = "RESUME"
"""An operator made a discarded transaction a prepared one again."""
PUBLISH: Final = "PUBLISH"
"""A message got its offset."""
SCHEDULE: Final = "SCHEDULE"
"""A message was accepted and waits for its time; PUBLISH follows."""
CANCEL: Final = "CANCEL"
"""A waiting message was taken back."""
ACK: Final = "ACK"
"""A group's committed offset moved over [offset, offset_end)."""
RETRY: Final = "RETRY"
"""A group gave a message back and gets it again."""
DLQ: Final = "DLQ"
"""A group gave a message back for the last time: it is among its dead letters."""
EXPIRE: Final = "EXPIRE"
"""A waiting message was dropped because its topic is gone."""

EVENT_TYPES: Final = (
    HALF, COMMIT, ROLLBACK, CHECK, DISCARD, RESUME, PUBLISH, SCHEDULE, CANCEL, ACK, RETRY, DLQ, EXPIRE,
)  # fmt: skip

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
)
_ARROW_TYPES: Final = {
    StringType: pa.string(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}

EVENTS_SPARK: Final = StructType([StructField(name, of_type) for name, of_type in _COLUMNS])
"""`event_id` is `<raft group>:<raft index>:<n>`, n being the number of the row within its entry; `ts` is the entry's
time; `offset_end` is for ACK only; `group` is the producer's or the consumers'; `bytes` is the length of the body."""

EVENTS_ARROW: Final = pa.schema([pa.field(name, _ARROW_TYPES[type(of_type)]) for name, of_type in _COLUMNS])
"""The same columns; all may be null."""
