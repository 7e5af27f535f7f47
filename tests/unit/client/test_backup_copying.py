"""Copying a backup from a node: it is asked for something all the time, and interrupts leave nothing half done."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Final, cast

import msgspec
import pytest

from keelmq.admin import Admin, BackupBegun
from keelmq.cli.operations import backup
from keelmq.errors import Unavailable
from keelmq.log import backup_frames
from tests.unit.client.test_backup_objects import whole_backup

IDLE_MS_MAX: Final = 40


class SlowNode:
    """Stands in for `Admin`: has one whole backup, and notes the frames that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.changed = threading.Event()
        self._frames = list(self._split(whole_backup()))

    @staticmethod
    def _split(data: bytes) -> Iterator[bytes]:
        while data:
            size = backup_frames.HEAD.size + backup_frames.HEAD.unpack_from(data)[2]
            yield data[:size]
            data = data[size:]

    async def backup_frame(self, backup_id: str, number: int) -> bytes:
        self.asked.append(number)
        self.changed.set()
        return self._frames[number]


BEGUN: Final = BackupBegun(
    backup_id="b", node_id=1, cluster_id="shop", cluster_uid="uid", index=7, state_hash="00ff", idle_ms_max=IDLE_MS_MAX
)


class SlowTarget:
    """A backup whose first write lasts until the node was asked for the same frame `repeats` times."""

    name, size_bytes = "slow", 0

    def __init__(self, node: SlowNode, repeats: int) -> None:
        self._node, self._repeats = node, repeats
        self.is_written = self.is_published = False
        self.begun = threading.Event()

    def write(self, data: bytes) -> None:
        self.begun.set()
        while len(self._node.asked) <= self._repeats:
            self._node.changed.wait()
            self._node.changed.clear()
        self.is_written = True

    def publish(self) -> None:
        self.is_published = True


async def test_a_node_is_asked_while_a_part_is_on_its_way() -> None:
    node = SlowNode()
    target = SlowTarget(node, repeats=3)
    await backup._copy(cast(Admin, node), BEGUN, target)
    assert node.asked[:4] == [0, 0, 0, 0]
    assert node.asked[-1] == 1
    assert target.is_published


async def test_what_is_written_ends_before_an_interrupted_backup_is_removed() -> None:
    node = SlowNode()
    target = SlowTarget(node, repeats=1)
    begun = msgspec.structs.replace(BEGUN, idle_ms_max=0)
    idle = asyncio.ensure_future(backup._kept_alive(cast(Admin, node), begun, 0, partial(target.write, b"")))
    await asyncio.to_thread(target.begun.wait)
    idle.cancel()
    for _ in range(2):
        await node.backup_frame("b", 0)
    with contextlib.suppress(asyncio.CancelledError):
        await idle
    assert (idle.cancelled(), target.is_written) == (True, True)


class LateTarget:
    """A backup that is interrupted while it is published, which succeeds or not."""

    name, size_bytes = "late", 0

    def __init__(self, *, succeeds: bool) -> None:
        self.is_published, self._succeeds = False, succeeds
        self.publishing, self.goes_on = threading.Event(), threading.Event()

    def write(self, data: bytes) -> None: ...

    def publish(self) -> None:
        self.publishing.set()
        self.goes_on.wait()
        if not self._succeeds:
            raise Unavailable("store_unreachable", "no answer")
        self.is_published = True


@pytest.mark.parametrize("succeeds", [False, True])
async def test_an_interrupt_of_a_backup_that_is_complete_is_ignored(succeeds: bool) -> None:
    """The command said that it had stored nothing, and the backup was there."""
    target = LateTarget(succeeds=succeeds)
    copying = asyncio.ensure_future(backup._copy(cast(Admin, SlowNode()), BEGUN, target))
    await asyncio.to_thread(target.publishing.wait)
    copying.cancel()
    target.goes_on.set()
    with contextlib.suppress(asyncio.CancelledError):
        await copying
    assert copying.cancelled() != succeeds


def test_two_backups_of_one_second_have_different_names() -> None:
    """The second one, of the same entry, failed at its very end: a tool that is killed and run again makes both."""
    first = msgspec.structs.replace(BEGUN, created_ms=1_777_885_964_305)
    second = msgspec.structs.replace(first, created_ms=first.created_ms + 1)
    assert backup._name_of(first) == "shop-7-20260504T091244305Z.backup"
    assert backup._name_of(second) == "shop-7-20260504T091244306Z.backup"
