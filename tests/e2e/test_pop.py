"""Tests pop consumers on real nodes, also by shell: leaders and workers are killed, all messages are processed."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keelmq import Admin, Connection, PopConsumer, Producer, ReceivedMessage
from keelmq.cli.app import app
from keelmq.errors import Conflict
from store.limits import POP_HELD_MAX
from tests.e2e import fixtures
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess, Reply, ok, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
_names = itertools.count()

own_cluster = fixtures.own_cluster()
steady_cluster = fixtures.own_cluster(STEADY, topic="orders")


async def fill(connection: Connection, topic: str, count: int, queues: int = 2) -> None:
    await Admin(connection).put_topic(topic, queues=queues)
    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        for first in range(0, count, 1_000):
            await producer.send_batch(
                topic, [f"{number}".encode() for number in range(first, min(count, first + 1_000))]
            )


async def test_more_workers_than_queues_share_the_messages(cluster: ClusterProcess) -> None:
    connection, topic = Connection(cluster.servers), f"pop-{next(_names)}"
    await fill(connection, topic, 300, queues=1)
    seen: Counter[bytes] = Counter()
    by_worker: Counter[int] = Counter()
    all_work = asyncio.Event()

    def worker(number: int) -> PopConsumer:
        async def handle(message: ReceivedMessage) -> None:
            by_worker[number] += 1
            if len(by_worker) == 3:
                all_work.set()
            await all_work.wait()
            seen[message.body] += 1

        return PopConsumer(handler=handle, topic=topic, group=topic, connection=connection, concurrency=4)

    workers = [worker(number) for number in range(3)]
    await asyncio.gather(*(each.start() for each in workers))
    await until(lambda: len(seen) == 300)
    await asyncio.gather(*(each.close() for each in workers))
    assert set(seen.values()) == {1}
    (offset,) = (await Admin(connection).group(topic)).offsets
    assert (offset.offset, offset.lag, offset.held) == (300, 0, 0)
    await Admin(connection).delete_group(topic, operator="ann", reason="done")
    assert topic not in [each.group for each in await Admin(connection).groups()]
    connection.close()


def test_what_is_held_outlives_the_leader_and_no_other_gets_it(steady_cluster: ClusterProcess) -> None:
    leader = steady_cluster.wait_leader()
    bodies = [{"body": str(number)} for number in range(10)]
    ok(leader.request("POST", "/v1/topics/orders/messages", payload={"messages": bodies}))
    pop = {"topic": "orders", "max_messages": 5, "invisible_ms": 3_600_000}
    held = ok(leader.request("POST", "/v1/groups/g/pop", payload=pop))["messages"]
    assert len(held) == 5
    leader.kill()
    leader = steady_cluster.wait_leader(among=steady_cluster.alive())
    others = ok(leader.request("POST", "/v1/groups/g/pop", payload={**pop, "max_messages": 32}))["messages"]
    assert sorted(each["body"] for each in others) == ["5", "6", "7", "8", "9"]
    handles = [each["receipt_handle"] for each in held]
    acked = ok(leader.request("POST", "/v1/groups/g/pop/ack", payload={"receipt_handles": handles}))
    assert {each["outcome"] for each in acked["results"]} == {"acked"}


async def test_every_message_is_handled_though_leader_and_worker_are_killed(own_cluster: ClusterProcess) -> None:
    leader = own_cluster.wait_leader()
    connection = Connection(own_cluster.servers)
    await fill(connection, "orders", 200)
    seen: Counter[bytes] = Counter()
    first_seen, go_on = asyncio.Event(), asyncio.Event()

    async def hangs(message: ReceivedMessage) -> None:
        first_seen.set()
        await asyncio.Event().wait()

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        await go_on.wait()

    async def lag() -> int:
        return sum(each.lag for each in (await Admin(connection).group("g")).offsets)

    options: dict[str, Any] = {"topic": "orders", "group": "g", "invisible_ms": 2_000}
    doomed = PopConsumer(handler=hangs, connection=Connection(own_cluster.servers), **options)
    doomed_task = asyncio.create_task(doomed.run())
    await first_seen.wait()
    doomed._connection.close()  # it falls silent, as if it were killed
    async with PopConsumer(handler=handle, connection=connection, concurrency=32, **options):
        await until(lambda: bool(seen))
        leader.kill()
        go_on.set()
        await until(lambda: len(seen) == 200)
        async with asyncio.timeout(PATIENCE_S):
            while await lag():
                await asyncio.sleep(0.05)
    doomed_task.cancel()
    await asyncio.gather(doomed_task, return_exceptions=True)
    connection.close()


async def test_a_group_with_members_takes_no_pop_consumers(cluster: ClusterProcess) -> None:
    connection, topic = Connection(cluster.servers), f"pop-{next(_names)}"
    await fill(connection, topic, 1)
    body = {"topics": [topic], "member_id": "m", "session_timeout_ms": 600_000}
    ok(cluster.wait_leader().request("POST", f"/v1/groups/{topic}/members", payload=body))

    async def handle(message: ReceivedMessage) -> None: ...

    with pytest.raises(Conflict, match="group_has_members"):
        await PopConsumer(handler=handle, topic=topic, group=topic, connection=connection).run()
    connection.close()


async def test_a_group_holds_so_many_messages_and_no_more(cluster: ClusterProcess) -> None:
    connection, topic = Connection(cluster.servers), f"pop-{next(_names)}"
    await fill(connection, topic, POP_HELD_MAX + 1)
    connection.close()
    leader = cluster.wait_leader()
    body = {"topic": topic, "invisible_ms": 3_600_000}
    lost: list[Reply] = []

    def pop(_: int) -> Reply:
        """Return the answer of whoever leads. What an election takes is lost: nobody has its messages."""
        nonlocal leader
        while True:
            reply = leader.request("POST", f"/v1/groups/{topic}/pop", payload=body)
            if reply.status in (200, 429):
                return reply
            lost.append(reply)
            leader = cluster.wait_leader()

    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(pop, range(POP_HELD_MAX // 32 + 16)))
    popped = sum(len(reply.json()["messages"]) for reply in replies if reply.status == 200)
    assert popped == POP_HELD_MAX or (lost and popped < POP_HELD_MAX)
    refused = pop(0)
    assert (refused.status, refused.json()["code"], refused.json()["held_max"]) == (429, "too_many_held", POP_HELD_MAX)
    assert refused.headers["retry-after"] == "1"


def test_a_worker_of_the_example_ends_what_it_has_begun(cluster: ClusterProcess) -> None:
    leader, topic = cluster.wait_leader(), f"pop-{next(_names)}"
    ok(leader.request("PUT", f"/v1/topics/{topic}", payload={"queues": 1}))
    ok(leader.request("POST", f"/v1/topics/{topic}/messages", payload={"messages": [{"body": "one"}]}))
    with subprocess.Popen(
        [sys.executable, "-m", "examples.pop_worker", topic, topic, "--servers", leader.url],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    ) as worker:  # fmt: skip
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "shipped one\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    assert ok(leader.request("GET", f"/v1/groups/{topic}"))["offsets"][0]["lag"] == 0


class Shell:
    def __init__(self, node: NodeProcess) -> None:
        self._environment = {"KEELMQ_SERVERS": node.url, "COLUMNS": "200", "USER": "ann"}

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner(env=self._environment).invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result


def test_from_the_shell(cluster: ClusterProcess) -> None:
    leader, topic = cluster.wait_leader(), f"pop-{next(_names)}"
    shell = Shell(leader)
    shell("topic", "create", topic, "--queues", "1")
    for number in range(3):
        shell("send", topic, f"message {number}")
    kept = json.loads(shell("pop", topic, "--group", topic, "--max", "1", "--keep", "--json").stdout)
    assert (kept["body"], kept["attempt"]) == ("message 0", 0)
    shown = shell("pop", topic, "--group", topic).stdout
    assert [line.rpartition("  ")[2] for line in shown.splitlines()] == ["message 1", "message 2"]
    assert "group_is_popped" in shell("group", "delete", topic, "--yes", code=1).stderr
    ok(leader.request("POST", f"/v1/groups/{topic}/pop/ack", payload={"receipt_handles": [kept["receipt_handle"]]}))
    assert shell("group", "delete", topic, "--yes", "--reason", "done", "--with-dead-letters").stdout == (
        f"group {topic} is deleted\n"
    )
    assert "group_not_found" in shell("group", "delete", topic, "--yes", code=1).stderr


async def test_the_shell_pops_what_lies_behind_more_than_one_pop_looks_at(cluster: ClusterProcess) -> None:
    """One pop looks through 16 MiB for messages that match."""
    topic = f"pop-{next(_names)}"
    async with Producer(cluster.servers, send_timeout_ms=60_000) as producer:
        await Admin(producer._connection).put_topic(topic, queues=1)
        for _ in range(9):
            await producer.send(topic, bytes(4 << 20), tag="other")
        await producer.send(topic, b"wanted", tag="A")
    shell = Shell(cluster.wait_leader())
    popped = await asyncio.to_thread(shell, "pop", topic, "--group", topic, "--tags", "A", "--json")
    assert [json.loads(line)["body"] for line in popped.stdout.splitlines()] == ["wanted"]
