"""The console in a real browser: what it shows, what it does, and what it does not let happen."""

import json
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.e2e.closed_cluster import ADMINISTRATOR
from tests.e2e.closed_cluster import closed_cluster as make_closed_cluster
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page

HOSTILE_BODY = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
closed = make_closed_cluster()


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
    page.until("stored:")  # at the second look: the view is drawn anew by itself
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


def test_a_message_is_found_from_the_number_of_its_order_in_three_clicks(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    message_id = send(leader, "console-clicks", "x", "order-18")
    page.open(leader)
    page.until("Nodes")
    page.follow("Find a message")
    page.element(By.ID, "topic").send_keys("console-cl")
    page.element(By.CSS_SELECTOR, "datalist option[value='console-clicks']")  # its name need not be known by heart
    page.element(By.ID, "topic").send_keys("icks")
    page.element(By.ID, "key").send_keys("order-18")
    page.element(By.XPATH, "//form[.//input[@id='key']]//button").click()
    page.follow(message_id)
    page.until("What became of it", "produced", "order-18")
    assert page.driver.current_url.endswith(f"#/messages/{message_id}?topic=console-clicks"), "no other one is searched"


def test_a_message_leads_to_those_that_caused_it(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    first, second = (send(leader, topic, f"in {topic}", "k") for topic in ("console-paid", "console-shipped"))
    ok(leader.request("PUT", "/v1/topics/console-points", payload={"queues": 1, "type": "any"}))
    properties = {"causation_id": f"{first},{second}", "causation_topic": "console-paid,console-shipped"}
    caused = {"body": "x", "message_id": "console-caused", "properties": properties}
    ok(leader.request("POST", "/v1/topics/console-points/messages", payload={"messages": [caused]}))
    page.open(leader, "/messages/console-caused?topic=console-points")
    page.until("Caused by")
    page.follow(second)
    page.until("in console-shipped", "What became of it")


def test_a_message_leads_to_those_that_it_caused(cluster: ClusterProcess, page: Page) -> None:
    """The search goes on page by page, stops and goes on when it is told to, and tells how far it is."""
    leader = cluster.wait_leader()
    cause = send(leader, "console-ordered", "cause", "k")
    ok(leader.request("PUT", "/v1/topics/console-billed", payload={"queues": 1, "type": "any"}))
    properties = {"causation_id": cause, "causation_topic": "console-ordered", "producer_group": "billing"}
    bills = [{"body": "a bill", "message_id": f"console-bill-{n}", "properties": properties} for n in range(101)]
    ok(leader.request("POST", "/v1/topics/console-billed/messages", payload={"messages": bills}))
    page.open(leader, f"/messages/{cause}?topic=console-ordered")
    page.until("Caused", "What became of it")
    assert "console-bill" not in page.main(), "nothing is looked for before somebody wants it"
    page.press("Search the log")
    shown = page.until(
        "The log is looked through: 101 found.", "console-bill-0", "console-bill-100", "visible", "billing"
    )
    assert "looked through, 101 found" in shown
    page.follow("console-bill-100")
    page.until("a bill", "Caused by", "console-ordered")
    page.press("Search the log")
    page.until("The log is looked through: 0 found.")


def test_a_message_is_found_by_its_id_alone_in_all_topics_that_have_it(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    for topic in ("console-first", "console-second"):
        ok(leader.request("PUT", f"/v1/topics/{topic}", payload={"queues": 1, "type": "any"}))
        sent = {"messages": [{"body": f"in {topic}", "message_id": "console-both"}]}
        ok(leader.request("POST", f"/v1/topics/{topic}/messages", payload=sent))
    page.open(leader, "/find")
    page.element(By.ID, "id").send_keys("console-both\n")
    shown = page.until("in console-first", "in console-second")
    assert shown.count("What became of it") == shown.count("produced") == 2
    page.open(leader, "/messages/console-both?topic=console-second")
    assert "in console-first" not in page.until("in console-second", "What became of it")


def test_a_time_that_cannot_be_is_shown_as_the_number_that_it_is(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/console-times", payload={"queues": 1, "type": "any"}))
    message = {"body": "x", "message_id": "console-nanoseconds", "born_at_ms": 1_700_000_000_000_000_000}
    ok(leader.request("POST", "/v1/topics/console-times/messages", payload={"messages": [message]}))
    page.open(leader, "/messages/console-nanoseconds")
    page.until("What became of it", "1700000000000000000")


def test_a_delayed_message_of_a_transaction_is_shown_with_its_time(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/console-later", payload={"queues": 1, "type": "any"}))
    half = {
        "transaction_id": "console-delayed",
        "producer_group": "shop",
        "messages": [{"topic": "console-later", "body": "x", "delay_ms": 3_600_000}],
    }
    ok(leader.request("POST", "/v1/transactions", payload=half))
    ok(leader.request("POST", "/v1/transactions/console-delayed/commit", payload={}))
    page.open(leader, "/transactions/console-delayed")
    assert "undefined" not in page.until("Timeline", "console-later, queue 0, from")


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
    page.said("Committed: transaction console-undecided")
    decided = ok(leader.request("GET", "/v1/transactions/console-undecided"))
    assert (decided["state"], decided["timeline"][-1]["operator"]) == ("committed", "ann")


def test_lists_begin_at_a_name(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    offsets = {"offsets": [{"topic": "from-b", "queue": 0, "offset": 0}]}
    names = ("from-a", "from-b", "from-bc", "from-c")
    for name in names:
        ok(leader.request("PUT", f"/v1/topics/{name}", payload={"queues": 1}))
    for name in names:
        ok(leader.request("PUT", f"/v1/groups/{name}/offsets", payload=offsets))
    for view in ("/topics", "/groups"):
        page.open(leader, view)
        page.until("from-a")
        page.element(By.ID, "from").send_keys("from-b\n")
        wait_for(lambda: "from-a" not in page.main(), "the list from the name on")
        page.until("from-b\t", "from-bc", "from-c")
        assert page.driver.current_url.endswith("?from=from-b")


def test_messages_are_shown_from_a_time_on(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    first = send(leader, "console-at", "early", "k")
    path = "/v1/topics/console-at/queues/0/messages"
    stored_at_ms = ok(leader.request("GET", f"{path}?offset=0"))["messages"][0]["stored_at_ms"]
    later = send(leader, "console-at", "late", "k")
    page.open(leader, f"/topics/console-at/queues/0?at={stored_at_ms + 1}")
    assert first not in page.until("Stored at or after", "late", later)
    page.driver.execute_script("document.getElementById('at').value = '2020-01-01T00:00:00'")
    page.element(By.XPATH, "//form[.//input[@id='at']]//button").click()
    page.until(first, later)
    assert page.element(By.ID, "at").get_attribute("value") == "2020-01-01T00:00"


def test_a_chart_takes_no_moment_for_a_rate_and_begins_anew_after_a_gap(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader())
    page.until("Nodes")
    points = page.driver.execute_async_script(
        """
        const [looks, done] = arguments;
        import("./console/chart.js").then(({ Chart }) => {
          const chart = new Chart("Messages a second", { sent: "first" });
          done(looks.map(([at, sent]) => {
            performance.now = () => at;
            chart.counted("orders", { sent });
            return chart.points.map((point) => point.sent);
          }));
        });
        """,
        [[0, 0], [5_000, 50], [5_001, 51], [10_000, 200], [600_000, 9_000], [605_000, 9_005]],
    )
    assert points == [[], [10], [10], [10, 30], [], [1]]


def test_what_is_drawn_anew_takes_answers_of_a_moment_ago_and_nothing_else_does(
    cluster: ClusterProcess, page: Page
) -> None:
    leader = cluster.wait_leader()
    send(leader, "console-moment", "x", "k")
    page.open(leader, "/topics/console-moment")
    page.until("1 messages")
    page.driver.execute_script(
        """
        const ask = fetch;
        window.asked = [];
        window.fetch = (path, options) => {
          asked.push([path, options.headers.get("Cache-Control")]);
          return ask(path, options);
        };
        """
    )
    send(leader, "console-moment", "y", "k")
    page.until("2 messages")  # drawn anew by itself
    asked = page.driver.execute_script("return asked.splice(0)")
    assert len(asked) >= 3
    assert {cache for _, cache in asked} == {"max-age=2"}
    page.follow("Groups")
    page.until("Groups from the name")
    asked = page.driver.execute_script("return asked.splice(0)")
    assert [cache for path, cache in asked if path.startswith("/v1/lags")] == [None]


JSON_BODY = '{"order": 12345678901234567890, "sum":1.50,"note":"a: {b}, \\"c\\"","none":[ ],"lines":[1,{"of":"<b>"}]}'
JSON_LINES = """{
  "order": 12345678901234567890,
  "sum": 1.50,
  "note": "a: {b}, \\"c\\"",
  "none": [],
  "lines": [
    1,
    {
      "of": "<b>"
    }
  ]
}"""


def test_a_body_is_shown_as_json_text_and_hexadecimal_digits(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/console-body", payload={"queues": 1, "type": "any"}))
    messages = [
        {"body": JSON_BODY, "message_id": "body-json"},
        {"body": "/wBB", "encoding": "base64", "message_id": "body-bytes"},
        {"body": "[1, 2", "message_id": "body-text"},
        {"body": "x" * 70_000, "message_id": "body-long"},
    ]
    ok(leader.request("POST", "/v1/topics/console-body/messages", payload={"messages": messages}))

    def shown() -> str:
        return str(page.driver.execute_script("return document.querySelector('pre')?.textContent"))

    page.open(leader, "/messages/body-json?topic=console-body")
    page.until("What became of it")
    assert shown() == JSON_LINES, "numbers stay as they were sent"
    page.follow("Text")
    wait_for(lambda: shown() == JSON_BODY, "the text")
    page.follow("Hex")
    wait_for(lambda: shown().startswith("000000  7b 22 6f 72 64 65 72 22"), "the digits")
    assert page.driver.current_url.endswith("#/messages/body-json?topic=console-body&body=hex")
    page.open(leader, "/messages/body-bytes?topic=console-body")
    page.until("000000  ff 00 41")
    page.open(leader, "/messages/body-bytes?topic=console-body&body=text")
    page.until("no text in UTF-8")
    page.open(leader, "/messages/body-text?topic=console-body&body=json")
    page.until("It is no JSON", "[1, 2")
    page.open(leader, "/messages/body-long?topic=console-body&body=hex")
    page.until("the first 64 KiB of 68.4 KiB", "00fff0  78")


def test_what_was_waited_for_is_drawn_on_one_axis(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader())
    page.until("Nodes")
    events = [
        {"event": "prepared", "at_ms": 1_000, "raft_index": 7},
        {"event": "check", "at_ms": 61_000},
        {"event": "committed", "at_ms": 121_000},
        {"event": "visible", "at_ms": 121_000, "topic": "orders"},
        {"event": "consumed", "at_ms": 123_000, "topic": "orders", "group": "ship"},
        {"event": "given_back", "at_ms": 124_000, "topic": "orders", "group": "pay"},
    ]
    drawn = page.driver.execute_async_script(
        """
        const [events, done] = arguments;
        import("./console/timeline.js").then(({ bars, timeline }) => {
          const main = document.querySelector("main");
          main.replaceChildren(timeline(events), timeline(events.slice(3, 4)));
          done([
            bars(events, 130_000).map(({ label, isOpen }) => [label, isOpen]),
            main.querySelectorAll("svg").length,
            main.querySelectorAll("circle").length,
            main.querySelector("svg").getAttribute("aria-label"),
          ]);
        });
        """,
        events,
    )
    waits = [["undecided: 2 min", False], ["waits for ship: 2 s", False], ["given back by pay: 6 s until now", True]]
    assert drawn[:3] == [waits, 1, len(events)], "a single moment is not drawn"
    assert drawn[3].startswith("6 events in ")
    assert "log entry 7" in page.main()


def test_a_chart_has_a_dot_for_a_single_point_and_times_at_its_axis(cluster: ClusterProcess, page: Page) -> None:
    page.open(cluster.wait_leader())
    page.until("Nodes")
    drawn = page.driver.execute_async_script(
        """
        const [done] = arguments;
        import("./console/chart.js").then(({ Chart }) => {
          const chart = new Chart("Lag", { lag: "first" });
          const count = (drawn, what) => drawn.querySelectorAll(what).length;
          done([1_000, 9_000].map((at) => {
            Date.now = () => at;
            chart.measured("group", { lag: 5 });
            const drawn = chart.draw();
            return [count(drawn, "circle"), count(drawn, ".axis time")];
          }));
        });
        """
    )
    assert drawn == [[1, 1], [0, 2]]


def test_topics_have_rates_between_two_looks(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    send(leader, "console-rate", "x", "k")
    page.open(leader, "/topics?from=console-rate")
    page.until("console-rate\tany\t1\t1\t\t")
    for _ in range(20):
        send(leader, "console-rate", "x", "k")
    page.follow("Groups")
    page.until("Consumer groups")
    page.driver.back()
    page.until("console-rate\tany\t1\t21\t")
    wait_for(lambda: "console-rate\tany\t1\t21\t\t" not in page.main(), "a look that is a second later, or more")
    shown = page.main()
    assert float(shown.partition("console-rate\tany\t1\t21\t")[2].split("\t")[0]) > 0


def test_a_group_shows_its_lag(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    for number in range(3):
        send(leader, "console-lag", "x", f"k{number}")
    offsets = {"offsets": [{"topic": "console-lag", "queue": 0, "offset": 1}]}
    ok(leader.request("PUT", "/v1/groups/console-group/offsets", payload=offsets))
    page.open(leader, "/")
    page.until("Groups with the largest lag", "console-group")
    page.open(leader, "/topics/console-lag")
    page.until("Groups that read it", "console-group")
    page.open(leader, "/groups?from=console-group")
    page.until("The first waits", "Dead letters", "console-group")
    row = page.element(By.XPATH, "//tr[.//a[.='console-group']]")
    assert [each.text for each in row.find_elements(By.CSS_SELECTOR, "td.number")][1] == "2"
    page.follow("console-group")
    page.until("2 messages", "The oldest waits since", "Committed offsets", "No dead letters.")
    assert "is given again, at most 16 times" in page.main()


def test_a_group_of_many_queues_shows_those_with_the_largest_lag(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/console-wide", payload={"queues": 201}))
    sent = {"messages": [{"body": "x", "queue": 200}, {"body": "x", "queue": 200}]}
    ok(leader.request("POST", "/v1/topics/console-wide/messages", payload=sent))
    offsets = {"offsets": [{"topic": "console-wide", "queue": queue, "offset": 0} for queue in range(201)]}
    ok(leader.request("PUT", "/v1/groups/console-wide/offsets", payload=offsets))
    page.open(leader, "/groups/console-wide")
    page.until("2 messages", "the 200 queues with the largest lag, of 201")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "main table:first-of-type tbody tr")
    assert len(rows) == 200
    assert rows[0].text.startswith("console-wide 200 0 2 ")


def test_a_closed_cluster_asks_for_a_token_and_shows_nothing_without(
    closed: ClusterProcess, driver: webdriver.Chrome
) -> None:
    page, leader = Page(driver), closed.wait_leader()
    page.open(leader, "/topics")
    assert "secret-orders" not in page.until("Sign in")
    page.element(By.ID, "token").send_keys("wrong" * 10 + "\n")
    page.element(By.CSS_SELECTOR, "main [role=alert]")  # the form is a new one, which says what is wrong
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
