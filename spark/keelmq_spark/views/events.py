"""The view `events`, with one row per event of a message or transaction, as Arrow and Spark schemas.

Both schemas are made from one list, because a batch whose types differ from the declared ones fails the query. Readers
of the tables need no PySpark: it is imported with the Spark schema.
"""

import functools
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_STRING: Final = pa.string()
_INT: Final = pa.int32()
_LONG: Final = pa.int64()
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_COLUMNS: Final = (
    ("event_id", _STRING),
    ("ts", _TIMESTAMP),
    ("type", _STRING),
    ("message_id", _STRING),
    ("transaction_id", _STRING),
    ("topic", _STRING),
    ("queue", _INT),
    ("offset", _LONG),
    ("offset_end", _LONG),
    ("group", _STRING),
    ("client", _STRING),
    ("attempt", _INT),
    ("trace_id", _STRING),
    ("causation_id", _STRING),
    ("key", _STRING),
    ("raft_term", _LONG),
    ("raft_index", _LONG),
    ("bytes", _LONG),
    ("tag", _STRING),
    ("properties", _STRING),
    ("filter", _STRING),
)

EVENTS_ARROW: Final = pa.schema(_COLUMNS)
"""Arrow schema of the view; every column may be null. `event_id` is `<raft group>:<raft index>:<n>`, where n is the
number of the row within its entry. `ts` is the entry's time. `offset_end` is set for ACK, RESET and PURGE only. `group`
is the producer group or the consumer group. `bytes` is the length of the body. `properties` is a JSON object without
what other columns have. `filter` is set for ACK of groups that select messages."""


@functools.cache
def spark_schema() -> "StructType":
    """Return the Spark schema with the same columns."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

    types = {_STRING: StringType, _INT: IntegerType, _LONG: LongType, _TIMESTAMP: TimestampType}
    return StructType([StructField(name, types[of_type]()) for name, of_type in _COLUMNS])
