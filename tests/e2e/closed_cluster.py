"""A cluster with enforced permissions, and users of it."""

import itertools
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.e2e.cluster_process import OPTIONS, STEADY, ClusterProcess, NodeProcess, Reply, ok

ADMINISTRATOR: Final = "administrator-of-the-tests-0123456789abcdef"
TOPIC, GROUP, PRODUCERS = "secret-orders", "secret-group", "secret-producers"
TRANSACTION: Final = "secret-transaction"
MESSAGE: Final = "secret-message"

_numbers = itertools.count()


def administrator_file(directory: Path) -> Path:
    file = directory / "admin-token"
    file.touch(mode=0o600)
    file.write_text(ADMINISTRATOR + "\n")
    return file


def enforced(directory: Path) -> tuple[str, ...]:
    """Return the options of a node that enforces permissions; the file with the administrator's token lies in the
    directory.
    """
    return "--auth", "enforce", "--admin-token-file", str(administrator_file(directory))


def closed(
    directory: Path, nodes: int = 3, options: Sequence[str] = OPTIONS, tls: ssl.SSLContext | None = None
) -> ClusterProcess:
    """Return a cluster that enforces permissions, not started yet. Requests of its nodes are the administrator's."""
    directory.mkdir(exist_ok=True)
    cluster = ClusterProcess(directory, nodes=nodes, options=(*options, *enforced(directory)), tls=tls)
    for node in cluster.nodes.values():
        node.token = ADMINISTRATOR
    return cluster


def shared_closed_cluster(nodes: int = 3) -> Any:
    """Return a fixture: nodes that enforce permissions, shared by a module."""

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
        with closed(tmp_path_factory.mktemp("cluster"), nodes) as running:
            running.wait_leader()
            yield running

    return cluster


def closed_cluster() -> Any:
    """Return a fixture: three nodes that enforce permissions, with a topic, a group and a transaction, shared by a
    module. Requests of the nodes are those of the administrator.
    """

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
        with closed(tmp_path_factory.mktemp("cluster"), options=STEADY) as guarded:
            leader = guarded.wait_leader()
            ok(leader.request("PUT", f"/v1/topics/{TOPIC}", payload={"queues": 1, "type": "any"}))
            ok(
                leader.request(
                    "POST", f"/v1/topics/{TOPIC}/messages", payload={"messages": [{"body": "x", "message_id": MESSAGE}]}
                )
            )
            offsets = {"offsets": [{"topic": TOPIC, "queue": 0, "offset": 0}]}
            ok(leader.request("PUT", f"/v1/groups/{GROUP}/offsets", payload=offsets))
            half = {
                "transaction_id": TRANSACTION,
                "producer_group": PRODUCERS,
                "messages": [{"topic": TOPIC, "body": "y"}],
            }
            ok(leader.request("POST", "/v1/transactions", payload=half))
            yield guarded

    return cluster


class Someone(NamedTuple):
    """A new user with a token."""

    name: str
    token: str
    token_id: str


def rule(*actions: str, on: str, effect: str = "allow") -> dict[str, Any]:
    return {"effect": effect, "actions": actions, "resource": on}


def someone(node: NodeProcess, *rules: dict[str, Any], expires_in_ms: int | None = None) -> Someone:
    name = f"user-{next(_numbers)}"
    made = node.request("PUT", f"/v1/users/{name}", payload={"rules": rules, "revision": 0})
    assert made.status == 201, made
    body = {} if expires_in_ms is None else {"expires_in_ms": expires_in_ms}
    token = ok(node.request("POST", f"/v1/users/{name}/tokens", payload=body))
    return Someone(name, token["token"], token["token_id"])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def knows(node: NodeProcess, token: str) -> bool:
    """Return whether the node takes the token."""
    return node.request("GET", "/v1/principal", headers=bearer(token)).status == 200


def code(reply: Reply) -> str:
    return (
        str(reply.json().get("code", ""))
        if reply.body and reply.headers.get("content-type", "").endswith("json")
        else ""
    )
