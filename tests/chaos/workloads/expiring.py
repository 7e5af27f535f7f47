"""A topic that keeps messages for seconds: they are sent, sent again when they may be gone, and read on every node."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec

import keelmq
from keelmq.blocks.batch import decode_block
from keelmq.wire import MSGPACK, PullResponse, decode
from tests.chaos.checkers.expiring import ExpiringQueues, Kept, Pulled
from tests.chaos.message import number_in
from tests.chaos.node import ChaosNode
from tests.chaos.violations import Kind
from tests.chaos.wall_clocks import WallClocks
from tests.chaos.workloads.produce import Idempotent
from tests.chaos.workloads.worker import EXPIRING_TOPIC, Field, paced
from tests.patience import PATIENCE_S

QUEUES: Final = 2
RETENTION_MS: Final = 3_000
RETENTION_CHECK_MS: Final = 200
"""Milliseconds between the nodes' checks for messages to remove."""
SEND_INTERVAL_S: Final = 0.2
READ_INTERVAL_S: Final = 0.1
READ_TIMEOUT_S: Final = 1.0
JUDGE_TIMEOUT_S: Final = PATIENCE_S
REMOVED_TIMEOUT_S: Final = PATIENCE_S
POLL_S: Final = 0.1
PULL_MESSAGES: Final = 10_000


class Expiring:
    """Sends to and reads the expiring topic. `checker` has the reads, and the number of messages that are gone."""

    def __init__(self, field: Field, nodes: Mapping[int, ChaosNode], clocks: WallClocks) -> None:
        self.checker = ExpiringQueues(EXPIRING_TOPIC, RETENTION_MS, field.violations)
        self._field = field
        self._nodes = nodes
        self._clocks = clocks
        self._rng = field.rng("expiring")
        self._ledger = field.book.worker("expiring", expires=True)
        self._producer = Idempotent(field, SEND_INTERVAL_S, EXPIRING_TOPIC, self._ledger)
        self._ends = dict.fromkeys(range(QUEUES), 0)
        """The highest offset read so far, plus one, by queue."""

    async def prepare(self) -> None:
        """Make the topic, on a cluster that is ready. Idempotent."""
        await self._put({"queues": QUEUES, "type": "any", "retention_ms": RETENTION_MS})

    async def run(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._producer.run(stop))
            tasks.create_task(paced(lambda: self._read(session), READ_INTERVAL_S, stop))

    async def removed(self) -> None:
        """Wait until every message is gone whose time is over by true clocks; then switch the retention off."""
        until_s = time.monotonic() + REMOVED_TIMEOUT_S
        timeout = aiohttp.ClientTimeout(total=JUDGE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not await self._nothing_overdue(session):
                if time.monotonic() > until_s:
                    detail = f"messages of {EXPIRING_TOPIC} stay {REMOVED_TIMEOUT_S:.0f} s after their time was over"
                    self._field.violations.add(Kind.NO_PROGRESS, detail)
                    break
                await asyncio.sleep(POLL_S)
        await self._put({"retention_ms": -1})

    async def judge(self) -> None:
        """Judge all queues of all nodes, which have applied the same entries."""
        timeout = aiohttp.ClientTimeout(total=JUDGE_TIMEOUT_S)
        found: dict[int, dict[int, Pulled]] = {}
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for node_id in self._nodes:
                queues = {}
                for queue in range(QUEUES):
                    pulled = await self._pull(session, node_id, queue, 0)
                    if pulled is None:
                        detail = f"node {node_id} does not answer for {EXPIRING_TOPIC}/{queue}"
                        self._field.violations.add(Kind.LOST, detail)
                        return
                    queues[queue] = pulled
                found[node_id] = queues
        self.checker.finish(self._ledger, found)

    async def _read(self, session: aiohttp.ClientSession) -> None:
        """Read on any node, from a little before the highest offset read, or everything that is left."""
        node_id, queue = self._rng.choice(list(self._nodes)), self._rng.randrange(QUEUES)
        offset = max(0, self._ends[queue] - self._rng.randint(0, 10)) if self._rng.random() < 0.7 else 0
        await self._pull(session, node_id, queue, offset)

    async def _nothing_overdue(self, session: aiohttp.ClientSession) -> bool:
        for queue in range(QUEUES):
            answers = [await self._pull(session, node_id, queue, 0) for node_id in self._nodes]
            now_ms = time.time() * 1000
            if None in answers or any(
                each.messages and each.messages[0].stored_at_ms + RETENTION_MS < now_ms for each in answers if each
            ):
                return False
        return True

    async def _pull(self, session: aiohttp.ClientSession, node_id: int, queue: int, offset: int) -> Pulled | None:
        """Return the node's own messages from the offset on, judged; None when it does not answer, or redirects to the
        leader.
        """
        node = self._nodes[node_id]
        starts = node.starts
        path = f"/v1/topics/{EXPIRING_TOPIC}/queues/{queue}/messages?offset={offset}&max_messages={PULL_MESSAGES}"
        headers = {"Accept": MSGPACK}
        try:
            async with session.get(node.url + path, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                answer = decode(PullResponse, await response.read(), MSGPACK)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        pulled = Pulled(answer.min_offset, answer.max_offset, tuple(self._messages(node.url, queue, offset, answer)))
        if node.starts == starts:
            self.checker.pulled((node_id, starts), queue, offset, pulled, self._clocks.latest_ms())
        self._ends[queue] = max([self._ends[queue], *(each.offset + 1 for each in pulled.messages)])
        return pulled

    def _messages(self, url: str, queue: int, offset: int, answer: PullResponse) -> list[Kept]:
        """Return the messages from the offset on; the first batch may begin before it."""
        kept = []
        for batch in answer.batches:
            at = batch.base_offset
            messages = decode_block(batch.block, batch.crc32c, batch.uncompressed_bytes)
            for ordinal, message in enumerate(messages):
                if ordinal in batch.skip:
                    continue
                self._field.reads.read((EXPIRING_TOPIC, queue), at, message.body, url)
                number = number_in(message.body)
                if number is not None and at >= max(offset, answer.min_offset):
                    kept.append(Kept(at, number, batch.stored_at_ms))
                at += 1
        return kept

    async def _put(self, settings: dict[str, object]) -> None:
        connection = keelmq.Connection(self._field.urls)
        try:
            await connection.call("PUT", f"/v1/topics/{EXPIRING_TOPIC}", body=msgspec.json.encode(settings))
        finally:
            connection.close()
