"""The console of this tree, in a real browser, beside nodes of the last release, which has none."""

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from store.version import VERSION
from tests.e2e.cluster_process import ok
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.requirements import skip
from tests.versions.test_mixed_versions import THIS, Version, build_of, made, restart
from tests.versions.test_mixed_versions import released as released

pytestmark = pytest.mark.process


def test_who_leads_without_a_console_is_said_in_place_of_a_link(tmp_path: Path, released: Version, page: Page) -> None:
    with made(tmp_path, [released] * 3) as cluster:
        node = cluster.follower()
        restart(cluster, node, THIS)
        if cluster.wait_leader() is node:
            restart(cluster, node, THIS)  # another one leads meanwhile
        leader = cluster.wait_leader()
        old = build_of(leader)
        if old == VERSION:
            skip("this clone does not have the last release")
        ok(leader.request("PUT", "/v1/topics/orders", payload={"queues": 1}))
        cluster.wait_same_state()
        page.open(node)
        page.until("Nodes", old)
        links = page.driver.find_elements(By.CSS_SELECTOR, "main a[href$='/console']")
        assert [each.text for each in links] == [str(node.node_id)]
        page.open(node, "/topics/orders")
        page.until("Alter the topic")
        page.fill("alter", hours="5", operator="ann", reason="ticket 17")
        page.press("Alter", "alter")
        page.confirm()
        shown = page.until("leader_only", f"Node {leader.node_id} leads, whose version {old} has no console")
        assert "Open this view" not in shown


def test_a_page_of_another_version_than_its_node_says_so(tmp_path: Path, released: Version, page: Page) -> None:
    with made(tmp_path, [released]) as cluster:
        (node,) = cluster.nodes.values()
        old = build_of(node)
        if old == VERSION:
            skip("this clone does not have the last release")
        ok(node.request("PUT", "/v1/topics/orders", payload={"queues": 1}))  # a log with nothing gets the highest level
        restart(cluster, node, THIS)
        page.open(node, "/topics/orders")
        page.until("Alter the topic")
        page.fill("alter", hours="5", operator="ann", reason="ticket 17")
        restart(cluster, node, released)
        page.press("Alter", "alter")
        page.confirm()
        page.until("invalid_request", f"This page is of version {VERSION}, and this node runs {old} now")
        page.complaints()  # of the browser: that the node was not there
