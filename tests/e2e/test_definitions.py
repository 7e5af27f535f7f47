"""Definitions go from one closed cluster to another, and nothing else does."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.closed_cluster import ADMINISTRATOR, closed, rule, someone
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, ok
from tests.e2e.fixtures import Shell

pytestmark = pytest.mark.process

CHECK_URL: Final = "http://127.0.0.1:9/check?key=s3cret"


class ClosedShell(Shell):
    """Runs commands as the administrator, or as the user with the given token."""

    def __init__(self, cluster: ClusterProcess, token: str = ADMINISTRATOR) -> None:
        super().__init__(cluster)
        self.environment["KEELMQ_TOKEN"] = token


def closed_node(directory: Path) -> ClusterProcess:
    return closed(directory, nodes=1, options=(*OPTIONS, "--webhook-allow", "http://127.0.0.1:9"))


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[tuple[ClosedShell, ClosedShell]]:
    """Two clusters of one node each: one with definitions, and an empty one."""
    with closed_node(tmp_path / "one") as one, closed_node(tmp_path / "two") as two:
        yield ClosedShell(one), ClosedShell(two)


def define(shell: Shell) -> None:
    shell("topic", "create", "orders", "--queues", "3", "--type", "fifo", "--retention-ms", "2h")
    shell("topic", "create", "bills", "--queues", "1", "--retention-bytes", "1G")
    shell("send", "orders", "a message, which is no definition")
    shell("group", "settings", "points", "--max-attempts", "5", "--delays", "10s,1m")
    shell.call("PUT", "/v1/producer-groups/shop", {"check_url": CHECK_URL})
    shell("cluster", "settings", "--reject-transactions", "--log-retention-bytes", "1T")
    shell("auth", "user", "create", "shop", "--certificate", "shop.example.com")
    shell("auth", "acl", "allow", "shop", "send", "topic:orders", "--network", "10.0.0.0/8")
    shell("auth", "acl", "deny", "shop", "delete", "topic:*")
    shell("auth", "token", "create", "shop")
    shell("cluster", "join-token", "9")


def plan_of(shell: Shell, *arguments: str, code: int) -> dict[tuple[str, str], Any]:
    plan = shell.json("definitions", "import", *arguments, code=code)
    return {(each["kind"], each["name"]): each for each in plan["changes"]}


def actions_of(shell: Shell, *arguments: str, code: int) -> dict[tuple[str, str], str]:
    return {what: each["action"] for what, each in plan_of(shell, *arguments, code=code).items()}


ALL: Final = {("topic", "orders"), ("topic", "bills"), ("group", "points"), ("producer_group", "shop")} | {
    ("settings", "cluster"),
    ("user", "shop"),
}


def test_an_export_imported_into_an_empty_cluster_is_exported_again_as_the_same_file(
    shells: tuple[ClosedShell, ClosedShell], tmp_path: Path
) -> None:
    one, two = shells
    define(one)
    file, again = tmp_path / "definitions.json", tmp_path / "again.json"
    said = one("definitions", "export", str(file)).stdout
    assert "2 topics, 1 groups, 1 producer groups, 1 users and the settings; users without tokens" in said
    text = file.read_text()
    assert text == one("definitions", "export").stdout
    assert "token" in json.loads(text)["without"]
    assert "token_id" not in text
    assert "join:9" not in text
    assert json.loads(text)["definitions"]["users"][0]["rules"][1]["networks"] == ["10.0.0.0/8"]
    assert stat.S_IMODE(file.stat().st_mode) & stat.S_IRUSR

    empty = two("definitions", "export").stdout
    planned = actions_of(two, str(file), "--dry-run", code=3)
    assert planned == {what: "alter" if what == ("settings", "cluster") else "create" for what in ALL}
    assert two("definitions", "export").stdout == empty, "a dry run changes nothing"

    lines = two("definitions", "import", str(file)).stdout
    assert "+ create topic orders" in lines
    assert "log_retention_bytes: -1 -> 1099511627776" in lines
    assert "5 create, 1 alter, 0 same, 0 refused" in lines
    two("definitions", "export", str(again))
    assert again.read_bytes() == file.read_bytes()
    assert two.json("auth", "user", "show", "shop")["tokens"] == []
    assert two.json("topic", "show", "orders")["queue_offsets"][0]["max_offset"] == 0

    revision = two.json("auth", "user", "show", "shop")["revision"]
    assert actions_of(two, str(file), code=0) == dict.fromkeys(ALL, "same")
    assert actions_of(two, str(file), "--dry-run", code=0) == dict.fromkeys(ALL, "same")
    assert two.json("auth", "user", "show", "shop")["revision"] == revision, "what is the same is not written again"


def test_only_what_differs_is_altered_and_nothing_is_deleted(
    shells: tuple[ClosedShell, ClosedShell], tmp_path: Path
) -> None:
    one, _ = shells
    define(one)
    file = tmp_path / "definitions.json"
    one("definitions", "export", str(file))
    token = one.json("auth", "user", "show", "shop")["tokens"]
    one("topic", "alter", "orders", "--retention-ms", "3h")
    one("topic", "create", "extra", "--queues", "1")
    one("auth", "acl", "allow", "shop", "read", "topic:bills")
    changes = plan_of(one, str(file), code=0)
    altered = {what for what, each in changes.items() if each["action"] == "alter"}
    assert altered == {("topic", "orders"), ("user", "shop")}
    assert changes["topic", "orders"]["differences"] == ["retention_ms: 10800000 -> 7200000"]
    assert '"topic:bills"' in changes["user", "shop"]["differences"][0]
    assert changes["user", "shop"]["differences"][0].startswith("rules: -")
    assert one.json("topic", "show", "orders")["retention_ms"] == 7_200_000
    assert one.json("topic", "show", "extra")["queues"] == 1
    user = one.json("auth", "user", "show", "shop")
    assert (user["tokens"], len(user["rules"])) == (token, 2)


def test_a_refusal_that_is_known_stops_everything_and_one_of_the_cluster_stops_the_rest(
    shells: tuple[ClosedShell, ClosedShell], tmp_path: Path
) -> None:
    one, two = shells
    define(one)
    file = tmp_path / "definitions.json"
    one("definitions", "export", str(file))
    two("topic", "create", "orders", "--queues", "9", "--type", "fifo")
    before = two("definitions", "export").stdout
    refused = two("definitions", "import", str(file), code=1).output
    assert "! refused topic orders: topic orders has 9 queues; their number can only grow" in refused
    assert "--keep-going" in refused
    assert two("definitions", "export").stdout == before
    assert actions_of(two, str(file), "--dry-run", code=1)["topic", "orders"] == "refused"
    kept_going = actions_of(two, str(file), "--keep-going", code=1)
    assert (kept_going["topic", "orders"], kept_going["user", "shop"]) == ("refused", "create")

    wanted = json.loads(file.read_text())
    wanted["definitions"] = {
        "producer_groups": [{"producer_group": "alien", "check_url": "http://192.0.2.1/"}],
        "users": [{"user": "late"}],
    }
    file.write_text(json.dumps(wanted))
    stopped = plan_of(two, str(file), code=1)
    assert list(stopped) == [("producer_group", "alien")]
    assert stopped["producer_group", "alien"]["code"] == "check_url_not_allowed"
    assert [each["user"] for each in two.json("auth", "user", "list")["users"]] == ["shop"]
    assert actions_of(two, str(file), "--keep-going", code=1)["user", "late"] == "create"
    assert two.json("auth", "user", "show", "late")["rules"] == []


def test_who_does_not_see_everything_exports_nothing(shells: tuple[ClosedShell, ClosedShell], tmp_path: Path) -> None:
    one, _ = shells
    define(one)
    leader = one.cluster.wait_leader()
    blind = [rule("admin", on="cluster"), rule("describe", on="group:*"), rule("alter", on="producer-group:*")]
    user = someone(leader, *blind)
    target = tmp_path / "partly.json"
    refused = ClosedShell(one.cluster, user.token)("definitions", "export", str(target), code=1).output
    assert "does not see all topics" in refused
    assert not target.exists()
    ok(leader.request("PUT", f"/v1/users/{user.name}", payload={"rules": [*blind, rule("describe", on="topic:*")]}))
    ClosedShell(one.cluster, user.token)("definitions", "export", str(target))
    urls = json.loads(target.read_text())["definitions"]["producer_groups"]
    assert urls == [{"check_url": CHECK_URL, "producer_group": "shop"}]
    describes = someone(leader, rule("describe", "decide", on="producer-group:*"))
    headers = {"Authorization": f"Bearer {describes.token}"}
    listed = ok(leader.request("GET", "/v1/producer-groups", headers=headers))
    assert listed == {"producer_groups": [], "next": None}, "URLs may hold secrets: who may set them sees them"


def test_producer_groups_are_paged(shells: tuple[ClosedShell, ClosedShell]) -> None:
    one, _ = shells
    for name in ("c", "a", "b"):
        one.call("PUT", f"/v1/producer-groups/{name}", {"check_url": CHECK_URL})
    node = one.cluster.wait_leader()
    first = ok(node.request("GET", "/v1/producer-groups?limit=2"))
    assert ([each["producer_group"] for each in first["producer_groups"]], first["next"]) == (["a", "b"], "b")
    rest = ok(node.request("GET", "/v1/producer-groups?limit=2&after=b"))
    assert ([each["producer_group"] for each in rest["producer_groups"]], rest["next"]) == (["c"], None)
    assert node.request("GET", "/v1/producer-groups?limit=0").status == 400
    assert ok(node.request("GET", "/v1/producer-groups?limit=1&after=%20"))["next"] == "a", "any text is a place"
