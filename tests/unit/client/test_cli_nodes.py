"""What `keelmq cluster promote --wait` says while it waits."""

from typing import Any

import pytest

from keelmq import Admin, Connection
from keelmq.cli_nodes import _promote_when_ready
from keelmq.errors import NotFound
from keelmq.http1 import HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport, json_answer, problem

LEADER = "http://n1:1"
PROMOTED: dict[str, Any] = {"members": [], "warnings": []}


def learner(connected: bool, match_index: int, snapshot_percent: int | None = None) -> dict[str, Any]:
    return {
        "node_id": 4,
        "connected": connected,
        "match_index": match_index,
        "snapshot_percent": snapshot_percent,
        "url": "",
    }


async def promote_when_ready(refusals: list[tuple[str, dict[str, Any]]], last: HttpResponse) -> dict[str, Any]:
    """The node is refused as often as there are (code, how the leader sees it), then `last` is the answer."""
    seen: dict[str, Any] = {}

    def script(request: Request) -> HttpResponse:
        nonlocal seen
        if request.method == "GET":
            return json_answer({"leader_url": LEADER, "durable_index": 100, "nodes": [seen]})
        if not refusals:
            return last
        code, seen = refusals.pop(0)
        return problem(409, code)

    connection = Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True))
    return await _promote_when_ready(Admin(connection), 4)


async def test_who_waits_for_a_promotion_is_told_for_what_whenever_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keelmq.cli_nodes.LOOK_AGAIN_S", 0)
    answer = await promote_when_ready(
        [
            ("change_in_progress", learner(False, 0)),
            ("not_caught_up", learner(False, 0)),
            ("not_caught_up", learner(False, 0)),
            ("not_caught_up", learner(True, 0, 10)),
            ("not_caught_up", learner(True, 0, 90)),
            ("not_caught_up", learner(True, 60)),
            ("not_caught_up", learner(True, 99)),
        ],
        json_answer(PROMOTED),
    )
    assert answer == PROMOTED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "waiting: about change_in_progress; it has 0 of 100 entries",
        "waiting: the leader has no connection to node 4, is it running?; it has 0 of 100 entries",
        "waiting: node 4 is being sent a snapshot; it has 0 of 100 entries",
        "waiting: node 4 catches up, or has yet to hear every other node; it has 60 of 100 entries",
    ]


async def test_a_node_that_is_removed_meanwhile_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.cli_nodes.LOOK_AGAIN_S", 0)
    with pytest.raises(NotFound):
        await promote_when_ready([("not_caught_up", {"node_id": 1, "url": LEADER})], problem(404, "node_not_found"))
