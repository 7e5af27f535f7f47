"""Broken ways to expire messages, and to count how much of the log is needed."""

from typing import Any
from unittest import mock

from store.commands.messages import BatchHeader
from store.groups.queries import GroupQueries
from store.index import keys, retention_keys
from store.limits import RETENTION_FOREVER_MS
from store.log.base import LogBase
from store.log.commit_log import CommitLog
from store.log.segment_files import remove_segments
from store.messages.log_references import Holder, LogReferences
from store.messages.log_times import LogTimes
from store.messages.queues import Queues, RemovedRow
from store.messages.topics import Topic, Topics
from store.state.machine import StateMachine
from store.state.release import MayGo, Releases
from store.state.retention_rules import RetentionRules
from store.transactions.table import PREPARED, TransactionRecord, TransactionTable
from tests.sim.threads import Running
from tests.sim.variant import Swap, mutant

_until, _set_start, _init = Topic.expires_until_ms, Topics.set_start, LogReferences.__init__
_expire, _forget, _add = TransactionTable.expire, TransactionTable._forget, TransactionTable.add
_rule = Releases.rule
_oldest_queues, _shrink, _add_bytes = RetentionRules.oldest_queues, Queues.shrink, Topic.add_bytes
_read_queue_end, _stored_until_ms = retention_keys.read_queue_end, LogTimes.stored_until_ms


def expires_a_little_early(topic: Topic, clock_ms: int) -> int | None:
    """Messages go some hundred milliseconds before their retention is over."""
    return _until(topic, clock_ms + 400)


def expires_by_the_own_clock(topic: Topic, clock_ms: int) -> int | None:
    """Each node decides by its own clock what has expired, not by that of the entry."""
    return _until(topic, clock_ms if Running.node is None else Running.node._wall_ms())  # type: ignore[attr-defined]


def expires_whatever_the_topic_says(topic: Topic, clock_ms: int) -> int | None:
    """All topics keep their messages for half a second."""
    return None if topic.retention_ms == RETENTION_FOREVER_MS else clock_ms - 500


def keeps_what_is_over(topic: Topic, clock_ms: int) -> int | None:
    """Messages that only their time removes stay for ever."""
    return None if not topic.system else _until(topic, clock_ms)


def uses_offsets_again(topics: Topics, topic: Topic, queue: int, start: int) -> None:
    """A queue that is empty begins at 0 again."""
    if start == topic.ends[queue]:
        start = topic.ends[queue] = 0
    _set_start(topics, topic, queue, start)


def needs_less_of_the_log(references: LogReferences, applied_index: int) -> int:
    """The first part of the log that something points at is not counted."""
    ranges = sorted(number for number, each in references._ranges.items() if any(each.counts))
    return references._ranges[ranges[1]].first_index if len(ranges) > 1 else applied_index + 1


def forgets_after_a_restart_what_points_at_the_log(references: LogReferences, *arguments: Any) -> None:
    """A node that starts again counts from the last range of the log that something points at."""
    _init(references, *arguments)
    for number in sorted(references._ranges)[:-1]:
        del references._ranges[number]


def forgets_transactions_early(table: TransactionTable, until_ms: int, limit: int) -> int:
    """Transactions are forgotten some hundred milliseconds before their time is over."""
    return _expire(table, until_ms + 400, limit)


def forgets_undecided_transactions(table: TransactionTable, until_ms: int, limit: int) -> int:
    """Age alone counts: a transaction that nobody has decided goes too."""
    begin, end = (keys.transaction_state(state, 0, "") for state in (PREPARED, PREPARED + 1))
    for transaction_id in [key[10:].decode() for key, _ in table._index.scan(begin, end)]:
        record = table.get(transaction_id)
        if record is not None and record.prepared_at_ms <= until_ms:
            table._index.delete(keys.check(record.next_check_at_ms, transaction_id))
            table.undecided -= 1
            table._forget(transaction_id, record)
    return _expire(table, until_ms, limit)


def forgets_what_was_resumed(table: TransactionTable, until_ms: int, limit: int) -> int:
    """A transaction goes when its first discard is long ago, also when it was resumed since."""
    for key, _ in list(table._index.scan(keys.DECIDED, keys.decided(max(until_ms + 1, 0), ""))):
        decided_at_ms, transaction_id = keys.decided_parts(key)
        record = table.get(transaction_id)
        if record is not None and record.decided_at_ms != decided_at_ms:
            record.decided_at_ms = decided_at_ms
            table.update(transaction_id, record)
    return _expire(table, until_ms, limit)


def never_forgets_a_transaction(table: TransactionTable, until_ms: int, limit: int) -> int:
    """Decided transactions are kept for ever, and with them the log."""
    return 0


def keeps_the_log_of_forgotten_transactions(
    table: TransactionTable, transaction_id: str, record: TransactionRecord
) -> None:
    """A transaction goes, and the log is still counted as needed for its halves."""
    _forget(table, transaction_id, record)
    for batch in record.batches:
        table._references.add(batch.block, Holder.TRANSACTION)


def keeps_the_log_of_decided_transactions(table: TransactionTable, record: TransactionRecord) -> None:
    """A transaction is decided, and its halves hold the log on."""


def releases_halves_before_they_are_decided(
    table: TransactionTable, transaction_id: str, record: TransactionRecord, headers: tuple[BatchHeader, ...]
) -> None:
    """The log is let go of as soon as a half is prepared."""
    _add(table, transaction_id, record, headers)
    for batch in record.batches:
        table._references.remove(batch.block, Holder.TRANSACTION)


def keeps_what_was_processed(releases: Releases, topic: Topic, clock_ms: int) -> MayGo | None:
    """Retries that the group has processed stay until their retention is over."""
    return None if topic.holder is Holder.RETRY else _rule(releases, topic, clock_ms)


def lets_views_hold_the_log(releases: Releases, topic: Topic, clock_ms: int) -> MayGo | None:
    """Rows of the half topic that show decided transactions hold the log."""
    return None if topic.holder is Holder.VIEW else _rule(releases, topic, clock_ms)


def keeps_dead_letters_that_were_replayed(releases: Releases, topic: Topic, clock_ms: int) -> MayGo | None:
    """A dead letter that was replayed holds the log as if nobody had looked at it."""
    return None if topic.holder is Holder.DEAD_LETTER else _rule(releases, topic, clock_ms)


def releases_what_is_handed_out(groups: GroupQueries, name: str, topic: Topic, queue: int) -> int:
    """A retry that a pop consumer holds counts as processed."""
    group = groups._groups.get(name)
    return 0 if group is None else group.offsets.get((topic.id, queue), 0)


def releases_what_was_not_processed(releases: Releases, topic: Topic, clock_ms: int) -> MayGo | None:
    """Retries of a group go as soon as they are there."""
    return (lambda row: True) if topic.holder is Holder.RETRY else _rule(releases, topic, clock_ms)


def releases_dead_letters_that_nobody_replayed(releases: Releases, topic: Topic, clock_ms: int) -> MayGo | None:
    """Dead letters go at once."""
    return (lambda row: True) if topic.holder is Holder.DEAD_LETTER else _rule(releases, topic, clock_ms)


def removes_what_the_index_has_not_on_disk(machine: StateMachine) -> int:
    """Segments go before the index that stands for their entries is durable."""
    return machine.applied_index


def removes_segments_before_their_base(log: CommitLog, index: int) -> LogBase:
    """Segments go first, and that they are gone is noted afterwards."""
    first = log._segments.with_index(max(index, log.first_index))
    if first is log._segments.segments[0]:
        return log.base
    base = LogBase(first.start, first.first_index - 1, log.term_at(first.first_index - 1))
    while log._segments.segments[0] is not first:
        log._segments.remove_first()
    remove_segments(log._disk, log._directory, before=base.position)
    log._set_base(log._stored_base._replace(base=base))
    return base


def removes_the_youngest_queue_first(rules: RetentionRules, topic: Topic, limit: int) -> list[int]:
    """The messages of the queue whose first message is the youngest go from a topic with too many bytes."""
    return _oldest_queues(rules, topic, 1 << 16)[::-1][:1]


def keeps_less_than_its_bytes(queues: Queues, topic: Topic, *arguments: Any) -> list[RemovedRow]:
    """A topic with too many bytes goes down to half of them."""
    with mock.patch.object(topic, "retention_bytes", topic.retention_bytes // 2):
        return _shrink(queues, topic, *arguments)


def counts_what_is_gone(topic: Topic, queue: int, count: int) -> None:
    """The bytes of removed messages go on counting for their topic."""
    _add_bytes(topic, queue, max(count, 0))


def forgets_the_bytes_at_a_restart(value: bytes) -> tuple[int, int, int]:
    """The bytes of a queue are counted from 0 on after a restart."""
    end, _, _ = _read_queue_end(value)
    return end, 0, 0


def cuts_too_much_of_the_log(times: LogTimes, position: int) -> int | None:
    """Messages go that were stored within the last bytes of the log that are kept."""
    return _stored_until_ms(times, position + 8_000)


MUTANTS = (
    mutant(15, Swap(RetentionRules, "oldest_queues", removes_the_youngest_queue_first)),
    mutant(15, Swap(Queues, "shrink", keeps_less_than_its_bytes)),
    mutant(15, Swap(Topic, "add_bytes", counts_what_is_gone)),
    mutant(8, Swap(retention_keys, "read_queue_end", forgets_the_bytes_at_a_restart)),
    mutant(15, Swap(LogTimes, "stored_until_ms", cuts_too_much_of_the_log)),
    mutant(15, Swap(Topic, "expires_until_ms", expires_a_little_early)),
    mutant(8, Swap(Topic, "expires_until_ms", expires_by_the_own_clock)),
    mutant(15, Swap(Topic, "expires_until_ms", expires_whatever_the_topic_says)),
    mutant(15, Swap(Topic, "expires_until_ms", keeps_what_is_over)),
    mutant(4, Swap(Topics, "set_start", uses_offsets_again)),
    mutant(15, Swap(LogReferences, "floor", needs_less_of_the_log)),
    mutant(15, Swap(TransactionTable, "expire", forgets_transactions_early)),
    mutant(15, Swap(TransactionTable, "expire", forgets_undecided_transactions)),
    mutant(15, Swap(TransactionTable, "expire", forgets_what_was_resumed), rare=True),
    mutant(15, Swap(TransactionTable, "expire", never_forgets_a_transaction)),
    mutant(15, Swap(TransactionTable, "_forget", keeps_the_log_of_forgotten_transactions)),
    mutant(15, Swap(TransactionTable, "_release", keeps_the_log_of_decided_transactions)),
    mutant(
        15,
        Swap(TransactionTable, "add", releases_halves_before_they_are_decided),
        Swap(TransactionTable, "_release", keeps_the_log_of_decided_transactions),
    ),
    mutant(15, Swap(Releases, "rule", keeps_what_was_processed)),
    mutant(15, Swap(Releases, "rule", lets_views_hold_the_log)),
    mutant(15, Swap(Releases, "rule", keeps_dead_letters_that_were_replayed), rare=True),
    mutant(15, Swap(GroupQueries, "processed", releases_what_is_handed_out)),
    mutant(15, Swap(Releases, "rule", releases_what_was_not_processed)),
    mutant(15, Swap(Releases, "rule", releases_dead_letters_that_nobody_replayed)),
    mutant(15, Swap(LogReferences, "__init__", forgets_after_a_restart_what_points_at_the_log)),
    mutant(8, Swap(StateMachine, "flushed_index", property(removes_what_the_index_has_not_on_disk)), rare=True),
    mutant(10, Swap(CommitLog, "drop_before", removes_segments_before_their_base), rare=True),
)
