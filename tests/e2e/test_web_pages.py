"""Tests requests that a web page can make its visitor's browser send: no node carries one out, and nothing changes."""

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess

pytestmark = pytest.mark.process

MESSAGES = "/v1/topics/pages/messages"
MEMBERS = "/v1/groups/pages/members"
SEND = b'{"messages":[{"body":"x"}]}'
JOIN = b'{"topics":["pages"],"client_id":"page"}'
JSON = "application/json"


@pytest.fixture(scope="module")
def node(single: ClusterProcess) -> NodeProcess:
    return single.make_topic("pages")


def stored(node: NodeProcess) -> int:
    return int(node.request("GET", "/v1/topics/pages/queues/0/offsets?at=latest").json()["offset"])


@pytest.mark.parametrize(("path", "body"), [(MESSAGES, SEND), (MEMBERS, JOIN)], ids=["send", "join"])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": ""}, 415, "unsupported_media_type"),
        ({"Content-Type": "text/plain;charset=UTF-8"}, 415, "unsupported_media_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415, "unsupported_media_type"),
        ({"Content-Type": JSON, "Origin": "https://attacker.example"}, 403, "cross_origin"),
        ({"Content-Type": JSON, "Origin": "null"}, 403, "cross_origin"),
        ({"Content-Type": JSON, "Sec-Fetch-Site": "cross-site"}, 403, "cross_origin"),
        ({"Content-Type": JSON, "Sec-Fetch-Site": "same-site"}, 403, "cross_origin"),
        ({"Content-Type": JSON, "Host": "rebound.attacker.example"}, 421, "unknown_host"),
        ({"Content-Type": JSON, "Host": "127.0.0.1.attacker.example:7081"}, 421, "unknown_host"),
        ({"Content-Type": JSON, "Host": "localhost.attacker.example"}, 421, "unknown_host"),
    ],
)
def test_a_page_of_another_site_changes_nothing(
    node: NodeProcess, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    before = stored(node)
    reply = node.request("POST", path, body, headers=headers)
    assert (reply.status, reply.json()["code"]) == (status, code)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert stored(node) == before
    assert node.request("GET", "/v1/groups/pages").status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/transactions/none/commit"),
        ("POST", "/v1/cluster/members/1/promote"),
        ("POST", "/v1/cluster/members/1/lead"),
        ("POST", "/v1/cluster/rebuild"),
        ("PUT", "/v1/topics/other"),
    ],
)
def test_a_write_without_a_body_needs_its_media_type_too(node: NodeProcess, method: str, path: str) -> None:
    reply = node.request(method, path, headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.json()["code"]) == (415, "unsupported_media_type")


def test_a_page_cannot_take_checks_away_either(node: NodeProcess) -> None:
    reply = node.request("GET", "/v1/producer-groups/shop/checks", headers={"Sec-Fetch-Site": "cross-site"})
    assert (reply.status, reply.json()["code"]) == (403, "cross_origin")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]:7081", "localhost:9", "LOCALHOST.", "keelmq.localhost", "10.1.2.3"]
)
def test_addresses_and_loopback_names_are_names_of_every_node(node: NodeProcess, host: str) -> None:
    assert node.request("GET", "/v1/cluster", headers={"Host": host}).status == 200


def test_a_page_of_the_node_itself_is_answered(node: NodeProcess) -> None:
    headers = {"Host": "localhost:7081", "Origin": "http://localhost:7081", "Sec-Fetch-Site": "same-origin"}
    assert node.request("POST", MESSAGES, SEND, headers=headers).status == 200


def test_other_pages_may_link_to_the_console_and_to_nothing_beside_it(node: NodeProcess) -> None:
    """Another node's console links to this one's; the files say nothing. A foreign name is refused there too."""
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert node.request("GET", "/console", headers=headers).status == 200
    assert node.request("GET", "/console/main.js", headers=headers).status == 200
    assert node.request("GET", "/consoles", headers=headers).status in (403, 404)
    assert node.request("GET", "/v1/cluster", headers=headers).status == 403
    assert node.request("GET", "/console", headers={"Host": "rebound.attacker.example"}).status == 421


def test_probes_are_answered_under_any_name(node: NodeProcess) -> None:
    for path in ("/healthz", "/readyz"):
        reply = node.request("GET", path, headers={"Host": "balancer.example", "Sec-Fetch-Site": "cross-site"})
        assert reply.status == 200
        assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_methods_without_a_body_take_none(node: NodeProcess, method: str) -> None:
    reply = node.request(method, "/v1/topics/pages", b"x" * 100)
    assert (reply.status, reply.json()["code"]) == (400, "invalid_request")


def test_further_names_are_configured(single: ClusterProcess, node: NodeProcess) -> None:
    node.terminate()
    node.start(extra=["--allowed-host", "broker.example", "--allowed-host", "keelmq"])
    try:
        single.wait_leader()
        for host in ("broker.example", "Broker.Example:443", "keelmq:7081"):
            assert node.request("GET", "/v1/cluster", headers={"Host": host}).status == 200
        assert node.request("GET", "/v1/cluster", headers={"Host": "other.example"}).status == 421
    finally:
        node.terminate()
        node.start()
        single.wait_leader()
