"""Commands of `keelmq cluster`."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli import nodes, upgrade
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
    AsJson,
    Servers,
    print_json,
    print_table,
    printable,
    run,
    say,
    when,
)

if TYPE_CHECKING:
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="The state of the cluster.")

nodes.register(app)
upgrade.register(app)

NODE_TIMEOUT_MS: Final = 2_000


@app.callback()
def _root() -> None: ...


@app.command(epilog="Example:  keelmq cluster status --servers http://10.0.0.1:7081")
def status(servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Ask every node for its view of the cluster.

    Exit code 1 unless one node leads, all nodes answer and none has a critical alarm.
    """
    nodes = run(servers, lambda connection: _ask_all(servers), as_json=as_json)
    healthy = _is_healthy(nodes)
    if as_json:
        print_json({"healthy": healthy, "nodes": nodes})
    else:
        _print_nodes(nodes)
    if not healthy:
        raise typer.Exit(EXIT_ERROR)


@app.command(epilog="Example:  keelmq cluster settings --reject-transactions")
def settings(
    reject_transactions: Annotated[
        bool | None,
        typer.Option(
            "--reject-transactions/--accept-transactions",
            help="Refuse new half transactions, or accept them again. Decisions and checks continue.",
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the settings of the cluster, or change the given ones."""
    from keelmq.admin import Admin

    def work(connection: "Connection") -> "Coroutine[Any, Any, dict[str, Any]]":
        admin = Admin(connection)
        if reject_transactions is None:
            return admin.settings()
        return admin.put_settings(reject_transactions=reject_transactions)

    answer = run(servers, work, as_json=as_json)
    if as_json:
        print_json(answer)
    else:
        say(f"new transactions are {'refused' if answer['reject_transactions'] else 'taken'}")


def _is_healthy(nodes: list[dict[str, Any]]) -> bool:
    """Return whether one node leads, all answer and follow it, and no alarm is critical. Removed nodes do not count."""
    counted = [node for node in nodes if not node.get("removed")]
    leaders = [node for node in counted if node.get("role") == "leader"]
    if len(leaders) != 1 or any("error" in node for node in counted):
        return False
    if any(alarm["severity"] == "critical" for node in counted for alarm in node.get("alarms", ())):
        return False
    return all(node.get("leader_id") == leaders[0]["node_id"] for node in counted)


async def _ask_all(servers: str) -> list[dict[str, Any]]:
    """Return the views of the nodes named by `servers` and of the nodes that these know."""
    from keelmq.transport.connection import parse_servers

    urls = [origin.url for origin in parse_servers(servers)]
    answers = dict(zip(urls, await asyncio.gather(*map(_ask, urls)), strict=True))
    known = {str(node["url"]) for answer in answers.values() for node in answer.get("nodes", ())}
    new = sorted(known - answers.keys())
    answers.update(zip(new, await asyncio.gather(*map(_ask, new)), strict=True))
    # A node that is reachable under several URLs is shown once.
    by_node: dict[object, dict[str, Any]] = {}
    for url, answer in answers.items():
        by_node.setdefault(answer.get("node_id", url), {"url": url, **answer})
    return sorted(by_node.values(), key=lambda node: (node.get("node_id", 1 << 30), node["url"]))


async def _ask(url: str) -> dict[str, Any]:
    from keelmq import wire
    from keelmq.errors import KeelMQError
    from keelmq.transport.connection import Connection
    from keelmq.transport.retry import Deadline

    connection = Connection(url)
    try:
        return await connection.call_for(
            dict, "GET", "/v1/cluster", deadline=Deadline(NODE_TIMEOUT_MS), accept=wire.JSON, anywhere=True
        )
    except KeelMQError as exc:
        return {"error": exc.detail}
    finally:
        connection.close()


def _role(node: dict[str, Any]) -> str:
    """Return the role that the node reports for itself, with the percentage of a snapshot that it is receiving.

    A learner is a follower without a vote.
    """
    if node.get("removed"):
        return "removed"
    mine: dict[str, Any] = next((each for each in node.get("nodes", ()) if each["node_id"] == node.get("node_id")), {})
    role = "learner" if mine.get("membership") == "learner" else str(node.get("role", "unreachable"))
    percent = mine.get("snapshot_percent")
    return role if percent is None else f"{role}, snapshot {percent} %"


def _comparison(node: dict[str, Any]) -> str | None:
    """Return with which nodes this replica was compared, up to which entry, and the result."""
    replica = node.get("replica")
    if not replica:
        return None
    if replica["differs"]:
        return f"differs from entry {replica['first_index']} on" if replica["exact"] else "differs"
    parts = []
    for word, agrees in (("equals", True), ("not", False)):
        found = [each for each in replica["compared"] if each["agrees"] == agrees]
        if found:
            peers = ", ".join(str(each["node_id"]) for each in found)
            parts.append(f"{word} {peers} @{min(each['raft_index'] for each in found)}")
    return "; ".join(parts) or None


def _print_log_holders(nodes: list[dict[str, Any]]) -> None:
    """Print why the log is kept, as the leader sees it, or any node while there is no leader."""
    answering = [node for node in nodes if node.get("log_holders")]
    if not answering:
        return
    node = next((node for node in answering if node.get("role") == "leader"), answering[0])
    rows = [
        (
            each["kind"],
            each["subject"],
            each["raft_index"],
            None if each["since_ms"] is None else when(each["since_ms"]),
            each["bytes"],
        )
        for each in node["log_holders"]
    ]
    print_table(f"log of node {node['node_id']} is kept for", ["kind", "subject", "from entry", "since", "bytes"], rows)


def _print_nodes(nodes: list[dict[str, Any]]) -> None:
    from rich.console import Console

    answering = [node for node in nodes if "error" not in node and not node.get("removed")]
    if answering:
        newest = max(answering, key=lambda node: (node["leader_url"] is not None, node["term"]))
        leader = newest["leader_url"] or "no leader is known"
        level = f", feature level {newest['feature_level']}" if "feature_level" in newest else ""
        say(f"cluster {newest['cluster_id']}, term {newest['term']}, leader {leader}{level}")
    leaders = [str(node["node_id"]) for node in nodes if node.get("role") == "leader"]
    if len(leaders) > 1:
        say(f"nodes {', '.join(leaders)} lead: one has been replaced just now, or they are of two clusters")
    rows = [
        (
            node.get("node_id"),
            node["url"],
            _role(node),
            node.get("term"),
            node.get("commit_index"),
            node.get("applied_index"),
            node.get("durable_index"),
            f"{node['state_hash'][:12]} @{node['hash_index']}" if node.get("state_hash") else None,
            _comparison(node),
            ", ".join(str(peer["node_id"]) for peer in node.get("nodes", ()) if peer["connected"]) or None,
            upgrade.build_of(node),
        )
        for node in nodes
    ]
    positions = ["committed", "applied", "durable", "state hash"]
    columns = ["node", "url", "role", "term", *positions, "replica", "connected to", "version"]
    print_table(None, columns, rows)
    _print_log_holders(nodes)
    for node in nodes:
        for alarm in node.get("alarms", ()):
            say(f"node {node['node_id']}: {alarm['severity']} alarm {alarm['code']}: {alarm['detail']}")
    for node in nodes:
        if "error" in node:
            Console(stderr=True, highlight=False, soft_wrap=True).print(
                printable(f"{node['url']}: {node['error']}"), markup=False
            )
