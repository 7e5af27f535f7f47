"""Adds RocketMQ's properties to the JSON form of messages in the half topic and the topic of discarded halves."""

from collections.abc import Callable, Mapping
from typing import Final

from store.commands.views import Row
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC
from store.state.machine import StateMachine

HALF_TOPICS: Final = frozenset({HALF_TOPIC, DISCARDED_TOPIC})

AddedProperties = Callable[[Row], Mapping[str, str]]


def added_properties(state: StateMachine, topic: str) -> AddedProperties | None:
    """Return a function that yields the properties to add for a row; None for topics without added properties."""
    if topic not in HALF_TOPICS:
        return None

    def of(row: Row) -> Mapping[str, str]:
        transaction = None if row.transaction_id is None else state.transaction(row.transaction_id)
        place = (row.position, row.block_offset)
        batches = transaction.batches if transaction is not None else ()
        batch = next((each for each in batches if (each.position, each.block_offset) == place), None)
        if transaction is None or batch is None:  # already removed, while its row is not removed yet
            return {"TRAN_MSG": "true"}
        return {
            "REAL_TOPIC": batch.topic,
            "REAL_QID": str(batch.queue),
            "PGROUP": transaction.producer_group,
            "TRAN_MSG": "true",
            "TRANSACTION_CHECK_TIMES": str(transaction.check_times),
        }

    return of
