"""Every send of a producer ends, and who waits for the end of sends waits for as long as they take, not longer."""

import asyncio

import pytest

from keelmq.producing.producer import Producer
from keelmq.transport.connection import Connection
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Appender, Gate, ScriptedTransport
from tests.unit.client.test_producer import producer


async def test_a_keyed_send_ends_whatever_prevents_asking_for_the_queues() -> None:
    def no_token() -> str:
        raise RuntimeError("the service of the tokens is down")

    connection = Connection(SERVERS, transport=ScriptedTransport(Appender()), rng=lambda: 0.0, token=no_token)
    async with Producer(connection=connection) as sender:
        for key in (None, "k"):
            with pytest.raises(RuntimeError, match="tokens is down"):
                await asyncio.wait_for(sender.send("t", b"x", sharding_key=key), PATIENCE_S)


async def test_flush_waits_for_earlier_sends_not_for_later_ones() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate, max_batch_bytes=60)  # a request for each message
    sends = [asyncio.create_task(sender.send("t", b"earlier", queue=0)) for _ in range(2)]
    await gate.wait(1)
    flushing = asyncio.create_task(sender.flush())
    await asyncio.sleep(0)
    sends.append(asyncio.create_task(sender.send("t", b"later", queue=0)))
    for _ in range(2):
        assert not flushing.done()
        await gate.wait(1)
        gate.release()
    await gate.wait(1)
    await asyncio.wait_for(flushing, PATIENCE_S)
    assert [send.done() for send in sends] == [True, True, False]
    gate.release()
    await sends[2]
    await sender.close()


async def test_every_close_waits_for_what_is_sent() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate)
    send = asyncio.create_task(sender.send("t", b"x"))
    await gate.wait(1)
    closes = [asyncio.create_task(sender.close()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert [close.done() for close in closes] == [False, False]
    gate.release()
    await asyncio.gather(send, *closes)
    await sender.close()


async def test_a_message_that_waited_for_the_number_of_queues_shortens_no_others_budget() -> None:
    """An older message comes behind a younger one, which named its queue. Each has its own budget."""
    now_s, appender = [100.0], Appender()
    posts, topics = Gate(appender), Gate(appender)
    transport = ScriptedTransport(lambda request: (topics if request.method == "GET" else posts)(request))
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=lambda: now_s[0])
    sender = Producer(connection=connection, send_timeout_ms=3_000, retries=0, clock=lambda: now_s[0])
    sends = [asyncio.create_task(sender.send("t", b"first", queue=0))]
    await posts.wait(1)
    sends.append(asyncio.create_task(sender.send("t", b"older", selector=lambda message, queues: 0)))
    await topics.wait(1)
    now_s[0] += 2.5
    sends.append(asyncio.create_task(sender.send("t", b"younger", queue=0)))
    await asyncio.sleep(0)
    topics.release()
    await asyncio.sleep(0)
    posts.release()
    await posts.wait(1)
    assert posts.held[0].timeout_s == pytest.approx(3.0)
    posts.release()
    await asyncio.gather(*sends)
    assert appender.stored[0] == [b"first", b"younger", b"older"]
    await sender.close()
