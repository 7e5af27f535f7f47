"""`keelmq audit list`: the audits of all nodes in one list, pages that are read on, and what --follow prints."""

import json
from typing import Any

import pytest
import typer

from keelmq.admin import AuditFilter, AuditPage, AuditRecord
from keelmq.admin.view import view_of
from keelmq.cli.operations import audit
from keelmq.cli.operations.audit import Follower, Part, merged, outcome_of, read, remarks
from keelmq.cli.operations.each_node import OfNode
from keelmq.cli.times import parse_past
from keelmq.limits import AUDIT_RECORDS_MAX


def document(at_ms: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"calls-1.{at_ms}",
        "at_ms": at_ms,
        "principal": "ann",
        "address": "10.0.0.9",
        "method": "PUT",
        "path": "/v1/topics/orders",
        "route": "/v1/topics/{topic}",
        "outcome": "done",
        "code": None,
        "action": None,
        "resource": None,
        "permitted": False,
        "request_id": f"r-{at_ms}",
        "trace_id": None,
        "raft_index": 7,
        "detail": None,
        "missing_before": 0,
        **changes,
    }


def record(at_ms: int, **changes: Any) -> AuditRecord:
    return view_of(AuditRecord, document(at_ms, **changes))


def answer(node_id: int, *records: AuditRecord, auth: str = "enforce", unreadable: int = 0) -> OfNode[Part]:
    return OfNode(node_id, f"http://node{node_id}", Part(auth, list(records), unreadable))


def silent(node_id: int | None) -> OfNode[Part]:
    return OfNode(node_id, "http://node3", None, "no answer")


class Pages:
    """A node with records of the times 1 to `number`, and with empty pages between."""

    def __init__(self, number: int, empty: int = 0) -> None:
        self.left = list(range(number, 0, -1))
        self.empty = empty
        self.limits: list[int] = []
        self.after: list[str | None] = []

    async def audit(self, wanted: AuditFilter, *, limit: int, after: str | None) -> AuditPage:
        self.limits.append(limit)
        self.after.append(after)
        taken: list[int] = []
        if self.empty:
            self.empty -= 1
        else:
            taken, self.left = self.left[:limit], self.left[limit:]
        following = f"{len(self.left)}.0-" if self.left else None
        records = [{**document(at_ms), "newer": "field"} for at_ms in taken]
        page = {"node_id": 1, "auth": "enforce", "records": records, "next": following, "unreadable": 1}
        return view_of(AuditPage, page)


async def test_pages_are_read_on_also_past_empty_ones() -> None:
    pages: Any = Pages(5, empty=2)
    found = await read(pages, AuditFilter(), 100)
    assert [each.at_ms for each in found.records] == [5, 4, 3, 2, 1]
    assert found.unreadable == 3
    assert pages.after == [None, "5.0-", "5.0-"]
    assert found.records[0].document["newer"] == "field", "what the broker sent is kept"


async def test_no_more_is_asked_for_than_is_wanted() -> None:
    pages: Any = Pages(2_000)
    found = await read(pages, AuditFilter(), AUDIT_RECORDS_MAX + 100)
    assert len(found.records) == AUDIT_RECORDS_MAX + 100
    assert pages.limits == [AUDIT_RECORDS_MAX, 100]


def test_the_records_of_all_nodes_are_in_the_order_of_time() -> None:
    found = merged([answer(1, record(5), record(2)), silent(3), answer(2, record(4), record(3), record(1))])
    assert [(each.node_id, each.record.at_ms) for each in found] == [(2, 1), (1, 2), (2, 3), (2, 4), (1, 5)]


def test_records_of_one_time_stay_in_the_order_in_which_they_were_written() -> None:
    later, earlier = record(1, request_id="later"), record(1, request_id="earlier")
    assert [each.record.request_id for each in merged([answer(1, later, earlier)])] == ["earlier", "later"]


def test_what_the_list_lacks_is_said() -> None:
    answers = [answer(1, auth="off"), answer(2, record(9, missing_before=4), unreadable=2), silent(None)]
    assert list(remarks(answers, merged(answers))) == [
        "node 1: authentication is off, so its records name nobody",
        "node 2: 4 records before 1970-01-01 00:00:00.009 could not be kept",
        "node 2: 2 lines or files of its audit cannot be read",
        "http://node3: no answer",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "done"),
        ({"detail": "the join token of node 4"}, "done (the join token of node 4)"),
        ({"outcome": "failed", "code": "topic_not_found"}, "failed: topic_not_found"),
        (
            {"outcome": "denied", "code": "forbidden", "action": "delete", "resource": "topic:a"},
            "denied delete topic:a",
        ),
        ({"outcome": "denied", "code": "unauthenticated"}, "denied: unauthenticated"),
        (
            {"outcome": "denied", "action": "do", "resource": "anything", "permitted": True},
            "denied do anything (and let through: auth is permissive)",
        ),
        ({"outcome": "of-a-newer-broker"}, "of-a-newer-broker"),
    ],
)
def test_outcomes_are_told_in_words(changes: dict[str, Any], text: str) -> None:
    assert outcome_of(record(1, **changes)) == text


class Followed:
    def __init__(self, capsys: pytest.CaptureFixture[str], newest: int = 100) -> None:
        self._capsys = capsys
        self.follower = Follower("http://node1", AuditFilter(principal="ann"), newest, None, as_json=True)

    def take(self, *answers: OfNode[Part]) -> tuple[list[tuple[int, int]], str]:
        """Return node and time of each record that is printed, and what is said."""
        self.follower.take(list(answers))
        said = self._capsys.readouterr()
        printed = [json.loads(line) for line in said.out.splitlines()]
        return [(each["node_id"], each["at_ms"]) for each in printed], said.err


def test_following_prints_each_record_once(capsys: pytest.CaptureFixture[str]) -> None:
    followed = Followed(capsys, newest=2)
    one, two = [record(at_ms) for at_ms in (3, 2, 1)], [record(at_ms) for at_ms in (5, 4)]
    assert followed.take(answer(1, *one), answer(2, *two)) == ([(2, 4), (2, 5)], ""), "the newest two"
    assert followed.take(answer(1, *one), answer(2, *two)) == ([], "")
    assert followed.take(answer(1, record(6), *one), answer(2, *two)) == ([(1, 6)], "")
    assert followed.take(answer(1, record(6)), answer(2, record(7))) == ([(2, 7)], ""), "the rest is out of the time"


def test_following_tells_once_of_a_node_that_is_away_and_misses_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    followed = Followed(capsys)
    base_ms = 1_000_000
    assert followed.take(answer(1, record(base_ms)), answer(3))[0] == [(1, base_ms)]
    assert followed.take(answer(1, record(base_ms + 60_000)), silent(3)) == (
        [(1, base_ms + 60_000)],
        "http://node3: no answer\n",
    )
    assert followed.take(answer(1, record(base_ms + 120_000)), silent(3)) == ([(1, base_ms + 120_000)], "")
    asked: list[int | None] = []

    class Calls:
        async def audit(self, wanted: AuditFilter, **_: Any) -> AuditPage:
            asked.append(wanted.since_ms)
            assert wanted.principal == "ann"
            return view_of(AuditPage, {"node_id": 1, "auth": "enforce", "records": [], "next": None, "unreadable": 0})

    calls: Any = Calls()
    run(followed.follower.look(calls))
    assert asked == [base_ms - audit.FOLLOW_OVERLAP_MS], "since the node that is away was heard last"
    again = answer(1, record(base_ms + 120_000), record(base_ms + 60_000), record(base_ms))
    assert followed.take(again, answer(3, record(base_ms + 70_000))) == (
        [(3, base_ms + 70_000)],
        "http://node3: answers again\n",
    )


def run(work: Any) -> Any:
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    return ended.value.value


def test_following_an_open_cluster_tells_that_nothing_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    followed = Followed(capsys)
    assert "authentication is off" in followed.take(answer(1, auth="off"))[1]
    assert followed.take(answer(1, auth="off"))[1] == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("1h", 6_400_000), ("15m", 9_100_000), ("3d", 0), ("1500", 1_500), ("1970-01-01", 0)]
)
def test_a_past_time_is_how_long_ago_or_a_time(text: str, expected: int) -> None:
    assert parse_past(text, "--since", 10_000_000) == expected


@pytest.mark.parametrize("text", ["", "h", "-1h", "yesterday", "1 week"])
def test_what_is_no_past_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_past(text, "--since", 10_000_000)
