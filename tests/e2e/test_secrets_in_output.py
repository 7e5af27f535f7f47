"""No secret reaches what a node prints, shows or answers, at the level that logs most."""

import secrets
import subprocess
from pathlib import Path

import pytest

from tests.e2e.closed_cluster import ADMINISTRATOR, bearer, closed, rule, someone
from tests.e2e.cluster_process import OPTIONS, Reply, ok, wait_for
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process


def secret_file(directory: Path, name: str, *lines: str) -> Path:
    file = directory / name
    file.touch(mode=0o600)
    file.write_text("".join(line + "\n" for line in lines))
    return file


def found_in(text: str, hidden: dict[str, str]) -> set[str]:
    """Return what of `hidden` the text has."""
    return {name for name, secret in hidden.items() if secret in text}


def test_no_secret_is_logged_shown_or_answered(tmp_path: Path) -> None:
    hidden = {
        name: f"{name}-{secrets.token_hex(20)}"
        for name in ("wrong", "basic", "scheme", "bare", "query", "webhook-old", "webhook-new", "unusable")
    }
    hidden["administrator"] = ADMINISTRATOR
    webhook_file = secret_file(tmp_path, "webhook-secret", hidden["webhook-old"])
    quota_file = tmp_path / "quotas.toml"
    quota_file.write_text("[default]\nrequests_per_s = 10000\n")
    options = (
        *(*OPTIONS, "--log-level", "debug"),
        *("--webhook-secret-file", str(webhook_file), "--quota-file", str(quota_file)),
    )
    cluster = closed(tmp_path, nodes=1, options=options)
    (node,) = cluster.nodes.values()
    hidden["peers"] = (tmp_path / "peer_secret").read_text().strip()
    command = [*node.command(), "--check-config"]
    checked = [subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)]
    shown: dict[str, str] = {}
    replies: list[Reply] = []
    with cluster:
        cluster.wait_leader()
        secret_file(tmp_path, "webhook-secret", hidden["webhook-new"], hidden["webhook-old"])
        user = someone(node, rule("send", on="topic:orders"))
        hidden["token"], known = user.token, bearer(user.token)
        ok(node.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        body = {"messages": [{"body": "x"}]}
        ok(node.request("POST", "/v1/topics/orders/messages", payload=body, headers=known))
        garbage = (
            bearer(hidden["wrong"]),
            bearer(user.token + "x"),
            {"Authorization": f"Basic {hidden['basic']}"},
            {"Authorization": f"{hidden['scheme']} of:nobody"},
            {"Authorization": hidden["bare"]},
            {"Authorization": f"Bearer\t{hidden['bare']} {hidden['wrong']}"},
        )
        for headers in garbage:
            for method, path in (("GET", "/v1/topics"), ("POST", "/v1/topics/orders/messages"), ("GET", "/nowhere")):
                payload = body if method == "POST" else None
                reply = node.request(method, path, payload=payload, headers=headers)
                assert reply.status in (400, 401, 404), reply
                replies.append(reply)
        replies.append(node.request("DELETE", "/v1/topics/orders", headers=known))
        assert replies[-1].status == 403
        replies.append(node.request("GET", f"/v1/topics?access_token={hidden['query']}", headers=bearer("none")))
        ok(node.request("DELETE", f"/v1/users/{user.name}/tokens/{user.token_id}"))
        replies.append(node.request("GET", "/v1/topics", headers=known))
        assert replies[-1].status == 401
        wait_for(lambda: "signed with the new secrets" in node.output(), "the new secrets of webhooks")
        secret_file(tmp_path, "webhook-secret", hidden["unusable"], "short")
        checked.append(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False))
        for path in ("/metrics", "/v1/cluster", "/v1/users", f"/v1/users/{user.name}", "/v1/cluster/quotas"):
            reply = node.request("GET", path)
            assert reply.status == 200, reply
            shown[path] = reply.body.decode()
        assert node.terminate() == 0
        node.start()  # refuses the file
        assert node.wait_exit() == 2
    shown["output"] = node.output()
    assert "webhook_secret_file" in checked[1].stderr
    assert "runs with" in shown["output"], "the line of the start"
    assert " DEBUG " in shown["output"]
    shown |= {f"check of the configuration {number}": each.stdout + each.stderr for number, each in enumerate(checked)}
    shown |= {f"answer {number}": f"{reply.headers} {reply.body!r}" for number, reply in enumerate(replies)}
    assert {place: names for place, text in shown.items() if (names := found_in(text, hidden))} == {}
