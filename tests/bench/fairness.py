"""Ten users that send flat out: how much of the others' rate one of them takes who has many connections and large
batches, and whether quotas keep each to its share.

Nine users have two connections each that send one message of 1 KiB after the other. The tenth is first one like them,
which gives everybody's share, and then a greedy one. All come from one address, so that no budget by address helps.
"""

import asyncio
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.bench.protection import administrator_of, call, closed_cluster, new_user

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "shared"
QUEUES: Final = 4
USERS: Final = tuple(f"user-{number}" for number in range(10))
CONNECTIONS: Final = 2
GREEDY_CONNECTIONS: Final = 64
BODY: Final = "x" * 1024
BATCH_MESSAGES: Final = 48
"""Messages of a greedy batch: its body is a little smaller than those that wait for turns by address."""
ROUNDS: Final = 3
QUOTA_REQUESTS_PER_S: Final = 25
KEPT_GOAL_PERCENT: Final = 90
SHARE_TOLERANCE_PERCENT: Final = 10
RULE: Final = {"actions": ["send"], "resource": f"topic:{TOPIC}"}


class Sender(NamedTuple):
    """A user, its connections, and how many messages each of its requests has."""

    token: str
    connections: int
    messages: int


async def measure(directory: Path, seconds: float, figures: Figures) -> None:
    """Measure without quotas, and with equal ones."""
    plain, limited = directory / "plain", directory / "limited"
    for each in (plain, limited):
        each.mkdir()
    cluster = closed_cluster(plain, "auth")
    try:
        cluster.start()
        tokens = sign_in(cluster, plain)
        for messages, what in ((1, "single messages"), (BATCH_MESSAGES, f"batches of {BATCH_MESSAGES}")):
            await _beside_a_greedy_one(cluster, tokens, messages, what, seconds, figures)
    finally:
        cluster.close()
    quotas = limited / "quotas.toml"
    quotas.write_text(f"[default]\nrequests_per_s = {QUOTA_REQUESTS_PER_S}\n")
    cluster = closed_cluster(limited, "auth", {"quota_file": str(quotas)})
    try:
        cluster.start()
        await _within_quotas(cluster, sign_in(cluster, limited), seconds, figures)
    finally:
        cluster.close()


async def _beside_a_greedy_one(
    cluster: BenchCluster, tokens: Sequence[str], messages: int, what: str, seconds: float, figures: Figures
) -> None:
    alike = [Sender(token, CONNECTIONS, 1) for token in tokens]
    unlike = [Sender(tokens[0], GREEDY_CONNECTIONS, messages), *alike[1:]]
    kept, greedy, together = [], [], []
    for number in range(1, ROUNDS + 1):
        figures.step(f"round {number} of {ROUNDS}: ten alike, then one with {GREEDY_CONNECTIONS} connections, {what}")
        shares = await _rates(cluster, alike, seconds)
        rates = await _rates(cluster, unlike, seconds)
        share = statistics.median(shares)
        kept.append(100 * statistics.median(rates[1:]) / share)
        greedy.append(rates[0] / share)
        together.append(100 * sum(rates) / sum(shares))
    key = f"greedy_{messages}"
    figures.add(
        Figure(
            f"{key}_kept",
            f"one of ten users has {GREEDY_CONNECTIONS} connections, {what}: rate that the others keep",
            statistics.median(kept),
            "%",
            KEPT_GOAL_PERCENT,
            ">=",
        ),
        Figure(f"{key}_requests", "… its requests, in shares of a tenth", statistics.median(greedy), ""),
        Figure(
            f"{key}_together", "… requests of all ten, of those when all are alike", statistics.median(together), "%"
        ),
    )


async def _within_quotas(cluster: BenchCluster, tokens: Sequence[str], seconds: float, figures: Figures) -> None:
    figures.step(f"equal quotas of {QUOTA_REQUESTS_PER_S} requests/s")
    senders = [Sender(tokens[0], GREEDY_CONNECTIONS, 1), *(Sender(token, CONNECTIONS, 1) for token in tokens[1:])]
    rates = await _rates(cluster, senders, seconds)
    off = max(abs(rate / QUOTA_REQUESTS_PER_S - 1) for rate in rates)
    figures.add(
        Figure(
            "quota_share_off",
            f"ten users flat out, the first with {GREEDY_CONNECTIONS} connections, equal quotas: furthest from its "
            "share",
            100 * off,
            "%",
            SHARE_TOLERANCE_PERCENT,
        )
    )


def sign_in(cluster: BenchCluster, directory: Path, users: Sequence[str] = USERS) -> list[str]:
    """Create the topic and the users, and return their tokens."""
    administrator = administrator_of(directory)
    call(cluster, "PUT", f"/v1/topics/{TOPIC}", {"queues": QUEUES}, administrator)
    return [new_user(cluster, directory, user, [RULE]) for user in users]


async def _rates(cluster: BenchCluster, senders: Sequence[Sender], seconds: float) -> list[float]:
    """Return the requests per second of each sender. The first has a process of its own: its load must not slow down
    the others' clients.
    """
    return await rates_of(cluster, (senders[:1], senders[1:]), seconds / 4, seconds)


async def rates_of(
    cluster: BenchCluster, processes: Sequence[Sequence[Sender]], warm_up_s: float, seconds: float
) -> list[float]:
    """Return the requests per second of each sender after the warm-up. Those of each sequence share a process."""
    headers = {"Authorization": f"Bearer {processes[0][0].token}"}
    port = urlsplit(call(cluster, "GET", "/v1/cluster", None, headers)["leader_url"]).port
    assert port is not None
    running = [_process(port, senders, warm_up_s, seconds) for senders in processes]
    return [rate for process in running for rate in await asyncio.to_thread(_result_of, process)]


def _process(port: int, senders: Sequence[Sender], warm_up_s: float, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", __name__, str(port), str(warm_up_s), str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(senders))
    process.stdin.close()
    return process


def _result_of(process: "subprocess.Popen[str]") -> list[float]:
    assert process.stdout is not None
    answer = process.stdout.read()
    if process.wait():
        raise RuntimeError(f"the senders ended with {process.returncode}")
    rates: list[float] = json.loads(answer)
    return rates


# --- the senders' process ------------------------------------------------------------------------------------------


def _request(sender: Sender) -> bytes:
    body = json.dumps({"messages": [{"body": BODY} for _ in range(sender.messages)]})
    lines = (
        f"POST /v1/topics/{TOPIC}/messages HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {sender.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", body)).encode()


async def _send(port: int, senders: Sequence[Sender], warm_up_s: float, seconds: float) -> list[float]:
    """Send until the time is over; return the acknowledged requests per second of each sender after the warm-up."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time() + warm_up_s
    end_s = begin_s + seconds
    done = [0] * len(senders)

    async def one(number: int, request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while loop.time() < end_s:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                status = int(head[9:12])
                if status == 429:
                    await asyncio.sleep(_told_s(body))
                elif status != 200:
                    raise RuntimeError(f"{status}: {body!r}")
                elif begin_s <= loop.time() < end_s:
                    done[number] += 1
        finally:
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        for number, sender in _connections(senders):
            tasks.create_task(one(number, _request(sender)))
    return [count / seconds for count in done]


def _connections(senders: Sequence[Sender]) -> Iterator[tuple[int, Sender]]:
    for number, sender in enumerate(senders):
        for _ in range(sender.connections):
            yield number, sender


def _told_s(problem: bytes) -> float:
    """Return the seconds after which a refused request may be sent again."""
    return float(json.loads(problem)["retry_after_ms"]) / 1000


def main() -> None:
    port, warm_up_s, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    senders = [Sender(*each) for each in json.load(sys.stdin)]
    print(json.dumps(asyncio.run(_send(port, senders, warm_up_s, seconds))))


if __name__ == "__main__":
    main()
