"""A server for tests on asyncio's streams that leaves no connection behind.

`asyncio.start_server` with a coroutine begins a task per connection. A connection that is accepted just before the
loop ends is cancelled before the first line of its coroutine, so no `finally` there can close it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def stream_server(serve: Serve, **options: Any) -> AsyncIterator[asyncio.Server]:
    """Serve each connection with `serve`, on loopback unless `options` (of asyncio.start_server) say otherwise.

    On leaving, all connections are closed and all calls of `serve` are over; their errors are raised, unless they come
    of the closing.
    """
    calls: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
    is_closing = False

    async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_closing:
            writer.close()
        else:
            calls[asyncio.create_task(call(reader, writer))] = writer

    server = await asyncio.start_server(on_connection, **(options or {"host": "127.0.0.1"}))
    try:
        yield server
    finally:
        is_closing = True
        server.close()
        for writer in calls.values():
            writer.close()
        for ended in calls:
            ended.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        unexpected = [
            each
            for each in outcomes
            if isinstance(each, Exception) and not isinstance(each, ConnectionError | asyncio.IncompleteReadError)
        ]
        if unexpected:
            raise ExceptionGroup("the server of the test failed", unexpected)
