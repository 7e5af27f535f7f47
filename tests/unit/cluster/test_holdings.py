"""Limits of what principals hold of a node at a time, and of the time of their filters: over real HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from cluster.budgets.holdings import PRINCIPAL_SHARE_PERCENT
from cluster.budgets.time_shares import PRINCIPAL_SENDER
from cluster.process.addresses import ConfigError
from cluster.process.quota_file import FILTER_MS_MAX, read_quotas
from deploy.local_nodes import free_ports
from tests.unit.cluster.conftest import Answer, Node, node_config, running_node

ADMINISTRATOR = "administrator-of-the-tests-0123456789abcdef"
KIB = 1 << 10
MESSAGES = "/v1/topics/orders/messages"
PAGE = "/v1/topics/orders/queues/0/messages"
WAIT = f"{PAGE}?offset=0&wait_ms=30000"
HERE, THERE = "127.0.0.1", "127.0.0.2"
SHOP = f"{PRINCIPAL_SENDER}shop"


class Caller:
    """A client with one connection from an address, and the token that it shows."""

    def __init__(self, node: Node, token: str | None = None, address: str = HERE, listen: str | None = None) -> None:
        listen = listen or node.core.config.http_listen
        connector = aiohttp.TCPConnector(limit=1, local_addr=(address, 0))
        headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self.session = aiohttp.ClientSession(f"http://{listen}", connector=connector, headers=headers)

    async def call(self, method: str, path: str, payload: Any = None) -> Answer:
        data = None if payload is None else json.dumps(payload)
        async with self.session.request(method, path, data=data) as response:
            content = await response.read()
            is_json = response.content_type.endswith("json") and content
            return Answer(response.status, json.loads(content) if is_json else content, response.headers)


class Closed:
    """A node with permissions, the user `shop` that may do everything, and callers."""

    def __init__(self, node: Node, callers: contextlib.AsyncExitStack) -> None:
        self.node = node
        self.token = ""
        self._callers = callers

    async def caller(self, token: str | None = None, address: str = HERE, listen: str | None = None) -> Caller:
        caller = Caller(self.node, token, address, listen)
        await self._callers.enter_async_context(caller.session)
        return caller

    async def shop(self, address: str = HERE, listen: str | None = None) -> Caller:
        return await self.caller(self.token, address, listen)

    def held(self, held: Any, holder: str = SHOP) -> int:
        return self.node.core.holdings.held_by(holder, held)

    async def until_held(self, held: Any, count: int, holder: str = SHOP) -> None:
        async def is_so() -> bool:
            return self.held(held, holder) == count

        await self.node.wait(is_so)


@contextlib.asynccontextmanager
async def closed(
    path: Path, quotas: str | None, *, two_listeners: bool = False, **changes: Any
) -> AsyncIterator[Closed]:
    secret = path / "admin-token"
    secret.touch(mode=0o600)
    secret.write_text(ADMINISTRATOR)
    if quotas is not None:
        (path / "quotas.toml").write_text(quotas)
        changes["quota_file"] = str(path / "quotas.toml")
    if two_listeners:
        changes["admin_listen"] = f"{HERE}:{free_ports(1)[0]}"
    config = node_config(path, auth="enforce", admin_token_file=str(secret), **changes)
    fatal: list[str] = []
    async with running_node(config, fatal) as node, contextlib.AsyncExitStack() as callers:
        found = Closed(node, callers)
        admin = await found.caller(ADMINISTRATOR, listen=config.admin_listen)
        rule = {"effect": "allow", "actions": ["send", "read", "describe", "create", "decide"], "resource": "*"}
        made = await admin.call("PUT", "/v1/users/shop", {"revision": 0, "rules": [rule]})
        assert made.status == 201, made
        found.token = (await admin.call("POST", "/v1/users/shop/tokens")).body["token"]
        assert (await admin.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        node.clock.now_ms += 60_000
        yield found
    assert not fatal


def is_refused(answer: Answer, quota: str, limit: int) -> bool:
    assert answer.status == 429, answer
    assert answer.headers["Retry-After"] == "1"
    said = (answer.body["code"], answer.body["quota"], answer.body["limit"], answer.body["retry_after_ms"])
    return said == ("quota_exceeded", quota, limit, 1_000)


async def test_connections_count_for_their_principal_wherever_they_come_from(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nconnections = 2\n") as it:
        first, second, third = await it.shop(), await it.shop(THERE), await it.shop()
        waiting = [asyncio.create_task(caller.call("GET", WAIT)) for caller in (first, second)]
        await it.until_held("long_polls", 2)
        refused = await third.call("GET", "/v1/topics")
        assert is_refused(refused, "connections", 2)
        assert refused.headers["Connection"] == "close"
        assert (await third.call("GET", "/v1/cluster")).status == 200, "administration is answered"
        assert it.held("connections") == 2
        assert (await (await it.caller(ADMINISTRATOR)).call("GET", "/v1/topics")).status == 200
        stranger = await it.caller()
        assert (await stranger.call("GET", "/v1/topics")).status == 401, "others are not concerned"
        for each in waiting:
            each.cancel()
        await it.until_held("connections", 0)
        assert (await third.call("GET", "/v1/topics")).status == 200


async def test_an_idle_connection_makes_room_for_one_of_its_principal(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nconnections = 1\n") as it:
        idle, other = await it.shop(), await it.caller(ADMINISTRATOR)
        for caller in (idle, other):
            assert (await caller.call("GET", "/v1/topics")).status == 200
        busy = await it.shop(THERE)
        waiting = asyncio.create_task(busy.call("GET", WAIT))
        await it.until_held("long_polls", 1)
        assert it.held("connections") == 1
        assert is_refused(await idle.call("GET", "/v1/topics"), "connections", 1), "and not one that is in use"
        waiting.cancel()


async def test_an_idle_connection_for_administration_makes_room_too(tmp_path: Path) -> None:
    """A quota of connections holds for both listeners."""
    async with closed(tmp_path, "[users.shop]\nconnections = 1\n", two_listeners=True) as it:
        idle = await it.shop(listen=it.node.core.config.admin_listen)
        assert (await idle.call("GET", "/v1/users")).status == 403, "but the connection is one of its"
        assert it.held("connections") == 1
        assert (await (await it.shop()).call("GET", "/v1/topics")).status == 200
        assert it.held("connections") == 1


async def test_a_connection_without_credentials_is_its_addresss(tmp_path: Path) -> None:
    """While authentication is off, that is every connection."""
    (tmp_path / "quotas.toml").write_text("[anonymous]\nconnections = 2\nlong_polls = 1\n")
    fatal: list[str] = []
    config = node_config(tmp_path, quota_file=str(tmp_path / "quotas.toml"))
    async with running_node(config, fatal) as node, contextlib.AsyncExitStack() as callers:
        it = Closed(node, callers)
        first, second, third, other = [await it.caller() for _ in range(3)] + [await it.caller(address=THERE)]
        assert (await first.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        waiting = asyncio.create_task(first.call("GET", WAIT))
        await it.until_held("long_polls", 1, HERE)
        assert is_refused(await second.call("GET", WAIT), "long_polls", 1)
        assert (await third.call("GET", "/v1/topics")).status == 200, "the second one was idle"
        assert (it.held("connections", HERE), it.held("connections", THERE)) == (2, 0)
        assert (await other.call("GET", "/v1/topics")).status == 200
        waiting.cancel()
    assert not fatal


async def test_a_connection_goes_over_to_who_uses_it_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.budgets.client_notes.NOTED_EVERY_S", 0.0)
    async with closed(tmp_path, "[users.shop]\nconnections = 1\n") as it:
        shared = await it.caller()
        assert (await shared.call("GET", "/v1/topics")).status == 401
        assert it.held("connections", HERE) == 1
        shared.session.headers["Authorization"] = f"Bearer {it.token}"
        assert (await shared.call("GET", "/v1/topics")).status == 200
        assert (it.held("connections"), it.held("connections", HERE)) == (1, 0)


async def test_without_a_file_a_principal_leaves_others_a_quarter(tmp_path: Path) -> None:
    limit = 16
    async with closed(tmp_path, None, max_connections=limit, address_share_percent=100) as it:
        of_administrator = 1
        granted = (limit - of_administrator) * PRINCIPAL_SHARE_PERCENT // 100
        waiting = []
        for number in range(granted):
            caller = await it.shop(HERE if number % 2 else THERE)
            waiting.append(asyncio.create_task(caller.call("GET", WAIT)))
            await it.until_held("long_polls", number + 1)
        answer = await (await it.shop()).call("GET", "/v1/topics")
        assert (answer.status, answer.body["code"]) == (429, "overloaded")
        assert "from all its addresses" in answer.body["detail"]
        assert (await (await it.caller(ADMINISTRATOR)).call("GET", "/v1/topics")).status == 200
        for each in waiting:
            each.cancel()


async def test_long_polls_are_limited_and_given_back(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nlong_polls = 1\n") as it:
        callers = [await it.shop(), await it.shop(THERE), await it.shop()]
        first = asyncio.create_task(callers[0].call("GET", WAIT))
        await it.until_held("long_polls", 1)
        assert is_refused(await callers[1].call("GET", WAIT), "long_polls", 1)
        for path, payload in (
            ("/v1/groups/g/pop", {"topic": "orders", "client_id": "c", "wait_ms": 30_000}),
            ("/v1/producer-groups/p/checks?wait_ms=30000", None),
        ):
            refused = await callers[1].call("GET" if payload is None else "POST", path, payload)
            assert is_refused(refused, "long_polls", 1), path
        assert (await callers[1].call("GET", f"{PAGE}?offset=0")).status == 200, "it does not wait"
        assert (await callers[2].call("POST", MESSAGES, {"messages": [{"body": "x"}]})).status == 200
        assert (await first).body["next_offset"] == 1
        await it.until_held("long_polls", 0)
        gone = asyncio.create_task(callers[0].call("GET", f"{PAGE}?offset=1&wait_ms=30000"))
        await it.until_held("long_polls", 1)
        gone.cancel()
        await it.until_held("long_polls", 0)


async def test_a_heartbeat_may_wait_where_a_pull_may_not(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nlong_polls = 1\n") as it:
        members = [await it.shop() for _ in range(3)]
        joined = [
            (await each.call("POST", "/v1/groups/g/members", {"topics": ["orders"], "client_id": "c"})).body
            for each in members
        ]

        def heartbeat(number: int) -> Any:
            path = f"/v1/groups/g/members/{joined[number]['member_id']}/heartbeat"
            return members[number].call("POST", path, {"wait_ms": 30_000, "generation": joined[-1]["generation"]})

        waiting = []
        for number in range(2):
            waiting.append(asyncio.create_task(heartbeat(number)))
            await it.until_held("long_polls", number + 1)
        assert is_refused(await heartbeat(2), "long_polls", 1)
        for each in waiting:
            each.cancel()


async def test_bytes_of_bodies_are_held_for_the_principal_from_their_announcement(tmp_path: Path) -> None:
    async with closed(tmp_path, f"[users.shop]\nheld_bytes = {64 * KIB}\n") as it:
        large = {"messages": [{"body": "x" * (100 * KIB)}]}
        first, second = await it.shop(), await it.shop(THERE)
        assert (await first.call("POST", MESSAGES, large)).status == 200, "alone, a body may be larger"
        let_go = asyncio.Event()
        body = json.dumps(large).encode()

        async def slowly() -> AsyncIterator[bytes]:
            yield body[:1]
            await let_go.wait()
            yield body[1:]

        headers = {"Content-Length": str(len(body))}
        begun = asyncio.create_task(first.session.post(MESSAGES, data=slowly(), headers=headers))
        await it.until_held("held_bytes", len(body))
        assert is_refused(await second.call("POST", MESSAGES, large), "held_bytes", 64 * KIB)
        small = {"messages": [{"body": "x"}]}
        assert (await second.call("POST", MESSAGES, small)).status == 200, "small bodies always fit"
        let_go.set()
        async with await begun as response:
            assert response.status == 200
        await it.until_held("held_bytes", 0)
        assert (await second.call("POST", MESSAGES, large)).status == 200


async def test_unread_answers_are_held_for_the_principal(tmp_path: Path) -> None:
    async with closed(tmp_path, f"[users.shop]\nheld_bytes = {1 << 20}\n") as it:
        caller = await it.shop()
        for _ in range(8):
            assert (await caller.call("POST", MESSAGES, {"messages": [{"body": "x" * (900 * KIB)}]})).status == 200
        address = it.node.core.config.http_address()
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=KIB)
        head = f"GET {PAGE}?offset=0&max_bytes=16777216 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {it.token}"
        writer.write(f"{head}\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        assert it.held("held_bytes") > 1 << 20
        assert is_refused(await caller.call("GET", f"{PAGE}?offset=0&max_bytes=16777216"), "held_bytes", 1 << 20)
        writer.close()
        await it.until_held("held_bytes", 0)
        assert (await caller.call("GET", f"{PAGE}?offset=0&max_bytes=16777216")).status == 200


async def test_the_time_of_filters_is_charged_and_delays_the_next_one(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nfilter_ms_per_s = 1\n") as it:
        caller = await it.shop()
        messages = {"messages": [{"body": "x", "tag": "a", "properties": {"n": str(n)}} for n in range(2_000)]}
        assert (await caller.call("POST", MESSAGES, messages)).status == 200
        filtered = f"{PAGE}?offset=0&filter=n%20%3C%200%20OR%20n%20%3E%20{10**6}"
        found = await caller.call("GET", filtered)
        assert (found.status, found.body["messages"], found.body["next_offset"]) == (200, [], 2_000)
        refused = await caller.call("GET", filtered)
        assert (refused.status, refused.body["code"], refused.body["quota"]) == (
            429,
            "quota_exceeded",
            "filter_ms_per_s",
        )
        assert int(refused.headers["Retry-After"]) == -(-refused.body["retry_after_ms"] // 1_000)
        assert (await caller.call("GET", f"{PAGE}?offset=0&tags=a")).status == 429, "tags are sought in the same way"
        popped = {"topic": "orders", "client_id": "c", "filter": "n < 0"}
        assert (await caller.call("POST", "/v1/groups/g/pop", popped)).body["quota"] == "filter_ms_per_s"
        assert (await caller.call("GET", f"{PAGE}?offset=0")).status == 200, "without a filter nothing is sought"
        it.node.clock.now_ms += refused.body["retry_after_ms"] + 1_000
        assert (await caller.call("GET", filtered)).status == 200


async def test_usage_tells_what_is_held(tmp_path: Path) -> None:
    async with closed(tmp_path, "[users.shop]\nconnections = 3\nlong_polls = 2\nfilter_ms_per_s = 50\n") as it:
        assert (await (await it.shop()).call("GET", "/v1/topics")).status == 200
        admin = await it.caller(ADMINISTRATOR)
        (usage,) = (await admin.call("GET", "/v1/cluster/quotas")).body["principals"]
        assert (usage["connections"], usage["connections_left"]) == (3, 2)
        assert (usage["long_polls"], usage["long_polls_left"]) == (2, 2)
        assert (usage["filter_ms_per_s"], usage["filter_ms_left"]) == (50, 50)
        assert (usage["held_bytes"], usage["held_bytes_left"]) == (0, None)


@pytest.mark.parametrize("line", [f"filter_ms_per_s = {FILTER_MS_MAX + 1}", "connections = -1", "long_polls = 1.5"])
def test_a_limit_that_cannot_be_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(f"[default]\n{line}\n")
    with pytest.raises(ConfigError, match=line.partition(" ")[0]):
        read_quotas(str(file))


async def test_nothing_is_held_when_everybody_has_hung_up(tmp_path: Path) -> None:
    """Clients leave at every moment of a request: counts that stay would lock their principal out for ever."""
    random = Random(7)
    text = "[default]\nconnections = 9\nlong_polls = 5\nheld_bytes = 65536\nfilter_ms_per_s = 20\n"
    async with closed(tmp_path, text + "[anonymous]\nconnections = 9\n") as it:
        caller = await it.shop()
        for _ in range(3):
            assert (await caller.call("POST", MESSAGES, {"messages": [{"body": "x" * (300 * KIB)}]})).status == 200
        address = it.node.core.config.http_address()
        body = json.dumps({"messages": [{"body": "y" * (40 * KIB)}]})
        requests = (
            ("GET", f"{PAGE}?offset=3&wait_ms=30000", ""),
            ("GET", f"{PAGE}?offset=0&max_bytes=16777216", ""),
            ("GET", f"{PAGE}?offset=0&tags=a&wait_ms=30000", ""),
            ("GET", "/v1/producer-groups/p/checks?wait_ms=30000", ""),
            ("POST", MESSAGES, body),
            ("POST", "/v1/groups/g/pop", json.dumps({"topic": "orders", "client_id": "c", "wait_ms": 30_000})),
            ("GET", "/v1/cluster", ""),
        )

        async def hang_up() -> None:
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=KIB)
            for _ in range(random.randint(1, 3)):
                method, path, content = random.choice(requests)
                token = random.choice([it.token, it.token, "keelmq_wrong", ADMINISTRATOR])
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                if content:
                    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
                sent = f"{head}\r\n{content}".encode()
                whole = random.random() < 0.5
                writer.write(sent if whole else sent[: random.randint(1, len(sent))])
                if not whole:
                    break
                if random.random() < 0.5:
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        async with asyncio.timeout(0.02):
                            await reader.readline()
            writer.transport.abort()

        for _ in range(20):
            await asyncio.gather(*(hang_up() for _ in range(12)))
        await caller.session.close()
        await it.node.session.close()
        it.node.session = (await it.caller()).session
        budgets = it.node.core.holdings._budgets

        async def is_let_go() -> bool:
            return not any(budget.held_by(each) for budget in budgets.values() for each in (SHOP, HERE))

        await it.node.wait(is_let_go)
        assert (await (await it.shop()).call("GET", "/v1/topics")).status == 200
