"""The reader threads serve readers in turn, do nothing for readers that are gone, and read old messages fast enough."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.core.log_reads import CATCH_UP, READ_WAIT_S_MAX, WRITES_BYTES_PER_S, WRITES_SAMPLED_S, ReadPace
from cluster.core.reader_threads import ReaderThreads
from cluster.problems import Problem
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.record import HEADER_BYTES, KIND_ENTRY
from tests.patience import PATIENCE_S

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[ReaderThreads]:
    pool = ReaderThreads(threads=1)
    yield pool
    pool.stop()


async def test_readers_take_turns(pool: ReaderThreads) -> None:
    """A reader that wants much gets one step for each step of another reader."""
    done: list[str] = []
    gate = threading.Event()

    async def read(name: str, steps: int) -> None:
        for _ in range(steps):
            await pool.run(lambda: done.append(name))

    first = asyncio.create_task(pool.run(gate.wait))
    await asyncio.sleep(0)
    readers = [asyncio.create_task(read(name, steps)) for name, steps in (("greedy", 10), ("modest", 2))]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *readers)
    assert done[:4] == ["greedy", "modest", "greedy", "modest"]


async def test_a_step_whose_reader_is_gone_never_begins(pool: ReaderThreads) -> None:
    gate, begun = threading.Event(), list[str]()
    first = asyncio.create_task(pool.run(gate.wait))
    await asyncio.sleep(0)
    gone = asyncio.create_task(pool.run(lambda: begun.append("gone")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    gate.set()
    await first
    await pool.run(lambda: begun.append("there"))
    assert begun == ["there"]


async def test_what_a_step_raises_its_reader_gets(pool: ReaderThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert await pool.run(lambda: "goes on") == "goes on"


@pytest.fixture
def no_thread() -> Iterator[Callable[[], None]]:
    """Have no thread start until the test calls it: no stack is as large as is asked for."""
    before = threading.stack_size(1 << 46)
    yield lambda: (threading.stack_size(before), None)[1]
    threading.stack_size(before)


async def test_without_a_thread_a_step_is_refused_and_the_next_one_tries_again(no_thread: Callable[[], None]) -> None:
    pool = ReaderThreads(threads=2)
    for _ in range(2):  # not only the first: it must not wait for threads that never came
        with pytest.raises(Problem, match="cannot start a thread") as raised:
            await asyncio.wait_for(pool.run(lambda: 1), PATIENCE_S)
        assert raised.value.code == "overloaded"
    no_thread()
    assert await pool.run(lambda: 1) == 1
    pool.stop()


async def test_with_one_thread_of_two_a_pool_goes_on(no_thread: Callable[[], None]) -> None:
    no_thread()
    pool = ReaderThreads(threads=2)
    pool._size = 1
    await pool.run(lambda: 1)
    pool._size = 2
    before = threading.stack_size(1 << 46)
    assert await pool.run(lambda: 2) == 2
    threading.stack_size(before)
    pool.stop()


async def test_nothing_begins_once_the_pool_is_stopped(pool: ReaderThreads) -> None:
    assert await pool.run(lambda: 1) == 1
    pool.stop()
    with pytest.raises(asyncio.CancelledError):
        await pool.run(lambda: 1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    log = CommitLog.open(PosixDisk(), str(tmp_path), segment_bytes=64 * MIB, cache_bytes=1 << 16)
    yield log
    log.close()


def write(log: CommitLog, size_bytes: int) -> None:
    log.append(log.last_index + 1, 0, KIND_ENTRY, bytes(size_bytes - HEADER_BYTES))


def test_nobody_waits_while_nothing_is_written(log: CommitLog) -> None:
    pace = ReadPace(log, MIB)
    assert [pace.wait_s(MIB, now_s) for now_s in (0.0, 1.0, 1.0, 1.0)] == [0, 0, 0, 0]


def test_readers_share_what_there_is_beside_producers(log: CommitLog) -> None:
    pace = ReadPace(log, MIB)
    pace.wait_s(0, 0.0)
    write(log, int(WRITES_BYTES_PER_S * 2 * WRITES_SAMPLED_S))
    now_s = 2 * WRITES_SAMPLED_S
    assert [pace.wait_s(MIB // 2, now_s) for _ in range(3)] == [0, 0.5, 1.0]
    assert pace.wait_s(MIB // 2, now_s + 1.0) == 0, "nothing was written since"


def test_who_would_wait_for_long_is_refused_and_takes_nothing(log: CommitLog) -> None:
    pace = ReadPace(log, MIB)
    pace.wait_s(0, 0.0)
    write(log, 4 * WRITES_BYTES_PER_S)
    pace.wait_s(int((READ_WAIT_S_MAX + 1) * MIB), 1.0)
    for _ in range(2):
        with pytest.raises(Problem) as refused:
            pace.wait_s(MIB, 1.0)
        assert refused.value.code == "overloaded"


def test_old_messages_are_read_faster_than_new_ones_come(log: CommitLog) -> None:
    """A reader that is behind catches up, however much is written."""
    pace = ReadPace(log, MIB)
    pace.wait_s(0, 0.0)
    write(log, 8 * MIB)
    pace.wait_s(8 * CATCH_UP * MIB, 1.0)
    assert pace.wait_s(0, 1.0) == pytest.approx(1.0)


def test_without_a_limit_nobody_waits(log: CommitLog) -> None:
    pace = ReadPace(log, 0)
    pace.wait_s(0, 0.0)
    write(log, 8 * MIB)
    assert [pace.wait_s(8 * MIB, 1.0) for _ in range(3)] == [0, 0, 0]
