"""The console of a node that does not lead."""

import re

from tests.e2e.cluster_process import ClusterProcess, ok, wait_for
from tests.e2e.console_page import Page
from tests.e2e.console_page import driver as driver
from tests.e2e.console_page import page as page


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


def test_a_follower_shows_the_rates_of_the_cluster(cluster: ClusterProcess, page: Page) -> None:
    leader = cluster.wait_leader()
    ok(leader.request("PUT", "/v1/topics/console-rates", payload={"queues": 1}))
    page.open(cluster.follower())
    page.until("Messages a second in the cluster", "stored: 0", "acknowledged: 0")
    ok(leader.request("POST", "/v1/topics/console-rates/messages", payload={"messages": [{"body": "x"}] * 1000}))
    offsets = {"offsets": [{"topic": "console-rates", "queue": 0, "offset": 500}]}
    ok(leader.request("PUT", "/v1/groups/console-rates/offsets", payload=offsets))

    def rates() -> tuple[int, ...]:
        found = re.search(r"stored: (\d+)\s+acknowledged: (\d+)", page.main())
        return tuple(map(int, found.groups())) if found else ()

    seen = wait_for(lambda: rates() if any(rates()) else (), "rates")
    assert 0 < seen[1] < seen[0] <= 1000, seen
