"""Command `keelmq send`."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.complete import TopicArgument
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, run, say, when, zone
from keelmq.cli.times import parse_duration, parse_time
from keelmq.limits import DELAY_LEVELS_S

if TYPE_CHECKING:
    from keelmq.message import SendResult
    from keelmq.transport.connection import Connection

EXAMPLES: Final = (
    "Examples:\n\n    keelmq send orders 'hello' --tag created --key order-1\n\n"
    "    cat picture.jpg | keelmq send pictures -\n\n    keelmq send orders --lines < orders.txt\n\n"
    "    keelmq send reminders 'pay' --delay 15m --message-id reminder-17\n\n"
    "    keelmq send reminders 'pay' --at 2030-01-31T09:00:00+01:00"
)


LINES_AT_ONCE: Final = 1_000


def send(
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(help="Text of the message; - reads all of stdin as one message.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each non-empty line of stdin as a message, as they come.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="Tag for filters.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key for look-ups; may be repeated.")] = None,
    prop: Annotated[list[str] | None, typer.Option("--property", help="Property NAME=VALUE; may be repeated.")] = None,
    sharding_key: Annotated[str | None, typer.Option(help="Messages with the same key stay in order.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Queue of the topic.")] = None,
    message_id: Annotated[str | None, typer.Option(help="Id that makes the message idempotent.")] = None,
    delay_level: Annotated[
        int | None, typer.Option(min=1, max=len(DELAY_LEVELS_S), help="Deliver later: level 1 to 18.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver later: 1500ms, 90s, 15m, 2h, up to 40d.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Deliver later: ISO 8601 (UTC without an offset) or Unix time in ms.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Send messages; returns when a majority of the nodes has fsynced them."""
    if (body is None) != lines:
        raise typer.BadParameter("give BODY (or - for stdin) or --lines", param_hint="BODY")
    if lines and message_id is not None:
        raise typer.BadParameter("one id cannot identify several messages", param_hint="--message-id")
    if (delay_level is not None) + (delay is not None) + (at is not None) > 1:
        raise typer.BadParameter("give one of --delay-level, --delay and --at", param_hint="--delay")
    delay_ms = None if delay is None else parse_duration(delay, "--delay")
    deliver_at_ms = None if at is None else parse_time(at, "--at")
    properties = {}
    for each in prop or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--property")
        properties[name] = value

    # An interrupt ends a read only while no event loop runs. What was typed and is no text is sent as it was typed.
    content = sys.stdin.buffer.read() if body == "-" else (body or "").encode(errors="surrogateescape")

    async def deliver(connection: "Connection") -> None:
        from keelmq.producing.producer import Producer

        async with Producer(connection=connection) as producer:

            async def one(content: bytes) -> "SendResult":
                return await producer.send(
                    topic,
                    content,
                    tag=tag,
                    keys=key or (),
                    properties=properties,
                    sharding_key=sharding_key,
                    queue=queue,
                    message_id=message_id,
                    delay_level=delay_level,
                    delay_ms=delay_ms,
                    deliver_at_ms=deliver_at_ms,
                )

            if lines:
                await _send_lines(one, as_json)
            else:
                _print_result(await one(content), as_json)

    run(servers, deliver, as_json=as_json)


async def _send_lines(one: "Callable[[bytes], Awaitable[SendResult]]", as_json: bool) -> None:
    """Send the lines of stdin in order, as they come; stop at the first failure. Messages printed before it are
    stored.
    """
    import asyncio

    from keelmq.cli.messages.lines import lines_of

    async for lines in lines_of(sys.stdin.buffer):
        bodies = [line for line in lines if line]
        for first in range(0, len(bodies), LINES_AT_ONCE):
            group = bodies[first : first + LINES_AT_ONCE]
            results = await asyncio.gather(*(one(body) for body in group), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                _print_result(result, as_json)


def _print_result(result: "SendResult", as_json: bool) -> None:
    from keelmq.message import to_builtins

    if as_json:
        print_json(to_builtins(result))
        return
    nodes = ", ".join(map(str, result.receipt.durable_on))
    again = ", stored before" if result.duplicate else ""
    place = f"offset {result.offset}" if result.offset is not None else f"due {when(result.deliver_at_ms)} {zone()}"
    say(f"{result.message_id}  {result.topic}/{result.queue} {place}  durable on {nodes}{again}", flush=True)
