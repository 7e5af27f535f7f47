"""Accepts connections at listening sockets, one by one, so that each can be counted before anything is said on it."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

log = logging.getLogger(__name__)

ACCEPT_RETRY_S: Final = 1.0
"""Seconds without accepting after an error of the machine, such as too many open files."""


class Accepting:
    """Passes accepted sockets, which do not block, with their address to `on_accepted`, which owns them. Use it on the
    event loop only. `what` names the connections in the log.
    """

    def __init__(self, on_accepted: Callable[[socket.socket, Any], None], what: str) -> None:
        self._on_accepted = on_accepted
        self._what = what
        self._sockets: list[socket.socket] = []
        self._retry: asyncio.TimerHandle | None = None
        self._has_failed = False

    def begin(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections at these sockets, which listen and do not block. This object owns them from here on."""
        self._sockets += sockets
        self._listen()

    def end(self) -> None:
        """Close the listening sockets. A second call does nothing."""
        if self._retry is not None:
            self._retry.cancel()
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def accept(self, listening: socket.socket) -> None:
        """Accept the next connection of a socket. After an error of the machine all sockets rest for a while."""
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if not self._has_failed:  # once, not every second for as long as it lasts
                log.error("no %s connection can be accepted now: %s", self._what, error.strerror or error)
            self._has_failed = True
            loop = asyncio.get_running_loop()
            for each in self._sockets:
                loop.remove_reader(each)
            self._retry = loop.call_later(ACCEPT_RETRY_S, self._listen)
            return
        self._has_failed = False
        accepted.setblocking(False)
        self._on_accepted(accepted, address)

    def _listen(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self.accept, listening)


def reason_of(error: OSError) -> str:
    """Return why there is no TLS handshake, in OpenSSL's words if it knows."""
    return str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or error)
