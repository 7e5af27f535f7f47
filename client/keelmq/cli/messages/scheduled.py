"""Commands of `keelmq scheduled`."""

from typing import Annotated

import typer

from keelmq.cli.complete import TopicArgument
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when, zone
from keelmq.limits import LIST_MAX

app = typer.Typer(no_args_is_help=True, help="List and cancel messages that wait for their delivery time.")


@app.command("list", epilog="Example:  keelmq scheduled list reminders --limit 20")
def list_scheduled(
    topic: TopicArgument,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="Maximum number of rows.")] = 100,
    after: Annotated[str | None, typer.Option(help="Cursor `next` of the previous page.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List scheduled messages, the next one first."""
    from keelmq.admin import Admin

    page = run(
        servers, lambda connection: Admin(connection).scheduled(topic, limit=limit, after=after), as_json=as_json
    )
    if as_json:
        print_json(page.document)
        return
    rows = [
        (m.message_id, m.queue, when(m.deliver_at_ms), when(m.scheduled_at_ms), m.transaction_id) for m in page.messages
    ]
    print_table(None, ["message", "queue", f"due ({zone()})", f"scheduled ({zone()})", "transaction"], rows)
    if page.next:
        say(f"there are more: --after {page.next}")


@app.command(epilog="Example:  keelmq scheduled cancel reminders reminder-17")
def cancel(
    topic: TopicArgument,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the message.")],
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Cancel a message before its delivery time. It is an error when it is too late."""
    from keelmq.admin import Admin

    run(servers, lambda connection: Admin(connection).cancel_scheduled(topic, message_id), as_json=as_json)
    if as_json:
        print_json({"topic": topic, "message_id": message_id, "cancelled": True})
    else:
        say(f"message {message_id} of {topic} will not be delivered")
