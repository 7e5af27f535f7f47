"""Quotas on a real cluster: ten principals that ask for more than they may, and the SDK of one that waits."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from keelmq import Connection
from keelmq.admin.users import Rule, Users
from keelmq.errors import QuotaExceeded
from keelmq.transport.retry import Deadline
from tests.e2e.closed_cluster import ADMINISTRATOR, closed
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, until
from tests.e2e.fixtures import Shell
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

RATE = 8
GREEDY_RATE = 5
"""Rate that a busy machine can serve twice over: with 20 for each of nine, at a load of 11, all had 0.6."""
LASTS_S = 6.0
CLIENTS = 3
"""Number of clients of each principal, and of connections of the one that waits for nothing."""
PATH = "/v1/topics/shared/messages"
BODY = b'{"messages": [{"body": "x"}]}'
OTHERS = tuple(f"service-{number}" for number in range(9))
GREEDY = "greedy"
STEADY = ("--election-timeout-ms", "3000", "--heartbeat-ms", "300")
"""One node leads throughout, also on a machine whose processes stand for a second: each node counts for itself."""
WEBHOOK_SECRET = "secret-of-webhooks-0123456789abcdef"
QUOTAS = f"[default]\nrequests_per_s = {RATE}\n[users.{GREEDY}]\nrequests_per_s = {GREEDY_RATE}\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    directory = tmp_path_factory.mktemp("cluster")
    quotas = directory / "quotas.toml"
    quotas.write_text(QUOTAS)
    webhook_secret = directory / "webhook-secret"
    webhook_secret.touch(mode=0o600)
    webhook_secret.write_text(WEBHOOK_SECRET)
    options = (*STEADY, "--quota-file", str(quotas), "--webhook-secret-file", str(webhook_secret))
    with closed(directory, options=options) as running:
        ok(running.wait_leader().request("PUT", "/v1/topics/shared", payload={"queues": 1}))
        yield running


async def tokens_of(cluster: ClusterProcess, *users: str) -> dict[str, str]:
    """Make users who may send, and return a token of each."""
    administration = Connection(cluster.servers, token=ADMINISTRATOR)
    try:
        tokens = {}
        for user in users:
            await Users(administration).put(user, rules=[Rule(actions=("send",), resource="topic:shared")], revision=0)
            tokens[user] = (await Users(administration).create_token(user)).token
        return tokens
    finally:
        administration.close()


def metrics(node: NodeProcess) -> dict[str, float]:
    lines = ok_text(node).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def ok_text(node: NodeProcess) -> str:
    reply = node.request("GET", "/metrics")
    assert reply.status == 200, reply
    return reply.body.decode()


async def send_as_told(servers: str, token: str, ends_s: float) -> int:
    """Return how many of the calls of one client succeeded in time."""
    connection, count = Connection(servers, token=token), 0
    try:
        while time.monotonic() < ends_s:
            await connection.call("POST", PATH, body=BODY, deadline=Deadline(1_000 * PATIENCE_S))
            count += time.monotonic() < ends_s
        return count
    finally:
        connection.close()


async def send_at_once(url: str, token: str, ends_s: float) -> tuple[int, int]:
    """Return how many requests of a client that waits for nothing were carried out, and how many were refused."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    served = refused = 0
    async with aiohttp.ClientSession(url, headers=headers) as session:
        while time.monotonic() < ends_s:
            async with session.post(PATH, data=BODY) as response:
                answer = await response.json(content_type=None)
                assert response.status == 200 or answer["code"] in ("quota_exceeded", "no_leader"), answer
                served, refused = served + (response.status == 200), refused + (response.status == 429)
    return served, refused


async def send_together(node: NodeProcess, token: str) -> list[int]:
    """Return the statuses of requests that come faster than a quota of RATE is filled, however slow the machine is."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    async def send(session: aiohttp.ClientSession) -> int:
        async with session.post(PATH, data=BODY) as response:
            return response.status

    async with aiohttp.ClientSession(node.url, headers=headers) as session:
        return await asyncio.gather(*(send(session) for _ in range(4 * RATE)))


async def test_each_of_ten_principals_gets_its_share(cluster: ClusterProcess) -> None:
    """Nine wait as they are told; one sends on and on, is refused far more often, and gets no more than its own."""
    tokens = await tokens_of(cluster, *OTHERS, GREEDY)
    leader = cluster.wait_leader()
    ends_s = time.monotonic() + LASTS_S
    polite = [send_as_told(leader.url, tokens[user], ends_s) for user in OTHERS for _ in range(CLIENTS)]
    greedy = [send_at_once(leader.url, tokens[GREEDY], ends_s) for _ in range(CLIENTS)]
    counts, floods = await asyncio.gather(asyncio.gather(*polite), asyncio.gather(*greedy))
    got = {user: sum(counts[CLIENTS * at : CLIENTS * at + CLIENTS]) for at, user in enumerate(OTHERS)}
    got[GREEDY] = sum(served for served, _ in floods)
    refused = sum(each for _, each in floods)
    shares = {user: count / ((GREEDY_RATE if user == GREEDY else RATE) * (LASTS_S + 1)) for user, count in got.items()}
    print(f"shares of the quotas: {shares}; {GREEDY}: {refused} refused in {LASTS_S} s")
    most = max(shares.values())
    assert 0.3 <= most <= 1.1, shares
    assert all(share >= 0.9 * most for share in shares.values()), "a machine that is slow is slow for all of them alike"
    assert metrics(leader)[f'keelmq_quota_throttled_total{{principal="{GREEDY}"}}'] == refused > got[GREEDY]
    assert cluster.wait_leader() is leader


async def test_the_sdk_waits_within_its_time_and_says_why_it_gave_up(cluster: ClusterProcess, tmp_path: Path) -> None:
    tokens = await tokens_of(cluster, "waits")
    connection = Connection(cluster.wait_leader().url, token=tokens["waits"])
    try:
        calls = [connection.call("POST", PATH, body=BODY, deadline=Deadline(30_000)) for _ in range(3 * RATE)]
        assert {response.status for response in await asyncio.gather(*calls)} == {200}
        told: list[str] = []

        async def is_told() -> bool:
            """Return whether a call gave up; a busy machine may be so slow that none exceeds the quota."""
            hasty = [connection.call("POST", PATH, body=BODY, deadline=Deadline(400)) for _ in range(3 * RATE)]
            ended = await asyncio.gather(*hasty, return_exceptions=True)
            told.extend(str(each) for each in ended if isinstance(each, QuotaExceeded))
            return bool(told)

        await until(is_told)
        assert re.search(f"nothing was stored: waits has used its quota of .* = {RATE}", told[0])
    finally:
        connection.close()


def cells(line: str) -> list[str]:
    return re.split(" {2,}", line.strip())


def test_the_command_shows_what_is_left(cluster: ClusterProcess) -> None:
    statuses = asyncio.run(send_together(cluster.wait_leader(), asyncio.run(tokens_of(cluster, "shown"))["shown"]))
    assert set(statuses) == {200, 429}
    shell = Shell(cluster)
    shell.environment["KEELMQ_TOKEN"] = ADMINISTRATOR
    table = [cells(line) for line in shell("auth", "quota").stdout.splitlines()]
    assert ["user", "requests left", "bytes in left", "bytes out left", "weight", "throttled"] in table
    (row,) = [row for row in table if row[:1] == ["shown"]]
    assert re.fullmatch(rf"-?\d+ of {RATE}", row[1])
    refused = statuses.count(429)
    assert row[2:] == ["no limit", "no limit", "1", f"{refused}"]
    (shown,) = [each for each in shell.json("auth", "quota")["principals"] if each["principal"] == "shown"]
    assert shown["throttled"] == refused
    table = [cells(line) for line in shell("auth", "quota", "--addresses").stdout.splitlines()]
    assert table[0][:2] == ["address", "requests left"]
    assert not [row for row in table if row[:1] == ["shown"]]


async def test_quotas_are_changed_without_a_restart(cluster: ClusterProcess) -> None:
    file = cluster.directory / "quotas.toml"
    leader = cluster.wait_leader()
    token = (await tokens_of(cluster, "changed"))["changed"]

    async def is_refused() -> bool:
        statuses = await send_together(leader, token)
        assert set(statuses) <= {200, 429}
        return 429 in statuses

    async def is_free() -> bool:
        return not await is_refused()

    assert await is_refused()
    file.write_text("[default]\n")
    await until(is_free)
    file.write_text("[defaults]\n")
    await until(lambda: 'keelmq_alarm{code="quotas_refused",severity="warning"}' in ok_text(leader))
    assert await is_free()
    file.write_text(QUOTAS)
    await until(is_refused)


async def test_a_node_that_opens_again_goes_on_with_the_former_files(cluster: ClusterProcess) -> None:
    """A rebuild, like a received snapshot, has the process open all its files again."""
    node = cluster.follower()
    files = {cluster.directory / "quotas.toml": QUOTAS, cluster.directory / "webhook-secret": WEBHOOK_SECRET}
    for file in files:
        file.write_text("refused")
    await until(lambda: node.request("POST", f"/v1/cluster/rebuild?node_id={node.node_id}").status < 300)
    await until(lambda: "serving again" in node.output() or not node.running())
    assert node.running(), node.log_tail(5)
    assert "the node goes on with the former quotas: quota_file" in node.output()
    assert "the node goes on with the former secrets of webhooks: webhook_secret_file" in node.output()
    cluster.wait_ready()
    for file, content in files.items():
        file.write_text(content)
