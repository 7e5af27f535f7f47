"""Backups at one node: frames in their order, at most two at a time, given up in silence, and a log that stays."""

import asyncio
from pathlib import Path

import pytest

from cluster.core import between_entries
from cluster.operations import backup_api
from cluster.operations.backup_stream import BackupStream
from cluster.process.data_directory import BACKUP_FILE, temporary_of
from raft.node import RaftNode
from store.snapshots.backup_frames import END, LOG, STATE
from store.state.machine import StateMachine
from tests.unit.cluster.conftest import Node, node_config, running_node

CHECK_MS = 10
KIND_AT = 4


async def begin(node: Node) -> dict[str, object]:
    answer = await node.call("POST", "/v1/backups", {})
    assert answer.status == 201, answer
    body: dict[str, object] = answer.body
    return body


async def frames(node: Node, path: str, first: int = 0) -> list[bytes]:
    """Read all frames from `first` on."""
    found: list[bytes] = []
    while not found or found[-1][KIND_AT] != END:
        answer = await node.call("GET", f"{path}?frame={first + len(found)}")
        assert answer.status == 200, answer
        found.append(answer.body)
    return found


async def test_frames_come_in_their_order_and_the_last_one_again(node: Node) -> None:
    begun = await begin(node)
    assert (begun["index"], begun["state_hash"]) == (node.core.state.applied_index, node.core.state.state_hash)
    path = f"/v1/backups/{begun['backup_id']}"
    first = (await node.call("GET", f"{path}?frame=0")).body
    assert (await node.call("GET", f"{path}?frame=0")).body == first
    for wrong in (2, 7):
        refused = await node.call("GET", f"{path}?frame={wrong}")
        assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    early = await node.call("DELETE", f"{path}?stored=true")
    assert (early.status, early.body["code"]) == (400, "invalid_request")
    rest = await frames(node, path, 1)
    assert LOG in [frame[KIND_AT] for frame in rest]
    beyond = await node.call("GET", f"{path}?frame={len(rest) + 1}")
    assert (beyond.status, beyond.body["code"]) == (400, "invalid_request")
    assert (await node.call("DELETE", f"{path}?stored=true")).status == 204
    gone = await node.call("GET", f"{path}?frame=0")
    assert (gone.status, gone.body["code"]) == (404, "backup_not_found")
    node.clock.now_ms += 5_000
    assert "keelmq_backup_age_seconds 5.0" in (await node.call("GET", "/metrics")).body.decode()


async def test_a_client_that_goes_away_while_a_frame_is_made_loses_nothing_of_the_state(node: Node) -> None:
    stream = BackupStream(node.core)
    given_up = asyncio.create_task(stream.frame(1))
    await asyncio.sleep(0)  # it has read a portion, and lets others go on
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert (await stream.frame(1))[KIND_AT] == STATE


async def test_a_backup_begins_and_the_log_is_cut_between_entries(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that pauses is in the queries and not in the index."""
    core, retention = node.core, node.broker.services._retention
    await retention.stop()  # only the test calls it
    paused, dropped = True, list[bool]()
    monkeypatch.setattr(StateMachine, "is_paused", property(lambda _: paused))
    monkeypatch.setattr(retention, "_drop_segments", lambda: dropped.append(paused))

    async def both_wait() -> bool:
        return len(core.waiters.entries) == 2

    beginning, round_ = asyncio.create_task(begin(node)), asyncio.create_task(retention._round())
    await node.wait(both_wait)
    assert not beginning.done()
    assert not dropped
    paused = False
    core.waiters.entries.reached(core.state.applied_index + 1)
    await asyncio.gather(beginning, round_)
    assert dropped == [False]


async def test_an_entry_that_never_ends_holds_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that failed is such a one, and the node stops then."""
    monkeypatch.setattr(StateMachine, "is_paused", property(lambda _: True))
    monkeypatch.setattr(between_entries, "TIMEOUT_S", 0.01)
    refused = await node.call("POST", "/v1/backups", {})
    assert (refused.status, refused.body["code"]) == (429, "overloaded")


async def test_at_most_two_are_under_way_and_silence_ends_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_api, "IDLE_S_MAX", 0.2)
    await begin(node)
    await begin(node)
    refused = await node.call("POST", "/v1/backups", {})
    if refused.status != 201:  # unless this machine stood still for longer than that
        assert (refused.status, refused.body["code"]) == (429, "overloaded")
        assert "2 backups are under way" in refused.body["detail"]

    async def none_under_way() -> bool:
        return "keelmq_backups_under_way 0.0" in (await node.call("GET", "/metrics")).body.decode()

    await node.wait(none_under_way)
    assert node.core.log_pins.first_index(1 << 62) == 1 << 62
    assert "keelmq_backups_given_up_total 2.0" in (await node.call("GET", "/metrics")).body.decode()


async def test_the_log_stays_as_long_as_a_backup_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftNode, "needed_from", lambda raft: 1 << 62)
    config = node_config(tmp_path, retention_check_ms=CHECK_MS, segment_bytes=1 << 16)
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1, "retention_ms": 5_000})).status == 201
        for _ in range(10):
            payload = {"messages": [{"body": "x" * 60_000, "queue": 0}]}
            assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200
        begun = await begin(node)
        node.clock.now_ms += 6_000

        async def is_needless() -> bool:
            state = node.core.state
            state.begin_flush()
            return node.core.log.can_drop_before(min(state.log_floor, state.flushed_index + 1))

        await node.wait(is_needless)
        node.broker.services._retention._drop_segments()
        assert node.core.log.first_index == begun["first_index"]

        async def is_shown() -> bool:
            holders = (await node.call("GET", "/v1/cluster")).body["log_holders"]
            return any((each["kind"], each["subject"]) == ("backup", begun["backup_id"]) for each in holders)

        await node.wait(is_shown)
        path = f"/v1/backups/{begun['backup_id']}"
        logs = [frame for frame in await frames(node, path) if frame[KIND_AT] == LOG]
        assert b"x" * 60_000 in b"".join(logs)
        assert (await node.call("DELETE", path)).status == 204

        async def is_shorter() -> bool:
            return node.core.log.base.index > 0

        await node.wait(is_shorter)
    assert not fatal


async def shown(node: Node) -> list[str]:
    """Return what the metrics say of the last backup."""
    lines = (await node.call("GET", "/metrics")).body.decode().splitlines()
    return [line for line in lines if line.startswith(("keelmq_backup_age_seconds", "keelmq_backup_bytes"))]


async def test_the_last_backup_is_known_after_a_restart(tmp_path: Path) -> None:
    """Ages go by the wall clock, and are never negative: that clock may have been set back."""
    fatal: list[str] = []
    config = node_config(tmp_path)
    async with running_node(config, fatal) as node:
        path = f"/v1/backups/{(await begin(node))['backup_id']}"
        size = sum(map(len, await frames(node, path)))
        assert await shown(node) == ["keelmq_backup_bytes 0.0"]
        assert (await node.call("DELETE", f"{path}?stored=true")).status == 204
    for leapt_ms, age in ((90_000_000, "90000.0"), (-5_000, "0.0")):
        async with running_node(config, fatal, leapt_ms) as node:
            assert await shown(node) == [f"keelmq_backup_age_seconds {age}", f"keelmq_backup_bytes {float(size)}"]
            uid = node.core.state.cluster_uid
    file = Path(config.data_dir) / BACKUP_FILE
    of_another = file.read_bytes().replace(uid.encode(), b"of another cluster")
    for unusable in (of_another, b"{", b"[" * 100_000):
        file.write_bytes(unusable)
        async with running_node(config, fatal) as node:
            assert await shown(node) == ["keelmq_backup_bytes 0.0"]
    assert not fatal


async def test_a_backup_that_cannot_be_noted_is_stored_all_the_same(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    temporary_of(Path(node.core.config.data_dir) / BACKUP_FILE).mkdir()
    path = f"/v1/backups/{(await begin(node))['backup_id']}"
    await frames(node, path)
    assert (await node.call("DELETE", f"{path}?stored=true")).status == 204
    assert (await shown(node))[0] == "keelmq_backup_age_seconds 0.0"
    assert "cannot be written" in caplog.text
