"""Measures how long a browser takes to show the console of a cluster with many topics and groups, idle and loaded.

The browser is a real one, on the same cores. A view is shown when it has taken the place of the one before.
"""

import asyncio
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from deploy.local_nodes import LocalNode
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.e2e.console_page import browser
from tests.patience import PATIENCE_S

AT_ONCE: Final = 64
ROUNDS: Final = 7
PAINT_GOAL_MS: Final = 1_000
VIEW_GOAL_MS: Final = 300
TOPIC, GROUP, MESSAGE, TRANSACTION = "paint-5000", "paint-500", "paint-message", "paint-transaction"
VIEWS: Final[Mapping[str, str]] = {
    "overview": "/",
    "topics": "/topics",
    "topics, a later page": "/topics?from=paint-7",
    "topic": f"/topics/{TOPIC}",
    "messages": f"/topics/{TOPIC}/queues/0?offset=0",
    "groups": "/groups",
    "group": f"/groups/{GROUP}",
    "transactions": "/transactions",
    "transaction": f"/transactions/{TRANSACTION}",
    "found by key": f"/find?topic={TOPIC}&key=order-17",
    "message": f"/messages/{MESSAGE}?topic={TOPIC}",
    "message, without its topic": f"/messages/{MESSAGE}",
    "settings": "/settings",
    "audit": "/audit",
}
SHOW: Final = """
const [view, done] = arguments, main = document.getElementById("main"), begun = performance.now();
new MutationObserver((_, observer) => {
  observer.disconnect();
  requestAnimationFrame(() => done([performance.now() - begun, main.querySelector("h1")?.textContent]));
}).observe(main, { childList: true });
location.hash = view;
"""
PAINTED: Final = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


async def measure(cluster: BenchCluster, directory: Path, topics: int, groups: int, figures: Figures) -> None:
    leader = await _fill(cluster, topics, groups, figures)
    with browser(directory) as driver:
        await _measure(driver, leader, "", figures)
        figures.step("64 senders, flat out")
        stop = asyncio.Event()
        senders = asyncio.create_task(_send(cluster, stop))
        try:
            await _measure(driver, leader, " under load", figures)
        finally:
            stop.set()
            figures.add(Figure("rate", "64 senders meanwhile, of 1 KiB", await senders, "msg/s"))


async def _measure(driver: webdriver.Chrome, leader: LocalNode, when: str, figures: Figures) -> None:
    key = when.strip().replace(" ", "_") or "idle"
    paints: list[float] = []
    taken: dict[str, list[float]] = {view: [] for view in VIEWS}
    for number in range(1, ROUNDS + 1):
        figures.step(f"views{when}: round {number} of {ROUNDS}")
        paints.append(await asyncio.to_thread(_paint, driver, f"{leader.url}/console"))
        for view, address in VIEWS.items():
            if view != "overview":
                taken[view].append(await asyncio.to_thread(_show, driver, address))
        taken["overview"].append(await asyncio.to_thread(_show, driver, "/"))
    figures.add(Figure(f"paint_{key}", f"first paint{when}", statistics.median(paints), "ms", PAINT_GOAL_MS))
    for view, each in taken.items():
        what = f"{view}{when} (longest {max(each):.0f} ms)"
        figures.add(
            Figure(
                f"{view.replace(', ', '_').replace(' ', '_')}_{key}", what, statistics.median(each), "ms", VIEW_GOAL_MS
            )
        )


def _paint(driver: webdriver.Chrome, url: str) -> float:
    driver.get("about:blank")
    driver.get(url)
    return float(WebDriverWait(driver, PATIENCE_S).until(lambda _: driver.execute_script(PAINTED)))


def _show(driver: webdriver.Chrome, view: str) -> float:
    taken_ms, heading = driver.execute_async_script(SHOW, view)
    if heading in ("That did not work", "Ask the leader", "Sign in"):
        raise RuntimeError(f"{view} was not shown: {heading}")
    return float(taken_ms)


async def _send(cluster: BenchCluster, stop: asyncio.Event) -> float:
    rates = []
    while not stop.is_set():
        rates.append(await load.concurrent_sends(cluster.urls, TOPIC, 1024, 1.0))
    return statistics.median(rates)


async def _fill(cluster: BenchCluster, topics: int, groups: int, figures: Figures) -> LocalNode:
    """Make topics of 8 queues with a message in each, and groups of a member. Return the leader."""
    figures.step(f"making {topics:,} topics and {groups:,} groups")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as http:
        call = partial(cluster.call, http)

        async def topic(number: int) -> None:
            await call("PUT", f"/v1/topics/paint-{number}", {"queues": 8, "type": "any"})
            messages = [{"body": "x", "queue": queue, "keys": ["order-17"]} for queue in range(8)]
            await call("POST", f"/v1/topics/paint-{number}/messages", {"messages": messages})

        async def group(number: int) -> None:
            joining = {"topics": [f"paint-{10 * number}"], "member_id": "m", "session_timeout_ms": 1_800_000}
            await call("POST", f"/v1/groups/paint-{number}/members", joining)

        for work, count in ((topic, topics), (group, groups)):
            numbers = iter(range(count))

            async def some(work: Any = work, numbers: Any = numbers) -> None:
                for number in numbers:
                    await work(number)

            await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        await call("POST", f"/v1/topics/{TOPIC}/messages", {"messages": [{"body": "x", "message_id": MESSAGE}]})
        half = {"transaction_id": TRANSACTION, "producer_group": "p", "messages": [{"topic": TOPIC, "body": "1"}]}
        await call("POST", "/v1/transactions", half)
        status = await call("GET", "/v1/cluster")
    return next(node for node in cluster.nodes if node.node_id == status["leader_id"])
