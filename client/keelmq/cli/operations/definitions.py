"""Commands of `keelmq definitions`: what administrators have set, in one file."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli.files import replace_file
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, fail, print_json, run, say
from keelmq.errors import InvalidRequest, KeelMQError

if TYPE_CHECKING:
    from keelmq.admin import Definitions, ImportStep, PlannedChange
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="Export and import topics, groups, settings, and users without tokens.")

EXIT_DIFFERS: Final = 3
"""Exit code of a dry run that found something to do."""

_SIGNS: Final = {"create": "+", "alter": "~", "same": "=", "refused": "!"}

ExportFile = Annotated[str, typer.Argument(metavar="[FILE]", help="File to write or replace; -: standard output.")]
ImportFile = Annotated[str, typer.Argument(metavar="FILE", help="File to read; -: standard input.", show_default=False)]


@app.command("export", epilog="Example:  keelmq definitions export cluster.json")
def export_file(file: ExportFile = "-", servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Export topics, groups, check URLs, settings, and users with their permissions, sorted, as JSON.

    The file has no tokens and no hashes of them: the cluster keeps no secrets that it could export. Nor has it
    messages, offsets, or the filters of running consumers.
    """
    from keelmq.admin import ClusterDefinitions, encode_definitions

    found = run(servers, lambda connection: ClusterDefinitions(connection).export(), as_json=as_json)
    try:
        data = encode_definitions(found)
        if file != "-":
            _replace(Path(file), data)
    except KeelMQError as error:
        fail(error, as_json=as_json)
    if file == "-":
        typer.echo(data.decode(), nl=False)
        return
    counts = {part: len(getattr(found, part) or ()) for part in ("topics", "groups", "producer_groups", "users")}
    if as_json:
        print_json({"file": file, "bytes": len(data), **counts})
        return
    listed = ", ".join(f"{count} {part.replace('_', ' ')}" for part, count in counts.items())
    say(f"{file}: {listed} and the settings; users without tokens")


IMPORT_EXAMPLES: Final = (
    "Examples:\n\n    keelmq definitions import cluster.json --dry-run\n\n    keelmq definitions import cluster.json"
)


@app.command("import", epilog=IMPORT_EXAMPLES)
def import_file(
    file: ImportFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the plan; exit code 3 when there is something to do.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Do the rest, too, when something is refused.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Carry out the file: create missing objects, alter objects that differ. Nothing is ever deleted.

    Users are created without tokens; make them with keelmq auth token create. Tokens of users that exist stay.

    One line per definition: + create, ~ alter, = same, ! refused. Refusals that can be foreseen come before anything is
    changed. Exit code 1 when something was refused.
    """
    from keelmq.admin import decode_definitions

    try:
        definitions = decode_definitions(_read(file))
    except KeelMQError as error:
        fail(error, as_json=as_json)

    async def work(connection: "Connection") -> "list[PlannedChange]":
        return await _import(connection, definitions, dry_run=dry_run, keep_going=keep_going, as_json=as_json)

    changes = run(servers, work, as_json=as_json)
    counts = Counter(each.action for each in changes)
    if as_json:
        print_json({"dry_run": dry_run, "changes": [_document(each) for each in changes]})
    else:
        verb = "to " if dry_run else ""
        say(
            f"{counts['create']} {verb}create, {counts['alter']} {verb}alter, {counts['same']} same, "
            f"{counts['refused']} refused"
        )
    if counts["refused"]:
        raise typer.Exit(EXIT_ERROR)
    if dry_run and counts["create"] + counts["alter"]:
        raise typer.Exit(EXIT_DIFFERS)


async def _import(
    connection: "Connection", definitions: "Definitions", *, dry_run: bool, keep_going: bool, as_json: bool
) -> "list[PlannedChange]":
    """Print and return the changes, or with `dry_run` the changes that would be made."""
    from keelmq.admin import ClusterDefinitions

    cluster = ClusterDefinitions(connection)
    steps = await cluster.plan(definitions)
    if dry_run:
        return _shown([step.change for step in steps], as_json)
    refused = [step.change for step in steps if step.change.action == "refused"]
    if refused and not keep_going:
        _shown(refused, as_json)
        _tell_of_rest(steps, as_json)
        return refused
    done: list[PlannedChange] = []
    for step in steps:
        done += _shown([await cluster.carry_out(step)], as_json)
        if done[-1].action == "refused" and not keep_going:
            _tell_of_rest(steps[len(done) :], as_json)
            break
    return done


def _tell_of_rest(steps: "Sequence[ImportStep]", as_json: bool) -> None:
    left = sum(step.change.action in ("create", "alter") for step in steps)
    if left and not as_json:
        say(f"stopped before {left} further changes; --keep-going does them", file=sys.stderr)


def _shown(changes: "list[PlannedChange]", as_json: bool) -> "list[PlannedChange]":
    """Print the changes for people, and return them."""
    for change in changes if not as_json else ():
        why = f": {change.detail} ({change.code})" if change.action == "refused" else ""
        say(f"{_SIGNS[change.action]} {change.action} {change.kind.replace('_', ' ')} {change.name}{why}", flush=True)
        for difference in change.differences:
            say(f"    {difference}")
    return changes


def _document(change: "PlannedChange") -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(change)
    return document


def _read(file: str) -> bytes:
    """Return the file, of one that is too large only as much as shows that. Raises InvalidRequest."""
    from keelmq.admin.definitions import DEFINITIONS_BYTES_MAX

    if file == "-":
        return sys.stdin.buffer.read(DEFINITIONS_BYTES_MAX + 1)
    try:
        with open(file, "rb") as opened:
            return opened.read(DEFINITIONS_BYTES_MAX + 1)
    except OSError as exc:
        raise InvalidRequest("file_unusable", f"{file}: {exc.strerror}") from exc


def _replace(target: Path, data: bytes) -> None:
    try:
        replace_file(target, data)
    except OSError as exc:
        raise InvalidRequest("file_unusable", f"{target}: {exc.strerror}") from exc
    except ValueError:
        raise InvalidRequest("file_unusable", f"{target}: is a directory") from None  # . and / have no name
