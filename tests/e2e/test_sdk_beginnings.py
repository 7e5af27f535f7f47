"""Tests where groups begin: decided once, before any message is handled, and the same for all members."""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Final

import pytest

from keelmq import Admin, Connection, Consumer, Producer, ReceivedMessage
from tests.e2e.cluster_process import ClusterProcess, until
from tests.e2e.fixtures import fresh_topic
from tests.patience import CALL_PATIENCE_MS

pytestmark = pytest.mark.process


MEMBER: Final = """
import asyncio, sys, keelmq

async def handle(message): ...

async def main():
    consumer = keelmq.Consumer(sys.argv[1], sys.argv[2], sys.argv[2], handle, session_timeout_ms=1_000)
    await consumer.start()
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

topic = fresh_topic(queues=8)


class Seen:
    def __init__(self) -> None:
        self.bodies: set[bytes] = set()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.add(message.body)


async def send(connection: Connection, topic: str, bodies: set[bytes]) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        await asyncio.gather(
            *(producer.send(topic, body, queue=ordinal % 8) for ordinal, body in enumerate(sorted(bodies)))
        )


def numbered(count: int, prefix: str = "") -> set[bytes]:
    return {f"{prefix}{number}".encode() for number in range(count)}


async def test_what_is_sent_after_start_is_handled_though_the_member_is_killed_at_once(
    cluster: ClusterProcess, connection: Connection, topic: str
) -> None:
    servers = cluster.servers
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, servers, topic, stdout=asyncio.subprocess.PIPE
    )
    assert member.stdout is not None
    assert await member.stdout.readline() == b"started\n"
    member.kill()
    await member.wait()
    await send(connection, topic, numbered(40))
    seen = Seen()
    async with Consumer([], topic, topic, seen, connection=connection):
        await until(lambda: seen.bodies == numbered(40))


async def test_what_is_sent_after_the_start_of_one_of_many_members_is_handled(
    connection: Connection, topic: str
) -> None:
    """The members join at the same time and take queues from each other; none looks up the end of a queue again."""
    seen, sent = Seen(), set[bytes]()

    async def begin(number: int) -> None:
        await members[number].start()
        bodies = numbered(16, f"{number}-")
        sent.update(bodies)
        await send(connection, topic, bodies)

    async with AsyncExitStack() as stack:
        members = [Consumer([], topic, topic, seen, connection=connection) for _ in range(4)]
        for member in members:
            stack.push_async_callback(member.close)
        await asyncio.gather(*map(begin, range(4)))
        await until(lambda: seen.bodies == sent)


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning_whoever_had_its_queues(
    connection: Connection, topic: str
) -> None:
    admin, seen, sent = Admin(connection), Seen(), set[bytes]()
    async with (
        Consumer([], topic, topic, seen, connection=connection),
        Consumer([], topic, topic, seen, connection=connection),
    ):
        for incarnation in range(4):
            await admin.delete_topic(topic)
            await admin.put_topic(topic, queues=8)
            bodies = numbered(64, f"{incarnation}-")
            sent.update(bodies)
            await send(connection, topic, bodies)
            await until(lambda: seen.bodies == sent)


async def test_a_member_that_joins_after_a_topic_was_made_anew_begins_where_the_others_do(
    connection: Connection, topic: str
) -> None:
    admin, seen, sent = Admin(connection), Seen(), set[bytes]()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Consumer([], topic, topic, seen, connection=connection))
        for incarnation in range(4):
            await admin.delete_topic(topic)
            await admin.put_topic(topic, queues=8)
            bodies = numbered(64, f"{incarnation}-")
            sent.update(bodies)
            joining = asyncio.create_task(
                stack.enter_async_context(Consumer([], topic, topic, seen, connection=connection))
            )
            await send(connection, topic, bodies)
            await joining
            await until(lambda: seen.bodies == sent)


async def test_a_member_whose_group_was_deleted_while_it_was_silent_comes_back_where_it_was(
    connection: Connection, topic: str
) -> None:
    admin, calls, handled = Admin(connection), list[bytes](), set[bytes]()

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.body)
        handled.add(message.body)

    async with Consumer([], topic, topic, handle, connection=connection, commit_interval_ms=0) as member:
        await send(connection, topic, numbered(16, "before-"))
        await until(lambda: handled == numbered(16, "before-"))
        await connection.call("DELETE", f"/v1/groups/{topic}/members/{member.member_id}")
        await admin.delete_group(topic, operator="ann", reason="nobody uses it")
        await send(connection, topic, numbered(16, "after-"))
        await until(lambda: numbered(16, "after-") <= handled)
        assert [each.member_id for each in (await admin.group(topic)).members] == [member.member_id]
    assert len(calls) == 32, "what was handled before is not handled again"
