"""Committed offsets are taken from the leader only: elsewhere a missing one may be one that is not there yet."""

import asyncio
import json
from collections.abc import Callable

import pytest

from keelmq.consuming.group_session import GroupSession
from keelmq.consuming.selection import EVERYTHING
from keelmq.consuming.session_times import SessionTimes
from keelmq.errors import NoLeader
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ConnectFailed, ExchangeFailed, HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem, redirect

NEVER_COMMITTED: dict[str, list[object]] = {"offsets": []}
COMMITTED = {"offsets": [{"topic": "t", "queue": 0, "offset": 50}]}


def open_session(
    script: Callable[[Request], HttpResponse], call_timeout_ms: int = 5_000
) -> tuple[GroupSession, ScriptedTransport]:
    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    session = GroupSession(
        connection,
        "g",
        {"t": EVERYTHING},
        member_id="m",
        client_id="c",
        times=SessionTimes(10_000, call_timeout_ms_max=call_timeout_ms),
    )
    return session, transport


def offsets_of(request: Request) -> HttpResponse:
    """Answer for the offsets of a group: n2 has everything; the others are behind."""
    return json_answer(COMMITTED if request.node == "n2" else NEVER_COMMITTED)


async def test_a_node_that_knows_no_leader_is_not_believed() -> None:
    asked = 0

    def script(request: Request) -> HttpResponse:
        nonlocal asked
        if request.target != "/v1/cluster":
            return offsets_of(request)
        asked += 1
        return json_answer({"leader_url": "http://n2:1" if asked > 7 else None})

    session, transport = open_session(script)
    assert await session.committed() == {("t", 0): 50}
    assert [request.node for request in transport.requests if request.target != "/v1/cluster"] == ["n2"]


async def test_without_a_leader_there_is_no_answer() -> None:
    def script(request: Request) -> HttpResponse:
        if request.target != "/v1/cluster":
            return offsets_of(request)
        return json_answer({"leader_url": None}) if request.node == "n1" else problem(503, "not_ready")

    session, transport = open_session(script, call_timeout_ms=100)
    with pytest.raises(NoLeader, match="knows no leader"):
        await session.committed()
    assert {request.target for request in transport.requests} == {"/v1/cluster"}
    assert len(transport.requests) < 30


async def test_a_leader_of_the_past_is_not_believed() -> None:
    """n1 still names n3, which knows better; n1 is reached first, then n3 is gone."""
    n3_answers = [json_answer({"leader_url": "http://n2:1"})]

    def script(request: Request) -> HttpResponse:
        if request.target != "/v1/cluster":
            return offsets_of(request)
        if request.node == "n3" and not n3_answers:
            raise ConnectFailed("refused")
        if request.node == "n3":
            return n3_answers.pop()
        return json_answer({"leader_url": "http://n3:1" if request.node == "n1" else "http://n2:1"})

    session, transport = open_session(script)
    assert await session.committed() == {("t", 0): 50}
    assert [request.node for request in transport.requests if request.target != "/v1/cluster"] == ["n2"]


@pytest.mark.parametrize(
    "answer", [problem(503, "no_leader", retry_after="1"), redirect("http://n2:1/v1/groups/g/offsets")]
)
async def test_a_node_that_lost_leadership_in_between_is_left(answer: HttpResponse) -> None:
    leader = ["http://n1:1"]

    def script(request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": leader[0]})
        leader[0] = "http://n2:1"
        return answer if request.node == "n1" else offsets_of(request)

    session, transport = open_session(script)
    assert await session.committed() == {("t", 0): 50}
    assert [request.node for request in transport.requests if request.target != "/v1/cluster"] == ["n1", "n2"]


async def test_a_waiting_heartbeat_that_is_lost_is_told_before_a_plain_one_follows() -> None:
    """The broker soon ends a session whose connection broke; the member has to know that it may."""
    told: list[int] = []

    def script(request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": "http://n1:1"})
        if "wait_ms" in json.loads(request.body):
            raise ExchangeFailed("the connection broke")
        told.append(len(broken))
        return json_answer({"member_id": "m", "generation": 3, "assignment": [], "session_timeout_ms": 10_000})

    broken: list[None] = []
    session, _ = open_session(script)
    membership, waited = await session.heartbeat(3, 1_000, asyncio.Event(), lambda: broken.append(None))
    assert (membership.generation, waited, told) == (3, True, [1])
