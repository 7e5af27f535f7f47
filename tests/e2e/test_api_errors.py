"""Tests every documented error on a real node: the code, the status, and that nothing was changed."""

import json
from typing import Any, NamedTuple

import msgspec
import pytest
from crc32c import crc32c

from cluster.problems import KINDS
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok

pytestmark = pytest.mark.process

MSGPACK = "application/msgpack"
MIB = 1 << 20
pack = msgspec.msgpack.encode


def block_request(block: bytes, checksum: int | None = None, **more: Any) -> bytes:
    batch = {"queue": 0, "batch_id": "b1", "crc32c": crc32c(block) if checksum is None else checksum, "block": block}
    return pack({"batches": [{**batch, **more}]})


class Case(NamedTuple):
    code: str
    status: int
    method: str
    path: str
    payload: Any = None
    """Value that is sent as JSON, or raw bytes."""
    media: str = "application/json"
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    extra: dict[str, Any] = {}  # noqa: RUF012


TOO_MANY_KEYS = msgspec.msgpack.encode([[b"x", None, ["k"] * 32]] * 1_563)
ORDERS, GROUP = "/v1/topics/orders", "/v1/groups/shop"
MESSAGES, QUEUE = f"{ORDERS}/messages", f"{ORDERS}/queues/0"
ONE = {"messages": [{"body": "x"}]}
WHO = {"operator": "ann", "reason": "shop is back"}
FORCE = {**WHO, "source": "operator", "force": True}
HALF: dict[str, Any] = {"producer_group": "shop", "messages": [{"topic": "orders", "body": "x"}]}
BATCH, DECISIONS = "/v1/transactions/batch", "/v1/transactions/decisions"
COMMIT = {"transaction_id": "open", "decision": "commit"}


def message(**fields: Any) -> Any:
    return {"messages": [{"body": "x", **fields}]}


def offsets(offset: int = 0, queue: int = 0, topic: str = "orders", **fields: Any) -> Any:
    return {**fields, "offsets": [{"topic": topic, "queue": queue, "offset": offset}]}


CASES = [
    Case("invalid_request", 400, "POST", MESSAGES, b"{"),
    Case("invalid_request", 400, "POST", MESSAGES, b""),
    Case("invalid_request", 400, "POST", MESSAGES, b'{"messages":[{"body":"x","body":"y"}]}'),
    Case("invalid_request", 400, "POST", MESSAGES, message(color="red")),
    Case("invalid_request", 400, "POST", MESSAGES, message(queue=-1)),
    Case("invalid_request", 400, "POST", MESSAGES, message(queue="0")),
    Case("invalid_request", 400, "POST", MESSAGES, message(message_id="a b")),
    Case("invalid_request", 400, "POST", MESSAGES, message(tag="t" * 256)),
    Case("invalid_request", 400, "POST", MESSAGES, message(encoding="base64", body="?")),
    Case("invalid_request", 400, "POST", MESSAGES, ONE, headers={"Idempotency-Key": "a b"}),
    Case("unsupported_media_type", 415, "POST", MESSAGES, b"body=x", media="application/x-www-form-urlencoded"),
    Case("invalid_request", 400, "POST", MESSAGES, b"\xc1", media=MSGPACK),
    Case("invalid_request", 400, "POST", MESSAGES, pack({"batches": []}), media=MSGPACK),
    Case("invalid_request", 400, "POST", MESSAGES, block_request(b"\xc1"), media=MSGPACK),
    Case("invalid_request", 400, "POST", MESSAGES, block_request(pack([["text"]])), media=MSGPACK),
    Case("invalid_request", 400, "POST", MESSAGES, block_request(pack([[b"x"]]), batch_id="a b"), media=MSGPACK),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=-1"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=0&offset=1"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=0&limit=1"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=0&wait_ms=30001"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=0&tags=A%7C%7C"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/messages?offset=0&tags=A&filter=a"),
    Case("invalid_request", 400, "GET", f"{ORDERS}/queues/x/messages?offset=0"),
    Case("invalid_request", 400, "GET", f"{QUEUE}/offsets?at=soon"),
    Case("invalid_request", 400, "GET", f"{MESSAGES}?after=nonsense"),
    Case("invalid_request", 400, "GET", f"{MESSAGES}?from_ms=soon"),
    Case("invalid_request", 400, "GET", f"/v1/messages/{'m' * 129}"),
    Case("invalid_request", 400, "POST", "/v1/groups/other/clone-offsets", {"source": "shop", "topic": "plain"}),
    Case("invalid_request", 400, "PUT", ORDERS, {"queues": 0}),
    Case("invalid_request", 400, "PUT", ORDERS, {"type": "odd"}),
    Case("invalid_request", 400, "POST", "/v1/transactions", {**HALF, "transaction_id": "a b"}),
    Case("invalid_request", 400, "POST", "/v1/transactions", {**HALF, "check_after_ms": -1}),
    Case("invalid_request", 400, "POST", "/v1/transactions/a%20b/commit"),
    Case("invalid_request", 400, "POST", BATCH, {"transactions": []}),
    Case("invalid_request", 400, "POST", BATCH, {"transactions": [HALF] * 257}),
    Case("invalid_request", 400, "POST", BATCH, {"transactions": [HALF, {**HALF, "transaction_id": "a b"}]}),
    Case("invalid_request", 400, "POST", BATCH, b"\xc1", media=MSGPACK),
    Case("invalid_request", 400, "POST", DECISIONS, {"decisions": [COMMIT] * 257}),
    Case("invalid_request", 400, "POST", DECISIONS, {"decisions": [COMMIT, {**COMMIT, "decision": "maybe"}]}),
    Case("invalid_request", 400, "POST", "/v1/transactions/open/commit", {**FORCE, "reason": ""}),
    Case("invalid_request", 400, "POST", "/v1/transactions/open/commit", {**FORCE, "source": "producer"}),
    Case("invalid_request", 400, "POST", "/v1/transactions/open/unknown", FORCE),
    Case("invalid_request", 400, "POST", "/v1/transactions/open/resume", {**WHO, "reason": "r" * 256}),
    Case("invalid_request", 400, "POST", "/v1/transactions/open/resume", {"operator": "ann"}),
    Case("invalid_request", 400, "PUT", "/v1/cluster/settings", {"reject_transactions": "yes"}),
    Case("invalid_request", 400, "GET", "/v1/transactions?after=nonsense"),
    Case("invalid_request", 400, "PUT", "/v1/producer-groups/shop", {"check_url": "nonsense"}),
    Case("check_url_not_allowed", 403, "PUT", "/v1/producer-groups/shop", {"check_url": "https://hooks.example/"}),
    Case("invalid_request", 400, "PUT", f"{GROUP}/offsets", offsets(-1)),
    Case("invalid_request", 400, "PUT", f"{GROUP}/offsets", offsets(member_id="m")),
    Case(
        "invalid_request", 400, "PUT", f"{GROUP}/offsets",
        {"offsets": [{"topic": "orders", "queue": 0, "offset": offset} for offset in (2, 1)]},
    ),
    Case("invalid_request", 400, "POST", f"{GROUP}/members", {"topics": []}),
    Case("invalid_request", 400, "POST", f"{GROUP}/reset", {"topic": "orders"}),
    Case("invalid_request", 400, "POST", f"{GROUP}/reset", {"topic": "orders", "offset": 0, "to": "latest"}),
    Case("invalid_request", 400, "POST", f"{GROUP}/retries", {"messages": []}),
    Case("invalid_request", 400, "PUT", GROUP, {"retry_max_attempts": -1}),
    Case("invalid_request", 400, "POST", f"{GROUP}/dead-letters/replay", {"offsets": []}),
    Case("invalid_request", 400, "GET", "/v1/log?from_index=0"),
    Case("invalid_request", 400, "GET", "/v1/log/events?from_index=0"),
    Case("invalid_request", 400, "GET", "/v1/log/events?from_index=1&blocks=some"),
    Case("invalid_filter", 400, "GET", f"{QUEUE}/messages?offset=0&filter=a%20%3E", extra={"position": 4}),
    Case(
        "invalid_filter", 400, "GET", f"{QUEUE}/messages?offset=0&wait_ms=30000&filter=", headers={"Accept": MSGPACK}
    ),
    Case(
        "invalid_filter", 400, "POST", f"{GROUP}/members", {"topics": ["orders"], "filters": {"orders": "5"}},
        extra={"topic": "orders", "position": 1},
    ),
    Case("invalid_topic", 400, "PUT", "/v1/topics/a%20b", {}),
    Case("invalid_topic", 400, "PUT", f"/v1/topics/{'t' * 128}", {}),
    Case("invalid_topic", 400, "POST", f"{GROUP}/members", {"topics": ["a b"]}),
    Case("invalid_group", 400, "POST", f"/v1/groups/{'g' * 256}/members", {"topics": ["orders"]}),
    Case("invalid_group", 400, "POST", "/v1/transactions", {**HALF, "producer_group": "a b"}),
    Case("checksum_mismatch", 400, "POST", MESSAGES, block_request(pack([[b"x"]]), checksum=1), media=MSGPACK),
    Case(
        "invalid_compression", 400, "POST", MESSAGES,
        block_request(pack([[b"x"]]), encoding="zstd", uncompressed_bytes=5), media=MSGPACK,
    ),
    Case("empty_body", 400, "POST", MESSAGES, message(body="")),
    Case("empty_body", 400, "POST", MESSAGES, block_request(pack([[b""]])), media=MSGPACK),
    Case("too_many_properties", 400, "POST", MESSAGES, message(properties={"p": "v" * 32_767})),
    Case(
        "too_many_properties", 400, "POST", MESSAGES,
        block_request(pack([[b"x", None, [], {str(name): "" for name in range(101)}]] * 1_000)), media=MSGPACK,
    ),
    Case(
        "too_many_properties", 400, "POST", MESSAGES,
        block_request(b"\x91\x94\xc4\x01x\xc0\x90\xde\x20\x01" + b"\xa1x\xa0" * 8_193), media=MSGPACK,
    ),
    Case("system_topic", 403, "POST", "/v1/topics/RMQ_SYS_TRANS_HALF_TOPIC/messages", ONE),
    Case("system_topic", 403, "PUT", "/v1/topics/TRANS_CHECK_MAX_TIME_TOPIC", {"queues": 2}),
    Case("system_topic", 403, "PUT", "/v1/topics/%25DLQ%25shop", {}),
    Case("system_topic", 403, "DELETE", "/v1/topics/RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    Case("topic_type_mismatch", 403, "POST", "/v1/transactions", {
        "producer_group": "shop", "messages": [{"topic": "plain", "body": "x"}]
    }),
    Case("topic_not_found", 404, "POST", "/v1/topics/none/messages", ONE),
    Case("topic_not_found", 404, "GET", "/v1/topics/none"),
    Case("topic_not_found", 404, "DELETE", "/v1/topics/none"),
    Case("topic_not_found", 404, "GET", "/v1/topics/none/queues/0/messages?offset=0"),
    Case("topic_not_found", 404, "POST", f"{GROUP}/members", {"topics": ["none"]}),
    Case("queue_not_found", 404, "POST", MESSAGES, message(queue=1)),
    Case("queue_not_found", 404, "GET", f"{ORDERS}/queues/1/messages?offset=0"),
    Case("queue_not_found", 404, "POST", f"{GROUP}/reset", {"topic": "orders", "queue": 1, "to": "latest"}),
    Case("backup_not_found", 404, "GET", "/v1/backups/none?frame=0"),
    Case("backup_not_found", 404, "DELETE", "/v1/backups/none"),
    Case("invalid_request", 400, "GET", "/v1/backups/none"),
    Case("invalid_request", 400, "DELETE", "/v1/backups/none?stored=perhaps"),
    Case("group_not_found", 404, "GET", "/v1/groups/none"),
    Case("group_not_found", 404, "GET", "/v1/groups/none/offsets"),
    Case("group_not_found", 404, "POST", "/v1/groups/none/reset", {"topic": "orders", "to": "latest"}),
    Case("group_not_found", 404, "POST", "/v1/groups/other/clone-offsets", {"source": "none"}),
    Case("member_not_found", 404, "POST", f"{GROUP}/members/none/heartbeat"),
    Case("member_not_found", 404, "DELETE", f"{GROUP}/members/none"),
    Case("transaction_not_found", 404, "POST", "/v1/transactions/none/commit"),
    Case("transaction_not_found", 404, "GET", "/v1/transactions/none"),
    Case("transaction_not_found", 404, "POST", "/v1/transactions/none/resume", WHO),
    Case("message_not_found", 404, "GET", "/v1/messages/none"),
    Case("message_not_found", 404, "GET", "/v1/messages/none/trace?topic=orders"),
    Case("not_scheduled", 404, "DELETE", f"{ORDERS}/scheduled/none"),
    Case("not_found", 404, "GET", "/v2/topics"),
    Case("node_not_found", 404, "DELETE", "/v1/cluster/members/9"),
    Case("user_not_found", 404, "GET", "/v1/users/nobody"),
    Case("user_not_found", 404, "DELETE", "/v1/users/nobody"),
    Case("user_changed", 409, "PUT", "/v1/users/nobody", {"revision": 1}),
    Case("invalid_request", 400, "PUT", "/v1/users/nobody", {"rules": [{"actions": ["fly"], "resource": "topic:x"}]}),
    Case("invalid_request", 400, "DELETE", "/v1/cluster/members/nine"),
    Case(
        "invalid_request", 400, "POST", "/v1/cluster/members",
        {"node_id": 9, "peer_address": "here", "http_address": "http://h:1"},
    ),
    Case("method_not_allowed", 405, "PATCH", ORDERS),
    Case("cross_origin", 403, "POST", MESSAGES, ONE, headers={"Origin": "https://attacker.example"}),
    Case("unsupported_media_type", 415, "POST", MESSAGES, ONE, media="text/plain"),
    Case("unsupported_media_type", 415, "POST", f"{GROUP}/members", {"topics": ["orders"]}, media=MSGPACK),
    Case("unknown_host", 421, "POST", MESSAGES, ONE, headers={"Host": "attacker.example"}),
    Case("invalid_request", 400, "GET", ORDERS, ONE),
    Case(
        "transaction_conflict", 409, "POST", "/v1/transactions/rolled-back/commit", extra={"state": "rolled_back"}
    ),
    Case("transaction_conflict", 409, "POST", "/v1/transactions/committed/rollback", extra={"state": "committed"}),
    Case("transaction_conflict", 409, "POST", "/v1/transactions/committed/rollback", FORCE),
    Case("transaction_conflict", 409, "POST", "/v1/transactions/open/resume", WHO, extra={"state": "prepared"}),
    Case("transaction_conflict", 409, "POST", "/v1/transactions/committed/resume", WHO, extra={"state": "committed"}),
    Case("producer_group_mismatch", 409, "POST", "/v1/transactions/open/commit", {"producer_group": "bank"}),
    Case("idempotency_conflict", 409, "POST", MESSAGES, message(body="other"), headers={"Idempotency-Key": "k1"}),
    Case("idempotency_conflict", 409, "POST", "/v1/transactions", {
        **HALF, "transaction_id": "open", "messages": [{"topic": "orders", "body": "other"}]
    }),
    Case(
        "stale_generation", 409, "PUT", f"{GROUP}/offsets", offsets(1, member_id="m", generation=99),
        extra={"generation": 1},
    ),
    Case("not_assigned", 409, "PUT", f"{GROUP}/offsets", offsets(0, topic="plain", member_id="m", generation=1)),
    Case("offset_moves_back", 409, "PUT", f"{GROUP}/offsets", offsets(0, member_id="m", generation=1)),
    Case(
        "already_begun", 409, "PUT", f"{GROUP}/offsets", offsets(2, member_id="m", generation=1, begins=True),
        extra={"topic": "orders", "queue": 0, "committed": 1},
    ),
    Case("group_has_members", 409, "PUT", f"{GROUP}/offsets", offsets(1)),
    Case("group_has_members", 409, "POST", f"{GROUP}/clone-offsets", {"source": "other"}, extra={"generation": 1}),
    Case("group_has_members", 409, "POST", f"{GROUP}/pop", {"topic": "orders"}, extra={"generation": 1}),
    Case("group_has_members", 409, "DELETE", GROUP, extra={"generation": 1}),
    Case("group_not_found", 404, "DELETE", "/v1/groups/none"),
    Case("group_not_found", 404, "POST", "/v1/groups/none/pop/ack", {"receipt_handles": ["1-0-0"]}),
    Case("topic_not_found", 404, "POST", "/v1/groups/none/pop", {"topic": "none"}),
    Case("invalid_request", 400, "POST", "/v1/groups/popped/pop/ack", {"receipt_handles": ["none"]}),
    Case("group_is_popped", 409, "POST", "/v1/groups/popped/members", {"topics": ["orders"]}, extra={"held": 1}),
    Case("group_is_popped", 409, "PUT", "/v1/groups/popped/offsets", offsets(3)),
    Case("group_is_popped", 409, "DELETE", "/v1/groups/popped", extra={"held": 1}),
    Case("handle_expired", 409, "POST", "/v1/groups/popped/pop/invisible", {"receipt_handle": "1-0-0"}),
    Case("subscription_mismatch", 409, "POST", "/v1/groups/popped/pop", {"topic": "orders", "tags": "A"}),
    Case("subscription_mismatch", 409, "POST", f"{GROUP}/members", {"topics": ["plain"]}),
    Case(
        "subscription_mismatch", 409, "POST", f"{GROUP}/members", {"topics": ["orders"], "tags": {"orders": "A"}},
        extra={"topic": "orders", "subscribed": "all messages", "requested": "the tags A"},
    ),
    Case("topic_exists_with_more_queues", 409, "PUT", "/v1/topics/plain", {"queues": 1}),
    Case("message_too_large", 413, "POST", MESSAGES, message(body="x" * (4 * MIB + 1))),
    Case("message_too_large", 413, "POST", MESSAGES, block_request(pack([[b"x" * (4 * MIB + 1)]])), media=MSGPACK),
    Case("batch_too_large", 413, "POST", MESSAGES, block_request(pack([[b"x"]] * 10_001)), media=MSGPACK),
    Case("batch_too_large", 413, "POST", MESSAGES, block_request(TOO_MANY_KEYS), media=MSGPACK),
    Case("batch_too_large", 413, "POST", BATCH, {"transactions": [{**HALF, "messages": HALF["messages"] * 5_001}] * 2}),
    Case("batch_too_large", 413, "POST", MESSAGES, block_request(pack([[b"x" * 4_000_000]] * 3)), media=MSGPACK),
    Case("request_too_large", 413, "POST", MESSAGES, b"x" * (16 * MIB + 1)),
    Case("request_too_large", 413, "POST", MESSAGES, b'{"messages":[{"body":"x","keys":[' + b'"",' * 250_001),
    Case("request_too_large", 413, "PUT", f"{GROUP}/offsets", b"x" * (MIB + 1)),
    Case("request_too_large", 413, "POST", DECISIONS, b"x" * (MIB + 1)),
    Case("request_too_large", 413, "POST", BATCH, b"x" * (16 * MIB + 1)),
    Case("offset_out_of_range", 416, "GET", f"{QUEUE}/messages?offset=1000", extra={"max_offset": 3}),
    Case(
        "offset_out_of_range", 416, "PUT", f"{GROUP}/offsets", offsets(1000, member_id="m", generation=1),
        extra={"max_offset": 3},
    ),
]  # fmt: skip

TESTED_ELSEWHERE = {
    "quota_exceeded": "test_quotas.py",
    "unauthenticated": "test_permissions.py",
    "forbidden": "test_permissions.py",
    "wrong_listener": "test_administration.py",
    "signing_key_awaited": "test_oidc.py",
    "peer_secret_not_text": "test_join_tokens.py",
    "certificate_taken": "test_permissions.py",
    "too_many_tokens": "test_permissions.py",
    "user_name_taken": "test_permissions.py",
    "too_many_users": "test_capacity.py",
    "request_timeout": "test_api_limits.py",
    "overloaded": "test_faults_cluster.py",
    "no_leader": "test_faults_cluster.py",
    "transactions_rejected": "test_operators.py",
    "not_ready": "test_faults_cluster.py",
    "unknown_outcome": "test_faults_cluster.py",
    "disk_full": "test_faults_disk.py",
    "clock_in_doubt": "../unit/store/test_doubt.py",
    "too_many_held": "test_pop.py",
    "too_many_topics": "test_capacity.py",
    "too_many_groups": "test_capacity.py",
    "too_many_members": "test_capacity.py",
    "too_many_check_urls": "test_capacity.py",
    "too_many_transactions": "test_capacity.py",
    "too_many_timers": "test_capacity.py",
    "log_range_removed": "test_log_events.py",
    "message_damaged": "../unit/cluster/test_cold_reads.py",
    "node_exists": "test_membership.py",
    "too_many_nodes": "test_membership.py",
    "address_unreachable": "test_addresses.py",
    "no_peer_address": "test_membership.py",
    "change_in_progress": "test_membership.py",
    "not_caught_up": "test_membership.py",
    "node_drained": "test_node_commands.py",
    "feature_not_enabled": "../versions/test_mixed_versions.py",
    "feature_level_not_known": "../versions/test_mixed_versions.py",
    "feature_level_in_force": "../versions/test_mixed_versions.py",
    "last_voter": "test_membership.py",
    "quorum_at_risk": "test_membership.py",
}


@pytest.fixture(scope="module")
def node(single: ClusterProcess) -> NodeProcess:
    """Return one node with a topic of three messages, transactions in every state, and a group with a member."""
    node = single.wait_leader()
    ok(node.request("PUT", ORDERS, payload={"queues": 1}))
    ok(node.request("PUT", "/v1/topics/plain", payload={"queues": 2, "type": "normal"}))
    ok(node.request("POST", MESSAGES, payload=ONE, headers={"Idempotency-Key": "k1"}))
    ok(node.request("POST", MESSAGES, payload=ONE))
    for transaction_id in ("rolled-back", "committed", "open"):
        ok(node.request("POST", "/v1/transactions", payload={**HALF, "transaction_id": transaction_id}))
    ok(node.request("POST", "/v1/transactions/rolled-back/rollback"))
    ok(node.request("POST", "/v1/transactions/committed/commit"))
    session = {"topics": ["orders"], "member_id": "m", "session_timeout_ms": 600_000}
    ok(node.request("POST", f"{GROUP}/members", payload=session))
    ok(node.request("PUT", f"{GROUP}/offsets", payload=offsets(1, member_id="m", generation=1)))
    pop = {"topic": "orders", "max_messages": 1, "invisible_ms": 3_600_000}
    assert len(ok(node.request("POST", "/v1/groups/popped/pop", payload=pop))["messages"]) == 1
    return node


def visible(node: NodeProcess) -> Any:
    """Return everything that clients can see of the state."""
    paths = (
        "/v1/topics?system=true",
        "/v1/transactions",
        "/v1/transactions/open",
        "/v1/groups",
        f"{GROUP}/offsets",
        "/v1/cluster/settings",
    )
    return [ok(node.request("GET", path)) for path in paths]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.method}{case.path[:60]}")
def test_bad_input_is_refused_and_changes_nothing(node: NodeProcess, case: Case) -> None:
    before = visible(node)
    body = (
        case.payload if isinstance(case.payload, bytes) or case.payload is None else json.dumps(case.payload).encode()
    )
    headers = {**({"Content-Type": case.media} if body is not None else {}), **case.headers}
    reply = node.request(case.method, case.path, body, headers=headers)
    assert reply.status == case.status, reply
    assert reply.headers["content-type"].startswith("application/problem+json")
    problem = reply.json()
    assert (problem["code"], problem["status"]) == (case.code, case.status), problem
    assert problem["detail"]
    assert problem["title"]
    assert {name: problem.get(name) for name in case.extra} == case.extra
    assert visible(node) == before


BAD_HALVES: list[tuple[str, Any]] = [
    ("topic_not_found", {**HALF, "messages": [{"topic": "none", "body": "x"}]}),
    ("topic_type_mismatch", {**HALF, "messages": [{"topic": "plain", "body": "x"}]}),
    ("system_topic", {**HALF, "messages": [{"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "body": "x"}]}),
    ("queue_not_found", {**HALF, "messages": [{"topic": "orders", "body": "x", "queue": 1}]}),
    ("empty_body", {**HALF, "messages": [{"topic": "orders", "body": ""}]}),
    ("invalid_topic", {**HALF, "messages": [{"topic": "a b", "body": "x"}]}),
    ("invalid_group", {**HALF, "producer_group": "a b"}),
    (
        "idempotency_conflict",
        {**HALF, "transaction_id": "open", "messages": [{"topic": "orders", "body": "other"}]},
    ),
]
BAD_DECISIONS: list[tuple[str, Any]] = [
    ("transaction_not_found", {**COMMIT, "transaction_id": "none"}),
    ("transaction_conflict", {**COMMIT, "transaction_id": "rolled-back"}),
    ("producer_group_mismatch", {**COMMIT, "producer_group": "bank"}),
    ("invalid_group", {**COMMIT, "producer_group": "a b"}),
    ("invalid_request", {**COMMIT, "force": True}),
]


@pytest.mark.parametrize(
    ("path", "name", "good", "bad"),
    [
        (BATCH, "transactions", {**HALF, "transaction_id": "open"}, BAD_HALVES),
        (DECISIONS, "decisions", {**COMMIT, "transaction_id": "committed"}, BAD_DECISIONS),
    ],
)
def test_one_of_many_is_refused_as_if_it_were_alone(
    node: NodeProcess, path: str, name: str, good: Any, bad: list[tuple[str, Any]]
) -> None:
    before = visible(node)
    results = ok(node.request("POST", path, payload={name: [good, *(each for _, each in bad), good]}))["results"]
    problems = [result.get("problem") for result in results]
    assert [problem and problem["code"] for problem in problems] == [None, *(code for code, _ in bad), None]
    assert all(problem is None or problem["status"] == KINDS[problem["code"]].status for problem in problems)
    assert results[0]["state"] == results[-1]["state"]
    assert visible(node) == before


def test_every_documented_code_has_a_case() -> None:
    assert {case.code for case in CASES} | TESTED_ELSEWHERE.keys() == KINDS.keys() - {"internal"}


def test_allow_names_the_methods(node: NodeProcess) -> None:
    assert node.request("PATCH", ORDERS).headers["allow"] == "DELETE, GET, PUT"
