"""Many transactions in one request: each has its own outcome, and an error of the whole request is told for all."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from cluster import limits
from cluster.core.core import Core
from raft.errors import NotLeader, Overloaded, UnknownOutcome
from raft.proposals import Proposed
from store.commands.entry import Proposal
from store.commands.transactions import Decide
from store.log.errors import DiskFull
from tests.unit.cluster.conftest import Answer, Node

BATCH, DECISIONS = "/v1/transactions/batch", "/v1/transactions/decisions"
MSGPACK = "application/msgpack"
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


@pytest.fixture
async def orders(node: Node) -> Node:
    await node.call("PUT", "/v1/topics/orders", {"queues": 2})
    await node.call("PUT", "/v1/topics/plain", {"type": "normal"})
    return node


def half(transaction_id: str, body: str = "one", topic: str = "orders", **fields: Any) -> dict[str, Any]:
    message = {"topic": topic, "body": body, "queue": 0}
    return {"transaction_id": transaction_id, "producer_group": "shop", "messages": [message], **fields}


def packed_half(transaction_id: str, messages: list[Any], *, checksum: int | None = None, **fields: Any) -> Any:
    block = pack(messages)
    crc = crc32c(block) if checksum is None else checksum
    batch = {"topic": "orders", "queue": 0, "batch_id": transaction_id, "crc32c": crc, "block": block, **fields}
    return {"transaction_id": transaction_id, "producer_group": "shop", "batches": [batch]}


async def prepare(node: Node, *halves: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await node.call("POST", BATCH, {"transactions": halves})
    assert answer.status == 200, answer
    results: list[dict[str, Any]] = answer.body["results"]
    return results


async def decide(node: Node, *decisions: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await node.call("POST", DECISIONS, {"decisions": decisions})
    assert answer.status == 200, answer
    results: list[dict[str, Any]] = answer.body["results"]
    return results


def told(transaction_id: str, decision: str = "commit", **fields: Any) -> dict[str, Any]:
    return {"transaction_id": transaction_id, "decision": decision, **fields}


async def post_packed(node: Node, path: str, body: Any) -> Answer:
    headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
    async with node.session.post(path, data=pack(body), headers=headers) as response:
        content = await response.read()
        is_packed = response.content_type == MSGPACK
        return Answer(response.status, unpack(content) if is_packed else msgspec.json.decode(content), response.headers)


def codes(results: list[dict[str, Any]]) -> list[str]:
    return [result.get("problem", {}).get("code") or result["state"] for result in results]


async def test_one_that_is_bad_does_not_fail_the_others(orders: Node) -> None:
    results = await prepare(
        orders,
        half("a"),
        half("b", topic="none"),
        half("c", topic="plain"),
        half("d", body=""),
        half("e", producer_group="no group"),
        half("a", body="other"),
        half("a"),
        half("f"),
    )
    assert codes(results) == [
        "prepared",
        "topic_not_found",
        "topic_type_mismatch",
        "empty_body",
        "invalid_group",
        "idempotency_conflict",
        "prepared",
        "prepared",
    ]
    assert [result["transaction_id"] for result in results] == list("abcdeaaf")
    assert [result["duplicate"] for result in results if "state" in result] == [False, True, False]
    assert results[0]["receipt"] == results[-1]["receipt"], "one log entry"
    problem = results[1]["problem"]
    assert (problem["status"], problem["topic"], problem["type"]) == (404, "none", "about:blank")
    listed = (await orders.call("GET", "/v1/transactions")).body["transactions"]
    assert [each["transaction_id"] for each in listed] == ["a", "f"]


async def test_decisions_are_answered_one_by_one(orders: Node) -> None:
    await prepare(orders, half("a"), half("b"), half("c"), half("d"))
    results = await decide(
        orders,
        told("a"),
        told("b", "rollback", producer_group="shop", client_id="c1"),
        told("c", "unknown", source="check"),
        told("d", producer_group="bank"),
        told("none"),
        told("a", "rollback"),
        told("a"),
        told("d", producer_group="no group"),
    )
    assert codes(results) == [
        "committed",
        "rolled_back",
        "prepared",
        "producer_group_mismatch",
        "transaction_not_found",
        "transaction_conflict",
        "committed",
        "invalid_group",
    ]
    assert (
        results[0]["positions"] == results[6]["positions"] == [{"topic": "orders", "queue": 0, "offset": 0, "count": 1}]
    )
    assert "positions" not in results[1]
    assert results[5]["problem"]["state"] == "committed"
    pulled = await orders.call("GET", "/v1/topics/orders/queues/0/messages?offset=0")
    assert [message["transaction_id"] for message in pulled.body["messages"]] == ["a"]
    detail = (await orders.call("GET", "/v1/transactions/b")).body
    assert detail["timeline"][-1]["client_id"] == "c1"


async def test_an_operator_forces_with_an_audit_record_here_too(orders: Node) -> None:
    await prepare(orders, half("a"), half("b"))
    force: dict[str, Any] = {"source": "operator", "force": True, "operator": "ann"}
    results = await decide(orders, told("a", **force, reason="by phone"), told("b", **force))
    assert codes(results) == ["committed", "invalid_request"]
    record = (await orders.call("GET", "/v1/transactions/a")).body["timeline"][-1]
    assert (record["operator"], record["reason"], record["forced"]) == ("ann", "by phone", True)


async def test_msgpack_is_taken_and_answered(orders: Node) -> None:
    halves = [packed_half("a", [[b"x"]]), packed_half("b", [[b"x"]], checksum=1), packed_half("c", ["no message"])]
    prepared = await post_packed(orders, BATCH, {"transactions": halves})
    assert codes(prepared.body["results"]) == ["prepared", "checksum_mismatch", "invalid_request"]
    assert prepared.body["results"][0]["receipt"]["durable_on"] == [1]
    decided = await post_packed(orders, DECISIONS, {"decisions": [told("a"), told("b")]})
    assert codes(decided.body["results"]) == ["committed", "transaction_not_found"]


async def test_ids_are_made_where_none_are_given_and_a_repetition_is_told_the_same(orders: Node) -> None:
    nameless = {"producer_group": "shop", "messages": [{"topic": "orders", "body": "x"}]}
    first, second = await prepare(orders, nameless, nameless)
    assert first["transaction_id"] != second["transaction_id"]
    once, again = await prepare(orders, half("a")), await prepare(orders, half("a"))
    assert (once[0]["duplicate"], again[0]["duplicate"]) == (False, True)
    single = await orders.call("POST", "/v1/transactions", half("a"))
    assert (single.status, single.body["duplicate"]) == (201, True)


ONE = half("a")
MANY = limits.TRANSACTIONS_MAX + 1


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (BATCH, {"transactions": []}, 400, "invalid_request"),
        (BATCH, {"transactions": [ONE] * MANY}, 400, "invalid_request"),
        (BATCH, {"transactions": [ONE, half("a b")]}, 400, "invalid_request"),
        (BATCH, {"transactions": [ONE], "more": 1}, 400, "invalid_request"),
        (DECISIONS, {"decisions": []}, 400, "invalid_request"),
        (DECISIONS, {"decisions": [told("a")] * MANY}, 400, "invalid_request"),
        (DECISIONS, {"decisions": [told("a"), told("a", "maybe")]}, 400, "invalid_request"),
        (DECISIONS, {"decisions": [{"transaction_id": "a"}]}, 400, "invalid_request"),
    ],
)
async def test_a_request_that_is_none_is_refused_as_a_whole(
    orders: Node, path: str, body: Any, status: int, code: str
) -> None:
    for answer in (await orders.call("POST", path, body), await post_packed(orders, path, body)):
        assert (answer.status, answer.body["code"]) == (status, code)
    assert (await orders.call("GET", "/v1/transactions")).body["transactions"] == []


def lots(messages: int, keys: int = 0, unpacked_bytes: int | None = None) -> list[Any]:
    """Return two halves with this number of messages, keys and bytes together."""
    entry = [b"x", None, ["k"] * 10] if keys else [b"x"]
    shares = (messages // 2, messages - messages // 2)
    more: dict[str, Any] = (
        {} if unpacked_bytes is None else {"encoding": "zstd", "uncompressed_bytes": unpacked_bytes // 2}
    )
    return [packed_half(f"t{ordinal}", [entry] * share, **more) for ordinal, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("halves", "code"),
    [
        (lots(10_001), "batch_too_large"),
        (lots(2, unpacked_bytes=(16 << 20) + 2), "request_too_large"),
    ],
)
async def test_halves_that_hold_too_much_together_are_refused_as_a_whole(
    orders: Node, halves: list[Any], code: str
) -> None:
    answer = await post_packed(orders, BATCH, {"transactions": halves})
    assert (answer.status, answer.body["code"]) == (413, code)
    assert (await orders.call("GET", "/v1/transactions")).body["transactions"] == []


async def test_at_its_limits_a_request_is_taken(orders: Node) -> None:
    for prefix, halves in (("m", lots(10_000)), ("k", lots(2 * limits.REQUEST_KEYS_MAX // 10, keys=10))):
        for each in halves:
            each["transaction_id"] = prefix + each["transaction_id"]
        answer = await post_packed(orders, BATCH, {"transactions": halves})
        assert codes(answer.body["results"]) == ["prepared", "prepared"]
    batches = [packed_half(f"b{n}", [[b"x"]]) for n in range(2)]
    for each, count in zip(batches, (500, 501), strict=True):
        batch = each["batches"][0]
        each["batches"] = [{**batch, "batch_id": f"{batch['batch_id']}-{n}"} for n in range(count)]
    refused = await post_packed(orders, BATCH, {"transactions": batches})
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    batches[1]["batches"].pop()
    assert codes((await post_packed(orders, BATCH, {"transactions": batches})).body["results"]) == ["prepared"] * 2


async def test_a_transaction_with_too_many_keys_is_refused_by_itself(orders: Node) -> None:
    answer = await post_packed(orders, BATCH, {"transactions": lots(2 * limits.REQUEST_KEYS_MAX // 10 + 1, keys=10)})
    assert codes(answer.body["results"]) == ["prepared", "batch_too_large"]


async def test_json_messages_are_counted_over_all_transactions_before_they_are_decoded(orders: Node) -> None:
    message = b'{"topic":"orders","body":"x"}'
    begin = b'{"producer_group":"shop","messages":['
    one = begin + b",".join([message] * 5_001) + b"]}"
    body = b'{"transactions":[' + one + b"," + one + b",broken"
    async with orders.session.post(BATCH, data=body, headers={"Content-Type": "application/json"}) as response:
        assert (response.status, (await response.json(content_type=None))["code"]) == (413, "batch_too_large")


class Fates:
    """A node whose proposals fail as their transaction ids say. Transactions named `held` are never answered."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self._propose = node.core.raft.propose
        self.held: list[Proposed] = []
        monkeypatch.setattr(node.core.raft, "propose", self.propose)

    def propose(self, proposal: Proposal, sender: str = "") -> Proposed:
        assert isinstance(proposal.command, Decide)
        future = Proposed(loop=asyncio.get_running_loop())
        match proposal.command.transaction_id:
            case "overloaded":
                raise Overloaded("full")
            case "moved":
                raise NotLeader(2)
            case "lost":
                future.set_exception(UnknownOutcome("lost"))
            case "full":
                future.set_exception(DiskFull("write", "log", 28, "no space"))
            case "bug":
                future.set_exception(KeyError("bug"))
            case "held":
                future.is_in_log = True
                self.held.append(future)
            case _:
                return self._propose(proposal)
        return future


async def test_each_is_told_what_the_log_said_of_it(
    orders: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await prepare(orders, half("a"))
    Fates(orders, monkeypatch)
    with caplog.at_level(logging.CRITICAL):
        results = await decide(orders, *map(told, ("overloaded", "moved", "lost", "full", "bug", "a")))
    assert codes(results) == ["overloaded", "no_leader", "unknown_outcome", "disk_full", "internal", "committed"]


async def test_one_that_takes_too_long_is_unknown_and_given_up(orders: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    fates = Fates(orders, monkeypatch)
    core: Core = orders.core
    core.config = msgspec.structs.replace(core.config, request_timeout_ms=20)
    outcomes = await core.propose_all([Proposal(Decide(each, "commit")) for each in ("held", "lost", "overloaded")])
    assert [type(outcome) for outcome in outcomes] == [UnknownOutcome, UnknownOutcome, Overloaded]
    assert "not committed within 20 ms" in str(outcomes[0])
    assert fates.held[0].cancelled()


async def test_a_caller_that_is_gone_gives_up_what_is_not_in_the_log(
    orders: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates = Fates(orders, monkeypatch)
    core: Core = orders.core
    call = asyncio.create_task(core.propose_all([Proposal(Decide(each, "commit")) for each in ("held", "lost")]))
    while not fates.held:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert fates.held[0].cancelled()


async def test_a_full_disk_and_metrics_are_those_of_single_calls(orders: Node) -> None:
    metrics = orders.core.metrics
    await prepare(orders, half("a"), half("a"), half("b"))
    await decide(orders, told("a"), told("b", "rollback"), told("none"))
    text = metrics.text().decode()
    assert "keelmq_transactions_prepared_total 2.0" in text
    assert 'keelmq_transactions_decided_total{state="committed"} 1.0' in text
    # By both, because the disk guard looks every second.
    orders.core.config = msgspec.structs.replace(orders.core.config, min_free_bytes=1 << 62)
    orders.core.raft.disks.note_space(0, is_low=True)
    answer = await orders.call("POST", BATCH, {"transactions": [ONE]})
    assert (answer.status, answer.body["code"]) == (507, "disk_full")


async def test_a_rollback_in_a_batch_makes_room_on_a_full_disk(orders: Node) -> None:
    await prepare(orders, half("a"), half("b"), half("c"))
    orders.core.config = msgspec.structs.replace(orders.core.config, min_free_bytes=1 << 62)
    orders.core.raft.disks.note_space(0, is_low=True)
    results = await decide(orders, told("a"), told("b", "rollback"), told("c", "unknown"))
    assert codes(results) == ["disk_full", "rolled_back", "disk_full"], "as if each were told alone"


def test_the_limit_is_the_same_on_both_sides() -> None:
    from keelmq import limits as sdk

    assert sdk.TRANSACTIONS_MAX == limits.TRANSACTIONS_MAX
