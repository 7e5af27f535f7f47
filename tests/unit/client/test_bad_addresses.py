"""An address that the cluster names and nobody can use, for example after a typing error of add-node, ends no
client.
"""

import pytest

from keelmq.errors import InvalidRequest, NoLeader
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ConnectFailed, HttpClient, HttpResponse, Origin
from keelmq.transport.known_nodes import parse_servers
from keelmq.transport.retry import Deadline
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, redirect

NO_ADDRESSES = [
    "",
    "/v1/x",
    "ftp://n1/",
    "http://user@n1/",
    "http://node4..example:7081",
    f"http://{'a' * 64}.example:1",
    "http://n 4:1",
    "http://n\x004:1",
    "http://n4:70811",
    "http://n4:-1",
    "http://n4:0",
    "http://[::1:7081",
    "http://[fe80::1%\u0435th0]:1",
    "http://\u0435..example:1",
]


async def test_a_host_that_is_no_name_is_a_failed_connect() -> None:
    client = HttpClient(connect_timeout_ms=1_000)
    with pytest.raises(ConnectFailed, match=r"node4\.\.example"):
        await client.request(Origin("http://node4..example:1", "node4..example", 1, False), "GET", "/", "", b"", 5.0)
    client.close()


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_what_is_no_address_is_refused_where_it_is_read(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its subclasses say it in their own words
        Origin.parse(url)
    with pytest.raises(InvalidRequest, match="servers") as told:
        parse_servers([url])
    assert not url or repr(url) in str(told.value)


@pytest.mark.parametrize("url", ["http://n1:1/api", "http://n1:1/?x=1", "http://n1:1?x=1", "http://n1#x"])
def test_servers_with_a_path_or_a_query_are_refused_because_requests_would_not_have_it(url: str) -> None:
    with pytest.raises(InvalidRequest, match="servers"):
        parse_servers(f"http://n2:1,{url}")
    assert [origin.url for origin in parse_servers("http://n1:1/, http://n2:1//")] == ["http://n1:1", "http://n2:1"]


def test_names_beyond_ascii_are_encoded_and_addresses_of_every_kind_taken() -> None:
    urls = ["http://B\u00fccher.example:1", "http://my_node-1.:2", "https://[fe80::1%25eth0]:3", "http://[::1]"]
    assert [origin.url for origin in parse_servers(urls)] == [
        "http://xn--bcher-kva.example:1",
        "http://my_node-1.:2",
        "https://[fe80::1%25eth0]:3",
        "http://[::1]:80",
    ]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("url", NO_ADDRESSES)
async def test_a_leader_that_is_named_by_no_address_is_looked_for_at_the_other_nodes(method: str, url: str) -> None:
    """n1 names the leader without an address, whatever it is asked; n2 leads."""

    def script(request: Request) -> HttpResponse:
        n1 = request.node == "n1"
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": url if n1 else "http://n2:1", "nodes": [{"url": url}]})
        if request.node == "n2":
            return json_answer({})
        return redirect(url)

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    await connection.call(method, "/v1/x", deadline=Deadline(60_000), leader_only=method == "GET")
    assert connection.current == "http://n2:1"


async def test_who_finds_nothing_but_bad_redirects_is_told_of_them() -> None:
    connection = Connection(SERVERS, transport=ScriptedTransport(lambda request: redirect("nowhere")))
    with pytest.raises(NoLeader, match="redirects to 'nowhere'"):
        await connection.call("POST", "/v1/x", deadline=Deadline(100))


@pytest.mark.parametrize("leader_only", [True, False])
async def test_reads_leave_a_node_that_names_a_leader_out_of_reach_for_the_others(leader_only: bool) -> None:
    """The reads would otherwise ask that node and the leader in turn, without a pause, until the time is over."""

    def script(request: Request) -> HttpResponse:
        if request.node == "n4":
            raise ConnectFailed("n4 is out of reach")
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": "http://n4:1" if request.node == "n1" else "http://n3:1"})
        return json_answer({})

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    await connection.call("GET", "/v1/x", deadline=Deadline(2_000), leader_only=leader_only)
    assert connection.current == "http://n3:1"
    assert len(transport.requests) < 10
