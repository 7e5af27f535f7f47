"""Early answers: a request is refused, or redirected to the leader, before its body has arrived.

A server that closes a connection while bytes are on their way to it resets it, and its client may never see the answer.
So the rest of the body is read and dropped for up to LINGER_S. This is charged to the client's address
(cluster/budgets/time_shares.py): eighty refused bodies of 15 MiB took 17 % of everybody's rate.
"""

import asyncio
import contextlib
import time
from typing import Final

from aiohttp import web

from cluster.budgets.time_shares import Client
from cluster.process.request_scope import note_polled

LINGER_S: Final = 2.0
"""Seconds after which the connection is closed, even if bytes are still on their way."""
READ_S_PER_BYTE: Final = 1e-9
"""Seconds charged per byte read. For a megabyte over loopback the node uses 0.45 ms of processor time, and the kernel
the rest of the millisecond."""


async def answer_early(request: web.Request, response: web.StreamResponse, client: Client) -> None:
    """Send `response`, then read and drop the rest of the body. A connection that breaks is not an error."""
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        await response.prepare(request)
        await response.write_eof()
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(LINGER_S):
                while part := await request.content.readany():
                    await client.rest_for(len(part) * READ_S_PER_BYTE)
        finally:
            note_polled(begun_s)  # the answer is given: a client that goes on sending makes no slow request
