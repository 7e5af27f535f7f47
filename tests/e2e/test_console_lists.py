"""The console's lists in a real browser: what does not fit on a page is on another one, and can be used there; and what
changes is drawn anew.
"""

from selenium.webdriver.common.by import By

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page
from tests.e2e.test_console_actions import dead_letters, make, send
from tests.e2e.test_console_troubles import seen_anew

SESSION_MS = 600_000


def join(cluster: ClusterProcess, group: str, topic: str, member_id: str) -> None:
    joining = {"topics": [topic], "member_id": member_id, "client_id": "app", "session_timeout_ms": SESSION_MS}
    cluster.call("POST", f"/v1/groups/{group}/members", joining)


def rows(page: Page, caption: str) -> list[str]:
    """Return the text of each row of a table."""
    found: list[str] = page.driver.execute_script(
        "return [...document.querySelectorAll(`[aria-label='${arguments[0]}'] tbody tr`)].map(row => row.innerText)",
        caption,
    )
    return found


def cells_with(page: Page, text: str) -> str:
    """Return the text of the row that has a cell with this one."""
    return page.element(By.XPATH, f"//tr[td[normalize-space()='{text}']]").text


def commit(node: NodeProcess, group: str, topic: str, offset: int) -> None:
    at = [{"topic": topic, "queue": 0, "offset": offset}]
    ok(node.request("PUT", f"/v1/groups/{group}/offsets", payload={"offsets": at}))


def test_a_dead_letter_behind_fifty_others_is_found_and_replayed_alone(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "many-dead")
    send(leader, "many-dead", *({"body": "x", "message_id": f"dead-{number:03}"} for number in range(51)))
    ok(leader.request("PUT", "/v1/groups/many-dead", payload={"retry_max_attempts": 0}))
    given = [{"topic": "many-dead", "queue": 0, "offset": offset, "reason": "no account"} for offset in range(51)]
    ok(leader.request("POST", "/v1/groups/many-dead/retries", payload={"messages": given}))
    page.open(leader, "/groups/many-dead")
    assert "dead-050" not in page.until("dead-049", "Dead letters, the oldest first")
    page.follow("Next page")
    assert "dead-049" not in page.until("Dead letters of group many-dead", "dead-050")
    assert page.driver.current_url.endswith("#/groups/many-dead/dead-letters?offset=50"), "a colleague can open it"
    page.press("Replay")
    assert "dead-050" in page.confirm(reason="ticket 17")
    page.said("Replayed: dead-050")
    replayed = [each["message_id"] for each in dead_letters(leader, "many-dead") if each.get("replayed_at_ms")]
    assert replayed == ["dead-050"]
    page.follow("First page")
    page.until("dead-000", "dead-049")
    page.follow("The newest")
    assert "dead-000" not in page.until("dead-001", "dead-050")
    page.open(leader, "/groups/many-dead/dead-letters?offset=51")
    page.until("No dead letters from here on.", "First page")


def test_a_delayed_message_behind_fifty_others_is_found_and_taken_back(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "many-later")
    later = ({"body": "x", "message_id": f"later-{at:03}", "delay_ms": 3_600_000 + at * 1_000} for at in range(51))
    send(leader, "many-later", *later)
    page.open(leader, "/topics/many-later")
    assert "later-050" not in page.until("later-049", "Delayed messages, the next one first")
    page.follow("Next page")
    assert "later-049" not in page.until("Delayed messages of topic many-later", "later-050")
    assert "#/topics/many-later/delayed?after=" in page.driver.current_url
    page.press("Take back")
    assert "later-050" in page.confirm(reason="ticket 17")
    page.said("Taken back: later-050")
    page.until("None from here on: they were delivered, or taken back.")
    waiting = ok(leader.request("GET", "/v1/topics/many-later/scheduled"))["messages"]
    assert "later-050" not in {each["message_id"] for each in waiting}
    assert len(waiting) == 50


def test_members_have_their_queues(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "assigned", 4)
    page.open(leader, "/groups?from=assigned")
    page.until("Consumer groups")
    for member in ("member-a", "member-b"):
        join(cluster, "assigned-group", "assigned", member)
    page.open(leader, "/groups/assigned-group")
    page.until("Members", "member-a", "member-b")
    for member in ok(leader.request("GET", "/v1/groups/assigned-group"))["members"]:
        queues = ", ".join(f"{each['topic']}/{each['queue']}" for each in member["assignment"])
        assert queues.count("assigned/") == 2
        shown = cells_with(page, member["member_id"])
        assert queues in shown
        assert "app" in shown
        assert "10 min" in shown
    ok(leader.request("DELETE", "/v1/groups/assigned-group/members/member-a"))
    wait_for(lambda: "member-a" not in page.main(), "the group without the member that left")
    assert "assigned/0, assigned/1, assigned/2, assigned/3" in cells_with(page, "member-b")


def test_members_beyond_the_first_ones_are_on_a_page_of_their_own(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "many-members")
    for number in range(201):
        join(cluster, "many-members", "many-members", f"member-{number:03}")
    page.open(leader, "/groups/many-members")
    page.until("member-199")
    assert len(rows(page, "Members")) == 200
    page.follow("Next page")
    page.until("Members of group many-members", "member-200")
    assert [each.split("\t")[0] for each in rows(page, "Members")] == ["member-200"]
    assert page.driver.current_url.endswith("#/groups/many-members/members?after=member-199")


def test_groups_that_read_a_topic_are_all_to_be_seen(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "many-readers")
    make(leader, "other-readers")
    for number in range(21):
        commit(leader, f"reader-{number:02}", "many-readers", 0)
    commit(leader, "reader-of-another", "other-readers", 0)
    page.open(leader, "/topics/many-readers")
    assert "reader-20" not in page.until("The first 20 groups that read it", "reader-19")
    page.follow("Next page")
    shown = page.until("Groups that read topic many-readers", "reader-20")
    assert "reader-19" not in shown
    assert "reader-of-another" not in shown
    page.element(By.ID, "from").send_keys("reader-0\n")
    assert "reader-of-another" not in page.until("reader-00", "reader-20")
    page.follow("many-readers")
    page.until("Topic many-readers")


def test_the_list_of_groups_is_drawn_anew(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "live-lag")
    send(leader, "live-lag", *({"body": "x"} for _ in range(7)))
    commit(leader, "live-lag", "live-lag", 0)
    page.open(leader, "/groups?from=live-lag")
    page.until("live-lag\t0\t\t7\t")
    commit(leader, "live-lag", "live-lag", 5)
    page.until("live-lag\t0\t\t2\t")


def test_a_story_goes_on_while_it_is_read(cluster: ClusterProcess, page: Page) -> None:
    """The body that is scrolled stays where it is, and what was found in the log."""
    leader = cluster.wait_leader()
    make(leader, "live-story")
    send(leader, "live-story", {"body": "line\n" * 500, "message_id": "live-1"})
    page.open(leader, "/messages/live-1")
    page.until("What became of it", "produced")
    page.driver.execute_script("const body = document.querySelector('pre'); body.scrollTop = 77; body.was = true")
    seen_anew(page, "/v1/messages/live-1/trace")
    is_same = "const body = document.querySelector('pre'); return [body.scrollTop, Boolean(body.was)]"
    assert page.driver.execute_script(is_same) == [77, True], "nothing is taken away where nothing happened"
    asked = "return performance.getEntriesByType('resource').filter(each => each.name.endsWith('/live-1')).length"
    assert page.driver.execute_script(asked) == 1, "a body may be large, and does not change"
    commit(leader, "live-readers", "live-story", 1)
    page.until("consumed", "live-readers")
    assert page.driver.execute_script(is_same) == [77, False]
    page.press("Search the log")
    page.until("The log is looked through: 0 found.")
    page.element(By.TAG_NAME, "h1").click()  # the focus is on nothing that is used
    commit(leader, "live-others", "live-story", 1)
    page.until_stale("not drawn anew")
    assert "The log is looked through: 0 found." in page.main()


def test_a_story_stays_when_its_message_is_gone(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    make(leader, "gone-story")
    send(leader, "gone-story", {"body": "to be read", "message_id": "gone-1"})
    page.open(leader, "/messages/gone-1")
    page.until("to be read", "What became of it")
    ok(leader.request("DELETE", "/v1/topics/gone-story"))
    page.until_stale("Not drawn anew since")
    assert "to be read" in page.main()
