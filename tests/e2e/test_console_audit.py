"""The audit in the console: who may look, what it shows, and that what clients wrote is text."""

from urllib.parse import quote

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.e2e.closed_cluster import ADMINISTRATOR, bearer, rule, someone
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.test_console_access import violations

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
closed = make_closed_cluster()


def signed_in(page: Page, node: NodeProcess, token: str, view: str = "/") -> None:
    page.open(node, view)
    page.driver.execute_script("sessionStorage.setItem('keelmq.token', arguments[0])", token)
    page.driver.refresh()


def recorded(node: NodeProcess, query: str) -> None:
    wait_for(lambda: ok(node.request("GET", f"/v1/audit?{query}"))["records"], query)


def shows_link(page: Page) -> bool:
    return page.element(By.ID, "to-audit").is_displayed()


def test_an_administrator_finds_who_changed_what(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    operator = someone(leader, rule("create", on="topic:seen-*"))
    by = {**bearer(operator.token), "X-Request-Id": "ticket-1"}
    ok(leader.request("PUT", "/v1/topics/seen-1", payload={"queues": 1}, headers=by))
    assert leader.request("DELETE", "/v1/topics/seen-1", headers=by).status == 403
    recorded(leader, f"principal={operator.name}&outcome=denied")
    recorded(leader, f"principal={operator.name}&outcome=done")
    signed_in(page, leader, ADMINISTRATOR)
    wait_for(lambda: shows_link(page), "the link to the audit")
    page.follow("Audit")
    page.until(f"Audit of node {leader.node_id}", "PUT /v1/topics/seen-1", "The newest first")
    field = page.element(By.ID, "audit-principal")
    field.send_keys(operator.name + Keys.ENTER)
    shown = page.until(operator.name, "denied, delete topic:seen-1")
    assert "admin" not in shown.partition("The newest first")[2]
    assert page.driver.current_url.endswith(f"#/audit?principal={operator.name}"), (
        "what is looked for is in the address"
    )
    Select(page.element(By.ID, "audit-outcome")).select_by_value("done")
    page.element(By.ID, "audit-request_id").send_keys("ticket-1")
    Select(page.element(By.ID, "audit-span")).select_by_value("3600000")
    page.press("Filter")
    page.until("ticket-1", "done")
    wait_for(lambda: "denied, delete" not in page.main(), "the filtered list")
    assert Select(page.element(By.ID, "audit-outcome")).first_selected_option.text == "done"
    other = closed.follower()
    link = page.element(By.LINK_TEXT, f"Node {other.node_id}").get_attribute("href")
    assert (link or "").startswith(f"{other.url}/console#/audit?principal={operator.name}")
    assert violations(page) == []


def test_long_audits_come_page_by_page(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    user = someone(leader)
    for _ in range(105):
        ok(leader.request("PUT", f"/v1/users/{user.name}", payload={"rules": []}))
    wait_for(
        lambda: len(ok(leader.request("GET", f"/v1/audit?route={user.name}&limit=500"))["records"]) >= 107,
        "all records",
    )
    signed_in(page, leader, ADMINISTRATOR, f"/audit?route=users/{user.name}")
    page.until(user.name, "Next page")
    page.follow("Next page")
    page.until(f"POST /v1/users/{user.name}/tokens")
    assert page.driver.find_elements(By.LINK_TEXT, "Next page") == []


def test_who_may_not_is_told_how_and_asks_for_nothing(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    looks = someone(leader, rule("describe", on="cluster"))
    signed_in(page, leader, looks.token)
    page.until("Nodes")
    wait_for(lambda: "node" in page.element(By.ID, "whom").text, "whom the page serves")
    assert not shows_link(page)
    page.open(leader, "/audit")
    page.until(f"keelmq auth acl allow {looks.name} admin cluster")
    assert ok(leader.request("GET", f"/v1/audit?principal={looks.name}"))["records"] == [], "no call was denied"


def test_what_clients_wrote_is_text(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    assert leader.request("DELETE", f"/v1/topics/{quote(HOSTILE, safe='')}", headers=bearer("no" * 20)).status == 401
    recorded(leader, f"route={quote(HOSTILE)}")
    signed_in(page, leader, ADMINISTRATOR, "/audit?outcome=denied")
    page.until(HOSTILE, "the token is not valid")
    assert "taken" not in page.driver.title
    assert page.driver.find_elements(By.CSS_SELECTOR, "main img") == []
