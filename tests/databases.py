"""Databases for the SQL tests: SQLite files, and a throw-away PostgreSQL server."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from keelmq import inbox, outbox
from tests.requirements import POSTGRESQL, database_user, path_of


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """Return the SQLAlchemy URL of a server on a unix socket in a directory of its own, which is removed afterwards."""
    POSTGRESQL.require()
    initdb, pg_ctl = path_of("initdb"), path_of("pg_ctl")
    user = database_user()
    # Not pytest's own directory: the other user could not enter it, and a socket path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="keelmq-pg-"))
    prefix = []
    if user is not None:
        shutil.chown(directory, user)
        prefix = ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--"]
    data = directory / "data"
    environment = {**os.environ, "LC_ALL": "C", "HOME": str(directory)}

    def call(*command: str) -> None:
        done = subprocess.run(
            [*prefix, *command], env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")

    log = directory / "log"
    try:
        call(initdb, "-D", str(data), "-U", "test", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses='' -c unix_socket_directories='{directory}' -c fsync=off -c max_connections=40"
        # Output of its own file: pg_ctl would hand our pipe to the server, and reading it would never end.
        call(pg_ctl, "-D", str(data), "-o", options, "-l", str(log), "-w", "-t", "60", "start")
        try:
            yield f"postgresql+psycopg://test@/postgres?host={directory}"
        finally:
            call(pg_ctl, "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database with the outbox and inbox tables and a table `account`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    url: str = request.getfixturevalue("postgresql_url")
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    name = f"test_{os.urandom(6).hex()}"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    server.dispose()
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Iterator[Engine]:
    """Return the engine of a SQLite file with the inbox table, for tests that do not depend on the database. Nothing of
    it stays open.
    """
    made = create_engine(f"sqlite:///{tmp_path / 'sqlite.db'}")
    inbox.create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    outbox.create_tables(made)
    inbox.create_tables(made)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO account VALUES (1, 1000)"))
    yield made
    made.dispose()


def balance(engine: Engine) -> int:
    """Return the balance of account 1."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT balance FROM account WHERE id = 1")).scalar_one())
