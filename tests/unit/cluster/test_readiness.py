"""A node's readiness for load balancers, also while it is stuck, its disk is full, or its index is rebuilt."""

import logging
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import raft.entries.applier
from cluster.health.index_rebuild import ENTRIES_MIN, IndexRebuild
from cluster.health.readiness import STUCK_S, Readiness
from cluster.problems import problem_of
from raft.errors import NoRoom
from raft.messages import DiskVitals
from store.commands.cluster import PutSettings
from store.commands.entry import Proposal
from tests.sim.variant import Swap, mutant
from tests.unit.cluster.conftest import Node, node_config, running_node


async def ready(node: Node, purpose: str = "") -> tuple[int, str]:
    answer = await node.call("GET", f"/readyz{purpose and f'?for={purpose}'}")
    return answer.status, answer.body.get("detail", "")


async def test_ready_for_what(node: Node) -> None:
    assert (await ready(node))[0] == (await ready(node, "reads"))[0] == (await ready(node, "writes"))[0] == 200
    for query in ("for=breakfast", "for=", "for=writes&for=writes", "fro=writes"):
        answer = await node.call("GET", f"/readyz?{query}")
        assert (answer.status, answer.body["code"]) == (400, "invalid_request"), query


async def test_a_full_disk_is_ready_for_reads_only(node: Node) -> None:
    node.core.raft.disks.note_space(5, is_low=True)
    assert (await ready(node))[0] == 200
    status, detail = await ready(node, "writes")
    assert (status, "no room on the disk of node 1" in detail) == (503, True)
    refused = await node.call("PUT", "/v1/topics/new", {"queues": 1})
    assert (refused.status, refused.body["code"], refused.body["full_nodes"]) == (507, "disk_full", [1])
    (own,) = (await node.call("GET", "/v1/cluster")).body["nodes"]
    assert (own["disk_free_bytes"], own["disk_is_low"]) == (5, True)


async def test_who_is_full_is_told_though_it_is_not_this_node(node: Node) -> None:
    node.core.raft.disks.hear(1_000, DiskVitals(free_bytes=7, is_low=True, sync_ms=3))
    assert (await ready(node, "writes"))[0] == 200, "that one is no voter"
    node.broker.services.alarms.look()
    (alarm,) = (await node.call("GET", "/v1/cluster")).body["alarms"]
    assert (alarm["code"], alarm["subject"], alarm["severity"]) == ("disk_low", "1000", "warning")


async def test_a_node_that_applies_nothing_of_what_its_leader_has_committed_is_not_ready(node: Node) -> None:
    """A node whose disk cannot take the entries hears of them all the same."""
    knowledge = node.core.raft._raft.state.knowledge
    knowledge.told_committed(node.core.raft.term, node.core.raft.applied_index + 1)
    assert (await ready(node))[0] == 200, "it may be on its way"
    node.clock.now_ms += int(STUCK_S * 1000)
    status, detail = await ready(node)
    assert (status, detail.startswith("stuck: applied")) == (503, True)
    node.broker.services.alarms.look()
    assert [alarm.code for alarm in node.broker.services.alarms.active] == ["node_behind"]
    assert (await node.call("PUT", "/v1/topics/new", {"queues": 1})).status == 201
    assert (await ready(node))[0] == 200


async def test_a_removed_index_is_made_anew_with_a_line_and_its_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path)
    async with running_node(config, fatal) as node:
        assert (await node.call("PUT", "/v1/topics/t", {"queues": 1})).status == 201
        for _ in range(ENTRIES_MIN):
            await node.core.raft.propose(Proposal(PutSettings(reject_transactions=False)))
    shutil.rmtree(Path(config.data_dir) / "index")
    monkeypatch.setattr(raft.entries.applier, "APPLY_BUDGET_MS", 0)  # one entry in a turn of the loop
    seen: list[dict[str, Any]] = []
    with caplog.at_level(logging.INFO):
        async with running_node(config, fatal, before_ready=lambda node: _note_progress(node, seen)) as node:
            assert (await node.call("GET", "/v1/cluster")).body["index_rebuild"] is None
            assert node.core.state.topic("t") is not None
            text = (await node.call("GET", "/metrics")).body.decode()
            assert "keelmq_index_rebuild_entries_left 0.0" in text
    assert not fatal
    assert "there is no index: rebuilding it from the log" in caplog.text
    assert "the index has all" in caplog.text
    assert seen, "nobody was answered meanwhile"
    assert all(each["applied_index"] < each["last_index"] for each in seen)
    assert all(0 <= each["percent"] < 100 for each in seen)


async def _note_progress(node: Node, seen: list[dict[str, Any]]) -> None:
    assert (await node.call("GET", "/healthz")).status == 200
    rebuild = (await node.call("GET", "/v1/cluster")).body["index_rebuild"]
    if rebuild is not None:
        seen.append(rebuild)


async def test_what_waits_for_a_place_in_the_log_is_refused_as_well(node: Node) -> None:
    """The proposal would wait behind entries that no majority has room for, and its outcome would be unknown."""
    raft = node.core.raft
    raft.disks.note_space(5, is_low=True)
    waiting = raft.propose(Proposal(PutSettings(reject_transactions=False)))
    raft.refuse_waiting(NoRoom(node.core.why_no_room() or ""))
    with pytest.raises(NoRoom, match="no room on the disk of node 1"):
        await waiting
    problem = problem_of(NoRoom("why"))
    assert problem is not None
    assert (problem.code, problem.detail) == ("disk_full", "why")


def never_stands(_: Readiness) -> float:
    """A node that applies nothing of what is committed takes requests all the same."""
    return 0.0


async def test_a_stuck_node_that_calls_itself_ready_is_missed(node: Node) -> None:
    with mutant(0, Swap(Readiness, "_stuck_s", never_stands)).installed(), pytest.raises(AssertionError):
        await test_a_node_that_applies_nothing_of_what_its_leader_has_committed_is_not_ready(node)


@property  # type: ignore[misc]
def shows_no_progress(_: IndexRebuild) -> None:
    """A node whose index is rebuilt says nothing of it to those who ask."""


async def test_a_rebuild_without_its_progress_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock.patch.object(IndexRebuild, "view", shows_no_progress), pytest.raises(AssertionError):
        await test_a_removed_index_is_made_anew_with_a_line_and_its_progress(tmp_path, caplog, monkeypatch)
