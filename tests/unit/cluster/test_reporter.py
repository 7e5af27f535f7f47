"""Notices of a running node to the service manager."""

import asyncio
import socket
from pathlib import Path

import pytest

from cluster.service_manager import reporter
from cluster.service_manager.notify_socket import NotifySocket
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import Node, node_config, running_node


async def test_readiness_is_told_when_it_comes_about_and_not_in_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "ROUND_S", 3_600.0)
    path, fatal = str(tmp_path / "notify"), list[str]()

    async def report(node: Node) -> None:
        made = reporter.ServiceReporter(node.core, node.broker.services.readiness, NotifySocket(path))
        made.start()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            heard = ""
            while "READY=1" not in heard:
                heard += (await loop.sock_recv(manager, 4_096)).decode() + "\n"
        assert heard.index("STATUS=not ready: no leader is known") < heard.index("READY=1")
        await made.stop(opens_again=False)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.setblocking(False)
        async with running_node(node_config(tmp_path, election_timeout_ms=1_000), fatal, before_ready=report):
            assert not fatal
