"""Ways around a permission: what a request touches besides the names in its path, and what its answers tell."""

from typing import Any

from cluster.process.line_pace import LINES_PER_PLACE_MAX
from tests.e2e.closed_cluster import GROUP, TOPIC, bearer, closed_cluster, code, rule, someone
from tests.e2e.cluster_process import ClusterProcess, ok, wait_for

cluster = closed_cluster()


def test_a_guessed_handle_moves_no_message_of_a_topic_that_may_not_be_read(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    popped = ok(leader.request("POST", "/v1/groups/guessed/pop", payload={"topic": TOPIC, "max_messages": 1}))
    (held,) = popped["messages"]
    thief = bearer(someone(leader, rule("read", on="group:guessed")).token)
    handle = held["receipt_handle"]
    given = leader.request(
        "POST", "/v1/groups/guessed/pop/invisible", payload={"receipt_handle": handle}, headers=thief
    )
    assert code(given) == "handle_expired"
    acked = leader.request("POST", "/v1/groups/guessed/pop/ack", payload={"receipt_handles": [handle]}, headers=thief)
    assert ok(acked)["results"] == [{"receipt_handle": handle, "outcome": "handle_expired"}]
    mine = leader.request("POST", "/v1/groups/guessed/pop/ack", payload={"receipt_handles": ["1-0-0", handle]})
    assert [each["outcome"] for each in ok(mine)["results"]] == ["handle_expired", "acked"]


def test_a_trace_names_no_group_that_may_not_be_described(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/traced", payload={"queues": 1}))
    ok(leader.request("POST", "/v1/topics/traced/messages", payload={"messages": [{"body": "x", "message_id": "t-1"}]}))
    for group in ("traced-mine", "traced-hidden"):
        held = ok(leader.request("POST", f"/v1/groups/{group}/pop", payload={"topic": "traced", "max_messages": 1}))
        given_back = {"receipt_handle": held["messages"][0]["receipt_handle"], "invisible_ms": 1_000}
        ok(leader.request("POST", f"/v1/groups/{group}/pop/invisible", payload=given_back))
    one, every = (rule("describe", on=f"group:{groups}") for groups in ("traced-mine", "*"))
    for user, groups, left_out in (
        (someone(leader, rule("read", on="topic:traced"), one), {"traced-mine"}, True),
        (someone(leader, rule("read", on="topic:traced")), set[str](), True),
        (someone(leader, rule("read", on="topic:traced"), every), {"traced-mine", "traced-hidden"}, False),
    ):
        reply = leader.request("GET", "/v1/messages/t-1/trace", headers=bearer(user.token))
        (trace,) = ok(reply)["traces"]
        assert {each["group"] for each in trace["events"] if "group" in each} == groups
        assert trace["groups_left_out"] is left_out
        assert trace["events"][0]["event"] == "produced"
        assert ("hidden" in str(trace)) is ("traced-hidden" in groups)


def test_nobody_silences_the_audit_log(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    nobody = bearer(someone(leader).token)
    for _ in range(LINES_PER_PLACE_MAX + 5):
        payload = {"operator": "x", "reason": "y"}
        assert leader.request("POST", "/v1/transactions/x/resume", payload=payload, headers=nobody).status == 403
        assert leader.request("PUT", "/v1/topics/x", payload={}, headers=nobody).status == 403
    user = someone(leader)
    for _ in range(LINES_PER_PLACE_MAX + 5):
        ok(leader.request("PUT", f"/v1/users/{user.name}", payload={"rules": []}))
    wait_for(
        lambda: leader.output().count(f"PUT /v1/users/{user.name} by admin") == LINES_PER_PLACE_MAX + 6,
        "every line of the audit log",
    )
    assert "/v1/transactions/x/resume by" not in "".join(
        line for line in leader.output().splitlines() if "keelmq.audit" in line
    )


def test_who_did_it_is_told_of_decisions_by_force_and_of_users_who_delete_themselves(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    half = {"transaction_id": "t-forced", "producer_group": "shop", "messages": [{"topic": TOPIC, "body": "x"}]}
    ok(leader.request("POST", "/v1/transactions", payload=half))
    operator = someone(leader, rule("decide", on="producer-group:*"), rule("admin", on="cluster"))
    force = {"source": "operator", "force": True, "operator": "ann", "reason": "shop is gone"}
    ok(leader.request("POST", "/v1/transactions/t-forced/rollback", payload=force, headers=bearer(operator.token)))
    ok(leader.request("DELETE", f"/v1/users/{operator.name}", headers=bearer(operator.token)))
    wait_for(lambda: f"DELETE /v1/users/{operator.name} by {operator.name}" in leader.output(), "the line of the end")
    assert f"by {operator.name} at 127.0.0.1: t-forced by force" in leader.output()


def test_names_are_checked_before_permissions(cluster: ClusterProcess) -> None:
    """A name of any length would be kept, logged and answered."""
    leader = cluster.wait_leader()
    nobody = bearer(someone(leader).token)
    long = "x" * 1_000_000
    rich = bearer(someone(leader, rule("reset", "read", on="group:*")).token)
    requests: tuple[tuple[dict[str, str], str, Any], ...] = (
        (nobody, "/v1/transactions", {"producer_group": long, "messages": [{"topic": "a", "body": "x"}]}),
        (nobody, "/v1/transactions", {"producer_group": "a", "messages": [{"topic": long, "body": "x"}]}),
        (rich, f"/v1/groups/{GROUP}/reset", {"topic": long, "to": "earliest"}),
        (rich, f"/v1/groups/{GROUP}/clone-offsets", {"source": long}),
    )
    for headers, path, payload in requests:
        reply = leader.request("POST", path, payload=payload, headers=headers)
        assert (reply.status, len(reply.body) < 2_000) == (400, True), reply.body[:200]


def test_lists_and_views_name_nothing_that_may_not_be_seen(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    for name in ("a-1", "b-hidden", "b-hidden-2", "c-1", "d-hidden", "e-1"):
        ok(leader.request("PUT", f"/v1/topics/list-{name}", payload={}))
        ok(leader.request("PUT", f"/v1/groups/list-{name}", payload={}))
        half = {"transaction_id": f"list-{name}", "producer_group": name, "messages": [{"topic": TOPIC, "body": "x"}]}
        ok(leader.request("POST", "/v1/transactions", payload=half))
    seen = [
        rule("describe", on=f"{kind}:{prefix}{name}")
        for kind, prefix in (("topic", "list-"), ("group", "list-"), ("producer-group", ""))
        for name in ("a-1", "c-1", "e-1")
    ]
    someone_else = bearer(someone(leader, *seen).token)
    for path, rows, field in (
        ("/v1/topics", "topics", "topic"),
        ("/v1/groups", "groups", "group"),
        ("/v1/transactions", "transactions", "transaction_id"),
    ):
        for limit in (1, 2, 3, 100):
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page = ok(
                    leader.request("GET", f"{path}?limit={limit}{after and f'&after={after}'}", headers=someone_else)
                )
                assert len(page[rows]) <= limit
                assert "hidden" not in str(page)
                found += [each[field] for each in page[rows]]
                after = page["next"]
            assert found == ["list-a-1", "list-c-1", "list-e-1"], (path, limit)
    assert leader.request("GET", "/v1/log/events?from_index=1&reader=mine").status == 200
    status = ok(leader.request("GET", "/v1/cluster", headers=someone_else))
    assert (status["log_holders"], status["log_readers"]) == ([], [])
    assert {each["detail"] for each in status["alarms"]} <= {""}
    refused = [
        leader.request("PUT", f"/v1/topics/{name}", payload={}, headers=someone_else).json()["detail"]
        for name in ("list-b-hidden", "list-b-nothing")
    ]
    assert refused[0].replace("hidden", "nothing") == refused[1]


def test_a_check_url_needs_the_right_to_decide(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    alters = bearer(someone(leader, rule("alter", on="producer-group:shop")).token)
    url = {"check_url": "http://127.0.0.1:1/"}
    assert code(leader.request("PUT", "/v1/producer-groups/shop", payload=url, headers=alters)) == "forbidden"


def test_to_keep_less_of_a_topic_takes_the_permission_to_delete_its_messages(cluster: ClusterProcess) -> None:
    """Otherwise whoever may alter a topic could empty it, who may not purge it."""
    leader = cluster.wait_leader()
    path, day_ms = "/v1/topics/kept", 86_400_000
    kept = {"queues": 1, "retention_ms": day_ms, "retention_bytes": 1_000_000}
    ok(leader.request("PUT", path, payload=kept))
    alters = bearer(someone(leader, rule("alter", on="topic:kept")).token)
    deletes = bearer(someone(leader, rule("delete", on="topic:kept")).token)
    both = bearer(someone(leader, rule("alter", "delete", on="topic:kept")).token)

    def put(headers: dict[str, str], **settings: int) -> tuple[int, str]:
        reply = leader.request("PUT", path, payload=settings, headers=headers)
        return reply.status, code(reply)

    less: tuple[dict[str, int], ...] = (
        {"retention_ms": 1},
        {"retention_ms": day_ms - 1},
        {"retention_bytes": 1},
        {"retention_bytes": 999_999, "retention_ms": -1},
        {"retention_bytes": -1, "retention_ms": 1, "queues": 2},
    )
    for settings in less:
        assert put(alters, **settings) == (403, "forbidden"), settings
        assert put(deletes, **settings) == (403, "forbidden"), settings
    reply = leader.request("PUT", path, payload={"retention_ms": 1}, headers=alters)
    assert "may not delete" in reply.json()["detail"]
    assert reply.json()["detail"].endswith("delete topic:kept")
    shown = ok(leader.request("GET", path))
    assert {name: shown[name] for name in kept} == kept, "nothing was changed"
    for more in (kept, {"queues": 2}, {"retention_ms": day_ms + 1}, {"retention_bytes": -1, "retention_ms": -1}):
        assert put(alters, **more) == (200, "")
    for settings in ({"retention_ms": day_ms}, {"retention_bytes": 1_000_000}):  # -1 is more than any limit
        assert put(alters, **settings) == (403, "forbidden"), settings
        assert put(both, **settings) == (200, ""), settings
    creates = bearer(someone(leader, rule("create", on="topic:short-lived")).token)
    created = leader.request("PUT", "/v1/topics/short-lived", payload={"retention_ms": 1}, headers=creates)
    assert created.status == 201, "a new topic has no messages"
