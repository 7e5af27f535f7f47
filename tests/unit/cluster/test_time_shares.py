"""Costly work rests until its address has come to its share of the time, while other addresses wait for writes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cluster.budgets import time_shares
from cluster.budgets.time_shares import JOINED_S, REST_S_MAX, WAITED_S, Client, TimeShares
from tests.unit.client.virtual_time import run_in_virtual_time

COSTLY, OTHER, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"
PERCENT = 20
WORK_S = 0.04
ROUNDS = 20


async def work(shares: TimeShares, address: str = COSTLY) -> float:
    """Do costly work and return the time when it began."""
    await shares.begin(address)
    begun_s = asyncio.get_running_loop().time()
    await asyncio.sleep(WORK_S)
    shares.end(address)
    return begun_s


async def write(shares: TimeShares, address: str = OTHER, waited_s: float = WAITED_S / 8) -> None:
    """Send 10 small writes a second until cancelled. They wait for a little more than the time that counts."""
    client = Client(shares, address)
    while True:
        client.waited(waited_s)
        await asyncio.sleep(0.1)


async def share_of(work: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]) -> float:
    """Return the part of the elapsed time that `ROUNDS` times `WORK_S` were."""
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(each) for each in beside]
    await asyncio.sleep(1.0)
    begun_s = loop.time()
    await work
    for task in tasks:
        task.cancel()
    return ROUNDS * WORK_S / (loop.time() - begun_s)


async def in_windows(shares: TimeShares) -> None:
    for _ in range(ROUNDS):
        await work(shares)
    await shares.rest(COSTLY)


async def in_slices(shares: TimeShares) -> None:
    time_shares.begin(shares, COSTLY)
    for _ in range(ROUNDS):
        await asyncio.sleep(WORK_S)
        await time_shares.rest(WORK_S)


@pytest.mark.parametrize("working", [in_windows, in_slices])
def test_costly_work_has_its_share_of_the_time_while_others_wait_for_writes(working: Any) -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        assert await share_of(working(shares), write(shares)) == pytest.approx(PERCENT / 100)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("working", [in_windows, in_slices])
@pytest.mark.parametrize("others", [(), (COSTLY,)])
def test_it_has_all_of_it_while_nobody_else_does(working: Any, others: tuple[str, ...]) -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        assert await share_of(working(shares), *(write(shares, each) for each in others)) == pytest.approx(1)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("working", [in_windows, in_slices])
def test_all_of_the_time_is_no_limit(working: Any) -> None:
    async def scenario() -> None:
        shares = TimeShares(100)
        assert await share_of(working(shares), write(shares)) == pytest.approx(1)

    run_in_virtual_time(scenario())


def test_each_address_has_a_share_of_its_own() -> None:
    async def scenario() -> None:
        shares, loop = TimeShares(PERCENT), asyncio.get_running_loop()
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        await work(shares)
        begun_s = loop.time()
        assert await work(shares, THIRD) == begun_s
        writing.cancel()

    run_in_virtual_time(scenario())


def test_those_who_come_when_a_window_opens_share_it_and_later_ones_wait_for_the_next() -> None:
    async def scenario() -> None:
        shares, loop = TimeShares(PERCENT), asyncio.get_running_loop()
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        await work(shares)
        opens_s = loop.time() + WORK_S * (100 / PERCENT - 1)
        waiting = [asyncio.create_task(work(shares)) for _ in range(2)]
        await asyncio.sleep(opens_s + 2 * JOINED_S - loop.time())
        late = asyncio.create_task(work(shares))
        assert [await each for each in waiting] == [pytest.approx(opens_s)] * 2
        assert await late == pytest.approx(opens_s + WORK_S * 100 / PERCENT)
        writing.cancel()

    run_in_virtual_time(scenario())


def test_who_is_cancelled_while_it_waits_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        working = asyncio.create_task(work(shares))
        await asyncio.sleep(2 * JOINED_S)
        gone, last = asyncio.create_task(work(shares)), asyncio.create_task(work(shares))
        await asyncio.sleep(0)
        gone.cancel()
        await working
        await last
        writing.cancel()

    run_in_virtual_time(scenario())


def test_a_request_does_not_wait_for_itself() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        client = Client(shares, COSTLY)
        await client.begin()
        await asyncio.sleep(WORK_S)
        await client.begin()
        client.end()
        waiting = asyncio.create_task(work(shares))
        await asyncio.sleep(WORK_S)
        assert not waiting.done(), "the window is open until the outer one has ended"
        client.end()
        await waiting
        writing.cancel()

    run_in_virtual_time(scenario())


def test_others_that_hardly_wait_are_nobody_to_be_spared() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        assert await share_of(in_windows(shares), write(shares, waited_s=WAITED_S / 12)) == pytest.approx(1)

    run_in_virtual_time(scenario())


def test_costly_writes_do_not_rest_for_each_other() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT)
        other = Client(shares, OTHER)
        await other.begin()
        assert await share_of(in_windows(shares), _writes_of(other)) == pytest.approx(1)

    async def _writes_of(other: Client) -> None:
        while True:
            other.waited(1.0)
            await asyncio.sleep(0.1)

    run_in_virtual_time(scenario())


def test_a_rest_has_an_end_and_is_only_for_those_who_have_others() -> None:
    async def scenario() -> None:
        shares, loop = TimeShares(PERCENT), asyncio.get_running_loop()
        client = Client(shares, COSTLY)
        shares.charge(COSTLY, 3_600)
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        begun_s = loop.time()
        await client.come_to_share()
        assert loop.time() == begun_s, "an hour alone is not held against it"
        shares.charge(COSTLY, 3_600)
        await client.come_to_share()
        assert loop.time() - begun_s == pytest.approx(REST_S_MAX)
        writing.cancel()

    run_in_virtual_time(scenario())


def test_every_step_of_a_request_is_charged_and_its_waits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the work, and every exception raised in it, cancellations included, reach the awaiting caller."""
    now_s = [0.0]
    monkeypatch.setattr("cluster.budgets.time_shares.time.perf_counter", lambda: now_s[0])

    async def scenario() -> None:
        shares, loop = TimeShares(PERCENT), asyncio.get_running_loop()
        writing = asyncio.create_task(write(shares))
        await asyncio.sleep(1.0)
        client = time_shares.begin(shares, COSTLY)

        async def steps() -> str:
            now_s[0] += WORK_S
            waiting = loop.create_future()
            loop.call_later(0.001, waiting.set_exception, KeyError("raised while it waited"))
            with pytest.raises(KeyError):
                await waiting
            now_s[0] += WORK_S
            await asyncio.sleep(0)
            now_s[0] += WORK_S / 2
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(passes())
            return "done"

        async def passes() -> None:
            now_s[0] += 100.0
            await asyncio.sleep(0)

        async def for_ever() -> None:
            try:
                await loop.create_future()
            finally:
                now_s[0] += WORK_S / 2

        begun_s = loop.time()
        assert await time_shares.charged(client, steps()) == "done"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await time_shares.charged(client, for_ever())
        due_s = begun_s + 3 * WORK_S * (100 / PERCENT - 1)
        assert begun_s + shares.due_in_s(COSTLY) == pytest.approx(due_s, abs=0.01)
        writing.cancel()

    run_in_virtual_time(scenario())


async def test_a_short_step_costs_nothing() -> None:
    shares = TimeShares(PERCENT)
    shares.count_wait(OTHER, 1.0)

    async def short() -> None:
        await asyncio.sleep(0)

    await time_shares.charged(Client(shares, COSTLY), short())
    assert shares.due_in_s(COSTLY) == 0


def client_of(shares: TimeShares, address: str, name: str | None) -> Client:
    client = Client(shares, address)
    if name is not None:
        client.becomes(name)
    return client


async def work_as(client: Client) -> None:
    """Do costly work as many times as fill the windows that `share_of` expects."""
    for _ in range(ROUNDS):
        await client.begin()
        await asyncio.sleep(WORK_S)
        client.end()
    await client.rest()


async def write_as(client: Client) -> None:
    while True:
        client.waited(WAITED_S / 8)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(("beside", "percent"), [("other", PERCENT), ("shop", 100), (None, PERCENT)])
def test_a_principal_has_a_share_from_all_its_addresses(beside: str | None, percent: int) -> None:
    """The principal works from two addresses in turn, and others wait at one of them."""

    async def scenario() -> None:
        shares = TimeShares(100, TimeShares(PERCENT))
        of_shop = [client_of(shares, address, "shop") for address in (COSTLY, OTHER)]

        async def in_turn() -> None:
            for number in range(ROUNDS):
                client = of_shop[number % 2]
                await client.begin()
                await asyncio.sleep(WORK_S)
                client.end()
            await of_shop[0].rest()

        found = await share_of(in_turn(), write_as(client_of(shares, COSTLY, beside)))
        assert found == pytest.approx(percent / 100)

    run_in_virtual_time(scenario())


def test_a_principal_is_spared_by_those_at_its_address() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT, TimeShares(PERCENT))
        writing = write_as(client_of(shares, COSTLY, "other"))
        assert await share_of(work_as(client_of(shares, COSTLY, "shop")), writing) == pytest.approx(PERCENT / 100)

    run_in_virtual_time(scenario())


def test_an_address_keeps_its_share_whoever_uses_it() -> None:
    async def scenario() -> None:
        shares = TimeShares(PERCENT, TimeShares(100))
        writing = write_as(client_of(shares, OTHER, None))
        assert await share_of(work_as(client_of(shares, COSTLY, "shop")), writing) == pytest.approx(PERCENT / 100)

    run_in_virtual_time(scenario())


def test_who_waits_for_one_account_opens_no_window_in_the_other() -> None:
    """An address does not pay for the time in which its principal waits."""

    async def scenario() -> None:
        shares = TimeShares(PERCENT, TimeShares(PERCENT))
        writing = asyncio.create_task(write_as(client_of(shares, THIRD, "other")))
        await asyncio.sleep(1.0)
        first, second = client_of(shares, COSTLY, "shop"), client_of(shares, OTHER, "shop")
        await first.begin()
        await asyncio.sleep(2 * JOINED_S)
        waiting = asyncio.create_task(second.begin())
        await asyncio.sleep(WORK_S)
        assert not waiting.done()
        assert shares.due_in_s(OTHER) == 0
        first.end()
        await waiting
        second.end()
        assert shares.due_in_s(OTHER) == pytest.approx(0.0, abs=WORK_S / 10)
        writing.cancel()

    run_in_virtual_time(scenario())
