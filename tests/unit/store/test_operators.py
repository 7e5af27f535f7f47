"""Operators resume transactions, force decisions, and refuse new transactions. Every action leaves a record."""

import msgspec
import pytest

from cluster.messages.blocks import BlockMessage, read_block
from store.commands.cluster import PutSettings, Settings, SettingsPut
from store.commands.entry import Command
from store.commands.messages import Position
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import (
    Decide,
    Decided,
    Decision,
    Discard,
    Discarded,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
)
from store.commands.views import TimelineEvent, TransactionView
from store.errors import Refused
from store.index import keys
from store.limits import CHECK_AFTER_MAX_MS, OPERATOR_BYTES_MAX, REASON_BYTES_MAX, TIMELINE_EVENTS_MAX
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tests.unit.store.replica import Replica, header, prepare, produce

INTERVAL_MS = 30_000


@pytest.fixture(autouse=True)
def topics(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2), PutTopic("points", 1))


def resume(operator: str = "ann", reason: str = "shop is back") -> ResumeTransaction:
    return ResumeTransaction("tx", operator, reason, INTERVAL_MS)


def force(decision: Decision, operator: str = "ann", reason: str = "by phone") -> Decide:
    return Decide("tx", decision, "operator", force=True, operator=operator, reason=reason)


def view(replica: Replica) -> TransactionView:
    found = replica.machine.transaction("tx")
    assert found is not None
    return found


def discarded(replica: Replica) -> None:
    """Discard a transaction with explicit ids that was asked about once."""
    replica.do(prepare("tx", header(batch_id="h1", count=2, message_ids=["a", None]), client_id="c1"))
    replica.now_ms = 2_000
    replica.do(RecordChecks(("tx",), "c1", "poll", INTERVAL_MS))
    replica.now_ms = 3_000
    replica.do(Discard(("tx",)))
    replica.now_ms = 4_000


def test_undecided_transactions_are_counted_through_everything_and_a_restart(replica: Replica) -> None:
    for name in ("a", "b", "c", "d"):
        replica.do(prepare(name, header(batch_id=name)))
        replica.do(prepare(name, header(batch_id=name)))  # told again
    assert replica.machine.transactions_undecided == 4
    replica.do(Decide("a", "commit", "producer"), Decide("a", "commit", "producer"), Discard(("b",)))
    assert replica.machine.transactions_undecided == 2
    replica.reopen()
    assert replica.machine.transactions_undecided == 2
    replica.do(ResumeTransaction("b", "ann", "shop is back", INTERVAL_MS))
    replica.do(Decide("c", "rollback", "producer"))
    assert replica.machine.transactions_undecided == 2
    replica.do(Discard(("b",)), Decide("b", "commit", "operator", force=True, operator="ann", reason="by phone"))
    replica.do(Decide("d", "commit", "producer"))
    assert replica.machine.transactions_undecided == 0


def events(replica: Replica) -> list[str]:
    return [event.event for event in replica.machine.timeline("tx")]


def op_messages(replica: Replica) -> list[BlockMessage]:
    rows = replica.machine.rows(OP_HALF_TOPIC, 0, 0, 100, 1 << 20)
    assert [row.base_offset for row in rows] == list(range(len(rows)))
    assert all(row.inline is not None and row.block_length == len(row.inline) for row in rows)
    return [message for row in rows for message in read_block(row.inline or b"", None)]


def test_a_resumed_transaction_is_prepared_and_its_checks_begin_anew(replica: Replica) -> None:
    discarded(replica)
    assert replica.one(resume()) == Resumed("tx", "prepared", 4_000 + INTERVAL_MS)
    replica.reopen()
    found = view(replica)
    assert (found.state, found.check_times, found.decided_at_ms) == ("prepared", 0, None)
    assert replica.machine.due_checks(3_999 + INTERVAL_MS, 10) == []
    (check,) = replica.machine.due_checks(4_000 + INTERVAL_MS, 10)
    assert (check.transaction_id, check.check_times) == ("tx", 0)
    assert [each.transaction_id for each in replica.machine.transactions(state="prepared").transactions] == ["tx"]
    assert replica.machine.transactions(state="discarded").transactions == ()


def test_a_resumed_transaction_is_committed_once(replica: Replica) -> None:
    discarded(replica)
    replica.one(resume())
    committed = Decided("tx", "committed", (Position("orders", 0, 0, 2),))
    assert replica.one(Decide("tx", "commit", "check", "c1")) == committed
    assert replica.one(Decide("tx", "commit", "check", "c1")) == committed
    assert replica.refusal(Decide("tx", "rollback")).code == "transaction_conflict"
    assert replica.machine.max_offset("orders", 0) == 2
    assert events(replica) == ["prepared", "check", "discarded", "resumed", "answer", "committed"]


def test_the_timeline_keeps_who_resumed_and_why(replica: Replica) -> None:
    discarded(replica)
    replica.one(resume("ann", "shop is back"))
    replica.now_ms = 5_000
    replica.one(Discard(("tx",)))
    replica.now_ms = 6_000
    replica.one(force("rollback", "bob", "paid in cash"))
    replica.reopen()
    index = replica.machine.applied_index
    assert replica.machine.timeline("tx")[2:] == [
        TimelineEvent(3_000, "discarded", index - 3),
        TimelineEvent(4_000, "resumed", index - 2, source="operator", operator="ann", reason="shop is back"),
        TimelineEvent(5_000, "discarded", index - 1),
        TimelineEvent(
            6_000, "rolled_back", index, "", source="operator", operator="bob", reason="paid in cash", forced=True
        ),
    ]


def test_an_audit_record_is_kept_however_long_the_timeline_is(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    for _ in range(TIMELINE_EVENTS_MAX + 5):
        replica.one(Decide("tx", "unknown"))
    replica.do(Discard(("tx",)), resume())
    assert events(replica)[-2:] == ["discarded", "resumed"]


def test_resuming_again_is_answered_alike_until_it_is_decided(replica: Replica) -> None:
    discarded(replica)
    first = replica.one(resume())
    replica.now_ms = 9_000
    assert replica.one(resume()) == first
    assert events(replica).count("resumed") == 1
    assert replica.refusal(resume("bob")).code == "transaction_conflict"
    replica.one(Decide("tx", "commit"))
    assert replica.refusal(resume()).extra["state"] == "committed"


def test_only_a_discarded_transaction_is_resumed(replica: Replica) -> None:
    assert replica.refusal(resume()).code == "transaction_not_found"
    replica.one(prepare("tx", header()))
    refused = replica.refusal(resume())
    assert (refused.code, refused.extra["state"]) == ("transaction_conflict", "prepared")


@pytest.mark.parametrize(("decision", "messages"), [("commit", 2), ("rollback", 0)])
@pytest.mark.parametrize("is_discarded", [True, False])
def test_an_operator_forces_a_decision(replica: Replica, decision: Decision, messages: int, is_discarded: bool) -> None:
    if is_discarded:
        discarded(replica)
    else:
        replica.one(prepare("tx", header(batch_id="h1", count=2, message_ids=["a", None])))
    result = replica.one(force(decision))
    assert isinstance(result, Decided)
    assert replica.one(force(decision)) == result
    assert replica.machine.max_offset("orders", 0) == messages
    decided = replica.machine.timeline("tx")[-1]
    assert (decided.source, decided.operator, decided.reason, decided.forced) == ("operator", "ann", "by phone", True)
    assert ("discarded" in events(replica)) is is_discarded
    assert replica.machine.due_checks(10**12, 10) == []
    assert not [key for key in replica.dump() if key[:1] == b"y"], "explicit ids of a decided half are forgotten"
    # What was given up stays listed as such: it is history.
    assert len(replica.machine.rows(DISCARDED_TOPIC, 0, 0, 10, 1_000)) == is_discarded


@pytest.mark.parametrize(("first", "second"), [("commit", "rollback"), ("rollback", "commit")])
def test_nobody_forces_what_was_decided_otherwise(replica: Replica, first: Decision, second: Decision) -> None:
    replica.do(prepare("tx", header()), Decide("tx", first))
    assert replica.refusal(force(second)).code == "transaction_conflict"


@pytest.mark.parametrize("source", ["producer", "check", "operator"])
@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_without_force_a_discarded_transaction_stays_discarded(
    replica: Replica, source: str, decision: Decision
) -> None:
    discarded(replica)
    refused = replica.refusal(Decide("tx", decision, source))  # type: ignore[arg-type]
    assert (refused.code, refused.extra["state"]) == ("transaction_conflict", "discarded")


def test_a_forced_commit_keeps_to_the_dedupe_rules(replica: Replica) -> None:
    discarded(replica)
    replica.one(produce(header(batch_id="b1", message_ids=["a"])))
    assert replica.one(force("commit")) == Decided("tx", "committed", (Position("orders", 0, 1, 1),))
    (row,) = replica.machine.rows("orders", 0, 1, 10, 1_000)
    assert row.skip == (0,)


def test_a_forced_commit_to_a_deleted_topic_changes_nothing(replica: Replica) -> None:
    replica.do(prepare("tx", header(queue=1)), Discard(("tx",)), PutTopic("orders", 2))
    replica.one(DeleteTopic("orders"))
    assert replica.refusal(force("commit")).code == "topic_not_found"
    assert view(replica).state == "discarded"


def test_forcing_and_resuming_need_a_name_and_a_reason_of_limited_size(replica: Replica) -> None:
    discarded(replica)
    wrong: list[Command] = [
        force("commit", operator=""),
        force("commit", reason=""),
        force("commit", operator="é" * (OPERATOR_BYTES_MAX // 2 + 1)),
        force("commit", reason="é" * (REASON_BYTES_MAX // 2 + 1)),
        force("unknown"),
        resume(operator=""),
        resume(reason=""),
        resume(reason="x" * (REASON_BYTES_MAX + 1)),
        ResumeTransaction("tx", "ann", "why", CHECK_AFTER_MAX_MS + 1),
        Decide("tx", "commit", "producer", force=True, operator="ann", reason="why"),
        Decide("tx", "commit", "check", operator="ann"),
        Decide("tx", "commit", "operator", reason="x" * (REASON_BYTES_MAX + 1)),
    ]
    for command in wrong:
        assert replica.refusal(command).code == "invalid_request", command
    longest = force("commit", operator="x" * OPERATOR_BYTES_MAX, reason="x" * REASON_BYTES_MAX)
    assert not isinstance(replica.one(longest), Refused)


def test_new_transactions_are_refused_while_they_are_switched_off(replica: Replica) -> None:
    replica.do(prepare("tx", header(batch_id="h1")), prepare("other", header(batch_id="h2")))
    assert replica.machine.settings == Settings(reject_transactions=False)
    assert replica.one(PutSettings(reject_transactions=True)) == SettingsPut(Settings(True))
    replica.reopen()
    assert replica.machine.settings.reject_transactions
    assert replica.refusal(prepare("new", header(batch_id="h3"))).code == "transactions_rejected"
    # What is prepared goes on: a repeated prepare is answered, checks are counted, decisions carried out.
    assert replica.one(prepare("tx", header(batch_id="h1"))) == Prepared("tx", "prepared", True, 1_000)
    replica.one(RecordChecks(("tx",), "c1", "poll", INTERVAL_MS))
    assert view(replica).check_times == 1
    assert replica.one(Decide("other", "rollback")) == Decided("other", "rolled_back")
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", (Position("orders", 0, 0, 1),))
    assert not isinstance(replica.one(produce(header(batch_id="b1"))), Refused)
    assert replica.one(PutSettings()) == SettingsPut(Settings(True)), "what is not given stays"
    replica.one(PutSettings(reject_transactions=False))
    assert not isinstance(replica.one(prepare("new", header(batch_id="h3"))), Refused)


def test_the_op_topic_has_one_message_per_decision(replica: Replica) -> None:
    discarded(replica)
    replica.do(resume(), force("commit"), force("commit"))
    replica.do(prepare("ty", header(batch_id="h2")), Decide("ty", "rollback", "check", "c1"))
    assert [(message.body, message.tag, message.keys) for message in op_messages(replica)] == [
        (b"discarded", "d", ("tx",)),
        (b"committed", "d", ("tx",)),
        (b"rolled_back", "d", ("ty",)),
    ]
    by_hand = op_messages(replica)[1]
    assert (by_hand.properties["OPERATOR"], by_hand.properties["REASON"], by_hand.born_at_ms) == (
        "ann",
        "by phone",
        4_000,
    )
    assert op_messages(replica)[2].properties == {
        "TRANSACTION_ID": "ty",
        "STATE": "rolled_back",
        "PGROUP": "pg",
        "SOURCE": "check",
    }
    replica.reopen()
    assert len(op_messages(replica)) == replica.machine.max_offset(OP_HALF_TOPIC, 0) == 3
    assert replica.machine.offset_at(OP_HALF_TOPIC, 0, 3_001) == (1, 4_000)


def test_resuming_writes_no_second_half_row_and_a_second_discard_is_listed(replica: Replica) -> None:
    discarded(replica)
    replica.do(resume(), Discard(("tx",)))
    assert len(replica.machine.rows(HALF_TOPIC, 0, 0, 10, 1_000)) == 1
    assert len(replica.machine.rows(DISCARDED_TOPIC, 0, 0, 10, 1_000)) == 2


def test_a_record_without_the_fields_of_operators_is_read(replica: Replica) -> None:
    """The index of an older node holds such records."""
    discarded(replica)
    key = keys.transaction("tx")
    stored = msgspec.msgpack.decode(replica.index.get(key) or b"")
    assert stored[-3:] == [False, None, None]
    replica.index.put(key, msgspec.msgpack.encode(stored[:-3]))
    replica.index.commit()
    assert not isinstance(replica.one(resume()), Refused)
    assert events(replica) == ["prepared", "check", "discarded", "resumed"]


def test_a_discard_that_was_under_way_leaves_alone_what_was_resumed(replica: Replica) -> None:
    """The discard was proposed when all checks were unanswered. The checks of the resumed transaction begin anew."""
    replica.do(prepare("tx", header()), prepare("other", header(batch_id="b2")))
    checks = RecordChecks(("tx", "other"), "c", "poll", 50)
    replica.do(checks, checks, Discard(("tx",), (2,)), resume())
    assert replica.one(Discard(("tx", "other"), (2, 2))) == Discarded(("other",))
    assert view(replica).state == "prepared"
