"""Tests a node whose disk fails the sync that proves, at the start, that the kernel can sync the log."""

import asyncio
import errno
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.broker import Broker
from cluster.metrics import MeasuredSync
from cluster.process.exit_codes import ExitCode, StartupError
from store.log.errors import DiskError
from tests.unit.cluster.conftest import node_config


async def test_a_disk_that_fails_the_first_sync_ends_the_start_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_arguments: object) -> NoReturn:
        raise DiskError("fdatasync", "segment", errno.EIO, "input/output error")

    monkeypatch.setattr(MeasuredSync, "proven_on", failing)
    broker = Broker.open(node_config(tmp_path), lambda _reason: None)
    with pytest.raises(StartupError, match="fdatasync segment") as raised:
        await broker.serve(asyncio.Event(), lambda: None)
    assert raised.value.code == ExitCode.DISK_REFUSES
    broker.close()
