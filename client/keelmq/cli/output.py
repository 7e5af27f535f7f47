"""Shared parts of all commands: options, tables for people, JSON for programs, errors with an exit code."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TextIO, TypeVar

import typer

from keelmq.errors import InvalidRequest, KeelMQError
from keelmq.printable import UNPRINTABLE, printable

if TYPE_CHECKING:
    from rich.table import Table

    from keelmq.transport.connection import Connection
    from keelmq.transport.tls import Tls

T = TypeVar("T")

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
CALL_TIMEOUT_MS: Final = 5_000
DEFAULT_SERVERS: Final = "http://127.0.0.1:7081,http://127.0.0.1:7082,http://127.0.0.1:7083"

_JSON_CONTROLS: Final = {code: f"\\u{code:04x}" for code in UNPRINTABLE if code >= 0x7F}
"""Control characters that JSON does not escape by itself."""

TLS: "Final[ContextVar[Tls | None]]" = ContextVar("TLS", default=None)
"""Files for https servers that the command line names; None: those of the environment."""

Servers = Annotated[
    str,
    typer.Option("--servers", envvar="KEELMQ_SERVERS", metavar="URLS", help="HTTP URLs of any nodes, comma-separated."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document (one per line for streams) on stdout."),
]


def connection_to(servers: str, call_timeout_ms: int, *, named: str | None = None) -> "Connection":
    """Return a connection with the TLS files of the command line. Raises InvalidRequest.

    `named` are the servers that the user named, which get the token; without it, all `servers` are.
    """
    from keelmq.transport.connection import Connection
    from keelmq.transport.credentials import Credentials
    from keelmq.transport.known_nodes import parse_servers

    credentials = Credentials(None, parse_servers(named or servers))
    return Connection(servers, call_timeout_ms=call_timeout_ms, tls=TLS.get(), token=credentials)


def run(servers: str, work: "Callable[[Connection], Awaitable[T]]", *, as_json: bool = False) -> T:
    """Run `work` with a connection and return its result; an error ends the process with a message and an exit code."""

    async def main() -> T:
        connection = connection_to(servers, CALL_TIMEOUT_MS)
        try:
            return await work(connection)
        finally:
            connection.close()

    try:
        return asyncio.run(main())
    except KeelMQError as exc:
        fail(exc, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of the pipe has ended (`keelmq consume … | head`): that is no error, and no reader is left.
        sys.stderr.close()
        raise typer.Exit(EXIT_ERROR) from None


def flush() -> None:
    """Flush stdout at the very end of the process; a closed pipe is not reported."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain with an exit code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_ERROR) from None


def fail(error: KeelMQError, *, as_json: bool) -> NoReturn:
    """Print the error and exit. The exit code is that of a usage error if nothing was sent."""
    if as_json:
        problem = {"code": error.code, "detail": error.detail, "status": error.status, "retryable": error.retryable}
        print(json.dumps({"error": {**error.extra, **problem}}, default=str), file=sys.stderr)
    else:
        say(f"error: {error.detail} ({error.code})", file=sys.stderr)
        for hint in _hints(error):
            say(f"hint: {hint}", file=sys.stderr)
    usage = isinstance(error, InvalidRequest) and error.status == 0
    raise typer.Exit(EXIT_USAGE if usage else EXIT_ERROR) from None


def _hints(error: KeelMQError) -> Iterable[str]:
    if error.code == "no_leader":
        yield "check --servers or KEELMQ_SERVERS, and `keelmq cluster status`"
    elif error.code == "unauthenticated":
        yield "give a token: KEELMQ_TOKEN_FILE=FILE; an administrator makes one with `keelmq auth token create USER`"
    elif error.code == "server_not_trusted":
        yield "`keelmq --ca-file FILE …` or KEELMQ_CA_FILE names the authority of the cluster"
    elif error.code == "topic_not_found":
        yield "`keelmq topic list` shows the topics, `keelmq topic create NAME` makes one"
    elif error.code == "transaction_conflict":
        yield f"`keelmq transaction show ID` shows what happened{_state_of(error)}"
    elif error.outcome_unknown:
        yield "it may or may not have taken effect; look before you repeat it"


def _state_of(error: KeelMQError) -> str:
    state = error.extra.get("state")
    return f"; it is {state}" if state else ""


def say(text: str, *, end: str = "\n", flush: bool = False, file: TextIO | None = None) -> None:
    """Print a line for people, with control characters escaped."""
    print(printable(text), end=end, flush=flush, file=file)


def print_json(value: Mapping[str, Any] | list[Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str).translate(_JSON_CONTROLS), flush=True)


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with right-aligned numbers and None as a dash.

    In a pipe the table is as wide as its content, so that nothing is cut.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=4_000)
    console.print(table_of(title, columns, rows))


def table_of(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> "Table":
    """Return the table that `print_table` prints."""
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(title=title and printable(title), title_justify="left", header_style="bold")
    for position, name in enumerate(columns):
        numeric = {type(row[position]) for row in listed} - {type(None)} == {int}
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*[Text("-" if cell is None else printable(str(cell))) for cell in row])
    return table


def when(timestamp_ms: int | None) -> str | None:
    """Format a time for people: UTC, to the millisecond."""
    if not timestamp_ms:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def duration(milliseconds: int | None) -> str | None:
    """Format a duration for people in the largest unit that divides it."""
    if milliseconds is None:
        return None
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"
