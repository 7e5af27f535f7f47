"""Large responses are written piece by piece, and a client has a limited time to take its own.

A client that asks for much and reads nothing costs memory: at most its share of RESPONSE_BYTES_MAX.
"""

import asyncio
from typing import Final

from aiohttp import web

SMALL_RESPONSE_BYTES: Final = 64 * 1024
"""Up to here a response fits the buffers of its connection: writing it does not wait, and it is not counted."""

WRITE_STEP_BYTES: Final = 8 * SMALL_RESPONSE_BYTES
"""Of a large response, written before the loop turns to others."""


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
                if (len(body) - len(rest)) % WRITE_STEP_BYTES == 0:
                    await asyncio.sleep(0)  # a client that takes all at once would keep the loop until it has it
                await stream.write(rest[:SMALL_RESPONSE_BYTES])
                rest = rest[SMALL_RESPONSE_BYTES:]
            await stream.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(f"the client did not take its response within {timeout_s} s") from None
    return stream
