"""A member's session by its own clock: it ends no later than the broker ends it, as far as the member can know."""

import asyncio

from keelmq.consuming.session_watch import BROKEN_MARGIN_S, BROKEN_SESSION_S, SessionWatch
from tests.unit.client.virtual_time import run_in_virtual_time

LEFT_S = BROKEN_SESSION_S - BROKEN_MARGIN_S


def test_a_broken_connection_leaves_what_the_broker_leaves() -> None:
    async def scenario() -> None:
        loop, ended = asyncio.get_running_loop(), list[float]()
        watch = SessionWatch(30_000, lambda: ended.append(loop.time()))
        watch.renewed(loop.time())
        broke_s = loop.time()
        watch.broke()
        await asyncio.sleep(LEFT_S - 0.1)
        before = watch.over
        await asyncio.sleep(0.2)
        assert (before, watch.over) == (False, True)
        assert [round(each - broke_s, 3) for each in ended] == [LEFT_S]
        watch.close()

    run_in_virtual_time(scenario())


def test_the_next_heartbeat_gives_the_session_back() -> None:
    async def scenario() -> None:
        loop, ended = asyncio.get_running_loop(), list[float]()
        watch = SessionWatch(30_000, lambda: ended.append(loop.time()))
        watch.renewed(loop.time())
        watch.broke()
        await asyncio.sleep(1)
        watch.renewed(loop.time())
        await asyncio.sleep(29)
        before = watch.over
        watch.broke()
        await asyncio.sleep(1.5)
        assert (before, watch.over) == (False, True), "what is left does not become longer"
        assert len(ended) == 1
        watch.close()

    run_in_virtual_time(scenario())
