"""Pop consumers use HTTP on a real node whose clock the test moves."""

import asyncio
import base64
from typing import Any, cast

import msgspec
import pytest

import cluster.groups.pop_api
from cluster.budgets.pace import Pace
from cluster.core.outcomes import unless_left
from cluster.limits import POP_ACKS_MAX, POP_INVISIBLE_MS_MAX, POP_MESSAGES_MAX
from raft.errors import NoLeader
from raft.proposals import Applied, Proposed
from store.commands.entry import Proposal
from store.commands.pops import Pop
from store.commands.topics import DeleteTopic, PutTopic
from store.limits import RETRY_DELAYS_MS
from tests.unit.cluster.conftest import START_MS, Answer, Node

POP, ACK, INVISIBLE = "/v1/groups/g/pop", "/v1/groups/g/pop/ack", "/v1/groups/g/pop/invisible"


@pytest.fixture(autouse=True)
async def five_messages(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    messages = [
        {"body": f"order {number}", "message_id": f"o-{number}", "tag": "AB"[number % 2]} for number in range(5)
    ]
    await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})


async def pop(node: Node, **fields: Any) -> list[Any]:
    answer = await node.call("POST", POP, {"topic": "orders", **fields})
    assert answer.status == 200, answer
    found: list[Any] = answer.body["messages"]
    return found


async def ack(node: Node, *messages: Any) -> list[str]:
    answer = await node.call("POST", ACK, {"receipt_handles": [each["receipt_handle"] for each in messages]})
    assert answer.status == 200, answer
    return [each["outcome"] for each in answer.body["results"]]


async def invisible(node: Node, message: Any, **fields: Any) -> Answer:
    return await node.call("POST", INVISIBLE, {"receipt_handle": message["receipt_handle"], **fields})


async def progress(node: Node, topic: str = "orders") -> Any:
    answer = await node.call("GET", f"/v1/groups/g/offsets?topic={topic.replace('%', '%25')}")
    (found,) = answer.body["offsets"]
    return found


async def test_messages_are_taken_acknowledged_and_counted(node: Node) -> None:
    first, second = await pop(node, max_messages=2), await pop(node)
    assert [each["body"] for each in (*first, *second)] == [f"order {number}" for number in range(5)]
    assert {each["attempt"] for each in first} == {0}
    assert (first[0]["message_id"], first[0]["tag"], first[0]["topic"]) == ("o-0", "A", "orders")
    assert await pop(node) == []
    assert await ack(node, second[2], first[0]) == ["acked", "acked"]
    assert await ack(node, first[0]) == ["acked"], "told again"
    shown = await progress(node)
    assert (shown["offset"], shown["lag"], shown["held"]) == (5, 3, 3)
    metrics = (await node.call("GET", "/metrics")).body.decode()
    assert "keelmq_popped_messages_total 5.0" in metrics
    assert 'keelmq_pop_acks_total{outcome="acked"} 3.0' in metrics


async def test_what_is_not_acknowledged_comes_again_and_the_old_handle_is_told_so(node: Node) -> None:
    waiting = await pop(node, max_messages=1, invisible_ms=5_000)
    assert len(await pop(node)) == 4
    again = asyncio.create_task(pop(node, wait_ms=30_000))
    node.clock.now_ms += 5_000
    (message,) = await again
    assert (message["message_id"], message["attempt"], message["topic"]) == ("o-0", 1, "%RETRY%g")
    assert message["origin"] == {"topic": "orders", "queue": 0, "offset": 0}
    assert await ack(node, waiting[0], message) == ["handle_expired", "acked"]


async def test_a_message_is_held_on_to_given_back_and_released(node: Node) -> None:
    held, released, failed = await pop(node, max_messages=3, invisible_ms=5_000)
    answer = await invisible(node, held, invisible_ms=60_000)
    assert answer.body == {
        "receipt_handle": held["receipt_handle"],
        "outcome": "held",
        "due_at_ms": START_MS + 60_000,
    }
    assert (await invisible(node, released, invisible_ms=0)).body["outcome"] == "scheduled"
    assert (await invisible(node, failed, reason="no money")).body["due_at_ms"] == START_MS + 10_000
    again = await pop(node)
    assert {each["message_id"] for each in again} == {"o-1", "o-3", "o-4"}
    assert (await invisible(node, released, invisible_ms=0)).body["code"] == "handle_expired"
    assert await ack(node, held, failed) == ["acked", "handle_expired"]
    node.clock.now_ms += 10_000
    (failed,) = await pop(node, wait_ms=30_000)
    assert (failed["message_id"], failed["attempt"]) == ("o-2", 1)


async def test_a_pop_waits_for_a_message_and_one_of_several_gets_it(node: Node) -> None:
    await pop(node)
    waiting = [asyncio.create_task(pop(node, wait_ms=30_000)) for _ in range(4)]

    async def all_wait() -> bool:
        return len(node.core.waiters) == 4

    await node.wait(all_wait)
    before = node.core.raft.commit_index
    await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "one"}]})
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (message,) = done.pop().result()
    assert message["body"] == "one"
    assert node.core.raft.commit_index == before + 2, "the produce and one pop: the others asked for nothing in vain"
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def test_what_was_popped_for_a_client_that_is_gone_is_given_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease ends meanwhile. The backoff keeps clients that come and go from using up all attempts at once."""
    begun = asyncio.Event()

    async def view(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(cluster.groups.pop_api.PopApi, "_view", view)
        popping = asyncio.create_task(pop(node, max_messages=2))
        await begun.wait()
        popping.cancel()
        await asyncio.gather(popping, return_exceptions=True)

    async def none_is_held() -> bool:
        found = await progress(node)
        return bool(found["held"] == 0 and found["offset"] == 2)

    await node.wait(none_is_held)
    assert "the client went away" in str((await node.call("GET", "/v1/messages/o-0/trace")).body)
    node.clock.now_ms += RETRY_DELAYS_MS[0]

    async def both_are_back() -> bool:
        found = (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"]
        return bool([each["max_offset"] for each in found if each["topic"] == "%RETRY%g"] == [2])

    await node.wait(both_are_back)
    attempts = {each["message_id"]: each["attempt"] for each in await pop(node)}
    assert attempts == {"o-0": 1, "o-1": 1, "o-2": 0, "o-3": 0, "o-4": 0}


@pytest.mark.parametrize("goes_away", [True, False])
async def test_only_a_client_that_is_gone_gives_back_what_is_popped_later(
    node: Node, monkeypatch: pytest.MonkeyPatch, goes_away: bool
) -> None:
    """A client that is told of a time-out knows that its messages come when their time is over."""
    propose, pops = node.core.raft.propose, node.broker.services._pops
    late, popped = Proposed(), asyncio.Queue[Proposed]()
    late.is_in_log = True

    def propose_late(proposal: Proposal, sender: str = "") -> Proposed:
        proposed = propose(proposal, sender)
        if not isinstance(proposal.command, Pop):
            return proposed
        popped.put_nowait(proposed)
        return late

    with monkeypatch.context() as patched:
        patched.setattr(node.core.raft, "propose", propose_late)
        if not goes_away:
            node.core.config = msgspec.structs.replace(node.core.config, request_timeout_ms=20)
        popping = asyncio.create_task(node.call("POST", POP, {"topic": "orders", "max_messages": 2}))
        applied = await (await popped.get())
        if goes_away:
            popping.cancel()
        await asyncio.gather(popping, return_exceptions=True)

        async def request_has_ended() -> bool:
            return not pops._asked

        await node.wait(request_has_ended)
    late.set_result(applied)
    await asyncio.sleep(0)
    assert bool(pops._left._left) is goes_away
    assert goes_away or popping.result().body["code"] == "unknown_outcome"


async def test_a_proposal_whose_caller_is_gone_is_withdrawn_or_its_result_told() -> None:
    told: list[Any] = []

    async def left(*, is_in_log: bool) -> Proposed:
        proposed = Proposed()
        proposed.is_in_log = is_in_log
        waiting = asyncio.create_task(unless_left(proposed, told.append))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return proposed

    assert (await left(is_in_log=False)).cancelled()
    failed = await left(is_in_log=True)
    failed.set_exception(NoLeader("the leader is gone"))
    (await left(is_in_log=True)).set_result(cast("Applied", "popped"))
    await asyncio.sleep(0)
    assert told == ["popped"]


async def test_only_what_is_asked_for_is_handed_out(node: Node) -> None:
    assert [each["body"] for each in await pop(node, tags="B", max_messages=1)] == ["order 1"]
    assert (await progress(node))["offset"] == 2
    mismatch = await node.call("POST", POP, {"topic": "orders", "filter": "TRUE"})
    assert (mismatch.status, mismatch.body["code"]) == (409, "subscription_mismatch")
    (other,) = await pop(node, tags=" B ")
    assert other["body"] == "order 3"
    assert await pop(node, tags="B") == []
    shown = await progress(node)
    assert (shown["offset"], shown["held"]) == (5, 2)
    waiting = asyncio.create_task(pop(node, tags="B", wait_ms=30_000))
    messages = [{"body": "no", "tag": "A"}, {"body": "yes", "tag": "B"}]
    await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})
    assert [each["body"] for each in await waiting] == ["yes"]


async def test_a_filter_goes_on_where_it_stopped_looking(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.groups.pop_api, "SCAN_BYTES_MAX", 1)
    for number in range(3):
        await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": f"{number}", "tag": "C"}]})
    (found,) = await pop(node, tags="C", max_messages=1, wait_ms=30_000)
    assert found["body"] == "0"


@pytest.mark.parametrize("queues", [2, 1])
async def test_a_filter_that_looked_into_a_topic_of_before_passes_nothing_of_the_present_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    async def make(tag: str, queues: int) -> None:
        await node.core.propose(PutTopic("again", queues))
        messages = [{"body": tag, "queue": queues - 1, "tag": tag} for _ in range(3)]
        await node.call("POST", "/v1/topics/again/messages", {"messages": messages})

    async def rest(pace: Pace) -> None:
        monkeypatch.setattr(Pace, "is_tired", False)
        await node.core.propose(DeleteTopic("again"))
        await make("B", queues)

    await make("A", 2)
    monkeypatch.setattr(Pace, "rest", rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    found = [*await pop(node, topic="again", tags="B"), *await pop(node, topic="again", tags="B")]
    assert [each["body"] for each in found] == ["B", "B", "B"]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_what_is_deleted_with_its_topic_while_it_is_handed_out_does_not_hold_up_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool
) -> None:
    async def make(*bodies: str) -> None:
        await node.core.propose(PutTopic("again", 1))
        for body in bodies:
            await node.call("POST", "/v1/topics/again/messages", {"messages": [{"body": body}]})

    async def rest(pace: Pace) -> None:
        monkeypatch.setattr(Pace, "is_tired", False)
        await node.core.propose(DeleteTopic("again"))
        if is_made_anew:
            await make("other 0", "other 1")

    await make("0", "1")
    monkeypatch.setattr(Pace, "rest", rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    assert [each["body"] for each in await pop(node, topic="again")] == ["0"]


async def test_start_and_bytes(node: Node) -> None:
    assert await pop(node, start="latest") == []
    body = base64.b64encode(b"\xff\x00").decode()
    await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": body, "encoding": "base64"}]})
    (message,) = await pop(node)
    assert (message["body"], message["encoding"]) == (body, "base64")


async def test_a_trace_says_who_popped(node: Node) -> None:
    await pop(node, client_id="worker-1", max_messages=1)
    trace = (await node.call("GET", "/v1/messages/o-0/trace")).body["traces"][0]["events"]
    assert [(each["event"], each.get("client_id")) for each in trace][1:] == [("popped", "worker-1")]


async def test_a_group_is_deleted(node: Node) -> None:
    (message, *rest) = await pop(node)
    refused = await node.call("DELETE", "/v1/groups/g")
    assert (refused.status, refused.body["code"], refused.body["held"]) == (409, "group_is_popped", 5)
    await ack(node, *rest)
    await invisible(node, message, invisible_ms=0)
    assert (await node.call("DELETE", "/v1/groups/g?operator=ann&reason=done")).status == 204
    assert (await node.call("GET", "/v1/groups/g")).status == 404
    assert (await node.call("GET", "/v1/topics?system=true")).body["topics"][0]["topic"] != "%RETRY%g"
    assert (await node.call("DELETE", "/v1/groups/g?with_dead_letters=true")).body["code"] == "group_not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (POP, {"topic": "orders", "max_messages": POP_MESSAGES_MAX + 1}),
        (POP, {"topic": "orders", "max_messages": 0}),
        (POP, {"topic": "orders", "invisible_ms": 0}),
        (POP, {"topic": "orders", "invisible_ms": POP_INVISIBLE_MS_MAX + 1}),
        (POP, {"topic": "orders", "tags": "A", "filter": "TRUE"}),
        (POP, {"topic": "orders", "start": "middle"}),
        (ACK, {"receipt_handles": []}),
        (ACK, {"receipt_handles": ["1-0-0"] * (POP_ACKS_MAX + 1)}),
        (ACK, {"receipt_handles": ["x"]}),
        (ACK, {"receipt_handles": ["1-0-0\n"]}),
        (INVISIBLE, {"receipt_handle": "1-0-0", "invisible_ms": POP_INVISIBLE_MS_MAX + 1}),
        (INVISIBLE, {"receipt_handle": "1-0-0", "reason": "ü" * 128}),
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(node: Node, path: str, body: Any) -> None:
    answer = await node.call("POST", path, body)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert (await node.call("GET", "/v1/groups")).body == {"groups": [], "next": None}
