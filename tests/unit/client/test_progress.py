"""The committed offset is the end of the finished prefix, in whatever order messages finish."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from keelmq.consuming.progress import QueueProgress


@given(st.data(), st.integers(0, 1_000), st.integers(1, 30))
def test_position_is_the_end_of_the_finished_prefix(data: st.DataObject, start: int, count: int) -> None:
    progress = QueueProgress(start)
    sizes = {start + number: number + 1 for number in range(count)}
    waiting = list(sizes)
    fetched: list[int] = []
    finished: set[int] = set()
    while len(finished) < count:
        unfinished = [offset for offset in fetched if offset not in finished]
        if waiting and (not unfinished or data.draw(st.booleans())):
            offset = waiting.pop(0)
            progress.add([offset], [sizes[offset]])
            fetched.append(offset)
        else:
            offset = data.draw(st.sampled_from(unfinished))
            before = progress.position
            finished.add(offset)
            assert progress.finish([offset]) is (progress.position > before)
        expected = start
        while expected in finished:
            expected += 1
        assert progress.position == expected
        held = [offset for offset in fetched if offset >= expected]
        assert (progress.count, progress.bytes) == (len(held), sum(sizes[offset] for offset in held))


def test_a_gap_in_the_offsets_is_stepped_over() -> None:
    """The missing offsets expired before they were read."""
    progress = QueueProgress(5)
    progress.add([100], [1])
    assert progress.position == 5
    assert progress.finish([100])
    assert progress.position == 101


def test_what_was_filtered_out_is_stepped_over_with_what_is_before_it() -> None:
    progress = QueueProgress(0)
    progress.add([3, 7], [1, 1])
    assert progress.reach(10)
    assert progress.position == 3, "nothing that was fetched is passed"
    assert progress.finish([3])
    assert progress.position == 7
    assert progress.reach(20) is False, "7 is not finished"
    assert progress.finish([7])
    assert progress.position == 20
    assert progress.reach(25)
    assert progress.position == 25
    assert progress.reach(25) is False


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_position_is_the_first_message_that_is_not_finished(wanted: list[bool], random: Random) -> None:
    """The portions in which messages are fetched, and the order in which they finish, do not matter."""
    progress = QueueProgress(0)
    fetched, unfinished = 0, list[int]()
    while fetched < len(wanted) or unfinished:
        if fetched < len(wanted) and (not unfinished or random.random() < 0.5):
            portion = random.randint(1, len(wanted) - fetched)
            offsets = [offset for offset in range(fetched, fetched + portion) if wanted[offset]]
            progress.add(offsets, [1] * len(offsets))
            unfinished.extend(offsets)
            fetched += portion
            progress.reach(fetched)
        else:
            random.shuffle(unfinished)
            some = random.randint(1, len(unfinished))
            progress.finish(unfinished[:some])
            del unfinished[:some]
        assert progress.position == min(unfinished, default=fetched)
        assert progress.count == sum(wanted[progress.position : fetched])
