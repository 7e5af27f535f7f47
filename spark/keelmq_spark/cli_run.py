"""Command `keelmq-lineage run`."""

import logging
import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, EXIT_USAGE, Servers
from keelmq_spark.tables.errors import TablesError
from keelmq_spark.tables.storage import require_place

EXAMPLES = (
    "Examples:\n\n    keelmq-lineage run --tables lineage\n\n    keelmq-lineage run --once --format parquet\n\n"
    "    keelmq-lineage run --tables s3://analytics/lineage --interval-ms 60000\n\n"
    "    keelmq-lineage run --openlineage http://marquez:5000 --cluster shop"
)


DEFAULT_TABLES: Final = "lineage"
DAYS_MAX: Final = 100_000
"""Maximum age for pruning: a time before the year 1 is none."""


class TableFormat(StrEnum):
    delta = "delta"
    parquet = "parquet"


def _place(place: str) -> str:
    try:
        require_place(place)
    except TablesError as exc:
        raise typer.BadParameter(str(exc)) from None
    return place


TablesOption = Annotated[
    str,  # a Path would have one slash of s3:// only
    typer.Option(
        "--tables",
        envvar="KEELMQ_LINEAGE",
        metavar="PATH|URL",
        help="Directory of the lineage tables, or s3://BUCKET/PREFIX.",
        callback=_place,
    ),
]

KeepDays = Annotated[
    float | None,
    typer.Option(
        "--keep-days",
        min=0,
        max=DAYS_MAX,
        metavar="DAYS",
        help="Prune older rows, every hour; default: keep all.",
    ),
]


def run(
    servers: Servers = DEFAULT_SERVERS,
    tables: TablesOption = DEFAULT_TABLES,
    format: Annotated[TableFormat, typer.Option("--format", help="Format of new tables.")] = TableFormat.delta,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="PATH",
            help="Directory of Spark's checkpoints, on this machine; default TABLES/_checkpoint, or a temporary one "
            "for tables in an object store.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when the tables contain the present log.")] = False,
    skip_removed: Annotated[
        bool,
        typer.Option(
            "--skip-removed", help="Skip entries that retention removed before they were read; default: fail."
        ),
    ] = False,
    keep_days: KeepDays = None,
    interval_ms: Annotated[
        int, typer.Option("--interval-ms", min=0, max=3_600_000, help="Time between micro-batches.")
    ] = 1_000,
    max_entries: Annotated[
        int, typer.Option("--max-entries", min=1, max=10_000_000, help="Maximum Raft entries of a micro-batch.")
    ] = 5_000,
    cores: Annotated[str, typer.Option("--cores", metavar="N|*", help="Cores of a local Spark.")] = "2",
    openlineage: Annotated[
        str | None,
        typer.Option("--openlineage", metavar="URL|FILE|env", help="Also report jobs and datasets to OpenLineage."),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Name of the cluster in OpenLineage's namespace; default: its unique id."),
    ] = "",
    window_s: Annotated[int, typer.Option("--window-s", min=1, help="Seconds that one OpenLineage run covers.")] = 60,
) -> None:
    """Update the lineage tables of a cluster with Spark until the command is interrupted.

    The command may be killed at any time and started again. To run it on a Spark cluster: docs/lineage.md.
    """
    from keelmq_spark.job import JobOptions
    from keelmq_spark.job import run as run_job
    from keelmq_spark.openlineage import Reporter, client_of

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if cores != "*" and not cores.isdecimal():
        _fail(f"--cores {cores}: a number, or *", EXIT_USAGE)
    try:
        reporter = Reporter(client_of(openlineage), cluster, window_s) if openlineage is not None else None
    except ValueError as exc:
        _fail(str(exc), EXIT_USAGE)
    options = JobOptions(
        *(servers, tables, format.value, checkpoint, interval_ms, max_entries, cores),
        until_end=once,
        skip_removed=skip_removed,
        keep_days=keep_days,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        run_job(options, reporter, stopping)
    except Exception as exc:  # from Spark, which has already logged the errors of its tasks
        _fail(f"{type(exc).__name__}: {exc}", EXIT_ERROR)


def _fail(text: str, code: int) -> NoReturn:
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(code)
