"""Answers on their way to clients: how many bytes of them are held, and how long a client may take to fetch its own.

A client that asks for much and reads nothing costs memory; here it costs at most its share, for a limited time.
"""

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from cluster.problems import Problem

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Large responses that a node holds at a time for clients that have not taken them yet."""

SMALL_RESPONSE_BYTES: Final = 64 * 1024
"""Up to here a response fits the buffers of its connection: writing it does not wait, and it is not counted."""

HTTP_CONNECTIONS_MAX: Final = 4_096
FILES_RESERVED: Final = 128
"""File descriptors that clients leave to the log, the index and the peers."""


class ResponseBudget:
    """Loop-only."""

    def __init__(self, max_bytes: int = RESPONSE_BYTES_MAX) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def require_room(self, size_bytes: int = 0) -> None:
        """Problem overloaded when the bytes held are at their limit, or would pass it."""
        if self.held_bytes + size_bytes > self._max_bytes or self.held_bytes == self._max_bytes:
            raise Problem("overloaded", f"{self.held_bytes} bytes of responses wait to be read by their clients")

    @contextlib.contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes


async def write_large(
    request: web.Request, response: web.Response, body: bytes, timeout_s: float
) -> web.StreamResponse:
    """Write the response piece by piece, so that no buffer gets a second copy of it.

    ConnectionError when the client is gone, or was disconnected for not having taken it within the time.
    """
    stream = web.StreamResponse(status=response.status, headers=response.headers)
    stream.content_length = len(body)
    rest = memoryview(body)
    try:
        async with asyncio.timeout(timeout_s):
            await stream.prepare(request)
            while rest:
                await stream.write(rest[:SMALL_RESPONSE_BYTES])
                rest = rest[SMALL_RESPONSE_BYTES:]
            await stream.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(f"the client did not take its response within {timeout_s} s") from None
    return stream


def connections_max() -> int:
    """HTTP connections this process may hold: as many as the limit of open files leaves, at least one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return HTTP_CONNECTIONS_MAX
    return max(1, min(HTTP_CONNECTIONS_MAX, soft - FILES_RESERVED))
