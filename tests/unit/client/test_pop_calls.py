"""Pop calls against scripted nodes: a node that hangs costs a share of the budget, and never receives a pop."""

from itertools import permutations
from typing import Any

import pytest

from keelmq.cli.messages.pop import _ack
from keelmq.consuming.pop_calls import PopCalls
from keelmq.consuming.selection import Selection
from keelmq.errors import NoLeader, UnknownOutcome
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ConnectFailed, ExchangeFailed, HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, redirect

NAMES = ("n1", "n2", "n3")
ORDERS = list(permutations(NAMES))
POP = "/v1/groups/g/pop"
POPPED: dict[str, Any] = {
    "topic": "orders", "queue": 0, "offset": 0, "message_id": "m", "body": "x", "encoding": "utf8",
    "receipt_handle": "h",
}  # fmt: skip


class Nodes:
    """Three nodes of which some hang. All name the same leader until `elected` questions were asked, then the next."""

    def __init__(self, *, leader: str, hanging: str, elected: str | None = None) -> None:
        self.leader = leader
        self.hanging = hanging
        self.elected = elected
        self.refuses = ""

    def __call__(self, request: Request) -> HttpResponse:
        if request.node == self.refuses:
            raise ConnectFailed("refused")
        if request.node == self.hanging:
            if self.elected is not None:
                self.leader = self.elected
            raise ExchangeFailed("no answer")
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": f"http://{self.leader}:1"})
        if request.node != self.leader:
            return redirect(f"http://{self.leader}:1{request.target}")
        if request.target == POP:
            return json_answer({"messages": [POPPED]})
        if request.target == f"{POP}/ack":
            return json_answer({"results": [{"receipt_handle": "h", "outcome": "acked"}]})
        return json_answer({"receipt_handle": "h", "outcome": "held", "due_at_ms": 1})


def calls_of(nodes: Nodes, order: tuple[str, ...] = NAMES) -> tuple[PopCalls, ScriptedTransport]:
    transport = ScriptedTransport(nodes, answers_cluster=True)
    servers = [f"http://{name}:1" for name in order]
    connection = Connection(servers, transport=transport, rng=lambda: 0.0)
    return PopCalls(connection, "g", "orders", Selection(), "c"), transport


def asked(transport: ScriptedTransport, target: str) -> list[str]:
    return [request.node for request in transport.requests if request.target == target]


@pytest.mark.parametrize("wait_ms", [0, 15_000])
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_a_node_that_hangs_gets_no_pop_whatever_the_order(order: tuple[str, ...], wait_ms: int) -> None:
    calls, transport = calls_of(Nodes(leader="n2", hanging="n1"), order)
    assert [each.receipt_handle for each in await calls.pop(1, 60_000, wait_ms, "earliest")] == ["h"]
    assert asked(transport, POP) == ["n2"], "a pop is sent once"
    budget_s = (wait_ms + 5_000) / 1000
    hung_s = [request.timeout_s for request in transport.requests if request.node == "n1"]
    assert hung_s == ([pytest.approx(budget_s / 3, rel=0.2)] if order[0] == "n1" else [])


async def test_a_known_leader_is_not_looked_for_again() -> None:
    calls, transport = calls_of(Nodes(leader="n2", hanging=""))
    for _ in range(3):
        await calls.pop(1, 60_000, 0, "earliest")
    assert asked(transport, "/v1/cluster") == ["n1", "n2"]
    assert asked(transport, POP) == ["n2"] * 3


@pytest.mark.parametrize("first", NAMES)
async def test_a_leader_that_hangs_gets_no_pop_although_the_others_name_it(first: str) -> None:
    order = (first, *(name for name in NAMES if name != first))
    calls, transport = calls_of(Nodes(leader="n1", hanging="n1", elected="n3"), order)
    assert len(await calls.pop(1, 60_000, 0, "earliest")) == 1
    assert asked(transport, POP) == ["n3"]


async def test_a_named_leader_that_is_gone_is_passed_over() -> None:
    nodes = Nodes(leader="n3", hanging="")
    nodes.refuses = "n1"
    calls, transport = calls_of(nodes)
    await calls.pop(1, 60_000, 0, "earliest")
    assert asked(transport, POP) == ["n3"]


async def test_nothing_was_leased_where_no_leader_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question for the leader changes nothing, so its lost answer leaves no doubt about the pop."""

    def silent(request: Request) -> HttpResponse:
        raise ExchangeFailed("no answer")

    transport = ScriptedTransport(silent, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    calls = PopCalls(connection, "g", "orders", Selection(), "c")
    monkeypatch.setattr("keelmq.consuming.pop_calls.MARGIN_MS", 300)
    with pytest.raises(NoLeader, match="nothing was stored") as caught:
        await calls.pop(1, 60_000, 0, "earliest")
    assert not caught.value.outcome_unknown
    assert asked(transport, POP) == []


async def test_a_pop_whose_answer_is_lost_is_not_repeated() -> None:
    """A second pop would lease other messages, and those of the lost answer stay leased."""

    def loses_answers(request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": "http://n1:1"})
        raise ExchangeFailed("connection closed")

    transport = ScriptedTransport(loses_answers, answers_cluster=True)
    calls = PopCalls(Connection(SERVERS, transport=transport, rng=lambda: 0.0), "g", "orders", Selection(), "c")
    with pytest.raises(UnknownOutcome):
        await calls.pop(1, 60_000, 0, "earliest")
    assert asked(transport, POP) == ["n1"]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_ack_hold_and_give_back_go_on_after_a_node_that_hangs(order: tuple[str, ...]) -> None:
    for method in ("ack", "hold", "give_back"):
        calls, transport = calls_of(Nodes(leader="n2", hanging="n1"), order)
        arguments: dict[str, tuple[Any, ...]] = {"ack": (["h"],), "hold": ("h", 1_000), "give_back": ("h",)}
        await getattr(calls, method)(*arguments[method])
        assert [request.timeout_s for request in transport.requests if request.node == "n1"] in (
            [],
            [pytest.approx(2.5, rel=0.2)],
        )


async def test_the_command_names_what_it_printed_and_could_not_acknowledge(capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: Request) -> HttpResponse:
        if request.target == POP:
            return json_answer({"messages": [POPPED, {**POPPED, "message_id": "late", "receipt_handle": "i"}]})
        acked = {"receipt_handle": "h", "outcome": "acked"}
        return json_answer({"results": [acked, {"receipt_handle": "i", "outcome": "handle_expired"}]})

    connection = Connection(["http://n1:1"], transport=ScriptedTransport(script))
    calls = PopCalls(connection, "g", "orders", Selection(), "c")
    connection._at_leader = True
    await _ack(calls, await calls.pop(2, 1_000, 0, "earliest"))
    assert capsys.readouterr().err == "late comes again: its time was over before it was acknowledged\n"
