"""Runs the shipped examples as programs against real nodes, kills them, and compares them with the log."""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from deploy.broker_process import die_with_parent
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ORDERS = 300


class Program:
    """An example that runs; its output is in a file."""

    def __init__(self, directory: Path, module: str, *arguments: str) -> None:
        self.output = directory / f"{module}.out"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"examples.{module}", *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def running(directory: Path, module: str, *arguments: str) -> Iterator[Program]:
    program = Program(directory, module, *arguments)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.end(signal.SIGKILL)


def log_of(cluster: ClusterProcess, topic: str) -> list[dict[str, Any]]:
    """Return the bodies of everything that consumers of the topic can see."""
    node, found = cluster.wait_leader(), []
    for queue in range(4):
        offset = 0
        while True:
            reply = node.request("GET", f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=500")
            messages = reply.json()["messages"]
            if not messages:
                break
            found += [json.loads(message["body"]) for message in messages]
            offset = messages[-1]["offset"] + 1
    return found


def rows(database: str, statement: str) -> list[tuple[Any, ...]]:
    engine = create_engine(database)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]
    except DBAPIError:  # SQLite's other writer, or the table is not there yet
        return []
    finally:
        engine.dispose()


def test_sqlalchemy_orders_and_shipments_agree_though_everything_is_killed(tmp_path: Path, database_url: str) -> None:
    """The placing process, the leader and the shipping process are killed on the way; each order is shipped once."""
    with ClusterProcess(tmp_path / "cluster") as cluster:
        nodes = cluster.servers
        shipped_to = database_url.replace("test.db", "shipments.db")
        place = ["place", "--nodes", nodes, "--database", database_url, "--orders", str(ORDERS)]
        ship = ["ship", "--nodes", nodes, "--database", shipped_to]
        placed = 'SELECT id, article, quantity FROM "order"'

        with running(tmp_path, "sqlalchemy_orm", *place) as first:
            wait_for(lambda: len(rows(database_url, placed)) >= 20, "orders")
            first.end(signal.SIGKILL)
        with running(tmp_path, "sqlalchemy_orm", *ship) as shipping:
            wait_for(lambda: rows(shipped_to, "SELECT id FROM shipment"), "shipments")
            shipping.end(signal.SIGKILL)
        with running(tmp_path, "sqlalchemy_orm", *place) as second:
            wait_for(lambda: len(rows(database_url, placed)) >= 40, "more orders")
            leader = cluster.wait_leader()
            leader.kill()
            assert second.process.wait(PATIENCE_S) == 0, second.text()
        leader.start()
        cluster.wait_ready()

        orders = rows(database_url, placed)
        sold = collections.Counter[str]()
        for _, article, quantity in orders:
            sold[article] += quantity
        assert dict(sold) == dict.fromkeys(("book", "pen", "lamp"), 50), "everything is sold out, nothing twice"
        wait_for(lambda: len(log_of(cluster, "orders")) >= len(orders), "the messages")
        published = log_of(cluster, "orders")
        assert sorted(each["id"] for each in published) == sorted(order[0] for order in orders)
        with running(tmp_path, "sqlalchemy_orm", *ship):
            count = "SELECT count(*) FROM shipment"
            wait_for(lambda: rows(shipped_to, count) >= [(len(orders),)], "all shipments")
        shipments = rows(shipped_to, "SELECT order_id, quantity FROM shipment")
        assert sorted(shipments) == sorted((order[0], order[2]) for order in orders)


def put_order(url: str, number: int, order: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{url}/orders/{number}", data=json.dumps(order).encode(), method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        body = error.read()
        return error.code, json.loads(body) if body.startswith(b"{") else {}
    except OSError:
        return 0, {}


def test_a_web_service_publishes_what_it_stores_and_nothing_else(tmp_path: Path) -> None:
    """Orders beyond their account's credit are refused and not published, and a repeated request changes nothing. The
    service and the leader are killed in between.
    """
    database = tmp_path / "web.db"

    def service() -> contextlib.AbstractContextManager[Program]:
        arguments = ["--nodes", nodes, "--database", f"sqlite+aiosqlite:///{database}", "--port", "0"]
        return running(tmp_path, "aiohttp_service", *arguments)

    def url_of(program: Program) -> str:
        def printed() -> str | None:
            assert program.process.poll() is None, program.text()
            lines = [line for line in program.text().splitlines() if line.startswith("http://127.0.0.1:")]
            return lines[-1] if len(lines) > started else None

        return wait_for(printed, "the service")

    def settled(url: str, number: int, order: Any) -> int:
        """Repeat the request, as a client does, until it is decided; return the status then."""
        return wait_for(lambda: (s := put_order(url, number, order)[0]) in (201, 409) and s, f"order {number}")

    def order(number: int) -> dict[str, Any]:
        return {"account": f"account-{number % 3}", "yuan": 60}

    with ClusterProcess(tmp_path / "cluster") as cluster:
        nodes = cluster.servers
        started = 0
        with service() as first:
            url = url_of(first)
            answers = {number: settled(url, number, order(number)) for number in range(20)}
            assert put_order(url, 90, {"account": "ann"})[0] == 400
            assert put_order(url, 91, {"account": "ann", "yuan": -1})[0] == 400
            assert settled(url, 92, {"account": "ann", "yuan": 1_001}) == 409
            assert put_order(url, 3, {"account": "somebody else", "yuan": 1})[0] == 409
            first.end(signal.SIGKILL)
        started = 1
        with service() as second:
            url = url_of(second)
            answers |= {number: settled(url, number, order(number)) for number in range(30)}
            leader = cluster.wait_leader()
            leader.kill()
            answers |= {number: settled(url, number, order(number)) for number in range(30, 60)}
            assert settled(url, 92, {"account": "ann", "yuan": 1_001}) == 409, "refused is refused"
            with urllib.request.urlopen(f"{url}/orders", timeout=PATIENCE_S) as listed:
                stored = json.loads(listed.read())
            second.end(signal.SIGTERM)
        leader.start()
        cluster.wait_ready()
        accepted = {str(number) for number, status in answers.items() if status == 201}
        assert {each["id"] for each in stored} == accepted
        spent = collections.Counter[str]()
        for each in stored:
            spent[each["account"]] += each["yuan"]
        assert dict(spent) == {f"account-{n}": 960 for n in range(3)}, "each account has spent what it may"
        wait_for(lambda: len(log_of(cluster, "web-orders")) >= len(stored), "the messages")
        published = log_of(cluster, "web-orders")
        assert sorted(published, key=lambda each: each["id"]) == sorted(stored, key=lambda each: each["id"])
