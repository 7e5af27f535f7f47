"""A relay in front of the object store of the tests, which counts, shows and holds the requests of its clients.

Clients run in processes of their own: the package deltalake holds Python's lock during some requests, so a relay in the
same process could not answer them.
"""

import contextlib
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from tests.object_store import StoreProcess

CHANGES: Final = ("PUT", "POST", "DELETE")


class NotForwarded(Exception):
    """Raised before a request that is not to reach the store: its connection ends without an answer."""


class Request(NamedTuple):
    method: str
    path: str
    query: str
    is_conditional: bool
    """Creates an object only if there is none."""
    is_copy: bool

    @property
    def kind(self) -> str:
        """Method, or LIST, which a store charges like PUT."""
        return "LIST" if self.method == "GET" and "list-type=2" in self.query else self.method


class RequestRelay:
    """A context manager: while it is entered, requests to `url` go to the store, each after `before(request)`."""

    def __init__(self, store: StoreProcess, before: Callable[[Request], None] = lambda _: None) -> None:
        self.requests: list[Request] = []
        self.before = before
        relay, port = self, store.port

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # clients that are killed
                    super().handle()

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    relay._note(self)
                    self._answer(*_forwarded(self, port, body))
                except NotForwarded:
                    self.close_connection = True

            def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _note(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        copied = "x-amz-copy-source" in handler.headers
        request = Request(handler.command, parts.path, parts.query, handler.headers.get("If-None-Match") == "*", copied)
        self.before(request)
        self.requests.append(request)


def _forwarded(handler: BaseHTTPRequestHandler, port: int, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, headers and content of the store's answer. The headers stay as they are signed."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            if name.lower() not in ("expect", "connection"):
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    own = {"transfer-encoding", "connection", "server", "date"}
    headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in own]
    if not answer.headers.get("Content-Length"):
        headers.append(("Content-Length", str(len(content))))
    return answer.status, headers, content
