"""What caused a message: whatever a handler sends says which message was being processed.

The consumer notes it in a context variable around each handler call, so it reaches tasks that the handler starts too.
Everything is derived from the causing message, never from chance or a clock: a handler that runs again for the same
message makes the same bytes, as a transaction that is repeated under its id has to.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Final

import msgspec

from keelmq.limits import PROPERTIES_BYTES_MAX
from keelmq.message import Message, ReceivedMessage

CAUSATION_ID: Final = "causation_id"
"""The id of the message that was being processed; of several in one handler call, their ids with commas between."""
CAUSATION_TOPIC: Final = "causation_topic"
"""Its topic, for ids are unique in their topic only; one for all, or as many as ids. Of a message that was given back,
the topic it was first in."""
TRACEPARENT: Final = "traceparent"
"""W3C Trace Context, level 1."""
PRODUCER_GROUP: Final = "producer_group"
"""Who sends: `Producer(group=…)`, or the consumer group whose handler it is. A transaction has its own."""

CAUSES_MAX: Final = 32
"""With more messages in one handler call, what it sends says nothing about its cause."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Cause:
    """The messages that `group` is processing, and the properties of what it sends meanwhile."""

    def __init__(self, messages: Sequence[ReceivedMessage], group: str) -> None:
        self.messages = messages
        self.group = group

    @cached_property
    def properties(self) -> Mapping[str, str]:
        topics = [_topic_of(message) for message in self.messages]
        ids = [message.message_id for message in self.messages]
        places = "\n".join(f"{topic}/{message_id}" for topic, message_id in zip(topics, ids, strict=True))
        traces = {trace_of(message) for message in self.messages}
        continued = traces.pop() if len(traces) == 1 else None
        trace_id, flags = continued or (_digest("trace", places)[:32], "00")
        span_id = _digest("span", f"{self.group}\n{places}")[:16]
        return {
            CAUSATION_ID: ",".join(ids),
            CAUSATION_TOPIC: topics[0] if len(set(topics)) == 1 else ",".join(topics),
            TRACEPARENT: f"00-{trace_id}-{span_id}-{flags}",
        }


_current: ContextVar[Cause | None] = ContextVar("keelmq_cause", default=None)


def current_cause() -> Cause | None:
    """What is being processed here, None outside of handlers."""
    return _current.get()


@contextmanager
def processing(messages: Sequence[ReceivedMessage], group: str) -> Iterator[None]:
    """What is sent inside was caused by `messages`; by more than CAUSES_MAX of them, or none, by nothing."""
    token = _current.set(Cause(messages, group) if 0 < len(messages) <= CAUSES_MAX else None)
    try:
        yield
    finally:
        _current.reset(token)


def begin_processing(messages: Sequence[ReceivedMessage], group: str) -> None:
    """As `processing`, for a loop that ends a message by asking for the next one; no messages end it."""
    _current.set(Cause(messages, group) if messages else None)


def with_cause(
    properties: Mapping[str, str], group: str | None, traceparent: str | None = None, *, names_group: bool = True
) -> Mapping[str, str]:
    """`properties` of a message that is sent here, with those that tell its cause, its sender and its trace.

    `group` is the producer's own. What `properties` says already stays, and nothing is added where all of it would not
    fit the limit. `traceparent` replaces the derived one.
    """
    cause = _current.get()
    added = dict(cause.properties) if cause is not None else {}
    sender = group or (cause.group if cause is not None else None)
    if names_group and sender is not None:
        added[PRODUCER_GROUP] = sender
    if traceparent is not None:
        added[TRACEPARENT] = traceparent
    if CAUSATION_ID in properties:
        added.pop(CAUSATION_TOPIC, None)  # it is of our id
    if not added:
        return properties
    added.update(properties)
    try:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in added.items())
    except (AttributeError, UnicodeEncodeError):  # whoever checks the properties will say what is wrong with them
        return properties
    return added if size <= PROPERTIES_BYTES_MAX else properties


def batch_with_cause(
    messages: Sequence[bytes | Message], group: str | None, traceparent: str | None
) -> Sequence[bytes | Message]:
    """`messages` with the properties that `with_cause` adds; the same objects where it adds none."""
    if group is None and traceparent is None and _current.get() is None:
        return messages
    whole = [Message(body=message) if isinstance(message, bytes) else message for message in messages]
    return [_told(message, with_cause(message.properties, group, traceparent)) for message in whole]


def transaction_with_cause(messages: Sequence[Message], traceparent: str | None) -> Sequence[Message]:
    """As `batch_with_cause`; a transaction names its producer group itself. What is no Message stays, to be refused."""
    if (traceparent is None and _current.get() is None) or any(not isinstance(m, Message) for m in messages):
        return messages
    return [_told(m, with_cause(m.properties, None, traceparent, names_group=False)) for m in messages]


def _told(message: Message, properties: Mapping[str, str]) -> Message:
    return message if properties is message.properties else msgspec.structs.replace(message, properties=properties)


def trace_of(message: ReceivedMessage) -> tuple[str, str] | None:
    """Trace id and flags of the message's `traceparent`, None when it has none that is valid."""
    found = parse_traceparent(message.properties.get(TRACEPARENT, ""))
    return (found[0], found[2]) if found else None


def parse_traceparent(text: str) -> tuple[str, str, str] | None:
    """Trace id, span id and flags in hexadecimal, None when `text` is no valid traceparent."""
    found = _TRACEPARENT.fullmatch(text)
    return (found[1], found[2], found[3]) if found else None


def _topic_of(message: ReceivedMessage) -> str:
    return message.topic if message.origin is None else message.origin.topic


def _digest(purpose: str, text: str) -> str:
    return hashlib.sha256(f"keelmq {purpose}\n{text}".encode()).hexdigest()
