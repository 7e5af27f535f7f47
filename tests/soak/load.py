"""The soak's load: plain messages, transactions of every fate, give-backs and pops, as steady as the cluster allows."""

import asyncio
import contextlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp

BODIES: Final = tuple(os.urandom(1_000).hex() for _ in range(256))
BATCH: Final = 100
PRODUCE_INTERVAL_S: Final = 0.1
TRANSACTION_INTERVAL_S: Final = 0.05
CONSUMED_MAX: Final = 64
INVISIBLE_MS: Final = 3_000
RETRY_DELAY_MS: Final = 1_000

PLAIN, HALVES, POPPED = "soak-plain", "soak-halves", "soak-popped"
READERS, POPPERS, PRODUCERS = "soak-readers", "soak-poppers", "soak-producers"

Json = dict[str, Any]


class Load:
    """Runs the load. `counts` holds the operations done, and errors by their code: a refusal under load is no failure
    of a soak.
    """

    def __init__(self, urls: list[str], seed: int, retention_ms: int) -> None:
        self.counts: Counter[str] = Counter()
        self._urls = itertools.cycle(urls)
        self._url = next(self._urls)
        self._random = random.Random(seed)
        self._retention_ms = retention_ms
        self._session: aiohttp.ClientSession | None = None

    async def run(self, stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as self._session:
            await self._prepare_topics()
            workers = [self._produce, self._transact, self._check, self._consume, self._pop]
            tasks = [asyncio.create_task(self._repeat(worker, stop)) for worker in workers]
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare_topics(self) -> None:
        for topic in (PLAIN, HALVES, POPPED):
            while (
                await self._call("PUT", f"/v1/topics/{topic}", {"queues": 2, "retention_ms": self._retention_ms})
                is None
            ):
                await asyncio.sleep(0.5)
        for group in (READERS, POPPERS):
            settings = {"retry_max_attempts": 16, "retry_delays_ms": [RETRY_DELAY_MS]}
            await self._call("PUT", f"/v1/groups/{group}", settings)

    async def _repeat(self, worker: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await worker()

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """Return the answer; None when the request was refused, or its node could not be reached."""
        assert self._session is not None
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                answer: Json = await response.json(content_type=None) if response.content_length != 0 else {}
                if response.status < 300:
                    return answer
                self.counts[f"refused: {answer.get('code')}"] += 1
        except (aiohttp.ClientError, TimeoutError):
            self.counts["unreachable"] += 1
            self._url = next(self._urls)
        await asyncio.sleep(0.1)
        return None

    async def _produce(self) -> None:
        messages = [{"body": self._random.choice(BODIES)} for _ in range(BATCH)]
        topic = self._random.choice((PLAIN, PLAIN, PLAIN, POPPED))
        if await self._call("POST", f"/v1/topics/{topic}/messages", {"messages": messages}) is not None:
            self.counts["messages"] += BATCH
        await asyncio.sleep(PRODUCE_INTERVAL_S)

    async def _transact(self) -> None:
        half = {
            "producer_group": PRODUCERS,
            "check_after_ms": 3_000,
            "messages": [{"topic": HALVES, "body": BODIES[0]}],
        }
        prepared = await self._call("POST", "/v1/transactions", half)
        if prepared is not None:
            self.counts["prepared"] += 1
            await self._decide(prepared["transaction_id"], "producer", left=0.2)
        await asyncio.sleep(TRANSACTION_INTERVAL_S)

    async def _check(self) -> None:
        """Answer every check: transactions that the producer left undecided end here."""
        found = await self._call("GET", f"/v1/producer-groups/{PRODUCERS}/checks?wait_ms=1000&max=32&client_id=soak")
        for check in (found or {}).get("checks", ()):
            await self._decide(check["transaction_id"], "check", left=0.0)

    async def _decide(self, transaction_id: str, source: str, left: float) -> None:
        drawn = self._random.random()
        if drawn < left:
            self.counts["left undecided"] += 1
            return
        decision = "commit" if drawn < left + (1 - left) * 0.7 else "rollback"
        if await self._call("POST", f"/v1/transactions/{transaction_id}/{decision}", {"source": source}) is not None:
            self.counts[f"{decision} by {source}"] += 1

    async def _consume(self) -> None:
        """Read the available messages, returned ones included, give some of them back, and commit the rest."""
        own = f"%25RETRY%25{READERS}"
        for topic, queue in ((PLAIN, 0), (PLAIN, 1), (HALVES, 0), (HALVES, 1), (own, 0)):
            await self._consume_queue(topic, queue)
        await asyncio.sleep(0.05)

    async def _consume_queue(self, topic: str, queue: int) -> None:
        name = topic.replace("%25", "%")
        known = await self._call("GET", f"/v1/groups/{READERS}/offsets")
        offsets = {(each["topic"], each["queue"]): each["offset"] for each in (known or {}).get("offsets", ())}
        if topic != name and (name, queue) not in offsets:
            return
        path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offsets.get((name, queue), 0)}"
        pulled = await self._call("GET", f"{path}&max_messages={CONSUMED_MAX}")
        if not pulled or not pulled["messages"]:
            return
        back = [each["offset"] for each in pulled["messages"] if self._random.random() < 0.05]
        if back:
            items = [{"topic": name, "queue": queue, "offset": offset, "delay_ms": RETRY_DELAY_MS} for offset in back]
            if await self._call("POST", f"/v1/groups/{READERS}/retries", {"messages": items}) is None:
                return
            self.counts["given back"] += len(back)
        commit = {"offsets": [{"topic": name, "queue": queue, "offset": pulled["next_offset"]}]}
        if await self._call("PUT", f"/v1/groups/{READERS}/offsets", commit) is not None:
            self.counts["consumed"] += len(pulled["messages"])

    async def _pop(self) -> None:
        """Pop messages and acknowledge most of them; the leases of the others run out."""
        wanted = {"topic": POPPED, "max_messages": 32, "invisible_ms": INVISIBLE_MS, "wait_ms": 500}
        popped = await self._call("POST", f"/v1/groups/{POPPERS}/pop", wanted)
        handles = [each["receipt_handle"] for each in (popped or {}).get("messages", ())]
        self.counts["popped"] += len(handles)
        acked = [handle for handle in handles if self._random.random() < 0.95]
        if acked and await self._call("POST", f"/v1/groups/{POPPERS}/pop/ack", {"receipt_handles": acked}) is not None:
            self.counts["acknowledged"] += len(acked)
        if not handles:
            with contextlib.suppress(TimeoutError):
                await asyncio.sleep(0.2)
