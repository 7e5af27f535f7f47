"""Command `keelmq doctor`: asks all nodes, looks from all sides, and says what to do next."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.operations.cluster import NODE_TIMEOUT_MS, Answer, ask_all
from keelmq.cli.operations.exposition import Reading
from keelmq.cli.operations.findings import CHECKS, findings_of
from keelmq.cli.operations.group_findings import OTHERS, waiting_groups
from keelmq.cli.operations.seen import Finding, Seen
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, connection_to, print_json, run, say
from keelmq.cli.times import parse_duration

if TYPE_CHECKING:
    from keelmq.admin import ClusterStatus

EXAMPLES: Final = "Example:  keelmq doctor --servers http://10.0.0.1:7081"
TEXT: Final = "text/plain"
GROUPS_MAX: Final = 100
"""Maximum number of groups whose members are asked for: those that wait longest."""
GROUPS_AT_ONCE: Final = 20


def doctor(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, max=600.0, help="Time between two looks, for what moves or is slow.")
    ] = 2.0,
    waiting: Annotated[
        str, typer.Option("--waiting", help="How long a message may wait for a group, or a transaction: 90s, 15m, 2h.")
    ] = "5m",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Examine the cluster: ask every node twice, and print what is wrong, by which evidence, and the next command.

    Exit code 1 if a finding is critical.
    """
    waiting_s = parse_duration(waiting, "--waiting") / 1_000
    seen = run(servers, lambda connection: look(servers, seconds, waiting_s), as_json=as_json)
    found = findings_of(seen)
    is_critical = any(finding.severity == "critical" for finding in found)
    if as_json:
        print_json(document_of(seen, found))
    else:
        _print(seen, found)
    if is_critical:
        raise typer.Exit(EXIT_ERROR)


def document_of(seen: Seen, found: Sequence[Finding]) -> dict[str, object]:
    return {
        "healthy": all(finding.severity != "critical" for finding in found),
        "nodes_asked": len(seen.statuses) + len(seen.unreachable),
        "checks": len(CHECKS),
        "findings": [finding.document() for finding in found],
    }


def _print(seen: Seen, found: Sequence[Finding]) -> None:
    for finding in found:
        say(f"{finding.severity}: {finding.what} ({finding.code})")
        say(f"    evidence: {finding.evidence}")
        say(f"    next: {finding.next_step}")
    asked = len(seen.statuses) + len(seen.unreachable)
    say(f"{len(found) or 'no'} finding{'s' * (len(found) != 1)} by {len(CHECKS)} checks of {asked} nodes")


async def look(servers: str, seconds: float, waiting_s: float) -> Seen:
    """Ask every node twice, `seconds` apart."""
    import asyncio

    first, before = await _ask(servers)
    await asyncio.sleep(seconds)
    last, after = await _ask(servers)
    sooner = {status.node_id: status for status in _statuses(first)}
    seen = Seen(
        statuses=_statuses(last),
        unreachable={answer.url: answer.error for answer in last if answer.status is None},
        before=before,
        after=after,
        moved={each.node_id: (sooner[each.node_id], each) for each in _statuses(last) if each.node_id in sooner},
        now_s=time.time(),
        waiting_s=waiting_s,
    )
    return seen._replace(consumed=await _consumed(servers, seen))


async def _consumed(servers: str, seen: Seen) -> dict[str, bool]:
    """Return which of the groups that wait for long have consumers. The `GROUPS_MAX` that wait longest are asked for;
    those that the token may not see, or whose answer is missing, are left out.
    """
    import asyncio

    from keelmq.admin import Admin
    from keelmq.errors import KeelMQError

    waiting = waiting_groups(seen)
    asked = sorted(waiting.keys() - {OTHERS}, key=lambda group: (-waiting[group], group))[:GROUPS_MAX]
    turns = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def is_consumed(group: str) -> bool | None:
        async with turns:
            try:
                detail = await admin.group(group)
            except KeelMQError:
                return None
        return bool(detail.members) or any(each.held for each in detail.offsets)

    connection = connection_to(servers, NODE_TIMEOUT_MS)
    try:
        admin = Admin(connection)
        found = await asyncio.gather(*(is_consumed(group) for group in asked))
    finally:
        connection.close()
    return {group: is_so for group, is_so in zip(asked, found, strict=True) if is_so is not None}


def _statuses(answers: Sequence[Answer]) -> "list[ClusterStatus]":
    return [answer.status for answer in answers if answer.status is not None]


async def _ask(servers: str) -> tuple[list[Answer], dict[int, Reading]]:
    """Return the answers of all nodes, and the metrics of those that show them."""
    import asyncio

    answers = await ask_all(servers)
    nodes = [(answer.status.node_id, answer.url) for answer in answers if answer.status is not None]
    readings = await asyncio.gather(*(read_metrics(url, servers) for _, url in nodes))
    return answers, {node_id: reading for (node_id, _), reading in zip(nodes, readings, strict=True) if reading}


async def read_metrics(url: str, servers: str) -> Reading:
    """Return the metrics of the node at `url`; empty when it does not show them."""
    from keelmq.errors import KeelMQError

    connection = connection_to(servers, NODE_TIMEOUT_MS, node=url)
    try:
        answer = await connection.call("GET", "/metrics", accept=TEXT, anywhere=True)
    except KeelMQError:
        return Reading()
    finally:
        connection.close()
    return Reading(answer.body.decode(errors="replace"))
