"""The tables of outbox and inbox are made once, however many instances of a service start at the same moment."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, inspect, select, text

from keelmq import inbox, outbox

INSTANCES = 8
TABLES = ["keelmq_inbox", "keelmq_outbox"]


def test_instances_that_start_at_once_all_find_the_tables(database_url: str) -> None:
    """Seed 411491 of chaos: looking for a table and making it were two steps, and an instance ended with 'exists'."""
    barrier = threading.Barrier(INSTANCES)

    def start(_: int) -> None:
        engine = create_engine(database_url)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))  # connected before the others go on
        barrier.wait()
        outbox.create_tables(engine)
        inbox.create_tables(engine)
        with engine.connect() as connection:
            assert connection.execute(select(inbox.table)).all() == []
        engine.dispose()

    with ThreadPoolExecutor(INSTANCES) as instances:
        list(instances.map(start, range(INSTANCES)))
    engine = create_engine(database_url)
    assert sorted(inspect(engine).get_table_names()) == TABLES
    assert [each["name"] for each in inspect(engine).get_indexes("keelmq_inbox")] == ["keelmq_inbox_processed_at_ms"]
    engine.dispose()


@pytest.mark.parametrize("table", [outbox, inbox])
def test_it_belongs_to_the_callers_database_transaction(database_url: str, table: object) -> None:
    """A service that makes its tables within a transaction of its own removes them when it rolls back."""
    engine = create_engine(database_url)
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("CREATE TABLE own (id INTEGER)"))  # begins the transaction on SQLite, too
        table.create_tables(connection)  # type: ignore[attr-defined]
        transaction.rollback()
    if engine.dialect.name == "postgresql":  # sqlite3 commits before it changes the schema
        assert inspect(engine).get_table_names() == []
    engine.dispose()
