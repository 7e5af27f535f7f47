"""The demo's comparison finds each kind of damage that is planted in books that were in order."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from examples.shop import demo
from examples.shop.audit import (
    AccountBooks,
    BrokerBooks,
    Findings,
    PointsBooks,
    compare,
    read_accounts,
    read_points,
)

ACCOUNTS = AccountBooks(
    taken={"rich": 200, "poor": 0}, states={"order-1": "paid", "order-2": "paid", "order-3": "refused"}
)
POINTS = PointsBooks(points={"rich": 200}, ledger={"order-1": 1, "order-2": 1})
LOG = Counter(["order-1", "order-2"])
BROKER = BrokerBooks([LOG, LOG, LOG], Counter(committed=2, rolled_back=1), 1, ("a1", "a1", "a1"))


def found(findings: Findings) -> set[str]:
    return {fault.split(" is ")[0] for fault in findings.faults()}


def test_books_in_order_have_no_faults() -> None:
    findings = compare(ACCOUNTS, POINTS, BROKER)
    assert findings.faults() == []
    assert (findings.orders, findings.paid, findings.refused) == (3, 2, 1)
    assert (findings.debited, findings.points, findings.log_messages) == (200, 200, 2)


def test_points_that_were_never_added_are_lost() -> None:
    points = PointsBooks({"rich": 100}, {"order-1": 1})
    findings = compare(ACCOUNTS, points, BROKER)
    assert findings.lost == 1
    assert found(findings) == {"lost", "mismatch"}


def test_a_message_missing_on_one_node_is_lost() -> None:
    broker = replace(BROKER, logs=[LOG, Counter(["order-1"]), LOG])
    assert found(compare(ACCOUNTS, POINTS, broker)) == {"lost"}


def test_a_refused_order_that_arrived_is_a_phantom() -> None:
    points = PointsBooks({"rich": 200, "poor": 100}, {"order-1": 1, "order-2": 1, "order-3": 1})
    assert found(compare(ACCOUNTS, points, BROKER)) == {"phantom", "mismatch"}


def test_a_refused_order_that_one_node_serves_is_a_phantom() -> None:
    broker = replace(BROKER, logs=[LOG, LOG, LOG + Counter(["order-3"])])
    assert found(compare(ACCOUNTS, POINTS, broker)) == {"phantom"}


def test_points_added_twice_are_counted() -> None:
    points = PointsBooks({"rich": 300}, {"order-1": 2, "order-2": 1})
    findings = compare(ACCOUNTS, points, BROKER)
    assert findings.duplicates_applied == 1
    assert found(findings) == {"duplicates_applied", "mismatch"}


def test_a_message_that_stands_in_the_log_twice_is_found() -> None:
    twice = LOG + Counter(["order-2"])
    assert found(compare(ACCOUNTS, POINTS, replace(BROKER, logs=[twice] * 3))) == {"log_duplicates"}


def test_money_taken_without_points_for_it_is_a_mismatch() -> None:
    accounts = replace(ACCOUNTS, taken={"rich": 300, "poor": 0})
    assert found(compare(accounts, POINTS, BROKER)) == {"mismatch"}


def test_an_order_left_undecided_is_a_mismatch() -> None:
    accounts = replace(ACCOUNTS, states={**ACCOUNTS.states, "order-4": "new"})
    assert found(compare(accounts, POINTS, BROKER)) == {"mismatch"}


def test_a_transaction_left_undecided_is_found() -> None:
    broker = replace(BROKER, transactions=Counter(committed=2, prepared=1))
    assert found(compare(ACCOUNTS, POINTS, broker)) == {"undecided"}


def test_nodes_that_differ_are_found() -> None:
    broker = replace(BROKER, state_hashes=("a1", "a1", "b2"))
    assert compare(ACCOUNTS, POINTS, broker).faults() == ["the nodes' state hashes differ: a1, a1, b2"]


def test_a_run_without_refusals_is_not_taken_for_a_proof() -> None:
    accounts = replace(ACCOUNTS, states={"order-1": "paid", "order-2": "paid"})
    assert compare(accounts, POINTS, BROKER).faults() == ["the run paid or refused no order, so it shows nothing"]


@pytest.fixture
def databases(tmp_path: Path) -> tuple[Path, Path]:
    """Return both services' databases after one paid order, one refused and one applied twice."""
    for name, rows in (
        (
            "account",
            "INSERT INTO accounts VALUES ('rich', 900); INSERT INTO orders VALUES ('order-1', 'rich', 100, 'paid'), "
            "('order-2', 'rich', 100, 'refused');",
        ),
        (
            "points",
            "INSERT INTO points VALUES ('rich', 200); INSERT INTO ledger (order_id, account, points) "
            "VALUES ('order-1', 'rich', 100), ('order-1', 'rich', 100);",
        ),
    ):
        schema = Path(demo.__file__).with_name(f"{name}.sql").read_text()
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            database.executescript(schema + rows)
    return tmp_path / "account.db", tmp_path / "points.db"


def test_the_books_are_read_from_the_databases(databases: tuple[Path, Path]) -> None:
    accounts, points = read_accounts(databases[0], {"rich": 1000}), read_points(databases[1])
    assert accounts == AccountBooks({"rich": 100}, {"order-1": "paid", "order-2": "refused"})
    assert points == PointsBooks({"rich": 200}, {"order-1": 2})
