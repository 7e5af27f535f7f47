"""Retention on a real node: which messages expire, what the node reports, and which part of the log goes."""

import errno
import shutil
from pathlib import Path

import msgspec
import pytest

from cluster.background import retention_service
from cluster.broker import Broker
from cluster.node_store import LOG_BEGINS_LATE, REBUILD_ADVICE
from cluster.process.config import NodeConfig
from cluster.process.exit_codes import ExitCode, StartupError
from raft.node import RaftNode
from raft.proposals import Applied
from store.commands.entry import Command
from store.index import keys
from store.index.index import Index
from store.log.errors import REPAIR_ADVICE, DiskError, DiskFull
from tests.unit.cluster.conftest import Node, node_config, running_node

SEGMENT_BYTES = 1 << 16
CHECK_MS = 10


async def send(node: Node, count: int, body: str = "x") -> None:
    payload = {"messages": [{"body": body, "queue": 0} for _ in range(count)]}
    assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200


async def make_topic(node: Node, **settings: int) -> int:
    return (await node.call("PUT", "/v1/topics/orders", {"queues": 1, **settings})).status


async def wait_for_start(node: Node, start: int) -> None:
    async def has_moved() -> bool:
        return node.core.state.min_offset("orders", 0) >= start

    await node.wait(has_moved)


async def test_a_pull_from_before_the_start_goes_on_there_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        assert await make_topic(node, retention_ms=5_000) == 201
        await send(node, 3)
        node.clock.now_ms += 3_000
        await send(node, 2)
        target = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=10"
        assert (await node.call("GET", target)).body["min_offset"] == 0
        node.clock.now_ms += 2_000
        await wait_for_start(node, 3)
        pulled = (await node.call("GET", target)).body
        assert [message["offset"] for message in pulled["messages"]] == [3, 4]
        assert (pulled["min_offset"], pulled["next_offset"], pulled["max_offset"]) == (3, 5, 5)
        node.clock.now_ms += 5_000
        await wait_for_start(node, 5)
        pulled = (await node.call("GET", target)).body
        assert (pulled["messages"], pulled["min_offset"], pulled["next_offset"]) == ([], 5, 5)
        assert (await node.call("GET", "/v1/topics/orders/queues/0/offsets?at=earliest")).body["offset"] == 5
        waits: list[int] = []
        monkeypatch.setattr(node.core.waiters, "wait_queue", lambda *arguments: waits.append(1))
        for selected in ("", "&tags=A"):  # what the queue holds was over when the request came: it is told at once
            pulled = (await node.call("GET", f"{target}&wait_ms=30000{selected}")).body
            assert (pulled["messages"], pulled["min_offset"], pulled["next_offset"], waits) == ([], 5, 5, [])
        monkeypatch.undo()
        shown = (await node.call("GET", "/v1/topics/orders")).body
        assert shown["queue_offsets"] == [{"queue": 0, "min_offset": 5, "max_offset": 5, "bytes": 0}]
        assert "keelmq_messages_expired_total 5.0" in (await node.call("GET", "/metrics")).body.decode()
    assert not fatal


async def test_retention_is_changed_and_bad_values_are_refused(node: Node) -> None:
    assert await make_topic(node, retention_ms=-1) == 201
    assert (await node.call("GET", "/v1/topics/orders")).body["retention_ms"] == -1
    for bad in (0, -2, 1 << 60):
        assert await make_topic(node, retention_ms=bad) == 400
    assert (await node.call("GET", "/v1/topics/orders")).body["retention_ms"] == -1
    assert await make_topic(node, retention_ms=1) == 200


async def test_what_expires_goes_also_when_the_disk_is_low(tmp_path: Path) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        await make_topic(node, retention_ms=5_000)
        await send(node, 3)
        node.core.raft.disks.note_space(0, is_low=True)
        node.core.config = msgspec.structs.replace(node.core.config, min_free_bytes=1 << 62)
        node.clock.now_ms += 5_000
        await wait_for_start(node, 3)
    assert not fatal


async def test_a_disk_that_is_low_does_not_keep_an_operator_from_making_room(node: Node) -> None:
    for name in ("orders", "gone"):
        assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": 1})).status == 201
    node.core.raft.disks.note_space(0, is_low=True)
    node.core.config = msgspec.structs.replace(node.core.config, min_free_bytes=1 << 62)
    assert await make_topic(node, retention_ms=5_000) == 200
    assert (await node.call("DELETE", "/v1/topics/gone")).status == 204
    for method, path, body in (
        ("PUT", "/v1/topics/new", {"queues": 1}),
        ("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x"}]}),
    ):
        refused = await node.call(method, path, body)
        assert (refused.status, refused.body["code"]) == (507, "disk_full")


@pytest.mark.parametrize(("error", "ends"), [(DiskFull, False), (DiskError, True)])
async def test_the_log_stays_while_the_index_cannot_be_brought_to_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[DiskError],
    ends: bool,
) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=SEGMENT_BYTES)
    async with running_node(config, fatal) as node:

        def fails(*_: object, **__: object) -> None:
            raise error("flush", "index", 0, "it says no")

        await make_topic(node, retention_ms=5_000)
        with monkeypatch.context() as patched:
            patched.setattr(node.core.state, "begin_flush", fails)
            await send(node, 8, "x" * (SEGMENT_BYTES // 4))
            node.clock.now_ms += 5_000

            async def is_said() -> bool:
                return bool(fatal) if ends else "cannot be shortened yet: flush index: it says no" in caplog.text

            await node.wait(is_said)
            assert node.core.log.base.index == 0
    assert set(fatal) == ({"flush index: it says no"} if ends else set())


def walk_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the sweep take one key per command and one key per turn."""
    monkeypatch.setattr(retention_service, "SWEPT_KEYS_PER_COMMAND", 1)
    monkeypatch.setattr(retention_service, "SWEEP_TURN_S", 0)


async def test_messages_expire_while_the_index_is_walked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk through the index may take hours, so it goes in turns."""
    walk_slowly(monkeypatch)
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        propose, proposed = node.core.propose, list[str]()

        async def noted(command: Command) -> Applied:
            proposed.append(type(command).__name__)
            if proposed[-1] == "SweepIndex" and proposed.count("SweepIndex") == 2:
                node.clock.now_ms += 3_000
            return await propose(command)

        assert (await node.call("PUT", "/v1/topics/kept", {"queues": 1, "retention_ms": -1})).status == 201
        for _ in range(10):
            assert (await node.call("POST", "/v1/topics/kept/messages", {"messages": [{"body": "k"}]})).status == 200
        await make_topic(node, retention_ms=5_000)
        await send(node, 3)
        node.clock.now_ms += 3_000
        await send(node, 2)
        monkeypatch.setattr(node.core, "propose", noted)
        node.clock.now_ms += 2_000
        await wait_for_start(node, 5)

        async def walk_is_over() -> bool:
            return not node.core.state.sweep_is_under_way

        await node.wait(walk_is_over)
        assert "SweepIndex" in proposed[proposed.index("ExpireMessages", proposed.index("SweepIndex")) :]
    assert not fatal


async def test_the_log_goes_also_when_the_disk_is_low_and_the_index_half_walked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_slowly(monkeypatch)
    monkeypatch.setattr(RaftNode, "needed_from", lambda raft: 1 << 62)
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=SEGMENT_BYTES)
    async with running_node(config, fatal) as node:
        await make_topic(node, retention_ms=5_000)
        for _ in range(80):
            await send(node, 1, "x" * 60_000)
        node.core.raft.disks.note_space(0, is_low=True)
        node.core.config = msgspec.structs.replace(node.core.config, min_free_bytes=1 << 62)
        monkeypatch.setattr(type(node.core.state), "sweep_is_under_way", True)
        node.clock.now_ms += 5_000
        await wait_for_start(node, 80)

        async def is_short() -> bool:
            return node.core.log.base.index > 50

        await node.wait(is_short)
    assert not fatal


async def test_a_log_that_has_filled_the_disk_is_shortened_though_nothing_more_can_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry has to be written to the log first, and there is no room for that."""
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=SEGMENT_BYTES)
    async with running_node(config, fatal) as node:
        log = node.core.log
        with monkeypatch.context() as patched:
            patched.setattr(RaftNode, "needed_from", lambda raft: 1)  # a follower is away
            await make_topic(node, retention_ms=5_000)
            for _ in range(40):
                await send(node, 1, "x" * 10_000)
            node.clock.now_ms += 5_000
            await wait_for_start(node, 40)
            await send(node, 1)
            assert log.base.index == 0
            assert node.core.state.log_floor > 30

        def is_full(*_: object) -> int:
            raise DiskFull("allocate", "segment", errno.ENOSPC, "no space left on device")

        monkeypatch.setattr(log, "append", is_full)
        node.clock.now_ms += 5_000  # the last message is to expire

        async def is_short() -> bool:
            return log.base.index > 30

        await node.wait(is_short)
        assert node.core.state.min_offset("orders", 0) == 40
    assert not fatal


async def test_the_log_is_cut_to_what_is_pointed_at_when_nobody_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RaftNode, "needed_from", lambda raft: 1 << 62)
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=SEGMENT_BYTES)
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        await make_topic(node, retention_ms=5_000)
        for _ in range(100):
            await send(node, 1, "x" * 60_000)
        names = sorted(path.name for path in (tmp_path / "data" / "log").glob("*.log"))
        assert len(names) > 50
        node.clock.now_ms += 5_000
        await wait_for_start(node, 100)
        await send(node, 1)

        async def is_short() -> bool:
            return len(list((tmp_path / "data" / "log").glob("*.log"))) < 5

        await node.wait(is_short)
        base = node.core.log.base.index
        assert base > 50
        refused = await node.call("GET", f"/v1/log?from_index={base}")
        assert (refused.status, refused.body["code"], refused.body["first_index"]) == (
            410,
            "log_range_removed",
            base + 1,
        )
        assert (await node.call("GET", f"/v1/log?from_index={base + 1}")).status == 200
        refused = await node.call("GET", "/v1/log/events?from_index=1")
        assert (refused.status, refused.body["code"]) == (410, "log_range_removed")
        assert f"keelmq_log_base_index {base}.0" in (await node.call("GET", "/metrics")).body.decode()
        state_hash, applied = node.core.state.state_hash, node.core.state.applied_index
    async with running_node(config, fatal) as node:
        assert node.core.log.base.index >= base
        assert node.core.state.applied_index >= applied
        assert state_hash
        pulled = (await node.call("GET", "/v1/topics/orders/queues/0/messages?offset=0")).body
        assert [message["offset"] for message in pulled["messages"]] == [100]
    assert not fatal
    (tmp_path / "data" / "index" / "CURRENT").write_bytes(b"nonsense")
    refused_start(config, "cannot be opened", LOG_BEGINS_LATE, REPAIR_ADVICE)
    shutil.rmtree(tmp_path / "data" / "index")
    refused_start(config, "index_behind_base", REPAIR_ADVICE)
    mark_format(tmp_path, b"1")
    refused_start(config, "format b'1'", LOG_BEGINS_LATE, REPAIR_ADVICE)


def refused_start(config: NodeConfig, *said: str) -> None:
    with pytest.raises(StartupError) as caught:
        Broker.open(config, print)
    assert caught.value.code == ExitCode.LOG_CORRUPT
    assert all(part in str(caught.value) for part in said), caught.value


def mark_format(tmp_path: Path, version: bytes) -> None:
    index = Index.open(str(tmp_path / "data" / "index"))
    index.put(keys.META_FORMAT, version)
    index.commit()
    index.close()


async def test_an_index_of_an_earlier_version_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = node_config(tmp_path)
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        await make_topic(node)
        await send(node, 3)
        applied = node.core.state.applied_index
    path = str(tmp_path / "data" / "index")
    index = Index.open(path)
    index.put(keys.META_FORMAT, b"1")
    index.delete_range(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES))
    index.commit()
    index.close()
    async with running_node(config, fatal) as node:
        assert node.core.state.applied_index >= applied
        assert node.core.state.max_offset("orders", 0) == 3
        assert node.core.state.log_floor <= applied
    assert "rebuilding the index" in caplog.text
    assert not fatal


def test_what_is_wrong_with_the_index_is_told_with_what_to_do_about_it(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    Broker.open(config, print).close()
    mark_format(tmp_path, b"99")
    refused_start(config, "format b'99'", REBUILD_ADVICE)
    (tmp_path / "data" / "index" / "CURRENT").write_bytes(b"nonsense")
    refused_start(config, "cannot be opened", REBUILD_ADVICE)
    (tmp_path / "data" / "index").rename(tmp_path / "data" / "aside")
    Broker.open(config, print).close()
