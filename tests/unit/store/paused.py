"""Applies entries with a pause wherever one may be."""

from store.commands.entry import Command, Proposal
from tests.unit.store.counted_work import work_of
from tests.unit.store.replica import Replica


def never() -> bool:
    return False


def steps_of(replica: Replica, *commands: Proposal | Command) -> list[int]:
    """Apply an entry of these commands with a pause wherever one may be; return the work of each call."""
    entry = replica.log.append(replica.now_ms, commands)
    works: list[int] = []
    results: list[object] = []
    while not results:
        works.append(work_of(lambda: results.extend(replica.machine.apply([entry], never))))
    return works
