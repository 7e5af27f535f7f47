"""Requests of foreign web pages at both listeners: the one for administration, where the console is, checks as much."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.cluster.conftest import Node, running_node
from tests.unit.cluster.test_administration import two_listeners, url_of

CLIENTS, ADMINISTRATION = "http://outside.example:7081", "http://inside.example:7071"
JSON = "application/json"
LISTENERS = pytest.mark.parametrize("administers", [False, True], ids=["http_listen", "admin_listen"])


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    fatal: list[str] = []
    async with running_node(two_listeners(tmp_path), fatal) as node:
        yield node
    assert not fatal


async def answered(node: Node, administers: bool, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return status and code of the answer to a request with these headers, which is sent without others of its own."""
    url = url_of(node) if administers else f"http://{node.core.config.http_listen}"
    body = b"{}" if method in ("POST", "PUT") else None
    skipped = () if "Content-Type" in headers else ("Content-Type",)
    async with node.session.request(
        method, f"{url}{path}", data=body, headers=headers, skip_auto_headers=skipped, allow_redirects=False
    ) as response:
        document = await response.json(content_type=None) if response.content_type.endswith("json") else {}
        return response.status, document.get("code", "")


@LISTENERS
@pytest.mark.parametrize("path", ["/v1/topics/a/messages", "/v1/cluster/settings"])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (415, "unsupported_media_type")),
        ({"Content-Type": "text/plain;charset=UTF-8"}, (415, "unsupported_media_type")),
        ({"Content-Type": JSON, "Origin": "https://attacker.example"}, (403, "cross_origin")),
        ({"Content-Type": JSON, "Origin": "null"}, (403, "cross_origin")),
        ({"Content-Type": JSON, "Sec-Fetch-Site": "cross-site"}, (403, "cross_origin")),
        ({"Content-Type": JSON, "Sec-Fetch-Site": "same-site"}, (403, "cross_origin")),
        ({"Content-Type": JSON, "Host": "rebound.attacker.example"}, (421, "unknown_host")),
        ({"Content-Type": JSON, "Host": "localhost.attacker.example:7071"}, (421, "unknown_host")),
    ],
)
async def test_a_page_of_another_site_is_refused_at_both_listeners(
    node: Node, administers: bool, path: str, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    method = "PUT" if path.endswith("settings") else "POST"
    assert await answered(node, administers, method, path, headers) == expected


@pytest.mark.parametrize("path", ["/v1/users", "/metrics", "/v1/topics"])
@pytest.mark.parametrize(
    "headers",
    [{"Host": "rebound.attacker.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://attacker.example"}],
)
async def test_a_page_of_another_site_reads_nothing_and_is_told_no_address(
    node: Node, path: str, headers: dict[str, str]
) -> None:
    for url in (url_of(node), ""):
        async with node.session.get(f"{url}{path}", headers=headers, allow_redirects=False) as response:
            assert response.status == (421 if "Host" in headers else 403)
            assert "Location" not in response.headers
            assert url_of(node) not in await response.text()


@LISTENERS
async def test_a_page_of_the_other_listener_is_a_page_of_another_site(node: Node, administers: bool) -> None:
    """Each has an origin of its own: what clients are served could otherwise administer in a browser."""
    ports = {False: node.core.config.http_address().port, True: int(url_of(node).rpartition(":")[2])}
    own, other = f"localhost:{ports[administers]}", f"localhost:{ports[not administers]}"
    headers = {"Host": own, "Origin": f"http://{own}"}
    assert (await answered(node, administers, "GET", "/v1/topics", headers))[0] == 200
    headers["Origin"] = f"http://{other}"
    assert await answered(node, administers, "GET", "/v1/topics", headers) == (403, "cross_origin")


@LISTENERS
async def test_the_names_of_both_listeners_are_names_of_the_node(tmp_path: Path, administers: bool) -> None:
    named = {"http_url": CLIENTS, "admin_url": ADMINISTRATION}
    async with running_node(two_listeners(tmp_path, **named), []) as node:
        url = f"http://{node.core.config.admin_listen if administers else node.core.config.http_listen}"
        for host in ("outside.example:7081", "inside.example:7071", "INSIDE.example", "localhost", "10.1.2.3"):
            async with node.session.get(f"{url}/v1/topics", headers={"Host": host}) as response:
                assert response.status == 200, host
        async with node.session.get(f"{url}/v1/topics", headers={"Host": "attacker.example"}) as response:
            assert response.status == 421


@LISTENERS
async def test_probes_are_answered_under_any_name_at_both_listeners(node: Node, administers: bool) -> None:
    headers = {"Host": "balancer.example", "Sec-Fetch-Site": "cross-site"}
    for path in ("/healthz", "/readyz"):
        assert (await answered(node, administers, "GET", path, headers))[0] == 200
