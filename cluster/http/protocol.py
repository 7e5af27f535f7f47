"""The protocol of an HTTP connection: aiohttp's, with its options, and its own errors as problems."""

import asyncio
from http import HTTPStatus
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage

from cluster.problems import Problem
from cluster.security.client_certificate import ClientCertificate, certificate_of

KEEPALIVE_TIMEOUT_S: Final = 75.0
"""Seconds after which an idle connection is closed, or one that does not finish its request line and headers."""
READ_BUFFER_BYTES: Final = 64 * 1024
"""Read buffer of a connection. Of a body that no handler reads yet, about twice this size is buffered, and the rest of
the piece that arrived last."""
NOSNIFF: Final = "X-Content-Type-Options"
DETAIL_CHARACTERS_MAX: Final = 200
"""Longest part of the parser's message that is told: it may quote what the client has sent."""

_OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "keepalive_timeout": KEEPALIVE_TIMEOUT_S,
    "lingering_time": 0.0,  # early_answer.py reads the rest of a body
    "read_bufsize": READ_BUFFER_BYTES,
}


class HttpProtocol(web.RequestHandler):
    """One HTTP connection of `server`. Requests that are no HTTP are answered here, before any middleware."""

    __slots__ = ("client_certificate",)

    def __init__(self, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **_OPTIONS)
        self.client_certificate: ClientCertificate | None = None
        """The client's verified certificate, if it has shown one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client_certificate = certificate_of(transport.get_extra_info("ssl_object"))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and self._current_request is not None:
            self._end_broken_body(self._current_request.content)

    def _end_broken_body(self, body: StreamReader) -> None:
        """Tell the request under way if no more of its body comes: the parser, which only queues what it has found, has
        lost its place. Nothing is read while a request waits behind it, so that one's body breaks when it is under way.
        """
        message, _ = self._messages[-1]
        if not isinstance(message, RawRequestMessage) and not body.is_eof() and body.exception() is None:
            body.set_exception(web.RequestPayloadError("not encoded as its headers say"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log the error, and return a problem as the last answer of the connection. Raises ConnectionError when another
        answer has begun.
        """
        super().handle_error(request, status, exc, message)
        if status == HTTPStatus.BAD_REQUEST:
            problem = Problem("invalid_request", f"this is no HTTP request: {_in_a_line(message or 'malformed')}")
        else:
            problem = Problem("internal", "a bug of the broker; its log has the trace")
        response = problem.response()
        response.force_close()
        response.headers[NOSNIFF] = "nosniff"
        return response


def _in_a_line(message: str) -> str:
    """Return the finding of the parser, without the picture of the place that follows."""
    return " ".join(message.partition("\n\n")[0].split())[:DETAIL_CHARACTERS_MAX]
