"""Proposals that were made together are waited for together, for one time."""

import asyncio

from cluster.core.outcomes import outcome_of, until_settled
from raft.errors import UnknownOutcome
from raft.proposals import Proposed
from tests.patience import PATIENCE_S


def proposals(number: int) -> list[Proposed]:
    made = [Proposed(loop=asyncio.get_running_loop()) for _ in range(number)]
    for each in made:
        each.is_in_log = True
    return made


async def test_an_earlier_proposal_that_ends_last_is_waited_for() -> None:
    first, last = futures = proposals(2)
    last.set_exception(UnknownOutcome("lost"))
    waiting = asyncio.create_task(until_settled(futures, PATIENCE_S))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    first.set_exception(UnknownOutcome("lost, too"))
    await waiting
    assert [str(outcome_of(each, PATIENCE_S)) for each in futures] == ["lost, too", "lost"]


async def test_the_time_is_that_of_all_proposals() -> None:
    futures = proposals(1_000)
    begun_s = asyncio.get_running_loop().time()
    await until_settled(futures, 0.05)
    assert 0.05 <= asyncio.get_running_loop().time() - begun_s < 1_000 * 0.05
    assert all(isinstance(outcome_of(each, 0.05), UnknownOutcome) for each in futures)
    assert all(each.cancelled() for each in futures)
