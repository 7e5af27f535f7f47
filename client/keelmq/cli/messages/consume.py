"""Command `keelmq consume`."""

import base64
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from keelmq.cli.complete import TopicArgument, group_names
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, run, say, when
from keelmq.cli.times import parse_past

if TYPE_CHECKING:
    import asyncio

    from keelmq.consuming.consumer import Consumer, Start
    from keelmq.consuming.selection import Selection
    from keelmq.message import ReceivedMessage
    from keelmq.transport.connection import Connection

EXAMPLES: Final = (
    "Examples:\n\n    keelmq consume orders --from earliest --max 10\n\n    keelmq consume orders --follow --json\n\n"
    "    keelmq consume orders --group audit --follow\n\n"
    "    keelmq consume orders --filter \"price > 3 AND region = 'eu'\""
)

WAIT_MS: Final = 10_000
LAG_INTERVAL_S: Final = 0.3
PULL_MESSAGES: Final = 500
PULL_BYTES: Final = 4 * 1024 * 1024
READ_AHEAD: Final = 500


def _start_of(text: str) -> "Start":
    """Return where to begin. Raises BadParameter for what is neither a place nor a time."""
    match text:
        case "earliest" | "latest":
            return text
    return parse_past(text, "--from (or earliest, latest)", time.time_ns() // 1_000_000)


def consume(
    topic: TopicArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="earliest, latest, how long ago (1h, 15m), ISO 8601 or a Unix time in ms. "
            "Default: earliest, with -f latest.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Join this group and commit printed messages; --from applies to a new group.",
            autocompletion=group_names,
        ),
    ] = None,
    tags: Annotated[str | None, typer.Option(help="Print only messages with one of these tags: 'A || B'.")] = None,
    filter: Annotated[
        str | None, typer.Option(help="Print only messages whose properties match an SQL92 expression.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages instead of ending.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Print messages. Without a group, nothing is committed and no other consumer is affected."""
    at: Start = ("latest" if follow else "earliest") if start is None else _start_of(start)

    printed = 0

    def emit(message: "ReceivedMessage") -> bool:
        """Print the message; return False when it was the last one requested."""
        nonlocal printed
        print_message(message, as_json=as_json)
        printed += 1
        return printed != max_messages

    async def show(connection: "Connection") -> None:
        from keelmq.consuming.selection import Selection

        selection = Selection(tags, filter)
        if group is None:
            await _read_directly(connection, topic, at, selection, follow, emit)
        else:
            await _read_as_member(connection, group, topic, at, selection, follow, emit)

    run(servers, show, as_json=as_json)


async def _read_as_member(
    connection: "Connection",
    group: str,
    topic: str,
    at: "Start",
    selection: "Selection",
    follow: bool,
    emit: "Callable[[ReceivedMessage], bool]",
) -> None:
    import asyncio

    from keelmq.consuming.consumer import Consumer

    async with Consumer(
        connection.current,
        group,
        topic,
        start=at,
        tags=selection.tags,
        filter=selection.filter,
        connection=connection,
    ) as consumer:
        watch = None if follow else asyncio.create_task(_close_at_end(connection, consumer, group, topic))
        try:
            async for message in consumer:
                more = emit(message)
                consumer.finish()
                if not more:
                    break
            else:  # `watch` has closed the consumer
                if watch is not None:
                    await watch
        finally:
            if watch is not None:
                await _cancel(watch)


async def _close_at_end(connection: "Connection", consumer: "Consumer", group: str, topic: str) -> None:
    """Close the consumer when every message of its queues is printed and committed; without queues of its own, every
    message of the topic. Raises the error of a group that cannot be looked at, where waiting does not help.
    """
    import asyncio

    from keelmq.admin import Admin
    from keelmq.errors import GroupNotFound, KeelMQError

    try:
        while True:
            await asyncio.sleep(LAG_INTERVAL_S)
            try:
                offsets = (await Admin(connection).group(group)).offsets
            except GroupNotFound:  # it was deleted, and comes back with its members
                continue
            except KeelMQError as error:
                if error.retryable:  # the consumer goes on trying, too
                    continue
                raise
            done = {(each.topic, each.queue) for each in offsets if each.lag == 0}
            of_topic = [(each.topic, each.queue) for each in offsets if each.topic == topic]
            if of_topic and done.issuperset(consumer.assignment or of_topic):
                return
    finally:
        await consumer.close()


async def _read_directly(
    connection: "Connection",
    topic: str,
    at: "Start",
    selection: "Selection",
    follow: bool,
    emit: "Callable[[ReceivedMessage], bool]",
) -> None:
    import asyncio

    from keelmq.admin import Admin

    info = await Admin(connection).topic(topic)
    arrived: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue(READ_AHEAD)

    async def read_all() -> None:
        ends = {q.queue: None if follow else q.max_offset for q in info.queue_offsets}
        readers = [
            asyncio.create_task(_read_queue(connection, (topic, queue), at, end, selection, arrived))
            for queue, end in ends.items()
        ]
        try:
            await asyncio.gather(*readers)
        finally:
            await _cancel(*readers)
            with contextlib.suppress(asyncio.QueueFull):  # when it is full, its reader checks this task at the end
                arrived.put_nowait(None)

    reading = asyncio.create_task(read_all())
    try:
        while not (reading.done() and arrived.empty()):
            message = await arrived.get()
            if message is None:
                break
            if not emit(message):
                return
        await reading
    finally:
        await _cancel(reading)


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    import asyncio

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read_queue(
    connection: "Connection",
    place: tuple[str, int],
    at: "Start",
    end: int | None,
    selection: "Selection",
    arrived: "asyncio.Queue[ReceivedMessage | None]",
) -> None:
    """Read messages from `at` to `end`, or for ever without `end`."""
    from keelmq.consuming.group_session import first_offset, pull

    offset = await first_offset(connection, place, at)
    while end is None or offset < end:
        pulled = await pull(
            connection,
            place,
            offset,
            max_messages=PULL_MESSAGES,
            max_bytes=PULL_BYTES,
            wait_ms=WAIT_MS if end is None else 0,
            selection=selection,
        )
        for message in pulled.messages:
            if end is None or message.offset < end:
                await arrived.put(message)
        if pulled.next_offset == offset and end is not None:
            return  # the messages up to the end have expired meanwhile
        offset = pulled.next_offset


def message_line(message: "ReceivedMessage") -> dict[str, Any]:
    """Return the JSON object that `--json` prints for a message."""
    from keelmq.message import to_builtins

    text, encoding = _text(message.body)
    return {**to_builtins(message), "body": text, "encoding": encoding}


def print_message(message: "ReceivedMessage", *, as_json: bool) -> None:
    """Print a message on one line."""
    if as_json:
        print_json(message_line(message))
        return
    text, encoding = _text(message.body)
    details = [f"tag={message.tag}"] if message.tag else []
    details += [f"keys={','.join(message.keys)}"] if message.keys else []
    details += [f"{name}={value}" for name, value in message.properties.items()]
    place = f"{message.topic}/{message.queue} {message.offset}"
    shown = text if encoding == "utf8" else f"({len(message.body)} bytes, base64) {text}"
    say("  ".join([f"{when(message.stored_at_ms)}  {place}", *details, shown]), flush=True)


def _text(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
