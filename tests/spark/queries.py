"""Runs queries on a busy machine, and listens to what sources ask nodes for."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, TypeVar
from urllib.parse import unquote
from urllib.request import urlopen

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tests.e2e.cluster_process import wait_for
from tests.patience import PATIENCE_S

LATE_WORKER: Final = "Python worker failed to connect back"

Result = TypeVar("Result")


def in_time(run: Callable[[], Result]) -> Result:
    """Return what `run` returns, which reads or writes by a query and may be repeated.

    Spark gives the Python process of a source or a sink ten seconds to start, which cannot be changed. It is run again
    when that process is late.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return run()
        except Exception as error:
            if LATE_WORKER not in str(error) or time.monotonic() > until_s:
                raise


def begun(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Return a query that has made progress, has ended, or has failed. A repeated one goes on from its checkpoint."""

    def run() -> StreamingQuery:
        query = begin()
        wait_for(partial(_has_begun, query), "the query to begin")
        error = query.exception()
        if error is not None and LATE_WORKER in str(error):
            raise error
        return query

    return in_time(run)


def ended(begin: Callable[[], StreamingQuery]) -> list[StreamingQueryProgress]:
    """Wait until the query has read everything available, and return its progress, over all its tries. Raises what
    the query failed by.
    """
    progress: list[StreamingQueryProgress] = []

    def run() -> None:
        query = begin()
        try:
            assert query.awaitTermination(int(PATIENCE_S)), "the query is still running"
        finally:
            progress.extend(query.recentProgress)

    in_time(run)
    return progress


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
