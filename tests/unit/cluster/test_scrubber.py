"""The scrubber works beside a disk that hangs."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import store.log.scrub
from store.log.disk import File
from store.log.record import Header
from store.log.scan import scan_records
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import node_config, running_node


async def test_a_node_stops_while_its_scrubber_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing the file that the thread was still reading once made the task die, and it began again silently."""
    begun, returns, fatal = threading.Event(), threading.Event(), list[str]()

    def hanging(file: File, start: int) -> Iterator[tuple[Header, memoryview]]:
        begun.set()
        returns.wait(PATIENCE_S)
        return scan_records(file, start)

    monkeypatch.setattr(store.log.scrub, "scan_records", hanging)
    config = node_config(tmp_path, scrub_interval_ms=10)
    try:
        async with asyncio.timeout(PATIENCE_S), running_node(config, fatal) as node:

            async def hangs() -> bool:
                message = {"body": "x" * 500_000}
                await node.call("POST", "/v1/topics/t/messages", {"messages": [message]})
                return begun.is_set()

            await node.call("PUT", "/v1/topics/t", {"queues": 1})
            await node.wait(hangs)
        assert not returns.is_set()
    finally:
        returns.set()
    assert not fatal
    assert "reading old segments failed" not in caplog.text
