"""Everybody can use the console: axe-core finds nothing in any view, light or dark, and every view fits 380 px."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.webdriver.common.by import By

from tests.e2e.closed_cluster import ADMINISTRATOR, TOPIC
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import ClusterProcess, ok
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page

closed = make_closed_cluster()
AXE: Final = Path(__file__).parent / "axe"
NARROW_PX: Final = 380
FIND: Final = "axe.run().then(found => arguments[0](found.violations.map(each => [each.id, each.nodes[0].html])))"
VIEWS: Final = {
    "/": "stored:",
    "/topics": "access",
    "/topics/access": "access-later",
    "/topics/access/queues/0": "access-1",
    "/topics/access/delayed": "access-later",
    "/groups": "access-group",
    "/groups?topic=access": "access-group",
    "/groups/access-group": "no account",
    "/groups/access-group/dead-letters": "no account",
    "/groups/access-members": "access/0, access/1",
    "/groups/access-members/members": "access/0, access/1",
    "/transactions?state=all": "access-half",
    "/transactions/access-half": "Decide it",
    "/find?topic=access&key=order-17": "access-1",
    "/messages/access-1": "What became of it",
    "/messages/access-json?topic=access": '"order": 17',
    "/messages/access-json?topic=access&body=json": '"order": 17',
    "/messages/access-1?topic=access&body=text": "a long body",
    "/messages/access-1?topic=access&body=hex": "000000",
    "/settings": "voter",
    "/audit": "Authentication is off",
    "/nowhere": "not_found",
    f"/transactions/{'x' * 64}": "transaction_not_found",
}
"""Every view with something in it, and a text that it shows then."""
PREVIEWS: Final = {
    "reset": ({"to": "latest"}, "2 messages skipped"),
    "clone": ({"source": "access-members"}, "What it does now with 1 queues"),
}
"""Forms of a group that show first what they do: their fields, and a text that is shown then."""


@pytest.fixture(scope="module")
def filled(cluster: ClusterProcess) -> ClusterProcess:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/access", payload={"queues": 2, "type": "any"}))
    messages = [
        {"body": "a long body " * 50, "message_id": "access-1", "keys": ["order-17"], "queue": 0},
        {"body": "x" * 300, "message_id": "access-2", "queue": 0},
        {"body": '{"order": 17, "lines": [1, {"of": "b"}]}', "message_id": "access-json", "queue": 1},
        {"body": "later", "message_id": "access-later", "delay_ms": 3_600_000},
    ]
    ok(leader.request("POST", "/v1/topics/access/messages", payload={"messages": messages}))
    ok(leader.request("PUT", "/v1/groups/access-group", payload={"retry_max_attempts": 0}))
    offsets = {"offsets": [{"topic": "access", "queue": 0, "offset": 0}]}
    ok(leader.request("PUT", "/v1/groups/access-group/offsets", payload=offsets))
    given_back = {"messages": [{"topic": "access", "queue": 0, "offset": 0, "reason": "no account"}]}
    ok(leader.request("POST", "/v1/groups/access-group/retries", payload=given_back))
    joining = {"topics": ["access"], "member_id": "access-member", "session_timeout_ms": 600_000}
    ok(leader.request("PUT", "/v1/groups/access-members/offsets", payload=offsets))
    ok(leader.request("POST", "/v1/groups/access-members/members", payload=joining))
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


def sideways(page: Page) -> bool:
    """Return whether the page is wider than the screen."""
    return bool(page.driver.execute_script("return document.documentElement.scrollWidth > innerWidth"))


def emulate(page: Page, scheme: str) -> None:
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})


@contextlib.contextmanager
def narrow(page: Page) -> Iterator[None]:
    size = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def preview(page: Page, form: str) -> None:
    """Have a form show what it would do."""
    fields, text = PREVIEWS[form]
    page.fill(form, **fields)
    page.press("Preview", form)
    page.until(text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(filled: ClusterProcess, page: Page, scheme: str) -> None:
    leader = filled.wait_leader()
    emulate(page, scheme)
    found = {}
    for view, text in VIEWS.items():
        page.open(leader, view)
        page.until(text)
        unfold(page)
        found[view] = violations(page)
    for form in PREVIEWS:
        page.open(leader, "/groups/access-group")
        preview(page, form)
        found[form] = violations(page)
    assert {view: each for view, each in found.items() if each} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_one_signs_in_and_something_is_wrong(
    closed: ClusterProcess, page: Page, scheme: str
) -> None:
    """Sign-in, also refused, alarms, and the audit of a closed cluster."""
    leader, follower = closed.wait_leader(), closed.follower()
    emulate(page, scheme)
    page.open(leader)
    page.driver.execute_script("sessionStorage.clear()")
    page.driver.refresh()
    page.until("Sign in")
    found = {"sign in": violations(page)}
    page.element(By.ID, "token").send_keys("wrong" * 10 + "\n")
    page.until("the token is not valid")
    found["refused"] = violations(page)
    page.element(By.ID, "token").send_keys(ADMINISTRATOR + "\n")
    page.until("Nodes")
    follower.kill()
    try:
        page.until("What to do", "does not answer")
        found["alarms"] = violations(page)
        with narrow(page):
            assert not sideways(page)
        page.open(leader, f"/audit?route=topics/{TOPIC}")
        page.until("The newest first", "done")
        found["audit"] = violations(page)
        with narrow(page):
            assert not sideways(page)
    finally:
        follower.start()
    closed.wait_ready()
    assert {view: each for view, each in found.items() if each} == {}


def test_axe_would_find_something(filled: ClusterProcess, page: Page) -> None:
    page.open(filled.wait_leader(), "/settings")
    page.until("voter")
    page.driver.execute_script("document.querySelector('main').append(document.createElement('input'))")
    assert [rule for rule, _ in violations(page)] == ["label"]


def test_every_view_fits_a_narrow_screen(filled: ClusterProcess, page: Page) -> None:
    leader = filled.wait_leader()
    with narrow(page):
        for view, text in VIEWS.items():
            page.open(leader, view)
            page.until(text)
            unfold(page)
            assert not sideways(page), view
        for form in PREVIEWS:
            page.open(leader, "/groups/access-group")
            preview(page, form)
            assert not sideways(page), form


def test_names_in_tables_are_not_broken_into_words_on_a_narrow_screen(filled: ClusterProcess, page: Page) -> None:
    leader, name = filled.wait_leader(), "access-with-a-name-of-many-words"
    ok(leader.request("PUT", f"/v1/topics/{name}", payload={"queues": 1}))
    ok(leader.request("PUT", f"/v1/topics/{'y' * 127}", payload={"queues": 1}))
    with narrow(page):
        page.open(leader, "/topics")
        page.until(name)
        shown = page.element(By.LINK_TEXT, name)
        assert page.driver.execute_script("return arguments[0].getClientRects().length", shown) <= 2
        widest = page.element(By.LINK_TEXT, "y" * 127)
        assert widest.size["width"] < NARROW_PX, "a word that is too long is broken"


def test_axe_is_the_file_that_its_authors_published() -> None:
    digest = hashlib.sha256((AXE / "axe.min.js").read_bytes()).hexdigest()
    assert f"`{digest}`" in (AXE / "README.md").read_text()
