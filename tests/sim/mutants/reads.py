"""Broken ways to answer a reader of queues."""

from cluster.messages.pull import PullApi
from cluster.messages.pull_pages import Page, PullQuery
from tests.sim.variant import Swap, mutant

_scan = PullApi._scan


async def passes_by_the_next_message(
    api: PullApi, page: Page, topic: str, queue: int, query: PullQuery, scanned_bytes: int
) -> tuple[int, bool]:
    """An answer without messages sends its reader on behind the message that comes next."""
    scanned = await _scan(api, page, topic, queue, query, scanned_bytes)
    if not page.found:
        page.next_offset += 1
    return scanned


MUTANTS = (mutant(4, Swap(PullApi, "_scan", passes_by_the_next_message)),)
