"""Commands of `keelmq topic`."""

import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from keelmq.cli.complete import TopicArgument
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    AsJson,
    Servers,
    confirm,
    duration,
    print_json,
    print_table,
    run,
    say,
    when,
    zone,
)
from keelmq.cli.sizes import parse_size, size
from keelmq.cli.times import parse_duration
from keelmq.limits import QUEUES_MAX

if TYPE_CHECKING:
    from keelmq.admin import TopicInfo
    from keelmq.transport.connection import Connection

UNLIMITED: Final = -1
"""Value of a limit that is none."""

app = typer.Typer(no_args_is_help=True, help="Create, alter, list, show, purge and delete topics.")

NewTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
TopicType = Literal["normal", "fifo", "delay", "transaction", "any"]


Queues = Annotated[
    int | None, typer.Option(min=1, max=QUEUES_MAX, help="Number of queues; can only grow. Default of a new topic: 4.")
]
RetentionMs = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time for which messages are kept: 90s, 15m, 7d, or ms; -1: for ever. Default of a new topic: 3d.",
    ),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Bytes of the newest messages that are kept: 512M, 10G; -1: no limit. Default of a new topic: -1.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Lower a limit without a question, although messages may go.")]
Type = Annotated[
    TopicType | None, typer.Option(help="Type of messages that the topic accepts. Default of a new topic: any.")
]


@app.command(epilog="Example:  keelmq topic create orders --queues 8 --retention-ms 7d --retention-bytes 10G")
def create(
    topic: NewTopic,
    queues: Queues = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    type: Type = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change the given settings of an existing topic. A lower limit asks before messages go."""
    from keelmq.admin import Admin

    kept_ms, kept_bytes = _limits(retention_ms, retention_bytes)
    if not yes:
        _ask_before_loss(topic, kept_ms, kept_bytes, servers, as_json=as_json)
    info = run(
        servers,
        lambda connection: Admin(connection).put_topic(
            topic, queues=queues, retention_ms=kept_ms, type=type, retention_bytes=kept_bytes
        ),
        as_json=as_json,
    )
    _print_topic(info, as_json)


@app.command(epilog="Example:  keelmq topic alter orders --retention-bytes 10G")
def alter(
    topic: TopicArgument,
    queues: Queues = None,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    type: Type = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Change the given settings of an existing topic. A lower limit asks before messages go."""
    kept_ms, kept_bytes = _limits(retention_ms, retention_bytes)
    if not yes:
        _ask_before_loss(topic, kept_ms, kept_bytes, servers, as_json=as_json)

    async def work(connection: "Connection") -> "TopicInfo":
        from keelmq.admin import Admin

        admin = Admin(connection)
        await admin.topic(topic)  # the call below would create it
        return await admin.put_topic(topic, queues=queues, retention_ms=kept_ms, type=type, retention_bytes=kept_bytes)

    _print_topic(run(servers, work, as_json=as_json), as_json)


@app.command("list", epilog="Example:  keelmq topic list --system --json")
def list_topics(
    system: Annotated[bool, typer.Option("--system", help="List system topics too.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    from keelmq.admin import Admin

    topics = run(servers, lambda connection: Admin(connection).topics(system=system), as_json=as_json)
    if as_json:
        print_json({"topics": [each.document for each in topics]})
        return
    rows = [(t.topic, t.type, t.queues, _messages(t), size(t.bytes), _kept(t)) for t in topics]
    print_table(None, ["topic", "type", "queues", "messages", "size", "retention"], rows)


@app.command(epilog="Example:  keelmq topic show orders")
def show(topic: TopicArgument, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show a topic: the offsets of its queues, and when their first and last messages were stored."""
    from keelmq.admin import Admin

    _print_topic(run(servers, lambda connection: Admin(connection).topic(topic), as_json=as_json), as_json)


@app.command(epilog="Example:  keelmq topic delete orders --yes")
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its messages."""
    from keelmq.admin import Admin

    if not yes:
        confirm(f"Delete topic {topic} and all its messages?")
    run(servers, lambda connection: Admin(connection).delete_topic(topic), as_json=as_json)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        say(f"topic {topic} is deleted")


@app.command(epilog="Example:  keelmq topic purge orders --queue 2 --yes")
def purge(
    topic: TopicArgument,
    queue: Annotated[int | None, typer.Option(min=0, help="Purge only this queue.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Remove all messages that a topic, or one queue of it, has now. Consumers go on with later messages.

    Messages that wait for their time, halves of undecided transactions, retries and dead letters of groups stay.
    """
    from keelmq.admin import Admin

    what = f"topic {topic}" if queue is None else f"queue {queue} of topic {topic}"
    if not yes:
        confirm(f"Remove all messages of {what}, consumed or not?")
    purged = run(servers, lambda connection: Admin(connection).purge_topic(topic, queue=queue), as_json=as_json)
    if as_json:
        print_json(purged.document)
        return
    say(f"{purged.messages} messages of {what} are removed")
    if purged.queues:
        rows = [(each.queue, each.messages, each.min_offset) for each in purged.queues]
        print_table(None, ["queue", "removed", "goes on at"], rows)


@app.command(epilog="Example:  keelmq topic stats orders --seconds 10")
def stats(
    topic: TopicArgument,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=600.0, help="Time between two looks, for the rates.")
    ] = 2.0,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the size and the oldest and newest message of each queue, and how many messages come and go in a second."""

    async def work(connection: "Connection") -> "tuple[TopicInfo, TopicInfo, float]":
        import asyncio

        from keelmq.admin import Admin

        admin = Admin(connection)
        before, began = await admin.topic(topic), time.monotonic()
        await asyncio.sleep(seconds)
        return before, await admin.topic(topic), time.monotonic() - began

    before, after, passed_s = run(servers, work, as_json=as_json)
    rates = {
        now.queue: ((now.max_offset - then.max_offset) / passed_s, (now.min_offset - then.min_offset) / passed_s)
        for then, now in zip(before.queue_offsets, after.queue_offsets, strict=False)  # it may have grown meanwhile
    }
    stored = sum(each for each, _ in rates.values())
    removed = sum(each for _, each in rates.values())
    if as_json:
        document = {"stored_per_s": stored, "removed_per_s": removed, "seconds": passed_s}
        print_json({**after.document, **document})
        return
    held = "" if after.bytes is None else f", {size(after.bytes)}"
    moved = f"{stored:.1f}/s stored, {removed:.1f}/s removed"
    say(f"{topic}: {_messages(after)} messages{held}, {moved}, kept {_kept(after)}")
    rows = [
        (
            each.queue,
            each.max_offset - each.min_offset,
            size(each.bytes),
            *(f"{rate:.1f}" for rate in rates.get(each.queue, (0.0, 0.0))),
            when(each.first_stored_at_ms),
            when(each.last_stored_at_ms),
        )
        for each in after.queue_offsets
    ]
    columns = ["queue", "messages", "size", "stored/s", "removed/s", f"oldest ({zone()})", f"newest ({zone()})"]
    print_table(None, columns, rows)


def _limits(retention_ms: str | None, retention_bytes: str | None) -> tuple[int | None, int | None]:
    """Return the limits in ms and bytes. Raises BadParameter."""
    kept_ms = None if retention_ms is None else UNLIMITED
    if retention_ms is not None and retention_ms.strip() != str(UNLIMITED):
        kept_ms = parse_duration(retention_ms, "--retention-ms")
    kept_bytes = None if retention_bytes is None else UNLIMITED
    if retention_bytes is not None and retention_bytes.strip() != str(UNLIMITED):
        kept_bytes = parse_size(retention_bytes, "--retention-bytes")
    return kept_ms, kept_bytes


def _ask_before_loss(topic: str, kept_ms: int | None, kept_bytes: int | None, servers: str, *, as_json: bool) -> None:
    """Ask whether to go on if the topic has messages, and a given limit is below the one that it has."""
    if kept_ms is None and kept_bytes is None:
        return

    async def find(connection: "Connection") -> "TopicInfo | None":
        from keelmq.admin import Admin
        from keelmq.errors import TopicNotFound

        try:
            return await Admin(connection).topic(topic)
        except TopicNotFound:
            return None

    found = run(servers, find, as_json=as_json)
    if found is None or not (messages := _messages(found)):
        return
    lowered = []
    if kept_ms is not None and _is_lower(kept_ms, found.retention_ms):
        lowered.append(f"kept for {duration(kept_ms)}")
    if kept_bytes is not None and _is_lower(kept_bytes, found.retention_bytes):
        lowered.append(f"at most {size(kept_bytes)}")
    if lowered:
        confirm(f"Topic {topic}, kept {_kept(found)}: {', '.join(lowered)} from now on? Up to {messages} messages go.")


def _is_lower(limit: int, former: int) -> bool:
    return limit != UNLIMITED and (former == UNLIMITED or limit < former)


def _kept(topic: "TopicInfo") -> str:
    kept = "for ever" if topic.retention_ms == UNLIMITED else f"for {duration(topic.retention_ms)}"
    return kept if topic.retention_bytes == UNLIMITED else f"{kept}, at most {size(topic.retention_bytes)}"


def _messages(topic: "TopicInfo") -> int:
    return sum(each.max_offset - each.min_offset for each in topic.queue_offsets)


def _print_topic(topic: "TopicInfo", as_json: bool) -> None:
    if as_json:
        print_json(topic.document)
        return
    created = when(topic.created_at_ms)
    held = "" if topic.bytes is None else f"{size(topic.bytes)}, "
    say(f"{topic.topic}: {topic.type}, {held}kept {_kept(topic)}, created {created} {zone()}")
    rows = [
        (
            q.queue,
            q.min_offset,
            q.max_offset,
            size(q.bytes),
            when(q.first_stored_at_ms),
            when(q.last_stored_at_ms),
        )
        for q in topic.queue_offsets
    ]
    first, last = f"first stored ({zone()})", f"last stored ({zone()})"
    print_table(None, ["queue", "min offset", "max offset", "size", first, last], rows)
