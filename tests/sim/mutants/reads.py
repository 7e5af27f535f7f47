"""Broken ways to answer a reader of queues and of the log."""

from cluster.messages.pull import PullApi
from cluster.messages.pull_pages import Page, PullQuery
from store.commands.messages import BatchPlaced
from store.messages.block_location import BlockLocation
from store.messages.outcomes import Event, MessagesOf, Outcomes
from store.messages.placement import At, CheckedBatch, Placement
from store.messages.queues import OfTransaction
from tests.sim.variant import Swap, mutant

_scan, _place_or_answer, _store = PullApi._scan, Placement.place, Outcomes.store


async def passes_by_the_next_message(
    api: PullApi, page: Page, topic: str, queue: int, query: PullQuery, scanned_bytes: int
) -> tuple[int, bool]:
    """An answer without messages sends its reader on behind the message that comes next."""
    scanned = await _scan(api, page, topic, queue, query, scanned_bytes)
    if not page.found:
        page.next_offset += 1
    return scanned


def tells_of_duplicates(
    placement: Placement,
    batch: CheckedBatch,
    block: BlockLocation,
    at: At,
    transaction: OfTransaction | None = None,
) -> BatchPlaced:
    """The events of the log publish a batch again when it is sent again."""
    placed = _place_or_answer(placement, batch, block, at, transaction)
    if placed.duplicate and placed.offset is not None:
        messages = MessagesOf(block.position, block.offset, placed.count)
        placement._outcomes.add(Event("PUBLISH", None, placed.topic, placed.queue, placed.offset, messages=messages))
    return placed


def tells_half(outcomes: Outcomes, raft_index: int, term: int, clock_ms: int, feature_level: int) -> None:
    """The events of the log lack the last one of an entry with several."""
    if len(outcomes._events) > 1:
        del outcomes._events[-1:]
    _store(outcomes, raft_index, term, clock_ms, feature_level)


MUTANTS = (
    mutant(4, Swap(PullApi, "_scan", passes_by_the_next_message)),
    mutant(14, Swap(Placement, "place", tells_of_duplicates)),
    mutant(14, Swap(Outcomes, "store", tells_half)),
)
