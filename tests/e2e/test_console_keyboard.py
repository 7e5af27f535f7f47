"""The console with the keyboard alone: what changes something is reached with the tab key and done with enter."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.test_console_actions import WHY, committed, dead_letters, make, send
from tests.e2e.test_operators import prepare

TABS_MAX = 60
FOCUS = """
const focus = document.activeElement;
return focus.id || focus.getAttribute('aria-label') || focus.textContent;
"""


class Keyboard:
    """The only thing that is used of a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        ActionChains(self.page.driver).send_keys(*keys).perform()

    def tab_to(self, wanted: str) -> None:
        """Go on to what has this id, label or text."""
        met = []
        for _ in range(TABS_MAX):
            met.append(str(self.page.driver.execute_script(FOCUS)))
            if met[-1] == wanted:
                return
            self.press(Keys.TAB)
        raise AssertionError(f"no key leads to {wanted}, but to {met}")

    def write(self, form: str, /, **values: str) -> None:
        """Write into fields in their order, in place of what is there; a choice takes an arrow."""
        for name, value in values.items():
            self.tab_to(f"{form}{name}")
            if value != Keys.DOWN:
                self.chord(Keys.CONTROL, "a")
            self.press(value)

    def chord(self, held: str, key: str) -> None:
        ActionChains(self.page.driver).key_down(held).send_keys(key).key_up(held).perform()

    def enter(self, wanted: str) -> None:
        self.tab_to(wanted)
        self.press(Keys.ENTER)


@pytest.fixture
def keyboard(page: Page) -> Keyboard:
    return Keyboard(page)


def group_with_a_dead_letter(node: NodeProcess, name: str) -> None:
    make(node, name)
    send(node, name, {"body": "x", "message_id": f"{name}-1"})
    ok(node.request("PUT", f"/v1/groups/{name}", payload={"retry_max_attempts": 0}))
    given = {"messages": [{"topic": name, "queue": 0, "offset": 0, "reason": "no account"}]}
    ok(node.request("POST", f"/v1/groups/{name}/retries", payload=given))


def test_the_settings_are_changed(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    page.open(leader, "/settings")
    page.until("Settings and members", "voter", "keelmq cluster add-node, promote and remove-node")
    keyboard.enter("Change the settings")
    keyboard.write("settings-", reject=Keys.DOWN, **WHY)
    keyboard.enter("Change")
    page.confirm()
    page.said("Changed.")
    page.until("new ones are refused")
    assert ok(leader.request("GET", "/v1/cluster/settings"))["reject_transactions"] is True
    ok(leader.request("PUT", "/v1/cluster/settings", payload={"reject_transactions": False}))


def test_a_message_is_sent(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    make(leader, "keys-send")
    page.open(leader, "/topics/keys-send")
    page.until("Send a message")
    keyboard.enter("Send a message")
    keyboard.write("send-", body="[17]", form=Keys.DOWN, keys="order-17")
    keyboard.enter("Send")
    page.confirm()
    page.said("Sent: message")
    (sent,) = ok(leader.request("GET", "/v1/topics/keys-send/queues/0/messages?offset=0"))["messages"]
    assert (sent["body"], sent["keys"]) == ("[17]", ["order-17"])


def test_a_group_is_paused(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/groups/keys-pause", payload={}))
    page.open(leader, "/groups/keys-pause")
    page.until("Pause the group")
    keyboard.enter("Pause the group")
    keyboard.write("pause-", **WHY)
    keyboard.enter("Pause")
    page.confirm()
    page.said("Paused: group keys-pause")
    assert ok(leader.request("GET", "/v1/groups/keys-pause"))["paused"]["reason"] == "ticket 17"


def test_offsets_are_reset_after_a_preview(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    make(leader, "keys-reset")
    send(leader, "keys-reset", {"body": "x"})
    at = [{"topic": "keys-reset", "queue": 0, "offset": 0}]
    ok(leader.request("PUT", "/v1/groups/keys-reset/offsets", payload={"offsets": at}))
    page.open(leader, "/groups/keys-reset")
    page.until("Reset offsets")
    keyboard.enter("Reset offsets")
    keyboard.write("reset-", to=Keys.DOWN)
    keyboard.enter("Preview")
    page.until("1 messages skipped")
    keyboard.write("reset-", **WHY)
    keyboard.enter("Reset")
    page.confirm()
    page.said("Reset: queue 0 goes on at 1")
    assert committed(leader, "keys-reset") == [1]


def test_a_dead_letter_is_replayed(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    group_with_a_dead_letter(leader, "keys-dead")
    page.open(leader, "/groups/keys-dead/dead-letters")
    page.until("no account")
    keyboard.enter("Replay keys-dead-1")
    page.confirm(reason="ticket 17")
    page.said("Replayed: keys-dead-1")
    assert dead_letters(leader, "keys-dead")[0]["replayed_at_ms"]


def test_a_transaction_is_committed(cluster: ClusterProcess, page: Page, keyboard: Keyboard) -> None:
    leader = cluster.wait_leader()
    make(leader, "orders")
    assert prepare(leader, "keys-commit") == 201
    page.open(leader, "/transactions/keys-commit")
    page.until("Decide it")
    keyboard.write("", **WHY)
    keyboard.enter("commit")
    page.confirm()
    page.said("Committed: transaction keys-commit")
    assert ok(leader.request("GET", "/v1/transactions/keys-commit"))["state"] == "committed"
