"""Clients that send, transact and consume while nodes are exchanged, and the promises they were given."""

import asyncio
import contextlib
import threading
from base64 import b64decode
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from keelmq import (
    Admin,
    Connection,
    Consumer,
    Decision,
    Message,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionProducer,
)
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

TOPIC: Final = "orders"
PAUSE_S: Final = 0.01
PAGE: Final = 1_000


class Load:
    """Runs clients in a thread of their own while the context is entered; leaving the context raises the error of a
    client.
    """

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self._servers = cluster.urls
        self._going = True
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: set[str] = set()
        """Bodies of messages that were acknowledged, alone or by the commit of their transaction."""
        self.received: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.wait_for_more()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()
        if self._failure is not None and kind is None:
            raise self._failure

    def _stop(self) -> None:
        self._going = False
        self._thread.join(2 * PATIENCE_S)

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until `count` more messages were acknowledged. Raises a client's error."""
        before = len(self.acknowledged)
        wait_for(lambda: self._failure or len(self.acknowledged) >= before + count, "acknowledged messages")
        if self._failure is not None:
            raise self._failure

    def check(self) -> None:
        """Check that every acknowledged message is stored once, and was consumed. Call it after leaving the context."""
        stored = self._stored()
        lost = self.acknowledged - set(stored)
        assert not lost, f"{len(lost)} acknowledged messages are gone: {sorted(lost)[:5]}"
        assert len(stored) == len(set(stored)), "a message is stored twice"
        assert self.acknowledged <= set(self.received), "what is stored was consumed"

    def _stored(self) -> list[str]:
        leader = self._cluster.wait_leader()
        found: list[str] = []
        for queue in range(2):
            offset = 0
            while True:
                path = f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset={offset}&max_messages={PAGE}"
                page = leader.request("GET", path).json()
                found += [_text(message) for message in page["messages"]]
                if page["next_offset"] == offset:
                    break
                offset = page["next_offset"]
        return found

    def _run(self) -> None:
        try:
            asyncio.run(self._clients())
        except BaseException as error:
            self._failure = error

    async def _clients(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            self.received.append(message.body.decode())

        async def undecided(_: Transaction) -> Decision:
            return Decision.UNKNOWN

        with contextlib.closing(Connection(self._servers)) as connection:
            await Admin(connection).put_topic(TOPIC, queues=2)
        async with (
            Producer(self._servers, send_timeout_ms=CALL_PATIENCE_MS) as producer,
            TransactionProducer(
                self._servers,
                "shop",
                check=undecided,
                send_timeout_ms=CALL_PATIENCE_MS,
                decision_timeout_ms=CALL_PATIENCE_MS,
            ) as transactions,
            Consumer(self._servers, "points", [TOPIC], handle),
        ):
            await asyncio.gather(self._send(producer), self._transact(transactions))
            async with asyncio.timeout(PATIENCE_S):
                while not self.acknowledged <= set(self.received):
                    await asyncio.sleep(PAUSE_S)

    async def _send(self, producer: Producer) -> None:
        async def one(number: int) -> str:
            await producer.send(TOPIC, b"sent %d" % number)
            return f"sent {number}"

        await self._repeat(one)

    async def _transact(self, transactions: TransactionProducer) -> None:
        async def local(_: Transaction) -> Decision:
            return Decision.COMMIT

        async def one(number: int) -> str:
            await transactions.execute(Message(topic=TOPIC, body=b"committed %d" % number), local)
            return f"committed {number}"

        await self._repeat(one)

    async def _repeat(self, one: Any) -> None:
        number = 0
        while self._going:
            call: Coroutine[Any, Any, str] = one(number)
            self.acknowledged.add(await call)
            number += 1
            await asyncio.sleep(PAUSE_S)


def _text(message: dict[str, Any]) -> str:
    body = message["body"]
    return b64decode(body).decode() if message.get("encoding") == "base64" else str(body)
