"""The answer to a request whose body has not arrived: one that is refused, or redirected to the leader.

A server that closes a connection while bytes are on their way to it resets it, and its client may never see the answer.
So what the client goes on sending is read and dropped for LINGER_S. This is charged to the client's address
(cluster/budgets/time_shares.py): eighty refused bodies of 15 MiB took 17 % of everybody's rate.
"""

import asyncio
import contextlib
from typing import Final

from aiohttp import web

from cluster.budgets.time_shares import Client

LINGER_S: Final = 2.0
"""After this long the connection is closed, whatever is on its way."""
READ_S_PER_BYTE: Final = 1e-9
"""A millisecond per megabyte: over loopback the node uses 0.45 ms of processor time, and the kernel takes the rest."""


async def answer_early(request: web.Request, response: web.StreamResponse, client: Client) -> None:
    """Send `response`, and read what is left of the body. A client that is gone is nobody's error."""
    with contextlib.suppress(TimeoutError, ConnectionError, web.RequestPayloadError):
        await response.prepare(request)
        await response.write_eof()
        async with asyncio.timeout(LINGER_S):
            while part := await request.content.readany():
                await client.rest_for(len(part) * READ_S_PER_BYTE)
