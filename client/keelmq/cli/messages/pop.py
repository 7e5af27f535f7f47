"""Command `keelmq pop`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.complete import TopicArgument, group_names
from keelmq.cli.messages.consume import message_line, print_message
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, run, say
from keelmq.cli.times import parse_duration

if TYPE_CHECKING:
    from keelmq.consuming.pop_calls import PopCalls, PoppedMessage
    from keelmq.transport.connection import Connection

EXAMPLES: Final = (
    "Examples:\n\n    keelmq pop orders --group shippers --max 10\n\n"
    "    keelmq pop orders --group shippers --keep --invisible 5m --json"
)

WAIT_MS: Final = 10_000
BATCH: Final = 32


def pop(
    topic: TopicArgument,
    group: Annotated[str, typer.Option(help="Consumer group.", autocompletion=group_names)],
    max_messages: Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of messages.")] = None,
    tags: Annotated[str | None, typer.Option(help="Pop only messages with one of these tags: 'A || B'.")] = None,
    filter: Annotated[
        str | None, typer.Option(help="Pop only messages whose properties match an SQL92 expression.")
    ] = None,
    invisible: Annotated[str, typer.Option(metavar="D", help="Time that others do not see a message.")] = "60s",
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Do not acknowledge: print the receipt handles, and let the invisibility end."),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages instead of ending.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Pop messages, print and acknowledge them. A group without offsets begins with the oldest message."""
    invisible_ms = parse_duration(invisible, "--invisible")

    async def work(connection: "Connection") -> None:
        from keelmq.consuming.pop_calls import PopCalls
        from keelmq.consuming.selection import Selection
        from keelmq.limits import POP_INVISIBLE_MS_MAX, check_group, check_range, check_topic

        check_group(group)
        check_topic(topic)
        check_range("invisible_ms", invisible_ms, 1, POP_INVISIBLE_MS_MAX)
        calls = PopCalls(connection, group, topic, Selection(tags, filter), "keelmq-cli")
        left, before, ends = max_messages, None, None
        while left is None or left > 0:
            most = BATCH if left is None else min(left, BATCH)
            popped = await calls.pop(most, invisible_ms, WAIT_MS if follow else 0, "earliest")
            for each in popped:
                _print(each, keep=keep, as_json=as_json)
            if popped and not keep:
                await _ack(calls, popped)
            if not popped and not follow:
                # A pop looks at so many messages, and there may be more that match behind them: up to where the queues
                # ended when nothing was found for the first time.
                offsets, ends_now = await _offsets(connection, group, topic)
                ends = ends_now if ends is None else ends
                if offsets == before or all(offsets.get(queue, 0) >= end for queue, end in ends.items()):
                    return
                before = offsets
            left = None if left is None else left - len(popped)

    run(servers, work, as_json=as_json)


async def _ack(calls: "PopCalls", popped: "Sequence[PoppedMessage]") -> None:
    acked = await calls.ack([each.receipt_handle for each in popped])
    for each in popped:
        if not acked.get(each.receipt_handle, False):
            message = each.message
            say(f"{message.message_id} comes again: its time was over before it was acknowledged", file=sys.stderr)


async def _offsets(connection: "Connection", group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return the offsets of the group in the queues of the topic, and where the queues end."""
    from keelmq.admin import Admin

    found = [each for each in (await Admin(connection).group(group)).offsets if each.topic == topic]
    return {each.queue: each.offset for each in found}, {each.queue: each.max_offset for each in found}


def _print(popped: "PoppedMessage", *, keep: bool, as_json: bool) -> None:
    if not keep:
        print_message(popped.message, as_json=as_json)
    elif as_json:
        print_json({**message_line(popped.message), "receipt_handle": popped.receipt_handle})
    else:
        say(popped.receipt_handle, end="  ")
        print_message(popped.message, as_json=False)
