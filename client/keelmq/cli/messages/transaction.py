"""Commands of `keelmq transaction`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from keelmq.cli.messages.timeline import print_timeline
from keelmq.cli.operators import Operator, operator_of
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when, zone
from keelmq.cli.times import parse_duration
from keelmq.limits import LIST_MAX

if TYPE_CHECKING:
    from keelmq.admin import TimelineEvent, TransactionInfo

app = typer.Typer(no_args_is_help=True, help="List, show, resume and decide half transactions.")

TransactionId = Annotated[str, typer.Argument(metavar="ID", help="Id of the transaction.")]
Force = Annotated[bool, typer.Option("--force", help="Also decide a discarded transaction; requires --reason.")]
Reason = Annotated[str | None, typer.Option(help="Reason; kept in the timeline.")]
State = Literal["prepared", "committed", "rolled_back", "discarded"]


@app.command("list", epilog="Example:  keelmq transaction list --state prepared --older-than 15m")
def list_transactions(
    state: Annotated[State | None, typer.Option(help="List only transactions in this state.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="List only transactions of at least this age: 90s, 15m, 2h, 3d."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="Maximum number of rows.")] = 100,
    after: Annotated[str | None, typer.Option(help="Cursor `next` of the previous page.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List transactions."""
    from keelmq.admin import Admin

    older_than_ms = None if older_than is None else parse_duration(older_than, "--older-than")
    page = run(
        servers,
        lambda connection: Admin(connection).transactions(
            state=state, older_than_ms=older_than_ms, limit=limit, after=after
        ),
        as_json=as_json,
    )
    if as_json:
        print_json(page.document)
        return
    rows = [
        (t.transaction_id, t.state, t.producer_group, when(t.prepared_at_ms), t.check_times, _topics(t))
        for t in page.transactions
    ]
    print_table(None, ["transaction", "state", "group", f"prepared ({zone()})", "checks", "messages"], rows)
    if page.next:
        say(f"there are more: --after {page.next}")


@app.command(epilog="Example:  keelmq transaction show 4b39f920a1c28884d447c708f3f858b6")
def show(transaction_id: TransactionId, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show a transaction with its timeline."""
    from keelmq.admin import Admin

    found = run(servers, lambda connection: Admin(connection).transaction(transaction_id), as_json=as_json)
    if as_json:
        print_json(found.document)
        return
    say(f"transaction {found.transaction_id} of producer group {found.producer_group} is {found.state}")
    for batch in found.messages:
        say(f"  {batch.count} message(s) for {batch.topic}")
    for place in found.positions:
        where = f"{place.topic}/{place.queue}"
        if place.offset is not None:
            say(f"  visible in {where} at offset {place.offset}, {place.count} message(s)")
        else:
            say(f"  due in {where} {when(place.deliver_at_ms)} {zone()}, {place.count} message(s)")
    if found.next_check_at_ms:
        say(f"  next check {when(found.next_check_at_ms)} {zone()}")
    print_timeline(f"timeline ({zone()})", found.timeline, _said_of)


@app.command(epilog="Example:  keelmq transaction resume 4b39f920a1c28884d447c708f3f858b6 --reason 'shop is back'")
def resume(
    transaction_id: TransactionId,
    reason: Annotated[str, typer.Option(help="Reason; kept in the timeline.")],
    operator: Operator = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Restart the checks of a discarded transaction, from the first check on."""
    from keelmq.admin import Admin

    answer = run(
        servers,
        lambda connection: Admin(connection).resume(transaction_id, operator=operator_of(operator), reason=reason),
        as_json=as_json,
    )
    if as_json:
        print_json(answer.document)
    else:
        say(f"transaction {transaction_id} is {answer.state}, next check {when(answer.next_check_at_ms)} {zone()}")


@app.command(epilog="Example:  keelmq transaction commit 4b39f920a1c28884d447c708f3f858b6")
def commit(
    transaction_id: TransactionId,
    force: Force = False,
    reason: Reason = None,
    operator: Operator = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Commit a transaction as an operator: its messages become visible."""
    _decide(transaction_id, "commit", force, reason, operator, servers, as_json)


@app.command(
    epilog="Example:  keelmq transaction rollback 4b39f920a1c28884d447c708f3f858b6 --force --reason 'paid twice'"
)
def rollback(
    transaction_id: TransactionId,
    force: Force = False,
    reason: Reason = None,
    operator: Operator = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Roll a transaction back as an operator: its messages are dropped."""
    _decide(transaction_id, "rollback", force, reason, operator, servers, as_json)


def _decide(
    transaction_id: str,
    decision: Literal["commit", "rollback"],
    force: bool,
    reason: str | None,
    operator: str,
    servers: str,
    as_json: bool,
) -> None:
    from keelmq.admin import Admin

    if force and not reason:
        raise typer.BadParameter("--force requires a reason, which the timeline keeps", param_hint="--reason")
    answer = run(
        servers,
        lambda connection: Admin(connection).decide(
            transaction_id, decision, force=force, operator=operator_of(operator) or None, reason=reason
        ),
        as_json=as_json,
    )
    if as_json:
        print_json(answer.document)
    else:
        say(f"transaction {answer.transaction_id} is {answer.state}")


def _topics(transaction: "TransactionInfo") -> str:
    return ", ".join(f"{batch.count} to {batch.topic}" for batch in transaction.messages)


def _said_of(event: "TimelineEvent") -> list[str]:
    said = [f"answer {event.answer}"] if event.answer else []
    said += ["forced"] if event.forced else []
    labels = ("source", "via", "client_id", "principal", "operator", "reason")
    return said + [f"{label} {getattr(event, label)}" for label in labels if getattr(event, label)]
