"""Changes by the console, in a real browser: each action asks first, does it through the API, and says so."""

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.by import By

from tests.e2e.closed_cluster import GROUP, PRODUCERS, TOPIC, TRANSACTION, rule, someone
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.fixtures import shared_cluster
from tests.e2e.test_operators import discarded, prepare

STEADY: Final = ("--election-timeout-ms", "3000", "--heartbeat-ms", "300")
"""One node leads throughout, also on a machine whose processes stand for a second: a page shows one leader."""

cluster = shared_cluster(options=(*STEADY, "--check-interval-ms", "200", "--check-max", "1"))
closed = make_closed_cluster()
WHY: Final = {"operator": "ann", "reason": "ticket 17"}
"""Fields of each form but that of a message."""


def make(node: NodeProcess, topic: str, queues: int = 1) -> None:
    ok(node.request("PUT", f"/v1/topics/{topic}", payload={"queues": queues, "type": "any"}))


def send(node: NodeProcess, topic: str, *messages: dict[str, Any]) -> None:
    ok(node.request("POST", f"/v1/topics/{topic}/messages", payload={"messages": messages}))


def topic_of(node: NodeProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = ok(node.request("GET", f"/v1/topics/{name}"))
    return found


def committed(node: NodeProcess, group: str) -> list[int]:
    return [each["offset"] for each in ok(node.request("GET", f"/v1/groups/{group}/offsets"))["offsets"]]


def dead_letters(node: NodeProcess, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(node.request("GET", f"/v1/groups/{group}/dead-letters"))["messages"]
    return found


def iso_of(at_ms: int) -> str:
    """Return the time as a browser writes it."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def audited(node: NodeProcess, route: str) -> list[tuple[str, str, str]]:
    """Return outcome, operator and reason of the calls with this part in method and path, once there is one."""

    def found() -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = ok(node.request("GET", f"/v1/audit?{urlencode({'route': route})}"))["records"]
        return records

    wait_for(found, f"the audit of {route}")
    return [(each["outcome"], each["operator"], each["reason"]) for each in found()]


def test_a_topic_is_created_and_altered(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    page.open(leader, "/topics")
    page.fill("create", topic="made-here", queues="2", hours="24", limit="1.5", **WHY)
    page.press("Create", "create")
    asked = page.confirm(wanted=False)
    assert "made-here with 2 queues" in asked
    assert "kept 1 d, at most 1.5 MiB?" in asked
    assert "Reason: ticket 17" in asked
    assert leader.request("GET", "/v1/topics/made-here").status == 404, "it was not confirmed"
    page.press("Create", "create")
    page.confirm()
    page.said("Created: topic made-here")
    made = topic_of(leader, "made-here")
    assert (made["retention_ms"], made["retention_bytes"]) == (24 * 3_600_000, 1_572_864)
    assert page.element(By.ID, "create-operator").get_attribute("value") == "ann", "it is the same person"
    page.fill("create", topic="made-here", queues="9", reason="again")
    page.press("Create", "create")
    page.confirm()
    page.until("Topic made-here exists")
    assert topic_of(leader, "made-here")["queues"] == 2
    page.open(leader, "/topics/made-here")
    page.fill("alter", queues="3", hours="-1", limit="-1", reason="ticket 18")
    page.press("Alter", "alter")
    assert "2 queues become 3; messages are kept for ever; no size is too large" in page.confirm()
    page.said("Altered.")
    altered = topic_of(leader, "made-here")
    assert (altered["queues"], altered["retention_ms"], altered["type"]) == (3, -1, "any")
    assert altered["retention_bytes"] == -1
    assert audited(leader, "PUT /v1/topics/made-here")[-1] == ("done", "ann", "ticket 17")


@pytest.mark.parametrize(
    ("kind", "body", "stored"),
    [
        ("text", "<b>17</b>", ("utf8", "<b>17</b>")),
        ("json", '{"order": 12345678901234567890}', ("utf8", '{"order": 12345678901234567890}')),
        ("hex", "00 ff 10", ("base64", "AP8Q")),
    ],
)
def test_a_message_is_sent(cluster: ClusterProcess, page: Page, kind: str, body: str, stored: tuple[str, str]) -> None:
    leader = cluster.wait_leader()
    make(leader, f"send-{kind}", 2)
    page.open(leader, f"/topics/send-{kind}")
    page.fill("send", body=body, form=kind, keys="order-17, ann", queue="1")
    page.press("Send", "send")
    page.confirm()
    page.said("Sent: message")
    page.element(By.CSS_SELECTOR, "#said a").click()
    page.until("order-17, ann", "What became of it", "produced")
    (sent,) = ok(leader.request("GET", f"/v1/topics/send-{kind}/queues/1/messages?offset=0"))["messages"]
    assert (sent["encoding"], sent["body"]) == stored


def test_wrong_input_and_errors_of_the_api_are_shown_and_change_nothing(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "send-wrong")
    ok(leader.request("PUT", "/v1/topics/send-wrong", payload={"type": "normal"}))
    page.open(leader, "/topics/send-wrong")
    page.fill("send", body="{]", form="json")
    page.press("Send", "send")
    page.until("The body is not JSON", "invalid_request")
    page.fill("send", body="abc", form="hex")
    page.press("Send", "send")
    page.until("The body is not hexadecimal")
    page.fill("send", body="abc", form="text", delay="60")
    page.press("Send", "send")
    page.confirm()
    page.until("topic_type_mismatch")
    assert topic_of(leader, "send-wrong")["queue_offsets"][0]["max_offset"] == 0


def test_a_delayed_message_is_taken_back(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "take-back")
    send(leader, "take-back", {"body": "later", "message_id": "later-1", "delay_ms": 3_600_000})
    page.open(leader, "/topics/take-back")
    page.until("later-1")
    page.press("Take back")
    page.confirm(reason=" ")
    page.until("Give a reason.")
    page.press("Take back")
    assert "later-1" in page.confirm(reason="ticket 17")
    page.said("Taken back: later-1")
    assert ok(leader.request("GET", "/v1/topics/take-back/scheduled"))["messages"] == []
    assert audited(leader, "take-back/scheduled/later-1")[0][2] == "ticket 17"


def test_a_reset_shows_first_what_it_does(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "reset", 2)
    for queue, number in ((0, 5), (1, 3)):
        send(leader, "reset", *({"body": "x", "queue": queue} for _ in range(number)))
    at = [{"topic": "reset", "queue": 0, "offset": 4}, {"topic": "reset", "queue": 1, "offset": 1}]
    ok(leader.request("PUT", "/v1/groups/reset-group/offsets", payload={"offsets": at}))
    page.open(leader, "/groups/reset-group")
    page.until("3 messages")
    page.fill("reset", to="earliest")
    button = page.element(By.XPATH, "//*[@id='reset']//button[.='Reset']")
    assert not button.is_enabled(), "nothing was shown yet"
    page.press("Preview", "reset")
    page.until("0 messages skipped, 5 given again")
    page.fill("reset", to="latest")
    assert not button.is_enabled(), "another reset was shown"
    page.press("Preview", "reset")
    page.until("3 messages skipped, 0 given again")
    page.fill("reset", to="offset", offset="2", queue="0")
    page.press("Preview", "reset")
    page.until("0 messages skipped, 2 given again")
    page.press("Reset", "reset")  # not without a reason
    page.fill("reset", **WHY)
    assert "2 given again" in page.main(), "what was shown stays"
    page.press("Reset", "reset")
    assert "2 are given again" in page.confirm(wanted=False)
    assert committed(leader, "reset-group") == [4, 1]
    page.press("Reset", "reset")
    page.confirm()
    page.said("Reset: queue 0 goes on at 2")
    assert committed(leader, "reset-group") == [2, 1]


def test_a_reset_goes_to_a_time(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "reset-at")
    send(leader, "reset-at", *({"body": "x"} for _ in range(5)))
    at = [{"topic": "reset-at", "queue": 0, "offset": 2}]
    ok(leader.request("PUT", "/v1/groups/reset-at/offsets", payload={"offsets": at}))
    page.open(leader, "/groups/reset-at")
    page.until("3 messages")
    page.fill("reset", to="time")
    page.press("Preview", "reset")
    page.until("Give the time from which on messages are given again.")
    for time, shown in (
        ("2020-01-01T00:00:00", "0 messages skipped, 2 given again"),
        ("2100-01-01T00:00:00", "3 messages skipped, 0 given again"),
    ):
        page.driver.execute_script(
            "const field = document.getElementById('reset-at'); field.value = arguments[0];"
            "field.dispatchEvent(new Event('input', { bubbles: true }))",
            time,
        )
        page.press("Preview", "reset")
        page.until(shown)
    page.fill("reset", **WHY)
    page.press("Reset", "reset")
    page.confirm()
    page.said("Reset: queue 0 goes on at 5")
    assert committed(leader, "reset-at") == [5]


@pytest.mark.parametrize(
    ("is_discarded", "verb", "past", "state"),
    [
        (False, "rollback", "Rolled back", "rolled_back"),
        (True, "commit", "Committed", "committed"),
        (True, "rollback", "Rolled back", "rolled_back"),
        (True, "resume", "Its producers are asked again", "prepared"),
    ],
)
def test_an_operator_ends_or_resumes_what_is_undecided(
    cluster: ClusterProcess, page: Page, is_discarded: bool, verb: str, past: str, state: str
) -> None:
    leader = cluster.wait_leader()
    make(leader, "orders")
    name = f"console-{verb}-{'discarded' if is_discarded else 'prepared'}"
    if is_discarded:
        discarded(leader, name)
    else:
        assert prepare(leader, name) == 201
    page.open(leader, f"/transactions/{name}")
    page.until("Decide it", "discarded" if is_discarded else "prepared")
    buttons = page.driver.find_elements(By.CSS_SELECTOR, "main form button")
    assert [each.text for each in buttons] == ["commit", "rollback", *["resume"] * is_discarded]
    page.element(By.ID, "operator").send_keys("ann")
    page.element(By.ID, "reason").send_keys("the shop is closed")
    page.press(verb)
    assert name in page.confirm(wanted=False)
    before = ok(leader.request("GET", f"/v1/transactions/{name}"))
    assert before["state"] == ("discarded" if is_discarded else "prepared"), "it was not confirmed"
    page.press(verb)
    page.confirm()
    page.said(f"{past}: transaction {name}")
    page.until("ann", "the shop is closed")
    found = ok(leader.request("GET", f"/v1/transactions/{name}"))
    assert found["state"] == state
    assert found["timeline"][-1]["reason"] == "the shop is closed"


def test_a_group_is_paused_and_resumed(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "pause")
    send(leader, "pause", {"body": "x"})
    ok(leader.request("PUT", "/v1/groups/pause-group", payload={}))
    page.open(leader, "/groups/pause-group")
    page.fill("pause", operator="ann", reason="the database is <b>moved</b>")
    page.press("Pause", "pause")
    assert "Reason: the database is <b>moved</b>" in page.confirm(wanted=False)
    assert ok(leader.request("GET", "/v1/groups/pause-group"))["paused"] is None
    page.press("Pause", "pause")
    page.confirm()
    page.said("Paused: group pause-group")
    page.until("Paused: by ann, because of: the database is <b>moved</b>.")
    pulled = ok(leader.request("GET", "/v1/topics/pause/queues/0/messages?offset=0&group=pause-group"))
    assert (pulled["messages"], pulled["paused"]) == ([], True)
    page.open(leader, "/groups?from=pause-group")
    page.until("Paused since", "pause-group")
    page.open(leader, "/groups/pause-group")
    page.fill("pause", operator="ann", reason="done")
    page.press("Resume", "pause")
    assert "goes on where it was paused" in page.confirm()
    page.said("Resumed: group pause-group")
    assert (
        len(ok(leader.request("GET", "/v1/topics/pause/queues/0/messages?offset=0&group=pause-group"))["messages"]) == 1
    )


def test_a_group_takes_over_the_offsets_of_another_one(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "clone")
    send(leader, "clone", *({"body": "x"} for _ in range(5)))
    for group, offset in (("clone-blue", 4), ("clone-green", 1)):
        at = [{"topic": "clone", "queue": 0, "offset": offset}]
        ok(leader.request("PUT", f"/v1/groups/{group}/offsets", payload={"offsets": at}))
    page.open(leader, "/groups/clone-green")
    page.until("Committed offsets")
    page.fill("clone", source="clone-none")
    page.press("Preview", "clone")
    page.until("group_not_found")
    page.fill("clone", source="clone-blue")
    page.press("Preview", "clone")
    page.until("What it does now with 1 queues")
    page.fill("clone", **WHY)
    page.press("Take over", "clone")
    assert "where group clone-blue is" in page.confirm()
    page.said("Taken over: the offsets of 1 queues of clone-blue.")
    assert committed(leader, "clone-green") == [4]


def test_dead_letters_are_replayed_one_and_all(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "dead")
    send(leader, "dead", *({"body": "x", "message_id": f"dead-{number}"} for number in range(3)))
    ok(leader.request("PUT", "/v1/groups/dead-group", payload={"retry_max_attempts": 0}))
    given_back = [{"topic": "dead", "queue": 0, "offset": offset, "reason": "no account"} for offset in range(3)]
    ok(leader.request("POST", "/v1/groups/dead-group/retries", payload={"messages": given_back}))
    page.open(leader, "/groups/dead-group")
    page.until("dead-2", "no account")
    page.element(By.CSS_SELECTOR, "td summary").click()
    (attempt,) = dead_letters(leader, "dead-group")[0]["history"]
    assert attempt["reason"] == "no account"
    items = page.driver.find_elements(By.CSS_SELECTOR, "td details[open] li time")
    assert [each.get_attribute("datetime") for each in items] == [iso_of(attempt["at_ms"])]
    page.press("Replay")
    assert "dead-0" in page.confirm(reason="ticket 17")
    page.said("Replayed: dead-0")
    assert [bool(each.get("replayed_at_ms")) for each in dead_letters(leader, "dead-group")] == [True, False, False]
    page.press("Replay all")
    page.confirm(reason="ticket 18")
    page.said("Replayed: 2 dead letters")
    assert all(each.get("replayed_at_ms") for each in dead_letters(leader, "dead-group"))
    assert {reason for _, _, reason in audited(leader, "dead-group/dead-letters/replay")} >= {"ticket 17"}


def test_the_limit_of_the_log_is_changed_alone(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    page.open(leader, "/settings")
    page.fill("settings", limit="-1", **WHY)
    page.press("Change", "settings")
    page.until("Nothing is changed.")
    page.fill("settings", limit="4096")
    page.press("Change", "settings")
    asked = page.confirm()
    assert "at most 4 GiB of the log" in asked
    assert "transactions" not in asked
    page.said("Changed.")
    page.until("Limit of the log", "4 GiB")
    found = ok(leader.request("GET", "/v1/cluster/settings"))
    assert found == {"reject_transactions": False, "log_retention_bytes": 4 << 30}
    ok(leader.request("PUT", "/v1/cluster/settings", payload={"log_retention_bytes": -1}))


def test_who_may_only_look_sees_why_nothing_can_be_done(closed: ClusterProcess, page: Page) -> None:
    leader = closed.wait_leader()
    looks = someone(
        leader,
        rule("read", on=f"topic:{TOPIC}"),
        rule("read", on=f"group:{GROUP}"),
        rule("describe", on=f"producer-group:{PRODUCERS}"),
        rule("describe", on="cluster"),
    )
    later = {"messages": [{"body": "later", "message_id": "later", "delay_ms": 3_600_000}]}
    ok(leader.request("POST", f"/v1/topics/{TOPIC}/messages", payload=later))
    page.open(leader, "/")
    page.until("Sign in")
    page.element(By.ID, "token").send_keys(looks.token + "\n")
    page.until("Nodes")
    for view, forms, action in (
        (f"/topics/{TOPIC}", ("send", "alter"), f"keelmq auth acl allow {looks.name} alter topic:{TOPIC}"),
        (f"/groups/{GROUP}", ("pause", "reset"), f"keelmq auth acl allow {looks.name} reset group:{GROUP}"),
        ("/settings", ("settings",), f"keelmq auth acl allow {looks.name} admin cluster"),
    ):
        page.open(leader, view)
        for form in forms:
            page.element(By.CSS_SELECTOR, f"#{form} summary").click()
            assert not page.element(By.CSS_SELECTOR, f"#{form} fieldset p > button").is_enabled(), view
        page.until(action)
    page.open(leader, f"/topics/{TOPIC}")
    back = page.element(By.XPATH, "//button[.='Take back']")
    assert not back.is_enabled()
    assert "may not send" in str(back.get_attribute("title"))
    page.open(leader, f"/transactions/{TRANSACTION}")
    page.until("Decide it", f"keelmq auth acl allow {looks.name} decide producer-group:{PRODUCERS}")
    assert not page.element(By.XPATH, "//button[.='commit']").is_enabled()
    assert not page.element(By.ID, "reason").is_enabled()
    page.press("Sign out", "whom")
