"""Causation: every message that a handler sends names the message that the handler was processing.

The consumer sets a context variable around each handler call, so tasks started by the handler inherit the cause. All
properties are derived from the causing message, never from randomness or a clock: a handler that runs again for the
same message produces the same bytes, as repeating a transaction under its id requires.
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
"""Property: id of the message being processed; comma-separated ids when one handler call processes several messages."""
CAUSATION_TOPIC: Final = "causation_topic"
"""Property: topic of the causing message, because ids are unique only within a topic. It holds one topic for all ids,
or one per id, comma-separated. For a redelivered message it is the original topic."""
TRACEPARENT: Final = "traceparent"
"""Property: the W3C Trace Context, level 1."""
PRODUCER_GROUP: Final = "producer_group"
"""Property: name of the sender, which is `Producer(group=…)` or else the consumer group of the handler. Transactions do
not carry it, since they name their producer group themselves."""

CAUSES_MAX: Final = 1_000
"""Maximum number of messages in one handler call; beyond it, messages sent by the handler carry no cause. Long ids
reach the limit of a message's properties earlier: then only the causes are left out."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Cause:
    """Holds the messages that `group` is processing, and derives the properties of messages sent meanwhile."""

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
    """Return the cause of the current context; None outside of handlers."""
    return _current.get()


@contextmanager
def processing(messages: Sequence[ReceivedMessage], group: str) -> Iterator[None]:
    """Record `messages` as the cause of messages sent in the block; 0 or more than CAUSES_MAX mean no cause."""
    token = _current.set(Cause(messages, group) if 0 < len(messages) <= CAUSES_MAX else None)
    try:
        yield
    finally:
        _current.reset(token)


def begin_processing(messages: Sequence[ReceivedMessage], group: str) -> None:
    """Set the cause as `processing` does, for a loop that ends a message by asking for the next; no messages end it."""
    _current.set(Cause(messages, group) if messages else None)


def end_processing(messages: Sequence[ReceivedMessage]) -> None:
    """End what `begin_processing` began with this very list, if it is still the cause in this context."""
    cause = _current.get()
    if cause is not None and cause.messages is messages:
        _current.set(None)


def with_cause(
    properties: Mapping[str, str], group: str | None, traceparent: str | None = None, *, names_group: bool = True
) -> Mapping[str, str]:
    """Return `properties` of an outgoing message, extended by its cause, its sender and its trace.

    `group` is the producer's own group. Existing properties are kept. If the result would exceed the size limit, the
    causes are left out, and if that is not sufficient, nothing is added. `traceparent` replaces the derived trace
    context.
    """
    cause = _current.get()
    added = dict(cause.properties) if cause is not None else {}
    sender = group or (cause.group if cause is not None else None)
    if names_group and sender is not None:
        added[PRODUCER_GROUP] = sender
    if traceparent is not None:
        added[TRACEPARENT] = traceparent
    if CAUSATION_ID in properties:
        added.pop(CAUSATION_TOPIC, None)  # this topic belongs to the derived id, not to the application's
    if not added:
        return properties
    for left_out in ((), (CAUSATION_ID, CAUSATION_TOPIC)):
        whole = {name: value for name, value in added.items() if name not in left_out} | dict(properties)
        try:
            if sum(len(name.encode()) + len(value.encode()) for name, value in whole.items()) <= PROPERTIES_BYTES_MAX:
                return whole
        except (AttributeError, UnicodeEncodeError):  # the later check of the properties reports the error
            break
    return properties


def batch_with_cause(
    messages: Sequence[bytes | Message], group: str | None, traceparent: str | None
) -> Sequence[bytes | Message]:
    """Return `messages` with the properties that `with_cause` adds; the same objects where it adds none."""
    if group is None and traceparent is None and _current.get() is None:
        return messages
    alone = with_cause({}, group, traceparent)  # the same for all messages without properties of their own
    return [
        Message(body=message, properties=alone)
        if isinstance(message, bytes)
        else _told(message, with_cause(message.properties, group, traceparent) if message.properties else alone)
        for message in messages
    ]


def transaction_with_cause(messages: Sequence[Message], traceparent: str | None) -> Sequence[Message]:
    """Extend messages as `batch_with_cause` does, without the sender: a transaction names its producer group itself.

    If an element is not a Message, `messages` is returned unchanged, to be refused later.
    """
    if (traceparent is None and _current.get() is None) or any(not isinstance(m, Message) for m in messages):
        return messages
    return [_told(m, with_cause(m.properties, None, traceparent, names_group=False)) for m in messages]


def _told(message: Message, properties: Mapping[str, str]) -> Message:
    return message if properties is message.properties else msgspec.structs.replace(message, properties=properties)


def trace_of(message: ReceivedMessage) -> tuple[str, str] | None:
    """Return trace id and flags of the message's `traceparent`; None without a valid one."""
    found = parse_traceparent(message.properties.get(TRACEPARENT, ""))
    return (found[0], found[2]) if found else None


def parse_traceparent(text: str) -> tuple[str, str, str] | None:
    """Return trace id, span id and flags in hexadecimal; None when `text` is not a valid traceparent."""
    found = _TRACEPARENT.fullmatch(text)
    return (found[1], found[2], found[3]) if found else None


def _topic_of(message: ReceivedMessage) -> str:
    return message.topic if message.origin is None else message.origin.topic


def _digest(purpose: str, text: str) -> str:
    return hashlib.sha256(f"keelmq {purpose}\n{text}".encode()).hexdigest()
