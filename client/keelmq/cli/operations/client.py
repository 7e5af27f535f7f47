"""Commands of `keelmq client`: who is connected to the cluster."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from keelmq.cli.operations.each_node import OfNode, OneNode, ask_each
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, duration, print_json, print_table, run, say

if TYPE_CHECKING:
    from keelmq.admin import ConnectedClient

app = typer.Typer(no_args_is_help=True, help="The clients of the cluster.")


class _Program(NamedTuple):
    """A program on a host, as nodes can tell it from others."""

    host: str
    principal: str
    user_agent: str


@app.callback()
def _root() -> None: ...


@app.command(
    "list", epilog="Examples:\n\n    keelmq client list\n\n    keelmq client list --json | jq '.clients[].address'"
)
def list_clients(node: OneNode = None, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """List the clients that are connected to the nodes: one row for all connections from one host with one principal
    and user agent. --json has every connection.

    Exit code 1 if a node did not answer.
    """
    answers = run(servers, lambda _: ask_each(servers, lambda calls: calls.clients(), node), as_json=as_json)
    silent = [each for each in answers if each.answer is None]
    if as_json:
        clients = [{"node_id": of.node_id, **each.document} for of in answers for each in of.answer or ()]
        print_json({"clients": clients, "unanswered": [each.document() for each in silent]})
    else:
        columns = [
            "host",
            "principal",
            "user agent",
            "nodes",
            "connections",
            "in flight",
            "oldest",
            "consumes",
            "produces",
        ]
        print_table(None, columns, [_row(*each) for each in _by_program(answers).items()])
        for each in silent:
            say(f"{each.url}: {each.error}", file=sys.stderr)
    if silent:
        raise typer.Exit(EXIT_ERROR)


def _by_program(
    answers: "Iterable[OfNode[list[ConnectedClient]]]",
) -> "dict[_Program, list[tuple[int | None, ConnectedClient]]]":
    found: dict[_Program, list[tuple[int | None, ConnectedClient]]] = {}
    for of in answers:
        for each in of.answer or ():
            program = _Program(each.address.rpartition(":")[0], each.principal or "", each.user_agent or "")
            found.setdefault(program, []).append((of.node_id, each))
    return dict(sorted(found.items()))


def _row(program: _Program, connections: "list[tuple[int | None, ConnectedClient]]") -> list[Any]:
    clients = [client for _, client in connections]
    members: dict[str, set[str]] = {}
    for client in clients:
        for each in client.consumer_groups:
            members.setdefault(each.group, set()).update((each.member_id,) if each.member_id else ())
    consumes = ", ".join(f"{name} ({len(ids)})" if len(ids) > 1 else name for name, ids in sorted(members.items()))
    return [
        program.host,
        program.principal or None,
        program.user_agent or None,
        ", ".join(sorted({str(node_id) for node_id, _ in connections})),
        len(clients),
        sum(client.in_flight for client in clients),
        duration(max(client.connected_ms for client in clients)),
        consumes or None,
        ", ".join(sorted({group for client in clients for group in client.producer_groups})) or None,
    ]
