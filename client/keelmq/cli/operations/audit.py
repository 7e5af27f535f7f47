"""Commands of `keelmq audit`: who changed what, and who was denied, at all nodes."""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from keelmq.admin.audit import Outcome
from keelmq.cli.operations.each_node import OfNode, OneNode, ask_each
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
    AsJson,
    Servers,
    print_json,
    print_table,
    run,
    say,
    when,
    zone,
)
from keelmq.cli.times import parse_past

if TYPE_CHECKING:
    from keelmq.admin import AuditFilter, AuditPage, AuditRecord, NodeCalls

app = typer.Typer(no_args_is_help=True, help="List changes and refusals, with the names of those who asked.")

MAX_DEFAULT: Final = 100
MAX_MAX: Final = 10_000
FOLLOW_S: Final = 2.0
"""Seconds between two questions of --follow."""
FOLLOW_OVERLAP_MS: Final = 10_000
"""Time before a node's newest record for which --follow asks again: a record may be written later than its time."""
OFF: Final = "node {}: authentication is off, so its records name nobody"


class Shown(NamedTuple):
    """A record, and the node that has it."""

    node_id: int
    record: "AuditRecord"


class Part(NamedTuple):
    """The audit of one node, the newest record first."""

    auth: str
    records: "list[AuditRecord]"
    unreadable: int


@app.callback()
def _root() -> None: ...


@app.command(
    "list",
    epilog="Examples:\n\n    keelmq audit list --since 1h\n\n    keelmq audit list --denied --principal ann\n\n"
    "    keelmq audit list --route topics/orders --follow",
)
def list_records(
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Records from this time on: 15m, 1h, 7d ago, ISO 8601 (UTC without an offset) or Unix ms.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Records before this time, given like --since.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="NAME", help="Calls of this principal; or `anonymous`.")
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Denied calls alone; the same as --outcome denied.")] = False,
    outcome: Annotated[Outcome | None, typer.Option("--outcome", help="Calls that ended so.")] = None,
    action: Annotated[
        str | None, typer.Option("--action", metavar="ACTION", help="Calls that need this permission: admin, delete.")
    ] = None,
    route: Annotated[
        str | None,
        typer.Option(
            "--route", metavar="TEXT", help="Calls with this in method and path: 'DELETE /v1/topics', orders."
        ),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", metavar="ID", help="The call with this request id.")
    ] = None,
    newest: Annotated[
        int, typer.Option("--max", min=1, max=MAX_MAX, help="Maximum number of records; the newest are shown.")
    ] = MAX_DEFAULT,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")] = False,
    node: OneNode = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the audit of all nodes together, in the order of time: calls that change or administer something, and those
    that were denied. Needs the permission `admin` on the cluster.

    Exit code 1 if a node did not answer.
    """
    from keelmq.admin import AuditFilter

    if denied and outcome not in (None, "denied"):
        raise typer.BadParameter("--denied is the same as --outcome denied", param_hint="--outcome")
    if follow and until is not None:
        raise typer.BadParameter("--follow has no end", param_hint="--until")
    now_ms = time.time_ns() // 1_000_000
    wanted = AuditFilter(
        principal=principal,
        outcome="denied" if denied else outcome,
        action=action,
        route=route,
        request_id=request_id,
        since_ms=None if since is None else parse_past(since, "--since", now_ms),
        until_ms=None if until is None else parse_past(until, "--until", now_ms),
    )
    if follow:
        follower = Follower(servers, wanted, newest, node, as_json=as_json)
        run(servers, lambda _: follower.run(), as_json=as_json)
        return
    answers = run(
        servers, lambda _: ask_each(servers, lambda calls: read(calls, wanted, newest), node), as_json=as_json
    )
    _print_all(answers, merged(answers)[-newest:], as_json=as_json)
    if any(each.answer is None for each in answers):
        raise typer.Exit(EXIT_ERROR)


def _print_all(answers: "Sequence[OfNode[Part]]", shown: Sequence[Shown], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "records": [{"node_id": each.node_id, **each.record.document} for each in shown],
                "nodes": [
                    {"node_id": each.node_id, "auth": each.answer.auth, "unreadable": each.answer.unreadable}
                    for each in answers
                    if each.answer is not None
                ],
                "unanswered": [each.document() for each in answers if each.answer is None],
            }
        )
        return
    columns = [f"time ({zone()})", "node", "principal", "address", "call", "outcome", "entry", "request"]
    print_table(None, columns, map(_row, shown))
    for text in remarks(answers, shown):
        say(text, file=sys.stderr)


async def read(calls: "NodeCalls", wanted: "AuditFilter", newest: int) -> Part:
    """Return up to `newest` records of a node, page by page."""
    from keelmq.admin import AuditRecord
    from keelmq.admin.view import views_of
    from keelmq.limits import AUDIT_RECORDS_MAX

    found: list[AuditRecord] = []
    unreadable, after = 0, None
    while True:
        limit = min(newest - len(found), AUDIT_RECORDS_MAX)
        page: AuditPage = await calls.audit(wanted, limit=limit, after=after)
        found += views_of(AuditRecord, page.document, "records")  # parts of an answer do not keep their documents
        unreadable += page.unreadable
        after = page.next
        if after is None or len(found) >= newest:
            return Part(page.auth, found, unreadable)


def merged(answers: "Iterable[OfNode[Part]]") -> list[Shown]:
    """Return the records of all nodes, in the order of their times."""
    found = [
        Shown(of.node_id, each)
        for of in answers
        if of.answer is not None and of.node_id is not None
        for each in reversed(of.answer.records)
    ]
    return sorted(found, key=lambda each: each.record.at_ms)  # stable: those of a node stay in the order of writing


def remarks(answers: "Iterable[OfNode[Part]]", shown: Sequence[Shown]) -> Iterable[str]:
    """Yield the gaps of the list: nodes that did not answer or know nobody, and records that are missing."""
    for of in answers:
        if of.answer is None:
            yield f"{of.url}: {of.error}"
            continue
        if of.answer.auth == "off":
            yield OFF.format(of.node_id)
        missing = [each.record for each in shown if each.node_id == of.node_id and each.record.missing_before]
        for record in missing:
            yield f"node {of.node_id}: {record.missing_before} records before {when(record.at_ms)} could not be kept"
        if of.answer.unreadable:
            yield f"node {of.node_id}: {of.answer.unreadable} lines or files of its audit cannot be read"


def outcome_of(record: "AuditRecord") -> str:
    """Return the outcome in words."""
    text = record.outcome
    if record.outcome == "denied":
        text += f" {record.action} {record.resource}" if record.resource else f": {record.code}"
        if record.permitted:
            text += " (and let through: auth is permissive)"
    elif record.code:
        text += f": {record.code}"
    said = ": ".join(filter(None, (record.operator, record.reason)))
    return text + "".join(f" ({each})" for each in (record.detail, said) if each)


def _row(shown: Shown) -> list[Any]:
    record = shown.record
    call = f"{record.method} {record.path}"
    return [
        when(record.at_ms),
        shown.node_id,
        record.principal,
        record.address,
        call,
        outcome_of(record),
        record.raft_index,
        record.request_id,
    ]


class Follower:
    """Prints the newest records of all nodes, and then each new one."""

    def __init__(self, servers: str, wanted: "AuditFilter", newest: int, node: int | None, *, as_json: bool) -> None:
        self._servers = servers
        self._wanted = wanted
        self._newest = newest
        self._node = node
        self._as_json = as_json
        self._looks = 0
        self._seen_ms: dict[int, int] = {}
        """Time of the newest record of all nodes when a node answered last, by node."""
        self._known: set[tuple[int, str]] = set()
        self._errors: dict[str, str] = {}

    async def run(self) -> None:
        """Look again and again, until the process is interrupted."""
        import asyncio

        while True:
            self.take(await ask_each(self._servers, self.look, self._node))
            await asyncio.sleep(FOLLOW_S)

    async def look(self, calls: "NodeCalls") -> Part:
        """Return the newest records of a node, and later those since a little before the last look."""
        import msgspec

        if not self._looks:
            return await read(calls, self._wanted, self._newest)
        since_ms = min(self._seen_ms.values(), default=0) - FOLLOW_OVERLAP_MS
        wanted = msgspec.structs.replace(self._wanted, since_ms=max(since_ms, self._wanted.since_ms or 0))
        return await read(calls, wanted, MAX_MAX)

    def take(self, answers: "list[OfNode[Part]]") -> None:
        """Print what is new in the answers of all nodes."""
        found = merged(answers)
        new = [each for each in found if (each.node_id, each.record.id) not in self._known]
        for each in new if self._looks else new[-self._newest :]:
            _print_line(each, as_json=self._as_json)
        known = {(each.node_id, each.record.id) for each in found}
        is_whole = all(each.answer is not None for each in answers)
        self._known = known if is_whole else self._known | known
        newest_ms = max((each.record.at_ms for each in found), default=0)
        newest_ms = max(newest_ms, *self._seen_ms.values(), 0)
        for of in answers:
            if of.answer is not None and of.node_id is not None:
                self._seen_ms[of.node_id] = newest_ms
            self._tell(of)
        self._looks += 1

    def _tell(self, of: "OfNode[Part]") -> None:
        """Say once that a node does not answer, or does again, or knows nobody."""
        if of.error != self._errors.get(of.url, ""):
            say(f"{of.url}: {of.error or 'answers again'}", file=sys.stderr)
        self._errors[of.url] = of.error
        if not self._looks and of.answer is not None and of.answer.auth == "off":
            say(OFF.format(of.node_id), file=sys.stderr)


def _print_line(shown: Shown, *, as_json: bool) -> None:
    record = shown.record
    if as_json:
        print_json({"node_id": shown.node_id, **record.document})
        return
    missing = f" [{record.missing_before} records before this one are missing]" if record.missing_before else ""
    say(
        f"{when(record.at_ms)}  node {shown.node_id}  {record.principal} at {record.address}  {record.method} "
        f"{record.path}  {outcome_of(record)}  {record.request_id or '-'}{missing}",
        flush=True,
    )
