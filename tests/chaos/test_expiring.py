"""Tests the checker of the expiring topic, and the bound of the clocks: each broken rule must be named."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.checkers.delivered_once import DeliveredOnce
from tests.chaos.checkers.expiring import ExpiringQueues, Kept, Pulled
from tests.chaos.ledger import Book, Place, WorkerLedger
from tests.chaos.violations import Kind, Violations
from tests.chaos.wall_clocks import COUNTS_FOR_S, SLACK_MS, WallClocks

KEPT_MS, STORED_MS = 1_000, 5_000
OVER_MS = STORED_MS + KEPT_MS
NODE = (1, 1)


@pytest.fixture
def queues(violations: Violations) -> ExpiringQueues:
    return ExpiringQueues("t", KEPT_MS, violations)


@pytest.fixture
def book() -> Book:
    return Book(["t"])


@pytest.fixture
def four(book: Book) -> WorkerLedger:
    """Return a ledger of four messages, acknowledged at the offsets 0 to 3."""
    ledger = book.worker("w", expires=True)
    ledger.acked(ledger.begin(4), 4, Place("t", 0, 0), 2)
    return ledger


def pulled(begin: int, numbers: Sequence[int], first: int | None = None) -> Pulled:
    first = begin if first is None else first
    messages = tuple(Kept(offset, number, STORED_MS) for offset, number in enumerate(numbers, first))
    return Pulled(begin, first + len(numbers), messages)


def test_what_goes_in_its_time_is_innocent(
    queues: ExpiringQueues, four: WorkerLedger, book: Book, violations: Violations
) -> None:
    numbers = four.numbers(0, 4)
    queues.pulled(NODE, 0, 0, pulled(0, numbers), STORED_MS)
    queues.pulled(NODE, 0, 1, pulled(2, numbers[2:]), OVER_MS)
    queues.pulled((2, 1), 0, 0, pulled(1, numbers[1:]), OVER_MS)  # it is behind
    queues.pulled((1, 2), 0, 3, pulled(0, numbers[3:], 3), OVER_MS)  # it applies its log once more
    queues.finish(four, {node_id: {0: pulled(2, numbers[2:])} for node_id in (1, 2)})
    DeliveredOnce("node 1", book, {}, violations).finish()
    assert (violations.kept, queues.gone) == ([], 2)


def test_a_message_that_goes_before_its_time(
    queues: ExpiringQueues, four: WorkerLedger, violations: Violations
) -> None:
    queues.pulled(NODE, 0, 0, pulled(0, four.numbers(0, 4)), STORED_MS)
    queues.pulled(NODE, 0, 0, pulled(1, four.numbers(1, 3)), OVER_MS - 1)
    assert dict(violations.counts) == {Kind.EXPIRED: 1}


def test_a_queue_that_begins_earlier_again(queues: ExpiringQueues, four: WorkerLedger, violations: Violations) -> None:
    queues.pulled(NODE, 0, 0, pulled(2, four.numbers(2, 2)), OVER_MS)
    queues.pulled(NODE, 0, 0, pulled(1, four.numbers(1, 3)), OVER_MS)
    assert dict(violations.counts) == {Kind.EXPIRED: 1}
    queues.finish(four, {1: {0: pulled(1, four.numbers(1, 3))}})
    assert dict(violations.counts) == {Kind.EXPIRED: 2}


def test_a_message_that_is_there_twice(queues: ExpiringQueues, four: WorkerLedger, violations: Violations) -> None:
    first = four.numbers(0, 1)[0]
    queues.pulled(NODE, 0, 0, pulled(0, [first]), STORED_MS)
    queues.pulled(NODE, 0, 0, pulled(1, [first]), OVER_MS)
    assert dict(violations.counts) == {Kind.DUPLICATED: 1}


def test_a_hole(queues: ExpiringQueues, four: WorkerLedger, violations: Violations) -> None:
    queues.pulled(NODE, 0, 1, pulled(0, four.numbers(2, 2), 2), STORED_MS)
    assert dict(violations.counts) == {Kind.GAP: 1}


def test_what_is_kept_must_be_there_and_where_it_was_said(
    queues: ExpiringQueues, book: Book, four: WorkerLedger, violations: Violations
) -> None:
    refused = four.begin()
    four.failed(refused, 1)
    numbers = four.numbers(0, 5)
    held = {0: pulled(1, [numbers[2], numbers[1], numbers[4]])}
    queues.finish(four, {1: held})
    assert dict(violations.counts) == {Kind.MOVED: 2, Kind.LOST: 1, Kind.FAILED_BUT_STORED: 1}


def test_nodes_that_keep_different_messages(queues: ExpiringQueues, four: WorkerLedger, violations: Violations) -> None:
    numbers = four.numbers(0, 4)
    queues.finish(four, {1: {0: pulled(1, numbers[1:])}, 2: {0: pulled(2, numbers[2:])}})
    assert dict(violations.counts) == {Kind.EXPIRED: 1}


def test_the_replicated_clock_follows_none_that_is_wrong_and_one_is_at_a_time(tmp_path: Path) -> None:
    now_s = 100.0
    clocks = WallClocks({1: tmp_path / "1", 2: tmp_path / "2"}, lambda: now_s)
    now_s += COUNTS_FOR_S
    assert clocks.others_count_for_s(1) == clocks.others_count_for_s(2) == 0
    clocks.shift(2, 7_000)
    assert clocks.latest_ms() == now_s * 1000 + SLACK_MS
    assert (clocks.others_count_for_s(1), clocks.others_count_for_s(2)) == (math.inf, 0)
    clocks.shift(2, 0)
    now_s += 1.0
    assert clocks.others_count_for_s(1) == COUNTS_FOR_S - 1.0
    assert clocks.others_count_for_s(2) == 0
