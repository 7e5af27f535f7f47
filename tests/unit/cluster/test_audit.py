"""The audit of a real node: what it records of calls, and how `GET /v1/audit` gives it back."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from cluster.core.audit_trail import DENIAL_INTERVAL_S, DENIALS_MAX, DENIALS_PER_ADDRESS_MAX, WAITING_MAX, DenialPace
from cluster.limits import AUDIT_RECORDS_MAX
from cluster.process.line_pace import AUDIT_LOGGER
from store.log.disk import PosixDisk
from store.log.errors import DiskError
from tests.unit.cluster.conftest import START_MS, Answer, Node, node_config, running_node
from tests.unit.cluster.test_join_tokens import ADMINISTRATOR, SECRET, closed_node, made, private
from tests.unit.cluster.test_join_tokens import closed as closed

PATH = "/v1/audit"


@pytest.fixture(autouse=True)
def audit_is_logged() -> Iterator[None]:
    logger = logging.getLogger(AUDIT_LOGGER)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


async def audit(node: Node, **query: object) -> Any:
    answer = await node.call("GET", f"{PATH}?{urlencode(query)}")
    assert answer.status == 200, answer
    return answer.body


async def records(node: Node, **query: object) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await audit(node, **query))["records"]
    return listed


async def recorded(node: Node, number: int, **query: object) -> list[dict[str, Any]]:
    """Return the records once there are so many: they are written behind the calls."""

    async def enough() -> list[dict[str, Any]]:
        found = await records(node, **query)
        return found if len(found) >= number else []

    found: list[dict[str, Any]] = await node.wait(enough)
    assert len(found) == number, found
    return found


async def call_as(node: Node, token: str | None, method: str, path: str, payload: Any = None, **headers: str) -> Answer:
    shown = {**({} if token is None else {"Authorization": f"Bearer {token}"}), **headers}
    kept = node.session.headers.pop("Authorization", None)
    try:
        async with node.session.request(method, path, json=payload, headers=shown) as response:
            return Answer(response.status, await response.read(), response.headers)
    finally:
        if kept is not None:
            node.session.headers["Authorization"] = kept


async def user(node: Node, name: str, *rules: dict[str, Any]) -> str:
    answer = await node.call("PUT", f"/v1/users/{name}", {"rules": list(rules), "revision": 0})
    assert answer.status == 201, answer
    answer = await node.call("POST", f"/v1/users/{name}/tokens", {})
    return str(answer.body["token"])


async def test_an_administrative_call_is_recorded(closed: Node) -> None:
    headers = {"X-Request-Id": "change-17", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    assert (await call_as(closed, ADMINISTRATOR, "PUT", "/v1/topics/a", {"queues": 1}, **headers)).status == 201
    (found,) = await recorded(closed, 1)
    applied = closed.core.state.applied_index
    assert 0 < found.pop("raft_index") <= applied
    assert found == {
        "id": "calls-1.0",
        "at_ms": START_MS,
        "principal": "admin",
        "address": "127.0.0.1",
        "method": "PUT",
        "path": "/v1/topics/a",
        "route": "/v1/topics/{topic}",
        "outcome": "done",
        "code": None,
        "action": None,
        "resource": None,
        "permitted": False,
        "request_id": "change-17",
        "trace_id": "a" * 32,
        "detail": None,
        "operator": None,
        "reason": None,
        "missing_before": 0,
    }


async def test_calls_say_who_wants_them_and_why(closed: Node) -> None:
    said = {"operator": "ann", "reason": "ticket 17"}
    offsets = {"offsets": [{"topic": "a", "queue": 0, "offset": 0}]}
    assert (await closed.call("PUT", "/v1/topics/a", {"queues": 1, **said})).status == 201
    assert (await closed.call("PUT", "/v1/groups/g/offsets", offsets)).status == 200
    for method, path, payload, status in (
        ("PUT", "/v1/cluster/settings", {"reject_transactions": False, **said}, 200),
        ("POST", "/v1/groups/g/reset", {"topic": "a", "to": "latest", **said}, 200),
        ("POST", "/v1/groups/h/clone-offsets", {"source": "g", **said}, 200),
        ("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0], **said}, 404),
        ("POST", "/v1/groups/g/pause", said, 200),
        ("DELETE", f"/v1/groups/h?{urlencode(said)}", None, 204),
        ("DELETE", f"/v1/topics/a/scheduled/x?{urlencode(said)}", None, 404),
        ("DELETE", "/v1/topics/a/scheduled/x", None, 404),  # as producers do: it has no record
    ):
        answer = await closed.call(method, path, payload)
        assert answer.status == status, (path, answer)
    found = await recorded(closed, 8)
    assert {(each["operator"], each["reason"]) for each in found} == {("ann", "ticket 17")}
    assert [each["outcome"] for each in found] == ["failed", "done", "done", "failed", *["done"] * 4]


async def test_a_reason_that_is_too_long_changes_nothing(closed: Node) -> None:
    for said in ({"reason": "x" * 256}, {"operator": "x" * 256}, {"reason": 17}):
        answer = await closed.call("PUT", "/v1/topics/a", {"queues": 1, **said})
        assert (answer.status, answer.body["code"]) == (400, "invalid_request"), said
    assert (await closed.call("GET", "/v1/topics/a")).status == 404


async def test_reads_and_messages_are_not_recorded_and_failures_are(closed: Node) -> None:
    await closed.call("PUT", "/v1/topics/a", {"queues": 1})
    await closed.call("POST", "/v1/topics/a/messages", {"messages": [{"body": "x"}]})
    await closed.call("GET", "/v1/topics")
    assert (await closed.call("PUT", "/v1/topics/a", {"queues": 0})).status == 400
    assert (await closed.call("DELETE", "/v1/topics/none")).status == 404
    found = await recorded(closed, 3)
    assert [(each["method"], each["outcome"], each["code"]) for each in found] == [
        ("DELETE", "failed", "topic_not_found"),
        ("PUT", "failed", "invalid_request"),
        ("PUT", "done", None),
    ]
    assert found[0]["action"] == "delete"


async def test_a_call_whose_client_went_away_is_not_said_to_have_failed(
    closed: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, is_applied = closed.core.propose, asyncio.Event()

    async def never_answered(*given: Any, **named: Any) -> None:
        await propose(*given, **named)
        is_applied.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(closed.core, "propose", never_answered)
    calling = asyncio.create_task(closed.call("PUT", "/v1/topics/orders", {"queues": 1}))
    await is_applied.wait()
    calling.cancel()
    (found,) = await recorded(closed, 1, route="PUT /v1/topics/orders")
    assert (found["outcome"], found["code"]) == ("failed", "unknown_outcome")
    assert found["detail"] == "given up before the answer: the client went away, or the node stopped"


async def test_what_is_denied_is_recorded_with_the_permission_that_is_missing(closed: Node) -> None:
    token = await user(closed, "ann", {"effect": "allow", "actions": ["send"], "resource": "topic:a"})
    assert (await call_as(closed, token, "DELETE", "/v1/topics/a")).status == 403
    assert (await call_as(closed, token, "GET", PATH)).status == 403
    assert (await call_as(closed, None, "GET", "/v1/topics")).status == 401
    assert (await call_as(closed, "wrong" * 10, "PUT", "/v1/topics/a", {"queues": 1})).status == 401
    found = await recorded(closed, 4, outcome="denied")
    told = [(each["principal"], each["code"], each["action"], each["resource"]) for each in found]
    assert told == [
        ("anonymous", "unauthenticated", "do", "anything"),
        ("anonymous", "unauthenticated", "do", "anything"),
        ("ann", "forbidden", "admin", "cluster"),
        ("ann", "forbidden", "delete", "topic:a"),
    ]
    assert all(each["id"].startswith("denied-") for each in found)
    assert await records(closed, outcome="denied", principal="ann", route="DELETE") == [found[3]]


async def test_what_is_permitted_although_nobody_may_is_told(tmp_path: Path) -> None:
    config = node_config(tmp_path, auth="permissive", admin_token_file=private(tmp_path / "admin", b"a" * 40))
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        assert (await node.call("PUT", "/v1/topics/a", {"queues": 1})).status == 201
        for_topic, for_anything = await recorded(node, 2, outcome="denied", route="PUT")
        (done,) = await recorded(node, 1, outcome="done")
        assert (await audit(node))["auth"] == "permissive"
    assert not fatal
    assert (for_anything["permitted"], for_anything["resource"]) == (True, "anything")
    assert (for_topic["permitted"], for_topic["resource"]) == (True, "topic:a")
    assert done["principal"] == "anonymous"


async def test_without_authentication_changes_are_recorded_of_anybody(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The files alone have them: anybody can cause these records, and lines of the audit have no bound."""
    assert (await node.call("PUT", "/v1/topics/a", {"queues": 1})).status == 201
    assert (await node.call("DELETE", "/v1/topics/a")).status == 204
    assert (await node.call("PUT", "/v1/topics/%00")).status == 400
    assert (await node.call("POST", "/v1/cluster/join", {"node_id": 4})).status == 403
    failed, deleted, created = await recorded(node, 3)
    assert (created["principal"], created["address"], created["method"]) == ("anonymous", "127.0.0.1", "PUT")
    assert (created["outcome"], created["raft_index"] > 0, created["request_id"] != "") == ("done", True, True)
    assert (deleted["method"], deleted["path"], deleted["outcome"]) == ("DELETE", "/v1/topics/a", "done")
    assert (failed["outcome"], failed["code"]) == ("failed", "invalid_topic")
    found = await audit(node)
    assert (found["auth"], len(found["records"])) == ("off", 3)
    assert not [each for each in caplog.records if each.name.startswith(AUDIT_LOGGER)]


async def test_decisions_by_force_are_recorded_without_authentication(node: Node) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 1, "type": "any"})
    half = {"transaction_id": "t-1", "producer_group": "shop", "messages": [{"topic": "a", "body": "x"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    force = {"source": "operator", "force": True, "operator": "ann", "reason": "gone"}
    assert (await node.call("POST", "/v1/transactions/t-0/rollback", force)).status == 404
    assert (await node.call("POST", "/v1/transactions/t-1/rollback", force)).status == 200
    begun, _ = await recorded(node, 2)
    assert (begun["principal"], begun["outcome"], begun["detail"]) == ("anonymous", "begun", "t-1 by force")


async def test_a_decision_by_force_and_a_join_token_are_told_in_words(closed: Node) -> None:
    await made(closed, 4)
    await closed.call("PUT", "/v1/topics/a", {"queues": 1, "type": "any"})
    half = {"transaction_id": "t-1", "producer_group": "shop", "messages": [{"topic": "a", "body": "x"}]}
    assert (await closed.call("POST", "/v1/transactions", half)).status == 201
    force = {"source": "operator", "force": True, "operator": "ann", "reason": "gone"}
    assert (await closed.call("POST", "/v1/transactions/t-1/rollback", force)).status == 200
    begun, _, token = await recorded(closed, 3)
    assert (begun["outcome"], begun["detail"]) == ("begun", "t-1 by force")
    assert token["detail"] == "the join token of node 4, which ends in 3600000 ms"


async def test_no_secret_is_in_the_files(tmp_path: Path) -> None:
    async with closed_node(tmp_path) as node:
        hidden = [ADMINISTRATOR, SECRET, await user(node, "ann"), await made(node)]
        await call_as(node, hidden[2], "PUT", f"/v1/topics/a?token={hidden[2]}", {"queues": 1})
        await call_as(node, "wrong" * 10, "DELETE", "/v1/topics/a")
        await call_as(node, None, "DELETE", "/v1/topics/a", Cookie=f"token={hidden[2]}")
        await recorded(node, 3, outcome="denied")
    text = written(tmp_path)
    assert "ann" in text
    assert not [each for each in [*hidden, "wrong" * 10] if each in text]


def written(path: Path) -> str:
    files = sorted((path / "data/audit").iterdir())
    assert [each.stat().st_mode & 0o777 for each in files] == [0o600] * len(files)
    assert (path / "data/audit").stat().st_mode & 0o777 == 0o700
    return "".join(each.read_text() for each in files)


async def test_records_stay_when_the_node_starts_again(tmp_path: Path) -> None:
    for _ in range(2):
        async with closed_node(tmp_path) as node:
            for number in range(3):
                await node.call("PUT", f"/v1/topics/t{number}", {"queues": 1})
    assert written(tmp_path).count("\n") == 6, "stopping waits for what is not written yet"


async def test_pages_are_bounded(closed: Node) -> None:
    for number in range(7):
        await closed.call("PUT", f"/v1/topics/t{number}", {"queues": 1})
    whole = await recorded(closed, 7)
    first = await audit(closed, limit=3)
    second = await audit(closed, limit=3, after=first["next"])
    third = await audit(closed, limit=3, after=second["next"])
    assert first["records"] + second["records"] + third["records"] == whole
    assert third["next"] is None


@pytest.mark.parametrize(
    "query",
    [
        *({"limit": limit} for limit in (0, -1, AUDIT_RECORDS_MAX + 1, "x")),
        *({"after": after} for after in ("x", "1.2", "1.2-3.4-5", f"{'9' * 19}.1-")),
        *({name: ""} for name in ("principal", "route", "request_id", "outcome", "action")),
        *({"outcome": "permitted"}, {"action": "everything"}, {"since_ms": -1}, {"until_ms": "now"}),
        *({"principal": "x" * 513}, {"request_id": "x" * 65}, {"more": 1}),
    ],
)
async def test_a_query_that_is_not_valid_is_refused(closed: Node, query: dict[str, object]) -> None:
    answer = await closed.call("GET", f"{PATH}?{urlencode(query)}")
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


async def test_the_largest_page_is_answered(closed: Node) -> None:
    assert (await closed.call("GET", f"{PATH}?limit={AUDIT_RECORDS_MAX}")).status == 200


# --- disks ----------------------------------------------------------------------------------------------------------


def fail(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], None]:
    """Have each write of the audit fail, and none of the log's. Returns what ends that."""
    is_over = False

    class Failing(PosixDisk):
        def open(self, path: str, *, create: bool = False) -> Any:
            if not is_over and "/audit/" in path:
                raise DiskError("open", path, number, os.strerror(number))
            return original(self, path, create=create)

    original = PosixDisk.open
    monkeypatch.setattr(PosixDisk, "open", Failing.open)

    def end() -> None:
        nonlocal is_over
        is_over = True

    return end


async def metric(node: Node, name: str) -> float:
    text = (await node.call("GET", "/metrics")).body.decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE])
async def test_a_disk_that_takes_nothing_stops_no_call_and_is_told_once(
    closed: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    lost = 'keelmq_audit_records_lost_total{reason="not_written"}'
    end = fail(monkeypatch, number)
    for name in ("a", "b", "c"):
        assert (await closed.call("PUT", f"/v1/topics/{name}", {"queues": 1})).status == 201
        assert (await audit(closed))["records"] == []

    async def counted() -> bool:
        return await metric(closed, lost) == 3

    await closed.wait(counted)
    assert caplog.text.count("the audit cannot be written") == 1
    assert caplog.text.count("PUT /v1/topics/") == 3, "the lines of standard error stay"
    end()
    await closed.call("PUT", "/v1/topics/d", {"queues": 1})
    (found,) = await recorded(closed, 1)
    assert (found["path"], found["missing_before"]) == ("/v1/topics/d", 3)
    assert caplog.text.count("the audit is written again") == 1
    await closed.call("PUT", "/v1/topics/e", {"queues": 1})
    assert (await recorded(closed, 2))[0]["missing_before"] == 0
    assert await metric(closed, 'keelmq_audit_records_total{stream="calls"}') == 2


async def test_a_disk_that_hangs_holds_up_no_call_and_no_more_memory_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.core.audit_trail.STOP_S_MAX", 0.01)
    async with closed_node(tmp_path) as node:
        trail, hangs = node.core.audit, asyncio.Event()

        async def hang(_: Callable[[], object]) -> None:
            await hangs.wait()

        monkeypatch.setattr(trail._pool, "run", hang)
        for name in ("a", "b"):
            assert (await node.call("PUT", f"/v1/topics/{name}", {"queues": 1})).status == 201
        (record,) = trail._waiting["calls"]
        for _ in range(WAITING_MAX + 10):
            trail._add("calls", record)
        assert len(trail._waiting["calls"]) == WAITING_MAX
        assert await metric(node, 'keelmq_audit_records_lost_total{reason="queue_full"}') == 11


# --- denials --------------------------------------------------------------------------------------------------------


def test_denials_of_an_address_are_bounded_and_leave_room_for_others() -> None:
    now_s = 0.0
    pace = DenialPace(lambda: now_s)
    assert [pace.takes("10.0.0.1") for _ in range(100)].count(True) == DENIALS_PER_ADDRESS_MAX
    assert pace.takes("10.0.0.2")
    assert [pace.takes(f"10.0.1.{number}") for number in range(1_000)].count(True) == (
        DENIALS_MAX - DENIALS_PER_ADDRESS_MAX - 1
    )
    now_s = DENIAL_INTERVAL_S
    assert pace.takes("10.0.0.1")


async def test_denials_that_were_left_out_are_told_by_the_next_one(closed: Node) -> None:
    """Also while the ones before wait for the disk."""
    for _ in range(DENIALS_PER_ADDRESS_MAX + 5):
        assert (await call_as(closed, None, "GET", "/v1/topics")).status == 401
    await recorded(closed, DENIALS_PER_ADDRESS_MAX, outcome="denied")
    assert await metric(closed, 'keelmq_audit_records_lost_total{reason="too_many_denials"}') == 5
    closed.clock.now_ms += int(DENIAL_INTERVAL_S * 1000)
    await call_as(closed, None, "GET", "/v1/topics")
    found = await recorded(closed, DENIALS_PER_ADDRESS_MAX + 1, outcome="denied")
    assert [each["missing_before"] for each in found[:2]] == [5, 0]


async def test_a_bug_costs_the_records_of_one_write_and_is_told(
    closed: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:

        def wrong(_: object) -> bytes:
            raise KeyError("a bug")

        patch.setattr("cluster.audit.stream.line_of", wrong)
        assert (await closed.call("PUT", "/v1/topics/a", {"queues": 1})).status == 201

        async def counted() -> bool:
            return await metric(closed, 'keelmq_audit_records_lost_total{reason="not_written"}') == 1

        await closed.wait(counted)
    assert "cannot write the audit" in caplog.text
    await closed.call("PUT", "/v1/topics/b", {"queues": 1})
    (found,) = await recorded(closed, 1)
    assert (found["path"], found["missing_before"]) == ("/v1/topics/b", 1)
