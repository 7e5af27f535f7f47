"""Shared parts of all commands: options, tables for people, JSON for programs, errors with an exit code."""

import codecs
import errno
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TextIO, TypeVar

import typer

from keelmq.cli import contexts
from keelmq.errors import InvalidRequest, KeelMQError
from keelmq.printable import UNPRINTABLE, printable

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from keelmq.transport.connection import Connection

T = TypeVar("T")

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
CALL_TIMEOUT_MS: Final = 5_000
DEFAULT_SERVERS: Final = "http://127.0.0.1:7081,http://127.0.0.1:7082,http://127.0.0.1:7083"

UNLIMITED: Final = 4_000
"""Columns of a terminal that no table fills."""

STREAM_ERRORS: Final = frozenset(
    {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EAGAIN}
)
"""Errors of reading and writing standard streams."""

ESCAPED: Final = "backslashreplace"
"""Treatment of characters that an output's encoding lacks, unless it has them all."""

_JSON_CONTROLS: Final = {code: f"\\u{code:04x}" for code in UNPRINTABLE if code >= 0x7F}
"""Control characters that JSON does not escape by itself."""

SERVERS_TYPED: Final[ContextVar[bool]] = ContextVar("SERVERS_TYPED", default=False)
"""Tells whether --servers is on the command line."""

LOCAL_TIME: Final[ContextVar[bool]] = ContextVar("LOCAL_TIME", default=False)
"""Tells whether people are shown times of this zone, and not UTC. Documents have Unix milliseconds in any case."""


def was_typed(command: typer.Context, parameter: str) -> bool:
    """Return whether a parameter is on the command line, and not from a variable or a default."""
    source = command.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _note_servers(command: typer.Context, value: str) -> str:
    SERVERS_TYPED.set(was_typed(command, "servers"))
    return value


Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        envvar="KEELMQ_SERVERS",
        metavar="URLS",
        help="HTTP URLs of any nodes, comma-separated.",
        callback=_note_servers,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document (one per line for streams) on stdout."),
]


def connection_to(servers: str, call_timeout_ms: int, *, node: str | None = None) -> "Connection":
    """Return a connection to the cluster of the command line, its context or the variables. Raises InvalidRequest, and
    NotFound when there is no such context.

    `servers` is the value of --servers. With `node`, a URL, only that node is asked; the servers that the user named
    get the token, and others by the rules for nodes that were not named.
    """
    from keelmq.transport.connection import Connection
    from keelmq.transport.credentials import Credentials, TokenFile
    from keelmq.transport.known_nodes import parse_servers
    from keelmq.transport.tls import Tls

    flags = contexts.FLAGS.get()
    context = contexts.chosen(SERVERS_TYPED.get())
    named = servers_of(servers)
    if context is None:
        names = ("ca_file", "certificate_file", "key_file")
        typed = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
        tls = Tls(**{name: file or None for name, file in typed.items()})
        token_file = flags.token_file
    else:
        # A certificate and its key belong together, so a certificate of the command line has no key of the context.
        certificate_file = flags.certificate_file or context.certificate_file
        key_file = flags.key_file or (None if flags.certificate_file else context.key_file)
        tls = Tls(flags.ca_file or context.ca_file, certificate_file, key_file)
        token_file = flags.token_file or context.token_file
    token = TokenFile(token_file) if token_file else None
    credentials = Credentials(token, parse_servers(named), environment=context is None)
    return Connection(node or named, call_timeout_ms=call_timeout_ms, tls=tls, token=credentials)


def servers_of(servers: str) -> str:
    """Return the URLs that a command uses: the servers of --servers if it was typed, otherwise the servers of the
    chosen context, if any. Raises NotFound and InvalidRequest.
    """
    typed = SERVERS_TYPED.get()
    context = contexts.chosen(typed)
    return servers if typed or context is None else context.servers


def run(servers: str, work: "Callable[[Connection], Awaitable[T]]", *, as_json: bool = False) -> T:
    """Run `work` with a connection and return its result; an error ends the process with a message and an exit code."""
    import asyncio

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


def prepare() -> None:
    """Have three standard streams, whatever the process was started with: one that is closed reads and writes nothing,
    and an output shows what its encoding lacks as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in this order each gets its own number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  it is open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=ESCAPED)


def flush() -> None:
    """Flush stdout at the very end of the process; a closed pipe is not reported."""
    try:
        sys.stdout.flush()
    except OSError as error:
        fail_on_os_error(error)


def fail_on_os_error(error: OSError) -> NoReturn:
    """End the process because a file, or a standard stream, cannot be read or written; a closed pipe is not reported.
    Raises an error that is about something else.
    """
    if error.filename is not None:
        say(f"error: {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
        raise SystemExit(EXIT_ERROR) from None
    if error.errno not in STREAM_ERRORS:
        raise error
    # Python flushes once more when it ends, and would complain with an exit code of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        detail = f"{error.strerror}; what was asked for may be done"
        say(f"error: standard input or output: {detail}", file=sys.stderr)
    raise SystemExit(EXIT_ERROR) from None


def fail(error: KeelMQError, *, as_json: bool) -> NoReturn:
    """Print the error and exit. The exit code is that of a usage error if nothing was sent."""
    if as_json:
        problem = {
            "code": error.code,
            "detail": error.detail,
            "status": error.status,
            "retryable": error.retryable,
            "outcome_unknown": error.outcome_unknown,
        }
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
        yield (
            "give a token: `keelmq --token-file FILE …` or KEELMQ_TOKEN_FILE=FILE; an administrator makes one with "
            "`keelmq auth token create USER`"
        )
    elif error.code == "server_not_trusted":
        yield "`keelmq --ca-file FILE …` or KEELMQ_CA_FILE names the authority of the cluster"
    elif error.code == "topic_not_found":
        yield "`keelmq topic list` shows the topics, `keelmq topic create NAME` makes one"
    elif error.code == "transaction_conflict":
        yield f"`keelmq transaction show ID` shows what happened{_state_of(error)}"
    if error.outcome_unknown:  # whatever the error is: an earlier try of the call may have done it
        yield "it may or may not have taken effect; look before you repeat it"


def _state_of(error: KeelMQError) -> str:
    state = error.extra.get("state")
    return f"; it is {state}" if state else ""


def say(text: str, *, end: str = "\n", flush: bool = False, file: TextIO | None = None) -> None:
    """Print a line for people, with control characters escaped."""
    print(printable(text), end=end, flush=flush, file=file)


def confirm(question: str) -> None:
    """Ask on stderr whether to go on, and return if the answer is yes. Any other answer, no answer and an interrupt end
    the process.
    """
    say(f"{question} [y/N] ", end="", flush=True, file=sys.stderr)
    answer = b""
    try:
        answer = sys.stdin.buffer.readline()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if not (answer.endswith(b"\n") and sys.stdin.isatty()):  # a terminal shows the end of the line that is typed
            say("", file=sys.stderr)
    if answer.strip().lower() not in (b"y", b"yes"):
        say("nothing was done; --yes goes on without a question", file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)


def print_json(value: Mapping[str, Any] | list[Any]) -> None:
    is_escaped = sys.stdout.errors == ESCAPED  # its escapes are not those of JSON
    print(json.dumps(value, ensure_ascii=is_escaped, default=str).translate(_JSON_CONTROLS), flush=True)


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, turns: bool = False
) -> None:
    """Print a table with right-aligned numbers and None as a dash.

    A pipe gets plain columns, two blanks apart, of which nothing is cut. A terminal that is too narrow for the table
    gets, with `turns`, what `fitting_table` returns.
    """
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(fitting_table(console, title, columns, rows) if turns else table_of(title, columns, rows))
        return
    from rich.cells import cell_len, set_cell_size

    listed = [list(row) for row in rows]
    lines = [[printable(name) for name in columns], *([_text(cell) for cell in row] for row in listed)]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    numeric = [_is_numeric(listed, position) for position in range(len(columns))]
    if title:
        print(printable(title))
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        placed = [cell.rjust(width) if is_number else set_cell_size(cell, width) for cell, width, is_number in cells]
        print("  ".join(placed).rstrip())


def _text(cell: object) -> str:
    return "-" if cell is None else printable(str(cell))


def _is_numeric(rows: Sequence[Sequence[Any]], position: int) -> bool:
    return {type(row[position]) for row in rows} - {type(None)} == {int}


def fitting_table(
    console: "Console", title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> "Table | Group":
    """Return a table of few rows that the terminal is wide enough for: one with a column for each row if it is too
    narrow for `columns`, and else one table for each row, below each other.
    """
    from rich.console import Group
    from rich.measure import Measurement

    listed = [list(row) for row in rows]
    unlimited = console.options.update(width=UNLIMITED)

    def fits(table: "Table") -> bool:
        return Measurement.get(console, unlimited, table).maximum <= console.width

    table = table_of(title, columns, listed)
    if fits(table) or not listed:
        return table
    turned = [[_text(cell) for cell in each] for each in zip(columns, *listed, strict=True)]
    table = table_of(title, turned[0], turned[1:])
    if fits(table):
        return table
    pairs = (zip(columns, row, strict=True) for row in listed)
    return Group(*(table_of(title, [name, _text(cell)], others) for (name, cell), *others in pairs))


def table_of(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> "Table":
    """Return the table that `print_table` prints on a terminal."""
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(title=title and printable(title), title_justify="left", header_style="bold")
    for position, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if _is_numeric(listed, position) else "left"
        table.add_column(name, justify=justify, overflow="fold")
    for row in listed:
        table.add_row(*[Text(_text(cell)) for cell in row])
    return table


def when(timestamp_ms: int | None) -> str | None:
    """Format a time for people, to the millisecond, in the zone that `zone` names; a local time with its offset from
    UTC, because an hour of the autumn comes twice.
    """
    if not timestamp_ms:
        return None
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    local = LOCAL_TIME.get()
    return (time.astimezone() if local else time.replace(tzinfo=None)).isoformat(" ", "milliseconds")


def zone() -> str:
    """Return the zone of the times that `when` returns, for headings and sentences."""
    return "local time" if LOCAL_TIME.get() else "UTC"


def duration(milliseconds: int | None) -> str | None:
    """Format a duration for people in the largest unit that divides it."""
    if milliseconds is None:
        return None
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"
