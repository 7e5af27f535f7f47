"""`make demo`: the shop on three broker nodes, while leader, producer and consumer are killed at their worst moments.

A supervisor starts every process, places orders, kills, restarts, waits until everything has settled, and then compares
the two databases with the log (audit.py). The exit status is 0 only if nothing was lost, invented or applied twice.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from deploy.local_nodes import LocalNode, NodeError, nodes_on_free_ports, wait_ready
from deploy.reporting.report import Report
from examples.shop.audit import Findings, cluster_status, compare, printed, read_accounts, read_broker, read_points
from examples.shop.display import NodeView, Progress, View
from examples.shop.service import Service

HERE: Final = Path(__file__).parent
TOPIC: Final = "shop-orders"
QUEUES: Final = 4
YUAN: Final = 100
ACCOUNTS: Final = 40
RICH_YUAN: Final = 1_000_000
POOR_YUAN: Final = 5 * YUAN  # every eighth account: its sixth order is refused
ORDER_INTERVAL_S: Final = 0.04
OBSERVE_INTERVAL_S: Final = 0.2
LEADER_DOWN_S: Final = 2.0
SERVICE_DOWN_S: Final = 1.0
SETTLE_TIMEOUT_S: Final = 90.0
FAULTS_TIMEOUT_S: Final = 90.0
# Check-backs start sooner than by default (6 s, 30 s), so that a run of a minute shows them.
NODE_OPTIONS: Final = {"check_immunity_ms": "3000", "check_interval_ms": "3000", "cluster_id": "shop"}


class DemoError(Exception):
    """Raised when the demo could not be carried out; the message says why."""


class Shop:
    """Owns the processes of one run, and records the faults."""

    def __init__(self, directory: Path, orders: int, report: Report) -> None:
        self.directory = directory
        self.report = report
        self.progress = Progress(orders)
        self.nodes = nodes_on_free_ports(directory, 3, NODE_OPTIONS)
        self.account_db = directory / "account.db"
        self.points_db = directory / "points.db"
        broker = ("--nodes", ",".join(node.url for node in self.nodes), "--topic", TOPIC)
        self.account = Service(
            "examples.shop.account_service", (*broker, "--database", str(self.account_db)), directory / "account.log"
        )
        self.points = Service(
            "examples.shop.points_service", (*broker, "--database", str(self.points_db)), directory / "points.log"
        )
        self.balances = {f"account-{n:02d}": POOR_YUAN if n % 8 == 0 else RICH_YUAN for n in range(ACCOUNTS)}
        self.orders = orders
        self.prepared: int | None = None
        self.observed = asyncio.Condition()
        self.leader_kills = 0
        self.producer_kills = 0

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> Findings:
        await self.open_shop()
        async with asyncio.TaskGroup() as whole:
            observer = whole.create_task(self.observe())
            seconds = self.orders * ORDER_INTERVAL_S + FAULTS_TIMEOUT_S
            try:
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.place_orders())
                    tasks.create_task(self.kill_leaders())
                    tasks.create_task(self.kill_account_service())
                    tasks.create_task(self.kill_points_service())
            except TimeoutError:
                raise DemoError(f"not every fault came about within {seconds:.0f} s") from None
            await self.settle()
            observer.cancel()
        for name, service in (("account", self.account), ("points", self.points)):
            status = await asyncio.to_thread(service.stop)
            if status != 0:
                raise DemoError(f"the {name} service ended with status {status}; its log:\n{service.log_tail()}")
        self.report.step("services stopped; comparing the databases with the log of every node")
        accounts, points = read_accounts(self.account_db, self.balances), read_points(self.points_db)
        return compare(accounts, points, await read_broker([node.url for node in self.nodes], TOPIC, SETTLE_TIMEOUT_S))

    async def open_shop(self) -> None:
        self.report.step("starting three nodes")
        for node in self.nodes:
            node.start()
        await asyncio.to_thread(wait_ready, self.nodes)
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            topic = {"queues": QUEUES, "type": "transaction"}
            async with http.put(f"{self.nodes[0].url}/v1/topics/{TOPIC}", json=topic):
                pass
        self.report.step(f"cluster ready, topic {TOPIC} created; starting the services")
        with contextlib.closing(sqlite3.connect(self.account_db)) as database, database:
            database.executescript((HERE / "account.sql").read_text())
            database.executemany("INSERT INTO accounts (id, balance) VALUES (?, ?)", self.balances.items())
        self.account.start(crash_at=f"debit-committed:{self.orders // 4}")
        self.points.start(crash_at=f"message:{self.orders * 2 // 5}")
        self.report.step("placing orders, with faults")

    async def place_orders(self) -> None:
        """Play the shop's front end: insert orders into the account database at a steady pace."""
        rng = random.Random(100)
        accounts = list(self.balances)
        with contextlib.closing(sqlite3.connect(self.account_db, timeout=30, isolation_level=None)) as database:
            for number in range(self.orders):
                order = (f"order-{number:05d}", rng.choice(accounts), YUAN)
                database.execute("INSERT INTO orders (id, account, yuan) VALUES (?, ?, ?)", order)
                self.progress.placed = number + 1
                await asyncio.sleep(ORDER_INTERVAL_S)

    async def settle(self) -> None:
        self.report.step("all orders placed; waiting until every transaction is decided and every point added")
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self.until(lambda: self.decided() == self.orders)
                await self.until(lambda: self.prepared == 0 and self.progress.rewarded == self.progress.paid)
        except TimeoutError:
            # The run continues: the audit reports missing effects.
            self.report.event(f"not settled within {SETTLE_TIMEOUT_S:.0f} s", "fault")

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    async def kill_leaders(self) -> None:
        for share in (0.12, 0.6):
            await self.until(lambda share=share: self.decided() >= self.orders * share)  # type: ignore[misc]
            await self.until(lambda: self.leader() is not None)
            victim = self.leader()
            assert victim is not None
            await asyncio.to_thread(victim.kill)
            self.leader_kills += 1
            self.report.event(f"kill -9: node {victim.node_id}, the leader", "fault")
            await self.until(lambda victim=victim: self.leader() not in (None, victim))  # type: ignore[misc]
            successor = self.leader()
            assert successor is not None
            self.report.event(f"node {successor.node_id} was elected, orders go on", "recovery")
            await asyncio.sleep(LEADER_DOWN_S)
            victim.start()
            await asyncio.to_thread(wait_ready, [victim])
            self.report.event(f"node {victim.node_id} is back and has caught up", "recovery")

    async def kill_account_service(self) -> None:
        for crash_at in (f"debit-committed:{self.orders // 4}", ""):
            await self.died_on_purpose(self.account, "account")
            self.producer_kills += 1
            self.report.event("kill -9: account service, after its COMMIT and before END_TRANSACTION", "fault")
            await asyncio.sleep(SERVICE_DOWN_S)
            self.account.start(crash_at)
            self.report.event("account service restarted; the broker will ask it about the half message", "recovery")

    async def kill_points_service(self) -> None:
        await self.died_on_purpose(self.points, "points")
        self.report.event("kill -9: points service, in the middle of a batch", "fault")
        await asyncio.sleep(SERVICE_DOWN_S)
        self.points.start()
        self.report.event("points service restarted; unconfirmed messages come again", "recovery")

    async def died_on_purpose(self, service: Service, name: str) -> None:
        await self.until(lambda: service.ended() is not None)
        if service.ended() != -signal.SIGKILL:
            raise DemoError(f"the {name} service ended with status {service.ended()}; its log:\n{service.log_tail()}")

    # -- what is seen -------------------------------------------------------------------------------------------------

    async def observe(self) -> None:
        timeout = aiohttp.ClientTimeout(total=1)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as http:
            while True:
                self.count()
                views = [self.view(http, node) for node in self.nodes]
                self.progress.nodes = list(await asyncio.gather(*views))
                self.progress.account_service = "running" if self.account.running() else "down"
                self.progress.points_service = "running" if self.points.running() else "down"
                if self.decided() == self.orders:
                    self.prepared = await self.count_prepared(http)
                async with self.observed:
                    self.observed.notify_all()
                await asyncio.sleep(OBSERVE_INTERVAL_S)

    async def view(self, http: aiohttp.ClientSession, node: LocalNode) -> NodeView:
        try:
            status: dict[str, Any] = await cluster_status(http, node.url)
        except (aiohttp.ClientError, TimeoutError):
            return NodeView(node.node_id, "down" if node.running_pid() is None else "starting")
        return NodeView(node.node_id, status["role"], status["term"], status["applied_index"])

    def count(self) -> None:
        with contextlib.closing(sqlite3.connect(self.account_db)) as database:
            states = dict(database.execute("SELECT state, count(*) FROM orders GROUP BY state"))
        self.progress.paid, self.progress.refused = states.get("paid", 0), states.get("refused", 0)
        if self.points_db.exists():
            with (
                contextlib.closing(sqlite3.connect(self.points_db)) as database,
                contextlib.suppress(
                    sqlite3.OperationalError  # the service has not made its tables yet
                ),
            ):
                (self.progress.rewarded,) = database.execute("SELECT count(*) FROM ledger").fetchone()

    def decided(self) -> int:
        return self.progress.paid + self.progress.refused

    def leader(self) -> LocalNode | None:
        """Return the node that reports itself as leader in the newest term."""
        leaders = [view for view in self.progress.nodes if view.state == "leader"]
        newest = max(leaders, key=lambda view: view.term, default=None)
        return self.nodes[newest.node_id - 1] if newest else None

    async def count_prepared(self, http: aiohttp.ClientSession) -> int | None:
        """Return the number of undecided half transactions (at most one page); None when the node cannot answer now."""
        try:
            async with http.get(f"{self.nodes[0].url}/v1/transactions", params={"state": "prepared"}) as response:
                return len((await response.json())["transactions"])
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return at the first observation at which the condition holds."""
        async with self.observed:
            await self.observed.wait_for(condition)

    def close(self) -> None:
        """End every process of the run, whatever its state."""
        for service in (self.account, self.points):
            service.kill()
        for node in self.nodes:
            node.kill()


async def supervise(directory: Path, orders: int) -> tuple[Findings, Shop]:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    shop = Shop(directory, orders, Report())
    view = View(shop.progress)
    with shop.report.live(view.state, share=view.share, panel=view.panel):
        try:
            return await shop.run(), shop
        finally:
            shop.close()


def conclude(findings: Findings, shop: Shop) -> int:
    rows = [*printed(findings)]
    rows.append(("leaders killed", str(shop.leader_kills)))
    rows.append(("producer killed after its COMMIT", str(shop.producer_kills)))
    shop.report.table("account database, points database and log", (), rows)
    faults = findings.faults()
    if not findings.checks_answered:
        faults.append("no transaction was decided by check-back, so the run shows nothing about it")
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    counted = ("orders", "debited", "points", "mismatch", "lost", "phantom")
    result = {name: getattr(findings, name) for name in counted}
    result |= {"leader_kills": shop.leader_kills, "producer_kills": shop.producer_kills}
    result |= {"checks_answered": findings.checks_answered, "duplicates_applied": findings.duplicates_applied}
    if faults:
        print(f"demo: databases, logs and node data are in {shop.directory}", file=sys.stderr, flush=True)
    shop.report.result(result)
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.shop.demo", description="The shop under fire.")
    parser.add_argument("--orders", type=int, default=1000, help="orders to place, at 25 a second (default 1000)")
    parser.add_argument("--keep", action="store_true", help="keep databases, logs and node data, also on success")
    settings = parser.parse_args()
    if settings.orders < 200:
        parser.error("--orders: at least 200, so that every fault has its place")
    directory = Path(tempfile.mkdtemp(prefix="keelmq-demo-"))
    status = 1
    try:
        findings, shop = asyncio.run(supervise(directory, settings.orders))
        status = conclude(findings, shop)
    except* (KeyboardInterrupt, asyncio.CancelledError):
        print("demo: interrupted; every process was ended", file=sys.stderr)
        status = 130
    except* (DemoError, NodeError) as group:
        print(f"demo: {group.exceptions[0]}", file=sys.stderr)
        print(f"demo: databases, logs and node data are in {directory}", file=sys.stderr)
    if status in (0, 130) and not settings.keep:
        shutil.rmtree(directory)
    return status


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
