"""Commands of `keelmq node`: single nodes while they run."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from keelmq.cli.operations.each_node import OneNode, ask_each
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, print_json, print_table, run, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keelmq.admin import LogLevel, NodeCalls, NodeDrain

NodeId = Annotated[int, typer.Argument(metavar="NODE_ID", help="Id of the node.")]
Level = Literal["debug", "info", "warning", "error", "reset"]

app = typer.Typer(no_args_is_help=True, help="Single nodes while they run.")


@app.callback()
def _root() -> None: ...


@app.command(
    "log-level",
    epilog="Examples:\n\n    keelmq node log-level\n\n    keelmq node log-level debug --logger raft --node 2\n\n"
    "    keelmq node log-level reset --logger raft",
)
def log_level(
    level: Annotated[
        Level | None, typer.Argument(metavar="[LEVEL]", help="debug, info, warning or error; reset: as before.")
    ] = None,
    logger: Annotated[
        str | None,
        typer.Option(
            "--logger", metavar="NAME", help="Change this logger and the loggers below it: raft, cluster.http."
        ),
    ] = None,
    node: OneNode = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show what the nodes log, or change it until they are started again: it is not stored, and SIGHUP takes the level
    of the configuration again.

    Exit code 1 if a node did not answer.
    """
    if logger is not None and level is None:
        raise typer.BadParameter("give a level for the logger", param_hint="LEVEL")

    async def work(calls: "NodeCalls") -> "LogLevel":
        if level is None:
            return await calls.log_level()
        if level != "reset":
            return await calls.set_log_level(level, logger=logger)
        now = await calls.log_level()
        if logger is not None:
            return await calls.set_log_level(None, logger=logger)
        for name in now.loggers:
            await calls.set_log_level(None, logger=name)
        return await calls.set_log_level(now.configured)

    answers = run(servers, lambda _: ask_each(servers, work, node), as_json=as_json)
    silent = [each for each in answers if each.answer is None]
    shown = [each.answer for each in answers if each.answer is not None]
    if as_json:
        print_json({"nodes": [each.document for each in shown], "unanswered": [each.document() for each in silent]})
    else:
        print_table(None, ["node", "log level", "configured", "loggers"], [_row(each) for each in shown])
        for each in silent:
            say(f"{each.url}: {each.error}", file=sys.stderr)
        if level not in (None, "reset"):
            say("not stored: until the next start or SIGHUP of the node")
    if silent:
        raise typer.Exit(EXIT_ERROR)


@app.command(epilog="Example:  keelmq node drain 2")
def drain(node_id: NodeId, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Have other nodes lead: a leader hands over, and does not stand again while another node can lead.

    The node keeps its data, votes and serves reads. Nothing is stored: its next start ends the drain, as undrain does.

    Exit code 1 if the node leads all the same, because no other voter could take over.
    """
    answer = _change(node_id, servers, lambda calls: calls.drain(), as_json=as_json)
    if not as_json:
        say(f"node {node_id} is drained until its next start" + (", and still leads" if answer.leads else ""))
    if answer.leads:
        say(f"node {node_id} leads until another voter can: see keelmq cluster status", file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)


@app.command(epilog="Example:  keelmq node undrain 2")
def undrain(node_id: NodeId, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Let a drained node lead again."""
    _change(node_id, servers, lambda calls: calls.undrain(), as_json=as_json)
    if not as_json:
        say(f"node {node_id} may lead again")


def _change(
    node_id: int, servers: str, work: "Callable[[NodeCalls], Awaitable[NodeDrain]]", *, as_json: bool
) -> "NodeDrain":
    (asked,) = run(servers, lambda _: ask_each(servers, work, node_id), as_json=as_json)
    assert asked.answer is not None, "a named node that cannot be asked is an error"
    if as_json:
        print_json(asked.answer.document)
    return asked.answer


def _row(shown: "LogLevel") -> list[object]:
    loggers = ", ".join(f"{name}={level}" for name, level in shown.loggers.items())
    return [shown.node_id, shown.level, shown.configured, loggers or None]
