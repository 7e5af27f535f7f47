"""The console when something is wrong: addresses, tokens and permissions, nodes that hang or are away; and that nothing
is taken from its user meanwhile.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.e2e.closed_cluster import ADMINISTRATOR, GROUP, TOPIC, rule, someone
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.test_console import prepare

closed = make_closed_cluster()
COUNT = "return performance.getEntriesByType('resource').filter(each => each.name.includes(arguments[0])).length"
SELECT = """
const range = document.createRange();
range.selectNodeContents(document.querySelector('h1'));
getSelection().removeAllRanges();
getSelection().addRange(range);
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Return three nodes that the test may stop."""
    with ClusterProcess(tmp_path, nodes=3, options=OPTIONS) as running:
        running.wait_leader()
        yield running


def seen_anew(page: Page, path: str, times: int = 2) -> None:
    """Wait until the view has asked for the path some more times."""
    before = int(page.driver.execute_script(COUNT, path))
    wait_for(lambda: int(page.driver.execute_script(COUNT, path)) >= before + times, f"{times} more looks at {path}")


def signed_in(page: Page, node: NodeProcess, token: str, view: str) -> None:
    page.open(node, view)
    page.driver.execute_script("sessionStorage.setItem('keelmq.token', arguments[0])", token)
    page.driver.refresh()


def signed_out(page: Page, node: NodeProcess) -> None:
    page.open(node)
    page.driver.execute_script("sessionStorage.clear()")
    page.driver.refresh()
    page.until("Sign in")


def test_an_address_that_is_none_is_said(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader(), "/topics/%zz")
    page.until("That did not work", "not_found")


def test_what_is_looked_for_stays_to_be_mended(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader(), "/find?topic=no-such&key=order-17")
    page.until("Messages of no-such with the key order-17", "topic_not_found")
    assert page.element(By.ID, "topic").get_attribute("value") == "no-such"
    assert page.element(By.ID, "key").get_attribute("value") == "order-17"


def test_a_token_that_no_request_can_carry_is_refused_and_not_kept(closed: ClusterProcess, page: Page) -> None:
    signed_out(page, closed.wait_leader())
    page.element(By.ID, "token").send_keys("kmq_…" + Keys.ENTER)
    page.until("Sign in", "no token")
    assert page.driver.execute_script("return sessionStorage.length") == 0
    page.element(By.ID, "token").send_keys(ADMINISTRATOR + Keys.ENTER)
    page.until("Nodes")


def test_nothing_is_asked_while_somebody_signs_in(closed: ClusterProcess, page: Page) -> None:
    signed_out(page, closed.wait_leader())
    page.driver.execute_script(
        "window.timers = 0; const set = setTimeout; window.setTimeout = (...each) => { timers++; return set(...each); }"
    )
    page.element(By.ID, "token").send_keys("wrong" * 10 + Keys.ENTER)
    page.until("Sign in", "the token is not valid")
    assert page.driver.execute_script("return timers") == 0
    page.element(By.ID, "token").send_keys(ADMINISTRATOR + Keys.ENTER)
    page.until("Nodes")
    assert page.driver.execute_script("return timers") >= 1


def test_what_is_written_is_not_taken_away_when_the_page_is_clicked(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    prepare(leader, "console-typed", "console-typed")
    page.open(leader, "/transactions/console-typed")
    page.until("Decide it")
    page.element(By.ID, "operator").send_keys("ann")
    page.element(By.TAG_NAME, "h1").click()
    seen_anew(page, "/v1/transactions/console-typed")
    assert page.element(By.ID, "operator").get_attribute("value") == "ann"
    page.until_stale("not drawn anew")


def test_what_is_selected_to_be_copied_stays_selected(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader())
    page.until("Nodes")
    page.driver.execute_script(SELECT)
    seen_anew(page, "/v1/cluster/counters")
    assert "Cluster" in str(page.driver.execute_script("return String(getSelection())"))


def test_a_wide_table_keeps_its_place_and_the_focus(cluster: ClusterProcess, page: Page) -> None:
    page.driver.set_window_size(500, 800)
    page.open(cluster.wait_leader())
    page.until("Nodes")
    page.driver.execute_script(
        "const table = document.querySelector('[role=region]'); table.focus(); table.scrollLeft = 77; table.was = true"
    )
    wait_for(
        lambda: page.driver.execute_script("return !document.querySelector('[role=region]').was"), "a view drawn anew"
    )
    found = page.driver.execute_script(
        "const table = document.querySelector('[role=region]');"
        "return [table.scrollLeft, document.activeElement === table]"
    )
    assert found == [77, True]


def test_who_may_not_read_dead_letters_and_delayed_messages_is_told(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    looks = someone(leader, rule("describe", on=f"group:{GROUP}"), rule("describe", on=f"topic:{TOPIC}"))
    signed_in(page, leader, looks.token, f"/groups/{GROUP}")
    shown = page.until(f"Group {GROUP}", "Dead letters", "forbidden")
    assert "No dead letters." not in shown
    assert "Nothing was changed" not in shown, "nobody wanted to change anything"
    page.open(leader, f"/topics/{TOPIC}")
    page.until("Delayed messages", "forbidden")


def test_who_may_see_nothing_is_told_that_lists_are_of_what_he_may_see(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    signed_in(page, leader, someone(leader).token, "/topics")
    page.until("No topics yet. What you may not see is left out.")
    for view in ("/groups", "/transactions"):
        page.open(leader, view)
        page.until("What you may not see is left out.")
    page.open(leader)
    shown = page.until("Messages a second in the cluster", "may not describe cluster;", "forbidden")
    assert "or it does not exist" not in shown


def test_a_token_that_ends_while_a_form_is_open(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    user = someone(leader, rule("describe", "read", "send", on=f"topic:{TOPIC}"))
    signed_in(page, leader, user.token, f"/topics/{TOPIC}")
    page.until("Send a message")
    page.fill("send", body="hello")
    ok(leader.request("DELETE", f"/v1/users/{user.name}/tokens/{user.token_id}"))
    page.until_stale("Not drawn anew", "unauthenticated")
    assert page.element(By.ID, "send-body").get_attribute("value") == "hello"
    page.press("Send", "send")
    page.confirm()
    page.until("Nothing was changed. Sign out, and in again")
    page.press("Sign out", "whom")
    page.until("Sign in")


def test_a_node_that_hangs_is_said_to(own: ClusterProcess, page: Page) -> None:
    node = own.follower()
    page.open(node)
    page.until("Nodes", "leads")
    node.pause()
    try:
        page.until("This node does not answer")
    finally:
        node.resume()
    page.until("Nodes", "leads")


def test_a_view_that_failed_is_there_when_the_node_is(own: ClusterProcess, page: Page) -> None:
    node = own.follower()
    page.open(node)
    page.until("Nodes")
    node.kill()
    page.follow("Topics")
    page.until("This node does not answer")
    node.start()
    page.until("Topics by name")
    page.complaints()  # of the browser: that the node was not there


def test_it_says_why_nobody_leads(own: ClusterProcess, page: Page) -> None:
    leader = own.wait_leader()
    others = [node for node in own.nodes.values() if node is not leader]
    page.open(leader)
    page.until("leads")
    for node in others:
        node.kill()
    page.until("Nobody leads", "2 of 3 voters are needed, not heard: ")
