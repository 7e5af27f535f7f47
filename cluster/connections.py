"""How many HTTP connections there are at a time: idle clients must not use up the files that the log needs."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ConnectionLimit:
    """A protocol factory around another one. A connection beyond `limit` is closed as soon as it is accepted."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], limit: int) -> None:
        self._make_protocol = make_protocol
        self._limit = limit
        self._is_full = False
        self.open = 0

    def __call__(self) -> asyncio.Protocol:
        if self.open >= self._limit:
            if not self._is_full:
                logger.warning("%d connections are open: further ones are closed", self.open)
            self._is_full = True
            return _Refused()
        self.open += 1
        return _Counted(self._make_protocol(), self._closed)

    def _closed(self) -> None:
        self.open -= 1
        self._is_full = False


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class _Counted(asyncio.Protocol):
    """Passes everything on; says when the connection ends."""

    def __init__(self, inner: asyncio.Protocol, on_closed: Callable[[], None]) -> None:
        self._inner = inner
        self._on_closed = on_closed
        self.data_received = inner.data_received  # type: ignore[method-assign]  # no call between: the hot path
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]
        self.connection_made = inner.connection_made  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()
        self._inner.connection_lost(exc)
