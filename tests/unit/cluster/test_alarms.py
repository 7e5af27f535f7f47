"""Alarms: logged once when they begin and end, shown to operators while they last."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from cluster.budgets.connections import NEW_PER_LOOK
from cluster.health.alarms import Alarms, Condition
from cluster.health.descriptor_guard import DescriptorGuard
from cluster.health.disk_guard import MIN_FREE_FILES, DiskGuard
from store.descriptors import KEPT_FREE, SPARES, SpareDescriptors, count_free
from tests.descriptors import without_descriptors
from tests.simdisk import SimDisk
from tests.unit.cluster.conftest import START_MS, Node

CLUSTER = Path(__file__).parents[3] / "cluster"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def alarms_of(node: Node) -> Alarms:
    return node.broker.services.alarms


async def test_an_alarm_is_told_once_and_keeps_its_beginning(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    wrong = [Condition("disk_low", "warning", "50 bytes are free"), Condition("disk_low", "critical", "b", "other")]
    alarms = alarms_of(node)
    alarms.add(lambda: iter(wrong))
    with caplog.at_level(logging.INFO):
        alarms.look()
        node.clock.now_ms += 5_000
        wrong[0] = wrong[0]._replace(detail="40 bytes are free")
        alarms.look()
        shown = (await node.call("GET", "/v1/cluster")).body["alarms"]
        assert [(alarm["subject"], alarm["since_ms"]) for alarm in shown] == [("other", START_MS), ("", START_MS)]
        assert shown[1]["detail"] == "40 bytes are free"
        text = (await node.call("GET", "/metrics")).body.decode()
        assert 'keelmq_alarm{code="disk_low",severity="critical"} 1.0' in text
        wrong.clear()
        alarms.look()
    lines = [record.getMessage() for record in caplog.records if "alarm" in record.getMessage()]
    assert [line.split(":")[0] for line in lines] == [
        "alarm disk_low",
        "alarm disk_low (other)",
        "alarm disk_low is over, after 5 s",
        "alarm disk_low (other) is over, after 5 s",
    ]
    alarms = (await node.call("GET", "/v1/cluster")).body["alarms"]
    assert "disk_low" not in {alarm["code"] for alarm in alarms}


async def test_a_low_disk_is_an_alarm(node: Node) -> None:
    node.core.raft.disks.note_space(0, is_low=True)
    alarms_of(node).look()
    assert "disk_low" in {alarm.code for alarm in alarms_of(node).active}  # a loop that stood may be another one


async def test_the_alarm_for_a_missing_leader_names_the_reason_and_the_next_step(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    vacancy = node.core.raft.vacancy
    monkeypatch.setattr(vacancy, "waits_for", lambda: "2 of 3 voters are needed")
    monkeypatch.setattr(vacancy, "next_step", lambda: "do this")
    monkeypatch.setattr(type(node.core.raft), "leader_id", None)
    monkeypatch.setattr(type(node.core.raft), "lacks_vote", True)
    alarms_of(node).look()
    node.clock.now_ms += 3_600_000
    alarms_of(node).look()
    details = {alarm.code: alarm.detail for alarm in alarms_of(node).active}
    assert details["no_leader"] == "2 of 3 voters are needed. Nothing is written until then: do this"
    assert details["disk_is_new"].endswith("No leader is known: do this")
    view = (await node.call("GET", "/v1/cluster")).body
    assert view["waits_for"] == "2 of 3 voters are needed"
    monkeypatch.setattr(vacancy, "waits_for", lambda: None)
    alarms_of(node).look()
    details = {alarm.code: alarm.detail for alarm in alarms_of(node).active}
    assert "no_leader" not in details
    assert "No leader is known" not in details["disk_is_new"]


def codes_in(source: str) -> Iterator[str]:
    for match in re.finditer(r"\bCondition\(\s*\"(\w+)\"", source):
        yield match[1]


def test_the_page_lists_every_alarm() -> None:
    made = {code for path in CLUSTER.rglob("*.py") for code in codes_in(path.read_text())}
    section = PAGE.read_text().partition("## Alarms")[2]
    assert set(re.findall(r"^\| `(\w+)` \| (?:warning|critical)", section, re.MULTILINE)) == made


async def test_a_disk_that_fills_up_is_an_alarm_before_it_is_low(node: Node) -> None:
    limits = {"warn_free_bytes": 1_000, "min_free_bytes": 100}
    node.core.config = msgspec.structs.replace(node.core.config, segment_bytes=1 << 16, **limits)
    disk = SimDisk(Random(0))
    guard = DiskGuard(node.core, disk, "/data")

    def codes(free_bytes: int) -> set[str]:
        disk.free_bytes = lambda path: free_bytes  # type: ignore[method-assign]
        guard.look()
        return {each.code for each in guard.conditions() if not each.subject}

    assert codes(1_000) == set()
    assert codes(999) == {"disk_filling"}
    assert codes(1_061) == {"disk_filling"}  # not over and again with every file that comes and goes
    assert codes(1_062) == set()
    assert codes(99) == {"disk_low"}
    assert codes(500) == {"disk_filling"}
    node.core.config = msgspec.structs.replace(node.core.config, warn_free_bytes=100)
    assert codes(105) == set()
    node.core.config = msgspec.structs.replace(node.core.config, warn_free_bytes=0)
    assert codes(105) == set()


async def test_a_disk_without_inodes_is_low_however_many_bytes_are_free(node: Node) -> None:
    """The log could not grow, which is not over because there are bytes."""
    disk = SimDisk(Random(0))
    guard = DiskGuard(node.core, disk, "/data")

    def detail(inodes: int | None) -> str:
        disk.free_inodes = inodes
        guard.look()
        return next((each.detail for each in guard.conditions() if each.code == "disk_low"), "")

    assert not detail(None)
    assert not detail(MIN_FREE_FILES)
    assert f"{MIN_FREE_FILES - 1} inodes" in detail(MIN_FREE_FILES - 1)
    assert detail(2 * MIN_FREE_FILES - 1)  # not over and again with every file that comes and goes
    assert not detail(2 * MIN_FREE_FILES)
    disk.descriptors = 0
    node.core.raft.disks.on_log_full()
    assert detail(None)
    disk.descriptors = None
    assert not detail(None)


async def test_a_burst_of_connections_is_noticed_while_it_takes_the_descriptors(node: Node) -> None:
    """A burst takes all within a second, also those that flushes and compactions need, and RocksDB does not recover."""
    spares, connections = SpareDescriptors(SPARES), node.core.connections
    guard = DescriptorGuard(node.core, spares)
    with without_descriptors(left=100), contextlib.ExitStack() as taken:
        for _ in range(200):
            if not connections.has_descriptor():
                break
            taken.callback(os.close, os.dup(0))
        assert count_free(KEPT_FREE) >= KEPT_FREE // 2 - NEW_PER_LOOK
        assert spares.has(KEPT_FREE // 2)
    guard.look()
    assert not connections.is_short
    spares.close()


async def test_looks_that_connections_cause_close_no_idle_ones(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor is free only a turn of the loop after its connection was closed: each look would close more."""
    spares, connections, closed = SpareDescriptors(0), node.core.connections, list[int]()
    guard = DescriptorGuard(node.core, spares)
    monkeypatch.setattr(connections, "close_idle", closed.append)
    monkeypatch.setattr("cluster.health.descriptor_guard.MISSING_MAX", 0)
    with without_descriptors(left=0):
        for _ in range(3 * NEW_PER_LOOK):
            connections.has_descriptor()
            assert not closed or connections.is_short
        assert set(closed) == {1}, "one for each new connection"
        guard.look()
        assert closed[-1] == KEPT_FREE
    guard.look()
    assert closed[-1] == 0


async def test_missing_descriptors_are_an_alarm_and_idle_clients_make_room(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    spares = SpareDescriptors(SPARES)
    guard = DescriptorGuard(node.core, spares)
    guard.look()
    assert not list(guard.conditions())
    with without_descriptors(left=KEPT_FREE):
        guard.look()
        assert not list(guard.conditions())
        taken = [os.dup(0) for _ in range(KEPT_FREE)]
        guard.look()
        assert [each.code for each in guard.conditions()] == ["descriptors_low"]
        taken += [os.dup(0) for _ in range(KEPT_FREE)]
        guard.look()
        are_short = [node.core.connections.is_short]  # not yet: clients may have those that the log does not need
        taken.append(os.dup(0))
        guard.look()
        are_short.append(node.core.connections.is_short)
        for each in taken:
            os.close(each)
        guard.look()
        assert not list(guard.conditions())
        assert [*are_short, node.core.connections.is_short] == [False, True, False]
    spares.close()
    assert [record.message for record in caplog.records if "descriptors" in record.message] == [
        f"{KEPT_FREE} of the file descriptors that are kept for log, index and peers are missing",
        "all file descriptors that are kept for log, index and peers are there again",
    ]
