"""Resolves the queue and the delay of a send from the arguments of the call and its messages."""

import asyncio
from collections.abc import Sequence
from typing import Any

from keelmq.errors import InvalidRequest, KeelMQError
from keelmq.limits import QUEUES_MAX, check_range, check_sharding_key
from keelmq.message import Message
from keelmq.producing.delay import AT_ONCE, Delay, delay_of
from keelmq.producing.queue_selectors import RoundRobin, Selector, chosen_queue
from keelmq.producing.routing import Choose, queue_for_key


def choice(
    selector: Selector | None,
    sharding_key: str | None,
    topic: str,
    message: Message | None,
    future: asyncio.Future[Any],
) -> Choose:
    """Return the function that chooses the queue: `selector` if given, otherwise the hash of the sharding key.

    A RoundRobin selector is notified when the send fails with a retryable error.
    """
    if selector is None or message is None:
        key = sharding_key or ""
        return lambda queues: queue_for_key(key, queues)

    def choose(queues: int) -> int:
        queue = chosen_queue(selector, message, queues)
        if isinstance(selector, RoundRobin):

            def tell(done: asyncio.Future[Any]) -> None:
                error = None if done.cancelled() else done.exception()
                if isinstance(error, KeelMQError) and error.retryable:
                    selector.failed(topic, queue)

            future.add_done_callback(tell)
        return queue

    return choose


def batch_destination(
    topic: str, messages: Sequence[bytes | Message], queue: int | None, sharding_key: str | None
) -> tuple[int | None, str | None]:
    """Return queue and sharding key of a batch. Messages may repeat them, but not name different ones."""
    if queue is not None:
        check_range("queue", queue, 0, QUEUES_MAX - 1)
    if sharding_key is not None:
        check_sharding_key(sharding_key)
    if set(map(type, messages)) == {bytes}:
        return queue, sharding_key if queue is None else None
    for message in messages:
        if isinstance(message, bytes):
            continue
        if not isinstance(message, Message):
            raise InvalidRequest("invalid_request", f"a batch holds bytes or Message, not {type(message).__name__}")
        if message.topic not in (None, topic):
            raise InvalidRequest("invalid_request", f"a message for topic {message.topic} in a batch for {topic}")
        queue = queue if queue is not None else message.queue
        sharding_key = sharding_key if sharding_key is not None else message.sharding_key
        if message.queue not in (None, queue) or message.sharding_key not in (None, sharding_key):
            raise InvalidRequest("invalid_request", "the messages of a batch name different queues or sharding keys")
    if queue is not None:
        check_range("queue", queue, 0, QUEUES_MAX - 1)
    return queue, sharding_key if queue is None else None


def batch_delay(messages: Sequence[bytes | Message], delay: Delay) -> Delay:
    """Return the delay of a batch. Messages may repeat but not contradict it: they become visible together."""
    for message in messages:
        if isinstance(message, Message):
            own = delay_of(message.delay_level, message.delay_ms, message.deliver_at_ms)
            if own != AT_ONCE:
                delay = own if delay == AT_ONCE else delay
                if own != delay:
                    raise InvalidRequest("invalid_request", "the messages of a batch have different delays")
    return delay
