"""Queue selectors: functions that choose the queue of a message, `selector(message, queues) -> queue`.

Without a selector, messages with neither a queue nor a sharding key go to a queue of the broker's choice. The broker
rotates per request, so such messages can travel in one batch. A selector costs a batch per queue.
"""

import random
from collections.abc import Callable

from keelmq.errors import InvalidRequest
from keelmq.message import Message
from keelmq.producing.routing import queue_for_key

Selector = Callable[[Message, int], int]
"""Takes a message (with `topic` set) and the number of queues; returns a queue from 0 to that number - 1."""


class RoundRobin:
    """Selects the queues of each topic in turn. A queue with a finally failed send loses its next turn.

    All queues of a topic have one leader, so this spreads messages; it does not avoid a node that is down. Create one
    instance and use it for every send.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._failed: dict[str, int] = {}

    def __call__(self, message: Message, queues: int) -> int:
        topic = message.topic or ""
        queue = self._next.get(topic, 0) % queues
        if queue == self._failed.get(topic) and queues > 1:
            del self._failed[topic]
            queue = (queue + 1) % queues
        self._next[topic] = queue + 1
        return queue

    def failed(self, topic: str, queue: int) -> None:
        """Note that, after all its tries, a message was not stored in this queue, or perhaps not."""
        self._failed[topic] = queue


def by_hash(key: Callable[[Message], str]) -> Selector:
    """Return a selector that hashes `key(message)`; a `sharding_key` of the same value selects the same queue."""

    def choose(message: Message, queues: int) -> int:
        return queue_for_key(key(message), queues)

    return choose


def random_queue(rng: Callable[[], float] = random.random) -> Selector:
    """Return a selector that chooses a random queue; `rng` returns numbers from 0 (inclusive) to 1 (exclusive)."""

    def choose(message: Message, queues: int) -> int:
        return int(rng() * queues)

    return choose


def chosen_queue(selector: Selector, message: Message, queues: int) -> int:
    """Return the choice of `selector`. Raises InvalidRequest for a queue out of range, and the selector's errors."""
    queue: object = selector(message, queues)
    if not isinstance(queue, int) or isinstance(queue, bool) or not 0 <= queue < queues:
        raise InvalidRequest("invalid_request", f"the selector chose queue {queue!r}, there are 0 to {queues - 1}")
    return queue
