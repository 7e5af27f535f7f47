"""Commands `keelmq cluster add-node`, `promote`, `set-address`, `remove-node` and `rebuild`: the nodes of a cluster."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when
from keelmq.errors import Conflict
from keelmq.printable import one_line

if TYPE_CHECKING:
    from keelmq.admin import Admin, ClusterMembers
    from keelmq.transport.connection import Connection

LOOK_AGAIN_S: Final = 0.5
_WAITED_FOR: Final = frozenset({"not_caught_up", "change_in_progress"})

NodeId = Annotated[int, typer.Argument(metavar="NODE_ID", help="Id of the node.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `keelmq cluster`."""
    app.command(
        "add-node",
        epilog="Example:  keelmq cluster add-node 4 10.0.0.4:7091 http://10.0.0.4:7081",
    )(add_node)
    app.command("join-token", epilog="Example:  (umask 077; keelmq cluster join-token 4 > node-4.token)")(join_token)
    app.command(epilog="Example:  keelmq cluster promote 4 --wait")(promote)
    app.command(epilog="Example:  keelmq cluster transfer 2")(transfer)
    app.command(
        "set-address",
        epilog="Example:  keelmq cluster set-address 3 --peer 10.1.0.3:7091 --url http://10.1.0.3:7081",
    )(set_address)
    app.command("remove-node", epilog="Example:  keelmq cluster remove-node 1")(remove_node)
    app.command(epilog="Example:  keelmq cluster rebuild 2")(rebuild)


def add_node(
    node_id: NodeId,
    peer_address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address for the other nodes.")],
    http_address: Annotated[str, typer.Argument(metavar="URL", help="URL for clients.")],
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Add a node that was started with --join. It receives the log and does not vote until it is promoted."""
    from keelmq.admin import Admin

    answer = run(
        servers, lambda connection: Admin(connection).add_node(node_id, peer_address, http_address), as_json=as_json
    )
    _print(answer, as_json)


def join_token(
    node_id: NodeId,
    minutes: Annotated[int, typer.Option("--minutes", min=1, max=1_440, help="Time until the token ends.")] = 60,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Make a token with which one new node joins, once, and print it: alone on stdout. It is shown only now.

    The node is started with --join and --join-token-file. An earlier token for the same node is not valid any more.
    """
    from keelmq.admin import Admin

    expires_in_ms = minutes * 60_000
    made = run(
        servers, lambda connection: Admin(connection).join_token(node_id, expires_in_ms=expires_in_ms), as_json=as_json
    )
    if as_json:
        print_json(made.document)
        return
    say(made.token)
    typer.echo(f"join token of node {node_id}, valid until {when(made.expires_at_ms)}; not shown again", err=True)


def promote(
    node_id: NodeId,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait without limit until the node has caught up; print why.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Promote a learner that has caught up to voter."""
    from keelmq.admin import Admin

    async def work(connection: "Connection") -> "ClusterMembers":
        admin = Admin(connection)
        return await (_promote_when_ready(admin, node_id) if wait else admin.promote_node(node_id))

    _print(run(servers, work, as_json=as_json), as_json)


def transfer(node_id: NodeId, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Hand leadership over to a voter that is up to date. Writes wait meanwhile, 3 s at most."""
    from keelmq.admin import Admin

    answer = run(servers, lambda connection: Admin(connection).transfer_leadership(node_id), as_json=as_json)
    if as_json:
        print_json(answer.document)
    else:
        say(f"node {node_id} leads")


def set_address(
    node_id: NodeId,
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="HOST:PORT", help="Address for the other nodes.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="URL for clients.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Do not require that it already answers there.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Change the addresses of a moved node. The node must already answer there, except with --force."""
    from keelmq.admin import Admin

    if peer is None and url is None:
        raise typer.BadParameter("give --peer, --url or both")

    async def work(connection: "Connection") -> "ClusterMembers":
        return await Admin(connection).set_node_address(node_id, peer_address=peer, http_address=url, force=force)

    _print(run(servers, work, as_json=as_json), as_json)


def remove_node(
    node_id: NodeId,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it even if the remaining nodes are no connected majority.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Remove a node, running or not; a leader first hands over its leadership."""
    from keelmq.admin import Admin

    _print(
        run(servers, lambda connection: Admin(connection).remove_node(node_id, force=force), as_json=as_json), as_json
    )


def rebuild(
    node_id: NodeId,
    force: Annotated[
        bool,
        typer.Option("--force", help="Rebuild it even if the other nodes with all committed entries are no majority."),
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Discard the data of a node whose replica differs or is damaged, and have the other nodes fill it again."""
    from keelmq.admin import Admin

    answer = run(servers, lambda connection: Admin(connection).rebuild_node(node_id, force=force), as_json=as_json)
    if as_json:
        print_json(answer.document)
        return
    others = ", ".join(map(str, answer.filled_by))
    say(f"node {node_id} starts again with an empty disk and is filled by the others ({others})")
    say("it votes again once it has caught up: see keelmq cluster status")


async def _promote_when_ready(admin: "Admin", node_id: int) -> "ClusterMembers":
    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    said = ""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task(f"node {node_id} catches up", total=None)
        while True:
            try:
                answer = await admin.promote_node(node_id)
            except Conflict as exc:
                if exc.code not in _WAITED_FOR:
                    raise
                refusal = exc
            else:
                return answer
            view = await admin.cluster(leader=True)
            node = next((node for node in view.nodes if node.node_id == node_id), None)
            match_index = 0 if node is None else node.match_index
            if refusal.detail != said:
                said = refusal.detail
                progress = f"it has {match_index} of {view.durable_index} entries"
                bars.console.print(
                    f"waiting: {one_line(said)}; {progress}", markup=False, highlight=False, soft_wrap=True
                )
            bars.update(bar, completed=match_index, total=view.durable_index)
            await asyncio.sleep(LOOK_AGAIN_S)


def _print(answer: "ClusterMembers", as_json: bool) -> None:
    if as_json:
        print_json(answer.document)
        return
    columns = ["node", "membership", "peer address", "URL"]
    rows = [(each.node_id, each.membership, each.peer_address, each.http_address) for each in answer.members]
    print_table(None, columns, rows)
    for warning in answer.warnings:
        say(f"warning: {warning}", file=sys.stderr)
