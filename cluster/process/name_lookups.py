"""Looks up the names in URLs that this node calls, in threads of their own.

The event loop's own lookups share four threads, also with those of peers that are given by name, and a lookup against a
name server that is silent takes longer than a call waits: four such names would keep all others waiting, for ever.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult

LOOKUPS_MAX: Final = 64
"""Maximum number of names that are looked up at a time, each in a thread. Further names are not looked up."""

_Found = list[tuple[socket.AddressFamily, str]]


class NameLookups(AbstractResolver):
    """Resolves names. Callers that ask for the same name share one lookup. Use on the event loop only.

    A lookup cannot be interrupted: its thread stays until the name server answers, and does not keep the process.
    """

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], asyncio.Future[_Found]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of the name. Raises OSError, also when too many names are being looked up or there is no
        thread for another one, and UnicodeError for a name that cannot be one.
        """
        lookup = self._under_way.get((host, family)) or self._begin(host, family)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=found,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, address in await asyncio.shield(lookup)
        ]

    async def close(self) -> None:
        """Do nothing: what is under way is left alone."""

    def _begin(self, host: str, family: int) -> "asyncio.Future[_Found]":
        if len(self._under_way) >= LOOKUPS_MAX:
            raise OSError(f"{LOOKUPS_MAX} other names are being looked up: {host} is not")
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[_Found] = loop.create_future()
        lookup.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieved: nobody may wait
        self._under_way[host, family] = lookup

        def settle(found: "_Found | Exception") -> None:
            del self._under_way[host, family]
            if isinstance(found, Exception):
                lookup.set_exception(found)
            else:
                lookup.set_result(found)

        def look_up() -> None:
            found: _Found | Exception
            try:
                rows = socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
                found = [(row[0], str(row[4][0])) for row in rows]
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, found)

        try:
            threading.Thread(target=look_up, name="name-lookup", daemon=True).start()
        except RuntimeError as error:  # the process has as many threads as it may
            del self._under_way[host, family]
            raise OSError(f"{host} cannot be looked up: {error}") from error
        return lookup
