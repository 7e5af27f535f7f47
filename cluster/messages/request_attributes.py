"""Bounds the keys, explicit ids and properties of all messages in a request, since each of them has its own cost.

Batch headers carry the keys as hashes, by which the index finds the messages.
"""

from collections.abc import Sequence

from cluster.budgets.pace import Pace
from cluster.limits import REQUEST_KEYS_MAX, REQUEST_PROPERTIES_MAX
from cluster.messages.blocks import BlockMessage
from cluster.problems import Problem
from store.messages.message_index import key_hash


class RequestAttributes:
    """Counts keys, ids and properties over all batches of one request, which are checked at one `pace`."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.keys = 0
        """Number of keys and explicit message ids."""
        self.properties = 0

    @property
    def too_many(self) -> bool:
        """Return whether the request as a whole has too many properties."""
        return self.properties > REQUEST_PROPERTIES_MAX

    def begin_transaction(self) -> None:
        """Count the keys anew: each transaction of a request is a command of its own, and is applied by itself."""
        self.keys = 0

    def count(self, messages: Sequence[BlockMessage]) -> None:
        """Count the keys, explicit ids and properties of these messages.

        Raises Problem `batch_too_large` or `too_many_properties` when the request exceeds its limits: each key and id
        is a separate write on every replica, and each property costs time whenever the messages are read.
        """
        for message in messages:
            if message.keys:
                self.keys += len(message.keys)
            if message.message_id is not None:
                self.keys += 1
            if message.properties:
                self.properties += len(message.properties)
        if self.keys > REQUEST_KEYS_MAX:
            detail = f"keys and message ids: a request, or a transaction, has at most {REQUEST_KEYS_MAX} together"
            raise Problem("batch_too_large", f"{detail}; send them in parts")
        if self.properties > REQUEST_PROPERTIES_MAX:
            detail = f"properties: the messages of a request have at most {REQUEST_PROPERTIES_MAX}"
            raise Problem("too_many_properties", f"{detail}; send them in parts")

    async def hashes_of(self, messages: Sequence[BlockMessage]) -> tuple[bytes, ...] | None:
        """Return the hashed keys of the messages by ordinal; None when no message has a key. Rests in between: 6,400
        keys take 10 ms.
        """
        if not any(message.keys for message in messages):
            return None
        hashes: list[bytes] = []
        for message in messages:
            hashes.append(b"".join(map(key_hash, dict.fromkeys(message.keys))))
            if self.pace.is_tired:
                await self.pace.rest()
        return tuple(hashes)
