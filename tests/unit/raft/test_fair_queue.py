"""Tests the turns of senders whose proposals wait for a place in the log."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from raft.fair_queue import FINISHES_KEPT, OWN, FairQueue

ENTRY_BYTES = 1_000
WORK_BYTES = 100


@dataclass
class Outcome:
    is_cancelled: bool = False

    def cancelled(self) -> bool:
        return self.is_cancelled


@dataclass
class Item:
    sender: str
    size_bytes: int = 100
    work_bytes: int = 1
    future: Outcome = field(default_factory=Outcome)
    number: int = 0


class Queue(FairQueue[Item]):
    def __init__(self, **weights: int) -> None:
        self.left_out: list[Item] = []
        self.weights = weights
        super().__init__(ENTRY_BYTES, WORK_BYTES, self.left_out.append, lambda sender: self.weights.get(sender, 1))

    def add(self, sender: str, count: int = 1, **item: int) -> None:
        for number in range(count):
            self.append(Item(sender, number=number, **item))  # type: ignore[arg-type]


def senders(group: list[Item]) -> str:
    return "".join(item.sender for item in group)


def test_what_fits_one_entry_goes_in_its_order() -> None:
    queue = Queue()
    for sender in "aabba":
        queue.add(sender)
    assert senders(queue.take()) == "aabba"
    assert not queue
    assert queue.take() == []


def test_one_that_comes_behind_a_long_queue_of_another_is_in_the_next_entry() -> None:
    queue = Queue()
    queue.add("a", 100)
    assert senders(queue.take()) == "a" * 10
    queue.add("b")
    assert "b" in senders(queue.take())
    queue.add("c")
    assert "c" in senders(queue.take())


def test_senders_get_equal_bytes_whatever_the_size_of_their_proposals() -> None:
    queue = Queue()
    queue.add("a", 500, size_bytes=20)
    queue.add("b", 50, size_bytes=200)
    got: Counter[str] = Counter()
    for _ in range(12):
        for item in queue.take():
            got[item.sender] += item.size_bytes
    assert abs(got["a"] - got["b"]) <= 2 * 200


def got_of(queue: Queue, entries: int) -> Counter[str]:
    """Take entries, and return the bytes that each sender got of them."""
    got: Counter[str] = Counter()
    for _ in range(entries):
        for item in queue.take():
            got[item.sender] += item.size_bytes
    return got


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        ({"a": 1, "b": 3}, {"a": 100, "b": 100}),
        ({"a": 1, "b": 3}, {"a": 20, "b": 250}),
        ({"a": 1, "b": 3}, {"a": 250, "b": 20}),
        ({"a": 100, "b": 1}, {"a": 50, "b": 50}),
        ({"a": 2, "b": 3, "c": 5}, {"a": 100, "b": 70, "c": 30}),
        ({"a": 7, "b": 7}, {"a": 100, "b": 100}),
    ],
)
def test_senders_get_bytes_in_the_ratio_of_their_weights(weights: dict[str, int], sizes: dict[str, int]) -> None:
    queue, entries = Queue(**weights), 60
    for sender, size_bytes in sizes.items():
        queue.add(sender, entries * ENTRY_BYTES // size_bytes + 1, size_bytes=size_bytes)
    got = got_of(queue, entries)
    for sender, weight in weights.items():
        share = sum(got.values()) * weight / sum(weights.values())
        assert abs(got[sender] - share) <= 2 * max(sizes.values()), (got, sender)


def test_weights_hold_for_costly_work_too() -> None:
    queue = Queue(b=3)
    for sender in "ab":
        queue.add(sender, 200, size_bytes=1, work_bytes=25)
    got = got_of(queue, 20)
    assert (got["a"], got["b"]) == (20, 60)


def test_what_others_do_not_use_goes_to_who_waits_whatever_the_weights() -> None:
    queue = Queue(b=100)
    queue.add("a", 100)
    assert got_of(queue, 5) == {"a": 5 * ENTRY_BYTES}
    queue.add("b")
    assert "b" in senders(queue.take()), "its turn comes at once, and it does not get what it never asked for"
    assert got_of(queue, 2) == {"a": 2 * ENTRY_BYTES}


def test_a_weight_that_changes_holds_for_what_waits_already() -> None:
    queue = Queue(b=3)
    for sender in "ab":
        queue.add(sender, 1_000)
    before = got_of(queue, 20)
    queue.weights = {"a": 3}
    after = got_of(queue, 20)
    assert abs(before["b"] - 3 * before["a"]) <= 4 * 100
    assert abs(after["a"] - 3 * after["b"]) <= 4 * 100


def test_no_weight_keeps_a_sender_of_little_weight_from_the_log() -> None:
    """A sender of weight 1 beside twenty of weight 100 has its turn within as many proposals as their weights say."""
    heavy = [f"h{number}" for number in range(20)]
    queue = Queue(**dict.fromkeys(heavy, 100))
    for sender in heavy:
        queue.add(sender, 300)
    queue.add("a", 2)
    places = [item.sender for _ in range(600) for item in queue.take()]
    first, second = (place for place, sender in enumerate(places) if sender == "a")
    assert first <= len(heavy)
    assert second - first <= 100 * len(heavy) + len(heavy)


def test_the_node_itself_needs_no_weight() -> None:
    def weight_of(sender: str) -> int:
        assert sender != OWN
        return 100

    queue: FairQueue[Item] = FairQueue(ENTRY_BYTES, WORK_BYTES, lambda item: None, weight_of)
    for _ in range(20):
        queue.append(Item("a"))
        queue.append(Item(OWN))
    assert [item.sender for item in (*queue.take(), *queue.take())] == [OWN] * 20


def test_costly_work_counts_as_its_share_of_an_entry() -> None:
    queue = Queue()
    queue.add("a", 100, size_bytes=1, work_bytes=50)
    queue.add("b", 100, size_bytes=1, work_bytes=5)
    taken = [item.sender for _ in range(10) for item in queue.take()]
    assert 8 <= taken.count("b") / taken.count("a") <= 12


def test_a_sender_keeps_its_order_and_nothing_is_lost() -> None:
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    queue, added, taken = Queue(), Counter[str](), dict[str, list[int]]()
    for _ in range(2_000):
        if draw.random() < 0.55:
            sender = draw.choice("abcdefgh"[: draw.randint(1, 8)])
            queue.append(
                Item(sender, draw.choice((1, 90, 400, 3_000)), draw.choice((1, 20, 300)), number=added[sender])
            )
            added[sender] += 1
        elif draw.random() < 0.5:
            group = queue.take()
            assert len(group) == 1 or sum(item.size_bytes for item in group) <= ENTRY_BYTES, seed
            assert len(group) == 1 or sum(item.work_bytes for item in group) <= WORK_BYTES, seed
            for item in group:
                taken.setdefault(item.sender, []).append(item.number)
    while group := queue.take():
        for item in group:
            taken.setdefault(item.sender, []).append(item.number)
    assert not queue
    assert taken == {sender: list(range(count)) for sender, count in added.items()}, seed


def test_who_comes_again_does_not_jump_the_queue() -> None:
    """A sender with one proposal at a time has no more than one that has many waiting."""
    queue = Queue()
    queue.add("b", 1_000)
    queue.add("a", size_bytes=900)
    got: Counter[str] = Counter()
    for _ in range(30):
        group = queue.take()
        got.update({item.sender: item.size_bytes for item in group if item.sender == "a"})
        got["b"] += 100 * senders(group).count("b")
        if "a" in senders(group):
            queue.add("a", size_bytes=900)
    assert got["a"] <= got["b"] + 2 * 900


@pytest.mark.parametrize("count", [3, 40])
def test_what_is_cancelled_is_left_out(count: int) -> None:
    queue = Queue()
    queue.append(Item("a", future=Outcome(is_cancelled=True)))
    queue.add("a", count)
    queue.append(Item("b", future=Outcome(is_cancelled=True)))
    taken = []
    while group := queue.take():
        taken += group
    assert len(taken) == count
    assert [item.sender for item in queue.left_out] == ["a", "b"]
    assert not queue


def test_draining_empties_the_queue_and_forgets_the_turns() -> None:
    queue = Queue()
    queue.add("a", 30)
    queue.add("b", 30)
    queue.take()
    queue.add("c", 2)
    assert Counter(item.sender for item in queue.drain()) == {"a": 25, "b": 25, "c": 2}
    assert not queue
    queue.add("a")
    assert senders(queue.take()) == "a"


def test_many_senders_that_come_once_are_not_remembered() -> None:
    queue = Queue()
    for number in range(3 * FINISHES_KEPT):
        queue.add("a", 12)
        queue.add(str(number))
        queue.take()
    assert len(queue._finishes) <= FINISHES_KEPT


def test_pruning_what_is_remembered_is_rare_while_nothing_is_past() -> None:
    """Thousands of senders with one proposal each end after the present virtual time: looking again finds none."""
    queue = Queue()
    for number in range(8 * FINISHES_KEPT):
        queue.add(str(number))
    looks = 0
    remembered = queue._finishes
    while queue.take():
        looks += queue._finishes is not remembered
        remembered = queue._finishes
    assert looks <= 4


def test_what_the_node_itself_proposes_comes_before_what_is_sent_later() -> None:
    queue = Queue()
    queue.add("a", 100)
    queue.take()
    queue.add(OWN, 3)
    queue.add("b", 3)
    order = [item.sender for item in queue.take()]
    assert order.count(OWN) == order.count("b") == 3
    assert order.index("b") > max(place for place, each in enumerate(order) if each == OWN)
