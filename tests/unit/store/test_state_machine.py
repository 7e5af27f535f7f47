"""Topics, produce, queues and the rules of apply itself."""

from itertools import pairwise
from pathlib import Path

import pytest

from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, BatchPlaced, Produce
from store.commands.retention import Expired, ExpireMessages
from store.commands.topics import DeleteTopic, PutTopic, TopicDeleted, TopicInfo, TopicPut, TopicType
from store.commands.transactions import CheckUrlSet, SetCheckUrl
from store.commands.views import QueueRange
from store.errors import Refused
from store.limits import QUEUES_MAX
from store.log.record import KIND_ENTRY, Entry
from store.messages.topics import SYSTEM_TOPICS
from store.state.machine import WRITTEN_ROWS_MAX
from tests.unit.store.replica import HEADER_BYTES, Replica, header, placed, prepare, produce


def test_a_new_topic_has_the_documented_defaults(replica: Replica) -> None:
    replica.now_ms = 5_000
    result = replica.one(PutTopic("orders"))
    assert result == TopicPut(TopicInfo("orders", 4, "any", 259_200_000, False, 5_000), True)
    assert replica.machine.topic("orders") == result.topic


def test_only_given_fields_of_an_existing_topic_change(replica: Replica) -> None:
    replica.one(PutTopic("orders", 2, 1_000, "normal"))
    assert replica.one(PutTopic("orders", queues=3)) == TopicPut(
        TopicInfo("orders", 3, "normal", 1_000, False, 1_000), False
    )
    replica.one(PutTopic("orders", retention_ms=9))
    replica.one(PutTopic("orders", type="fifo"))
    replica.reopen()
    assert replica.machine.topic("orders") == TopicInfo("orders", 3, "fifo", 9, False, 1_000)
    assert replica.machine.max_offset("orders", 2) == 0


def test_queues_never_shrink(replica: Replica) -> None:
    replica.one(PutTopic("orders", 3))
    refused = replica.refusal(PutTopic("orders", 2, 5))
    assert (refused.code, refused.extra["queues"]) == ("topic_exists_with_more_queues", 3)


@pytest.mark.parametrize("command", [PutTopic("t", 0), PutTopic("t", QUEUES_MAX + 1), PutTopic("t", retention_ms=0)])
def test_topics_out_of_limits_are_refused(replica: Replica, command: PutTopic) -> None:
    assert replica.refusal(command).code == "invalid_request"
    assert replica.machine.topic("t") is None


def test_a_topic_may_have_as_many_queues_as_the_limit(replica: Replica) -> None:
    replica.one(PutTopic("wide", QUEUES_MAX))
    assert placed(replica, header("wide", queue=QUEUES_MAX - 1))[0].offset == 0


def test_system_topics_are_there_and_cannot_be_changed(replica: Replica) -> None:
    assert [topic.topic for topic in replica.machine.topics(system=True)] == sorted(SYSTEM_TOPICS)
    assert replica.machine.topics() == []
    for name in SYSTEM_TOPICS:
        for command in (PutTopic(name, 8), DeleteTopic(name), produce(header(name)), prepare("tx", header(name))):
            assert replica.refusal(command).code == "system_topic"


def test_offsets_are_dense_per_queue_and_survive_a_restart(replica: Replica) -> None:
    replica.one(PutTopic("orders", 2))
    first = placed(replica, header(count=3), header(queue=1, batch_id="b2"), header(batch_id="b3", count=2))
    assert [(item.queue, item.offset, item.count) for item in first] == [(0, 0, 3), (1, 0, 1), (0, 3, 2)]
    replica.reopen()
    assert placed(replica, header(batch_id="b4")) == (BatchPlaced("orders", 0, 5, 1, False),)
    assert replica.machine.queue_ranges("orders") == [QueueRange(0, 0, 6), QueueRange(1, 0, 1)]


def test_a_row_says_where_the_block_is(replica: Replica) -> None:
    replica.one(PutTopic("orders"))
    proposal = produce(header(batch_id="b1"), header(batch_id="b2", count=2))
    replica.do(SetCheckUrl("pg", "http://host"), proposal)
    entry = replica.log.entries[-1]
    rows = replica.machine.rows("orders", 0, 0, 10, 1_000)
    for row, block in zip(rows, proposal.blocks, strict=True):
        assert row.position == entry.position
        assert entry.payload[row.block_offset : row.block_offset + row.block_length] == block
        assert (row.raft_index, row.stored_at_ms, row.transaction_id) == (entry.index, 1_000, None)
    assert [(row.base_offset, row.next_offset, row.batch_id) for row in rows] == [(0, 1, "b1"), (1, 3, "b2")]


def test_rows_begin_with_the_one_that_holds_the_offset_and_respect_limits(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    for number in range(6):
        placed(replica, header(batch_id=f"b{number}", count=10))
    rows = replica.machine.rows

    def bases(offset: int, max_rows: int, max_bytes: int) -> list[int]:
        return [row.base_offset for row in rows("orders", 0, offset, max_rows, max_bytes)]

    assert bases(0, 100, 1_000) == [0, 10, 20, 30, 40, 50]
    assert bases(19, 2, 1_000) == [10, 20]
    assert bases(20, 100, 40) == [20, 30]
    assert bases(59, 100, 1) == [50]
    assert bases(60, 100, 1_000) == []
    assert bases(10_000, 100, 1_000) == []


def test_an_offset_is_found_by_time(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    stored_at: list[int] = []
    for number, now_ms in enumerate([2_000, 2_000, 3_000, 7_000, 7_000, 9_000]):
        replica.now_ms = now_ms
        count = 1 + number % 3
        placed(replica, header(batch_id=f"b{number}", count=count))
        stored_at += [now_ms] * count
    for timestamp_ms in [-1, 0, 1_999, 2_000, 2_001, 3_000, 3_001, 7_000, 8_999, 9_000, 9_001, 2**70]:
        expected = next(
            ((offset, at) for offset, at in enumerate(stored_at) if at >= timestamp_ms), (len(stored_at), None)
        )
        assert replica.machine.offset_at("orders", 0, timestamp_ms) == expected


def test_an_empty_queue_has_no_rows_and_no_times(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    assert replica.machine.rows("orders", 0, 0, 10, 1_000) == []
    assert replica.machine.offset_at("orders", 0, 0) == (0, None)
    assert (replica.machine.min_offset("orders", 0), replica.machine.max_offset("orders", 0)) == (0, 0)


def test_the_clock_never_falls(replica: Replica) -> None:
    replica.now_ms = 5_000
    replica.one(PutTopic("orders", 1))
    placed(replica, header(batch_id="b1"))
    replica.now_ms = 4_000
    placed(replica, header(batch_id="b2"))
    assert [row.stored_at_ms for row in replica.machine.rows("orders", 0, 0, 10, 1_000)] == [5_000, 5_000]
    assert replica.machine.clock_ms == 5_000


def test_a_batch_to_nowhere_is_refused_with_all_others_of_its_command(replica: Replica) -> None:
    replica.one(PutTopic("orders", 2))
    refused = replica.refusal(produce(header(batch_id="b1"), header("nowhere", batch_id="b2")))
    assert (refused.code, refused.extra["topic"]) == ("topic_not_found", "nowhere")
    refused = replica.refusal(produce(header(batch_id="b1"), header(queue=2, batch_id="b2")))
    assert (refused.code, refused.extra["queue"]) == ("queue_not_found", 2)
    assert replica.refusal(produce(header(queue=-1))).code == "queue_not_found"
    assert placed(replica, header(batch_id="b1"))[0].duplicate is False


@pytest.mark.parametrize(
    "bad", [header(count=0), header(count=2, message_ids=["only one"]), header(count=-1, message_ids=[])]
)
def test_a_batch_that_contradicts_itself_is_refused(replica: Replica, bad: BatchHeader) -> None:
    replica.one(PutTopic("orders"))
    assert replica.refusal(produce(bad)).code == "invalid_request"
    assert replica.refusal(prepare("tx", bad)).code == "invalid_request"


def test_a_command_without_batches_is_refused(replica: Replica) -> None:
    assert replica.refusal(Proposal(Produce(()))).code == "invalid_request"
    assert replica.refusal(prepare("tx")).code == "invalid_request"


@pytest.mark.parametrize(
    ("topic_type", "takes_plain", "takes_half"),
    [
        ("normal", True, False),
        ("fifo", True, False),
        ("delay", False, False),
        ("transaction", False, True),
        ("any", True, True),
    ],
)
def test_the_type_says_what_a_topic_takes(
    replica: Replica, topic_type: TopicType, takes_plain: bool, takes_half: bool
) -> None:
    replica.one(PutTopic("orders", type=topic_type))
    for proposal, taken in ((produce(header()), takes_plain), (prepare("tx", header()), takes_half)):
        if taken:
            assert not isinstance(replica.one(proposal), Refused)
        else:
            refused = replica.refusal(proposal)
            assert (refused.code, refused.extra["type"]) == ("topic_type_mismatch", topic_type)


def test_a_topic_created_again_starts_afresh(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    placed(replica, header(batch_id="b1", count=5, message_ids=["a", "b", "c", "d", "e"]))
    replica.do(DeleteTopic("orders"), PutTopic("orders", 1))
    assert replica.machine.rows("orders", 0, 0, 10, 1_000) == []
    again = placed(replica, header(batch_id="b1", count=5, message_ids=["a", "b", "c", "d", "e"]))
    assert again == (BatchPlaced("orders", 0, 0, 5, False),)
    replica.reopen()
    assert replica.machine.max_offset("orders", 0) == 5


def test_deleting_a_topic_leaves_nothing_but_what_expires(replica: Replica) -> None:
    before = replica.dump(effects_only=True)
    replica.one(PutTopic("orders", 1))
    placed(replica, header(batch_id="b1"))
    assert replica.one(DeleteTopic("orders")) == TopicDeleted("orders")
    assert replica.one(ExpireMessages((), 1)) == Expired((), 1, 0)
    assert replica.one(ExpireMessages((), 1)) == Expired((), 0, 0)
    left = replica.dump(effects_only=True)
    assert {key[:1] for key in left.keys() - before.keys()} == {b"b", b"e", b"j"}
    assert replica.refusal(DeleteTopic("orders")).code == "topic_not_found"
    assert replica.refusal(produce(header())).code == "topic_not_found"


def test_check_urls_are_set_and_cleared(replica: Replica) -> None:
    assert replica.one(SetCheckUrl("pg", "http://host/check")) == CheckUrlSet("pg", "http://host/check")
    replica.reopen()
    assert replica.machine.check_url("pg") == "http://host/check"
    replica.one(SetCheckUrl("pg", None))
    assert replica.machine.check_url("pg") is None


def test_queries_of_what_does_not_exist_say_so(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    with pytest.raises(Refused, match="topic_not_found"):
        replica.machine.max_offset("nowhere", 0)
    with pytest.raises(Refused, match="queue_not_found"):
        replica.machine.rows("orders", 1, 0, 10, 1_000)
    with pytest.raises(Refused, match="transaction_not_found"):
        replica.machine.timeline("tx")


def test_entries_must_follow_the_applied_index(replica: Replica) -> None:
    first = replica.log.append(1_000, [PutTopic("orders")])
    second = replica.log.append(1_000, [PutTopic("orders")])
    with pytest.raises(ValueError, match="does not follow"):
        replica.machine.apply([second])
    replica.machine.apply([first, second])
    with pytest.raises(ValueError, match="does not follow"):
        replica.machine.apply([second])


def test_a_noop_moves_the_applied_index_and_term_only(replica: Replica) -> None:
    before = replica.dump(effects_only=True)
    assert replica.machine.apply([replica.log.append_noop()._replace(term=7)]) == [[]]
    assert (replica.machine.applied_index, replica.machine.applied_term) == (2, 7)
    assert replica.dump(effects_only=True) == before
    replica.reopen()
    assert (replica.machine.applied_index, replica.machine.applied_term) == (2, 7)


def test_a_payload_that_is_no_entry_is_not_a_refusal(replica: Replica) -> None:
    with pytest.raises(ValueError, match="no header"):
        replica.machine.apply([Entry(b"??", 2, 1, KIND_ENTRY, HEADER_BYTES)])


def test_a_defect_in_a_handler_leaves_apply(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setitem(replica.machine._handlers, PutTopic, broken)
    with pytest.raises(KeyError, match="a defect"):
        replica.one(PutTopic("orders"))


def test_one_index_write_holds_few_rows_besides_those_of_its_last_entry(replica: Replica) -> None:
    replica.one(PutTopic("orders"))
    ids = [f"id{number}" for number in range(WRITTEN_ROWS_MAX)]
    many = [
        replica.log.append(1_000, [produce(header(batch_id=name, count=len(ids), message_ids=[name + i for i in ids]))])
        for name in ("a", "b")
    ]
    few = [replica.log.append(1_000, [produce(header(batch_id=name))]) for name in ("c", "d")]
    assert len(replica.machine.apply([*many, *few])) == 1
    assert len(replica.machine.apply([many[1], *few])) == 1
    assert len(replica.machine.apply(few)) == 2


def test_the_index_is_flushed_by_entries_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_entries = Replica(tmp_path / "entries", flush_entries=10)
    by_bytes = Replica(tmp_path / "bytes", flush_log_bytes=1_000)
    flushed: dict[Path, list[int]] = {}
    for replica in (by_entries, by_bytes):
        flushes = flushed.setdefault(replica.directory, [])
        with monkeypatch.context() as patched:
            patched.setattr(
                replica.index, "flush", lambda wait, r=replica, f=flushes: f.append(r.machine.applied_index)
            )
            for _ in range(40):
                replica.one(PutTopic("orders"))
        replica.close()
    assert flushed[by_entries.directory] == [10, 20, 30, 40]
    distances = [by_bytes.log.entries[index - 1].position for index in flushed[by_bytes.directory]]
    assert len(distances) > 1
    assert all(1_000 <= later - earlier < 1_200 for earlier, later in pairwise(distances))
