"""The keys of a request's messages as batch headers carry them: hashes, by which the index finds the messages."""

from collections.abc import Sequence

from cluster.blocks import BlockMessage
from cluster.limits import REQUEST_KEYS_MAX
from cluster.problems import Problem
from store.message_index import key_hash


class KeyHashes:
    """Counts over all batches of one request: each key is hashed here, and a write of its own on every replica."""

    def __init__(self) -> None:
        self.counted = 0

    def of(self, messages: Sequence[BlockMessage]) -> tuple[bytes, ...] | None:
        """By ordinal; None when no message has a key. Problem `batch_too_large` before too many are hashed."""
        for message in messages:  # for most requests that is all, so it is the cheapest way to look
            if message.keys:
                break
        else:
            return None
        self.counted += sum(len(message.keys) for message in messages)
        if self.counted > REQUEST_KEYS_MAX:
            raise self.too_many()
        return tuple(b"".join(map(key_hash, dict.fromkeys(message.keys))) for message in messages)

    @staticmethod
    def too_many() -> Problem:
        return Problem("batch_too_large", f"keys: the messages of a request have at most {REQUEST_KEYS_MAX}")
