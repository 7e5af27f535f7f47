"""The lines that `keelmq cluster promote --wait` prints while it waits, and what `add-node --token-minutes` does."""

import shlex
from typing import Any

import pytest

from keelmq import Admin, Connection
from keelmq.admin import ClusterMembers, JoinToken
from keelmq.cli.operations.nodes import _add_with_token, _promote_when_ready
from keelmq.errors import Conflict, InvalidRequest, NotFound
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport, json_answer, problem

LEADER = "http://n1:1"
STATUS: dict[str, Any] = {
    "cluster_id": "c",
    "node_id": 1,
    "role": "leader",
    "term": 1,
    "leader_url": LEADER,
    "commit_index": 100,
    "applied_index": 100,
    "durable_index": 100,
}
PROMOTED: dict[str, Any] = {"members": [], "warnings": []}


async def promote_when_ready(refusals: list[tuple[str, int]], last: HttpResponse) -> ClusterMembers:
    """Promote a node. Each of `refusals`, (code, match index of the node then), is answered first, and then `last`."""
    match_index = 0

    def script(request: Request) -> HttpResponse:
        nonlocal match_index
        if request.method == "GET":
            node = {"node_id": 4, "match_index": match_index, "url": ""}
            return json_answer({**STATUS, "nodes": [node]})
        if not refusals:
            return last
        code, match_index = refusals.pop(0)
        return problem(409, code)

    connection = Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True))
    return await _promote_when_ready(Admin(connection), 4)


async def test_who_waits_for_a_promotion_is_told_for_what_whenever_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keelmq.cli.operations.nodes.LOOK_AGAIN_S", 0)
    answer = await promote_when_ready(
        [("change_in_progress", 0), ("not_caught_up", 0), ("not_caught_up", 60), ("change_in_progress", 99)],
        json_answer(PROMOTED),
    )
    assert answer.document == PROMOTED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "waiting: about change_in_progress; it has 0 of 100 entries",
        "waiting: about not_caught_up; it has 0 of 100 entries",
        "waiting: about change_in_progress; it has 99 of 100 entries",
    ]


async def test_a_node_that_is_removed_meanwhile_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.cli.operations.nodes.LOOK_AGAIN_S", 0)
    with pytest.raises(NotFound):
        await promote_when_ready([("not_caught_up", 0)], problem(404, "node_not_found"))


class Members:
    """A cluster whose node 2 leads. It remembers what changed it: the method and path of each request."""

    def __init__(self, *urls: str, refuses: HttpResponse | None = None) -> None:
        self.urls = dict(enumerate(urls, 1))
        self.refuses = refuses
        self.tokens: set[str] = set()
        self.down: set[int] = set()
        self.changes: list[str] = []

    async def add(self, node_id: int, url: str) -> tuple[ClusterMembers, JoinToken, str]:
        connection = Connection([LEADER], transport=ScriptedTransport(self._answer, answers_cluster=True))
        return await _add_with_token(connection, (node_id, f"10.0.0.{node_id}:7", url), 15)

    async def join(self, node_id: int, url: str) -> dict[str, str]:
        """Add the node and return the options of the command that starts it."""
        words = shlex.split((await self.add(node_id, url))[2])[1:]
        return dict(zip(words[::2], words[1::2], strict=True))

    def _answer(self, request: Request) -> HttpResponse:
        user = request.target.removeprefix("/v1/users/").replace("%3A", ":")
        if request.method == "GET":
            if request.target == "/v1/cluster":
                return json_answer({**STATUS, "leader_id": 2, "nodes": self._nodes("url")})
            found = {"user": user, "revision": 1, "tokens": []}
            return json_answer(found) if user in self.tokens else problem(404, "user_not_found")
        self.changes.append(f"{request.method} {request.target}")
        if request.method == "DELETE":
            self.tokens.remove(user)
            return json_answer({})
        body = request.json()
        if request.target == "/v1/cluster/join-tokens":
            self.tokens.add(f"join:{body['node_id']}")
            return json_answer({"token": "secret", "node_id": body["node_id"], "expires_at_ms": 1}, 201)
        if self.refuses is not None:
            return self.refuses
        self.urls[body["node_id"]] = body["http_address"]
        return json_answer({"members": self._nodes("http_address")})

    def _nodes(self, name: str) -> list[dict[str, Any]]:
        return [
            {"node_id": each, "membership": "voter", "peer_address": f"10.0.0.{each}:7", name: url}
            | {"connected": each not in self.down}
            for each, url in self.urls.items()
        ]


THREE = ("https://n1:1", "https://n2:1", "https://n3:1")


@pytest.mark.parametrize(
    ("node_id", "url", "said"),
    [
        (3, "https://n4:1", "node 3 is in the cluster already, at 10.0.0.3:7 and https://n3:1"),
        (4, "https://n2:1", "node 2 has that address already"),
    ],
)
async def test_a_node_that_the_members_exclude_gets_no_token(node_id: int, url: str, said: str) -> None:
    """A token that was handed out to the node stays valid."""
    members = Members(*THREE)
    with pytest.raises(Conflict, match=said):
        await members.add(node_id, url)
    assert members.changes == []


async def test_the_only_node_of_a_cluster_is_not_added_to_itself() -> None:
    members = Members("https://n1:1")
    with pytest.raises(Conflict, match="node 1 is the only node of the cluster"):
        await members.add(1, "https://n1:1")
    assert members.changes == []


@pytest.mark.parametrize("had_one", [False, True])
async def test_who_is_refused_a_node_is_told_that_its_earlier_token_has_ended(had_one: bool) -> None:
    members = Members(*THREE, refuses=problem(409, "too_many_nodes"))
    members.tokens |= {"join:4"} if had_one else set()
    with pytest.raises(Conflict) as refused:
        await members.add(4, "https://n4:1")
    assert members.tokens == set(), "nobody has seen the new one"
    told = "; the earlier join token of node 4 has ended" if had_one else ""
    assert refused.value.detail == f"about too_many_nodes{told}"


async def test_a_node_is_added_again_with_the_addresses_that_it_has() -> None:
    members = Members(*THREE)
    assert (await members.join(3, "https://n3:1/"))["--join"] == "https://n2:1"


@pytest.mark.parametrize(
    ("url", "listens"),
    [
        ("https://node4.example", "node4.example:443"),
        ("http://node4.example", "node4.example:80"),
        ("http://[fd00::4]", "[fd00::4]:80"),
        ("https://n4:7081", "n4:7081"),
    ],
)
async def test_a_url_without_a_port_gives_the_port_of_its_scheme(url: str, listens: str) -> None:
    assert (await Members(*THREE).join(4, url))["--http-listen"] == listens


@pytest.mark.parametrize(
    ("urls", "down", "joined"),
    [
        (THREE, set(), "https://n2:1"),
        (("https://n1:1", "http://n2:1", "https://n3:1"), {1}, "https://n3:1"),
        (("https://n1:1", "http://n2:1"), {1}, "https://n1:1"),
        (("http://127.0.0.1:1", "http://127.0.0.2:1"), set(), "http://127.0.0.2:1"),
    ],
)
async def test_a_node_shows_its_token_to_the_leader_or_else_to_one_with_tls(
    urls: tuple[str, ...], down: set[int], joined: str
) -> None:
    members = Members(*urls)
    members.down = down
    assert (await members.join(4, "https://n4:1"))["--join"] == joined


async def test_no_token_is_made_that_no_member_may_see() -> None:
    members = Members("http://n1:1", "http://n2:1")
    with pytest.raises(InvalidRequest, match="no other member has an https URL"):
        await members.add(4, "https://n4:1")
    assert members.changes == []
