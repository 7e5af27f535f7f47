"""The reader of the log asks all nodes before it says that a range is removed. The nodes are stand-ins."""

from collections.abc import Sequence
from typing import Any

import pytest

from keelmq.errors import InvalidRequest, LogRangeRemoved, NoLeader
from keelmq.log.log_events import EventsPage
from keelmq_spark import log_reader
from keelmq_spark.log_reader import DataLoss, LogReader, Select

SHORT, LONG = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Nodes:
    """Two nodes: the log of SHORT begins at entry 100, that of LONG at 1. LONG is away for a number of calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.asked: list[str] = []
        self.selected: list[tuple[str, ...]] = []
        self.cannot_select = False

    async def log_events(self, server: str, begin: int, end: int) -> EventsPage:
        self.asked.append(server)
        if server == SHORT:
            if begin < 100:
                raise LogRangeRemoved("log_range_removed", "the log begins at 100", extra={"first_index": 100})
        elif self.away:
            self.away -= 1
            raise NoLeader("unavailable", "connection refused")
        return EventsPage(server.encode(), end, 0, 200)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes(away=3)

    class Connection:
        def __init__(self, servers: Sequence[str], **_: Any) -> None:
            self.server = servers[0]

        def close(self) -> None: ...

    class Admin:
        def __init__(self, connection: Connection) -> None:
            self._server = connection.server

        async def log_events(
            self,
            begin: int,
            *,
            to_index: int,
            topics: Sequence[str] = (),
            types: Sequence[str] = (),
            reader: str | None = None,
            **_: Any,
        ) -> EventsPage:
            nodes.selected.append((*topics, *types, *([reader] if reader else [])))
            if nodes.cannot_select and (topics or types or reader):
                raise InvalidRequest("invalid_request", "Object contains unknown field `topics`")
            return await nodes.log_events(self._server, begin, to_index)

    monkeypatch.setattr(log_reader, "Connection", Connection)
    monkeypatch.setattr(log_reader, "Admin", Admin)
    return nodes


def read(timeout_ms: int, *, skip_removed: bool = False) -> list[bytes]:
    with LogReader((SHORT, LONG), timeout_ms=timeout_ms, fetch_max_bytes=1) as log:
        return [page.data for page in log.pages(50, 150, skip_removed=skip_removed)]


@pytest.mark.parametrize("skip_removed", [False, True])
def test_a_range_that_only_a_node_has_that_restarts_is_not_lost(nodes: Nodes, skip_removed: bool) -> None:
    assert read(60_000, skip_removed=skip_removed) == [LONG.encode()]
    assert nodes.asked.count(LONG) == 4
    assert nodes.asked.count(SHORT) <= 2, "what it said once it does not have to say again"


def test_a_node_that_stays_away_does_not_keep_the_query_for_ever(nodes: Nodes) -> None:
    nodes.away = 1_000_000
    with pytest.raises(DataLoss, match="entries 50 to 149 of the log are needed and it begins at 100"):
        read(1)
    assert read(1, skip_removed=True) == [SHORT.encode()]


def test_what_nobody_has_is_removed_at_once(nodes: Nodes) -> None:
    with LogReader((SHORT,), timeout_ms=3_600_000, fetch_max_bytes=1) as log, pytest.raises(DataLoss):
        list(log.pages(50, 150))


def test_a_node_that_is_away_does_not_delay_the_question_where_the_log_begins(nodes: Nodes) -> None:
    nodes.away = 1_000_000
    with LogReader((SHORT, LONG), timeout_ms=3_600_000, fetch_max_bytes=1) as log:
        assert log.first_index() == 100


@pytest.mark.parametrize("cannot_select", [False, True])
def test_a_node_that_cannot_select_is_asked_for_everything(nodes: Nodes, cannot_select: bool) -> None:
    nodes.away, nodes.cannot_select = 0, cannot_select
    with LogReader((LONG,), timeout_ms=60_000, fetch_max_bytes=1) as log:
        pages = list(log.pages(50, 150, select=Select(("orders", "b*"), ("ACK",))))
    assert [page.data for page in pages] == [LONG.encode()]
    assert nodes.selected == [("orders", "b*", "ACK"), *([()] if cannot_select else [])]


@pytest.mark.parametrize("cannot_select", [False, True])
def test_a_node_that_does_not_know_readers_is_not_told_of_them(nodes: Nodes, cannot_select: bool) -> None:
    nodes.away, nodes.cannot_select = 0, cannot_select
    with LogReader((LONG,), timeout_ms=60_000, fetch_max_bytes=1, name="job") as log:
        log.end_index(1)
        log.end_index(5, tells=True)
        log.end_index(6, tells=True)
    assert nodes.selected == [(), *([("job",), (), ()] if cannot_select else [("job",), ("job",)])]
