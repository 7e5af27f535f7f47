"""Closes the benchmark's cluster as docs/security.md says: users with permissions, people with tokens, and TLS."""

import http.client
import json
import os
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from cluster.security.issuer import GROUP_PREFIX
from deploy.broker_process import BrokerProcess
from tests.bench.cluster import BenchCluster
from tests.certificates import Authority
from tests.hostile_clients import TOKEN_VARIABLE
from tests.oidc_issuer import AUDIENCE, SigningKey, TokenIssuer

Protection = Literal["auth", "oidc", "tls"]
PROTECTIONS: Final[tuple[Protection, ...]] = ("auth", "oidc", "tls")
"""`auth`: permissions are enforced, and the load is that of a user with rules; `oidc`: it is that of a person with the
same rules, whose token an issuer has signed; `tls`: as `auth`, over https."""

USER: Final = "bench"
ALGORITHM: Final = "RS256"
"""Signature of the person's token: the one that issuers use most."""
TOKEN_S: Final = 6 * 3600
"""Seconds for which it is valid."""
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
    if protection == "oidc":
        return BenchCluster(directory, options | _issued(directory))
    files = Authority().issue(directory, 1)
    options |= {"http_tls_cert": files.certificate_file, "http_tls_key": files.key_file}
    os.environ["KEELMQ_CA_FILE"] = files.ca_file
    cluster = BenchCluster(directory, options)
    for node in cluster.nodes:
        node.tls = ssl.create_default_context(cafile=files.ca_file)
    cluster.urls = [node.url for node in cluster.nodes]
    return cluster


def _issued(directory: Path) -> dict[str, str]:
    """Have an issuer sign the token of a person; return the options of nodes that know the issuer."""
    issuer = TokenIssuer([SigningKey("bench", ALGORITHM)], "https://issuer.invalid/keys")
    now_s = int(time.time())
    (directory / "person-token").write_text(issuer.token("person", groups=[USER], iat=now_s, exp=now_s + TOKEN_S))
    keys = directory / "keys.json"
    keys.write_bytes(issuer.key_set())
    return {
        "oidc_issuer": issuer.name,
        "oidc_audience": AUDIENCE,
        "oidc_keys": str(keys),
        "oidc_groups_claim": "groups",
    }


def sign_in(cluster: BenchCluster, directory: Path) -> dict[str, str]:
    """Make the user of the loads, or the rules of the person's group. The SDK finds the token by the environment from
    now on; return its headers.
    """
    person = directory / "person-token"
    if person.exists():
        call(cluster, "PUT", f"/v1/users/{GROUP_PREFIX}{USER}", {"rules": RULES}, administrator_of(directory))
        token = person.read_text()
    else:
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
