"""A lean HTTP/1.1 client: keep-alive pool, one request at a time per connection, strict timeouts.

httptools (llhttp) parses the responses. Features that the broker's API does not use are left out: cookies, proxies,
content encodings, redirects (connection.py follows the leader itself), streaming. docs/sdk.md has the measurement that
justifies it instead of a general client.

Invariant: a connection goes back to the pool only after its response was read completely; every other end of a request
(timeout, cancellation, protocol error) closes it, so an answer can never be taken for the answer to another request.
"""

import asyncio
import re
import ssl
from collections import defaultdict
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from keelmq.transport.tls import TlsFiles
from keelmq.version import VERSION

USER_AGENT: Final = f"User-Agent: keelmq-python/{VERSION}\r\n"
MAX_RESPONSE_BYTES: Final = 80 * 1024 * 1024
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_IDLE_PER_ORIGIN: Final = 64

_HOST: Final = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?|[0-9a-fA-F:.]+(%[\w.-]+)?", re.ASCII)
"""Matches a name, an IPv4 or an IPv6 address: neither resolving it nor writing it into a header can raise."""


_ABOUT_CERTIFICATES: Final = re.compile(r"ALERT_\w*(CERTIFICATE|UNKNOWN_CA)")
"""Matches OpenSSL's reasons for an end of the handshake that the other side has told."""
_OR_REFUSED: Final = " before it answered anything; perhaps it does not accept this client's certificate"
_TLS_ALERT: Final = b"\x15\x03"


class HttpResponse(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case; the last value of a repeated header
    body: bytes


class ConnectFailed(Exception):
    """No connection was made; nothing was sent."""


class ConnectTimedOut(ConnectFailed):
    """No connection was made within the available time; nothing was sent, and the state of the server is unknown."""


class NotTrusted(ConnectFailed):
    """TLS did not begin: this client or the server does not accept the other's certificate. Nothing was sent."""

    def __init__(self, origin: "Origin", why: str) -> None:
        super().__init__(f"{origin.url}: {why}")
        self.origin = origin


class ExchangeFailed(Exception):
    """The request may have reached the server, but no answer arrived."""


class AnswerTimedOut(ExchangeFailed):
    """No answer arrived within the available time."""


class _Refused(Exception):
    """The server ended the handshake because of this client's certificate, or the lack of one."""


class Origin(NamedTuple):
    """Scheme, host and port of a server; `url` is the normalized form, without a trailing slash."""

    url: str
    host: str
    port: int
    secure: bool

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Parse the origin of `url`; path and query are ignored.

        An international host name is converted to its IDNA form. Raises ValueError for anything but
        http(s)://host[:port].
        """
        try:
            parts = urlsplit(url)
            port, name = parts.port, parts.hostname or ""
            if not name.isascii() and ":" not in name:
                name = name.encode("idna").decode()
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not name or port == 0 or parts.username is not None:
            raise ValueError(f"{url!r} is not of the form http://host:port")
        secure = parts.scheme == "https"
        port = port or (443 if secure else 80)
        if not _HOST.fullmatch(name):
            raise ValueError(f"{url!r} names no host")
        host = f"[{name}]" if ":" in name else name
        return cls(f"{parts.scheme}://{host}:{port}", name, port, secure)


class _Exchange(asyncio.Protocol):
    """One TCP connection; parses the response to the current request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._header_size = 0
        self._kept = True
        self._is_secure = self._has_answered = False

    @property
    def reusable(self) -> bool:
        """True when another request may be sent. A transport is closing before `connection_lost` is called."""
        return self._kept and self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        self._is_secure = transport.get_extra_info("sslcontext") is not None

    async def exchange(self, head: bytes, body: bytes, timeout_s: float) -> HttpResponse:
        assert self._transport is not None
        if self._transport.is_closing():  # writing then may raise anything: Python 3.12 and 3.13 call None
            raise ExchangeFailed("connection closed by the server")
        answer: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._answer = answer
        timer = self._loop.call_later(
            timeout_s, self._end, AnswerTimedOut(f"no answer within {timeout_s * 1000:.0f} ms")
        )
        try:
            if body:
                self._transport.writelines((head, body))
            else:
                self._transport.write(head)
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        self._kept = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._end(ExchangeFailed(reason))

    def _end(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError) and _ABOUT_CERTIFICATES.search(exc.reason or ""):
            self._end(_Refused(exc.reason))  # in TLS 1.3 the server decides after the client has begun to send
            return
        reason = f"connection lost: {exc}" if exc else "connection closed by the server"
        self._fail(f"{reason}{_OR_REFUSED}" if self._is_secure and not self._has_answered else reason)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._fail("data without a request")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            hint = "; the server speaks TLS, give its https URL" if data.startswith(_TLS_ALERT) else ""
            self._fail(f"not an HTTP response: {exc}{hint}")

    # httptools callbacks
    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self._fail("data without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        if self._header_size > MAX_HEADER_BYTES:
            self._fail(f"response headers exceed {MAX_HEADER_BYTES} bytes")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_RESPONSE_BYTES:
            self._fail(f"response exceeds {MAX_RESPONSE_BYTES} bytes")
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._has_answered = True
        status = self._parser.get_status_code()
        headers, chunks = self._headers, self._body
        self._headers, self._body, self._size, self._header_size = {}, [], 0, 0
        if status < 200:  # 100 Continue, 103 Early Hints: the answer follows
            return
        if not self._parser.should_keep_alive():
            self._kept = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(HttpResponse(status, headers, chunks[0] if len(chunks) == 1 else b"".join(chunks)))


class HttpClient:
    """Sends requests over pooled connections. Belongs to one event loop."""

    def __init__(self, *, connect_timeout_ms: int, tls: TlsFiles | None = None) -> None:
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._tls = tls or TlsFiles(None)
        self._idle: defaultdict[Origin, list[_Exchange]] = defaultdict(list)
        self._closed = False

    async def request(
        self, origin: Origin, method: str, target: str, headers: str, body: bytes, timeout_s: float
    ) -> HttpResponse:
        """Send a request and return the complete response, read within `timeout_s` of this call (connecting included).

        `target` is the encoded path and query; `headers` are complete lines, each ending in CR LF. Both must come from
        validated parts. Raises ConnectFailed (nothing was sent) or ExchangeFailed (the outcome is unknown).
        """
        head = f"{method} {target} HTTP/1.1\r\nHost: {origin.url.partition('//')[2]}\r\n{USER_AGENT}{headers}"
        head += f"Content-Length: {len(body)}\r\n\r\n" if body or method != "GET" else "\r\n"
        connection = self._take_idle(origin)
        if connection is None:
            started = asyncio.get_running_loop().time()
            connection = await self._connect(origin, min(timeout_s, self._connect_timeout_s))
            timeout_s = max(timeout_s - (asyncio.get_running_loop().time() - started), 0.001)
        try:
            response = await connection.exchange(head.encode("latin-1"), body, timeout_s)
        except _Refused as exc:
            raise NotTrusted(
                origin,
                f"the server does not accept this client's certificate ({exc}); give certificate_file and key_file of "
                "an authority that the server trusts, still valid",
            ) from None
        idle = self._idle[origin]
        if connection.reusable and not self._closed and len(idle) < MAX_IDLE_PER_ORIGIN:
            idle.append(connection)
        else:
            connection.close()
        return response

    def _take_idle(self, origin: Origin) -> _Exchange | None:
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()  # the most recently used: its TCP window is open, its server end alive
            if connection.reusable:
                return connection
        return None

    async def _connect(self, origin: Origin, timeout_s: float) -> _Exchange:
        context = self._tls.context() if origin.secure else None
        try:
            async with asyncio.timeout(timeout_s):
                _, protocol = await asyncio.get_running_loop().create_connection(
                    _Exchange, origin.host, origin.port, ssl=context
                )
        except TimeoutError as exc:
            raise ConnectTimedOut(f"{origin.url}: {str(exc) or 'timed out'}") from exc
        except ssl.SSLCertVerificationError as exc:
            why = f"the server's certificate cannot be verified ({exc.verify_message}): {self._tls.advice()}"
            raise NotTrusted(origin, why) from exc
        except (OSError, ValueError) as exc:  # ValueError: a host that cannot be looked up
            raise ConnectFailed(f"{origin.url}: {exc}") from exc
        return protocol

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to a failed node, because its other connections are most likely dead too."""
        for connection in self._idle.pop(origin, ()):
            connection.close()

    def close(self) -> None:
        """Close every idle connection; a connection in use is closed when its request ends."""
        self._closed = True
        for origin in list(self._idle):
            self.forget(origin)
