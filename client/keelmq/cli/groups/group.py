"""Commands of `keelmq group`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from keelmq.cli.complete import GroupArgument, group_names, topic_names
from keelmq.cli.operators import Operator, operator_of
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
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
from keelmq.cli.times import parse_duration
from keelmq.limits import RETRY_MAX_ATTEMPTS_MAX

if TYPE_CHECKING:
    from keelmq.admin import AssignedQueue, GroupOffset, GroupPause, GroupSettings
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="List, show, change and reset consumer groups.")

Source = Annotated[
    str,
    typer.Argument(metavar="FROM", help="Group to copy from.", autocompletion=group_names, show_default=False),
]
Target = Annotated[
    str,
    typer.Argument(metavar="TO", help="Group to copy to.", autocompletion=group_names, show_default=False),
]


@app.command("list", epilog="Example:  keelmq group list")
def list_groups(servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """List the groups with their lag."""
    from keelmq.admin import Admin

    groups = run(servers, lambda connection: Admin(connection).groups(), as_json=as_json)
    if as_json:
        print_json({"groups": [each.document for each in groups]})
        return
    rows = [
        (
            g.group,
            ", ".join(g.topics),
            g.generation,
            len(g.members),
            sum(o.lag for o in g.offsets),
            when(g.paused.since_ms) if g.paused is not None else "-",
        )
        for g in groups
    ]
    print_table(None, ["group", "topics", "generation", "members", "lag", f"paused since ({zone()})"], rows)


@app.command(epilog="Example:  keelmq group show points")
def show(group: GroupArgument, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show members, assignment, offsets and lag of a group."""
    from keelmq.admin import Admin

    found = run(servers, lambda connection: Admin(connection).group(group), as_json=as_json)
    if as_json:
        print_json(found.document)
        return
    say(f"{found.group}: generation {found.generation}, topics {', '.join(found.topics) or '-'}")
    if found.paused is not None:
        say(_paused(found.group, found.paused))
    for topic, tags in found.tags.items():
        say(f"topic {topic}: only messages with the tags {tags}")
    for topic, expression in found.filters.items():
        say(f"topic {topic}: only messages that match {expression}")
    members = [(m.member_id, m.client_id, when(m.joined_at_ms), _queues(m.assignment)) for m in found.members]
    print_table(None, ["member", "client", f"joined ({zone()})", "queues"], members)
    _print_offsets(found.offsets)


@app.command(epilog="Example:  keelmq group settings points --max-attempts 5 --delays 10s,1m,10m")
def settings(
    group: GroupArgument,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=RETRY_MAX_ATTEMPTS_MAX,
            help="Redeliveries of a message before it becomes a dead letter. Default of a new group: 16.",
        ),
    ] = None,
    delays: Annotated[
        str | None,
        typer.Option(
            metavar="D,D,…",
            help="Delays before the first, second, … redelivery; the last one repeats. Default of a new group: "
            "10s, 30s, each minute from 1m to 10m, 20m, 30m, 1h, 2h.",
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a group, or change the given ones; a change creates a group that does not exist."""
    delays_ms = None if delays is None else [parse_duration(each, "--delays") for each in delays.split(",")]

    async def work(connection: "Connection") -> "GroupSettings":
        from keelmq.admin import Admin, GroupSettings

        admin = Admin(connection)
        if max_attempts is None and delays_ms is None:
            found = await admin.group(group)
            return GroupSettings(
                group=found.group,
                retry_max_attempts=found.retry_max_attempts,
                retry_delays_ms=found.retry_delays_ms,
            )
        return await admin.put_group(group, retry_max_attempts=max_attempts, retry_delays_ms=delays_ms)

    answer = run(servers, work, as_json=as_json)
    if as_json:
        print_json(answer.document)
        return
    say(f"{group}: a message is redelivered {answer.retry_max_attempts} times, then it is a dead letter")
    say(f"delays: {', '.join(duration(each) or '' for each in answer.retry_delays_ms)}")


@app.command(epilog="Example:  keelmq group pause points --reason 'the database is moved'")
def pause(
    group: GroupArgument,
    reason: Annotated[str, typer.Option(help="Reason of the pause; kept in the log, and told to consumers.")] = "",
    operator: Operator = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Hand out nothing to a group until it is resumed; its consumers finish and commit the messages that they have.

    Exit code 1 if the group was paused already and another reason is given: the first pause and its reason stay.
    """
    from keelmq.admin import Admin

    done = run(
        servers,
        lambda connection: Admin(connection).pause_group(group, operator=operator_of(operator), reason=reason),
        as_json=as_json,
    )
    is_lost = not done.changed and bool(reason) and (done.paused is None or done.paused.reason != reason)
    if as_json:
        print_json(done.document)
    else:
        if not done.changed:
            say(f"group {group} was paused already")
        if done.paused is not None:
            say(_paused(group, done.paused))
    if is_lost:
        say("the reason that is given now is not kept; to replace the first one, resume the group", file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)


@app.command(epilog="Example:  keelmq group resume points --reason 'the database is moved'")
def resume(
    group: GroupArgument,
    reason: Annotated[str, typer.Option(help="Reason; kept in the log.")] = "",
    operator: Operator = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Hand out messages to a paused group again, from where it was paused."""
    from keelmq.admin import Admin

    done = run(
        servers,
        lambda connection: Admin(connection).resume_group(group, operator=operator_of(operator), reason=reason),
        as_json=as_json,
    )
    if as_json:
        print_json(done.document)
    else:
        say(f"group {group} {'is resumed: it goes on where it was' if done.changed else 'was not paused'}")


@app.command("clone-offsets", epilog="Example:  keelmq group clone-offsets points points-2 --topic orders")
def clone_offsets(
    source: Source,
    target: Target,
    topic: Annotated[
        str | None, typer.Option(help="Copy only offsets of this topic.", autocompletion=topic_names)
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Set the offsets of a group to those of another group. Refused while the target group has members."""
    from keelmq.admin import Admin

    answer = run(
        servers, lambda connection: Admin(connection).clone_offsets(source, target, topic=topic), as_json=as_json
    )
    if as_json:
        print_json(answer.document)
        return
    say(f"{target} goes on from where {source} is, generation {answer.generation}")
    print_table(None, ["topic", "queue", "offset"], [(o.topic, o.queue, o.offset) for o in answer.offsets])


@app.command(epilog="Example:  keelmq group delete points --reason 'the service is gone'")
def delete(
    group: GroupArgument,
    with_dead_letters: Annotated[
        bool, typer.Option("--with-dead-letters", help="Delete dead letters too; otherwise they stay readable.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Reason of the deletion; kept in the log.")] = "",
    operator: Operator = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Delete an unused group with its offsets, settings and pending retries."""
    from keelmq.admin import Admin

    if not yes:
        confirm(f"Delete group {group} with its offsets?")

    async def work(connection: "Connection") -> None:
        await Admin(connection).delete_group(
            group, with_dead_letters=with_dead_letters, operator=operator_of(operator), reason=reason
        )

    run(servers, work, as_json=as_json)
    if as_json:
        print_json({"group": group, "deleted": True})
    else:
        say(f"group {group} is deleted")


RESET_EXAMPLES: Final = (
    "Examples:\n\n    keelmq group reset points --topic orders --to earliest\n\n"
    "    keelmq group reset points --topic orders --to latest  (skips the backlog)"
)


@app.command(epilog=RESET_EXAMPLES)
def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Option(help="Topic whose offsets are set.", autocompletion=topic_names)],
    queue: Annotated[int | None, typer.Option(min=0, help="Reset only this queue.")] = None,
    to: Annotated[Literal["earliest", "latest"] | None, typer.Option(help="Reset to the beginning or the end.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Next offset to read.")] = None,
    timestamp_ms: Annotated[
        int | None, typer.Option(min=0, help="Reset to the first message stored at or after this time.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Set committed offsets, also backwards. Running members continue from there."""
    from keelmq.admin import Admin

    answer = run(
        servers,
        lambda connection: Admin(connection).reset_group(
            group, topic, queue=queue, to=to, offset=offset, timestamp_ms=timestamp_ms
        ),
        as_json=as_json,
    )
    if as_json:
        print_json(answer.document)
        return
    say(f"{group}: generation {answer.generation}")
    print_table(None, ["topic", "queue", "offset"], [(o.topic, o.queue, o.offset) for o in answer.offsets])


def _paused(group: str, pause: "GroupPause") -> str:
    by = pause.operator or pause.principal
    whom, why = f" by {by}" if by else "", f": {pause.reason}" if pause.reason else ""
    return f"group {group} is paused since {when(pause.since_ms)} ({zone()}){whom}{why}"


def _queues(assignment: "Sequence[AssignedQueue]") -> str:
    return ", ".join(f"{each.topic}/{each.queue}" for each in assignment) or "-"


def _print_offsets(offsets: "Sequence[GroupOffset]") -> None:
    rows = [(o.topic, o.queue, o.offset, o.max_offset, o.lag) for o in offsets]
    print_table(None, ["topic", "queue", "committed", "max offset", "lag"], rows)
