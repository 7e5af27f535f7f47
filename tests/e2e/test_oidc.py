"""People with tokens of an issuer on a real cluster: the SDK, the command, the console, and keys that change."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from selenium.webdriver.common.by import By

from keelmq import Connection, Producer
from keelmq.admin.users import Rule, Users
from keelmq.errors import Forbidden, Unauthenticated
from tests.e2e.closed_cluster import ADMINISTRATOR, administrator_file, bearer, closed, code, knows
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, ok, until, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.fixtures import Shell
from tests.oidc_issuer import AUDIENCE, SigningKey, TokenIssuer, token_issuer

REFRESH_MS: Final = 1_000
ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
CALLS_PER_TOKEN: Final = 4


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with token_issuer(*(SigningKey(f"key-{each}", each) for each in ALGORITHMS)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, issuer: TokenIssuer) -> Iterator[ClusterProcess]:
    options = (
        *OPTIONS,
        *("--oidc-issuer", issuer.name, "--oidc-audience", AUDIENCE, "--oidc-keys", issuer.url),
        *("--oidc-groups-claim", "groups", "--oidc-refresh-ms", str(REFRESH_MS), "--oidc-leeway-ms", "0"),
        *("--log-level", "debug"),
    )
    with closed(tmp_path_factory.mktemp("cluster"), options=options) as running:
        leader = running.wait_leader()
        ok(leader.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        rules = [{"actions": ["send", "read"], "resource": "topic:orders"}]
        assert leader.request("PUT", "/v1/users/oidc-group:shop", payload={"rules": rules}).status == 201
        running.wait_same_state()
        known_to_all(running, issuer.token())
        yield running


def known_to_all(cluster: ClusterProcess, token: str) -> None:
    """Wait until each node has the key of the token."""
    for node in cluster.nodes.values():
        wait_for(partial(knows, node, token), f"node {node.node_id} to know the key")


async def test_a_client_refreshes_its_token_across_redirects(cluster: ClusterProcess, issuer: TokenIssuer) -> None:
    """A new token comes every few requests, which each ask for the present one: a follower sends it on."""
    given: list[str] = []
    asked = itertools.count()

    def present() -> str:
        if next(asked) % CALLS_PER_TOKEN == 0:
            lives_until = int(time.time()) + 600  # a 401 is final: none may expire while the machine is busy
            given.append(issuer.token(groups=["shop"], exp=lives_until, jti=str(len(given))))
        return given[-1]

    connection = Connection(cluster.follower().url, token=present)
    producer = Producer((), connection=connection)
    sent = 0
    while len(given) < 3:
        await producer.send("orders", b"x", message_id=f"refreshed-{sent}")
        sent += 1
    assert sent >= len(given)
    connection.close()


def test_a_token_ends_at_its_time(cluster: ClusterProcess, issuer: TokenIssuer) -> None:
    token = issuer.token(groups=["shop"], exp=int(time.time()) + 2)
    wait_for(_is_unknown(cluster, token), "the token to expire")


async def test_a_person_may_do_what_it_is_allowed_and_is_told_what_is_missing(
    cluster: ClusterProcess, issuer: TokenIssuer
) -> None:
    administration = Connection(cluster.servers, token=ADMINISTRATOR)
    users = Users(administration)
    person = Connection(cluster.servers, token=lambda: issuer.token("bob@x.org", key=issuer.keys[-1]))
    assert (await Users(person).principal()).principal == "oidc:bob@x.org"
    producer = Producer((), connection=person)
    with pytest.raises(Forbidden, match=r"oidc:bob@x\.org may not send topic:orders"):
        await producer.send("orders", b"x")
    await users.put("oidc:bob@x.org", rules=[Rule(actions=("send",), resource="topic:orders")], revision=0)
    await producer.send("orders", b"x")
    await users.delete("oidc:bob@x.org")
    with pytest.raises(Forbidden):
        await producer.send("orders", b"x")
    stranger = Connection(cluster.servers, token=issuer.token(aud="another service"))
    with pytest.raises(Unauthenticated, match="another audience"):
        await Producer((), connection=stranger).send("orders", b"x")
    for connection in (administration, person, stranger):
        connection.close()


def test_the_command_takes_a_token_of_the_issuer_from_a_file(
    cluster: ClusterProcess, issuer: TokenIssuer, tmp_path: Path
) -> None:
    shell = Shell(cluster)
    file = tmp_path / "carol.token"
    shell.environment["KEELMQ_TOKEN_FILE"] = str(file)
    file.write_text(issuer.token("carol", groups=["shop"]) + "\n")
    assert shell("auth", "whoami").stdout.startswith("oidc:carol, from 127.0.0.1")
    shell("send", "orders", "hello")
    file.write_text(issuer.token("carol", groups=[f"group-{number:03}" for number in range(250)]))
    assert len(file.read_text()) > 4_096
    assert shell("auth", "whoami").stdout.startswith("oidc:carol"), "a token with many groups fits"
    assert "forbidden" in shell("send", "orders", "hello", code=1).stderr
    administrator = Shell(cluster)
    administrator.environment["KEELMQ_TOKEN_FILE"] = str(administrator_file(tmp_path))
    administrator("auth", "user", "create", "oidc:carol")
    administrator("auth", "acl", "allow", "oidc:carol", "send", "topic:orders")
    assert "may send topic:orders" in administrator("auth", "explain", "oidc:carol", "send", "topic:orders").stdout
    shell("send", "orders", "hello")
    assert "invalid_request" in administrator("auth", "token", "create", "oidc:carol", code=1).stderr


def test_the_console_takes_a_token_of_the_issuer(cluster: ClusterProcess, issuer: TokenIssuer, page: Page) -> None:
    page.open(cluster.wait_leader(), "/topics")
    page.until("Sign in")
    page.element(By.ID, "token").send_keys(issuer.token("dora", groups=["shop"]) + "\n")
    page.until("Topics by name", "orders")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_keys_change_without_a_restart(cluster: ClusterProcess, issuer: TokenIssuer, algorithm: str) -> None:
    """The SDK waits while a node looks for a key; a token of a withdrawn key ends on every node."""
    former = issuer.keys[0]
    old = issuer.token(key=former, exp=int(time.time()) + 3_600)
    known_to_all(cluster, old)
    new = SigningKey(f"key-{next(_numbers)}", algorithm)
    issuer.keys.insert(0, new)
    connection = Connection(cluster.servers, token=lambda: issuer.token("erna", key=new))
    with contextlib.closing(connection):
        assert (await Users(connection).principal()).principal == "oidc:erna"
        issuer.keys.remove(former)
        for node in cluster.nodes.values():
            await until(_is_refused(node, old))
        await until(_is_unknown(cluster, old))
        assert (await Users(connection).principal()).principal == "oidc:erna"


_numbers = itertools.count()


def _is_refused(node: NodeProcess, token: str) -> Callable[[], bool]:
    """Return whether the node does not take the token; a follower leaves it to the leader to say so."""
    return lambda: node.request("GET", "/v1/principal", headers=bearer(token)).status in (307, 401)


def _is_unknown(cluster: ClusterProcess, token: str) -> Callable[[], bool]:
    """Return whether the leader says that nobody has the token; one that was just elected may ask the issuer."""

    def look() -> bool:
        refused = cluster.wait_leader().request("GET", "/v1/principal", headers=bearer(token))
        return (refused.status, code(refused)) == (401, "unauthenticated")

    return look


def test_the_audit_log_names_people_and_no_log_has_a_token(cluster: ClusterProcess, issuer: TokenIssuer) -> None:
    leader = cluster.wait_leader()
    rules = [{"actions": ["*"], "resource": "topic:of-frida"}]
    assert leader.request("PUT", "/v1/users/oidc:frida", payload={"rules": rules}).status == 201
    good, bad = issuer.token("frida"), issuer.token("frida", iss="https://elsewhere")
    for token, status in ((good, 201), (bad, 401)):
        reply = leader.request("PUT", "/v1/topics/of-frida", payload={"queues": 1}, headers=bearer(token))
        assert reply.status == status, reply
    assert "PUT /v1/topics/of-frida by oidc:frida at 127.0.0.1: 201" in leader.output()
    assert "by anonymous at 127.0.0.1 is refused: may not do anything (the token is refused" in leader.output()
    for node in cluster.nodes.values():
        output = node.output()
        for token in (good, bad):
            assert not any(part in output for part in token.split("."))
