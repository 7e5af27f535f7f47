"""Checks on their way to webhooks: which addresses are called, what is signed, and which answers count."""

import asyncio
import gzip
import hmac
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from cluster.process.addresses import ConfigError
from cluster.process.config_loading import load
from cluster.transactions.webhooks import ANSWER_BYTES_MAX
from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node
from tests.unit.cluster.test_certificate_guard import alarms_of
from tests.unit.cluster.test_check_service import IMMUNITY_MS, prepare

OLD, NEW = "old-secret-".ljust(40, "o"), "new-secret-".ljust(40, "n")
DECISION = b'{"decision":"commit"}'
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Endpoint:
    """A service that keeps each request, and answers with what the test sets."""

    def __init__(self) -> None:
        self.answer: list[bytes] = [DECISION]
        """Parts of the answer, which are sent one by one."""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []
        self.sent_first = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, await request.read(), dict(request.headers)))
        response = web.StreamResponse(status=self.status, headers=self.headers)
        await response.prepare(request)
        for part in self.answer:
            await response.write(part)
            self.sent_first.set()
            await self.may_go_on.wait()
        return response


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[Endpoint, BaseTestServer]]:
    service = Endpoint()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", service.handle)
    async with TestServer(application) as server:
        yield service, server


async def ask(node: Node, url: str) -> None:
    put = await node.call("PUT", "/v1/producer-groups/shop", {"check_url": url})
    assert put.status == 200, put
    await prepare(node, "t")
    node.clock.now_ms += IMMUNITY_MS


async def calls(node: Node, outcome: str, count: int = 1) -> None:
    """Wait until the metric says that calls ended so."""

    async def counted() -> bool:
        text = (await node.call("GET", "/metrics")).body.decode()
        return f'keelmq_webhook_calls_total{{outcome="{outcome}"}} {count}.0' in text

    await node.wait(counted)


async def state(node: Node) -> str:
    return str((await node.call("GET", "/v1/transactions/t")).body["state"])


async def test_an_answer_in_pieces_is_read_to_its_end(node: Node, endpoint: tuple[Endpoint, BaseTestServer]) -> None:
    service, server = endpoint
    service.answer = [DECISION[:8], DECISION[8:]]
    service.may_go_on.clear()
    await ask(node, str(server.make_url("/check")))
    await service.sent_first.wait()
    service.may_go_on.set()
    await calls(node, "commit")


@pytest.mark.parametrize(
    ("status", "answer", "headers", "outcome"),
    [
        (200, b'{"decision":"rollback"}', {}, "rollback"),
        (200, b'{"decision":"unknown"}', {}, "unknown"),
        (200, b"I have seen it", {}, "invalid_answer"),
        (200, b"[" * ANSWER_BYTES_MAX, {}, "invalid_answer"),
        (200, gzip.compress(DECISION, mtime=0), {"Content-Encoding": "gzip"}, "invalid_answer"),
        (200, b" " * ANSWER_BYTES_MAX + DECISION, {}, "answer_too_large"),
        (503, DECISION, {}, "error_status"),
    ],
)
async def test_each_call_is_counted_by_its_outcome(
    node: Node,
    endpoint: tuple[Endpoint, BaseTestServer],
    status: int,
    answer: bytes,
    headers: dict[str, str],
    outcome: str,
) -> None:
    service, server = endpoint
    service.status, service.answer, service.headers = status, [answer], headers
    await ask(node, str(server.make_url("/check")))
    await calls(node, outcome)
    assert await state(node) == ("rolled_back" if outcome == "rollback" else "prepared")


async def test_a_redirect_is_not_followed(node: Node, endpoint: tuple[Endpoint, BaseTestServer]) -> None:
    service, server = endpoint
    service.status, service.headers = 307, {"Location": str(server.make_url("/elsewhere"))}
    await ask(node, str(server.make_url("/check")))
    await calls(node, "error_status")
    assert [path for path, _, _ in service.asked] == ["/check"]
    assert await state(node) == "prepared"


async def test_a_url_that_is_not_allowed_is_refused_and_changes_nothing(
    node: Node, endpoint: tuple[Endpoint, BaseTestServer]
) -> None:
    url = str(endpoint[1].make_url("/check"))
    await ask(node, url)
    await calls(node, "commit")
    for other in ("http://10.0.0.1/", "http://169.254.169.254/latest/", "https://hooks.example/"):
        refused = await node.call("PUT", "/v1/producer-groups/shop", {"check_url": other})
        assert (refused.status, refused.body["code"]) == (403, "check_url_not_allowed")
        assert "webhook_allow" in refused.body["detail"]
    assert node.core.state.check_url("shop") == url


async def test_a_url_that_is_no_longer_allowed_is_not_called(
    tmp_path: Path, endpoint: tuple[Endpoint, BaseTestServer]
) -> None:
    service, server = endpoint
    config, fatal = node_config(tmp_path), list[str]()
    async with running_node(config, fatal) as node:
        await node.call("PUT", "/v1/producer-groups/shop", {"check_url": str(server.make_url("/check"))})
        await prepare(node, "t")
    async with running_node(node_config(tmp_path, webhook_allow=("https://hooks.example",)), fatal) as node:
        node.clock.now_ms += 2 * IMMUNITY_MS
        await calls(node, "not_allowed")
        transaction = (await node.call("GET", "/v1/transactions/t")).body
        assert (transaction["state"], transaction["check_times"]) == ("prepared", 0)
    assert service.asked == []
    assert not fatal


async def test_a_name_that_is_pointed_at_this_machine_is_not_called(
    tmp_path: Path,
    endpoint: tuple[Endpoint, BaseTestServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, server = endpoint
    look_up = socket.getaddrinfo

    def pointed(host: str, *arguments: Any, **options: Any) -> Any:
        return look_up("127.0.0.1" if host == "hooks.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", pointed)
    fatal: list[str] = []
    allowed = f"http://hooks.example:{server.port}"
    async with running_node(node_config(tmp_path, webhook_allow=(allowed,)), fatal) as node:
        await ask(node, f"{allowed}/check")
        await calls(node, "not_allowed")
    assert service.asked == []
    assert "hooks.example is 127.0.0.1 by its name" in caplog.text
    assert not fatal


def secret_file(path: Path, *secrets: str) -> str:
    """Write a file beside the present one and put it in its place, as operators should."""
    file, new = path / "webhook-secrets", path / "new"
    new.touch(mode=0o600)
    new.write_text("".join(f"{secret}\n" for secret in secrets))
    new.rename(file)
    return str(file)


def expected(secret: str, body: bytes, time_s: str) -> str:
    return hmac.new(secret.encode(), time_s.encode() + b"." + body, "sha256").hexdigest()


async def test_checks_are_signed_with_each_secret_of_the_file_which_is_read_again(
    tmp_path: Path, endpoint: tuple[Endpoint, BaseTestServer], caplog: pytest.LogCaptureFixture
) -> None:
    service, server = endpoint
    service.answer = [b'{"decision":"unknown"}']
    fatal: list[str] = []
    config = node_config(tmp_path, webhook_secret_file=secret_file(tmp_path, OLD))
    async with running_node(config, fatal) as node:
        guard = node.broker._guards.webhook_secrets
        for number, secrets in enumerate([(OLD,), (NEW, OLD), (NEW,)]):
            secret_file(tmp_path, *secrets)
            await guard.look()
            if number == 0:
                await ask(node, str(server.make_url("/check")))
            else:
                node.clock.now_ms += 60_000
            await calls(node, "unknown", number + 1)
            _, body, headers = service.asked[number]
            members = headers["KeelMQ-Signature"].split(",")
            time_s = members[0].removeprefix("t=")
            assert members[1:] == [f"v1={expected(secret, body, time_s)}" for secret in secrets]
            assert int(time_s) == node.clock.now_ms // 1000 >= START_MS // 1000

        (tmp_path / "webhook-secrets").chmod(0o644)
        for _ in range(2):
            await guard.look()
        severity, detail = alarms_of(node)["webhook_secret_refused"]
        assert severity == "warning"
        assert "chmod 600" in detail
        node.clock.now_ms += 60_000
        await calls(node, "unknown", 4)
        _, body, headers = service.asked[3]
        assert expected(NEW, body, str(node.clock.now_ms // 1000)) in headers["KeelMQ-Signature"]
        (tmp_path / "webhook-secrets").chmod(0o600)
        await guard.look()
        assert "webhook_secret_refused" not in alarms_of(node)
    assert not fatal
    assert len([text for text in caplog.messages if "secrets of webhooks are not used" in text]) == 1
    assert OLD not in caplog.text
    assert NEW not in caplog.text


async def test_without_a_secret_nothing_is_signed(node: Node, endpoint: tuple[Endpoint, BaseTestServer]) -> None:
    service, server = endpoint
    await ask(node, str(server.make_url("/check")))
    await calls(node, "commit")
    assert "KeelMQ-Signature" not in service.asked[0][2]


@pytest.mark.parametrize(
    ("content", "mode", "error"),
    [
        (f"{OLD}\n", 0o640, "chmod 600"),
        ("short\n", 0o600, "at least 32"),
        ("", 0o600, "1 to 4 lines"),
        (f"{OLD}\n{NEW}\n{OLD}{NEW}\n", 0o600, "one or two lines"),
    ],
)
def test_a_secret_file_that_cannot_be_used_ends_the_start(tmp_path: Path, content: str, mode: int, error: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    os.chmod(file, mode)
    with pytest.raises(ConfigError, match=f"webhook_secret_file .*{error}") as raised:
        load(None, {}, {"webhook_secret_file": str(file)})
    assert OLD not in str(raised.value)


def test_a_secret_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="webhook_secret_file"):
        load(None, {}, {"webhook_secret_file": str(tmp_path / "none")})


@pytest.mark.parametrize(("given", "sent"), [(TRACEPARENT, TRACEPARENT), (TRACEPARENT.upper(), None)])
async def test_a_check_carries_the_trace_of_its_transaction_if_it_is_valid(
    node: Node, endpoint: tuple[Endpoint, BaseTestServer], given: str, sent: str | None
) -> None:
    service, server = endpoint
    check_url = {"check_url": str(server.make_url("/check"))}
    assert (await node.call("PUT", "/v1/producer-groups/shop", check_url)).status == 200
    await prepare(node, "t", messages=[{"topic": "orders", "body": "one", "properties": {"traceparent": given}}])
    node.clock.now_ms += IMMUNITY_MS
    await calls(node, "commit")
    [(_, _, headers)] = service.asked
    assert headers.get("traceparent") == sent
