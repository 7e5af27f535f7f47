"""The planner of a streaming query: which entries a micro-batch has. The log is a stand-in."""

import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from keelmq_spark.options import SourceOptions
from keelmq_spark.source import KeelMQStreamReader


class Log:
    """A log that ends where it is told to."""

    cluster_uid = "0b6c"

    def __init__(self) -> None:
        self.end = 10

    def end_index(self, start: int, *, wait_ms: int = 0) -> int:
        return self.end

    def expect(self, cluster_uid: str) -> None: ...


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


def test_a_least_number_is_not_above_the_greatest() -> None:
    with pytest.raises(ValueError, match="minOffsetsPerTrigger: a number from 1 to 10, not '11'"):
        reader(Log(), minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
