"""The Spark data source `keelmq`: the committed log as a stream, or as a batch; and rows as messages (writing.py).

    keelmq_spark.register(spark)
    events = spark.readStream.format("keelmq").option("servers", "http://…,http://…").option("view", "events").load()

Offsets are Raft indexes: {"cluster": uid, "index": n} means that everything before entry n of that cluster's log was
read; another cluster's log is refused. Only applied entries are planned, so a restart reads the same entries again.
Planner and executors are other processes than the driver: the classes here are pickled by reference, and the package
has to be installed on the executors.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from keelmq_spark.log_reader import WAIT_MS, LogReader
from keelmq_spark.options import SourceOptions
from keelmq_spark.options_of_sink import SinkOptions
from keelmq_spark.selection import Selection, is_wanted_of
from keelmq_spark.views.decode import event_batches
from keelmq_spark.views.events import spark_schema
from keelmq_spark.views.messages import message_batches, messages_schema
from keelmq_spark.writing import KeelMQStreamWriter, KeelMQWriter

ENTRIES_PER_PARTITION_MIN: Final = 64
"""Minimum number of entries per partition; fewer are not worth another task."""
Offset = dict[str, Any]
logger = logging.getLogger("keelmq.spark")
PLANNER_WAIT_MS: Final = 200
"""Time that the planner waits for new entries, because without a trigger Spark asks again at once."""


class LogRange(InputPartition):
    """A range of entries: start <= index < end."""

    def __init__(self, start: int, end: int, *, is_earliest: bool = False, cluster_uid: str = "") -> None:
        super().__init__((start, end))
        self.cluster_uid = cluster_uid
        self.start = start
        self.end = end
        self.is_earliest = is_earliest
        """True when the log began at `start` when the query was planned; it may begin later when the range is read."""


class KeelMQDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "keelmq"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        if options.view == "events":
            return spark_schema()
        return messages_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> "KeelMQReader":
        return KeelMQReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "KeelMQStreamReader":  # noqa: N802 - Spark's name
        return KeelMQStreamReader(SourceOptions.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> KeelMQWriter:
        if overwrite:
            raise ValueError("a log is not overwritten: use the mode append")
        return KeelMQWriter(SinkOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KeelMQStreamWriter:  # noqa: N802 - as above
        if overwrite:
            raise ValueError("a log is not overwritten: use the output mode append")
        return KeelMQStreamWriter(SinkOptions.parse(self.options), schema)


class KeelMQReader(DataSourceReader):
    """Reads the log as a batch, up to its end when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._selection = Selection.of(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Ask nodes for less, and have Spark still look at each row, because nodes may send more."""
        self._selection = self._selection.narrowed(filters, has_types=self._options.view == "events")
        return filters

    def partitions(self) -> Sequence[LogRange]:
        options = self._options
        with open_log(options) as log:
            require_topics(log, options)
            start = starting_index(log, options)
            end = log.end_index(1)
            if is_given(options):
                require_within(log, start, end)
            cluster_uid = log.cluster_uid
        if options.ending != "latest":
            if options.ending > end:
                raise ValueError(f"endingOffsets: index {options.ending} is beyond the end of the log, {end}")
            end = options.ending
        if self._selection.is_empty:
            return []
        begins_earliest = options.starting == "earliest" and options.starting_timestamp_ms is None
        return split(start, end, options.min_partitions, from_earliest=begins_earliest, cluster_uid=cluster_uid)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # Without planned partitions, Spark asks for the partition None.
        return read_range(self._options, partition, self._selection) if isinstance(partition, LogRange) else iter(())


class KeelMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in the planner, where it asks for the end of the log; `read` runs on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._log: LogReader | None = None
        self._last_end: int | None = None
        """Index at which a query with the trigger AvailableNow ends; None for other queries."""
        self._known_end = 0
        self._waiting_for = -1
        """Index that the next batch begins at, since `_waiting_since_s`."""
        self._waiting_since_s = 0.0

    def initialOffset(self) -> Offset:  # noqa: N802
        log, options = self._reader(), self._options
        require_topics(log, options)
        start = starting_index(log, options)
        if is_given(options):  # a new leader may not have applied yet what a lineage job has read
            require_within(log, start, log.end_index(1), wait_ms=options.failover_timeout_ms)
        return self._offset(start)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, never before `start`: a new leader may know less than the last one.

        Raises OtherLog when `start`, which may come from a checkpoint, is of another cluster's log."""
        begin = index_of(start)
        log = self._reader(cluster_uid_of(start))
        if self._last_end is not None:
            log.end_index(begin, tells=True)
            end = self._last_end
        else:
            end = self._known_end = log.end_index(begin, wait_ms=PLANNER_WAIT_MS, tells=True)
            if self._waits(begin, end):
                return self._offset(begin)
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, end, limit)
        return self._offset(max(begin, end))

    def _limited(self, begin: int, end: int, limit: ReadLimit) -> int:
        """Return the end of a batch within the limit. Spark hands on one limit, and that of bytes holds beside it."""
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        max_bytes = self._options.max_bytes_per_trigger
        if max_bytes is not None and end > begin + 1:
            # The first entry is there, also when a node answers that has not applied it: executors wait for it.
            end = min(end, max(begin + 1, self._reader().end_within(begin, max_bytes)))
        return end

    def _waits(self, begin: int, end: int) -> bool:
        """Return whether the entries are too few for a batch, and have not waited for too long."""
        now_s = time.monotonic()
        if self._waiting_for != begin:
            self._waiting_for, self._waiting_since_s = begin, now_s
        if end - begin >= self._options.min_offsets_per_trigger:
            return False
        return (now_s - self._waiting_since_s) * 1000 < self._options.max_trigger_delay_ms

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, max_bytes = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._offset(self._known_end) if self._known_end else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last_end = self._known_end = self._reader().end_index(1)

    def partitions(self, start: Offset, end: Offset) -> Sequence[LogRange]:
        begin, cluster_uid = index_of(start), cluster_uid_of(end)
        return split(begin, index_of(end), self._options.min_partitions, cluster_uid=cluster_uid)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        return read_range(options, partition, Selection.of(options)) if isinstance(partition, LogRange) else iter(())

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _offset(self, index: int) -> Offset:
        """Return the offset; Spark compares offsets as text, so the order of the keys is fixed."""
        uid = self._reader().cluster_uid
        return {"cluster": uid, "index": index} if uid else {"index": index}

    def _reader(self, cluster_uid: str = "") -> LogReader:
        """Return the reader. Raises OtherLog when it reads another log than that of `cluster_uid`."""
        if self._log is None:
            self._log = open_log(self._options, cluster_uid, self._options.reader_name)
        self._log.expect(cluster_uid)
        return self._log

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors without the connection, which each process opens itself."""
        return {**self.__dict__, "_log": None}


def index_of(offset: Offset) -> int:
    return int(offset["index"])


def cluster_uid_of(offset: Offset) -> str:
    """Return the cluster of an offset; empty for offsets of earlier versions, and of nodes that do not tell it."""
    return str(offset.get("cluster", ""))


def open_log(options: SourceOptions, cluster_uid: str = "", name: str | None = None) -> LogReader:
    return LogReader(
        options.servers,
        timeout_ms=options.failover_timeout_ms,
        fetch_max_bytes=options.fetch_max_bytes,
        tls=options.tls,
        token_file=options.token_file,
        cluster_uid=cluster_uid or options.cluster_uid,
        name=name,
    )


def starting_index(log: LogReader, options: SourceOptions) -> int:
    """Return the index at which a new query begins."""
    if options.starting_timestamp_ms is not None:
        return log.index_at(options.starting_timestamp_ms)
    if options.starting == "earliest":
        return log.first_index()
    if options.starting == "latest":
        return log.end_index(1)
    return options.starting


def require_topics(log: LogReader, options: SourceOptions) -> None:
    """Raise ValueError when a topic does not exist, as far as the reader may know."""
    missing = log.missing_topics(options.topics) if options.fail_on_data_loss else []
    if missing:
        raise ValueError(
            f"subscribe: there is no topic {', '.join(missing)}; failOnDataLoss=false reads what the log still has of "
            "topics that were deleted"
        )


def is_given(options: SourceOptions) -> bool:
    """Return whether a new query begins at an index that its options name."""
    return options.starting_timestamp_ms is None and isinstance(options.starting, int)


def require_within(log: LogReader, start: int, end: int, *, wait_ms: int = 0) -> None:
    """Raise ValueError when the log, which ended before `end`, is not as long as `start` within `wait_ms`. An empty
    range begins at the end.
    """
    until_s = time.monotonic() + wait_ms / 1000
    if start > end and wait_ms:
        logger.warning("waiting for entry %d of the log, which ends before %d", start - 1, end)
    while start > end and (left_ms := int((until_s - time.monotonic()) * 1000)) > 0:
        end = log.end_index(start - 1, wait_ms=min(left_ms, WAIT_MS))
    if start > end:
        raise ValueError(
            f"startingOffsets: index {start} is beyond the end of the log, {end}: name an index up to "
            "that one, earliest or latest"
        )


def split(
    start: int, end: int, partitions: int, *, from_earliest: bool = False, cluster_uid: str = ""
) -> list[LogRange]:
    """Split the range into at most `partitions` parts with about the same number of entries."""
    entries = end - start
    if entries <= 0:
        return []
    parts = max(1, min(partitions, entries // ENTRIES_PER_PARTITION_MIN))
    bounds = [start + entries * part // parts for part in range(parts + 1)]
    return [
        LogRange(*bounds[part : part + 2], is_earliest=from_earliest and part == 0, cluster_uid=cluster_uid)
        for part in range(parts)
    ]


def read_range(options: SourceOptions, part: LogRange, selection: Selection) -> Iterator[Any]:
    """Yield Arrow batches of the range, in order, of events that nodes were asked to select."""
    is_wanted = is_wanted_of(options)
    with open_log(options, part.cluster_uid) as log:
        pages = log.pages(
            part.start,
            part.end,
            select=selection.select(),
            skip_removed=not options.fail_on_data_loss,
            from_earliest=part.is_earliest,
        )
        if options.view == "events":
            yield from event_batches(pages, is_wanted)
        elif is_wanted is not None:
            yield from message_batches(
                pages,
                is_wanted,
                first_offsets=options.first_offsets,
                last_offsets=options.last_offsets,
                include_headers=options.include_headers,
            )
