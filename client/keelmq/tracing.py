"""OpenTelemetry spans with the attributes of its messaging conventions, if the application uses OpenTelemetry.

An application uses it once it has imported `opentelemetry.trace`; the SDK neither requires nor loads it.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from keelmq.causation import TRACEPARENT, parse_traceparent
from keelmq.message import BatchResult, ReceivedMessage, SendResult

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.trace import SpanContext as Context

SYSTEM: Final = "keelmq"
_MODULE: Final = "opentelemetry.trace"


def in_use() -> bool:
    return _MODULE in sys.modules


@contextmanager
def process_span(messages: Sequence[ReceivedMessage], group: str, client_id: str) -> Iterator[None]:
    """Run the block in a CONSUMER span for a handler call.

    With one message the span is a child of the message's span; with several it is linked to their spans.
    """
    if not in_use() or not messages:
        yield
        return
    from opentelemetry import trace

    first = messages[0]
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.topic,
        "messaging.destination.partition.id": str(first.queue),
        "messaging.consumer.group.name": group,
        "messaging.client.id": client_id,
    }
    contexts = [_context_of(message.properties) for message in messages]
    parent, links = None, []
    if len(messages) == 1:
        attributes["messaging.message.id"] = first.message_id
        attributes["messaging.message.body.size"] = len(first.body)
        if contexts[0] is not None:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]))
    else:
        attributes["messaging.batch.message_count"] = len(messages)
        links = [trace.Link(context) for context in contexts if context is not None]
    with _tracer().start_as_current_span(
        f"process {first.topic}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ):
        yield


def start_send(topic: str, client_id: str, count: int, body_bytes: int | None = None) -> "Span | None":
    """Start a PRODUCER span, which the caller ends by `end_send`; None if OpenTelemetry is not in use."""
    if not in_use():
        return None
    from opentelemetry import trace

    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
    }
    if count != 1:
        attributes["messaging.batch.message_count"] = count
    if body_bytes is not None:
        attributes["messaging.message.body.size"] = body_bytes
    return _tracer().start_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes)


def end_with(span: "Span | None", future: asyncio.Future[Any]) -> None:
    """End `span` when `future` has the result or the error of the send."""

    def end(done: asyncio.Future[Any]) -> None:
        assert span is not None
        if done.cancelled() or (error := done.exception()) is not None:
            end_send(span, asyncio.CancelledError("cancelled") if done.cancelled() else error)
        else:
            end_send(span, None, done.result())

    if span is not None:
        future.add_done_callback(end)


def end_send(span: "Span | None", error: BaseException | None, result: SendResult | BatchResult | None = None) -> None:
    """End `span` with the broker's answer or the error of the send."""
    if span is None:
        return
    from opentelemetry import trace

    if result is not None:
        span.set_attribute("messaging.destination.partition.id", str(result.queue))
    if isinstance(result, SendResult):
        span.set_attribute("messaging.message.id", result.message_id)
    if error is not None:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
    span.end()


def traceparent_of(span: "Span | None") -> str | None:
    """Return `span`'s context as a W3C traceparent; None without a span, or when its context is invalid."""
    context = span.get_span_context() if span is not None else None
    if context is None or not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def trace_header() -> str:
    """Return the header line by which a request belongs to the trace of the current span, ending in CR LF; an empty
    text if OpenTelemetry is not in use, or without a span.
    """
    if not in_use():
        return ""
    from opentelemetry import trace

    traceparent = traceparent_of(trace.get_current_span())
    return "" if traceparent is None else f"{TRACEPARENT}: {traceparent}\r\n"


def _tracer() -> "Tracer":
    from opentelemetry import trace

    return trace.get_tracer("keelmq")


def _context_of(properties: Mapping[str, str]) -> "Context | None":
    from opentelemetry import trace

    found = parse_traceparent(properties.get(TRACEPARENT, ""))
    if found is None:
        return None
    trace_id, span_id, flags = found
    return trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
    )
