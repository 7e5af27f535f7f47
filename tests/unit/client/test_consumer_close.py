"""`Consumer.close` ends, whatever its tasks do at that moment."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from keelmq.blocks.batch import encode_messages
from keelmq.consuming.consumer import Consumer
from keelmq.message import Message, ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, msgpack_answer

LIMIT_S = 60
LOOP_TURNS = 100
"""Number of loop turns that is more than enough for all ready tasks to end."""


def membership(generation: int, queues: list[int]) -> HttpResponse:
    assignment = [{"topic": "t", "queue": queue} for queue in queues]
    body = {"member_id": "m", "generation": generation, "assignment": assignment, "session_timeout_ms": 1_000}
    return json_answer(body, 201)


class Broker:
    """A broker with two queues, both given to the member that joins. The first heartbeat takes queue 0 from the
    member.
    """

    def __init__(self) -> None:
        block = encode_messages([Message(body=b"m")])
        batch: dict[str, Any] = {"base_offset": 0, "count": 1, "batch_id": "b", "stored_at_ms": 1, "skip": []}
        batch |= {"crc32c": block.crc32c, "block": block.data}
        self._messages = [msgpack_answer({"batches": [batch], "next_offset": 1, "max_offset": 1})]
        self.left = False

    def __call__(self, request: Request) -> HttpResponse | Awaitable[HttpResponse]:
        match request.method, request.target.partition("?")[0].split("/")[2:]:
            case "GET", ["cluster"]:
                return json_answer({"leader_url": "http://n1:1"})
            case "GET", ["topics", "t"]:
                return json_answer({"topic": "t", "queues": 2, "type": "any", "retention_ms": 1})
            case "GET", ["topics", "t", "queues", queue, "messages"]:
                if queue == "0" and self._messages:
                    return self._messages.pop()
                return asyncio.get_running_loop().create_future()  # a long poll
            case "POST", ["groups", "g", "members"]:
                return membership(1, [0, 1])
            case "POST", ["groups", "g", "members", _, "heartbeat"]:
                return membership(2, [1])
            case "DELETE", ["groups", "g", "members", _]:
                self.left = True
                return HttpResponse(204, {}, b"")
            case "GET", ["groups", "g"]:
                return json_answer({"generation": 1, "members": [], "offsets": []})
            case "GET", ["groups", "g", "offsets"]:
                return json_answer({"offsets": [{"topic": "t", "queue": queue, "offset": 0} for queue in (0, 1)]})
        return json_answer({"offsets": []})


async def test_a_queue_that_is_given_back_while_the_consumer_closes_does_not_keep_it_open() -> None:
    """The reader that ends last wakes the task that keeps the session in the moment in which it is cancelled."""
    broker, handling, may_end = Broker(), asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handling.set()
        await may_end.wait()

    transport = ScriptedTransport(broker, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    consumer = Consumer(SERVERS, "g", "t", handle, session_timeout_ms=1_000, connection=connection)
    async with asyncio.timeout(LIMIT_S):
        await consumer.start()
        await handling.wait()
        while consumer.assignment != [("t", 1)]:  # until the heartbeat has taken queue 0 away
            await asyncio.sleep(0)
        closing = asyncio.create_task(consumer.close())
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        may_end.set()
        await closing
    assert broker.left


async def test_a_consumer_that_is_closed_while_it_joins_leaves_and_ends() -> None:
    """Found by chaos (seed 179449): the consumer kept its session for ever, and nobody read the queues it was given."""
    broker, joining, may_join = Broker(), asyncio.Event(), asyncio.Event()

    def script(request: Request) -> HttpResponse | Awaitable[HttpResponse]:
        if request.method != "POST" or not request.target.endswith("/members"):
            return broker(request)

        async def join() -> HttpResponse:
            joining.set()
            await may_join.wait()
            return membership(1, [0, 1])

        return join()

    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError("a closed consumer handles nothing")

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    consumer = Consumer(SERVERS, "g", "t", handle, session_timeout_ms=1_000, connection=connection)
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(consumer.run())
        await joining.wait()
        await consumer.close()
        may_join.set()
        await running
    assert broker.left
    assert consumer.assignment == []


async def test_a_consumer_that_is_closed_while_it_waits_for_the_others_to_begin_ends_at_once() -> None:
    """Another member has a queue in which the group has not begun: `start` waits for that member, and `close` does
    not.
    """
    broker, asked = Broker(), asyncio.Event()

    def script(request: Request) -> HttpResponse | Awaitable[HttpResponse]:
        if request.method == "GET" and request.target.endswith("/groups/g"):
            asked.set()
            place = {"topic": "t", "queue": 7}
            theirs = {"member_id": "other", "joined_at_ms": 1, "assignment": [place]}
            return json_answer({"generation": 1, "members": [theirs], "offsets": []})
        return broker(request)

    async def handle(message: ReceivedMessage) -> None:
        pass

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    consumer = Consumer(SERVERS, "g", "t", handle, session_timeout_ms=1_000, connection=connection)
    async with asyncio.timeout(LIMIT_S):
        starting = asyncio.create_task(consumer.start())
        await asked.wait()
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        assert not starting.done()
        await consumer.close()
        await starting
    assert broker.left
