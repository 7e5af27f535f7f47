"""Everybody can use the console: axe-core finds nothing in any view, light or dark, and every view fits 380 px."""

import hashlib
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.webdriver.common.by import By

from tests.e2e.cluster_process import ClusterProcess, ok
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page

AXE: Final = Path(__file__).parent / "axe"
NARROW_PX: Final = 380
FIND: Final = "axe.run().then(found => arguments[0](found.violations.map(each => [each.id, each.nodes[0].html])))"
VIEWS: Final = {
    "/": "Nodes",
    "/topics": "access",
    "/topics/access": "access-later",
    "/topics/access/queues/0": "access-1",
    "/groups": "access-group",
    "/groups/access-group": "no account",
    "/transactions?state=all": "access-half",
    "/transactions/access-half": "Decide it",
    "/find?topic=access&key=order-17": "access-1",
    "/messages/access-1": "What became of it",
    "/settings": "voter",
    "/audit": "Authentication is off",
    "/nowhere": "not_found",
    f"/transactions/{'x' * 64}": "transaction_not_found",
}
"""Every view with something in it, and a text that it shows then."""


@pytest.fixture(scope="module")
def filled(cluster: ClusterProcess) -> ClusterProcess:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/access", payload={"queues": 2, "type": "any"}))
    messages = [
        {"body": "a long body " * 50, "message_id": "access-1", "keys": ["order-17"], "queue": 0},
        {"body": "x" * 300, "message_id": "access-2", "queue": 0},
        {"body": "later", "message_id": "access-later", "delay_ms": 3_600_000},
    ]
    ok(leader.request("POST", "/v1/topics/access/messages", payload={"messages": messages}))
    ok(leader.request("PUT", "/v1/groups/access-group", payload={"retry_max_attempts": 0}))
    offsets = {"offsets": [{"topic": "access", "queue": 0, "offset": 0}]}
    ok(leader.request("PUT", "/v1/groups/access-group/offsets", payload=offsets))
    given_back = {"messages": [{"topic": "access", "queue": 0, "offset": 0, "reason": "no account"}]}
    ok(leader.request("POST", "/v1/groups/access-group/retries", payload=given_back))
    half = {
        "transaction_id": "access-half",
        "producer_group": "shop",
        "messages": [{"topic": "access", "body": "y"}],
    }
    ok(leader.request("POST", "/v1/transactions", payload=half))
    return cluster


def unfold(page: Page) -> None:
    for form in page.driver.find_elements(By.CSS_SELECTOR, "details:not([open]) > summary"):
        form.click()


def violations(page: Page) -> list[Any]:
    page.driver.execute_script((AXE / "axe.min.js").read_text())
    found: list[Any] = page.driver.execute_async_script(FIND)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(filled: ClusterProcess, page: Page, scheme: str) -> None:
    leader = filled.wait_leader()
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    found = {}
    for view, text in VIEWS.items():
        page.open(leader, view)
        page.until(text)
        unfold(page)
        found[view] = violations(page)
    assert {view: each for view, each in found.items() if each} == {}


def test_axe_would_find_something(filled: ClusterProcess, page: Page) -> None:
    page.open(filled.wait_leader(), "/settings")
    page.until("voter")
    page.driver.execute_script("document.querySelector('main').append(document.createElement('input'))")
    assert [rule for rule, _ in violations(page)] == ["label"]


def test_every_view_fits_a_narrow_screen(filled: ClusterProcess, page: Page) -> None:
    leader = filled.wait_leader()
    size = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for view, text in VIEWS.items():
            page.open(leader, view)
            page.until(text)
            unfold(page)
            assert page.driver.execute_script("return document.documentElement.scrollWidth") <= NARROW_PX, view
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_names_in_tables_are_not_broken_into_words_on_a_narrow_screen(filled: ClusterProcess, page: Page) -> None:
    leader, name = filled.wait_leader(), "access-with-a-name-of-many-words"
    ok(leader.request("PUT", f"/v1/topics/{name}", payload={"queues": 1}))
    ok(leader.request("PUT", f"/v1/topics/{'y' * 127}", payload={"queues": 1}))
    size = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(leader, "/topics")
        page.until(name)
        shown = page.element(By.LINK_TEXT, name)
        assert page.driver.execute_script("return arguments[0].getClientRects().length", shown) <= 2
        widest = page.element(By.LINK_TEXT, "y" * 127)
        assert widest.size["width"] < NARROW_PX, "a word that is too long is broken"
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_axe_is_the_file_that_its_authors_published() -> None:
    digest = hashlib.sha256((AXE / "axe.min.js").read_bytes()).hexdigest()
    assert f"`{digest}`" in (AXE / "README.md").read_text()
