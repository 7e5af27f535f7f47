"""Bodies of the benchmarks: each is different, and about half of a batch compresses away."""

import pytest

from keelmq.blocks.batch import encode_messages
from tests.bench.bodies import HEAD_BYTES, Bodies


@pytest.mark.parametrize("size", [100, 1024, 16_384])
def test_bodies_have_their_size_and_are_all_different(size: int) -> None:
    bodies = Bodies(size)
    made = bodies.batch(2_000)
    assert {len(body) for body in made} == {size}
    assert len(set(made)) == len(made)
    assert len({body[HEAD_BYTES:] for body in made[:64]}) == 64  # not by their numbers alone


@pytest.mark.parametrize(("size", "count"), [(1024, 256), (16_384, 16)])
def test_half_of_a_batch_compresses_away(size: int, count: int) -> None:
    batch = Bodies(size).batch(count)
    packed, plain = encode_messages(batch, compressed=True), encode_messages(batch)
    assert 0.45 < len(packed.data) / len(plain.data) < 0.6


def test_two_makers_of_one_process_make_no_body_twice() -> None:
    first, second = Bodies(100), Bodies(100)
    assert not {*first.batch(100)} & {*second.batch(100)}


def test_a_body_begins_with_its_stamp() -> None:
    assert int.from_bytes(Bodies(100).next(stamp=77)[:8], "big") == 77


@pytest.mark.parametrize("size", [0, HEAD_BYTES + 1, 1 << 20])
def test_a_size_without_room_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a body has"):
        Bodies(size)
