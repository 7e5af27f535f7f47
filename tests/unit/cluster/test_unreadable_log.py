"""A log that cannot be read, or was changed, ends the process: the other nodes have the data."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.unit.cluster.conftest import Node, node_config, running_node

READERS = ("/v1/topics/orders/queues/0/messages?offset=0", "/v1/log?from_index=2", "/v1/producer-groups/shop/checks")
SMALL_CACHE_BYTES = 1 << 16


async def fill(node: Node) -> None:
    """Store a message and a half message of a transaction, and enough behind them that no cache has them any more."""
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "read me"}]})
    half = {"producer_group": "shop", "check_after_ms": 0, "messages": [{"topic": "orders", "body": "ask me"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    for _ in range(3):
        await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x" * SMALL_CACHE_BYTES}]})


@pytest.mark.parametrize("path", READERS)
async def test_a_read_that_fails_is_fatal(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, cache_bytes=SMALL_CACHE_BYTES), fatal) as node:
        await fill(node)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", _fail)
            assert (await node.call("GET", path)).status == 500
    assert any("Input/output error" in reason for reason in fatal)


@pytest.mark.parametrize("path", READERS)
async def test_damaged_records_are_not_served(tmp_path: Path, path: str) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path, cache_bytes=SMALL_CACHE_BYTES)
    async with running_node(config, fatal) as node:
        await fill(node)
        await asyncio.to_thread(_damage, config.data_dir)
        assert (await node.call("GET", path)).status == 500
        await asyncio.to_thread(_damage, config.data_dir)  # once more: as it was, so that the node can be closed
    assert any("corrupt" in reason for reason in fatal)


def _fail(descriptor: int, length: int, position: int) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _damage(data_directory: str) -> None:
    """Flip a bit at the beginning of the bodies that are read; a second time flips it back."""
    (segment,) = Path(data_directory, "log").glob("*.log")
    content = bytearray(segment.read_bytes())
    for rest in (b"ead me", b"sk me"):
        content[content.index(rest) - 1] ^= 1
    with segment.open("r+b") as file:
        file.write(content)
