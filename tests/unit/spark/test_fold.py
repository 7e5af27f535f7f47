"""Folding of events into nodes and edges."""

import pyarrow as pa
import pytest

from keelmq_spark.folding.fold_state import FILTERS_MAX
from keelmq_spark.tables import schema
from tests.unit.spark.folded import Folded, content, entries
from tests.unit.spark.history import History, shop


def test_a_message_is_in_its_topic_has_a_sender_and_a_cause() -> None:
    log = History()
    log.publish("orders", "a-0", group="web", key="k", trace_id="f" * 32)
    log.publish("shipments", "s-0", group="shipping", causation_id="orders/a-0")
    folded = Folded(log.table())
    assert folded.of_kind("IN_TOPIC") == {
        ("message:orders/a-0", "topic:orders"),
        ("message:shipments/s-0", "topic:shipments"),
    }
    assert folded.of_kind("PRODUCED") == {
        ("producer_group:web", "message:orders/a-0"),
        ("producer_group:shipping", "message:shipments/s-0"),
    }
    assert folded.of_kind("CAUSED_BY") == {("message:shipments/s-0", "message:orders/a-0")}
    attributes = folded.nodes["message:orders/a-0"]["attrs"]
    assert (attributes["key"], attributes["queue"], attributes["offset"]) == ("k", 0, 0)


def test_the_same_id_in_two_topics_is_two_messages() -> None:
    log = History()
    log.publish("orders", "order-17")
    log.publish("shipments", "order-17", causation_id="orders/order-17")
    assert Folded(log.table()).of_kind("CAUSED_BY") == {("message:shipments/order-17", "message:orders/order-17")}


def test_a_cause_without_a_topic_and_several_causes() -> None:
    log = History()
    log.publish("t", "x", causation_id="a-0")
    log.publish("t", "y", causation_id="t/b-0,u/c-0,t/b-0")
    assert Folded(log.table()).of_kind("CAUSED_BY") == {
        ("message:t/x", "message:?/a-0"),
        ("message:t/y", "message:t/b-0"),
        ("message:t/y", "message:u/c-0"),
    }


@pytest.mark.parametrize(
    ("decision", "of_transaction", "of_message"),
    [
        ("COMMIT", "committed", "published"),
        ("ROLLBACK", "rolled_back", "rolled_back"),
        ("DISCARD", "discarded", "discarded"),
    ],
)
def test_a_transaction_and_its_messages_have_its_outcome(decision: str, of_transaction: str, of_message: str) -> None:
    log = History()
    log.half("t1", "orders", "m-0", "m-1")
    before = Folded(log.table())
    assert (before.state_of("orders/m-0"), before.nodes["transaction:t1"]["state"]) == ("half", "prepared")
    if decision == "COMMIT":
        log.commit("t1", "orders", "m-0", "m-1")
    else:
        log.decide(decision, "t1")
    folded = Folded(log.table())
    assert {folded.state_of("orders/m-0"), folded.state_of("orders/m-1")} == {of_message}
    assert folded.nodes["transaction:t1"]["state"] == of_transaction
    decided = {("message:orders/m-0", "transaction:t1"), ("message:orders/m-1", "transaction:t1")}
    assert folded.of_kind("DECIDED_BY") == (set() if decision == "DISCARD" else decided)


def test_a_discarded_transaction_that_is_resumed_is_open_and_can_be_committed() -> None:
    log = History()
    log.half("t1", "orders", "m-0")
    log.decide("DISCARD", "t1")
    log.decide("RESUME", "t1")
    assert Folded(log.table()).state_of("orders/m-0") == "half"
    log.commit("t1", "orders", "m-0")
    assert Folded(log.table()).state_of("orders/m-0") == "published"


def test_a_range_becomes_an_edge_per_message() -> None:
    log = History()
    log.publish("orders", *(f"m-{n}" for n in range(5)))
    index = log.ack("g", "orders", 1, 4)
    folded = Folded(log.table())
    assert folded.of_kind("CONSUMED_BY") == {(f"message:orders/m-{n}", "consumer_group:g") for n in (1, 2, 3)}
    assert {edge["event_id"] for edge in folded.edges if edge["kind"] == "CONSUMED_BY"} == {f"0:{index}:0"}


def test_a_group_that_is_reset_consumes_what_is_new_to_it_only() -> None:
    log = History()
    log.publish("orders", *(f"m-{n}" for n in range(6)))
    for begin, end in [(0, 2), (3, 5), (1, 4), (0, 6)]:
        log.ack("g", "orders", begin, end)
    consumed = [edge for edge in Folded(log.table()).edges if edge["kind"] == "CONSUMED_BY"]
    assert sorted(edge["src"] for edge in consumed) == [f"message:orders/m-{n}" for n in range(6)]


def consumed_by(log: History, group: str = "g") -> list[str]:
    """Return the messages that the group consumed, one for each edge, with batches of one entry."""
    edges = Folded(*entries(log.table()), through_bytes=True).edges
    dst = f"consumer_group:{group}"
    return sorted(
        edge["src"].partition("/")[2] for edge in edges if (edge["kind"], edge["dst"]) == ("CONSUMED_BY", dst)
    )


def test_a_group_that_selects_messages_consumed_what_it_selected() -> None:
    log = History()
    log.entry(
        *(
            log.published("orders", f"m-{n}", tag="ab"[n % 2], properties=f'{{"price":"{n}"}}', key="k")
            for n in range(6)
        )
    )
    log.publish("orders", "plain")
    log.ack("g", "orders", 0, 3, filter="TAGS IN ('a')")
    log.ack("g", "orders", 3, 7, filter="TAGS IN ('a')")
    log.ack("other", "orders", 0, 7, filter="price > 3 AND KEYS = 'k'")
    log.ack("all", "orders", 0, 7)
    assert consumed_by(log) == ["m-0", "m-2", "m-4"]
    assert consumed_by(log, "other") == ["m-4", "m-5"]
    assert len(consumed_by(log, "all")) == 7


def test_a_group_that_is_reset_with_another_filter_consumes_what_that_selects_besides() -> None:
    log = History()
    log.entry(*(log.published("orders", f"m-{n}", tag="abc"[n % 3]) for n in range(6)))
    log.ack("g", "orders", 0, 4, filter="TAGS IN ('a')")
    log.reset("g", "orders", 4, 0)
    log.ack("g", "orders", 0, 6, filter="TAGS IN ('a', 'b')")
    assert consumed_by(log) == ["m-0", "m-1", "m-3", "m-4"]
    log.reset("g", "orders", 6, 0)
    log.ack("g", "orders", 0, 6)
    assert consumed_by(log) == [f"m-{n}" for n in range(6)], "each of them once"


def test_a_dead_letter_of_a_group_that_selects_messages_is_open_until_it_is_processed() -> None:
    log = History()
    log.entry(*(log.published("orders", f"m-{n}", tag="ab"[n % 2]) for n in range(3)))
    log.retry("g", "orders", 2, "m-2", kind="DLQ")
    log.ack("g", "orders", 0, 3, filter="TAGS IN ('a')")
    log.publish("%DLQ%g", "m-2", attempt=1)
    assert consumed_by(log) == ["m-0"]
    log.retry("g", "orders", 2, "m-2", attempt=0)
    log.publish("%RETRY%g", "m-2", attempt=0)
    log.ack("g", "%RETRY%g", 0, 1)
    assert consumed_by(log) == ["m-0", "m-2"]
    log.reset("g", "orders", 3, 0)
    log.ack("g", "orders", 0, 3, filter="TAGS IN ('a')")
    assert consumed_by(log) == ["m-0", "m-2"]


def test_the_filters_of_a_group_that_are_remembered_are_bounded() -> None:
    log = History()
    log.publish("orders", "m-0", tag="a")
    for number in range(FILTERS_MAX + 5):
        log.reset("g", "orders", 1, 0)
        log.ack("g", "orders", 0, 1, filter=f"TAGS IN ('a', '{number}')")
    folded = Folded(*entries(log.table()), through_bytes=True)
    assert len(folded.state.selected["g\norders\n0"]) == FILTERS_MAX
    assert folded.of_kind("CONSUMED_BY") == {("message:orders/m-0", "consumer_group:g")}


def test_what_was_given_back_before_a_reset_is_consumed_after_it() -> None:
    log = History()
    log.publish("orders", "m-0", "m-1")
    log.retry("g", "orders", 1, "m-1")
    log.reset("g", "orders", 1, 0)
    log.ack("g", "orders", 0, 2)
    assert consumed_by(log) == ["m-0", "m-1"]


def test_a_topic_that_was_deleted_and_made_again_is_consumed_again() -> None:
    log = History()
    log.publish("orders", "old-0", "old-1")
    log.ack("g", "orders", 0, 2)
    log._ends.clear()
    log.publish("orders", "new-0")
    log.ack("g", "orders", 0, 1)
    assert ("message:orders/new-0", "consumer_group:g") in Folded(*entries(log.table())).of_kind("CONSUMED_BY")


@pytest.mark.parametrize("made_again", [1, 2])
def test_where_batches_and_jobs_end_changes_nothing_about_a_topic_that_was_made_again(made_again: int) -> None:
    """`through_bytes` is a job that begins again for each batch: it remembers its state only."""
    log = History()
    log.publish("orders", "old-0", "old-1", "old-2")
    log.ack("g", "orders", 0, 3)
    for life in range(made_again):
        log._ends.clear()
        log.publish("orders", f"new-{life}-0", f"new-{life}-1")
        log.ack("g", "orders", 0, 1)
    log.publish("orders", "last")
    log.ack("g", "orders", 1, 3)
    lives = [f"new-{life}-{n}" for life in range(made_again) for n in range(2 if life == made_again - 1 else 1)]
    expected = sorted(["old-0", "old-1", "old-2", *lives, "last"])
    assert consumed_by(log) == expected
    for batches in ([log.table()], *([log.between(0, cut), log.between(cut, log.end)] for cut in range(2, log.end))):
        edges = Folded(*batches).edges
        assert sorted(edge["src"].partition("/")[2] for edge in edges if edge["kind"] == "CONSUMED_BY") == expected


def test_a_message_that_is_given_back_counts_as_consumed_when_it_was_processed() -> None:
    log = History()
    log.publish("orders", "m-0", "m-1")
    index = log.retry("g", "orders", 0, "m-0")
    log.ack("g", "orders", 0, 2)
    assert Folded(log.table()).of_kind("CONSUMED_BY") == {("message:orders/m-1", "consumer_group:g")}
    log.publish("%RETRY%g", "m-0", attempt=1)
    second = log.ack("g", "%RETRY%g", 0, 1)
    folded = Folded(log.table())
    copy = f"message:%RETRY%g/m-0@{index}:0"
    assert folded.of_kind("RETRY_OF") == {(copy, "message:orders/m-0")}
    assert (copy, "topic:%RETRY%g") in folded.of_kind("IN_TOPIC")
    consumed = {edge["src"]: edge["event_id"] for edge in folded.edges if edge["kind"] == "CONSUMED_BY"}
    assert consumed["message:orders/m-0"] == f"0:{second}:0"
    assert folded.state.given_back == {}


def test_pop_consumers_acknowledge_in_any_order() -> None:
    log = History()
    log.publish("orders", "m-0", "m-1", "m-2")
    for number in range(3):
        log.retry("g", "orders", number, f"m-{number}")
    log.publish("%RETRY%g", "m-0", "m-1", "m-2", attempt=1)
    for offset in (2, 0, 1):
        log.ack("g", "%RETRY%g", offset, offset + 1)
    consumed = Folded(log.table()).of_kind("CONSUMED_BY")
    assert {f"message:orders/m-{number}" for number in range(3)} <= {source for source, _ in consumed}


def test_a_dead_letter_was_never_consumed() -> None:
    folded = Folded(shop().table())
    assert folded.of_kind("DEAD_LETTERED") == {("message:orders/later-0", "consumer_group:shipping")}
    assert ("message:orders/later-0", "consumer_group:shipping") not in folded.of_kind("CONSUMED_BY")
    assert ("message:orders/later-0", "consumer_group:audit") in folded.of_kind("CONSUMED_BY")
    assert ("message:orders/later-0", "topic:%DLQ%shipping") in folded.of_kind("IN_TOPIC")


def test_a_dead_letter_that_is_processed_after_a_reset_is_consumed() -> None:
    log = History()
    log.publish("orders", "m-0", "m-1", "m-2")
    log.retry("g", "orders", 1, "m-1", kind="DLQ")
    log.ack("g", "orders", 0, 3)
    log.publish("%DLQ%g", "m-1", attempt=1)
    before = Folded(*entries(log.table()), through_bytes=True)
    assert ("message:orders/m-1", "consumer_group:g") not in before.of_kind("CONSUMED_BY")
    index = log.ack("g", "orders", 0, 2)
    folded = Folded(*entries(log.table()), through_bytes=True)
    consumed = [edge for edge in folded.edges if edge["kind"] == "CONSUMED_BY"]
    assert sorted(edge["src"] for edge in consumed) == [f"message:orders/m-{n}" for n in range(3)]
    assert consumed[-1]["event_id"] == f"0:{index}:0"


def test_a_message_that_is_processed_in_a_delivery_and_after_a_reset_is_consumed_once() -> None:
    log = History()
    log.publish("orders", "m-0", "m-1")
    log.retry("g", "orders", 0, "m-0")
    log.ack("g", "orders", 0, 2)
    log.publish("%RETRY%g", "m-0", attempt=1)
    delivered, reset = log.end, log.end + 1
    log.ack("g", "%RETRY%g", 0, 1)
    log.ack("g", "orders", 0, 2)
    folded = Folded(*entries(log.table()), through_bytes=True)
    consumed = [edge for edge in folded.edges if edge["kind"] == "CONSUMED_BY"]
    assert [(edge["src"], edge["event_id"]) for edge in consumed] == [
        ("message:orders/m-1", "0:3:0"),
        ("message:orders/m-0", f"0:{delivered}:0"),
    ]
    assert reset == log.end - 1
    assert folded.state.consumed["g\norders\n0"] == [[0, 2]]


def test_a_delivery_of_a_topic_that_was_made_again_says_nothing_about_the_new_topic() -> None:
    log = History()
    log.publish("orders", "old-0")
    log.retry("g", "orders", 0, "old-0")
    log._ends.clear()
    log.publish("orders", "new-0")
    log.publish("%RETRY%g", "old-0", attempt=1)
    log.ack("g", "%RETRY%g", 0, 1)
    log.ack("g", "orders", 0, 1)
    consumed = Folded(*entries(log.table()), through_bytes=True).of_kind("CONSUMED_BY")
    assert {source for source, _ in consumed} == {"message:orders/old-0", "message:orders/new-0"}


def test_a_scheduled_message_is_one_node_whether_it_comes_or_not() -> None:
    folded = Folded(shop().table())
    assert folded.state_of("orders/later-0") == "published"
    assert folded.nodes["message:orders/later-0"]["attrs"]["offset"] == 4
    assert folded.state_of("orders/never-0") == "cancelled"


def test_what_is_still_open_is_what_may_still_change() -> None:
    folded = Folded(shop().table())
    hubs = {"topic:orders", "topic:shipments", "topic:%RETRY%shipping", "topic:%DLQ%shipping"}
    hubs |= {"producer_group:shop", "producer_group:web", "producer_group:shipping"}
    hubs |= {"consumer_group:shipping", "consumer_group:audit"}
    assert folded.open == hubs | {"transaction:t3", "message:orders/t3-0"}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_where_batches_end_changes_nothing(size: int) -> None:
    table = shop().table()
    parts = entries(table)
    batches = [pa.concat_tables(parts[begin : begin + size]) for begin in range(0, len(parts), size)]
    whole = Folded(table)
    assert content(Folded(*batches, through_bytes=True)) == content(whole)
    assert len(whole.edges) == len(whole.keys)
    assert len(whole.all_nodes) == len(whole.nodes)


def test_rows_of_a_batch_may_come_in_any_order() -> None:
    table = shop().table()
    shuffled = table.take(list(reversed(range(table.num_rows))))
    assert content(Folded(shuffled)) == content(Folded(table))


def test_what_was_folded_before_is_left_out() -> None:
    table = shop().table()
    assert content(Folded(table, table, table.slice(3))) == content(Folded(table))


def test_a_job_that_begins_late_takes_what_it_can_know() -> None:
    table = shop().table()
    late = Folded(table.filter(pa.compute.greater(table["raft_index"], 3)))
    assert late.nodes["transaction:t1"]["state"] == "committed"
    assert late.state_of("orders/t1-0") == "published"
    assert ("message:orders/t1-0", "transaction:t1") in late.of_kind("DECIDED_BY")
    assert late.keys <= Folded(table).keys


def test_what_is_open_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq_spark.folding.fold.OPEN_MAX", 3)
    log = History()
    for number in range(5):
        log.half(f"t{number}", "orders", f"m-{number}")
    folded = Folded(*entries(log.table()))
    assert len(folded.state.messages) == len(folded.state.transactions) == 3
    assert folded.state_of("orders/m-0") == "half"


@pytest.mark.parametrize("portion", [1, 100])
def test_a_purge_takes_the_messages_of_its_queue_that_it_names(monkeypatch: pytest.MonkeyPatch, portion: int) -> None:
    monkeypatch.setattr("keelmq_spark.folding.fold.READ_AHEAD_MESSAGES", portion)
    log = History()
    log.publish("orders", "a-0", "a-1")
    log.entry(log.published("orders", "other-0", queue=1))
    first = log.end
    log.purge("orders", 0, 2)
    log.publish("orders", "b-0")
    for batches in ([log.table()], [log.between(0, first), log.between(first, log.end)]):
        folded = Folded(*batches)
        assert folded.of_kind("PURGED_FROM") == {(f"message:orders/a-{number}", "topic:orders") for number in (0, 1)}


def test_events_of_types_of_later_versions_are_passed_over() -> None:
    log = History()
    log.publish("orders", "m-0")
    before = Folded(log.table())
    log.entry({"type": "FREEZE", "topic": "orders", "queue": 0, "offset": 0, "offset_end": 1})
    after = Folded(log.table())
    assert after.keys == before.keys
    assert not [node_id for node_id in after.nodes if node_id.startswith("transaction:")]


def test_the_kinds_of_edges_are_those_of_the_documentation() -> None:
    kinds = {kind for _, _, kind in Folded(shop().table()).keys}
    assert kinds == {
        schema.PRODUCED, schema.IN_TOPIC, schema.DECIDED_BY, schema.CONSUMED_BY, schema.CAUSED_BY, schema.RETRY_OF,
        schema.DEAD_LETTERED,
    }  # fmt: skip


def test_the_removal_of_a_topic_changes_no_message() -> None:
    log = History()
    log.publish("orders", "m-0")
    before = Folded(*entries(log.table()))
    log.delete("orders")
    after = Folded(*entries(log.table()))
    assert (after.keys, after.nodes.keys()) == (before.keys, before.nodes.keys())


def test_a_pause_tells_of_its_group_and_changes_no_message() -> None:
    log, other = History(), History()
    for each in (log, other):
        each.publish("orders", "m-0")
        if each is log:
            each.entry({"type": "GROUP_PAUSE", "group": "g", "client": "ann"})
            each.entry({"type": "GROUP_RESUME", "group": "g"})
    folded, before = Folded(*entries(log.table())), Folded(*entries(other.table()))
    assert folded.keys == before.keys
    assert folded.nodes.keys() - before.nodes.keys() == {"consumer_group:g"}
