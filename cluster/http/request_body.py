"""Reads the bodies of requests within the limits of size, time, and bytes that clients may hold in all.

The bytes of a body count for the sending address from their arrival until the request is answered. Large bodies of one
address are handled by turns (cluster/budgets/turns.py), so that the next client does not wait behind all of them.
"""

import asyncio
from typing import Final, Self

from aiohttp import web

from cluster.budgets import time_shares
from cluster.budgets.time_shares import Client
from cluster.core.core import Core
from cluster.http.routes import CLUSTER_PATH
from cluster.limits import REQUEST_BYTES_MAX
from cluster.problems import Problem

ADMINISTRATION_BODY_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes of the body of an administration request."""
WITHOUT_TURN_BYTES_MAX: Final = 64 * 1024
"""Largest body in bytes that needs no turn."""
UNCHARGED_BYTES_MAX: Final = 256 * 1024
"""Body size in bytes above which the time until the answer is charged to the address (time_shares.py)."""
CHEAP_BYTES_MAX: Final = 16 * 1024
"""Body size in bytes above which a request waits until the time used by its address is down to its share."""
SMALL_BODY_BYTES_MAX: Final = 4 * 1024
"""Largest body in bytes that is never refused for lack of room."""


class RequestHold:
    """Counts the bytes of one request's body in memory. As a context manager it gives them back at the end, together
    with the body's turn.
    """

    def __init__(self, core: Core, address: str, path: str) -> None:
        self._core = core
        self._budget = core.request_budget
        self._turn_bytes = 0
        self._address = address
        self._held_bytes = 0
        self._holder = ""
        self._announced_bytes = 0
        """Bytes that count for the holder: those announced, or those that came if they are more."""
        self._costly: Client | None = None
        self.administers = path.startswith(CLUSTER_PATH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held_bytes:
            self._budget.give_back(self._address, self._held_bytes)
            self._held_bytes = 0
        if self._announced_bytes:
            self._core.holdings.give_back("request_bytes", self._holder, self._announced_bytes)
            self._announced_bytes = 0
        if self._turn_bytes:
            self._core.body_turns.give_back(self._address, self._turn_bytes)
            self._turn_bytes = 0
        if self._costly is not None:
            self._costly.end()
            self._costly = None

    async def take_turn(self) -> None:
        """Wait for the turn of a large body. Raises Overloaded when the turn does not come in time."""
        if self._held_bytes > WITHOUT_TURN_BYTES_MAX and not self.administers:
            await self._core.take_turn(self._core.body_turns, self._address, self._held_bytes)
            self._turn_bytes = self._held_bytes
            if self._held_bytes > UNCHARGED_BYTES_MAX:
                self._costly = await self._core.begin_costly()
        client = time_shares.current()
        if self._held_bytes > CHEAP_BYTES_MAX and client is not None and self._costly is None:
            await client.come_to_share()

    def announce(self, size_bytes: int) -> None:
        """Count a body of this size for the principal, who may have several under way: what they announce counts at
        once, so that they do not stop each other half way. Raises Problem quota_exceeded or overloaded.
        """
        more, holdings = size_bytes - self._announced_bytes, self._core.holdings
        if more <= 0 or self.administers:
            return
        self._holder = self._holder or time_shares.sender()
        if size_bytes > SMALL_BODY_BYTES_MAX:
            holdings.require_room("request_bytes", self._holder, more, own=self._announced_bytes)
        holdings.take("request_bytes", self._holder, more)
        self._announced_bytes = size_bytes

    def require_room(self, size_bytes: int) -> None:
        """Raise Problem overloaded when the address may not hold `size_bytes` more.

        A small body always fits, so that heartbeats and commits do not suffer from large bodies of their own address;
        the number of connections bounds the total of small bodies.
        """
        if self._held_bytes + size_bytes <= SMALL_BODY_BYTES_MAX:
            return
        self._budget.require_room(self._address, size_bytes, administers=self.administers)

    def grow(self, size_bytes: int) -> None:
        """Count `size_bytes` more that have arrived. Raises Problem overloaded when the address or the principal may
        not hold them, and quota_exceeded.
        """
        self.require_room(size_bytes)
        self.announce(self._held_bytes + size_bytes)
        self._budget.take(self._address, size_bytes)
        self._held_bytes += size_bytes


_HOLD: Final = web.RequestKey("keelmq.request_hold", RequestHold)


def hold_of(request: web.Request, core: Core, address: str) -> RequestHold:
    """Attach a hold to the request, which counts its body from now on, and return it."""
    hold = request[_HOLD] = RequestHold(core, address, request.path)
    return hold


async def read_body(request: web.Request, core: Core, bytes_max: int = REQUEST_BYTES_MAX) -> bytes:
    """Read the whole body, `bytes_max` bytes at most, and wait for its turn.

    Raises Problem request_too_large, overloaded or quota_exceeded before or while reading, request_timeout when the
    body does not arrive in time, invalid_request when it is malformed, and Overloaded when its turn does not come in
    time.
    """
    hold = request[_HOLD]
    limit = min(core.config.max_request_bytes, bytes_max)
    if hold.administers:
        limit = min(limit, ADMINISTRATION_BODY_BYTES_MAX)
    announced = request.content_length or 0
    if announced > limit:
        raise Problem("request_too_large", f"{announced} bytes, the limit is {limit}; send it in parts")
    try:
        if request.content.is_eof():  # the body came with the head
            body = await request.read()
            _require_fits(len(body), limit)
            hold.grow(len(body))
        else:
            hold.require_room(announced)
            hold.announce(announced)
            async with asyncio.timeout(core.config.request_timeout_ms / 1000):
                body = await _read_on(request, hold, limit)
    except TimeoutError:
        raise Problem(
            "request_timeout",
            f"the body did not arrive within {core.config.request_timeout_ms} ms; send it again, or in parts",
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise Problem("request_too_large", f"more than {limit} bytes; send it in parts") from None
    except (web.RequestPayloadError, ConnectionError):
        raise
    except web.HTTPException as error:
        raise Problem("invalid_request", error.reason) from None
    await hold.take_turn()
    return body


async def _read_on(request: web.Request, hold: RequestHold, limit: int) -> bytes:
    body = bytearray()
    while part := await request.content.readany():
        _require_fits(len(body) + len(part), limit)
        hold.grow(len(part))
        body += part
    return bytes(body)


def _require_fits(size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise Problem("request_too_large", f"more than {limit} bytes; send it in parts")
