"""Transactions are prepared, and then decided once."""

from pathlib import Path

import pytest

from store.commands.entry import Command, Proposal
from store.commands.messages import Position
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import (
    ChecksRecorded,
    Decide,
    Decided,
    Discard,
    Discarded,
    Prepared,
    RecordChecks,
    ResumeTransaction,
)
from store.commands.views import TimelineEvent, TransactionView
from store.errors import Refused
from store.index import keys
from store.limits import CHECK_AFTER_MAX_MS, CHECK_IMMUNITY_MS, TIMELINE_EVENTS_MAX
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from store.transactions import table
from tests.unit.store.replica import Replica, header, prepare, produce


@pytest.fixture(autouse=True)
def topics(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2), PutTopic("points", 1))


def view(replica: Replica, transaction_id: str = "tx") -> TransactionView:
    found = replica.machine.transaction(transaction_id)
    assert found is not None
    return found


def ids(replica: Replica, **query: object) -> list[str]:
    return [found.transaction_id for found in replica.machine.transactions(**query).transactions]  # type: ignore[arg-type]


def test_a_half_message_is_in_no_queue_until_it_is_committed(replica: Replica) -> None:
    proposal = prepare("tx", header(batch_id="h1", count=2), header("points", batch_id="h2"))
    assert replica.one(proposal) == Prepared("tx", "prepared", False, 1_000)
    prepared = replica.log.entries[-1]
    assert replica.machine.max_offset("orders", 0) == 0
    replica.one(produce(header(batch_id="b1")))
    replica.now_ms = 9_000
    positions = (Position("orders", 0, 1, 2), Position("points", 0, 0, 1))
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", positions)
    row = replica.machine.rows("orders", 0, 1, 10, 1_000)[0]
    # The row points at the half message itself; it is stored, for the queue, when it became visible.
    assert row.position == prepared.position
    assert prepared.payload[row.block_offset : row.block_offset + row.block_length] == proposal.blocks[0]
    assert (row.stored_at_ms, row.transaction_id, row.count) == (9_000, "tx", 2)
    assert row.raft_index == prepared.index + 2


def test_a_rolled_back_transaction_leaves_the_queues_alone(replica: Replica) -> None:
    replica.one(prepare("tx", header(message_ids=["a"])))
    assert replica.one(Decide("tx", "rollback")) == Decided("tx", "rolled_back")
    assert replica.machine.max_offset("orders", 0) == 0
    assert replica.one(Decide("tx", "rollback")) == Decided("tx", "rolled_back")
    assert not [key for key in replica.dump() if key[:1] == b"y"]


def test_preparing_again_answers_with_the_recorded_state(replica: Replica) -> None:
    replica.one(prepare("tx", header(batch_id="h1")))
    replica.now_ms = 2_000
    # A retry may come with another queue and another generated batch id.
    assert replica.one(prepare("tx", header(queue=1, batch_id="h9"))) == Prepared("tx", "prepared", True, 1_000)
    replica.one(Decide("tx", "commit"))
    assert replica.one(prepare("tx", header(batch_id="h1"))) == Prepared("tx", "committed", True, 1_000)
    assert replica.machine.max_offset("orders", 0) == 1


@pytest.mark.parametrize(
    "other",
    [
        prepare("tx", header(content=1)),
        prepare("tx", header(count=2)),
        prepare("tx", header("points")),
        prepare("tx", header(), header(batch_id="h2")),
        prepare("tx", header(), producer_group="other"),
    ],
)
def test_preparing_other_content_under_the_same_id_is_refused(replica: Replica, other: object) -> None:
    replica.one(prepare("tx", header()))
    assert replica.refusal(other).code == "idempotency_conflict"  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "second"), [("commit", "rollback"), ("rollback", "commit")])
def test_the_first_decision_wins(replica: Replica, first: str, second: str) -> None:
    replica.one(prepare("tx", header()))
    replica.now_ms = 5_000
    decided = replica.one(Decide("tx", first))  # type: ignore[arg-type]
    assert isinstance(decided, Decided)
    replica.now_ms = 6_000
    refused = replica.refusal(Decide("tx", second))  # type: ignore[arg-type]
    assert refused.code == "transaction_conflict"
    assert refused.extra == {"transaction_id": "tx", "state": decided.state, "decided_at_ms": 5_000}
    assert replica.one(Decide("tx", first)) == decided  # type: ignore[arg-type]


def test_decisions_after_a_discard_are_refused(replica: Replica) -> None:
    replica.do(prepare("tx", header()), Discard(("tx",)))
    for decision in ("commit", "rollback"):
        refused = replica.refusal(Decide("tx", decision))
        assert (refused.code, refused.extra["state"]) == ("transaction_conflict", "discarded")


def test_a_decision_on_nothing_is_refused(replica: Replica) -> None:
    for decision in ("commit", "rollback", "unknown"):
        assert replica.refusal(Decide("tx", decision)).code == "transaction_not_found"


def test_only_its_own_producer_group_decides(replica: Replica) -> None:
    replica.one(prepare("tx", header(), producer_group="pg"))
    refused = replica.refusal(Decide("tx", "commit", producer_group="other"))
    assert (refused.code, refused.extra) == ("producer_group_mismatch", {"producer_group": "pg"})
    assert not isinstance(replica.one(Decide("tx", "commit", producer_group="pg")), Refused)


def test_unknown_is_noted_and_decides_nothing(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    due_at_ms = view(replica).next_check_at_ms
    assert replica.one(Decide("tx", "unknown", "check", "c2")) == Decided("tx", "prepared")
    assert view(replica).next_check_at_ms == due_at_ms
    answer = replica.machine.timeline("tx")[-1]
    assert (answer.event, answer.answer, answer.source, answer.client_id) == ("answer", "unknown", "check", "c2")
    # After the decision the timeline is closed.
    replica.one(Decide("tx", "rollback"))
    closed = replica.machine.timeline("tx")
    assert replica.one(Decide("tx", "unknown")) == Decided("tx", "rolled_back")
    assert replica.machine.timeline("tx") == closed


def test_unknown_answers_are_kept_up_to_a_limit(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    for _ in range(TIMELINE_EVENTS_MAX + 5):
        replica.one(Decide("tx", "unknown"))
    assert len(replica.machine.timeline("tx")) == 1 + TIMELINE_EVENTS_MAX
    assert replica.one(Decide("tx", "rollback")) == Decided("tx", "rolled_back")


def test_the_timeline_tells_everything_in_order(replica: Replica) -> None:
    replica.one(prepare("tx", header(), client_id="c1"))
    replica.now_ms = 7_000
    replica.one(RecordChecks(("tx",), "c2", "webhook", 30_000))
    replica.now_ms = 8_000
    replica.one(Decide("tx", "unknown", "check", "c2"))
    replica.now_ms = 9_000
    replica.one(Decide("tx", "commit", "check", "c3"))
    replica.reopen()
    assert replica.machine.timeline("tx") == [
        TimelineEvent(1_000, "prepared", 3, "c1"),
        TimelineEvent(7_000, "check", 4, "c2", via="webhook"),
        TimelineEvent(8_000, "answer", 5, "c2", answer="unknown", source="check"),
        TimelineEvent(9_000, "answer", 6, "c3", answer="commit", source="check"),
        TimelineEvent(9_000, "committed", 6, "c3", source="check"),
    ]


def test_checks_become_due_after_the_immunity_time(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    replica.one(prepare("soon", header(batch_id="h2"), check_after_ms=0))
    due = replica.machine.due_checks
    assert [check.transaction_id for check in due(1_000, 10)] == ["soon"]
    assert [check.transaction_id for check in due(1_000 + CHECK_IMMUNITY_MS - 1, 10)] == ["soon"]
    later = due(1_000 + CHECK_IMMUNITY_MS, 10)
    assert [check.transaction_id for check in later] == ["soon", "tx"]
    assert (later[1].producer_group, later[1].client_id, later[1].check_times) == ("pg", "c1", 0)
    assert (later[1].prepared_at_ms, later[1].next_check_at_ms) == (1_000, 1_000 + CHECK_IMMUNITY_MS)


def test_due_checks_are_read_in_pages(replica: Replica) -> None:
    for number in range(7):
        replica.now_ms += number % 2
        replica.one(prepare(f"tx{number}", header(batch_id=f"h{number}"), check_after_ms=0))
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while page := replica.machine.due_checks(10_000, 3, after):
        seen += [check.transaction_id for check in page]
        after = (page[-1].next_check_at_ms, page[-1].transaction_id)
    assert seen == [f"tx{number}" for number in range(7)]


def test_a_delivered_check_is_counted_and_put_off(replica: Replica) -> None:
    replica.do(prepare("tx", header()), prepare("done", header(batch_id="h2")), Decide("done", "commit"))
    replica.now_ms = 10_000
    command = RecordChecks(("tx", "done", "none", "tx"), "c1", "poll", 30_000)
    assert replica.one(command) == ChecksRecorded(("tx",))
    assert (view(replica).check_times, view(replica).next_check_at_ms) == (1, 40_000)
    assert replica.machine.due_checks(39_999, 10) == []
    replica.reopen()
    assert [(check.transaction_id, check.check_times) for check in replica.machine.due_checks(40_000, 10)] == [
        ("tx", 1)
    ]


def test_decided_transactions_are_never_due(replica: Replica) -> None:
    commands: list[Command] = [Decide("tx0", "commit"), Decide("tx1", "rollback"), Discard(("tx2",))]
    for number, command in enumerate(commands):
        replica.do(prepare(f"tx{number}", header(batch_id=f"h{number}")), command)
    assert replica.machine.due_checks(10**12, 10) == []
    assert all(view(replica, f"tx{number}").next_check_at_ms is None for number in range(3))


@pytest.mark.parametrize("duration_ms", [-1, CHECK_AFTER_MAX_MS + 1])
def test_times_to_the_next_check_have_limits(replica: Replica, duration_ms: int) -> None:
    assert replica.refusal(prepare("tx", header(), check_after_ms=duration_ms)).code == "invalid_request"
    assert replica.refusal(RecordChecks((), "c", "poll", duration_ms)).code == "invalid_request"
    assert not isinstance(replica.one(prepare("tx", header(), check_after_ms=CHECK_AFTER_MAX_MS)), Refused)


def test_discarding_lists_what_was_still_prepared(replica: Replica) -> None:
    replica.do(prepare("tx", header(count=2)), prepare("done", header(batch_id="h2")), Decide("done", "commit"))
    assert replica.one(Discard(("done", "tx", "none", "tx"))) == Discarded(("tx",))
    assert view(replica).state == "discarded"
    assert view(replica).decided_at_ms == 1_000
    assert replica.machine.timeline("tx")[-1].event == "discarded"
    rows = replica.machine.rows(DISCARDED_TOPIC, 0, 0, 10, 1_000)
    assert [(row.transaction_id, row.count) for row in rows] == [("tx", 2)]


def test_the_half_topic_shows_every_half_message(replica: Replica) -> None:
    replica.one(prepare("tx", header(batch_id="h1", count=2), header("points", batch_id="h2")))
    rows = replica.machine.rows(HALF_TOPIC, 0, 0, 10, 1_000)
    assert [(row.base_offset, row.batch_id, row.transaction_id) for row in rows] == [(0, "h1", "tx"), (2, "h2", "tx")]
    assert rows[0].position == replica.log.entries[-1].position
    assert replica.machine.rows(OP_HALF_TOPIC, 0, 0, 10, 1_000) == []


def test_a_commit_to_a_deleted_topic_is_refused_until_the_topic_is_back(replica: Replica) -> None:
    replica.one(prepare("tx", header(batch_id="h1"), header("points", batch_id="h2")))
    replica.one(DeleteTopic("points"))
    refused = replica.refusal(Decide("tx", "commit"))
    assert (refused.code, refused.extra["topic"]) == ("topic_not_found", "points")
    assert view(replica).state == "prepared"
    replica.one(PutTopic("points", 1))
    committed = replica.one(Decide("tx", "commit"))
    assert isinstance(committed, Decided)
    assert committed.positions == (Position("orders", 0, 0, 1), Position("points", 0, 0, 1))


def test_a_commit_to_a_queue_that_is_gone_is_refused(replica: Replica) -> None:
    replica.do(prepare("tx", header(queue=1)), DeleteTopic("orders"), PutTopic("orders", 1))
    assert replica.refusal(Decide("tx", "commit")).code == "queue_not_found"


def test_a_commit_does_not_mind_a_changed_topic_type(replica: Replica) -> None:
    replica.do(prepare("tx", header()), PutTopic("orders", type="normal"))
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", (Position("orders", 0, 0, 1),))


def test_a_view_says_where_the_messages_are(replica: Replica) -> None:
    proposal = prepare("tx", header(batch_id="h1", count=2, content=7), client_id="c9")
    replica.one(proposal)
    entry = replica.log.entries[-1]
    (batch,) = view(replica).batches
    assert (batch.topic, batch.count, batch.batch_id, batch.crc32c) == ("orders", 2, "h1", 7)
    assert batch.position == entry.position
    assert entry.payload[batch.block_offset : batch.block_offset + batch.block_length] == proposal.blocks[0]
    assert (view(replica).client_id, view(replica).producer_group) == ("c9", "pg")
    assert (view(replica).prepared_at_ms, view(replica).prepared_index) == (1_000, entry.index)
    assert replica.machine.transaction("none") is None


def test_transactions_are_listed_by_state_and_age(replica: Replica) -> None:
    for number in range(6):
        replica.now_ms = 1_000 + number * 100
        replica.one(prepare(f"tx{number}", header(batch_id=f"h{number}")))
    replica.do(Decide("tx1", "commit"), Decide("tx2", "rollback"), Discard(("tx4",)))
    assert ids(replica, state="prepared") == ["tx0", "tx3", "tx5"]
    assert ids(replica, state="committed") == ["tx1"]
    assert ids(replica, state="rolled_back") == ["tx2"]
    assert ids(replica, state="discarded") == ["tx4"]
    assert ids(replica) == [f"tx{number}" for number in range(6)]
    assert ids(replica, prepared_before_ms=1_200) == ["tx0", "tx1"]
    assert ids(replica, state="prepared", prepared_before_ms=1_301) == ["tx0", "tx3"]


@pytest.mark.parametrize("state", [None, "prepared"])
def test_a_listing_continues_where_it_stopped(replica: Replica, state: str | None) -> None:
    for number in range(7):
        replica.now_ms += number % 2
        replica.one(prepare(f"tx-{number}", header(batch_id=f"h{number}")))
    seen: list[str] = []
    after: str | None = None
    while True:
        page = replica.machine.transactions(state=state, limit=2, after=after)  # type: ignore[arg-type]
        seen += [found.transaction_id for found in page.transactions]
        after = page.next
        if after is None:
            break
    assert seen == [f"tx-{number}" for number in range(7)]


@pytest.mark.parametrize("after", ["", "x", "-tx", "12-", "١-tx", "9" * 20 + "-tx"])
def test_a_cursor_that_is_none_is_refused(replica: Replica, after: str) -> None:
    with pytest.raises(Refused, match="invalid_request"):
        replica.machine.transactions(after=after)


def without_outcomes(replica: Replica) -> list[bytes]:
    return [key for key in replica.dump() if key[:1] != keys.OUTCOME]


def test_checks_append_no_half_message_again(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    ends = replica.machine.max_offset(HALF_TOPIC, 0), replica.machine.max_offset(OP_HALF_TOPIC, 0)
    keys_before = len(without_outcomes(replica))
    for _ in range(TIMELINE_EVENTS_MAX + 50):
        replica.now_ms += 30_000
        assert replica.one(RecordChecks(("tx",), "c1", "poll", 30_000)) == ChecksRecorded(("tx",))
    assert (replica.machine.max_offset(HALF_TOPIC, 0), replica.machine.max_offset(OP_HALF_TOPIC, 0)) == ends
    assert len(without_outcomes(replica)) == keys_before + TIMELINE_EVENTS_MAX


def test_a_transaction_that_cannot_be_committed_holds_up_no_other(replica: Replica) -> None:
    for number, topic in enumerate(("points", "orders", "orders")):
        replica.one(prepare(f"tx{number}", header(topic, batch_id=f"h{number}"), check_after_ms=0))
    replica.one(DeleteTopic("points"))
    assert replica.refusal(Decide("tx0", "commit")).code == "topic_not_found"
    assert replica.one(Decide("tx1", "commit")) == Decided("tx1", "committed", (Position("orders", 0, 0, 1),))
    assert [check.transaction_id for check in replica.machine.due_checks(replica.now_ms, 10)] == ["tx0", "tx2"]
    assert replica.one(Discard(("tx0", "tx2"))) == Discarded(("tx0", "tx2"))


@pytest.mark.parametrize("kept", [1, 2, 100])
def test_what_is_kept_in_memory_is_what_the_index_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Each step leaves the same views and rows as where nothing is kept."""
    large = [header(batch_id=f"h{number}") for number in range(40)]  # is not kept
    steps: list[Command | Proposal] = [
        prepare("a", header(batch_id="a")),
        prepare("b", *large),
        prepare("c", header(batch_id="c")),
        *(Decide(each, "unknown") for each in "cab"),
        RecordChecks(("c", "a"), "client", "poll", 1_000),
        Discard(("a",)),
        prepare("d", header(batch_id="d")),
        ResumeTransaction("a", "ann", "why", 30_000),
        Decide("a", "unknown"),
        *(Decide(each, "rollback") for each in "ca"),
        Decide("b", "commit"),
        Decide("d", "commit"),
    ]

    def seen(name: str, values: int, value_bytes: int) -> list[object]:
        monkeypatch.setattr(table, "VALUES_KEPT", values)
        monkeypatch.setattr(table, "VALUE_BYTES_KEPT", value_bytes)
        machine = Replica(tmp_path / name)
        machine.do(PutTopic("orders", 2))
        found: list[object] = []
        for step in steps:
            assert not isinstance(machine.one(step), Refused)
            found.append([machine.machine.transaction(each) for each in "abcd"])
            found.append(machine.dump())
        machine.close()
        return found

    assert seen("kept", kept, table.VALUE_BYTES_KEPT) == seen("not", kept, 0)
