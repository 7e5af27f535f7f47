"""Many undecided transactions: their checks go out at a limited pace, and none of them hides another one."""

from pathlib import Path

import pytest

from cluster.transactions import check_service
from cluster.transactions.check_pace import CheckPace
from tests.unit.cluster.conftest import Node, node_config, running_node
from tests.unit.cluster.test_check_service import IMMUNITY_MS, poll, prepare


def taken(pace: CheckPace) -> int:
    """Take checks until the pace is used up and return their number."""
    pace.refill()
    count = 0
    while not pace.used_up:
        pace.take()
        count += 1
    return count


def test_at_most_a_second_s_worth_at_once_and_so_many_per_second() -> None:
    now_ms = 0
    pace = CheckPace(200, lambda: now_ms)
    assert taken(pace) == 200
    assert taken(pace) == 0
    now_ms += 4
    assert taken(pace) == 0
    now_ms += 1
    assert taken(pace) == 1
    now_ms += 500
    assert taken(pace) == 100
    now_ms += 3_600_000
    assert taken(pace) == 200


async def test_a_node_hands_out_as_many_checks_as_it_may_and_the_rest_later(tmp_path: Path) -> None:
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, checks_per_second=5), fatal) as node:
        for number in range(12):
            await prepare(node, f"t-{number}")
        node.clock.now_ms += IMMUNITY_MS
        asked: list[str] = []
        for expected in (5, 0, 5, 2):
            if expected:
                node.clock.now_ms += 1_000
            checks = [check["transaction_id"] for check in await poll(node)]
            assert len(checks) == expected
            asked += checks
        assert sorted(asked) == sorted(f"t-{number}" for number in range(12)), "each once"
    assert not fatal


async def test_a_group_that_nobody_polls_for_hides_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """More checks of the other group are due than one scan looks at. The next scan goes on behind them."""
    monkeypatch.setattr(check_service, "DUE_PER_PAGE", 2)
    monkeypatch.setattr(check_service, "PAGES_PER_SCAN", 2)
    for number in range(11):
        await prepare(node, f"other-{number:02}", producer_group="other")
    await prepare(node, "t", check_after_ms=IMMUNITY_MS + 1)
    node.clock.now_ms += IMMUNITY_MS + 1
    (check,) = await poll(node, wait_ms=30_000)
    assert check["transaction_id"] == "t"


async def test_one_poll_may_take_more_than_a_page(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_service, "DUE_PER_PAGE", 2)
    for number in range(5):
        await prepare(node, f"t-{number}")
    node.clock.now_ms += IMMUNITY_MS
    assert len(await poll(node)) == 5
