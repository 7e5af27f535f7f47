"""Access to tables in an object store, and the sentences of the command when something is wrong."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from keelmq.cli.operations.object_store import ObjectStore
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.tables import layout
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.object_store import ObjectFolder
from keelmq_spark.tables.storage import storage_of
from keelmq_spark.tables.tables import Tables
from tests.object_store import StoreProcess
from tests.unit.client.test_cli_extra import run as run_without
from tests.unit.spark.history import shop
from tests.unit.spark.killed_store_writer import content
from tests.unit.spark.stored import Expected, cli, write

FALSE: Final = "not-to-be-printed"


def test_a_store_that_replaces_what_is_there_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = ObjectStore.call

    def unconditional(store: ObjectStore, operation: str, *arguments: Any, **named: Any) -> Any:
        named.pop("IfNoneMatch", None)
        return call(store, operation, *arguments, **named)

    with monkeypatch.context() as changed:
        changed.setattr(ObjectStore, "call", unconditional)
        done = cli("run", "--once", "--tables", place)
        assert (done.exit_code, "ignores If-None-Match" in done.stderr) == (1, True), done.output
    with storage_of(place).lock(), storage_of(place).lock():  # nothing to hold: the loser fails at its first commit
        pass


def test_credentials_that_were_renewed_are_used_for_what_is_open(
    server: StoreProcess, place: str, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "COMPACT_EVERY", 3)
    log = shop()
    sinks = []
    for user in ("first", "second"):
        for name, value in server.variables_of(user, "s3:*").items():
            monkeypatch.setenv(name, value)
        sinks.append(LineageSink(Tables(place)))
    job, renewed = (vars(sink.tables.storage) for sink in sinks)
    sinks[0].write(log.between(1, 8), 1, 8)
    server.revoke("first")
    with pytest.raises(TablesError, match="does not accept the credentials"):
        sinks[0].write(log.between(8, 14), 8, 14)
    job["_store"] = renewed["_store"]
    for begin, end in itertools.pairwise((8, 14, 18, 22, log.end)):
        sinks[0].write(log.between(begin, end), begin, end)
    assert content(place) == expected(log.end)


def test_every_command_reads_the_tables(place: str, server: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The permissions are those of a reader."""
    log = shop()
    write(place, log, 14, log.end)
    for name, value in server.variables_of("reader", "s3:ListBucket", "s3:GetObject").items():
        monkeypatch.setenv(name, value)
    for command, expected in {
        ("show", "orders/a-0"): "s-0",
        ("ancestors", "shipments/s-0"): "message:orders/a-0",
        ("descendants", "orders/a-0"): "message:shipments/s-0",
        ("impact", "--producer-group", "web", "--from", "2026-01-01", "--to", "2027-01-01"): "shipping",
        ("unresolved",): "t3",
        ("orphans",): "[]",
        ("redeliveries",): "message:orders/later-0",
        ("dead-letters",): "message:orders/later-0",
        ("resets",): "[]",
        ("graph",): "shipments",
        ("latency",): "audit",
        ("summary",): '"nodes"',
    }.items():
        done = cli(*command, "--tables", place, "--json")
        assert (done.exit_code, expected in done.stdout) == (0, True), (command, done.output)
    denied = cli("compact", "--tables", place)
    assert (denied.exit_code, "does not allow these credentials to put object" in denied.stderr) == (1, True)


@pytest.mark.parametrize(
    ("variables", "url", "sentence"),
    [
        ({}, "s3://no-such-bucket/lineage", "has no bucket no-such-bucket"),
        ({"AWS_SECRET_ACCESS_KEY": FALSE}, None, "does not accept the credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, None, "no usable credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, None, "check AWS_ENDPOINT_URL and the network"),
    ],
)
def test_every_error_says_what_to_do(
    place: str, variables: dict[str, str], url: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for command in (["run", "--once"], ["summary"], ["compact"], ["prune", "--older-than", "1"]):
        done = cli(*command, "--tables", url or place)
        assert (done.exit_code, sentence in done.stderr, FALSE in done.output) == (1, True, False), done.output


def test_what_only_the_other_client_cannot_reach_says_so(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place, shop(), 14)
    options = ObjectFolder.delta_options
    wrong = {"aws_secret_access_key": FALSE}
    monkeypatch.setattr(ObjectFolder, "delta_options", lambda folder: options(folder) | wrong)
    done = cli("summary", "--tables", place)
    assert (done.exit_code, "AWS_REGION" in done.stderr, FALSE in done.output) == (1, True, False), done.output


def test_what_cannot_be_is_refused_before_anything_is_asked(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (
        "s3://",
        "s3://a",
        f"s3://key:{FALSE}@bucket/x",
        "s3://bucket/a//b",
        "s3://bucket/a b",
        "s3://bucket/../x",
    ):
        done = cli("summary", "--tables", url)
        assert (done.exit_code, "s3://BUCKET/PREFIX" in done.output, FALSE in done.output) == (2, True, False), url
    done = cli("run", "--once", "--format", "parquet", "--tables", place)
    assert (done.exit_code, "--format delta only" in done.stderr) == (1, True), done.output
    with pytest.raises(TablesError, match="--format delta only"):
        Tables(place, "parquet")
    empty = cli("orphans", "--tables", place)
    assert (empty.exit_code, f"keelmq-lineage run --tables {place}" in empty.stderr) == (1, True)


def test_the_package_that_is_missing_is_named() -> None:
    program = "from keelmq_spark.cli import app; app(['summary', '--tables', 's3://bucket/lineage'])"
    done = run_without(("boto3", "botocore"), program)
    assert (done.returncode, "pip install './client[cli,s3]' './spark[s3]'" in done.stderr) == (1, True), done.stderr


def test_a_checkpoint_is_on_this_machine_and_goes_with_the_process(place: str, tmp_path: Path) -> None:
    program = f"from keelmq_spark.tables.storage import storage_of; print(storage_of({place!r}).checkpoints())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()
