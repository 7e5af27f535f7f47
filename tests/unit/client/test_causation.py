"""Messages sent by a handler name the message that it was processing: causation, trace, sender."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from keelmq import tracing, wire
from keelmq.blocks.compression import unpack
from keelmq.causation import CAUSES_MAX, current_cause, processing, with_cause
from keelmq.consuming.consumer import Consumer
from keelmq.errors import InvalidRequest
from keelmq.limits import PROPERTIES_BYTES_MAX
from keelmq.message import Message, Origin, ReceivedMessage
from keelmq.producing.producer import Producer
from keelmq.transactions.check_loop import CheckLoop
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.decision_teller import DecisionTeller
from keelmq.transactions.transaction import TransactionProducer
from keelmq.transport.connection import Connection
from tests.unit.client.scripted import RECEIPT, SERVERS, Appender, Request, ScriptedTransport, msgpack_answer
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import consumer as loop_of
from tests.unit.client.virtual_time import run_in_virtual_time

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def received(message_id: str = "m-1", topic: str = "orders", **fields: Any) -> ReceivedMessage:
    return ReceivedMessage(topic=topic, queue=0, offset=7, message_id=message_id, body=b"x", **fields)


def properties_sent(transport: ScriptedTransport) -> list[dict[str, str]]:
    """Return the properties of every message that was sent, in order."""
    sent: list[dict[str, str]] = []
    for request in transport.requests:
        if request.method != "POST" or not request.body:
            continue
        for batch in request.msgpack()["batches"]:
            size = batch.get("uncompressed_bytes")
            block = batch["block"] if size is None else unpack(batch["block"], size)
            sent += [message[3] if len(message) > 3 else {} for message in msgspec.msgpack.decode(block)]
    return sent


def producer(**options: Any) -> tuple[Producer, ScriptedTransport]:
    transport = ScriptedTransport(Appender())
    return Producer(connection=Connection(SERVERS, transport=transport, rng=lambda: 0.0), **options), transport


async def test_nothing_is_added_outside_of_a_handler() -> None:
    made, transport = producer()
    async with made:
        await made.send("t", b"1")
        await made.send_batch("t", [b"2", Message(body=b"3", properties={"a": "b"})])
    assert properties_sent(transport) == [{}, {}, {"a": "b"}]
    assert current_cause() is None


async def test_all_that_a_handler_sends_names_the_message_its_group_and_its_trace() -> None:
    made, transport = producer()
    cause = received(properties={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    async with made:
        with processing([cause], "shipping"):
            await made.send("t", b"1", properties={"own": "1"})
            made.send_oneway("t", b"2")
            await asyncio.create_task(made.send_batch("t", [b"3", Message(body=b"4")]))
    sent = properties_sent(transport)
    assert len(sent) == 4
    assert sent[0].pop("own") == "1"
    for properties in sent:
        version, trace_id, span_id, flags = properties.pop("traceparent").split("-")
        assert (version, trace_id, flags) == ("00", TRACE, "01")
        assert span_id != "00f067aa0ba902b7"
        assert properties == {"causation_id": "m-1", "causation_topic": "orders", "producer_group": "shipping"}


async def test_a_producer_names_its_group_also_outside_of_handlers() -> None:
    made, transport = producer(group="checkout")
    async with made:
        await made.send("t", b"1")
        with processing([received()], "shipping"):
            await made.send("t", b"2")
    assert [properties["producer_group"] for properties in properties_sent(transport)] == ["checkout", "checkout"]


async def test_a_group_has_a_name_that_groups_may_have() -> None:
    with pytest.raises(InvalidRequest):
        producer(group="not a group")


def test_the_properties_of_the_application_win() -> None:
    own = {"causation_id": "other", "traceparent": "mine", "producer_group": "me"}
    with processing([received()], "g"):
        assert with_cause(own, None) == own


def test_a_message_is_not_made_too_large_by_what_would_be_added() -> None:
    own = {"p": "x" * (PROPERTIES_BYTES_MAX - 1)}
    with processing([received()], "g"):
        assert with_cause(own, None) == own


def test_the_same_message_gives_the_same_properties_and_another_one_others() -> None:
    def told(message: ReceivedMessage, group: str) -> Mapping[str, str]:
        with processing([message], group):
            return with_cause({}, None)

    assert told(received(), "g") == told(received(), "g")
    traces = [
        told(m, g)["traceparent"].split("-") for m, g in [(received(), "g"), (received(), "h"), (received("n"), "g")]
    ]
    assert traces[0][1] == traces[1][1] != traces[2][1]  # one trace for what the message leads to
    assert len({span_id for _, _, span_id, _ in traces}) == 3


def test_a_message_that_was_given_back_is_known_by_where_it_was_first() -> None:
    again = received(topic="%RETRY%g", attempt=2, origin=Origin("orders", 3, 9))
    with processing([again], "g"):
        assert with_cause({}, None)["causation_topic"] == "orders"


@pytest.mark.parametrize(
    ("messages", "ids", "topics"),
    [
        ([received("a"), received("b")], "a,b", "orders"),
        ([received("a"), received("b", topic="other")], "a,b", "orders,other"),
        ([received(str(n)) for n in range(CAUSES_MAX + 1)], None, None),
        ([], None, None),
    ],
    ids=["two", "two topics", "too many", "none"],
)
def test_several_messages_in_one_call_are_all_causes(
    messages: Sequence[ReceivedMessage], ids: str | None, topics: str | None
) -> None:
    with processing(messages, "g"):
        told = with_cause({}, None)
    assert (told.get("causation_id"), told.get("causation_topic")) == (ids, topics)


def test_a_batch_of_a_hundred_messages_is_the_cause_and_causes_that_do_not_fit_are_left_out_alone() -> None:
    hundred = [received(f"{n:032x}-0") for n in range(100)]
    with processing(hundred, "g"):
        assert with_cause({}, None)["causation_id"].split(",") == [message.message_id for message in hundred]
    long = [received("x" * 255 + str(n)) for n in range(200)]
    with processing(long, "g"):
        told = with_cause({"own": "1"}, None)
        assert told.keys() == {"own", "producer_group", "traceparent"}
        full = {"own": "x" * (PROPERTIES_BYTES_MAX - 3)}
        assert with_cause(full, None) == full


@pytest.mark.parametrize(
    "broken",
    ["", "00", f"ff-{TRACE}-00f067aa0ba902b7-01", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01"],
)
def test_a_broken_traceparent_is_not_continued(broken: str) -> None:
    with processing([received(properties={"traceparent": broken})], "g"):
        trace_id = with_cause({}, None)["traceparent"].split("-")[1]
    assert trace_id not in (TRACE, "0" * 32)


class HalfBroker:
    def __call__(self, request: Request) -> Any:
        half = request.msgpack() if request.target == "/v1/transactions" else {"transaction_id": "t"}
        answer = {"transaction_id": half["transaction_id"], "state": "committed", "duplicate": False}
        return msgpack_answer({**answer, "receipt": RECEIPT}, 201)


async def execute_in_handler(transaction_id: str | None) -> tuple[dict[str, str], bytes]:
    async def check(transaction: Transaction) -> Decision:
        raise AssertionError("no check was expected")

    async def local(transaction: Transaction) -> None:
        raise AssertionError("it is committed already")

    transport = ScriptedTransport(HalfBroker())
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    transactions = TransactionProducer(SERVERS, "shop", check=check, connection=connection)
    transactions._started = True  # without its check loop, which would ask this broker for checks
    with processing([received()], "g"):
        await transactions.execute(Message(topic="t", body=b"1"), local, transaction_id=transaction_id)
    return properties_sent(transport)[0], transport.requests[0].msgpack()["batches"][0]["block"]


async def test_a_transaction_in_a_handler_tells_its_cause_and_leaves_the_group_to_itself() -> None:
    properties, _ = await execute_in_handler(None)
    assert properties["causation_id"] == "m-1"
    assert "producer_group" not in properties


async def test_a_transaction_that_is_repeated_under_its_id_is_the_same_bytes() -> None:
    assert (await execute_in_handler("t-1"))[1] == (await execute_in_handler("t-1"))[1]


@pytest.mark.parametrize("finishes", [True, False])
def test_a_loop_that_was_left_causes_nothing_any_more(finishes: bool) -> None:
    async def main() -> None:
        group = ScriptedGroup(queues=1)
        group.append(0, b"first", b"second")
        async with loop_of(group) as member:
            async for message in member:
                cause = current_cause()
                assert cause is not None
                assert list(cause.messages) == [message]
                if finishes:
                    member.finish()
                    assert current_cause() is None
                break
        assert current_cause() is None
        assert group.committed == {0: 1 if finishes else 0}

    run_in_virtual_time(main())


def test_closing_a_loop_leaves_the_cause_of_others_alone() -> None:
    async def main() -> None:
        member = loop_of(ScriptedGroup(queues=1))
        await member.start()
        with processing([received()], "others"):
            cause = current_cause()
            member.finish()
            await member.close()
            assert current_cause() is cause is not None

    run_in_virtual_time(main())


async def test_a_check_handler_is_in_nobodys_name() -> None:
    """The producer may have been started while a message was processed: its checks are about other things."""
    seen: list[object] = []

    async def handler(transaction: Transaction) -> Decision:
        seen.append(current_cause())
        return Decision.COMMIT

    connection = Connection(SERVERS, transport=ScriptedTransport(HalfBroker()), rng=lambda: 0.0)
    with processing([received()], "g"):
        teller = DecisionTeller(connection, "g", "c")
        loop = CheckLoop(
            connection, "g", "c", handler, teller, concurrency=1, handler_timeout_ms=60_000, answer_timeout_ms=1
        )
        check = msgspec.convert(
            {"transaction_id": "t", "producer_group": "g", "check_times": 1, "prepared_at_ms": 1, "messages": []},
            type=wire.Check,
        )
        assert await loop._decide(check) is Decision.COMMIT
    assert seen == [None]


class Spans:
    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def finished(self) -> Any:
        return self._exporter.get_finished_spans()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Collect the spans of an application with OpenTelemetry."""
    made = Spans()
    monkeypatch.setattr(tracing, "_tracer", lambda: made.provider.get_tracer("keelmq"))
    yield made
    made.provider.shutdown()


async def test_with_opentelemetry_sends_and_handler_calls_are_spans_of_one_trace(spans: Spans) -> None:
    made, transport = producer(client_id="c1")
    incoming = received(properties={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})

    async def handle(message: ReceivedMessage) -> None:
        await made.send("t", b"12345")

    consumer = Consumer(SERVERS, "shipping", "orders", handle, client_id="c2")
    async with made:
        await consumer._handlers.handle([incoming])
    send, process = spans.finished
    assert (send.name, send.kind.name, process.name, process.kind.name) == (
        "send t",
        "PRODUCER",
        "process orders",
        "CONSUMER",
    )
    assert f"{process.parent.trace_id:032x}" == TRACE
    assert f"{process.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert send.parent.span_id == process.context.span_id
    (sent,) = properties_sent(transport)
    assert sent["traceparent"] == f"00-{TRACE}-{send.context.span_id:016x}-01"
    assert dict(process.attributes) == {
        "messaging.system": "keelmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "shipping",
        "messaging.client.id": "c2",
        "messaging.message.id": "m-1",
        "messaging.message.body.size": 1,
    }
    assert send.attributes["messaging.message.id"].endswith("-0")
    assert send.attributes["messaging.message.body.size"] == 5


async def test_requests_within_a_span_name_its_trace(spans: Spans) -> None:
    made, transport = producer()
    async with made:
        await made.send("t", b"1")
        with spans.provider.get_tracer("app").start_as_current_span("checkout") as span:
            await made.send("t", b"2")
    before, within = (request.headers for request in transport.requests)
    context = span.get_span_context()
    assert "traceparent" not in before
    assert (
        f"traceparent: 00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}\r\n" in within
    )


async def test_a_send_that_fails_is_a_span_with_the_error(spans: Spans) -> None:
    made, _ = producer()
    async with made:
        with pytest.raises(InvalidRequest):
            await made.send_batch("t", [b"1", Message(body=b"2", keys=["k" * 300])])
    (send,) = spans.finished
    assert send.attributes["error.type"] == "InvalidRequest"


async def test_a_repeated_transaction_id_carries_no_span_of_this_process(spans: Spans) -> None:
    first, second = await execute_in_handler("t-1"), await execute_in_handler("t-1")
    assert first == second
    assert (await execute_in_handler(None))[0]["traceparent"] != first[0]["traceparent"]


def test_the_sdk_does_not_load_opentelemetry_by_itself() -> None:
    script = "import sys, keelmq; keelmq.Producer, keelmq.Consumer; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
