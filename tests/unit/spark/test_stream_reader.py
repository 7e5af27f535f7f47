"""The planner of a streaming query: which entries a micro-batch has. The log is a stand-in."""

import time
from collections.abc import Sequence
from typing import Any, Self

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from keelmq_spark import source
from keelmq_spark.options import SourceOptions
from keelmq_spark.source import KeelMQReader, KeelMQStreamReader


class Log:
    """A log that ends where it is told to."""

    cluster_uid = "0b6c"

    def __init__(self) -> None:
        self.end = 10
        self.later_end = 10
        """End for those who wait."""
        self.told: list[int] = []

    def end_index(self, start: int, *, wait_ms: int = 0, tells: bool = False) -> int:
        if tells:
            self.told.append(start)
        return max(self.end, self.later_end) if wait_ms else self.end

    def end_within(self, start: int, max_bytes: int) -> int:
        """Return an end as if each entry had 100 bytes."""
        return min(self.end, start + max(1, max_bytes // 100))

    def expect(self, cluster_uid: str) -> None: ...

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


def reader(log: Any, **options: str) -> KeelMQStreamReader:
    made = KeelMQStreamReader(SourceOptions.parse({"servers": "http://127.0.0.1:1", "view": "events", **options}))
    made._log = log
    return made


def at(index: int) -> dict[str, Any]:
    return {"cluster": "0b6c", "index": index}


def test_a_batch_waits_for_enough_entries_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = Log()
    planner = reader(log, minOffsetsPerTrigger="5", maxTriggerDelayMs="1000")
    every = ReadAllAvailable()
    assert planner.latestOffset(at(5), every) == at(10)
    assert planner.latestOffset(at(10), every) == at(10)
    log.end = 14
    now_s = 0.9
    assert planner.latestOffset(at(10), every) == at(10), "four entries are too few"
    now_s = 1.0
    assert planner.latestOffset(at(10), every) == at(14)
    assert planner.latestOffset(at(14), every) == at(14)
    log.end = 30
    assert planner.latestOffset(at(14), ReadMaxRows(7)) == at(21)


def test_a_query_that_ends_does_not_wait() -> None:
    log = Log()
    planner = reader(log, minOffsetsPerTrigger="1000000")
    planner.prepareForTriggerAvailableNow()
    log.end = 20
    assert planner.latestOffset(at(5), ReadAllAvailable()) == at(10)
    assert planner.latestOffset(at(10), ReadAllAvailable()) == at(10)
    assert log.told == [5, 10], "nodes know how far such a query is, too"


def test_a_least_number_is_not_above_the_greatest() -> None:
    with pytest.raises(ValueError, match="minOffsetsPerTrigger: a number from 1 to 10, not '11'"):
        reader(Log(), minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")


def test_a_batch_has_so_many_bytes_and_at_least_one_entry() -> None:
    planner = reader(Log(), maxBytesPerTrigger="350")
    limit = planner.getDefaultReadLimit()
    assert limit == ReadMaxBytes(350)
    assert planner.latestOffset(at(1), limit) == at(4)
    assert planner.latestOffset(at(1), ReadAllAvailable()) == at(10)
    assert reader(Log(), maxBytesPerTrigger="1").latestOffset(at(1), limit) == at(2)
    both = reader(Log(), maxBytesPerTrigger="350", maxOffsetsPerTrigger="2")
    assert both.latestOffset(at(1), both.getDefaultReadLimit()) == at(3)
    planner.prepareForTriggerAvailableNow()
    assert planner.latestOffset(at(8), limit) == at(10)


def test_a_node_that_lags_does_not_end_a_query_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes an end that is the beginning for the end of the log."""
    log = Log()
    planner = reader(log, maxBytesPerTrigger="350")
    planner.prepareForTriggerAvailableNow()
    monkeypatch.setattr(log, "end_within", lambda start, max_bytes: start)
    assert planner.latestOffset(at(1), planner.getDefaultReadLimit()) == at(2)


def test_progress_says_how_far_the_log_goes() -> None:
    planner = reader(Log(), maxOffsetsPerTrigger="2")
    assert planner.reportLatestOffset() is None
    planner.latestOffset(at(1), planner.getDefaultReadLimit())
    assert planner.reportLatestOffset() == at(10)


def test_a_query_does_not_begin_beyond_the_end_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream would wait without a word until the log is as long, and a batch read nothing."""
    beyond = "startingOffsets: index 11 is beyond the end of the log, 10"
    with pytest.raises(ValueError, match=beyond):
        reader(Log(), startingOffsets='{"index": 11}', failoverTimeoutMs="1").initialOffset()
    assert reader(Log(), startingOffsets='{"index": 10}').initialOffset() == at(10)
    monkeypatch.setattr(source, "open_log", lambda options: Log())
    for start, error in (('{"index": 11}', beyond), ('{"index": 10}', None)):
        options = {"servers": "http://127.0.0.1:1", "view": "events", "startingOffsets": start}
        batch = KeelMQReader(SourceOptions.parse(options))
        if error is None:
            assert batch.partitions() == []
        else:
            with pytest.raises(ValueError, match=error):
                batch.partitions()


def test_the_end_is_asked_again_before_a_query_is_refused() -> None:
    """A node that answers first may be behind the leader."""
    log = Log()
    log.later_end = 12
    assert reader(log, startingOffsets='{"index": 11}').initialOffset() == at(11)
