"""Webhooks of real nodes: the shipped example decides by signed checks, and one that hangs delays no other group."""

import contextlib
import hmac
import http.client
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.broker_process import die_with_parent
from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import OPTIONS, STEADY, ClusterProcess, NodeProcess, ok, wait_for
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
OLD, NEW = "o" * 44, "n" * 44
CHECKS = ("--check-immunity-ms", "0", "--check-interval-ms", "200")


def write_secrets(file: Path, *secrets: str) -> None:
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text("".join(f"{secret}\n" for secret in secrets))
    new.rename(file)


@contextlib.contextmanager
def example(directory: Path, secrets: Path, database: Path) -> Iterator[int]:
    """Run the example, and return its port."""
    (port,) = free_ports(1)
    options = ["--secrets", str(secrets), "--database", str(database), "--port", str(port)]
    with open(directory / "example.out", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.webhook_service", *options],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    try:
        wait_for(lambda: _listens(port), "the example to listen")
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def prepare(node: NodeProcess, transaction_id: str, group: str) -> None:
    half: dict[str, Any] = {
        "transaction_id": transaction_id,
        "producer_group": group,
        "messages": [{"topic": "orders", "body": "x"}],
    }
    ok(node.request("POST", "/v1/transactions", payload=half))


def state(node: NodeProcess, transaction_id: str) -> str:
    return str(ok(node.request("GET", f"/v1/transactions/{transaction_id}"))["state"])


def _is_rolled_back(node: NodeProcess, transaction_id: str) -> bool:
    return state(node, transaction_id) == "rolled_back"


def metric(node: NodeProcess, outcome: str) -> float:
    prefix = f'keelmq_webhook_calls_total{{outcome="{outcome}"}} '
    lines = node.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(prefix)).removeprefix(prefix))


def post(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/checks", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_example_decides_by_signed_checks_while_the_secret_is_exchanged(tmp_path: Path) -> None:
    of_nodes, of_service, database = tmp_path / "nodes", tmp_path / "service", tmp_path / "payments.db"
    write_secrets(of_nodes, OLD)
    write_secrets(of_service, OLD)
    options = (*STEADY, *CHECKS, "--webhook-secret-file", str(of_nodes))
    with example(tmp_path, of_service, database) as port, ClusterProcess(tmp_path, nodes=3, options=options) as cluster:
        leader = cluster.wait_leader()
        ok(leader.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        url = {"check_url": f"http://127.0.0.1:{port}/checks"}
        ok(leader.request("PUT", "/v1/producer-groups/payments", payload=url))
        with sqlite3.connect(database) as payments:
            payments.execute("INSERT INTO payment VALUES ('paid', 'commit')")
        payments.close()
        prepare(leader, "paid", "payments")
        prepare(leader, "unpaid", "payments")
        wait_for(lambda: state(leader, "paid") == "committed", "the commit")
        wait_for(lambda: state(leader, "unpaid") == "rolled_back", "the rollback")
        assert (metric(leader, "commit"), metric(leader, "rollback")) == (1, 1)

        write_secrets(of_nodes, NEW, OLD)  # first the nodes sign with both, then the service knows the new one only
        wait_for(lambda: "2 in number" in leader.log_path.read_text(errors="replace"), "the nodes to read the file")
        write_secrets(of_service, NEW)
        prepare(leader, "later", "payments")
        wait_for(lambda: state(leader, "later") == "rolled_back", "the rollback")
        assert metric(leader, "error_status") == 0

        body = b'{"transaction_id":"forged"}'
        now_s, then_s = int(time.time()), int(time.time()) - 3_600
        for headers, words in (
            ({}, "no header KeelMQ-Signature"),
            ({"KeelMQ-Signature": signed(OLD, body, now_s)}, "none of these secrets"),
            ({"KeelMQ-Signature": signed(NEW, b"{}", now_s)}, "for another body"),
            ({"KeelMQ-Signature": signed(NEW, body, then_s)}, "a repeated one"),
        ):
            status, text = post(port, body, headers)
            assert status == 401
            assert words in text
        assert post(port, body, {"KeelMQ-Signature": signed(NEW, body, now_s)})[0] == 200
        logs = "".join(node.log_path.read_text(errors="replace") for node in cluster.nodes.values())
        assert OLD not in logs
        assert NEW not in logs


def signed(secret: str, body: bytes, time_s: int) -> str:
    return f"t={time_s},v1={hmac.new(secret.encode(), b'%d.%b' % (time_s, body), 'sha256').hexdigest()}"


def test_a_server_that_hangs_delays_no_other_group(tmp_path: Path) -> None:
    """The server takes connections and says nothing. Its checks would not time out before the test does."""
    secrets = tmp_path / "secrets"
    write_secrets(secrets, NEW)
    timeout_ms = str(int(10 * PATIENCE_S * 1000))
    options = (*OPTIONS, *CHECKS, "--webhook-secret-file", str(secrets), "--check-webhook-timeout-ms", timeout_ms)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=100) as silent,
        example(tmp_path, secrets, tmp_path / "payments.db") as port,
        ClusterProcess(tmp_path, nodes=1, options=options) as cluster,
    ):
        node = cluster.wait_leader()
        ok(node.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        for group, at in (("hangs", silent.getsockname()[1]), ("answers", port)):
            url = {"check_url": f"http://127.0.0.1:{at}/checks"}
            ok(node.request("PUT", f"/v1/producer-groups/{group}", payload=url))
        for number in range(30):
            prepare(node, f"hangs{number}", "hangs")
        silent.settimeout(PATIENCE_S)
        with silent.accept()[0]:
            for number in range(20):
                prepare(node, f"answers{number}", "answers")
            for number in range(20):
                wait_for(partial(_is_rolled_back, node, f"answers{number}"), "the other group's decision")
        assert {state(node, f"hangs{number}") for number in range(30)} == {"prepared"}


def test_a_node_that_others_reach_sends_checks_where_it_is_told_only(tmp_path: Path) -> None:
    """The node that leads asks before each call whether it may call a URL, even one that is registered already."""
    secrets = tmp_path / "secrets"
    write_secrets(secrets, NEW)
    options = (*OPTIONS, *CHECKS, "--webhook-secret-file", str(secrets))
    with (
        example(tmp_path, secrets, tmp_path / "payments.db") as port,
        ClusterProcess(tmp_path, nodes=1, options=options) as cluster,
    ):
        node = cluster.wait_leader()
        ok(node.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        url = {"check_url": f"http://127.0.0.1:{port}/checks"}
        ok(node.request("PUT", "/v1/producer-groups/payments", payload=url))
        node.terminate()
        node.start(extra=("--http-listen", f"0.0.0.0:{node.http_port}", "--insecure-http"))
        cluster.wait_ready()
        prepare(node, "t", "payments")
        wait_for(lambda: metric(node, "not_allowed") >= 1, "the call that is not allowed")
        refused = node.request("PUT", "/v1/producer-groups/payments", payload=url)
        assert (refused.status, refused.json()["code"]) == (403, "check_url_not_allowed")
        assert state(node, "t") == "prepared"
        assert ok(node.request("GET", "/v1/transactions/t"))["check_times"] == 0
        node.terminate()
        allowed = ("--webhook-allow", f"http://127.0.0.1:{port}")
        node.start(extra=("--http-listen", f"0.0.0.0:{node.http_port}", "--insecure-http", *allowed))
        cluster.wait_ready()
        wait_for(lambda: state(node, "t") == "rolled_back", "the decision")
