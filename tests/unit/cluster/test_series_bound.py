"""The number of series that docs/metrics.md promises holds with all that has series of its own at its cap."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from cluster.budgets.quotas import SERIES_MAX as PRINCIPALS
from cluster.problems import KINDS
from cluster.telemetry.requests import BOUNDS_S
from cluster.telemetry.topic_counters import SERIES_MAX
from tests.requirements import REPOSITORY
from tests.unit.cluster.conftest import Node, node_config, running_node

PAGE: Final = (REPOSITORY / "docs" / "metrics.md").read_text()
ROW: Final = re.compile(r"^\| `(keelmq_\w+)` \| (\w+) \| (.*?) \| ", re.MULTILINE)
PEERS_MAX: Final = 8
STATUSES: Final = 6
"""Statuses with which a route answers: success, a redirect, wrong requests, no permission, overload, no leader."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(node_config(tmp_path), []) as running:
        yield running


def families_with(*labels: str) -> list[str]:
    return [name for name, _, shown in ROW.findall(PAGE) if any(f"`{label}`" in shown for label in labels)]


async def test_the_bound_of_the_page_holds_with_every_cap_reached(node: Node) -> None:
    (said,) = re.findall(r"has at most ([\d,]+)\s+series", PAGE)
    of_objects = families_with("topic", "group")
    assert len(of_objects) == 10, "a family more has 1,001 series more"
    routes = {(route.method, route.path) for route in node.broker.services.routes}
    of_route = len(BOUNDS_S) + 1 + len(("sum", "count", "in flight")) + STATUSES
    shown = (await node.call("GET", "/metrics")).body.decode()
    fixed = sum(1 for line in shown.splitlines() if line and not line.startswith("#"))
    total = fixed + len(of_objects) * (SERIES_MAX + 1) + PRINCIPALS + (len(routes) + 1) * of_route
    total += 2 * len(KINDS) + PEERS_MAX * len(families_with("node_id"))
    assert total <= int(said.replace(",", ""))
