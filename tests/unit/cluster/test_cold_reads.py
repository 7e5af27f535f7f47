"""Data that is not in memory is read beside the loop, block by block, in bounded steps, and never more than is due."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

import cluster.budgets.pace
import cluster.core.log_reads
import cluster.messages.block_reader
import store.log.segments
from cluster.core.log_reads import ReadPace
from cluster.messages.block_reader import BlockReader
from cluster.messages.blocks import BlockMessage, encode_block
from cluster.problems import Problem
from cluster.process.config import NodeConfig
from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.log.disk import PosixDisk
from store.messages.message_index import key_hash
from tests.rewrite import rewrite_record
from tests.unit.cluster.conftest import Answer, Node, node_config, running_node

CACHE_BYTES = 1 << 16
TOPICS = 40
BODY_BYTES = 4_000
ROUNDS = 6
KIB = 1024


def cold_config(path: Path, **changes: Any) -> NodeConfig:
    return node_config(path, cache_bytes=CACHE_BYTES, segment_bytes=1 << 20, scrub_bytes_per_s=0, **changes)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Run a node that has hardly anything of its log in memory."""
    fatal: list[str] = []
    async with running_node(cold_config(tmp_path), fatal) as node:
        yield node
    assert not fatal


def produce(topic: str, number: int, body: bytes) -> Proposal:
    block = encode_block([BlockMessage(body, keys=("k",))], "here")
    header = BatchHeader(topic, 0, 1, f"{topic}-{number}", None, crc32c(block), len(block), keys=(key_hash("k"),))
    return Proposal(Produce((header,)), (block,))


async def fill(node: Node, rounds: int = ROUNDS, topics: int = TOPICS) -> None:
    """Write `rounds` records that each hold a message for each of `topics` topics, and then fill the cache with
    others.
    """
    for number in range(topics):
        await node.call("PUT", f"/v1/topics/t{number}", {"queues": 1})
    await node.call("PUT", "/v1/topics/filler", {"queues": 1})
    for number in range(rounds):
        body = os.urandom(BODY_BYTES)
        proposals = [produce(f"t{topic}", number, body) for topic in range(topics)]
        outcomes = await node.core.propose_all(proposals)
        assert len({outcome.index for outcome in outcomes if not isinstance(outcome, Exception)}) == 1, outcomes
    await fill_cache(node)


async def fill_cache(node: Node) -> None:
    for _ in range(3):
        answer = await node.call("POST", "/v1/topics/filler/messages", {"messages": [{"body": "x" * CACHE_BYTES}]})
        assert answer.status == 200


class Reads:
    """Counts of the bytes that were read of files, by thread, and the size of the largest read."""

    def __init__(self) -> None:
        self.by_thread: Counter[int] = Counter()
        self.largest_bytes = 0

    @property
    def on_loop_bytes(self) -> int:
        return self.by_thread[threading.get_ident()]

    @property
    def beside_bytes(self) -> int:
        return self.by_thread.total() - self.on_loop_bytes


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    reads, pread, read_bytes = Reads(), os.pread, PosixDisk.read_bytes

    def counting(descriptor: int, length: int, position: int) -> bytes:
        data = pread(descriptor, length, position)
        reads.by_thread[threading.get_ident()] += len(data)
        reads.largest_bytes = max(reads.largest_bytes, len(data))
        return data

    def counting_whole(disk: PosixDisk, path: str) -> bytes:
        data = read_bytes(disk, path)
        reads.by_thread[threading.get_ident()] += len(data)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", counting)
        patch.setattr(PosixDisk, "read_bytes", counting_whole)
        yield reads


async def batches(node: Node, path: str) -> Answer:
    """Pull as the SDK does."""
    async with node.session.get(path, headers={"Accept": "application/msgpack"}) as response:
        body = await response.read()
        return Answer(
            response.status, msgspec.msgpack.decode(body) if response.status == 200 else body, response.headers
        )


async def pull_json(node: Node, topic: str, offset: int = 0, **query: Any) -> Answer:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return await node.call("GET", f"/v1/topics/{topic}/queues/0/messages?offset={offset}{more}")


async def pull_batches(node: Node, topic: str, offset: int = 0, **query: Any) -> Answer:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return await batches(node, f"/v1/topics/{topic}/queues/0/messages?offset={offset}&max_messages=1000{more}")


@pytest.mark.parametrize("pull", [pull_json, pull_batches])
@pytest.mark.parametrize("query", [{}, {"filter": "x%20IS%20NULL"}], ids=["all", "filter"])
async def test_an_answer_says_what_was_read_of_the_disk_for_it(
    node: Node, pull: Callable[..., Awaitable[Answer]], query: dict[str, str]
) -> None:
    await fill(node, topics=1)
    old = await pull(node, "t0", **query)
    assert old.body["next_offset"] == ROUNDS
    assert ROUNDS * BODY_BYTES < int(old.headers["KeelMQ-Disk-Bytes"]) < ROUNDS * (BODY_BYTES + 2 * 4096)
    await node.call("POST", "/v1/topics/filler/messages", {"messages": [{"body": "x"}]})
    new = await pull(node, "filler", 3, **query)
    assert new.body["next_offset"] == 4
    assert "KeelMQ-Disk-Bytes" not in new.headers


async def test_an_answer_claims_to_be_no_newer_than_what_it_was_read_from(node: Node) -> None:
    """An entry applied while the request waited does not count: it would mislead a client that wants at least that
    entry.
    """
    await fill(node, topics=1)
    before = node.core.raft.applied_index
    waits = asyncio.create_task(pull_batches(node, "t0", ROUNDS, wait_ms=30_000))
    while not len(node.core.waiters):
        await asyncio.sleep(0)
    (outcome,) = await node.core.propose_all([produce("t0", ROUNDS, b"x")])
    assert not isinstance(outcome, Exception)
    answer = await waits
    assert answer.body["next_offset"] == ROUNDS + 1
    assert int(answer.headers["KeelMQ-Applied-Index"]) == before < outcome.index


@pytest.mark.parametrize("pull", [pull_json, pull_batches])
async def test_a_block_is_read_without_the_record_it_shares(
    node: Node, pull: Callable[..., Awaitable[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records hold messages of 40 topics; a reader of one topic reads a 40th of them."""
    await fill(node)
    with counted_reads(monkeypatch) as reads:
        answer = await pull(node, "t7")
    assert answer.body["next_offset"] == ROUNDS
    assert reads.on_loop_bytes == 0
    assert ROUNDS * BODY_BYTES < reads.beside_bytes < ROUNDS * (BODY_BYTES + 200)


async def test_neighbours_of_one_topic_are_read_in_one_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(node, rounds=30, topics=1)
    steps = node.core.reads._steps
    with counted_reads(monkeypatch):
        assert (await pull_batches(node, "t0")).body["next_offset"] == 30
    assert node.core.reads._steps == steps + 1


READERS = (
    "/v1/topics/t0/queues/0/messages?offset=0",
    "/v1/topics/t0/queues/0/messages?offset=0&filter=x%20IS%20NULL",
    "/v1/topics/t0/messages?key=k",
    "/v1/topics/t0/messages?from_ms=0",
    "/v1/messages/t0-1-0",
    "/v1/messages/t0-1-0/trace",
    "/v1/log?from_index=2",
    "/v1/log/events?from_index=2",
    "/v1/producer-groups/shop/checks",
)


@pytest.mark.parametrize("path", READERS)
async def test_no_reader_reads_payloads_on_the_loop(node: Node, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"producer_group": "shop", "check_after_ms": 0, "messages": [{"topic": "t0", "body": "ask me"}]}
    await node.call("PUT", "/v1/topics/t0", {"queues": 1})
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    await fill(node, topics=4)
    with counted_reads(monkeypatch) as reads:
        answer = await node.call("GET", path)
    assert answer.status == 200, answer
    assert reads.beside_bytes > 0
    assert reads.on_loop_bytes == 0


async def test_what_is_in_memory_is_read_on_the_loop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread takes part in the answers to a consumer that keeps up."""
    await node.call("PUT", "/v1/topics/hot", {"queues": 1})
    await node.call("POST", "/v1/topics/hot/messages", {"messages": [{"body": "x"}]})
    steps = node.core.reads._steps
    with counted_reads(monkeypatch) as reads:
        assert len((await pull_json(node, "hot")).body["messages"]) == 1
    assert reads.by_thread.total() == 0
    assert node.core.reads._steps == steps


@pytest.mark.parametrize("pull", [pull_json, pull_batches])
async def test_a_request_reads_only_so_much_and_goes_on_from_there(
    node: Node, pull: Callable[..., Awaitable[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(node)
    monkeypatch.setattr(cluster.messages.block_reader, "READ_STEP_BYTES", 8 * KIB)
    monkeypatch.setattr(cluster.messages.block_reader, "READ_BYTES_MAX", 16 * KIB)
    found, asked = 0, 0
    while found < ROUNDS:
        with counted_reads(monkeypatch) as reads:
            answer = (
                await pull(node, "t7", found, max_messages=1000) if pull is pull_json else await pull(node, "t7", found)
            )
        assert answer.body["next_offset"] > found
        assert reads.beside_bytes <= 24 * KIB
        assert reads.largest_bytes <= 8 * KIB
        found, asked = answer.body["next_offset"], asked + 1
    assert asked > 1


async def test_records_are_read_in_steps(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """/v1/log returns as much as is asked for, but a step at a time; the records are those of one large read."""
    await fill(node, topics=4)
    whole = await node.call("GET", "/v1/log?from_index=1&max_bytes=90000")
    monkeypatch.setattr(cluster.core.log_reads, "READ_STEP_BYTES", 20 * KIB)
    with counted_reads(monkeypatch) as reads:
        stepped = await node.call("GET", "/v1/log?from_index=1&max_bytes=90000")
    assert (stepped.body, stepped.headers["KeelMQ-Next-Index"]) == (whole.body, whole.headers["KeelMQ-Next-Index"])
    assert reads.largest_bytes <= 20 * KIB


async def test_where_old_records_begin_is_read_beside_the_loop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar belongs to a segment that nobody has asked for in a while."""
    await fill(node, rounds=12)
    monkeypatch.setattr(store.log.segments, "LOADED_SEGMENTS_MAX", 1)
    last = node.core.log.last_index
    assert len(node.core.log.chain.sealed()) > 1
    for index in (2, last):  # each evicts what is not its own
        assert (await node.call("GET", f"/v1/log?from_index={index}&max_bytes=1")).status == 200
    with counted_reads(monkeypatch) as reads:
        answer = await node.call("GET", f"/v1/log?from_index=2&max_bytes={1 << 24}")
    assert answer.headers["KeelMQ-Next-Index"] == str(last + 1)
    assert reads.on_loop_bytes == 0


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/topics/t7/queues/0/messages?offset=0", 429, "overloaded"),
        ("/v1/log?from_index=2", 410, "log_range_removed"),
        ("/v1/log/events?from_index=2", 410, "log_range_removed"),
    ],
)
async def test_what_is_removed_while_it_is_read_is_no_fault(
    node: Node, path: str, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment went after the reader was told the place: it may ask again."""
    await fill(node, rounds=12)
    pool, reached, removed = node.core.reads._pool, asyncio.Event(), asyncio.Event()
    run = pool.run

    async def held(step: Any) -> Any:
        reached.set()
        await removed.wait()
        return await run(step)

    monkeypatch.setattr(pool, "run", held)
    reading = asyncio.create_task(node.call("GET", path))
    await reached.wait()
    node.core.log.drop_before(node.core.log.synced_index)
    removed.set()
    answer = await reading
    assert (answer.status, answer.body["code"]) == (status, code)
    assert "removed" in answer.body["detail"]


def damage(data_dir: Path, index: int) -> None:
    (segment,) = (data_dir / "log").glob("*.log")
    rewrite_record(segment, index)


async def test_a_message_that_was_damaged_before_it_was_stored_is_named(tmp_path: Path) -> None:
    """The record is sound, so the node goes on, names the damaged batch, and raises an alarm."""
    fatal: list[str] = []
    config = cold_config(tmp_path)
    async with running_node(config, fatal) as node:
        await node.call("PUT", "/v1/topics/t0", {"queues": 1})
        (outcome,) = await node.core.propose_all([produce("t0", 0, b"as it was sent")])
        assert not isinstance(outcome, Exception)
        await node.call("POST", "/v1/topics/t0/messages", {"messages": [{"body": "sound"}]})
    await asyncio.to_thread(damage, Path(config.data_dir), outcome.index)
    async with running_node(config, fatal) as node:
        for answer in (await pull_json(node, "t0"), await node.call("GET", "/v1/topics/t0/messages?from_ms=0")):
            assert (answer.status, answer.body["code"]) == (500, "message_damaged")
            assert answer.body["batch_id"] == "t0-0"
        assert (await pull_json(node, "t0", 1)).body["messages"][0]["body"] == "sound"

        async def alarm() -> Any:
            alarms = (await node.call("GET", "/v1/cluster")).body["alarms"]
            return [each for each in alarms if each["code"] == "message_damaged"]

        (found,) = await node.wait(alarm)
        assert found["subject"] == "t0-0"
    assert not fatal


async def test_a_damaged_message_hides_none_of_its_neighbours(tmp_path: Path) -> None:
    """A pull returns the messages before it, pop consumers get all others, and other transactions are checked."""
    fatal: list[str] = []
    config = cold_config(tmp_path)

    def half(transaction_id: str) -> dict[str, Any]:
        messages = [{"topic": "t0", "body": transaction_id}]
        return {"transaction_id": transaction_id, "producer_group": "p", "client_id": "c", "messages": messages}

    async with running_node(config, fatal) as node:
        await node.call("PUT", "/v1/topics/t0", {"queues": 1})
        await node.core.propose_all([produce("t0", 0, b"before")])
        (damaged,) = await node.core.propose_all([produce("t0", 1, b"as it was sent")])
        await node.core.propose_all([produce("t0", 2, b"after")])
        assert (await node.call("POST", "/v1/transactions", half("broken"))).status == 201
        broken_index = node.core.raft.applied_index
        assert (await node.call("POST", "/v1/transactions", half("sound"))).status == 201
    assert not isinstance(damaged, Exception)
    for index in (damaged.index, broken_index):
        await asyncio.to_thread(damage, Path(config.data_dir), index)
    async with running_node(config, fatal) as node:
        for pull in (pull_json, pull_batches):
            answer = await pull(node, "t0")
            assert (answer.status, answer.body["next_offset"]) == (200, 1)
            assert (await pull(node, "t0", 1)).status == 500
        popped = await node.call("POST", "/v1/groups/g/pop", {"topic": "t0", "start": "earliest", "max_messages": 9})
        assert [message["body"] for message in popped.body["messages"]] == ["before", "after"]
        node.clock.now_ms += 60_000

        async def checked() -> list[str]:
            polled = await node.call("GET", "/v1/producer-groups/p/checks?client_id=c&wait_ms=0&max=9")
            assert polled.status == 200, polled
            return [check["transaction_id"] for check in polled.body["checks"]]

        assert await node.wait(checked) == ["sound"]
    assert not fatal


async def test_waiting_for_the_disk_is_no_work(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waited for long would otherwise get one row per request, and wait again for each."""
    await fill(node)
    reader = BlockReader(node.core)
    rows = node.core.state.rows("t7", 0, 0, ROUNDS, 1 << 20)
    await reader.load(rows)
    assert reader.take_waited_s() > 0
    await reader.load(rows)
    assert reader.take_waited_s() == 0, "it was in memory"
    monkeypatch.setattr(cluster.budgets.pace, "SEARCH_S_MAX", 0.0)
    assert (await pull_json(node, "t7")).body["next_offset"] < ROUNDS
    monkeypatch.setattr(BlockReader, "take_waited_s", lambda reader: 3_600.0)
    assert (await pull_json(node, "t7")).body["next_offset"] == ROUNDS


async def test_a_patient_reader_waits_for_its_share_and_another_one_is_refused(node: Node) -> None:
    pace = ReadPace(node.core.log, 1)
    pace._sampled_s, pace._written_bytes_per_s = 0.0, 1e9
    step = int(cluster.core.log_reads.CATCH_UP * 1e9 * cluster.core.log_reads.READ_WAIT_S_MAX) + 1
    assert pace.wait_s(step, 0.0) == 0
    with pytest.raises(Problem, match="too many old messages are being read"):
        pace.wait_s(1, 0.0)
    assert pace.wait_s(1, 0.0, patient=True) > cluster.core.log_reads.READ_WAIT_S_MAX
