"""Commands of `keelmq cluster`."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from keelmq.cli.operations import nodes, upgrade
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
    AsJson,
    Servers,
    connection_to,
    duration,
    print_json,
    print_table,
    run,
    say,
    servers_of,
    when,
    zone,
)
from keelmq.cli.sizes import parse_size, size
from keelmq.printable import printable

if TYPE_CHECKING:
    from keelmq.admin import ClusterSettings, ClusterStatus
    from keelmq.admin.cluster import LogReaderStatus
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="The state of the cluster.")

nodes.register(app)
upgrade.register(app)

NODE_TIMEOUT_MS: Final = 2_000
WATCH_S: Final = 2.0


class Answer(NamedTuple):
    """The answer of the node at `url`: its view of the cluster, or else the error with which asking it ended."""

    url: str
    status: "ClusterStatus | None"
    error: str = ""

    def document(self) -> dict[str, Any]:
        return {"url": self.url, **({"error": self.error} if self.status is None else self.status.document)}


@app.callback()
def _root() -> None: ...


@app.command(
    epilog="Examples:\n\n    keelmq cluster status --servers http://10.0.0.1:7081\n\n"
    "    keelmq cluster status --watch 5"
)
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Ask again and again until Ctrl-C, every SECONDS if they are given.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Argument(
            metavar="SECONDS",
            min=0.1,
            max=3600.0,
            help=f"Seconds from one answer to the next question of --watch; default: {WATCH_S:g}.",
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Ask every node for its view of the cluster.

    Exit code 1 unless one node leads, all nodes answer and none has a critical alarm.

    With --watch a terminal is drawn anew each time, and a pipe gets one view after another.
    """
    if watch:
        interval_s = WATCH_S if seconds is None else seconds
        run(servers, lambda connection: _watch(servers, interval_s, as_json=as_json), as_json=as_json)
    elif seconds is not None:
        raise typer.BadParameter("SECONDS are those of --watch", param_hint="SECONDS")
    elif not _show(run(servers, lambda connection: ask_all(servers), as_json=as_json), as_json=as_json):
        raise typer.Exit(EXIT_ERROR)


async def _watch(servers: str, interval_s: float, *, as_json: bool) -> None:
    """Show the cluster until the process is interrupted."""
    import asyncio

    from rich.console import Console

    console = Console()
    first = True
    while True:
        answers = await ask_all(servers)  # before the screen is cleared, so that it is not empty while nodes are asked
        if not as_json:
            if console.is_terminal:
                console.clear()
            elif not first:
                say("")
            state = "healthy" if _is_healthy(answers) else "not healthy"
            say(f"{when(round(time.time() * 1000))} {zone()}, every {interval_s:g} s: {state}")
        _show(answers, as_json=as_json)
        sys.stdout.flush()
        first = False
        await asyncio.sleep(interval_s)


def _show(answers: "Sequence[Answer]", *, as_json: bool) -> bool:
    """Print the answers; return whether the cluster is healthy."""
    healthy = _is_healthy(answers)
    if as_json:
        print_json({"healthy": healthy, "nodes": [answer.document() for answer in answers]})
    else:
        _print_nodes(answers)
    return healthy


@app.command(epilog="Example:  keelmq cluster settings --log-retention-bytes 200G")
def settings(
    reject_transactions: Annotated[
        bool | None,
        typer.Option(
            "--reject-transactions/--accept-transactions",
            help="Refuse new half transactions, or accept them again. Decisions and checks continue.",
        ),
    ] = None,
    log_retention_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bytes of the log behind which messages of all topics are removed: 200G, or bytes; -1: no limit.",
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the settings of the cluster, or change the given ones."""
    limit = None if log_retention_bytes is None else -1
    if log_retention_bytes is not None and log_retention_bytes.strip() != "-1":
        limit = parse_size(log_retention_bytes, "--log-retention-bytes")
    from keelmq.admin import Admin

    async def work(connection: "Connection") -> "ClusterSettings":
        admin = Admin(connection)
        if reject_transactions is None and limit is None:
            return await admin.settings()
        return await admin.put_settings(reject_transactions=reject_transactions, log_retention_bytes=limit)

    answer = run(servers, work, as_json=as_json)
    if as_json:
        print_json(answer.document)
    else:
        say(f"new transactions are {'refused' if answer.reject_transactions else 'taken'}")
        kept = answer.log_retention_bytes
        say("messages are kept however long the log is" if kept < 0 else f"messages go behind {size(kept)} of log")


def _is_healthy(answers: "Sequence[Answer]") -> bool:
    """Return whether one node leads, all answer and follow it, and no alarm is critical. Removed nodes do not count."""
    statuses = [each.status for each in answers if each.status is not None and not each.status.removed]
    leaders = [status for status in statuses if status.role == "leader"]
    if len(leaders) != 1 or any(each.status is None for each in answers):
        return False
    if any(alarm.severity == "critical" for status in statuses for alarm in status.alarms):
        return False
    return all(status.leader_id == leaders[0].node_id for status in statuses)


async def ask_all(servers: str) -> list[Answer]:
    """Return the answers of the nodes named by `servers` and of the nodes that these know. A node that has answered is
    not asked again at the URL that others know it by: it may have another one for administration.
    """
    import asyncio

    from keelmq.transport.known_nodes import parse_servers

    urls = [origin.url for origin in parse_servers(servers_of(servers))]
    answers = await asyncio.gather(*(_ask(url, servers) for url in urls))
    statuses = [answer.status for answer in answers if answer.status is not None]
    seen = {(status.cluster_id, status.node_id) for status in statuses}
    known = {node.url for each in statuses for node in each.nodes if (each.cluster_id, node.node_id) not in seen}
    answers += await asyncio.gather(*(_ask(url, servers) for url in sorted(known - set(urls))))
    # A node that is reachable under several URLs is shown once; nodes of two clusters may have one id.
    by_node: dict[object, Answer] = {}
    for answer in answers:
        status = answer.status
        by_node.setdefault(answer.url if status is None else (status.cluster_id, status.node_id), answer)
    return sorted(
        by_node.values(), key=lambda each: (1 << 30 if each.status is None else each.status.node_id, each.url)
    )


async def _ask(url: str, servers: str) -> Answer:
    from keelmq.admin import Admin
    from keelmq.errors import KeelMQError

    connection = connection_to(servers, NODE_TIMEOUT_MS, node=url)
    try:
        return Answer(url, await Admin(connection).cluster())
    except KeelMQError as exc:
        return Answer(url, None, exc.detail)
    finally:
        connection.close()


def role_of(status: "ClusterStatus") -> str:
    """Return the role that the node reports for itself, whether it is drained, and the percentage of a snapshot that it
    is receiving.

    A learner is a follower without a vote.
    """
    if status.removed:
        return "removed"
    mine = next((each for each in status.nodes if each.node_id == status.node_id), None)
    if mine is None:
        return status.role
    role = "learner" if mine.membership == "learner" else status.role
    role += ", drained" if mine.drained else ""
    return role if mine.snapshot_percent is None else f"{role}, snapshot {mine.snapshot_percent} %"


def _comparison(status: "ClusterStatus") -> str | None:
    """Return with which nodes this replica was compared, up to which entry, and the result."""
    replica = status.replica
    if replica is None:
        return None
    if replica.differs:
        return f"differs from entry {replica.first_index} on" if replica.exact else "differs"
    parts = []
    for word, agrees in (("equals", True), ("not", False)):
        found = [each for each in replica.compared if each.agrees == agrees]
        if found:
            peers = ", ".join(str(each.node_id) for each in found)
            parts.append(f"{word} {peers} @{min(each.raft_index for each in found)}")
    return "; ".join(parts) or None


def _print_log_holders(statuses: "Sequence[ClusterStatus]") -> None:
    """Print why the log is kept, as the leader sees it, or any node while there is no leader."""
    answering = [status for status in statuses if status.log_holders]
    if not answering:
        return
    status = next((status for status in answering if status.role == "leader"), answering[0])
    rows = [(each.kind, each.subject, each.raft_index, when(each.since_ms), each.bytes) for each in status.log_holders]
    title = f"log of node {status.node_id} is kept for"
    print_table(title, ["kind", "subject", "from entry", "since", "bytes"], rows)


def _print_log_readers(statuses: "Sequence[ClusterStatus]") -> None:
    """Print the queries that read the log. One that was at several nodes is shown where it was last."""
    found: dict[tuple[str, str, str | None], tuple[int, LogReaderStatus]] = {}
    for status in statuses:
        for each in status.log_readers:
            key = each.reader, each.address, each.principal
            if key not in found or each.silent_ms < found[key][1].silent_ms:
                found[key] = status.node_id, each
    rows = [
        (each.reader, each.address, each.principal, node_id, each.next_index, each.lag, duration(each.silent_ms))
        for node_id, each in sorted(found.values(), key=lambda of: (-of[1].lag, of[1].reader))
    ]
    if rows:
        columns = ["reader", "address", "principal", "at node", "next entry", "lag in entries", "silent for"]
        print_table("readers of the log", columns, rows)


def _print_administration(statuses: "Sequence[ClusterStatus]") -> None:
    """Print which nodes have a listener for administration, if any has."""
    own = [f"{each.admin_url} (node {each.node_id})" for each in statuses if each.admin_url is not None]
    none = [f"node {each.node_id}" for each in statuses if each.admin_url is None]
    if own:
        say(f"administration at {', '.join(own)}" + "".join(f"; {each} has none" for each in none))


def _row(answer: Answer) -> list[Any]:
    """Return the row of a node in the table of nodes."""
    status = answer.status
    if status is None:
        return [None, answer.url, "unreachable", *[None] * 8]
    return [
        status.node_id,
        answer.url,
        role_of(status),
        status.term,
        status.commit_index,
        status.applied_index,
        status.durable_index,
        f"{status.state_hash[:12]} @{status.hash_index}" if status.state_hash else None,
        _comparison(status),
        ", ".join(str(peer.node_id) for peer in status.nodes if peer.connected) or None,
        upgrade.build_of(status),
    ]


def _print_nodes(answers: "Sequence[Answer]") -> None:
    from rich.console import Console

    statuses = [each.status for each in answers if each.status is not None]
    members = [status for status in statuses if not status.removed]
    if members:
        newest = max(members, key=lambda status: (status.leader_url is not None, status.term))
        leader = newest.leader_url or "no leader is known"
        level = "" if newest.feature_level is None else f", feature level {newest.feature_level}"
        say(f"cluster {newest.cluster_id}, term {newest.term}, leader {leader}{level}")
    leaders = [str(status.node_id) for status in statuses if status.role == "leader"]
    if len(leaders) > 1:
        say(f"nodes {', '.join(leaders)} lead: one has been replaced just now, or they are of two clusters")
    positions = ["committed", "applied", "durable", "state hash"]
    columns = ["node", "url", "role", "term", *positions, "replica", "connected to", "version"]
    print_table(None, columns, [_row(answer) for answer in answers], turns=True)
    _print_administration(members)
    _print_log_holders(statuses)
    _print_log_readers(statuses)
    for status in statuses:
        for alarm in status.alarms:
            say(f"node {status.node_id}: {alarm.severity} alarm {alarm.code}: {alarm.detail}")
    for answer in answers:
        if answer.status is None:
            Console(stderr=True, highlight=False, soft_wrap=True).print(
                printable(f"{answer.url}: {answer.error}"), markup=False
            )
