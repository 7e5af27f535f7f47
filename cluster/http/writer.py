"""Writes large responses piece by piece, within a limited time.

A client that asks for large responses and reads nothing costs memory, but at most its share of RESPONSE_BYTES_MAX.
"""

import asyncio
from typing import Final

from aiohttp import web

SMALL_RESPONSE_BYTES: Final = 64 * 1024
"""Largest response in bytes that fits its connection's buffers: writing it does not wait, and it is not counted."""

WRITE_STEP_BYTES: Final = 8 * SMALL_RESPONSE_BYTES
"""Bytes of a large response that are written before the event loop runs other work."""


async def write_large(
    request: web.Request, response: web.Response, body: bytes, timeout_s: float
) -> web.StreamResponse:
    """Write the response piece by piece, so that no buffer gets a second copy of the body.

    Raises ConnectionError when the client is gone, or was disconnected because it did not read the response in time.
    """
    stream = web.StreamResponse(status=response.status, headers=response.headers)
    stream.content_length = len(body)
    rest = memoryview(body)
    try:
        async with asyncio.timeout(timeout_s):
            await stream.prepare(request)
            while rest:
                if (len(body) - len(rest)) % WRITE_STEP_BYTES == 0:
                    await asyncio.sleep(0)  # a fast client would keep the loop until it has the whole body
                await stream.write(rest[:SMALL_RESPONSE_BYTES])
                rest = rest[SMALL_RESPONSE_BYTES:]
            await stream.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(f"the client did not read its response within {timeout_s} s") from None
    return stream
