"""The places of messages that groups behind commit, which are looked up in the table `events`."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from keelmq_spark.folding.filters import Attributes
from keelmq_spark.folding.places import READ_AHEAD_MESSAGES, Place, Places

QUEUE_MESSAGES = 1_000_000


class Events:
    """A table `events` in which every queue has a message at each `step`-th offset; it counts the look-ups."""

    def __init__(self, step: int = 10_000) -> None:
        self.step = step
        self.asked: list[Place] = []

    def __call__(self, topic: str, queue: int, begin: int, end: int) -> pa.Table:
        self.asked.append((topic, queue))
        offsets = [at for at in range(begin, min(end, QUEUE_MESSAGES)) if at % self.step == 0]
        columns = {"offset": pa.array(offsets, pa.int64()), "node_id": [node_at(queue, at) for at in offsets]}
        nothing = {name: pa.nulls(len(offsets), pa.string()) for name in Attributes._fields}
        return pa.table(columns | nothing)


def node_at(queue: int, offset: int) -> str:
    return f"message:t/{queue}-{offset}"


def commits(queues: int, begins: tuple[int, ...], each: int, step: int) -> Iterator[tuple[Place, int]]:
    """Yield the queue and first offset of commits by groups in turn."""
    for number in range(each):
        for queue in range(queues):
            for begin in begins:
                yield ("t", queue), begin + number * step


@pytest.mark.parametrize(("queues", "begins"), [(21, (0,)), (1, (0, 500_000)), (32, (0, 500_000))])
def test_a_queue_costs_a_look_up_for_each_group_and_read_ahead(queues: int, begins: tuple[int, ...]) -> None:
    events, step = Events(), READ_AHEAD_MESSAGES // 10
    places = Places(events)
    for place, begin in commits(queues, begins, 20, step):
        assert places.between(place, begin, begin + step) == ([begin], [node_at(place[1], begin)])
        assert places.selectable(place, begin, begin + step)[2] == [Attributes(*[None] * len(Attributes._fields))]
    assert len(events.asked) == queues * len(begins) * 2


def test_groups_close_behind_each_other_cost_a_look_up_each_and_read_ahead() -> None:
    events, step = Events(), READ_AHEAD_MESSAGES // 10
    places = Places(events)
    for place, begin in commits(1, (step, 0), 50, step):
        assert places.between(place, begin, begin + step)[0] == [begin]
    assert len(events.asked) <= 2 * (50 * step // READ_AHEAD_MESSAGES + 1)


def test_blocks_take_no_more_memory_than_they_may() -> None:
    events = Events()
    places = Places(events, blocks_bytes_max=60_000)
    for queue in range(50):
        places.between(("t", queue), 0, 10)
    events.asked.clear()
    places.between(("t", 49), 10, 20)
    assert not events.asked
    places.between(("t", 0), 10, 20)
    assert events.asked == [("t", 0)]
    assert len(places._blocks._blocks) <= 6


def test_a_group_behind_keeps_its_block_as_messages_are_published() -> None:
    """The block ends at the first new message, which the cache has."""
    events = Events(step=1)
    places = Places(events)
    places.between(("t", 0), QUEUE_MESSAGES - 50, QUEUE_MESSAGES - 40)
    for end in range(QUEUE_MESSAGES, QUEUE_MESSAGES + 3):
        row = {"topic": ["t"], "queue": [0], "offset": [end]}
        row |= {name: pa.nulls(1, pa.string()) for name in Attributes._fields}
        places.add(pa.table(row), pa.array([node_at(0, end)]))
        begin = QUEUE_MESSAGES - 30
        assert places.between(("t", 0), begin, end + 1)[0] == list(range(begin, end + 1))
    assert len(events.asked) == 1
