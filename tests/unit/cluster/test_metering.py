"""A node with a file of quotas: who is charged for what, over real HTTP, by a clock of our own."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cluster.core.reader_threads import ReaderThreads
from cluster.http.metering import is_free
from cluster.process.addresses import ConfigError
from cluster.process.quota_file import FILE_BYTES_MAX, NOT_USERS, WEIGHT_MAX, read_quotas
from cluster.process.validation import validate
from cluster.security.principals import RESERVED_NAMES
from raft.fair_queue import OWN
from raft.proposals import ProposalQueue, Proposed
from store.commands.entry import Proposal
from tests.unit.cluster.conftest import Answer, Node, node_config, running_node

ADMINISTRATOR = "administrator-of-the-tests-0123456789abcdef"
KIB = 1 << 10
MIB = 1 << 20
MESSAGES = "/v1/topics/orders/messages"
PAGE = "/v1/topics/orders/queues/0/messages"


def quota_file(directory: Path, text: str) -> Path:
    file = directory / "quotas.toml"
    file.write_text(text)
    return file


def rewrite(node: Node, text: str) -> None:
    Path(node.core.config.quota_file or "").write_text(text)


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that is open to everybody, with a topic."""
    text = f"[anonymous]\nrequests_per_s = 10\nin_bytes_per_s = {64 * KIB}\nout_bytes_per_s = {64 * KIB}\n"
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, quota_file=str(quota_file(tmp_path, text))), fatal) as node:
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        node.clock.now_ms += 60_000
        yield node
    assert not fatal


async def send(node: Node, body: str = "x") -> Answer:
    return await node.call("POST", MESSAGES, {"messages": [{"body": body}]})


async def call_as(node: Node, token: str, method: str, path: str, payload: Any = None) -> Answer:
    """Make one call with a token."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with node.session.request(
        method, path, data=None if payload is None else json.dumps(payload), headers=headers
    ) as response:
        content = await response.read()
        return Answer(response.status, json.loads(content) if content else None, response.headers)


async def throttled(node: Node) -> dict[str, float]:
    lines = (await node.call("GET", "/metrics")).body.decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line.startswith("keelmq_quota_throttled_total{"))
    return {name.split('"')[1]: float(value) for name, value in values}


async def test_requests_beyond_the_quota_are_told_when_to_come_again(limited: Node) -> None:
    for _ in range(10):
        assert (await send(limited)).status == 200
    refused = await send(limited)
    assert refused.status == 429
    assert refused.body["code"] == "quota_exceeded"
    assert refused.body["quota"] == "requests_per_s"
    assert refused.body["limit"] == 10
    assert refused.body["retry_after_ms"] == 100
    assert refused.headers["Retry-After"] == "1"
    limited.clock.now_ms += refused.body["retry_after_ms"]
    assert (await send(limited)).status == 200
    assert (await send(limited)).status == 429
    assert await throttled(limited) == {"anonymous": 2}


async def test_a_body_is_refused_before_it_is_decoded(limited: Node) -> None:
    for _ in range(10):
        assert (await call_raw(limited, b"{")).status == 400
    assert (await call_raw(limited, b"{")).status == 429


async def call_raw(node: Node, body: Any) -> Answer:
    async with node.session.post(MESSAGES, data=body, headers={"Content-Type": "application/json"}) as response:
        return Answer(response.status, await response.json(content_type=None), response.headers)


@pytest.mark.parametrize("announced", [True, False])
async def test_bytes_of_bodies_are_charged_whether_they_are_announced_or_not(limited: Node, announced: bool) -> None:
    body = json.dumps({"messages": [{"body": "x" * (256 * KIB)}]}).encode()

    async def parts() -> AsyncIterator[bytes]:
        yield body

    assert (await call_raw(limited, body if announced else parts())).status == 200
    refused = await send(limited)
    assert refused.body["quota"] == "in_bytes_per_s"
    assert refused.body["retry_after_ms"] == pytest.approx(3_000, abs=2)
    assert refused.headers["Retry-After"] == "4"
    limited.clock.now_ms += refused.body["retry_after_ms"]
    assert (await send(limited)).status == 200


async def test_an_announced_body_costs_no_more_than_a_body_may_have(limited: Node) -> None:
    """A head that announces a petabyte would otherwise close the node to its address for centuries."""
    address = limited.core.config.http_address()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {10**15}\r\n\r\n".encode())
    assert b" 413 " in await reader.readline()
    writer.close()
    refused = await send(limited)
    assert refused.body["quota"] == "in_bytes_per_s"
    full_s = limited.core.config.max_request_bytes / (64 * KIB)
    assert refused.body["retry_after_ms"] <= full_s * 1_000


async def test_an_answer_is_whole_and_delays_the_next_request(limited: Node) -> None:
    assert (await send(limited, "y" * (200 * KIB))).status == 200
    limited.clock.now_ms += 60_000
    page = await limited.call("GET", f"{PAGE}?offset=0")
    assert len(page.body["messages"][0]["body"]) == 200 * KIB
    refused = await limited.call("GET", f"{PAGE}?offset=0")
    assert refused.body["quota"] == "out_bytes_per_s"
    assert 2_100 <= refused.body["retry_after_ms"] <= 2_200
    limited.clock.now_ms += refused.body["retry_after_ms"]
    assert (await limited.call("GET", f"{PAGE}?offset=0")).status == 200


async def test_health_metrics_and_administration_are_never_charged(limited: Node) -> None:
    while (await send(limited)).status == 200:
        pass
    for path in ("/healthz", "/readyz", "/metrics", "/v1/cluster", "/v1/cluster/settings", "/v1/users"):
        for _ in range(20):
            assert (await limited.call("GET", path)).status == 200, path
    assert (await limited.call("GET", "/v1/topics")).status == 429


async def test_administration_that_needs_no_credentials_yet_is_not_charged(tmp_path: Path) -> None:
    file = quota_file(tmp_path, "[anonymous]\nrequests_per_s = 1\n")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, auth="permissive", quota_file=str(file)), fatal) as node:
        assert [(await node.call("GET", "/v1/topics")).status for _ in range(2)] == [200, 429]
        assert [(await node.call("GET", "/v1/cluster")).status for _ in range(3)] == [200] * 3
    assert not fatal


async def test_a_heartbeat_is_refused_last(limited: Node) -> None:
    member = (await limited.call("POST", "/v1/groups/g/members", {"topics": ["orders"], "client_id": "c"})).body
    heartbeat = f"/v1/groups/g/members/{member['member_id']}/heartbeat"
    while (await limited.call("GET", "/v1/topics")).status == 200:
        pass
    for _ in range(10):
        assert (await limited.call("POST", heartbeat)).status == 200
    assert (await limited.call("POST", heartbeat)).status == 429


async def test_users_have_their_own_quota_and_the_administrator_none(tmp_path: Path) -> None:
    secret = tmp_path / "admin-token"
    secret.touch(mode=0o600)
    secret.write_text(ADMINISTRATOR)
    file = quota_file(
        tmp_path, "[default]\nrequests_per_s = 2\n[anonymous]\nrequests_per_s = 3\n[users.fast]\nrequests_per_s = 5\n"
    )
    config = node_config(tmp_path, auth="enforce", admin_token_file=str(secret), quota_file=str(file))
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        tokens = {}
        for name in ("fast", "slow", "slow-too"):
            assert (await call_as(node, ADMINISTRATOR, "PUT", f"/v1/users/{name}", {"revision": 0})).status == 201
            made = await call_as(node, ADMINISTRATOR, "POST", f"/v1/users/{name}/tokens")
            tokens[name] = made.body["token"]
        for name, count in (("fast", 5), ("slow", 2), ("slow-too", 2)):
            statuses = [(await call_as(node, tokens[name], "GET", "/v1/principal")).status for _ in range(count + 1)]
            assert statuses == [200] * count + [429], name
        strangers = [(await call_as(node, f"keelmq_{n}", "GET", "/v1/principal")).status for n in range(4)]
        assert strangers == [401, 401, 401, 429], "wrong tokens count for the address that shows them"
        for path in ("/v1/users", "/v1/audit", "/v1/cluster", "/v1/cluster/settings", "/metrics"):
            assert (await call_as(node, "keelmq_4", "GET", path)).status == 429, f"{path} tries tokens, too"
        assert (await call_as(node, "keelmq_4", "POST", "/v1/cluster/join", {"node_id": 4})).status == 429
        assert (await call_as(node, tokens["slow"], "GET", "/v1/cluster")).status == 200
        assert (await node.call("GET", "/readyz")).status == 200
        for _ in range(20):
            assert (await call_as(node, ADMINISTRATOR, "GET", "/v1/principal")).status == 200
    assert not fatal


async def test_the_turns_of_users_in_front_of_the_log_have_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "admin-token"
    secret.touch(mode=0o600)
    secret.write_text(ADMINISTRATOR)
    file = quota_file(tmp_path, "[users.shop]\nweight = 3\n")
    config = node_config(tmp_path, auth="enforce", admin_token_file=str(secret), quota_file=str(file))
    fatal: list[str] = []
    async with running_node(config, fatal) as node:
        weights: dict[str, int] = {}
        submit = ProposalQueue.submit

        def noting(queue: ProposalQueue, proposal: Proposal, sender: str = OWN) -> Proposed:
            weights[sender] = queue._waiting.weight_of(sender)
            return submit(queue, proposal, sender)

        assert (await call_as(node, ADMINISTRATOR, "PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        rules = [{"actions": ["send"], "resource": "*"}]
        assert (await call_as(node, ADMINISTRATOR, "PUT", "/v1/users/shop", {"rules": rules})).status == 201
        token = (await call_as(node, ADMINISTRATOR, "POST", "/v1/users/shop/tokens")).body["token"]
        monkeypatch.setattr(ProposalQueue, "submit", noting)
        for weight in (3, 9):
            rewrite(node, f"[users.shop]\nweight = {weight}\n")
            await node.broker._guards.quotas.look()
            assert (await call_as(node, token, "POST", MESSAGES, {"messages": [{"body": "x"}]})).status == 200
            assert weights["principal shop"] == weight
    assert not fatal


async def test_a_node_without_a_file_has_no_quotas(node: Node) -> None:
    assert node.core.quotas is None
    handlers = {route.handler.__qualname__ for route in node.broker.services.application.router.routes()}
    assert "ProduceApi.produce" in handlers, "nothing stands between the router and its handlers"


async def test_a_file_that_changes_is_used_and_one_that_is_wrong_is_an_alarm(limited: Node) -> None:
    guard = limited.broker._guards.quotas
    while (await send(limited)).status == 200:
        pass
    await guard.look()
    for text, words in (
        ("", "is empty"),
        ("[anonymous]\nrequests_per_s = -1\n", "anonymous.requests_per_s"),
        ("[anonymous\n", "Expected"),
    ):
        rewrite(limited, text)
        await guard.look()
        await guard.look()
        limited.broker.services.alarms.look()
        (alarm,) = [each for each in limited.broker.services.alarms.active if each.code == "quotas_refused"]
        assert words in alarm.detail
        assert (await send(limited)).status == 429, "the former quotas hold on"
    rewrite(limited, "[anonymous]\nrequests_per_s = 20\n")
    await guard.look()
    limited.broker.services.alarms.look()
    assert not limited.broker.services.alarms.active
    assert [(await send(limited)).status for _ in range(21)] == [200] * 20 + [429]
    rewrite(limited, "[default]\n")
    await guard.look()
    assert [(await send(limited)).status for _ in range(50)] == [200] * 50


async def test_a_new_file_that_could_not_be_read_is_read_again(limited: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may have run out for a moment, or permissions of a directory be set after the file."""
    guard = limited.broker._guards.quotas
    await guard.stop()  # only the test looks
    guard._threads = ReaderThreads("quotas", threads=1)

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    rewrite(limited, "[anonymous]\nrequests_per_s = 7\n")
    with monkeypatch.context() as crowded:
        crowded.setattr("cluster.process.quota_file.open", refuse, raising=False)
        await guard.look()
    assert [each.code for each in guard.conditions()] == ["quotas_refused"]
    await guard.look()
    assert not list(guard.conditions())
    quotas = limited.core.quotas
    assert quotas is not None
    assert quotas.settings.anonymous.requests_per_s == 7


async def test_the_node_looks_at_the_file_by_itself(limited: Node) -> None:
    rewrite(limited, "[default]\n")

    async def is_unlimited() -> bool:
        assert limited.core.quotas is not None
        return limited.core.quotas.is_unlimited

    await limited.wait(is_unlimited)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; to limit nobody, write"),
        ("[default]\nrequests = 1\n", "unknown field `requests`"),
        ("[defaults]\n", "unknown field `defaults`"),
        ("[default]\nrequests_per_s = 1.5\n", "Expected `int"),
        ("[default]\nin_bytes_per_s = 1023\n", r"\[default\] in_bytes_per_s: at least 1024, or 0"),
        ("[users.shop]\nout_bytes_per_s = 1\n", r"\[users.shop\] out_bytes_per_s: at least 1024, or 0"),
        ("[default]\nweight = 0\n", "`int` >= 1"),
        (f"[users.shop]\nweight = {WEIGHT_MAX + 1}\n", f"`int` <= {WEIGHT_MAX}"),
        ("[users.shop]\nweight = 1.5\n", "Expected `int"),
        ("[users.admin]\n", r"\[users.admin\]: no user has this name"),
        ("[users.anonymous]\n", "no user has this name"),
        ('[users."a b"]\n', "matching regex"),
        ("x = " + "[" * 5_000, "nested too deeply"),
        ("[default]\n" + "#" * FILE_BYTES_MAX, f"larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = quota_file(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as raised:
        validate(node_config(tmp_path, quota_file=str(file)))
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["nowhere", ".", "\0"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"quota_file .*cannot be read"):
        read_quotas(str(tmp_path / path))


def test_a_section_is_filled_from_the_default(tmp_path: Path) -> None:
    text = "[default]\nrequests_per_s = 7\nin_bytes_per_s = 4096\nweight = 5\n[users.shop]\nin_bytes_per_s = 0\n"
    shop = read_quotas(str(quota_file(tmp_path, text))).users["shop"]
    assert (shop.requests_per_s, shop.in_bytes_per_s, shop.out_bytes_per_s, shop.weight) == (7, 0, None, 5)
    assert NOT_USERS == RESERVED_NAMES


def test_the_routes_that_are_free_are_those_of_health_metrics_and_administration(node: Node) -> None:
    free = {(route.method, route.path) for route in node.broker.services._routes() if is_free(route)}
    assert {path for _, path in free if not path.startswith(("/v1/cluster", "/v1/users"))} == {
        "/console",
        "/console/{file}",
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/audit",
        "/v1/backups",
        "/v1/backups/{backup_id}",
        "/v1/transactions/{transaction_id}/resume",
    }
