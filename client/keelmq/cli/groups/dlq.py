"""Commands of `keelmq dlq`."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from keelmq.cli.complete import GroupArgument
from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say, when, zone
from keelmq.limits import GIVE_BACK_MESSAGES_MAX, LIST_MAX

if TYPE_CHECKING:
    from keelmq.admin import Admin, DeadLetter
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="List dead letters, and deliver them to their group once more.")


@app.command("list", epilog="Example:  keelmq dlq list points")
def list_dead_letters(
    group: GroupArgument,
    offset: Annotated[int, typer.Option(min=0, help="First offset to list.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="Maximum number of rows.")] = 100,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first, with the reason of the last attempt; --json adds all attempts and bodies."""
    from keelmq.admin import Admin

    page = run(
        servers, lambda connection: Admin(connection).dead_letters(group, offset=offset, limit=limit), as_json=as_json
    )
    if as_json:
        print_json(page.document)
        return
    rows = [
        (
            m.offset,
            m.message_id,
            _place(m),
            m.attempt,
            when(m.stored_at_ms),
            _reason(m),
            when(m.replayed_at_ms) or "-",
        )
        for m in page.messages
    ]
    dead, replayed = f"dead since ({zone()})", f"replayed ({zone()})"
    print_table(None, ["offset", "message", "origin", "attempts", dead, "reason", replayed], rows)
    if page.next_offset < page.max_offset:
        say(f"there are more: --offset {page.next_offset}")


@app.command(epilog="Example:  keelmq dlq replay points --rate 100")
def replay(
    group: GroupArgument,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of messages per second.")] = 100,
    offset: Annotated[list[int] | None, typer.Option(min=0, help="Replay only this offset; may be repeated.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Deliver the dead letters to their group once more, except already replayed ones. Harmless to repeat."""

    async def work(connection: "Connection") -> tuple[int, int]:
        from keelmq.admin import Admin

        return await _replay(Admin(connection), group, rate, offset)

    replayed, already = run(servers, work, as_json=as_json)
    if as_json:
        print_json({"group": group, "replayed": replayed, "already_replayed": already})
    else:
        say(f"{replayed} dead letters of {group} are replayed, {already} were replayed before")


async def _replay(admin: "Admin", group: str, rate: int, offsets: list[int] | None) -> tuple[int, int]:
    """Replay portions of a tenth of a second each, paced to `rate` messages per second."""
    import asyncio

    portion = max(1, min(GIVE_BACK_MESSAGES_MAX, rate // 10))
    replayed = already = 0
    loop = asyncio.get_running_loop()
    next_s = loop.time()
    async for part in _portions(admin, group, offsets, portion):
        await asyncio.sleep(next_s - loop.time())
        next_s = max(next_s, loop.time()) + len(part) / rate
        for result in (await admin.replay_dead_letters(group, part)).results:
            already += result.duplicate
            replayed += not result.duplicate
    return replayed, already


async def _portions(admin: "Admin", group: str, offsets: list[int] | None, portion: int) -> AsyncIterator[list[int]]:
    """Yield the given offsets in portions, or else the offsets of all dead letters that are not replayed yet."""
    if offsets is not None:
        for begin in range(0, len(offsets), portion):
            yield offsets[begin : begin + portion]
        return
    offset, end = 0, None
    while end is None or offset < end:
        page = await admin.dead_letters(group, offset=offset, limit=portion)
        end = page.max_offset if end is None else end
        found = [
            m.offset for m in page.messages if m.replayed_at_ms is None and m.offset is not None and m.offset < end
        ]
        if found:
            yield found
        if page.next_offset <= offset:
            return
        offset = page.next_offset


def _place(message: "DeadLetter") -> str:
    origin = message.origin
    return "-" if origin is None else f"{origin.topic}/{origin.queue}/{origin.offset}"


def _reason(message: "DeadLetter") -> str:
    return message.history[-1].reason if message.history else ""
