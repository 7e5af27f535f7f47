"""Commands of `keelmq log`."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, run, say, when, zone

if TYPE_CHECKING:
    from keelmq.log.log_records import EntryHeader

app = typer.Typer(no_args_is_help=True, help="Show the commit log, as a replica delivers it.")

FOLLOW_WAIT_MS: Final = 10_000


@app.callback()
def _root() -> None: ...


@app.command(epilog="Example:  keelmq log dump --from-index 100 --max 20")
def dump(
    from_index: Annotated[int, typer.Option(min=1, help="First Raft index.")] = 1,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Print record headers; every header and payload is checked against its CRC32C."""
    from keelmq.admin import Admin
    from keelmq.log.log_records import read_records
    from keelmq.transport.connection import Connection

    async def read(connection: Connection) -> None:
        admin = Admin(connection)
        next_index, printed = from_index, 0
        while True:
            data, next_index = await admin.log(next_index, wait_ms=FOLLOW_WAIT_MS if follow else 0)
            for record in read_records(data):
                _print_record(record, as_json)
                printed += 1
                if printed == max_records:
                    return
            if not data and not follow:
                return

    if not as_json:
        heading = f"time ({zone()})".ljust(len(_time(1)))
        say(f"{'index':>10} {'term':>6} {'position':>14} {'size':>10} kind   {heading}  commands")
    run(servers, read, as_json=as_json)


def _print_record(record: Any, as_json: bool) -> None:
    from keelmq.log.log_records import entry_header

    header = entry_header(record)
    if as_json:
        print_json(
            {
                "index": record.index,
                "term": record.term,
                "kind": record.kind_name,
                "position": record.position,
                "size": record.size,
                "timestamp_ms": header.timestamp_ms if header else None,
                "commands": header.command_names if header else [],
                "principals": header.principals if header else [],
            }
        )
        return
    commands = ", ".join(_counted(_described(header))) if header else ""
    say(
        f"{record.index:>10} {record.term:>6} {record.position:>14} {record.size:>10} {record.kind_name:<6} "
        f"{_time(header.timestamp_ms if header else None)}  {commands}",
        flush=True,
    )


def _described(header: "EntryHeader") -> list[str]:
    """Return the name of each command, with the principal that asked for it."""
    named = zip(header.command_names, header.principals, strict=True)
    return [name if principal is None else f"{name} by {principal}" for name, principal in named]


def _time(timestamp_ms: int | None) -> str:
    """Return the time, or a dash as wide as one."""
    return (when(timestamp_ms) or "-").ljust(len(when(1) or ""))


def _counted(names: list[str]) -> list[str]:
    return [f"{name} x{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
