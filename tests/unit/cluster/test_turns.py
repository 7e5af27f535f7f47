"""Requests of one key wait for their turns in the order in which they came, and for nothing of another key."""

import asyncio

from cluster.budgets.turns import Turns

FIRST, SECOND = "192.0.2.1", "192.0.2.2"
LIMIT = 4_096
HALF = LIMIT // 2


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_bodies_of_an_address_take_turns_in_the_order_they_came() -> None:
    turns = Turns(LIMIT)
    await turns.take(FIRST, HALF)
    await turns.take(FIRST, HALF)
    waiting = [asyncio.create_task(turns.take(FIRST, size)) for size in (LIMIT, 1, HALF)]
    await settled()
    assert not any(task.done() for task in waiting)
    turns.give_back(FIRST, HALF)
    await settled()
    assert not any(task.done() for task in waiting)  # none overtakes the one that does not fit yet
    turns.give_back(FIRST, HALF)
    await settled()
    assert [task.done() for task in waiting] == [True, False, False]
    turns.give_back(FIRST, LIMIT)
    await settled()
    assert all(task.done() for task in waiting)
    turns.give_back(FIRST, 1)
    turns.give_back(FIRST, HALF)
    await turns.take(FIRST, LIMIT)


async def test_one_body_larger_than_a_turn_passes_alone_and_others_do_not_wait_for_it() -> None:
    turns = Turns(LIMIT)
    await turns.take(FIRST, 4 * LIMIT)
    await turns.take(SECOND, 4 * LIMIT)
    waiting = asyncio.create_task(turns.take(FIRST, 1))
    await settled()
    assert not waiting.done()
    turns.give_back(FIRST, 4 * LIMIT)
    await waiting


async def test_a_request_that_is_gone_gives_its_turn_to_the_next() -> None:
    turns = Turns(LIMIT)
    await turns.take(FIRST, LIMIT)
    gone, woken, last = (asyncio.create_task(turns.take(FIRST, LIMIT)) for _ in range(3))
    await settled()
    gone.cancel()
    await settled()
    turns.give_back(FIRST, LIMIT)
    woken.cancel()  # it has its turn, and does not know yet
    await settled()
    assert last.done()
    assert not last.cancelled()


async def test_who_waits_for_much_is_passed_by_nobody_and_one_that_gives_up_leaves_its_place() -> None:
    turns, order = Turns(10), list[str]()

    async def change(name: str, size: int, goes_on: asyncio.Event) -> None:
        await turns.take("", size)
        order.append(name)
        await goes_on.wait()
        turns.give_back("", size)

    events = {name: asyncio.Event() for name in ("small", "huge", "given up", "last")}
    sizes = {"small": 4, "huge": 1_000, "given up": 3, "last": 3}
    tasks = {name: asyncio.create_task(change(name, sizes[name], events[name])) for name in events}
    await asyncio.sleep(0)
    assert order == ["small"], "who came later does not pass the one that waits"
    tasks["given up"].cancel()
    events["small"].set()
    await tasks["small"]
    await settled()
    assert order == ["small", "huge"]
    events["huge"].set()
    events["last"].set()
    await asyncio.gather(tasks["huge"], tasks["last"])
    assert order == ["small", "huge", "last"]
    assert turns.taken_max == 1_000, "alone"
