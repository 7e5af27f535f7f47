"""Final comparison of the demo: the two databases and the log itself.

It uses nothing that the services said while they ran. The databases are read after both services ended, and the topic
is read back message by message from every node.
"""

import asyncio
import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

PAGE_MESSAGES: Final = 1000
PAGE_TRANSACTIONS: Final = 500
HASH_POLL_S: Final = 0.1
YUAN_PER_POINT: Final = 1  # 100 yuan buy 100 points


@dataclass(frozen=True)
class Findings:
    """Results of the comparison. `faults()` is empty when the shop and the broker kept their promises."""

    orders: int
    paid: int
    refused: int
    debited: int  # yuan taken from accounts
    points: int  # points added
    log_messages: int  # messages in the topic, as every node serves them
    mismatch: int  # accounts whose points differ from the yuan taken, and orders left undecided
    lost: int  # paid orders without points, or without a message in the log of some node
    phantom: int  # points or messages for orders that were not paid
    duplicates_applied: int  # times points were added again for an order
    log_duplicates: int  # further copies of an order's message in the topic
    undecided: int  # transactions still prepared
    committed: int
    rolled_back: int
    checks_answered: int
    state_hashes: tuple[str, ...]  # one per node, at the same index

    def faults(self) -> list[str]:
        found = [
            f"{name} is {value}"
            for name, value in asdict(self).items()
            if name in ("mismatch", "lost", "phantom", "duplicates_applied", "log_duplicates", "undecided") and value
        ]
        if len(set(self.state_hashes)) != 1:
            found.append(f"the nodes' state hashes differ: {', '.join(self.state_hashes)}")
        if not self.paid or not self.refused:
            found.append("the run paid or refused no order, so it shows nothing")
        return found


@dataclass(frozen=True)
class AccountBooks:
    taken: Mapping[str, int]  # account -> yuan
    states: Mapping[str, str]  # order -> new, paid or refused


@dataclass(frozen=True)
class PointsBooks:
    points: Mapping[str, int]  # account -> points
    ledger: Mapping[str, int]  # order -> number of times points were added


def read_accounts(database: Path, opening_balance: Mapping[str, int]) -> AccountBooks:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        balances: dict[str, int] = dict(connection.execute("SELECT id, balance FROM accounts"))
        states: dict[str, str] = dict(connection.execute("SELECT id, state FROM orders"))
    return AccountBooks({account: opening_balance[account] - balance for account, balance in balances.items()}, states)


def read_points(database: Path) -> PointsBooks:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        points: dict[str, int] = dict(connection.execute("SELECT account, points FROM points"))
        ledger = Counter(order for (order,) in connection.execute("SELECT order_id FROM ledger"))
    return PointsBooks(points, ledger)


@dataclass(frozen=True)
class BrokerBooks:
    logs: Sequence[Counter[str]]  # per node: order -> number of its messages in the topic
    transactions: Counter[str]  # state -> number of transactions
    checks_answered: int
    state_hashes: tuple[str, ...]


async def read_broker(urls: Sequence[str], topic: str, timeout_s: float) -> BrokerBooks:
    """Read everything back from the nodes, all of which must be running, with the services stopped."""
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        hashes = await equal_index_hashes(http, urls, timeout_s)
        logs = [await orders_in_topic(http, url, topic) for url in urls]
        transactions = await all_transactions(http, urls[0])
        answers = [await answered_checks(http, urls[0], each) for each in transactions if each["check_times"]]
    return BrokerBooks(logs, Counter(str(each["state"]) for each in transactions), sum(answers), hashes)


def compare(accounts: AccountBooks, points: PointsBooks, broker: BrokerBooks) -> Findings:
    paid = {order for order, state in accounts.states.items() if state == "paid"}
    states = Counter(accounts.states.values())
    all_accounts = set(accounts.taken) | set(points.points)
    unequal = [a for a in all_accounts if accounts.taken.get(a, 0) != points.points.get(a, 0) * YUAN_PER_POINT]
    return Findings(
        orders=len(accounts.states),
        paid=states["paid"],
        refused=states["refused"],
        debited=sum(accounts.taken.values()),
        points=sum(points.points.values()),
        log_messages=max(log.total() for log in broker.logs),
        mismatch=len(unequal) + states["new"],
        lost=sum(any(order not in place for place in (points.ledger, *broker.logs)) for order in paid),
        phantom=len(set(points.ledger).union(*broker.logs) - paid),
        duplicates_applied=sum(times - 1 for times in points.ledger.values()),
        log_duplicates=max(log.total() - len(log) for log in broker.logs),
        undecided=broker.transactions["prepared"],
        committed=broker.transactions["committed"],
        rolled_back=broker.transactions["rolled_back"],
        checks_answered=broker.checks_answered,
        state_hashes=broker.state_hashes,
    )


async def orders_in_topic(http: aiohttp.ClientSession, url: str, topic: str) -> Counter[str]:
    """Count how often each order is in the topic, as the node at `url` serves it."""
    async with http.get(f"{url}/v1/topics/{topic}") as response:
        queues: int = (await response.json())["queues"]
    found: Counter[str] = Counter()
    for queue in range(queues):
        offset = 0
        while True:
            query = {"offset": str(offset), "max_messages": str(PAGE_MESSAGES)}
            async with http.get(f"{url}/v1/topics/{topic}/queues/{queue}/messages", params=query) as response:
                page = await response.json()
            found.update(json.loads(message["body"])["order_id"] for message in page["messages"])
            if not page["messages"]:
                break
            offset = page["next_offset"]
    return found


async def all_transactions(http: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query = {"limit": str(PAGE_TRANSACTIONS)}
    while True:
        async with http.get(f"{url}/v1/transactions", params=query) as response:
            page = await response.json()
        found += page["transactions"]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


async def answered_checks(http: aiohttp.ClientSession, url: str, transaction: Mapping[str, Any]) -> int:
    """Return how many checks decided this transaction (0 or 1), by its replicated timeline."""
    async with http.get(f"{url}/v1/transactions/{transaction['transaction_id']}") as response:
        timeline = (await response.json())["timeline"]
    return sum(event["event"] in ("committed", "rolled_back") and event["source"] == "check" for event in timeline)


async def equal_index_hashes(http: aiohttp.ClientSession, urls: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Return the nodes' state hashes once all have applied the same index. Raises TimeoutError if they never do."""
    async with asyncio.timeout(timeout_s):
        while True:
            statuses = [await cluster_status(http, url) for url in urls]
            if len({status["hash_index"] for status in statuses}) == 1:
                return tuple(str(status["state_hash"]) for status in statuses)
            await asyncio.sleep(HASH_POLL_S)


async def cluster_status(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(f"{url}/v1/cluster") as response:
        status: dict[str, Any] = await response.json()
    return status


def printed(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield the comparison, one name and value at a time."""
    yield "orders placed", f"{findings.orders} ({findings.paid} paid, {findings.refused} refused)"
    yield "yuan taken from accounts", f"{findings.debited:,}"
    yield "points added", f"{findings.points:,}"
    yield "messages in the log of each node", f"{findings.log_messages:,}"
    yield "transactions", f"{findings.committed} committed, {findings.rolled_back} rolled back"
    yield "decided by check-back", str(findings.checks_answered)
    yield "accounts that do not match", str(findings.mismatch)
    yield "paid orders lost", str(findings.lost)
    yield "refused orders that arrived", str(findings.phantom)
    yield "points added twice", str(findings.duplicates_applied)
    yield "state of the nodes", "identical" if len(set(findings.state_hashes)) == 1 else "DIFFERENT"
