"""Command `keelmq top`: rates, lag and nodes, again and again."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from keelmq.cli.operations.cluster import Answer, ask_all, role_of
from keelmq.cli.operations.doctor import read_metrics
from keelmq.cli.operations.exposition import Reading, increase, quantile
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, fitting_table, print_json, print_table, run

if TYPE_CHECKING:
    from keelmq.transport.connection import Connection

EXAMPLES: Final = "Example:  keelmq top --interval 5"
COLUMNS: Final = (
    "node",
    "role",
    "in/s",
    "MB in/s",
    "out/s",
    "MB out/s",
    "commit p99 ms",
    "sync p99 ms",
    "loop p99 ms",
    "cpu %",
    "memory MB",
    "connections",
    "lag",
    "lag s",
    "disk free GB",
)


class Round(NamedTuple):
    """Answers of the nodes at one moment, on this process' steady clock."""

    at_s: float
    answers: Sequence[Answer]
    readings: Mapping[str, Reading]


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600.0, help="Seconds between two rounds.")
    ] = 2.0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Maximum number of rounds.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show rates, latencies, lag and the nodes, live on a terminal and as plain columns in a pipe.

    Rates and latencies are those since the round before. Messages in and out are counted by the node that served them.
    """

    async def work(connection: "Connection") -> bool:
        return await _watch(servers, interval, rounds, as_json=as_json)

    if not run(servers, work, as_json=as_json):
        raise typer.Exit(EXIT_ERROR)


async def _watch(servers: str, interval_s: float, rounds: int | None, *, as_json: bool) -> bool:
    """Print rounds until they are over; return whether any node answered in the last one."""
    import asyncio

    from rich.console import Console
    from rich.live import Live

    console = Console()
    before, done, answered = await _ask(servers), 0, True
    live = None
    if console.is_terminal and not as_json:
        live = Live(console=console, auto_refresh=False)
        live.start()
    try:
        while rounds is None or done < rounds:
            await asyncio.sleep(interval_s)
            after = await _ask(servers)
            rows = _rows(before, after)
            if as_json:
                print_json({"interval_s": round(after.at_s - before.at_s, 3), "nodes": rows})
            else:
                cells = [list(row.values())[1:] for row in rows]
                if live is not None:
                    live.update(fitting_table(console, None, COLUMNS, cells), refresh=True)
                else:
                    print_table(None, COLUMNS, cells)
            answered = any(answer.status is not None for answer in after.answers)
            before, done = after, done + 1
    finally:
        if live is not None:
            live.stop()
    return answered


async def _ask(servers: str) -> Round:
    import asyncio

    answers = await ask_all(servers)
    urls = [answer.url for answer in answers if answer.status is not None]
    readings = await asyncio.gather(*(read_metrics(url, servers) for url in urls))
    return Round(time.monotonic(), answers, dict(zip(urls, readings, strict=True)))


def _rows(before: Round, after: Round) -> list[dict[str, Any]]:
    passed_s = max(after.at_s - before.at_s, 1e-3)
    return [
        _row(answer, before.readings.get(answer.url), after.readings.get(answer.url), passed_s)
        for answer in after.answers
    ]


def _row(answer: Answer, sooner: Reading | None, later: Reading | None, passed_s: float) -> dict[str, Any]:
    """Return the figures of one node by name; None for those that are not known."""
    status = answer.status
    names = ("in_per_s", "mb_in_per_s", "out_per_s", "mb_out_per_s", "commit_ms", "sync_ms", "loop_ms", "cpu_percent")
    row: dict[str, Any] = {
        "url": answer.url,
        "node_id": None if status is None else status.node_id,
        "role": "unreachable" if status is None else role_of(status),
    }
    row |= dict.fromkeys((*names, "memory_mb", "connections", "lag_messages", "lag_s", "disk_free_gb"))
    if not later:
        return row
    row |= {
        "memory_mb": round(later.value("process_resident_memory_bytes") / 1e6),
        "connections": round(later.value("keelmq_http_connections") + later.value("keelmq_admin_connections")),
        "lag_messages": round(later.value("keelmq_consumer_lag_messages")),
        "lag_s": round(later.largest("keelmq_consumer_lag_seconds"), 1),
        "disk_free_gb": round(later.value("keelmq_disk_free_bytes") / 1e9, 1),
    }
    if not sooner:
        return row

    def per_s(name: str) -> float:
        return round(increase(sooner, later, name) / passed_s, 3)

    def p99_ms(name: str) -> float | None:
        found_s = quantile(sooner, later, name, 0.99)
        return None if found_s is None else round(found_s * 1000, 3)

    figures = (
        per_s("keelmq_produced_messages_total"),
        round(per_s("keelmq_produced_bytes_total") / 1e6, 3),
        per_s("keelmq_pulled_messages_total"),
        round(per_s("keelmq_pulled_bytes_total") / 1e6, 3),
        p99_ms("keelmq_commit_seconds"),
        p99_ms("keelmq_fsync_seconds"),
        p99_ms("keelmq_loop_delay_seconds"),
        round(per_s("process_cpu_seconds_total") * 100, 1),
    )
    return row | dict(zip(names, figures, strict=True))
