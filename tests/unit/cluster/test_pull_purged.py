"""Pulls from a queue whose messages are removed while the pull waits: the answer tells where the queue begins."""

import asyncio
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.commands.topics import PurgeTopic
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import Node

PATH = "/v1/topics/t/queues/0/messages"
KINDS = [("application/json", ""), ("application/msgpack", ""), ("application/msgpack", "&filter=TRUE")]


def produce(name: str) -> Proposal:
    block = msgspec.msgpack.encode([[b"x"]] * 3)
    return Proposal(Produce((BatchHeader("t", 0, 3, name, None, crc32c(block), len(block)),)), (block,))


@pytest.mark.parametrize(("media", "how"), KINDS)
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_pull_that_waits_is_told_what_was_removed_meanwhile(
    node: Node, media: str, how: str, goes_on: bool
) -> None:
    """Seed 35: the answer named the start of before the wait, and consumers did not hear of what they missed."""
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    await node.core.propose_all([produce("before")])

    async def pull() -> Any:
        target = f"{PATH}?offset=3&wait_ms=30000{how}"
        async with node.session.get(target, headers={"Accept": media}) as response:
            assert response.status == 200
            decoder = msgspec.msgpack if media.endswith("msgpack") else msgspec.json
            return decoder.decode(await response.read())

    pulling = asyncio.create_task(pull())
    async with asyncio.timeout(PATIENCE_S):
        while not len(node.core.waiters):
            await asyncio.sleep(0)
    proposals = [produce("missed"), Proposal(PurgeTopic("t")), *([produce("read")] if goes_on else [])]
    outcomes = await node.core.propose_all(proposals)
    assert len({outcome.index for outcome in outcomes if not isinstance(outcome, Exception)}) == 1, "one entry"
    pulled = await pulling
    end = 9 if goes_on else 6
    assert (pulled["min_offset"], pulled["next_offset"], pulled["max_offset"]) == (6, end, end)
    assert len(pulled.get("messages", pulled.get("batches"))) == (
        0 if not goes_on else 3 if "messages" in pulled else 1
    )
