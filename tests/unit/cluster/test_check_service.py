"""The check service on a real node: which producers it asks, which checks count, and what happens without an answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.messages.block_reader import BlockReader
from cluster.problems import Problem
from cluster.transactions.check_api import WEBHOOK_RETRY_MS
from cluster.transactions.check_service import DUE_PER_PAGE, LEASE_MS, ORIGIN_GRACE_MS, PAGES_PER_SCAN
from cluster.transactions.webhook_slots import GROUP_SLOTS, WebhookSlots
from tests.unit.cluster.conftest import Node

IMMUNITY_MS = 6_000
INTERVAL_MS = 30_000
CHECK_MAX = 15


async def prepare(node: Node, transaction_id: str, client_id: str = "origin", **more: Any) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    half = {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "client_id": client_id,
        "messages": [{"topic": "orders", "body": "one"}, {"topic": "orders", "body": "two", "message_id": "m2"}],
        **more,
    }
    assert (await node.call("POST", "/v1/transactions", half)).status == 201


async def poll(node: Node, client_id: str = "origin", wait_ms: int = 0, group: str = "shop") -> list[dict[str, Any]]:
    path = f"/v1/producer-groups/{group}/checks?client_id={client_id}&wait_ms={wait_ms}"
    answer = await node.call("GET", path)
    assert answer.status == 200
    checks: list[dict[str, Any]] = answer.body["checks"]
    return checks


async def check_times(node: Node, transaction_id: str) -> int:
    times: int = (await node.call("GET", f"/v1/transactions/{transaction_id}")).body["check_times"]
    return times


async def counted(node: Node, transaction_id: str, times: int) -> None:
    async def reached() -> bool:
        return await check_times(node, transaction_id) == times

    await node.wait(reached)


async def test_nobody_is_asked_before_the_immunity_is_over(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS - 1
    assert await poll(node) == []
    node.clock.now_ms += 1
    (check,) = await poll(node)
    assert (check["transaction_id"], check["producer_group"], check["check_times"]) == ("t", "shop", 1)
    assert [message["body"] for message in check["messages"]] == ["one", "two"]
    assert [message["message_id"] for message in check["messages"]] == ["t-0", "m2"]
    assert "offset" not in check["messages"][0]
    await counted(node, "t", 1)


async def test_the_answer_to_a_poll_has_the_headers_of_every_answer(node: Node) -> None:
    path = "/v1/producer-groups/shop/checks?client_id=origin"
    async with node.session.get(path, headers={"X-Request-Id": "poll-1"}) as answer:
        assert answer.status == 200
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Request-Id"] == "poll-1"
        assert answer.headers["KeelMQ-Applied-Index"] == str(node.core.raft.applied_index)


async def test_a_transaction_chooses_its_own_immunity(node: Node) -> None:
    await prepare(node, "t", check_after_ms=100)
    node.clock.now_ms += 100
    assert len(await poll(node)) == 1


async def test_a_check_is_not_handed_out_again_before_the_interval(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    assert len(await poll(node)) == 1
    await counted(node, "t", 1)
    assert await poll(node) == []
    node.clock.now_ms += INTERVAL_MS - 1
    assert await poll(node) == []
    node.clock.now_ms += 1
    (check,) = await poll(node)
    assert check["check_times"] == 2


async def test_a_long_poll_is_woken_by_a_check_that_becomes_due(node: Node) -> None:
    await prepare(node, "t")
    polling = asyncio.create_task(poll(node, wait_ms=20_000))
    await node.until_waiting(1)
    node.clock.now_ms += IMMUNITY_MS
    (check,) = await polling
    assert check["transaction_id"] == "t"


async def test_the_client_that_prepared_is_preferred(node: Node) -> None:
    await prepare(node, "t")
    other = asyncio.create_task(poll(node, "other", wait_ms=20_000))
    origin = asyncio.create_task(poll(node, "origin", wait_ms=20_000))
    await node.until_waiting(2)
    node.clock.now_ms += IMMUNITY_MS
    assert len(await origin) == 1
    assert not other.done()
    other.cancel()


async def test_an_origin_that_polled_lately_is_waited_for_then_any_client_is_asked(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS - 1
    assert await poll(node, "origin") == []
    node.clock.now_ms += 1
    assert await poll(node, "other") == []
    node.clock.now_ms += ORIGIN_GRACE_MS
    (check,) = await poll(node, "other")
    assert check["client_id"] == "origin"
    await counted(node, "t", 1)
    timeline = (await node.call("GET", "/v1/transactions/t")).body["timeline"]
    assert [(event["event"], event["client_id"]) for event in timeline] == [("prepared", "origin"), ("check", "other")]


async def test_another_group_is_never_asked(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    assert await poll(node, group="bank") == []
    assert await check_times(node, "t") == 0


async def test_rounds_without_anybody_to_ask_do_not_count(node: Node) -> None:
    await prepare(node, "t")
    for _ in range(CHECK_MAX + 2):
        node.clock.now_ms += INTERVAL_MS
        assert await poll(node, group="bank") == []
    assert (await node.call("GET", "/v1/transactions/t")).body["state"] == "prepared"
    assert await check_times(node, "t") == 0


async def test_a_check_that_cannot_be_read_is_not_handed_out_again_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    async def refuse(*_: Any) -> None:
        tries.append(len(tries))
        raise Problem("overloaded", "too many old messages are being read")

    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    with monkeypatch.context() as busy:
        busy.setattr(BlockReader, "load", refuse)
        for _ in range(3):
            assert await poll(node) == []
    assert len(tries) == 1
    node.clock.now_ms += WEBHOOK_RETRY_MS - 1
    assert await poll(node) == []
    node.clock.now_ms += 1
    assert len(await poll(node)) == 1
    await counted(node, "t", 1)


async def test_a_poll_that_went_away_is_not_counted_and_frees_its_check(node: Node) -> None:
    await prepare(node, "t")
    gone = asyncio.create_task(poll(node, wait_ms=20_000))
    await node.until_waiting(1)
    gone.cancel()
    await node.until_waiting(0)
    node.clock.now_ms += IMMUNITY_MS
    (check,) = await poll(node)
    assert check["check_times"] == 1


async def test_the_answer_ends_the_checks(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    await poll(node)
    answer = {"source": "check", "client_id": "origin", "producer_group": "shop"}
    assert (await node.call("POST", "/v1/transactions/t/commit", answer)).body["state"] == "committed"
    node.clock.now_ms += 2 * INTERVAL_MS
    assert await poll(node) == []
    timeline = (await node.call("GET", "/v1/transactions/t")).body["timeline"]
    assert [event["event"] for event in timeline] == ["prepared", "check", "answer", "committed"]


async def test_after_the_last_unanswered_check_the_transaction_is_discarded(node: Node) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    for times in range(1, CHECK_MAX + 1):
        (check,) = await poll(node)
        assert check["check_times"] == times
        await counted(node, "t", times)
        assert (await node.call("GET", "/v1/transactions/t")).body["state"] == "prepared"
        node.clock.now_ms += INTERVAL_MS

    async def discarded() -> bool:
        await poll(node)
        return bool((await node.call("GET", "/v1/transactions/t")).body["state"] == "discarded")

    await node.wait(discarded)
    conflict = await node.call("POST", "/v1/transactions/t/commit")
    assert (conflict.status, conflict.body["code"], conflict.body["state"]) == (
        409,
        "transaction_conflict",
        "discarded",
    )


class Webhook:
    """A producer's endpoint whose answers the test sets."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Any = {"decision": "commit"}
        self.asked: list[Any] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        await self.answers.wait()
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def webhook(node: Node) -> AsyncIterator[Webhook]:
    hook = Webhook()
    application = web.Application()
    application.router.add_post("/check", hook.handle)
    async with TestServer(application) as server:
        put = await node.call("PUT", "/v1/producer-groups/shop", {"check_url": str(server.make_url("/check"))})
        assert put.status == 200
        yield hook


async def test_a_webhook_decides(node: Node, webhook: Webhook) -> None:
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS

    async def committed() -> bool:
        return bool((await node.call("GET", "/v1/transactions/t")).body["state"] == "committed")

    await node.wait(committed)
    assert [asked["transaction_id"] for asked in webhook.asked] == ["t"]
    timeline = (await node.call("GET", "/v1/transactions/t")).body["timeline"]
    assert [event["event"] for event in timeline] == ["prepared", "check", "answer", "committed"]
    assert timeline[1]["via"] == "webhook"


async def test_a_webhook_that_fails_is_not_counted_and_asked_again(node: Node, webhook: Webhook) -> None:
    webhook.status = 500
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS

    async def asked() -> bool:
        return len(webhook.asked) == 1

    await node.wait(asked)
    webhook.status = 200

    async def committed() -> bool:
        node.clock.now_ms += 1_000
        return bool((await node.call("GET", "/v1/transactions/t")).body["state"] == "committed")

    await node.wait(committed)
    assert await check_times(node, "t") == 1


async def test_a_webhook_that_hangs_holds_a_bounded_number_of_checks_each_once(node: Node, webhook: Webhook) -> None:
    webhook.answers.clear()
    names = [f"t{number}" for number in range(GROUP_SLOTS + 8)]
    for name in names:
        await prepare(node, name)
    tasks_before = len(asyncio.all_tasks())
    node.clock.now_ms += IMMUNITY_MS

    async def all_slots_are_taken() -> bool:
        return len(webhook.asked) == GROUP_SLOTS

    await node.wait(all_slots_are_taken)
    node.clock.now_ms += 2 * LEASE_MS
    assert await poll(node) == []  # scans too: leases would be over by now
    assert len(webhook.asked) == GROUP_SLOTS
    assert len(asyncio.all_tasks()) <= tasks_before + 4 * GROUP_SLOTS
    assert len({asked["transaction_id"] for asked in webhook.asked}) == len(webhook.asked)
    webhook.answers.set()

    async def all_committed() -> bool:
        found = (await node.call("GET", "/v1/transactions?state=committed")).body["transactions"]
        return len(found) == len(names)

    await node.wait(all_committed)
    assert sorted(asked["transaction_id"] for asked in webhook.asked) == sorted(names), "each was asked about once"


async def test_a_check_under_way_to_a_webhook_is_handed_to_no_poll_when_its_url_is_removed(
    node: Node, webhook: Webhook
) -> None:
    webhook.answers.clear()
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS

    async def asked() -> bool:
        return len(webhook.asked) == 1

    await node.wait(asked)
    assert (await node.call("PUT", "/v1/producer-groups/shop", {"check_url": None})).status == 200
    assert await poll(node) == [], "two producers would be asked, and the check would count twice"
    webhook.answer = {"decision": "unknown"}
    webhook.answers.set()
    await counted(node, "t", 1)
    node.clock.now_ms += INTERVAL_MS
    (check,) = await poll(node, wait_ms=20_000)  # the answer of the webhook may still be carried out
    assert check["check_times"] == 2


async def test_the_failure_of_a_former_webhook_is_none_of_the_next(node: Node, webhook: Webhook) -> None:
    webhook.answers.clear()
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS

    async def asked() -> bool:
        return len(webhook.asked) == 1

    await node.wait(asked)
    other = Webhook()
    application = web.Application()
    application.router.add_post("/check", other.handle)
    async with TestServer(application) as server:
        await node.call("PUT", "/v1/producer-groups/shop", {"check_url": str(server.make_url("/check"))})
        webhook.status = 500
        webhook.answers.set()

        async def committed() -> bool:
            return bool((await node.call("GET", "/v1/transactions/t")).body["state"] == "committed")

        await node.wait(committed)
    assert len(other.asked) == 1, "the clock stood, so the check was sent without the pause after a failure"


async def test_a_webhook_that_hangs_delays_no_other_group(node: Node, webhook: Webhook) -> None:
    """More checks of its group are due before the other's than one scan looks at."""
    webhook.answers.clear()
    await prepare(node, "first")
    due = DUE_PER_PAGE * PAGES_PER_SCAN + 100
    for begin in range(0, due, 200):
        halves = [
            {"transaction_id": f"h{number}", "producer_group": "shop", "messages": [{"topic": "orders", "body": "x"}]}
            for number in range(begin, begin + 200)
        ]
        assert (await node.call("POST", "/v1/transactions/batch", {"transactions": halves})).status == 200
    node.clock.now_ms += 1
    other = Webhook()
    application = web.Application()
    application.router.add_post("/check", other.handle)
    async with TestServer(application) as server:
        await node.call("PUT", "/v1/producer-groups/bank", {"check_url": str(server.make_url("/check"))})
        await prepare(node, "other", producer_group="bank")
        node.clock.now_ms += IMMUNITY_MS

        async def committed() -> bool:
            return bool((await node.call("GET", "/v1/transactions/other")).body["state"] == "committed")

        await node.wait(committed)
    assert len(webhook.asked) == GROUP_SLOTS, "none of them was answered, and no further one sent"
    webhook.answers.set()


def test_a_group_whose_check_failed_has_one_slot_and_not_before_it_is_tried_again() -> None:
    slots = WebhookSlots()

    def taken(group: str, now_ms: int, count: int = 20) -> list[str]:
        names = [f"{group}-{now_ms}-{number}" for number in range(count)]
        return [name for name in names if slots.take(name, group, now_ms, 30)]

    out = taken("a", 0)
    assert len(out) == GROUP_SLOTS
    assert not slots.take(out[0], "a", 0, 30), "it is out already"
    assert len(taken("b", 0)) == GROUP_SLOTS
    for name in out:
        slots.free(name, "a", WEBHOOK_RETRY_MS)
    assert taken("a", WEBHOOK_RETRY_MS - 1) == []
    (probe,) = taken("a", WEBHOOK_RETRY_MS)
    slots.free(probe, "a", 2 * WEBHOOK_RETRY_MS)
    (probe,) = taken("a", 2 * WEBHOOK_RETRY_MS)
    slots.free(probe, "a", None)
    assert len(taken("a", 2 * WEBHOOK_RETRY_MS)) == GROUP_SLOTS


def test_slots_are_kept_for_groups_without_a_check_under_way() -> None:
    slots = WebhookSlots()

    def taken(group: str) -> int:
        return sum(slots.take(f"{group}-{number}", group, 0, 32) for number in range(20))

    assert [taken(group) for group in "abc"] == [GROUP_SLOTS, GROUP_SLOTS, GROUP_SLOTS]
    assert taken("d") == 1, "24 slots of 32 are out"
    assert [taken(f"e{number}") for number in range(9)] == [1] * 7 + [0, 0]


def test_groups_whose_checks_failed_have_half_of_the_slots_together() -> None:
    slots = WebhookSlots()
    for number in range(20):
        assert slots.take(f"t{number}", f"hanging{number}", 0, 32)
    for number in range(20):
        slots.free(f"t{number}", f"hanging{number}", WEBHOOK_RETRY_MS)
    tries = [slots.take(f"t{number}", f"hanging{number}", WEBHOOK_RETRY_MS, 32) for number in range(20)]
    assert tries == [True] * 16 + [False] * 4
    assert slots.take("u", "healthy", WEBHOOK_RETRY_MS, 32)
    slots.free("t0", "hanging0", 2 * WEBHOOK_RETRY_MS)
    assert slots.take("t16", "hanging16", WEBHOOK_RETRY_MS, 32)


def test_a_failed_group_is_tried_again_also_with_one_slot() -> None:
    slots = WebhookSlots()
    assert slots.take("t", "a", 0, 1)
    slots.free("t", "a", WEBHOOK_RETRY_MS)
    assert slots.take("t", "a", WEBHOOK_RETRY_MS, 1)


async def test_a_webhook_without_a_decision_counts_as_asked(node: Node, webhook: Webhook) -> None:
    webhook.answer = {"ok": True}
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS
    await counted(node, "t", 1)
    assert (await node.call("GET", "/v1/transactions/t")).body["state"] == "prepared"


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://", "http://a b/", "javascript:1", "http://h:99999/"])
async def test_a_check_url_must_be_one(node: Node, url: str) -> None:
    answer = await node.call("PUT", "/v1/producer-groups/shop", {"check_url": url})
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
