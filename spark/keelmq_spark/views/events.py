"""The view `events`, with one row per event of a message or transaction, as Arrow and Spark schemas.

Both schemas are made from one list, because a batch whose types differ from the declared ones fails the query.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

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
