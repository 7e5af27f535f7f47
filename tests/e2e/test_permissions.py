"""Permissions on a real cluster: every route with every kind of credentials, and users who change."""

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cluster.problems import NEXT_STEPS
from cluster.process.exit_codes import ExitCode
from tests.e2e.closed_cluster import (
    ADMINISTRATOR,
    GROUP,
    MESSAGE,
    PRODUCERS,
    TOPIC,
    TRANSACTION,
    administrator_file,
    bearer,
    closed_cluster,
    code,
    rule,
    someone,
)
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, Reply, ok, wait_for

PUBLIC: Final = frozenset({"/healthz", "/readyz", "/openapi.json", "/console", "/console/{file}"})
FOR_EVERY_PRINCIPAL: Final = frozenset({"/v1/cluster", "/v1/principal"})
LISTS: Final = {
    "/v1/topics": "topics",
    "/v1/groups": "groups",
    "/v1/lags": "groups",
    "/v1/transactions": "transactions",
    "/v1/producer-groups": "producer_groups",
}
"""Lists that show every principal its own rows, by path: the member with the rows."""
HIDDEN: Final = frozenset({"message_not_found", "transaction_not_found"})


cluster = closed_cluster()


class Call(NamedTuple):
    """A request of one route that is valid, so that only permissions can refuse it."""

    route: str
    method: str
    path: str
    payload: Any


BODIES: Final[dict[tuple[str, str], Any]] = {
    ("POST", "/v1/topics/{topic}/messages"): {"messages": [{"body": "z"}]},
    ("POST", "/v1/groups/{group}/members"): {"client_id": "c", "topics": [TOPIC], "session_timeout_ms": 10_000},
    ("PUT", "/v1/groups/{group}/offsets"): {"offsets": [{"topic": TOPIC, "queue": 0, "offset": 0}]},
    ("POST", "/v1/groups/{group}/reset"): {"topic": TOPIC, "to": "earliest"},
    ("POST", "/v1/groups/{group}/clone-offsets"): {"source": GROUP},
    ("POST", "/v1/groups/{group}/pop"): {"topic": TOPIC},
    ("POST", "/v1/groups/{group}/pop/ack"): {"receipt_handles": ["1-0-0"]},
    ("POST", "/v1/groups/{group}/pop/invisible"): {"receipt_handle": "1-0-0"},
    ("PUT", "/v1/groups/{group}"): {"retry_max_attempts": 3},
    ("POST", "/v1/groups/{group}/retries"): {"messages": [{"topic": TOPIC, "queue": 0, "offset": 0}]},
    ("POST", "/v1/groups/{group}/dead-letters/replay"): {"offsets": [0]},
    ("POST", "/v1/transactions"): {"producer_group": PRODUCERS, "messages": [{"topic": TOPIC, "body": "x"}]},
    ("POST", "/v1/transactions/batch"): {
        "transactions": [{"producer_group": PRODUCERS, "messages": [{"topic": TOPIC, "body": "x"}]}]
    },
    ("POST", "/v1/transactions/decisions"): {"decisions": [{"transaction_id": TRANSACTION, "decision": "unknown"}]},
    ("POST", "/v1/transactions/{transaction_id}/resume"): {"operator": "o", "reason": "r"},
    ("PUT", "/v1/producer-groups/{group}"): {"check_url": None},
    ("POST", "/v1/cluster/feature-level"): {},
    ("POST", "/v1/cluster/members"): {"node_id": 9, "peer_address": "127.0.0.1:1", "url": "http://127.0.0.1:1"},
    ("PUT", "/v1/cluster/settings"): {},
    ("PUT", "/v1/cluster/log-level"): {"level": "info"},
    ("PUT", "/v1/cluster/drain"): {"drained": False},
    ("POST", "/v1/cluster/join-tokens"): {"node_id": 9},
    ("POST", "/v1/cluster/join"): {"node_id": 9},
}
QUERIES: Final = {
    "/v1/backups/{backup_id}": "?frame=0",
    "/v1/users/{user}/explain": "?action=send&resource=topic:x",
    "/v1/topics/{topic}/queues/{queue}/messages": "?offset=0",
    "/v1/messages/{message_id}/caused": f"?topic={TOPIC}",
    "/v1/topics/{topic}/queues/{queue}/offsets": "?at=earliest",
}
PARAMETERS: Final = {
    "topic": TOPIC,
    "group": GROUP,
    "transaction_id": TRANSACTION,
    "message_id": MESSAGE,
    "queue": "0",
    "user": "somebody",
    "member_id": "member",
    "token_id": "none",
    "node_id": "9",
    "file": "main.js",
    "backup_id": "none",
}


def calls(node: NodeProcess) -> list[Call]:
    """Return a call of every route that the node describes."""
    found = []
    for route, methods in ok(node.request("GET", "/openapi.json"))["paths"].items():
        for method in methods:
            path = route.format_map(PARAMETERS) + QUERIES.get(route, "")
            payload = BODIES.get((method.upper(), route), {} if method in ("put", "post") else None)
            found.append(Call(route, method.upper(), path, payload))
    assert len(found) > 55, found
    return found


def refusals(node: NodeProcess, headers: dict[str, str]) -> dict[str, tuple[Call, Reply]]:
    """Send a call of every route; return the reply of each route that is not public."""
    replies = {}
    for call in calls(node):
        reply = node.request(call.method, call.path, payload=call.payload, headers=headers)
        if call.route in PUBLIC:
            assert reply.status == 200, (call, reply)
        else:
            replies[f"{call.method} {call.route}"] = call, reply
    return replies


@pytest.mark.parametrize("kind", ["none", "wrong", "expired", "garbled", "long", "basic"])
def test_no_route_answers_who_is_not_known(cluster: ClusterProcess, kind: str) -> None:
    leader = cluster.wait_leader()
    headers = {
        "none": {"Authorization": ""},
        "wrong": bearer("keelmq_" + "x" * 43),
        "garbled": {"Authorization": "Bearer"},
        "long": bearer("x" * 4_000),
        "basic": {"Authorization": "Basic YWRtaW46YWRtaW4="},
    }.get(kind) or bearer(expired(leader))
    for route, (call, reply) in refusals(leader, headers).items():
        assert (reply.status, code(reply)) == (401, "unauthenticated"), (route, call, reply)
        assert reply.headers["www-authenticate"] == "Bearer"


def expired(leader: NodeProcess) -> str:
    token = someone(leader, rule("*", on="*"), expires_in_ms=1).token
    wait_for(lambda: leader.request("GET", "/v1/principal", headers=bearer(token)).status == 401, "the token to expire")
    assert "has expired" in leader.request("GET", "/v1/principal", headers=bearer(token)).json()["detail"]
    return token


def test_no_route_does_what_is_not_allowed(cluster: ClusterProcess) -> None:
    """A user with permissions for other names is refused alike for what exists and for what does not."""
    leader = cluster.wait_leader()
    before = ok(leader.request("GET", f"/v1/topics/{TOPIC}"))
    other = someone(
        leader, rule("*", on="topic:other*"), rule("*", on="group:other*"), rule("*", on="producer-group:o*")
    )
    for route, (call, reply) in refusals(leader, bearer(other.token)).items():
        if call.route in FOR_EVERY_PRINCIPAL:
            assert reply.status == 200, (route, reply)
        elif call.method == "GET" and call.route in LISTS:
            assert reply.json()[LISTS[call.route]] == [], (route, reply)
        elif "results" in (found := reply.json()):
            problems = [each["problem"] for each in found["results"]]
            assert all(each["code"] in {"forbidden", *HIDDEN} for each in problems), (route, reply)
        else:
            assert reply.status == 403 or code(reply) in HIDDEN, (route, reply)
    assert ok(leader.request("GET", f"/v1/topics/{TOPIC}")) == before
    for name in (TOPIC, "secret-nothing"):
        reply = leader.request("GET", f"/v1/topics/{name}", headers=bearer(other.token))
        assert (reply.status, code(reply)) == (403, "forbidden")
    unknown = f"transaction {{}} does not exist; {NEXT_STEPS['transaction_not_found']}"
    for name in (TRANSACTION, "nothing"):
        reply = leader.request("POST", f"/v1/transactions/{name}/commit", headers=bearer(other.token), payload={})
        assert (reply.status, reply.json()["detail"]) == (404, unknown.format(name))


def test_the_administrator_and_a_user_who_may_do_everything_are_not_refused(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    for token in (ADMINISTRATOR, someone(leader, rule("*", on="*")).token):
        for call in calls(leader):
            if call.method == "GET":
                reply = leader.request(call.method, call.path, headers=bearer(token))
                assert reply.status not in (401, 403), (call, reply)


def test_a_service_does_its_work_with_the_least_permissions(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    shop = someone(leader, rule("send", on=f"topic:{TOPIC}"), rule("send", "decide", on="producer-group:shop"))
    billing = someone(leader, rule("read", on=f"topic:{TOPIC}"), rule("read", on="group:billing"))
    half = {"transaction_id": "t-shop", "producer_group": "shop", "messages": [{"topic": TOPIC, "body": "paid"}]}
    ok(leader.request("POST", "/v1/transactions", payload=half, headers=bearer(shop.token)))
    assert (
        leader.request("POST", "/v1/transactions/t-shop/commit", payload={}, headers=bearer(billing.token)).status
        == 404
    )
    ok(leader.request("POST", "/v1/transactions/t-shop/commit", payload={}, headers=bearer(shop.token)))
    forced = leader.request(
        "POST", "/v1/transactions/t-shop/commit", payload={"force": True}, headers=bearer(shop.token)
    )
    assert code(forced) == "forbidden"
    popped = ok(
        leader.request("POST", "/v1/groups/billing/pop", payload={"topic": TOPIC}, headers=bearer(billing.token))
    )
    assert "paid" in [each["body"] for each in popped["messages"]]
    sent = leader.request(
        "POST", f"/v1/topics/{TOPIC}/messages", payload={"messages": [{"body": "x"}]}, headers=bearer(billing.token)
    )
    assert code(sent) == "forbidden"
    stolen = {"messages": [{"topic": TOPIC, "queue": 0, "offset": 0}]}
    thief = someone(leader, rule("read", on="group:thieves"))
    given = leader.request("POST", "/v1/groups/thieves/retries", payload=stolen, headers=bearer(thief.token))
    assert code(given) == "forbidden", "a retry topic is no way around the permission to read the topic"
    assert [
        each["topic"] for each in ok(leader.request("GET", "/v1/topics", headers=bearer(shop.token)))["topics"]
    ] == [TOPIC]


def test_a_revoked_token_ends_and_the_other_one_goes_on(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader, rule("send", on="topic:*"))
    second = ok(leader.request("POST", f"/v1/users/{user.name}/tokens", payload={}))
    third = leader.request("POST", f"/v1/users/{user.name}/tokens", payload={})
    assert code(third) == "too_many_tokens"
    assert user.token_id in third.json()["detail"]
    ok(leader.request("DELETE", f"/v1/users/{user.name}/tokens/{user.token_id}"))
    ok(leader.request("DELETE", f"/v1/users/{user.name}/tokens/{user.token_id}"))
    assert leader.request("GET", "/v1/principal", headers=bearer(user.token)).status == 401
    assert ok(leader.request("GET", "/v1/principal", headers=bearer(second["token"])))["principal"] == user.name
    ok(leader.request("DELETE", f"/v1/users/{user.name}"))
    assert leader.request("GET", "/v1/principal", headers=bearer(second["token"])).status == 401


def test_changed_permissions_hold_at_once_and_explain_themselves(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader, rule("read", on=f"topic:{TOPIC}"))
    assert leader.request("GET", f"/v1/topics/{TOPIC}", headers=bearer(user.token)).status == 200
    denied = [rule("read", on="topic:*"), rule("describe", on=f"topic:{TOPIC}", effect="deny")]
    ok(leader.request("PUT", f"/v1/users/{user.name}", payload={"rules": denied}))
    assert leader.request("GET", f"/v1/topics/{TOPIC}", headers=bearer(user.token)).status == 403
    verdict = ok(leader.request("GET", f"/v1/users/{user.name}/explain?action=describe&resource=topic:{TOPIC}"))
    assert (verdict["allowed"], verdict["rule"]["effect"]) == (False, "deny")
    verdict = ok(leader.request("GET", f"/v1/users/{user.name}/explain?action=send&resource=topic:{TOPIC}"))
    assert (verdict["allowed"], verdict["rule"]) == (False, None)


def test_bad_input_about_users_changes_nothing(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader, rule("read", on="topic:x"))
    before = ok(leader.request("GET", f"/v1/users/{user.name}"))
    for payload, word in (
        ({"rules": [rule("fly", on="topic:x")]}, "rules[0]: actions"),
        ({"rules": [rule("read", on="topic:x"), rule("read", on="nothing:x")]}, "rules[1]"),
        ({"rules": [rule("read", on="topic:x")] * 257}, "rules"),
        ({"certificates": [""]}, "certificates"),
        ({"tokens": []}, "tokens"),
    ):
        reply = leader.request("PUT", f"/v1/users/{user.name}", payload=payload)
        assert reply.status == 400, reply
        assert word in reply.json()["detail"], reply
    for name in ("admin", "anonymous", "-x", "a" * 65, "a%20b", "a%0A"):
        assert leader.request("PUT", f"/v1/users/{name}", payload={}).status == 400, name
    stale = leader.request("PUT", f"/v1/users/{user.name}", payload={"rules": [], "revision": before["revision"] - 1})
    assert code(stale) == "user_changed"
    assert code(leader.request("PUT", f"/v1/users/{user.name}", payload={"revision": 0})) == "user_changed"
    assert ok(leader.request("GET", f"/v1/users/{user.name}")) == before


def test_a_user_like_another_but_for_case_is_not_created(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader, rule("read", on="topic:x"))
    before = ok(leader.request("GET", f"/v1/users/{user.name}"))
    refused = leader.request("PUT", f"/v1/users/{user.name.upper()}", payload={})
    assert code(refused) == "user_name_taken", refused
    assert repr(user.name) in refused.json()["detail"]
    assert leader.request("GET", f"/v1/users/{user.name.upper()}").status == 404
    assert ok(leader.request("GET", f"/v1/users/{user.name}")) == before


def test_a_certificate_belongs_to_one_user(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    first, second = someone(leader), someone(leader)
    name = f"{first.name}.example"
    ok(leader.request("PUT", f"/v1/users/{first.name}", payload={"certificates": [name, name]}))
    assert (
        code(leader.request("PUT", f"/v1/users/{second.name}", payload={"certificates": [name]})) == "certificate_taken"
    )
    assert ok(leader.request("GET", f"/v1/users/{first.name}"))["certificates"] == [name]
    ok(leader.request("PUT", f"/v1/users/{first.name}", payload={"certificates": []}))
    ok(leader.request("PUT", f"/v1/users/{second.name}", payload={"certificates": [name]}))


def test_a_follower_that_does_not_know_a_user_asks_the_leader(cluster: ClusterProcess) -> None:
    follower = cluster.follower()
    reply = follower.request("GET", f"/v1/topics/{TOPIC}", headers=bearer("keelmq_" + "y" * 43))
    assert reply.status == 307
    assert follower.request("GET", f"/v1/topics/{TOPIC}", headers={"Authorization": ""}).status == 401
    assert follower.request("GET", "/metrics", headers=bearer("keelmq_" + "y" * 43)).status == 401


def test_users_survive_restarts_and_no_secret_is_in_any_file(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    user = someone(leader, rule("read", on="topic:*"))
    cluster.wait_same_state()
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_ready()
    cluster.wait_same_state()
    for node in cluster.nodes.values():
        assert ok(node.request("GET", "/v1/principal", headers=bearer(user.token)))["principal"] == user.name
        assert f"PUT /v1/users/{user.name} by admin at 127.0.0.1: 201" in cluster_logs(cluster)
        for directory, _, files in os.walk(node.data_dir):
            for file in files:
                content = Path(directory, file).read_bytes()
                assert user.token.encode() not in content, file
                assert ADMINISTRATOR.encode() not in content, file
    logs = cluster_logs(cluster)
    assert user.token not in logs
    assert ADMINISTRATOR not in logs


def cluster_logs(cluster: ClusterProcess) -> str:
    return "".join(node.log_path.read_text() for node in cluster.nodes.values())


def test_permissive_counts_what_enforce_would_refuse(tmp_path: Path) -> None:
    options = (*OPTIONS, "--auth", "permissive", "--admin-token-file", str(administrator_file(tmp_path)))
    with ClusterProcess(tmp_path, nodes=1, options=options) as open_one:
        node = open_one.wait_leader()
        ok(node.request("PUT", "/v1/topics/orders", payload={}))
        node.token = someone(node, rule("read", on="topic:orders")).token
        ok(node.request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "x"}]}))
        node.token = ADMINISTRATOR
        metrics = node.request("GET", "/metrics").body.decode()
        counted = {
            line.split()[0]: float(line.split()[1])
            for line in metrics.splitlines()
            if "auth_refused" in line and line[0] != "#"
        }
        assert counted['keelmq_auth_refused_total{reason="forbidden"}'] == 1
        assert counted['keelmq_auth_refused_total{reason="unauthenticated"}'] >= 1
        assert "allowed in mode permissive only: may not send topic:orders" in node.log_path.read_text()


def test_an_unusable_administrator_file_is_refused(tmp_path: Path) -> None:
    file = administrator_file(tmp_path)
    file.chmod(0o644)
    refused = ClusterProcess(tmp_path, nodes=1, options=(*OPTIONS, "--admin-token-file", str(file)))
    node = refused.nodes[1]
    node.start()
    assert node.wait_exit() == ExitCode.BAD_CONFIG
    assert "chmod 600" in node.log_path.read_text()
    assert json.dumps(ADMINISTRATOR) not in node.log_path.read_text()
