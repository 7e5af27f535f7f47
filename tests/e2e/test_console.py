"""The console in a real browser: what it shows, what it does, and what it does not let happen."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.e2e.closed_cluster import ADMINISTRATOR
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok
from tests.patience import PATIENCE_S
from tests.requirements import CHROMIUM, path_of

NARROW_PX = 380
HOSTILE_BODY = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
CHROMIUM_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)

closed = make_closed_cluster()


class Page:
    """The console in a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, node: NodeProcess, view: str = "/") -> None:
        self.driver.get("about:blank")  # otherwise only the part behind the # changes, and the page stays
        self.driver.get(f"{node.url}/console#{view}")

    def main(self) -> str:
        """Return what the view shows; it is empty between two pages."""
        return str(self.driver.execute_script("return document.querySelector('main')?.innerText ?? ''"))

    def until(self, *texts: str) -> str:
        """Wait until the view shows all texts; return what it shows."""
        WebDriverWait(self.driver, PATIENCE_S).until(
            lambda _: all(text in self.main() for text in texts), f"{texts} are not shown, but:\n{self.main()}"
        )
        return self.main()

    def follow(self, text: str) -> None:
        self.element(By.LINK_TEXT, text).click()

    def element(self, by: str, value: str) -> WebElement:
        return WebDriverWait(self.driver, PATIENCE_S).until(lambda driver: driver.find_element(by, value))

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the browser says about the page, such as a violation of its security policy."""
        return [each for each in self.driver.get_log("browser") if "favicon" not in each["message"]]  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    CHROMIUM.require()
    options = webdriver.ChromeOptions()
    for option in (*CHROMIUM_OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(option)
    options.binary_location = path_of("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(path_of("chromedriver")))
    yield made
    made.quit()


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[Page]:
    """Return a page that nobody has used. The browser must have nothing to complain of in the end."""
    driver.set_window_size(1200, 900)
    made = Page(driver)
    made.complaints()
    yield made
    found = made.complaints()
    assert not found, found


def send(node: NodeProcess, topic: str, body: str, key: str) -> str:
    ok(node.request("PUT", f"/v1/topics/{topic}", payload={"queues": 1, "type": "any"}))
    sent = ok(
        node.request("POST", f"/v1/topics/{topic}/messages", payload={"messages": [{"body": body, "keys": [key]}]})
    )
    return str(sent["results"][0]["message_id"])


def prepare(node: NodeProcess, topic: str, transaction_id: str) -> None:
    ok(node.request("PUT", f"/v1/topics/{topic}", payload={"queues": 1, "type": "any"}))
    half = {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "messages": [{"topic": topic, "body": json.dumps({"order": 17})}],
    }
    ok(node.request("POST", "/v1/transactions", payload=half))


def test_it_shows_who_leads_and_that_all_nodes_answer(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    page.open(leader)
    shown = page.until("No alarms at this node.", f"Node {leader.node_id} leads")
    assert shown.count("answers") == 3
    page.until("produced:")  # at the second look: the view is drawn anew by itself
    assert "Cluster" in page.driver.title


def test_a_message_is_found_by_its_key_and_tells_its_story(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    message_id = send(leader, "console-orders", HOSTILE_BODY, "order-17")
    page.open(leader, "/find")
    page.element(By.ID, "topic").send_keys("console-orders")
    page.element(By.ID, "key").send_keys("order-17\n")
    page.until("order-17", message_id)
    page.follow(message_id)
    shown = page.until("What became of it", "produced", "queue 0 offset 0")
    assert HOSTILE_BODY in shown, "a body is text, whatever it looks like"
    assert "taken" not in page.driver.title
    page.follow("0, offset 0")
    page.until("console-orders, queue 0", "<img src=x")
    page.follow("Topics")
    page.until("Topics by name", "console-orders")


def test_an_operator_commits_a_transaction_with_a_reason(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    prepare(leader, "console-orders", "console-undecided")
    page.open(leader, "/transactions")
    page.until("console-undecided", "shop")
    page.follow("console-undecided")
    page.until("Decide it")
    page.element(By.XPATH, "//button[.='commit']").click()
    assert ok(leader.request("GET", "/v1/transactions/console-undecided"))["state"] == "prepared", "without a reason"
    page.element(By.ID, "operator").send_keys("ann")
    page.element(By.ID, "reason").send_keys("the order is in the database")
    page.element(By.XPATH, "//button[.='commit']").click()
    page.driver.switch_to.alert.accept()
    page.until("committed", "ann", "the order is in the database")
    decided = ok(leader.request("GET", "/v1/transactions/console-undecided"))
    assert (decided["state"], decided["timeline"][-1]["operator"]) == ("committed", "ann")


def test_a_group_shows_its_lag(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    for number in range(3):
        send(leader, "console-lag", "x", f"k{number}")
    offsets = {"offsets": [{"topic": "console-lag", "queue": 0, "offset": 1}]}
    ok(leader.request("PUT", "/v1/groups/console-group/offsets", payload=offsets))
    page.open(leader, "/groups")
    page.until("console-group")
    page.follow("console-group")
    page.until("2 messages", "Committed offsets", "No dead letters.")


def test_a_follower_names_the_leader_for_what_only_that_one_answers(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    offsets = {"offsets": [{"topic": "console-there", "queue": 0, "offset": 0}]}
    ok(leader.request("PUT", "/v1/topics/console-there", payload={"queues": 1}))
    ok(leader.request("PUT", "/v1/groups/console-there/offsets", payload=offsets))
    page.open(follower, "/groups/console-there")
    page.until("Ask the leader")
    page.follow(f"Open this view at {leader.url}")
    page.until("Group console-there", "Committed offsets")


def test_it_fits_a_narrow_screen(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    send(leader, "console-narrow", "a long body " * 100, "k")
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        for view, text in (
            ("/", "Nodes"),
            ("/topics", "console-narrow"),
            ("/topics/console-narrow/queues/0", "a long body"),
            ("/transactions?state=all", "The oldest first"),
        ):
            page.open(leader, view)
            page.until(text)
            assert page.driver.execute_script("return document.documentElement.scrollWidth") <= NARROW_PX, view
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_closed_cluster_asks_for_a_token_and_shows_nothing_without(
    closed: ClusterProcess, driver: webdriver.Chrome
) -> None:
    page, leader = Page(driver), closed.wait_leader()
    page.open(leader, "/topics")
    assert "secret-orders" not in page.until("Sign in")
    page.element(By.ID, "token").send_keys("wrong" * 10 + "\n")
    page.until("Sign in", "token")
    field = page.element(By.ID, "token")
    field.clear()
    field.send_keys(ADMINISTRATOR + "\n")
    page.until("Topics by name", "secret-orders")
    page.element(By.XPATH, "//button[.='Sign out']").click()
    page.until("Sign in")


def test_only_files_of_the_page_are_served(cluster: ClusterProcess) -> None:
    leader = cluster.wait_leader()
    served = leader.request("GET", "/console")
    assert served.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in served.headers["content-security-policy"]
    for name in ("nope.js", "..%2Fconsole_api.py", "__init__.py", "%00"):
        assert leader.request("GET", f"/console/{name}").status == 404, name


def test_no_file_takes_data_for_markup_or_code() -> None:
    files = list((Path(__file__).parents[2] / "cluster/console/page").glob("*.js"))
    assert len(files) > 5
    for file in files:
        text = file.read_text()
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in text, f"{file.name}: {forbidden}"
