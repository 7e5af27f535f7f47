"""Commands of `keelmq message`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from keelmq.cli.complete import topic_names
from keelmq.cli.messages.timeline import print_timeline
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when, zone
from keelmq.cli.times import parse_time
from keelmq.limits import LIST_MAX

if TYPE_CHECKING:
    from keelmq.admin import StoredMessage, TraceEvent
    from keelmq.transport.connection import Connection

app = typer.Typer(
    no_args_is_help=True, help="Find messages by id, key, time or offset, trace one, and find what it caused."
)

BODY_SHOWN: Final = 60
"""Maximum number of characters of a body in a table; a single message is shown in full."""

GET_EXAMPLES: Final = (
    "Examples:\n\n    keelmq message get order-1\n\n    keelmq message get --topic orders --key customer-7\n\n"
    "    keelmq message get --topic orders --at 2026-05-04T09:12:00 --limit 20\n\n"
    "    keelmq message get --topic orders --queue 0 --offset 17"
)


class Found(NamedTuple):
    """Messages that were found, the JSON document about them, and the cursor of the next page, if there is one."""

    messages: "Sequence[StoredMessage]"
    document: dict[str, Any]
    next: str | None = None


OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the message.", show_default=False)]


@app.command(epilog=GET_EXAMPLES)
def get(
    message_id: OptionalId = None,
    topic: Annotated[
        str | None, typer.Option(help="Topic to search; required unless an ID is given.", autocompletion=topic_names)
    ] = None,
    key: Annotated[str | None, typer.Option(help="Find messages that carry this key.")] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Find messages stored at this time or later: ISO 8601 (UTC without an offset) or Unix ms."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Find messages stored before this time.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Queue of the --offset.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Find the message at this offset.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=LIST_MAX, help="Maximum number of rows, with --key, --at and --until.")
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

    async def work(connection: "Connection") -> Found:
        from keelmq.admin import Admin

        admin = Admin(connection)
        if message_id is not None:
            return _found(await admin.message(message_id, topic=topic))
        assert topic is not None
        if queue is not None and offset is not None:
            return _found([await admin.message_at(topic, queue, offset)])
        page = await admin.messages(topic, key=key, from_ms=from_ms, to_ms=to_ms, limit=limit, after=after)
        return Found(page.messages, page.document, page.next)

    found = run(servers, work, as_json=as_json)
    if as_json:
        print_json(found.document)
    elif listed:
        _print_list(found)
    else:
        for message in found.messages:
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
        print_json({"message_id": message_id, "traces": [each.document for each in traces]})
        return
    for each in traces:
        where = f"{each.topic}/{each.queue}" + (f" at offset {each.offset}" if each.offset is not None else "")
        print_timeline(f"message {message_id} is {each.state} in {where} ({zone()})", each.events, _said_of)
    if any(each.groups_left_out for each in traces):
        say("groups that you may not describe were left out: others may have had the message", file=sys.stderr)


@app.command(epilog="Example:  keelmq message caused order-1 --topic orders")
def caused(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the message.", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option(help="Topic of the message; default: all topics with such a message.", autocompletion=topic_names),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Search the log for what a message caused: the messages that handlers sent while they processed it.

    The log is read from the message on, which takes time where it is long. Progress is on stderr; Ctrl-C stops.
    """
    from keelmq.cli.messages.caused import CausedReport

    report = CausedReport(as_json=as_json)

    async def work(connection: "Connection") -> None:
        from keelmq.admin import Admin

        admin = Admin(connection)
        topics = [topic] if topic is not None else [each.topic for each in await admin.trace(message_id)]
        for each in dict.fromkeys(topics):
            async for page in admin.caused(message_id, each):
                report.add(each, page)

    run(servers, work, as_json=as_json)
    report.end(message_id)


def _said_of(event: "TraceEvent") -> list[str]:
    """Return the parts of an event in the order of the printed line."""
    said: list[str] = []
    if event.group is not None:
        said.append(f"by group {event.group}")
    if event.topic is not None:
        place = f"{event.topic}/{event.queue}" if event.queue is not None else event.topic
        said.append(f"in {place}" + (f" at offset {event.offset}" if event.offset is not None else ""))
    if event.committed_offset is not None:
        said.append(f"offset set to {event.committed_offset}")
    if event.first_commit:
        said.append("first commit of the group in this queue: it may have begun after the message")
    if event.attempt:
        said.append(f"attempt {event.attempt}")
    if event.due_at_ms is not None:
        said.append(f"due {when(event.due_at_ms)}")
    labels = ("transaction_id", "source", "via", "answer", "member_id", "client_id", "principal", "operator", "reason")
    said += [f"{label.removesuffix('_id')} {getattr(event, label)}" for label in labels if getattr(event, label)]
    return [*said, "forced"] if event.forced else said


def _found(messages: "Sequence[StoredMessage]") -> Found:
    return Found(messages, {"messages": [each.document for each in messages]})


def _print_list(page: Found) -> None:
    rows = [
        (when(m.stored_at_ms), f"{m.topic}/{m.queue}", m.offset, m.message_id, m.tag, _shown(m)) for m in page.messages
    ]
    print_table(None, [f"stored ({zone()})", "queue", "offset", "message", "tag", "body"], rows)
    if page.next:
        say(f"there are more: --after {page.next}")


def _shown(message: "StoredMessage") -> str:
    body = message.body
    text = body if len(body) <= BODY_SHOWN else body[:BODY_SHOWN] + "…"
    return repr(text)[1:-1] + (" (base64)" if message.encoding == "base64" else "")


def _print_message(message: "StoredMessage") -> None:
    from keelmq.admin import FoundMessage

    found = message if isinstance(message, FoundMessage) else None
    where = f"{message.topic}/{message.queue}"
    where += f" at offset {message.offset}" if found is None or found.offset is not None else f", {found.state}"
    say(f"message {message.message_id} in {where}")
    rows: list[tuple[str, Any]] = [
        ("stored", f"{when(message.stored_at_ms)} {zone()}"),
        ("due", f"{when(found.deliver_at_ms)} {zone()}" if found and found.deliver_at_ms is not None else None),
        ("born", f"{when(message.born_at_ms)} {zone()}" if message.born_at_ms else None),
        ("tag", message.tag),
        ("keys", ", ".join(message.keys)),
        ("properties", ", ".join(f"{name}={value}" for name, value in message.properties.items())),
        ("sharding key", message.sharding_key),
        ("transaction", message.transaction_id),
        ("attempt", message.attempt),
        ("log entry", f"#{found.raft_index}" if found else None),
    ]
    for name, value in rows:
        if value:
            say(f"  {name}: {value}")
    say(f"  body{' (base64)' if message.encoding == 'base64' else ''}: {message.body}")
