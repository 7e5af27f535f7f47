"""SIGHUP has a node read its configuration again, while its event loop does other work."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from cluster.serving import reload_at_hang_ups
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import node_config


@pytest.fixture
def root_level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.usefixtures("root_level")
async def test_the_configuration_is_read_beside_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The loop waits for no file that the configuration names: one of quotas takes 250 ms to validate."""
    readers, hang_ups = list[threading.Thread](), asyncio.Event()
    config = node_config(tmp_path)
    broker = Broker.open(config, pytest.fail)

    def read_again() -> NodeConfig:
        readers.append(threading.current_thread())
        return replace(config, log_level="warning")

    reloads = asyncio.create_task(reload_at_hang_ups(hang_ups, broker, read_again))
    try:
        hang_ups.set()
        async with asyncio.timeout(PATIENCE_S):
            while "SIGHUP: the log level is warning" not in caplog.text:
                await asyncio.sleep(0)
        (reader,) = readers
        assert reader is not threading.current_thread()
    finally:
        reloads.cancel()
        broker.close()
