"""Closes the benchmark's cluster: users with permissions, and TLS, as docs/security.md describes them."""

import http.client
import json
import os
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from deploy.broker_process import BrokerProcess
from tests.bench.cluster import BenchCluster
from tests.certificates import Authority

Protection = Literal["auth", "tls"]
PROTECTIONS: Final[tuple[Protection, ...]] = ("auth", "tls")
"""`auth`: permissions are enforced, and the load is that of a user with rules; `tls`: the same, over https."""

USER: Final = "bench"
RULES: Final = (
    {"actions": ["send", "read", "create", "alter"], "resource": "topic:*", "networks": ["127.0.0.0/8"]},
    {"actions": ["read", "alter"], "resource": "group:*"},
    {"actions": ["send", "decide"], "resource": "producer-group:*"},
    {"effect": "deny", "actions": ["admin"], "resource": "cluster"},
)


def closed_cluster(directory: Path, protection: Protection) -> BenchCluster:
    """Return a cluster with the protection, which does not run yet. The SDK finds its files by the environment."""
    token = directory / "admin-token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex() + "\n")
    options = {"auth": "enforce", "admin_token_file": str(token)}
    if protection == "auth":
        return BenchCluster(directory, options)
    files = Authority().issue(directory, 1)
    options |= {"http_tls_cert": files.certificate_file, "http_tls_key": files.key_file}
    os.environ["KEELMQ_CA_FILE"] = files.ca_file
    cluster = BenchCluster(directory, options)
    for node in cluster.nodes:
        node.tls = ssl.create_default_context(cafile=files.ca_file)
    cluster.urls = [node.url for node in cluster.nodes]
    return cluster


def sign_in(cluster: BenchCluster, directory: Path) -> dict[str, str]:
    """Make the user of the loads, whose token the SDK finds by the environment from now on; return its headers."""
    administrator = {"Authorization": f"Bearer {(directory / 'admin-token').read_text().strip()}"}
    call(cluster, "PUT", f"/v1/users/{USER}", {"rules": RULES}, administrator)
    token = call(cluster, "POST", f"/v1/users/{USER}/tokens", {}, administrator)["token"]
    os.environ["KEELMQ_TOKEN"] = token
    return {"Authorization": f"Bearer {token}"}


def call(cluster: BenchCluster, method: str, path: str, body: object, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the answer of the node that leads. Raises RuntimeError when no node carries the request out."""
    answers = []
    for node in cluster.nodes:
        status, content = _answer(node, method, path, body, headers)
        if status < 300:
            return dict(json.loads(content))
        answers.append(f"node {node.node_id}: {status} {content!r}")
    raise RuntimeError(f"{method} {path}: {'; '.join(answers)}")


def _answer(node: BrokerProcess, method: str, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = node.connection(10.0)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response: http.client.HTTPResponse = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
