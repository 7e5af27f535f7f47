"""Starts streaming queries on a busy machine."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

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
