"""Commands `keelmq cluster add-node`, `promote`, `set-address`, `remove-node` and `rebuild`: the nodes of a cluster."""

import contextlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when
from keelmq.errors import Conflict, InvalidRequest, KeelMQError, NotFound
from keelmq.limits import JOIN_EXPIRES_MS_MAX
from keelmq.printable import one_line

if TYPE_CHECKING:
    from keelmq.admin import Admin, ClusterMembers, ClusterStatus, JoinToken, Users
    from keelmq.transport.connection import Connection

LOOK_AGAIN_S: Final = 0.5
MINUTE_MS: Final = 60_000
_WAITED_FOR: Final = frozenset({"not_caught_up", "change_in_progress"})

NodeId = Annotated[int, typer.Argument(metavar="NODE_ID", help="Id of the node.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `keelmq cluster`."""
    app.command(
        "add-node",
        epilog="Examples:  keelmq cluster add-node 4 10.0.0.4:7091 http://10.0.0.4:7081\n\n"
        "(umask 077; keelmq cluster add-node 4 10.0.0.4:7091 https://10.0.0.4:7081 --token-minutes 15 > node-4.token)",
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
    token_minutes: Annotated[
        int | None,
        typer.Option(
            "--token-minutes",
            min=1,
            max=JOIN_EXPIRES_MS_MAX // MINUTE_MS,
            help="Make a join token as well, which is valid for this time: the node is started with it afterwards.",
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Add a node that was started with --join. It receives the log and does not vote until it is promoted.

    With --token-minutes the node is started afterwards. Its token is printed once, alone on stdout; on stderr is the
    command that starts it. An earlier token for the same node is not valid any more.
    """
    from keelmq.admin import Admin

    async def work(connection: "Connection") -> "tuple[ClusterMembers, JoinToken | None, str]":
        if token_minutes is None:
            return await Admin(connection).add_node(node_id, peer_address, http_address), None, ""
        return await _add_with_token(connection, (node_id, peer_address, http_address), token_minutes)

    answer, made, command = run(servers, work, as_json=as_json)
    if made is None:
        _print(answer, as_json)
        return
    if as_json:
        print_json({**answer.document, "join_token": made.document, "start": command})
        return
    _print_token(made)
    for line in (
        f"node {node_id} is added. Next, on its host, with the token in FILE (mode 0600) and the options for TLS and",
        "permissions that the other nodes have:",
        f"  {command}",
        f"once it runs: keelmq cluster promote {node_id} --wait",
    ):
        say(line, file=sys.stderr)
    _warn(answer)


async def _add_with_token(
    connection: "Connection", node: tuple[int, str, str], minutes: int
) -> "tuple[ClusterMembers, JoinToken, str]":
    """Make the token first, as a cluster without permissions refuses that, and add the node. Return the command that
    starts it, too. The token of a node that is refused is withdrawn: nobody has seen it.

    What the members exclude is refused before anything: the token takes the place of one that was handed out earlier.
    """
    from keelmq.admin import Admin, Users

    node_id, user = node[0], f"join:{node[0]}"
    admin, users = Admin(connection), Users(connection)
    join = _url_to_join(await admin.cluster(leader=True), node)
    has_earlier = await _exists(users, user)
    made = await admin.join_token(node_id, expires_in_ms=minutes * MINUTE_MS)
    try:
        answer = await admin.add_node(*node)
    except KeelMQError as exc:
        if not exc.retryable:
            with contextlib.suppress(KeelMQError):
                await users.delete(user)
        if has_earlier:
            exc.detail += f"; the earlier join token of node {node_id} has ended"
        raise
    return answer, made, _start_command(answer, node_id, join)


async def _exists(users: "Users", user: str) -> bool:
    try:
        await users.get(user)
    except NotFound:
        return False
    return True


def _url_to_join(view: "ClusterStatus", node: tuple[int, str, str]) -> str:
    """Return the URL of the member to which the node shows its token: the leader, or else one that is connected, if
    keelmqd shows it there. Raises Conflict when the members exclude the node, and InvalidRequest when it could show the
    token to none of them.
    """
    from keelmq.transport.credentials import is_loopback

    node_id, peer_address, url = node
    others = [each for each in view.nodes if each.node_id != node_id]
    for each in view.nodes:
        is_same = (each.peer_address == peer_address, each.url == url.rstrip("/"))
        if each.node_id != node_id:
            if any(is_same):
                raise Conflict("node_exists", f"node {each.node_id} has that address already")
        elif not all(is_same):
            where = f"{each.peer_address} and {each.url}"
            raise Conflict("node_exists", f"node {node_id} is in the cluster already, at {where}; no token is made")
        elif not others:
            raise Conflict("node_exists", f"node {node_id} is the only node of the cluster: there is none to join")
    found = [(each, urlsplit(each.url)) for each in others]
    open_to = [each for each, at in found if at.scheme == "https" or is_loopback(at.hostname or "")]
    if not open_to:
        raise InvalidRequest(
            "invalid_request",
            "--token-minutes: a join token is shown over TLS alone, and no other member has an "
            f"https URL; without --token-minutes, node {node_id} is added with the peer secret of the cluster",
        )
    return max(open_to, key=lambda each: (each.node_id == view.leader_id, each.connected)).url


def _start_command(answer: "ClusterMembers", node_id: int, join: str) -> str:
    """Return the command that starts the new node, without what depends on its host."""
    mine = next(each for each in answer.members if each.node_id == node_id)
    at = urlsplit(mine.http_address)
    listen = at.netloc if at.port else f"{at.netloc.rstrip(':')}:{443 if at.scheme == 'https' else 80}"
    where = ["--peer-listen", mine.peer_address, "--http-listen", listen]
    how = ["--join", join, "--join-token-file", "FILE", "--peer-secret-file", "NEW_FILE"]
    return shlex.join(["keelmqd", "--node-id", str(node_id), "--data-dir", "DIRECTORY", *where, *how])


def _print_token(made: "JoinToken") -> None:
    say(made.token)
    text = f"join token of node {made.node_id}, valid until {when(made.expires_at_ms)}; not shown again"
    say(text, file=sys.stderr)


def join_token(
    node_id: NodeId,
    minutes: Annotated[
        int, typer.Option("--minutes", min=1, max=JOIN_EXPIRES_MS_MAX // MINUTE_MS, help="Time until the token ends.")
    ] = 60,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Make a token with which one new node joins, once, and print it: alone on stdout. It is shown only now.

    The node is started with --join and --join-token-file. An earlier token for the same node is not valid any more.
    """
    from keelmq.admin import Admin

    expires_in_ms = minutes * MINUTE_MS
    made = run(
        servers, lambda connection: Admin(connection).join_token(node_id, expires_in_ms=expires_in_ms), as_json=as_json
    )
    if as_json:
        print_json(made.document)
        return
    _print_token(made)


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
    force: Annotated[bool, typer.Option("--force", help="Do not require that the node already answers there.")] = False,
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
        bool, typer.Option("--force", help="Remove the node even if the remaining nodes are no connected majority.")
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
        typer.Option(
            "--force", help="Rebuild the node even if the other nodes with all committed entries are no majority."
        ),
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
    _warn(answer)


def _warn(answer: "ClusterMembers") -> None:
    for warning in answer.warnings:
        say(f"warning: {warning}", file=sys.stderr)
