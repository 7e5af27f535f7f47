"""Commands that ask all nodes: each that is there is asked once, at whichever of its addresses."""

from collections.abc import Callable
from typing import Any

import pytest

from keelmq import Connection
from keelmq.admin.cluster import ClusterStatus, LogReaderStatus
from keelmq.cli.operations.cluster import Answer, _print_log_readers, _show, ask_all
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport, json_answer, problem

NODES = {1: "http://n1:1", 2: "http://n2:1", 3: "http://n3:1"}
NODE_OF = {"n1": 1, "n2": 2, "n3": 3, "admin1": 1, "admin2": 2}


def view(node_id: int, **changes: Any) -> HttpResponse:
    status: dict[str, Any] = {
        "cluster_id": "c",
        "node_id": node_id,
        "role": "leader" if node_id == 1 else "follower",
        "term": 1,
        "leader_id": 1,
        "leader_url": NODES[1],
        "commit_index": 100,
        "applied_index": 100,
        "durable_index": 100,
        "nodes": [{"node_id": each, "url": url} for each, url in NODES.items()],
    }
    return json_answer({**status, **changes})


async def answers_of(
    monkeypatch: pytest.MonkeyPatch, servers: str, answer: Callable[[str], HttpResponse]
) -> tuple[list[str], list[Answer]]:
    """Ask all nodes, each of which answers by its host. Return the hosts that were asked, and the answers."""

    def script(request: Request) -> HttpResponse:
        return answer(request.node)

    transport = ScriptedTransport(script, answers_cluster=True)
    monkeypatch.setattr(
        "keelmq.cli.operations.cluster.connection_to",
        lambda servers, timeout_ms, *, node: Connection([node], transport=transport),
    )
    answers = await ask_all(servers)
    return sorted(request.node for request in transport.requests), answers


async def asked(
    monkeypatch: pytest.MonkeyPatch, servers: str, silent: tuple[str, ...] = ()
) -> tuple[list[str], list[tuple[int | None, str]]]:
    """Ask all nodes. Return the hosts that were asked, and the nodes that are shown, by id and URL."""

    def answer(host: str) -> HttpResponse:
        return problem(403, "forbidden") if host in silent else view(NODE_OF[host])

    hosts, answers = await answers_of(monkeypatch, servers, answer)
    shown = [(None if each.status is None else each.status.node_id, each.url) for each in answers]
    return hosts, shown


async def test_a_node_that_has_answered_is_not_asked_at_its_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners for administration are named by the user, and the others by the nodes."""
    hosts, shown = await asked(monkeypatch, "http://admin1:1,http://admin2:1")
    assert hosts == ["admin1", "admin2", "n3"]
    assert shown == [(1, "http://admin1:1"), (2, "http://admin2:1"), (3, "http://n3:1")]


async def test_a_node_that_has_not_answered_is_asked_at_its_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, shown = await asked(monkeypatch, "http://admin1:1,http://admin2:1", silent=("admin2",))
    assert hosts == ["admin1", "admin2", "n2", "n3"]
    assert shown == [(1, "http://admin1:1"), (2, "http://n2:1"), (3, "http://n3:1"), (None, "http://admin2:1")]


async def test_a_server_that_the_user_named_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, shown = await asked(monkeypatch, ",".join(NODES.values()), silent=("n2",))
    assert hosts == ["n1", "n2", "n3"]
    assert shown == [(1, NODES[1]), (3, NODES[3]), (None, NODES[2])]


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({1: "http://n1:7", 3: "http://n3:7"}, "administration at http://n1:7 (node 1), http://n3:7 (node 3); node 2"),
        ({1: "http://n1:7", 2: "http://n2:7", 3: "http://n3:7"}, "administration at http://n1:7 (node 1), http://n2:7"),
        ({}, None),
    ],
)
async def test_the_status_says_which_nodes_have_a_listener_for_administration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own: dict[int, str], line: str | None
) -> None:
    def answer(host: str) -> HttpResponse:
        node_id = NODE_OF[host]
        # A node of an earlier version has no such field.
        return view(node_id, admin_url=own[node_id]) if node_id in own else view(node_id)

    _, answers = await answers_of(monkeypatch, NODES[1], answer)
    assert _show(answers, as_json=False)
    found = [each for each in capsys.readouterr().out.splitlines() if each.startswith("administration at")]
    assert len(found) == (line is not None)
    if line is not None:
        assert found[0].startswith(line)
        assert found[0].endswith(" has none") == (len(own) < 3)


def test_a_reader_of_the_log_is_shown_where_it_was_last(capsys: pytest.CaptureFixture[str]) -> None:
    def status(node_id: int, *readers: LogReaderStatus) -> ClusterStatus:
        return ClusterStatus(
            cluster_id="c",
            node_id=node_id,
            role="follower",
            term=1,
            commit_index=9,
            applied_index=9,
            durable_index=9,
            nodes=(),
            log_readers=readers,
        )

    late = LogReaderStatus(reader="spark:events", address="10.0.0.9", next_index=2, lag=8, silent_ms=90_000)
    later = LogReaderStatus(reader="spark:events", address="10.0.0.9", next_index=9, lag=1, silent_ms=1_000)
    other = LogReaderStatus(reader="keelmq-lineage", address="10.0.0.9", next_index=4, lag=6)
    _print_log_readers([status(1, late, other), status(2, later)])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if "10.0.0.9" in line]
    assert [(row[0], row[3:6]) for row in rows] == [
        ("keelmq-lineage", ["1", "4", "6"]),
        ("spark:events", ["2", "9", "1"]),
    ], lines
    _print_log_readers([status(1)])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ({"commit": "0123456789ab"}, "0.3.0 0123456789ab (1-2)"),
        ({"commit": None}, "0.3.0 (1-2)"),
        ({}, "0.3.0 (1-2)"),  # a node of an earlier version
    ],
)
async def test_the_status_names_the_commit_of_a_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own: dict[str, Any], shown: str
) -> None:
    nodes = [{"node_id": 1, "url": NODES[1], "feature_level_min": 1, "feature_level_max": 2}]
    _, answers = await answers_of(monkeypatch, NODES[1], lambda _: view(1, version="0.3.0", nodes=nodes, **own))
    assert _show(answers, as_json=False)
    assert shown in capsys.readouterr().out
