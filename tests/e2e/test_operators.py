"""Tests operators and transactions on real nodes: an operator's action is as durable as a message, whoever leads."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keelmq.cli.app import app
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import own_cluster

pytestmark = pytest.mark.process

OPTIONS = (*STEADY, "--check-interval-ms", "200", "--check-max", "1")
"""Nodes one of which leads until a test ends it, since plain requests follow none."""
WHO = {"operator": "ann", "reason": "shop is back"}
FORCE = {**WHO, "source": "operator", "force": True}

cluster = own_cluster(OPTIONS, topic="orders")


def show(node: NodeProcess, transaction_id: str) -> Any:
    return node.request("GET", f"/v1/transactions/{transaction_id}").json()


def poll(node: NodeProcess) -> list[str]:
    """Take checks of the group and answer none."""
    reply = node.request("GET", "/v1/producer-groups/shop/checks?wait_ms=100&client_id=c1")
    return [check["transaction_id"] for check in reply.json()["checks"]] if reply.status == 200 else []


def prepare(node: NodeProcess, transaction_id: str) -> int:
    half = {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "client_id": "c1",
        "check_after_ms": 0,
        "messages": [{"topic": "orders", "body": transaction_id}],
    }
    return node.request("POST", "/v1/transactions", payload=half).status


def discarded(node: NodeProcess, transaction_id: str) -> None:
    """Make a transaction whose only check was delivered and not answered."""
    assert prepare(node, transaction_id) == 201

    def is_discarded() -> bool:
        poll(node)
        return bool(show(node, transaction_id)["state"] == "discarded")

    wait_for(is_discarded, "the discard")


def decide(node: NodeProcess, transaction_id: str, decision: str, body: Any) -> tuple[int, Any]:
    reply = node.request("POST", f"/v1/transactions/{transaction_id}/{decision}", payload=body)
    return reply.status, reply.json()


def delivered(node: NodeProcess) -> list[str]:
    path = "/v1/topics/orders/queues/0/messages?offset=0&max_messages=100"
    return [message["body"] for message in node.request("GET", path).json()["messages"]]


def names(node: NodeProcess, transaction_id: str) -> list[str]:
    return [event["event"] for event in show(node, transaction_id)["timeline"]]


def test_a_resumed_transaction_is_decided_by_the_next_leader(cluster: ClusterProcess) -> None:
    """The leader is killed between the resume and the decision."""
    leader = cluster.wait_leader()
    discarded(leader, "t")
    assert decide(leader, "t", "commit", {"source": "check", "client_id": "c1"})[0] == 409
    status, resumed = decide(leader, "t", "resume", WHO)
    assert (status, resumed["state"]) == (200, "prepared")
    leader.kill()
    successor = cluster.wait_leader(among=cluster.alive())
    found = show(successor, "t")
    assert (found["state"], found["check_times"]) == ("prepared", 0)
    assert found["next_check_at_ms"] == resumed["next_check_at_ms"]
    answer = {"source": "check", "client_id": "c1", "producer_group": "shop"}
    for _ in range(2):
        assert decide(successor, "t", "commit", answer)[1]["state"] == "committed"
    leader.start()
    cluster.wait_ready()
    cluster.wait_same_state()
    for node in cluster.nodes.values():
        assert delivered(node) == ["t"]
        assert names(node, "t") == ["prepared", "check", "discarded", "resumed", "answer", "committed"]
        (record,) = (event for event in show(node, "t")["timeline"] if event["event"] == "resumed")
        assert (record["operator"], record["reason"]) == ("ann", "shop is back")


def test_a_forced_decision_and_the_switch_survive_the_leader(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    discarded(leader, "paid")
    discarded(leader, "unpaid")
    assert decide(leader, "paid", "commit", FORCE)[1]["state"] == "committed"
    settings = leader.request("PUT", "/v1/cluster/settings", payload={"reject_transactions": True})
    assert settings.json()["reject_transactions"] is True
    leader.kill()
    successor = cluster.wait_leader(among=cluster.alive())
    assert successor.request("GET", "/v1/cluster/settings").json()["reject_transactions"] is True
    refused = decide(successor, "paid", "rollback", FORCE)
    assert (refused[0], refused[1]["state"]) == (409, "committed")
    assert prepare(successor, "new") == 403
    assert decide(successor, "unpaid", "rollback", FORCE)[1]["state"] == "rolled_back"
    successor.request("PUT", "/v1/cluster/settings", payload={"reject_transactions": False})
    assert prepare(successor, "new") == 201
    assert delivered(successor) == ["paid"]
    path = "/v1/topics/RMQ_SYS_TRANS_OP_HALF_TOPIC/queues/0/messages?offset=0"
    decisions = [(each["transaction_id"], each["body"]) for each in successor.request("GET", path).json()["messages"]]
    assert decisions == [
        ("paid", "discarded"),
        ("unpaid", "discarded"),
        ("paid", "committed"),
        ("unpaid", "rolled_back"),
    ]


def test_what_is_refused_while_transactions_are_switched_off(cluster: ClusterProcess) -> None:
    """Every node refuses half messages; followers redirect to the leader. Plain messages go on."""
    leader = cluster.wait_leader()
    leader.request("PUT", "/v1/cluster/settings", payload={"reject_transactions": True})
    half = {"producer_group": "shop", "messages": [{"topic": "orders", "body": "x"}]}
    reply = leader.request("POST", "/v1/transactions", payload=half)
    assert (reply.status, reply.json()["code"]) == (403, "transactions_rejected")
    assert cluster.follower().request("POST", "/v1/transactions", payload=half).status == 307
    assert leader.request("GET", "/v1/transactions").json()["transactions"] == []
    plain = leader.request("POST", "/v1/topics/orders/messages", payload={"messages": [{"body": "x"}]})
    assert plain.status == 200


def test_operators_work_from_the_shell(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    environment = {
        "KEELMQ_SERVERS": cluster.servers, "COLUMNS": "200", "USER": "ann"
    }  # fmt: skip

    def shell(*arguments: str, code: int = 0) -> Result:
        result = CliRunner(env=environment).invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    discarded(leader, "t")
    listed = json.loads(shell("transaction", "list", "--state", "discarded", "--older-than", "1ms", "--json").stdout)
    assert [each["transaction_id"] for each in listed["transactions"]] == ["t"]
    assert json.loads(shell("transaction", "list", "--older-than", "2h", "--json").stdout)["transactions"] == []
    shell("transaction", "list", "--older-than", "soon", code=2)
    shell("transaction", "resume", "t", code=2)
    assert "is prepared, next check" in shell("transaction", "resume", "t", "--reason", "shop is back").stdout
    wait_for(lambda: poll(leader) or show(leader, "t")["state"] == "discarded", "the check")
    wait_for(lambda: show(leader, "t")["state"] == "discarded", "the second discard")
    assert "it is discarded" in shell("transaction", "commit", "t", code=1).stderr
    shell("transaction", "commit", "t", "--force", code=2)
    shell("transaction", "commit", "t", "--force", "--reason", "by phone", "--operator", "bob")
    shown = shell("transaction", "show", "t").stdout
    for expected in ("resumed", "operator ann", "reason shop is back", "forced", "operator bob", "reason by phone"):
        assert expected in shown
    told = shell("consume", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "--json").stdout.splitlines()
    assert [json.loads(line)["body"] for line in told] == ["discarded", "discarded", "committed"]
    assert "are taken" in shell("cluster", "settings").stdout
    assert "are refused" in shell("cluster", "settings", "--reject-transactions").stdout
    assert prepare(leader, "new") == 403
    settings = json.loads(shell("cluster", "settings", "--accept-transactions", "--json").stdout)
    assert settings["reject_transactions"] is False
    assert "resume-transaction" in shell("log", "dump").stdout
