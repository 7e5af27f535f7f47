"""SDK and broker draw the same lines: both take a message at a limit, and both refuse one beyond it with one code."""

import base64
import io
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from crc32c import crc32c

from keelmq import limits as sdk
from keelmq.consuming.consumer import Consumer
from keelmq.errors import KeelMQError
from keelmq.message import Message
from keelmq.producing.producer import Producer
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from store.limits import CHECK_AFTER_MAX_MS, QUEUES_MAX
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Appender,
    Request,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
)
from tests.unit.cluster.conftest import Node

MSGPACK = "application/msgpack"
MIB = 1024 * 1024
pack = msgspec.msgpack.encode


class Sent(NamedTuple):
    """The messages of one request. Half transactions may take the queue or topic of each message from itself."""

    topic: str = "t"
    messages: tuple[Message, ...] = (Message(body=b"x"),)
    queue: int | None = None
    group: str = "g"
    transaction_id: str | None = None
    check_after_ms: int | None = None


class Limit(NamedTuple):
    what: str
    at: Sent
    beyond: Sent
    code: str
    in_json: bool = True
    """True if messages in JSON have the limit, too: the broker makes their block, and spells defaults out."""


def one(**fields: Any) -> Sent:
    return Sent(messages=(Message(**{"body": b"x", **fields}),))


def block_of(size_bytes: int) -> Sent:
    """Return messages whose block has exactly `size_bytes` bytes: an array, and per message two headers of 1 and 5
    bytes.
    """
    first = 4 * MIB
    return Sent(messages=(Message(body=bytes(first)), Message(body=bytes(size_bytes - first - 13))))


KEYED = Message(body=b"x", keys=["k"] * 32)
LIMITS = [
    Limit("topic alphabet", Sent("%|aZ09_-"), Sent("a.b"), "invalid_topic"),
    Limit("topic alphabet, ASCII", Sent("a"), Sent("é"), "invalid_topic"),
    Limit("topic alphabet, end of line", Sent("a"), Sent("a\n"), "invalid_topic"),
    Limit("topic length", Sent("t" * 127), Sent("t" * 128), "invalid_topic"),
    Limit("body at least a byte", one(body=b"x"), one(body=b""), "empty_body"),
    Limit("body at most 4 MiB", one(body=bytes(4 * MIB)), one(body=bytes(4 * MIB + 1)), "message_too_large"),
    Limit(
        "properties",
        one(properties={"name": "v" * (32_767 - 4)}),
        one(properties={"name": "v" * (32_767 - 3)}),
        "too_many_properties",
    ),
    Limit(
        "properties in bytes of UTF-8",
        one(properties={"n": "é" * 16_383}),
        one(properties={"n": "é" * 16_383, "m": ""}),
        "too_many_properties",
    ),
    Limit("tag", one(tag="t" * 255), one(tag="t" * 256), "invalid_request"),
    Limit("tag in bytes of UTF-8", one(tag="é" * 127), one(tag="é" * 128), "invalid_request"),
    Limit("number of keys", one(keys=["k"] * 32), one(keys=["k"] * 33), "invalid_request"),
    Limit("key", one(keys=["k" * 255]), one(keys=["k" * 256]), "invalid_request"),
    Limit("sharding key", one(sharding_key="k" * 255), one(sharding_key="k" * 256), "invalid_request"),
    Limit("message id", one(message_id="i" * 128), one(message_id="i" * 129), "invalid_request"),
    Limit("message id alphabet", one(message_id="aZ09_.:-"), one(message_id="a/b"), "invalid_request"),
    Limit("queue", Sent(queue=QUEUES_MAX - 1), Sent(queue=QUEUES_MAX), "invalid_request"),
    Limit(
        "messages of a batch",
        Sent(messages=(Message(body=b"x"),) * 10_000),
        Sent(messages=(Message(body=b"x"),) * 10_001),
        "batch_too_large",
    ),
    Limit(
        "keys of a batch",
        Sent(messages=(*(KEYED,) * 199, Message(body=b"x", keys=["k"] * 31, message_id="m"))),
        Sent(messages=(*(KEYED,) * 199, Message(body=b"x", keys=["k"] * 32, message_id="m"))),
        "batch_too_large",
    ),
    Limit("bytes of a batch", block_of(8 * MIB), block_of(8 * MIB + 1), "batch_too_large", in_json=False),
    *(Limit(f"system topic {name}", Sent("t"), Sent(name), "system_topic") for name in sorted(sdk.SYSTEM_TOPICS)),
]
HALVES = [
    Limit("group alphabet", Sent(group="%|aZ09_-"), Sent(group="a b"), "invalid_group"),
    Limit("group length", Sent(group="g" * 255), Sent(group="g" * 256), "invalid_group"),
    Limit("group, empty", Sent(group="g"), Sent(group=""), "invalid_group"),
    Limit("transaction id", Sent(transaction_id="i" * 64), Sent(transaction_id="i" * 65), "invalid_request"),
    Limit("transaction id alphabet", Sent(transaction_id="aZ09_-"), Sent(transaction_id="a:b"), "invalid_request"),
    Limit(
        "first check",
        Sent(check_after_ms=CHECK_AFTER_MAX_MS),
        Sent(check_after_ms=CHECK_AFTER_MAX_MS + 1),
        "invalid_request",
    ),
    Limit(
        "messages of all batches",
        Sent(messages=tuple(Message(body=b"x", topic="tu"[n % 2]) for n in range(10_000))),
        Sent(messages=tuple(Message(body=b"x", topic="tu"[n % 2]) for n in range(10_001))),
        "batch_too_large",
    ),
    Limit(
        "keys of all batches",
        Sent(messages=tuple(Message(body=b"x", keys=["k"] * 10, topic="tu"[n % 2]) for n in range(640))),
        Sent(messages=tuple(Message(body=b"x", keys=["k"] * 10, topic="tu"[n % 2]) for n in range(641))),
        "batch_too_large",
    ),
    Limit(
        "batches of a request",
        Sent(messages=tuple(Message(body=b"x", queue=n) for n in range(1_000))),
        Sent(messages=tuple(Message(body=b"x", queue=n) for n in range(1_001))),
        "invalid_request",
    ),
    Limit(
        "bytes of all batches",
        Sent(messages=tuple(Message(body=bytes(4 * MIB - 200), queue=n) for n in range(4))),
        Sent(messages=tuple(Message(body=bytes(4 * MIB), queue=n) for n in range(4))),
        "request_too_large",
    ),
]


def by_name(limits: list[Limit]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("limit", limits, ids=[limit.what for limit in limits])


# --- the SDK ---------------------------------------------------------------------------------------------------------


async def code_of(call: Awaitable[object]) -> str | None:
    try:
        await call
    except KeelMQError as error:
        return error.code
    return None


async def sdk_produces(sent: Sent) -> str | None:
    transport = ScriptedTransport(Appender(queues=QUEUES_MAX))
    async with Producer(connection=Connection(SERVERS, transport=transport)) as producer:
        if len(sent.messages) == 1:
            (message,) = sent.messages
            call = producer.send(
                sent.topic,
                message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
                sharding_key=message.sharding_key,
                message_id=message.message_id,
                queue=sent.queue,
            )
            code = await code_of(call)
        else:
            code = await code_of(producer.send_batch(sent.topic, sent.messages, queue=sent.queue))
    assert (code is None) == any(request.method == "POST" for request in transport.requests)
    return code


async def sdk_prepares(sent: Sent) -> str | None:
    def script(request: Request) -> HttpResponse:
        if request.target == "/v1/transactions":
            answer = {"transaction_id": request.msgpack()["transaction_id"], "state": "prepared", "receipt": RECEIPT}
            return msgpack_answer(answer, 201)
        if request.method == "GET":
            return json_answer({"topic": "t", "queues": QUEUES_MAX, "type": "any", "retention_ms": 1, "checks": []})
        return json_answer({"transaction_id": request.target.split("/")[3], "state": "committed"})

    async def nothing(transaction: Transaction) -> None: ...

    async def never(transaction: Transaction) -> Decision:
        raise AssertionError("no check was expected")

    transport = ScriptedTransport(script)
    messages = [_in_topic(message, sent) for message in sent.messages]

    async def execute() -> None:
        connection = Connection(SERVERS, transport=transport)
        producer = TransactionProducer(SERVERS, sent.group, check=never, connection=connection)
        await producer.start()
        try:
            await producer.execute(
                messages, nothing, transaction_id=sent.transaction_id, check_after_ms=sent.check_after_ms
            )
        finally:
            await producer.close()

    code = await code_of(execute())
    assert (code is None) == any(request.target == "/v1/transactions" for request in transport.requests)
    return code


def _in_topic(message: Message, sent: Sent) -> Message:
    queue = message.queue if message.queue is not None else sent.queue
    return msgspec.structs.replace(message, topic=message.topic or sent.topic, queue=queue)


# --- the broker ------------------------------------------------------------------------------------------------------


async def broker_answers(node: Node, path: str, body: bytes, media: str) -> str | None:
    async with node.session.post(path, data=io.BytesIO(body), headers={"Content-Type": media}) as response:
        content = await response.read()
        if response.status < 300:
            return None
        code: str = msgspec.json.decode(content)["code"]
        return code


def entry(message: Message) -> list[Any]:
    return [
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.sharding_key,
        message.message_id,
        0,
    ][: 7 if any((message.tag, message.keys, message.properties, message.sharding_key, message.message_id)) else 1]


def batch(messages: tuple[Message, ...], batch_id: str, queue: int | None) -> dict[str, Any]:
    block = pack([entry(message) for message in messages])
    return {"queue": queue, "batch_id": batch_id, "crc32c": crc32c(block), "block": block}


def json_message(message: Message, queue: int | None) -> dict[str, Any]:
    fields = {
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
        "sharding_key": message.sharding_key,
        "message_id": message.message_id,
        "queue": queue,
    }
    body = base64.b64encode(message.body).decode()
    return {"body": body, "encoding": "base64", **{name: value for name, value in fields.items() if value is not None}}


async def broker_takes_json(node: Node, sent: Sent) -> str | None:
    body = {"messages": [json_message(message, sent.queue) for message in sent.messages]}
    path = f"/v1/topics/{quote(sent.topic, safe='')}/messages"
    return await broker_answers(node, path, msgspec.json.encode(body), "application/json")


async def broker_takes_blocks(node: Node, sent: Sent) -> str | None:
    body = {"batches": [batch(sent.messages, f"b-{id(sent):x}", sent.queue)]}
    return await broker_answers(node, f"/v1/topics/{quote(sent.topic, safe='')}/messages", pack(body), MSGPACK)


async def broker_takes_halves(node: Node, sent: Sent) -> str | None:
    by_place: dict[tuple[str, int | None], list[Message]] = {}
    for message in (_in_topic(each, sent) for each in sent.messages):
        by_place.setdefault((message.topic or "", message.queue), []).append(message)
    batches = [
        {**batch(tuple(messages), f"b-{ordinal}", queue), "topic": topic}
        for ordinal, ((topic, queue), messages) in enumerate(by_place.items())
    ]
    half: dict[str, Any] = {"producer_group": sent.group, "batches": batches}
    for name in ("transaction_id", "check_after_ms"):
        if getattr(sent, name) is not None:
            half[name] = getattr(sent, name)
    return await broker_answers(node, "/v1/transactions", pack(half), MSGPACK)


Side = Callable[[Node, Sent], Awaitable[str | None]]


@pytest.fixture
async def topics(node: Node) -> Node:
    for name in ("t", "u", "a", "%|aZ09_-", "t" * 127):
        assert (await node.call("PUT", f"/v1/topics/{quote(name, safe='')}", {"queues": QUEUES_MAX})).status == 201
    return node


@by_name(LIMITS)
async def test_both_sides_draw_the_line_of_a_message_at_the_same_place(topics: Node, limit: Limit) -> None:
    assert await sdk_produces(limit.at) is None
    assert await sdk_produces(limit.beyond) == limit.code
    sides: list[Side] = [broker_takes_blocks, broker_takes_halves, broker_takes_json]
    for side in sides if limit.in_json else sides[:2]:
        assert (side.__name__, await side(topics, limit.at)) == (side.__name__, None)
        assert (side.__name__, await side(topics, limit.beyond)) == (side.__name__, limit.code)


@by_name(HALVES)
async def test_both_sides_draw_the_line_of_a_half_transaction_at_the_same_place(topics: Node, limit: Limit) -> None:
    assert await sdk_prepares(limit.at) is None
    assert await sdk_prepares(limit.beyond) == limit.code
    assert await broker_takes_halves(topics, limit.at) is None
    assert await broker_takes_halves(topics, limit.beyond) == limit.code


@pytest.mark.parametrize(("at", "beyond"), [("g" * 255, "g" * 256), ("%|aZ09_-", "a.b")])
async def test_both_sides_draw_the_line_of_a_consumer_group_at_the_same_place(
    topics: Node, at: str, beyond: str
) -> None:
    Consumer(SERVERS, at, "t")
    with pytest.raises(KeelMQError) as caught:
        Consumer(SERVERS, beyond, "t")
    assert caught.value.code == "invalid_group"
    join = {"topics": ["t"]}
    assert (await topics.call("POST", f"/v1/groups/{quote(at, safe='')}/members", join)).status == 201
    refused = await topics.call("POST", f"/v1/groups/{quote(beyond, safe='')}/members", join)
    assert (refused.status, refused.body["code"]) == (400, "invalid_group")


@pytest.mark.parametrize("field", ["tag", "sharding_key", "message_id", "keys", "properties"])
async def test_text_that_utf8_cannot_carry_is_an_invalid_request(field: str) -> None:
    value: Any = {"keys": ["\ud800"], "properties": {"a": "\ud800"}}.get(field, "\ud800")
    assert await sdk_produces(one(**{field: value})) == "invalid_request"
