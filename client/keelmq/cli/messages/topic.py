"""Commands of `keelmq topic`."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from keelmq.cli.complete import TopicArgument
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, duration, print_json, print_table, run, say, when, zone

if TYPE_CHECKING:
    from keelmq.admin import TopicInfo

app = typer.Typer(no_args_is_help=True, help="Create, list, show and delete topics.")

NewTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]
TopicType = Literal["normal", "fifo", "delay", "transaction", "any"]


@app.command(epilog="Example:  keelmq topic create orders --queues 8 --retention-ms 604800000")
def create(
    topic: NewTopic,
    queues: Annotated[int | None, typer.Option(min=1, max=1024, help="Number of queues; can only grow.")] = None,
    retention_ms: Annotated[int | None, typer.Option(min=-1, help="Retention in ms; -1: for ever.")] = None,
    type: Annotated[TopicType | None, typer.Option(help="Type of messages that it accepts.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change the given settings of an existing topic."""
    from keelmq.admin import Admin

    info = run(
        servers,
        lambda connection: Admin(connection).put_topic(topic, queues=queues, retention_ms=retention_ms, type=type),
        as_json=as_json,
    )
    _print_topic(info, as_json)


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
    rows = [(t.topic, t.type, t.queues, _messages(t), _kept(t)) for t in topics]
    print_table(None, ["topic", "type", "queues", "messages", "retention"], rows)


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
        typer.confirm(f"Delete topic {topic} and all its messages?", abort=True, err=True)
    run(servers, lambda connection: Admin(connection).delete_topic(topic), as_json=as_json)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        say(f"topic {topic} is deleted")


def _kept(topic: "TopicInfo") -> str:
    return "for ever" if topic.retention_ms == -1 else f"for {duration(topic.retention_ms)}"


def _messages(topic: "TopicInfo") -> int:
    return sum(each.max_offset - each.min_offset for each in topic.queue_offsets)


def _print_topic(topic: "TopicInfo", as_json: bool) -> None:
    if as_json:
        print_json(topic.document)
        return
    created = when(topic.created_at_ms)
    say(f"{topic.topic}: {topic.type}, kept {_kept(topic)}, created {created} {zone()}")
    rows = [
        (
            q.queue,
            q.min_offset,
            q.max_offset,
            when(q.first_stored_at_ms),
            when(q.last_stored_at_ms),
        )
        for q in topic.queue_offsets
    ]
    first, last = f"first stored ({zone()})", f"last stored ({zone()})"
    print_table(None, ["queue", "min offset", "max offset", first, last], rows)
