"""The op half topic: one message per decision about a half transaction, for users who know RocketMQ's topic of that
name.

A decision has no message block in the log, so the broker makes a block, a function of the entry alone, and keeps it in
the row. The message body is the new state; `keys` holds the transaction id, and the tag is RocketMQ's `d`, for "done".
"""

from typing import Final

import msgspec
from crc32c import crc32c

from store.messages.block_location import BlockLocation
from store.messages.placement import At
from store.messages.queues import Queues
from store.messages.topics import OP_HALF_TOPIC, Topics
from store.transactions.table import STATES, TransactionRecord

DONE_TAG: Final = "d"

_encode = msgspec.msgpack.Encoder().encode


def append_decision(queues: Queues, topics: Topics, transaction_id: str, record: TransactionRecord, at: At) -> None:
    """Append the decision that was just made on the record to the op half topic, as a message."""
    topic = topics.require(OP_HALF_TOPIC)
    state = STATES[record.state]
    properties = {"TRANSACTION_ID": transaction_id, "STATE": state, "PGROUP": record.producer_group}
    if state != "discarded":
        properties["SOURCE"] = record.decided_source or ""
        if record.decided_source == "operator":
            properties["OPERATOR"] = record.operator or ""
            properties["REASON"] = record.reason or ""
    block = _encode([[state.encode(), DONE_TAG, [transaction_id], properties, None, None, at.clock_ms]])
    location = BlockLocation(at.position, 0, len(block), crc32c(block), f"op-{topic.ends[0]}", inline=block)
    queues.append(
        topic,
        0,
        location,
        1,
        stored_at_ms=at.clock_ms,
        raft_index=at.raft_index,
        transaction_id=transaction_id,
    )
