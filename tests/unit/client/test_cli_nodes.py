"""The lines that `keelmq cluster promote --wait` prints while it waits."""

from typing import Any

import pytest

from keelmq import Admin, Connection
from keelmq.admin import ClusterMembers
from keelmq.cli.operations.nodes import _promote_when_ready
from keelmq.errors import NotFound
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport, json_answer, problem

LEADER = "http://n1:1"
STATUS: dict[str, Any] = {
    "cluster_id": "c",
    "node_id": 1,
    "role": "leader",
    "term": 1,
    "leader_url": LEADER,
    "commit_index": 100,
    "applied_index": 100,
    "durable_index": 100,
}
PROMOTED: dict[str, Any] = {"members": [], "warnings": []}


async def promote_when_ready(refusals: list[tuple[str, int]], last: HttpResponse) -> ClusterMembers:
    """Promote a node. Each of `refusals`, (code, match index of the node then), is answered first, and then `last`."""
    match_index = 0

    def script(request: Request) -> HttpResponse:
        nonlocal match_index
        if request.method == "GET":
            node = {"node_id": 4, "match_index": match_index, "url": ""}
            return json_answer({**STATUS, "nodes": [node]})
        if not refusals:
            return last
        code, match_index = refusals.pop(0)
        return problem(409, code)

    connection = Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True))
    return await _promote_when_ready(Admin(connection), 4)


async def test_who_waits_for_a_promotion_is_told_for_what_whenever_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keelmq.cli.operations.nodes.LOOK_AGAIN_S", 0)
    answer = await promote_when_ready(
        [("change_in_progress", 0), ("not_caught_up", 0), ("not_caught_up", 60), ("change_in_progress", 99)],
        json_answer(PROMOTED),
    )
    assert answer.document == PROMOTED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "waiting: about change_in_progress; it has 0 of 100 entries",
        "waiting: about not_caught_up; it has 0 of 100 entries",
        "waiting: about change_in_progress; it has 99 of 100 entries",
    ]


async def test_a_node_that_is_removed_meanwhile_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.cli.operations.nodes.LOOK_AGAIN_S", 0)
    with pytest.raises(NotFound):
        await promote_when_ready([("not_caught_up", 0)], problem(404, "node_not_found"))
