"""Commands of `keelmq message`."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli.complete import topic_names
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when
from keelmq.cli.timeline import Event, print_timeline
from keelmq.cli.times import parse_time

if TYPE_CHECKING:
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="Find messages by id, key, time or offset, and trace one.")

BODY_SHOWN: Final = 60
"""Maximum number of characters of a body in a table; a single message is shown in full."""

GET_EXAMPLES: Final = (
    "Examples:\n\n    keelmq message get order-1\n\n    keelmq message get --topic orders --key customer-7\n\n"
    "    keelmq message get --topic orders --at 2026-05-04T09:12:00 --limit 20\n\n"
    "    keelmq message get --topic orders --queue 0 --offset 17"
)
OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the message.", show_default=False)]


@app.command(epilog=GET_EXAMPLES)
def get(
    message_id: OptionalId = None,
    topic: Annotated[
        str | None, typer.Option(help="Topic to search; required unless an ID is given.", autocompletion=topic_names)
    ] = None,
    key: Annotated[str | None, typer.Option(help="Find messages that carry this key.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Find messages stored at this time or later: ISO 8601 or Unix ms.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Find messages stored before this time.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Queue of the --offset.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Find the message at this offset.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of rows, with --key, --at and --until.")
    ] = 100,
    after: Annotated[str | None, typer.Option(help="Cursor `next` of the previous page.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Find messages: by ID in all topics or one, or in one topic by key, time or offset."""
    listed = key is not None or at is not None or until is not None
    if (message_id is not None) + listed + (offset is not None) != 1:
        raise typer.BadParameter("give an ID, or --topic with --key, --at and --until, or with --queue and --offset")
    if message_id is None and topic is None:
        raise typer.BadParameter("needed unless an ID is given", param_hint="--topic")
    if (queue is None) != (offset is None):
        raise typer.BadParameter("goes with --offset", param_hint="--queue")
    from_ms = 0 if at is None else parse_time(at, "--at")
    to_ms = None if until is None else parse_time(until, "--until")

    async def work(connection: "Connection") -> dict[str, Any]:
        from keelmq.admin import Admin

        admin = Admin(connection)
        if message_id is not None:
            return {"messages": await admin.message(message_id, topic=topic)}
        assert topic is not None
        if queue is not None and offset is not None:
            return {"messages": [await admin.message_at(topic, queue, offset)]}
        return await admin.messages(topic, key=key, from_ms=from_ms, to_ms=to_ms, limit=limit, after=after)

    page = run(servers, work, as_json=as_json)
    if as_json:
        print_json(page)
    elif listed:
        _print_list(page)
    else:
        for message in page["messages"]:
            _print_message(message)


@app.command(epilog="Example:  keelmq message trace order-1")
def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the message.", show_default=False)],
    topic: Annotated[
        str | None, typer.Option(help="Search only this topic; default: all topics.", autocompletion=topic_names)
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the history of a message: produced, decided, consumed (by whom and when), given back, dead, replayed."""
    from keelmq.admin import Admin

    traces = run(servers, lambda connection: Admin(connection).trace(message_id, topic=topic), as_json=as_json)
    if as_json:
        print_json({"message_id": message_id, "traces": traces})
        return
    for each in traces:
        where = f"{each['topic']}/{each['queue']}" + (f" at offset {each['offset']}" if "offset" in each else "")
        print_timeline(f"message {message_id} is {each['state']} in {where} (UTC)", each["events"], _said_of)


def _said_of(event: Event) -> list[str]:
    """Return the parts of an event in the order of the printed line."""
    said: list[str] = []
    if "group" in event:
        said.append(f"by group {event['group']}")
    if "topic" in event:
        place = f"{event['topic']}/{event['queue']}" if "queue" in event else event["topic"]
        said.append(f"in {place}" + (f" at offset {event['offset']}" if "offset" in event else ""))
    if "committed_offset" in event:
        said.append(f"offset set to {event['committed_offset']}")
    if event.get("first_commit"):
        said.append("first commit of the group in this queue: it may have begun after the message")
    if event.get("attempt"):
        said.append(f"attempt {event['attempt']}")
    if "due_at_ms" in event:
        said.append(f"due {when(event['due_at_ms'])}")
    labels = ("transaction_id", "source", "via", "answer", "member_id", "client_id", "operator", "reason")
    said += [f"{label.removesuffix('_id')} {event[label]}" for label in labels if event.get(label)]
    return [*said, "forced"] if event.get("forced") else said


def _print_list(page: dict[str, Any]) -> None:
    rows = [
        (when(m["stored_at_ms"]), f"{m['topic']}/{m['queue']}", m["offset"], m["message_id"], m["tag"], _shown(m))
        for m in page["messages"]
    ]
    print_table(None, ["stored (UTC)", "queue", "offset", "message", "tag", "body"], rows)
    if page.get("next"):
        say(f"there are more: --after {page['next']}")


def _shown(message: dict[str, Any]) -> str:
    body: str = message["body"]
    text = body if len(body) <= BODY_SHOWN else body[:BODY_SHOWN] + "…"
    return repr(text)[1:-1] + (" (base64)" if message["encoding"] == "base64" else "")


def _print_message(message: dict[str, Any]) -> None:
    where = f"{message['topic']}/{message['queue']}"
    where += f" at offset {message['offset']}" if "offset" in message else f", {message['state']}"
    say(f"message {message['message_id']} in {where}")
    rows: list[tuple[str, Any]] = [
        ("stored", f"{when(message['stored_at_ms'])} UTC"),
        ("due", f"{when(message['deliver_at_ms'])} UTC" if "deliver_at_ms" in message else None),
        ("born", f"{when(message['born_at_ms'])} UTC" if message["born_at_ms"] else None),
        ("tag", message["tag"]),
        ("keys", ", ".join(message["keys"])),
        ("properties", ", ".join(f"{name}={value}" for name, value in message["properties"].items())),
        ("sharding key", message["sharding_key"]),
        ("transaction", message.get("transaction_id")),
        ("attempt", message.get("attempt")),
        ("log entry", f"#{message['raft_index']}" if "raft_index" in message else None),
    ]
    for name, value in rows:
        if value:
            say(f"  {name}: {value}")
    say(f"  body{' (base64)' if message['encoding'] == 'base64' else ''}: {message['body']}")
