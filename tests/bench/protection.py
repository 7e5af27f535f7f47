"""Closes the benchmark's cluster: users with permissions, and TLS, as docs/security.md describes them."""

import http.client
import json
import os
import secrets
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from deploy.broker_process import BrokerProcess
from tests.bench.cluster import BenchCluster
from tests.certificates import Authority
from tests.hostile_clients import TOKEN_VARIABLE

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


def closed_cluster(
    directory: Path, protection: Protection, more: Mapping[str, str] = MappingProxyType({})
) -> BenchCluster:
    """Return a cluster with the protection and `more` options, which does not run yet. The SDK finds its files by the
    environment.
    """
    token = directory / "admin-token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex() + "\n")
    options = {"auth": "enforce", "admin_token_file": str(token), **more}
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
    token = new_user(cluster, directory, USER, RULES)
    os.environ["KEELMQ_TOKEN"] = token
    return {"Authorization": f"Bearer {token}"}


def let_attackers_in(cluster: BenchCluster, directory: Path) -> None:
    """Make a user for the attacks of hostile clients, which find its token by the environment. It may do all that the
    attacks do: credentials are no protection against who has some.
    """
    rules = (*RULES, {"actions": ["read"], "resource": "log"})
    os.environ[TOKEN_VARIABLE] = new_user(cluster, directory, "attacker", rules)


def new_user(cluster: BenchCluster, directory: Path, name: str, rules: Sequence[object]) -> str:
    """Make a user with the rules, and return its token."""
    administrator = administrator_of(directory)
    call(cluster, "PUT", f"/v1/users/{name}", {"rules": rules}, administrator)
    return call(cluster, "POST", f"/v1/users/{name}/tokens", {}, administrator)["token"]


def administrator_of(directory: Path) -> dict[str, str]:
    """Return the headers by which the administrator of a closed cluster is known."""
    return {"Authorization": f"Bearer {(directory / 'admin-token').read_text().strip()}"}


def call(cluster: BenchCluster, method: str, path: str, body: object, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the answer of the node that leads. Raises RuntimeError when no node carries the request out."""
    answers = []
    for node in cluster.nodes:
        status, content = _answer(node, method, path, body, headers)
        if status < 300:
            return dict(json.loads(content))
        answers.append(f"node {node.node_id}: {status} {content!r}")
    raise RuntimeError(f"{method} {path}: {'; '.join(answers)}")


def metrics(node: BrokerProcess, headers: Mapping[str, str]) -> str:
    """Return what the node shows to Prometheus."""
    status, content = _answer(node, "GET", "/metrics", None, headers)
    if status != 200:
        raise RuntimeError(f"node {node.node_id}: {status} {content!r}")
    return content.decode()


def _answer(node: BrokerProcess, method: str, path: str, body: object, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = node.connection(10.0)
    try:
        content = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), {**content, **headers})
        response: http.client.HTTPResponse = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
