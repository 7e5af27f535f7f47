"""Starts streaming queries on a busy machine, and listens to what sources ask nodes for."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote
from urllib.request import urlopen

from pyspark.sql.streaming.query import StreamingQuery

from tests.e2e.cluster_process import wait_for
from tests.patience import PATIENCE_S

LATE_WORKER: Final = "Python worker failed to connect back"


def begun(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Return a query that has made progress, has ended, or has failed.

    Spark gives the Python process of a source ten seconds to start, which cannot be changed. When the process is late,
    the query is started again from its checkpoint.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        query = begin()
        wait_for(partial(_has_begun, query), "the query to begin")
        error = query.exception()
        if error is None or LATE_WORKER not in str(error) or time.monotonic() > until_s:
            return query


def _has_begun(query: StreamingQuery) -> bool:
    return bool(query.recentProgress) or not query.isActive


@contextlib.contextmanager
def listened(target: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server that passes on what it is asked for, and the list of what that was."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(unquote(self.path))
            with urlopen(target + self.path) as answer:
                body = answer.read()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
