"""A closed cluster under attack: what it is before, the attempts, and what it is after them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.certificates import Authority
from tests.e2e.closed_cluster import ADMINISTRATOR, bearer, closed, knows
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.oidc_issuer import AUDIENCE, SigningKey, TokenIssuer, token_issuer
from tests.strangers import http_attempts, peer_attempts
from tests.strangers.loot import (
    CLUSTER,
    Loot,
    client_contexts,
    forged_tokens,
    peer_contexts,
)
from tests.strangers.outcome import Admitted

AT_ONCE: Final = 24
"""Number of attempts under way at a time."""
OPTIONS: Final = ("--election-timeout-ms", "4000", "--heartbeat-ms", "200")
"""An election on a busy machine is none that strangers have caused."""
VIOLATIONS_MAX: Final = 20


class Fortress(NamedTuple):
    """A closed cluster, and what strangers hold."""

    cluster: ClusterProcess
    loot: Loot


class Findings(NamedTuple):
    attempts: int
    kinds: int
    """Number of different attempts, by kind and credentials."""
    refused: int
    """Requests that the nodes have counted as refused."""
    violations: list[str]


@contextmanager
def fortress(directory: Path) -> Iterator[Fortress]:
    """Run three nodes with mutual TLS, a peer secret, TLS for clients, users, and an issuer of tokens of people."""
    ca = Authority("Tests")
    with token_issuer(SigningKey("key")) as issuer:
        cluster = closed(directory, options=OPTIONS, tls=peer_contexts(directory, ca)["of nobody"])
        for node in cluster.nodes.values():
            own = directory / f"own{node.node_id}"
            own.mkdir()
            peers, clients = ca.issue(own, node.node_id, CLUSTER), ca.issue_server(own)
            node.arguments += [
                *("--tls-cert", peers.certificate_file, "--tls-key", peers.key_file, "--tls-ca", peers.ca_file),
                *("--http-tls-cert", clients.certificate_file, "--http-tls-key", clients.key_file),
                *("--http-tls-client-ca", clients.ca_file),
                *("--oidc-issuer", issuer.name, "--oidc-audience", AUDIENCE, "--oidc-keys", issuer.url),
            ]
        with cluster:
            contexts = client_contexts(directory / "clients", ca)
            secret = (directory / "peer_secret").read_bytes().strip()
            tokens = {**forged_tokens(issuer, ADMINISTRATOR), **_former_tokens(cluster.wait_leader(), issuer)}
            cluster.wait_same_state()
            yield Fortress(cluster, Loot(peer_contexts(directory / "loot", ca), contexts, tokens, secret))


def _former_tokens(leader: NodeProcess, issuer: TokenIssuer) -> dict[str, str]:
    """Make users and a topic; return tokens that were good once, or are good for something else."""

    def put(user: str, **fields: Any) -> None:
        assert leader.request("PUT", f"/v1/users/{user}", payload=fields).status == 201

    def token(user: str, **fields: Any) -> Any:
        return ok(leader.request("POST", f"/v1/users/{user}/tokens", payload=fields))

    ok(leader.request("PUT", "/v1/topics/kept", payload={"queues": 1}))
    ok(leader.request("POST", "/v1/topics/kept/messages", payload={"messages": [{"body": "kept"}]}))
    put("reader", rules=[{"actions": ["read"], "resource": "topic:other"}])
    put("writer", rules=[{"actions": ["*"], "resource": "*"}], certificates=["writer"])
    put("deleted", rules=[{"actions": ["*"], "resource": "*"}], certificates=["deleted"])
    reads, withdrawn, gone = token("reader")["token"], token("writer"), token("deleted")["token"]
    expired = token("writer", expires_in_ms=1)["token"]
    for each in (reads, withdrawn["token"], gone, issuer.token("root")):
        wait_for(partial(knows, leader, each), "the token to be good")
    joined = ok(leader.request("POST", "/v1/cluster/join-tokens", payload={"node_id": 9}))["token"]
    ok(leader.request("POST", "/v1/cluster/join", payload={"node_id": 9}, headers=bearer(joined)))
    other = ok(leader.request("POST", "/v1/cluster/join-tokens", payload={"node_id": 8}))["token"]
    ok(leader.request("DELETE", f"/v1/users/writer/tokens/{withdrawn['token_id']}"))
    ok(leader.request("DELETE", "/v1/users/deleted"))
    wait_for(lambda: leader.request("GET", "/v1/principal", headers=bearer(expired)).status == 401, "the token to end")
    return {
        "that is good for less": reads,
        "that was withdrawn": withdrawn["token"],
        "of a deleted user": gone,
        "that has expired": expired,
        "of a node that has joined": joined,
        "of another new node": other,
        "of a person without rules": issuer.token("root", exp=int(time.time()) + 3_600),
    }


def _standing(cluster: ClusterProcess) -> dict[str, Any]:
    """Return what must be the same afterwards."""
    views = {node.node_id: node.status() for node in cluster.nodes.values()}
    return {
        f"node {node_id}, {name}": view[name] if view else None
        for node_id, view in views.items()
        for name in ("role", "term", "leader_id", "applied_index", "commit_index", "state_hash", "configuration_index")
    } | {f"node {node.node_id}, process": node.pid for node in cluster.nodes.values() if node.running()}


def _refused(cluster: ClusterProcess) -> int:
    total = 0.0
    for node in cluster.nodes.values():
        for line in node.request("GET", "/metrics").body.decode().splitlines():
            if line.startswith("keelmq_auth_refused_total{"):
                total += float(line.rpartition(" ")[2])
    return int(total)


async def attack(
    fortress: Fortress, attempts: int, seed: int, progress: Callable[[int], None] = lambda _: None
) -> Findings:
    """Make `attempts` attempts, and return what came of them."""
    cluster, rng = fortress.cluster, random.Random(seed)
    before, refused_before = await asyncio.to_thread(_standing, cluster), await asyncio.to_thread(_refused, cluster)
    violations: list[str] = []
    kinds: Counter[str] = Counter()
    left = iter(range(attempts))

    async def strangers(rng: random.Random) -> None:
        for _ in left:
            node = cluster.nodes[rng.choice(list(cluster.nodes))]
            port = rng.choice((peer_attempts, http_attempts))
            try:
                kinds[await port.attempt(node, fortress.loot, rng)] += 1
            except Admitted as admitted:
                violations.append(str(admitted))
            if len(violations) >= VIOLATIONS_MAX:
                return
            progress(sum(kinds.values()))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(strangers(random.Random(rng.random())))
    after = await asyncio.to_thread(_standing, cluster)
    changed = [name for name in before if after.get(name) != before[name]]
    violations += [f"{name} was {before[name]} and is {after.get(name)}" for name in changed]
    violations += [
        f"node {node.node_id} has logged a trace" for node in cluster.nodes.values() if "Traceback" in node.output()
    ]
    refused = await asyncio.to_thread(_refused, cluster) - refused_before
    await asyncio.to_thread(_still_serves, cluster)
    return Findings(sum(kinds.values()), len(kinds), refused, violations)


def _still_serves(cluster: ClusterProcess) -> None:
    """Send a message as somebody who may. Raises AssertionError when the cluster does not take it."""
    leader = cluster.wait_leader()
    ok(leader.request("POST", "/v1/topics/kept/messages", payload={"messages": [{"body": "after"}]}))
    topic = ok(leader.request("GET", "/v1/topics/kept"))
    assert topic["queue_offsets"][0]["max_offset"] == 2, topic
    cluster.wait_same_state()
