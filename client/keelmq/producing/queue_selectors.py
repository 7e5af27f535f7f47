"""Queue selectors: functions that choose the queue of a message, `selector(message, queues) -> queue`.

Without one, messages that name neither a queue nor a sharding key go to the queue of the broker's choice, which goes
round by request, so that they can travel in one batch. A selector costs a batch per queue.
"""

import random
from collections.abc import Callable

from keelmq.errors import InvalidRequest
from keelmq.message import Message
from keelmq.producing.routing import queue_for_key

Selector = Callable[[Message, int], int]
"""Given a message (its `topic` is set) and the number of queues, a queue from 0 to that number - 1."""


class RoundRobin:
    """Queues in turn, per topic. A queue in which a send failed for good loses its next turn.

    All queues of a topic have one leader, so this spreads messages; it does not get around a node that is down. Make
    one and use it for every send.
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
        """The producer says that a message was not stored there, or perhaps not, after all its tries."""
        self._failed[topic] = queue


def by_hash(key: Callable[[Message], str]) -> Selector:
    """The queue of what `key` makes of a message; a `sharding_key` of that value goes to the same one."""

    def choose(message: Message, queues: int) -> int:
        return queue_for_key(key(message), queues)

    return choose


def random_queue(rng: Callable[[], float] = random.random) -> Selector:
    """Any queue; `rng` gives numbers from 0 to below 1."""

    def choose(message: Message, queues: int) -> int:
        return int(rng() * queues)

    return choose


def chosen_queue(selector: Selector, message: Message, queues: int) -> int:
    """What `selector` chooses. Raises InvalidRequest when there is no such queue, and what the selector raises."""
    queue: object = selector(message, queues)
    if not isinstance(queue, int) or isinstance(queue, bool) or not 0 <= queue < queues:
        raise InvalidRequest("invalid_request", f"the selector chose queue {queue!r}, there are 0 to {queues - 1}")
    return queue
