"""Commands of `keelmq context`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from keelmq.cli import contexts
from keelmq.cli.contexts import Context
from keelmq.cli.output import AsJson, fail, print_json, print_table, say
from keelmq.errors import KeelMQError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Name clusters, and choose the one that commands use.")


def _names(incomplete: str) -> list[str]:
    """Complete names of contexts; none on an error, because a completing shell must not print errors."""
    try:
        return [name for name in contexts.load().by_name if name.startswith(incomplete)]
    except KeelMQError:
        return []


NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=_names, show_default=False)
]


def _file(option: str, what: str) -> Any:
    return typer.Option(option, metavar="FILE", help=what)


@app.command(epilog="Example:  keelmq context add prod --servers https://mq1:7081,https://mq2:7081 --ca-file ca.crt")
def add(
    name: NewName,
    servers: Annotated[str, typer.Option("--servers", metavar="URLS", help="HTTP URLs of any nodes, comma-separated.")],
    ca_file: Annotated[str | None, _file("--ca-file", "PEM file with the authorities of https servers.")] = None,
    token_file: Annotated[str | None, _file("--token-file", "File with the token; it is read at each use.")] = None,
    certificate_file: Annotated[
        str | None, _file("--certificate-file", "PEM file with the certificate to show to https servers.")
    ] = None,
    key_file: Annotated[str | None, _file("--key-file", "PEM file with its key.")] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a context, or replace the one of this name. Files are named, not copied."""

    def change() -> contexts.Contexts:
        from keelmq.transport.known_nodes import parse_servers

        parse_servers(servers)
        files = [
            None if file is None else str(Path(file).expanduser().absolute())
            for file in (ca_file, token_file, certificate_file, key_file)
        ]
        changed = contexts.load().with_context(name, Context(servers, *files))
        if use or not changed.by_name.keys() - {name}:
            changed = changed.using(name)
        contexts.save(changed)
        return changed

    _print(name, _done(change, as_json), as_json)


@app.command(epilog="Example:  keelmq context use prod")
def use(name: Name, as_json: AsJson = False) -> None:
    """Make a context the current one, which commands use by default."""

    def change() -> contexts.Contexts:
        changed = contexts.load().using(name)
        contexts.save(changed)
        return changed

    _print(name, _done(change, as_json), as_json)


@app.command("list", epilog="Example:  keelmq context list --json")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts."""
    found = _done(contexts.load, as_json)
    if as_json:
        print_json({"contexts": [_document(name, found) for name in sorted(found.by_name)]})
        return
    rows = [("*" if name == found.current else "", name, found.by_name[name].servers) for name in sorted(found.by_name)]
    print_table(None, ["current", "context", "servers"], rows)


@app.command(epilog="Example:  keelmq context show prod")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of the context; default: the one that commands use.", autocompletion=_names
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a context: its servers, and the files that it names. The content of the files is not shown."""

    def look() -> tuple[str, contexts.Contexts]:
        found = contexts.load()
        shown = name or contexts.name_in_use(found)
        found.get(shown)
        return shown, found

    _print(*_done(look, as_json), as_json)


@app.command(epilog="Example:  keelmq context remove prod")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a context. The files that it names stay."""
    _done(lambda: contexts.save(contexts.load().without(name)), as_json)
    if as_json:
        print_json({"context": name, "removed": True})
    else:
        say(f"context {name} is removed")


def _done(work: "Callable[[], T]", as_json: bool) -> T:
    try:
        return work()
    except KeelMQError as error:
        fail(error, as_json=as_json)


def _document(name: str, found: contexts.Contexts) -> dict[str, Any]:
    return {"context": name, "current": name == found.current, **asdict(found.by_name[name])}


def _print(name: str, found: contexts.Contexts, as_json: bool) -> None:
    document = _document(name, found)
    if as_json:
        print_json(document)
        return
    say(f"context {name}{', the current one' if document['current'] else ''}")
    for member, value in asdict(found.by_name[name]).items():
        if value is not None:
            say(f"  {member.replace('_', ' ')}: {value}")
