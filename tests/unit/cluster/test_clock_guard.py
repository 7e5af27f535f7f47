"""A node whose wall clock leaps: its alarms, the work that goes on, and the work that it leaves alone."""

import logging
from pathlib import Path

import pytest

from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
CHECK_MS = 10


def alarms_of(node: Node) -> dict[str, str]:
    """Return the details of the active alarms by code, but for that of a loop that stood: it is the tests' own loop,
    which a busy machine and collections of garbage stop.
    """
    alarms = node.broker.services.alarms
    alarms.look()
    return {alarm.code: alarm.detail for alarm in alarms.active if alarm.code != "loop_stalled"}


async def put_topic(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1, "retention_ms": DAY_MS})).status == 201


async def send(node: Node, **message: object) -> int:
    """Send a message and return its timestamp in ms."""
    reply = await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x", "queue": 0, **message}]})
    assert reply.status == 200
    return int(reply.body["receipt"]["timestamp_ms"])


@pytest.mark.parametrize("leap_ms", [YEAR_MS, -YEAR_MS])
async def test_a_lone_node_follows_no_leap_of_its_wall_clock(tmp_path: Path, leap_ms: int) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, retention_check_ms=CHECK_MS), fatal) as node:
        await put_topic(node)
        await send(node)
        await send(node, delay_ms=1_000)
        node.clock.leapt_ms = leap_ms
        node.clock.now_ms += 60_000
        assert await send(node) == START_MS + 60_000
        assert list(alarms_of(node)) == ["clock_skew"]
        assert "365.0 days" in alarms_of(node)["clock_skew"]
        assert node.core.state.timers_pending == 1
        node.clock.leapt_ms = 0
        node.clock.now_ms += 1_000
        assert alarms_of(node) == {}

        async def has_fired() -> bool:
            return node.core.state.timers_pending == 0

        await node.wait(has_fired)
        assert node.core.state.min_offset("orders", 0) == 0
    assert not fatal


async def test_a_restart_confirms_the_leap_of_a_lone_node(tmp_path: Path) -> None:
    fatal: list[str] = []
    config = node_config(tmp_path, retention_check_ms=CHECK_MS)
    async with running_node(config, fatal) as node:
        await put_topic(node)
        await send(node)
    async with running_node(config, fatal, leapt_ms=7 * DAY_MS) as node:
        assert await send(node) == START_MS + 7 * DAY_MS

        async def has_expired() -> bool:
            return node.core.state.min_offset("orders", 0) == 1

        await node.wait(has_expired)
        assert alarms_of(node) == {}


async def test_a_log_that_was_carried_ahead_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier version, which stamped the time of the leader's wall clock, leaves such a log."""
    fatal: list[str] = []
    config = node_config(tmp_path)
    async with running_node(config, fatal, leapt_ms=3 * DAY_MS) as node:
        await put_topic(node)
    with caplog.at_level(logging.WARNING):
        async with running_node(config, fatal) as node:
            assert await send(node) == START_MS + 3 * DAY_MS
            assert list(alarms_of(node)) == ["clock_ahead"]
            assert "3.0 days ahead of" in alarms_of(node)["clock_ahead"]
            text = (await node.call("GET", "/metrics")).body.decode()
            assert 'keelmq_clock_offset_seconds{node_id="1"} 0.0' in text
