"""Broken ways to purge topics, to count their bytes, and to go by limits in bytes."""

from collections.abc import Sequence
from typing import Any

import raft.proposals
import store.state.expiry
from store.commands.topics import PurgeTopic, TopicPurged
from store.index import keys
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder, LogReferences
from store.messages.queues import Queues, RemovedRow
from store.messages.timers import decode_timer
from store.messages.topics import Topic, Topics
from store.state.expiry import Expiry
from store.state.retention_rules import RetentionRules
from store.transactions.table import PREPARED, _decode_record
from tests.sim.variant import Swap, mutant

_purge_topic, _purge_queue, _move_start = Expiry.purge, Queues.purge, Topics.purge
_advance, _count_bytes, _add_bytes = Topics.advance, Queues.count_bytes, Topic.add_bytes
_remove_purged, _remove = Queues.remove_purged, Queues._remove


def purges_one_message_too_few(topics: Topics, topic: Topic, queue: int) -> None:
    """A purge leaves the last message of the queue."""
    _move_start(topics, topic, queue)
    topics.set_start(topic, queue, topic.ends[queue] - 1)


def purges_one_message_too_many(topics: Topics, topic: Topic, queue: int) -> None:
    """A purge takes the offset of the next message along."""
    topic.ends[queue] += 1
    _move_start(topics, topic, queue)


def purges_the_queue_before_too(expiry: Expiry, command: PurgeTopic) -> TopicPurged:
    """A purge of one queue empties the queue before it, and does not say so."""
    purged = _purge_topic(expiry, command)
    if command.queue:
        expiry._queues.purge(expiry._topics.require(command.topic), command.queue - 1)
    return purged


def begins_anew_after_a_purge(topics: Topics, topic: Topic, queue: int) -> None:
    """A queue that was purged gives the offsets of its messages again."""
    _move_start(topics, topic, queue)
    topic.ends[queue] = topic.counted_from[queue] = 0
    topics.set_start(topic, queue, 0)


def leaves_the_rows_of_a_purge(queues: Queues, topic: Topic, queue: int, limit: int) -> list[RemovedRow]:
    """The rows of a purged queue stay in the index, and hold the log for ever."""
    queues._topics.set_purged(topic, queue, None)
    return []


def forgets_a_purge_under_way(topics: Topics, topic: Topic, queue: int) -> None:
    """A second purge begins where the queue does, and forgets the rows that the first one has left."""
    topics.purged.pop((topic.id, queue), None)
    _move_start(topics, topic, queue)


def removes_what_came_after_the_purge(queues: Queues, topic: Topic, queue: int, limit: int) -> list[RemovedRow]:
    """The rows of a purged queue are removed up to its end, with all that was sent since."""
    start = topic.starts[queue]
    topic.starts[queue] = topic.ends[queue]
    removed = _remove_purged(queues, topic, queue, limit)
    topic.starts[queue] = start
    return removed


def keeps_the_log_of_what_was_purged(queues: Queues, topic: Topic, queue: int, limit: int) -> list[RemovedRow]:
    """The rows of a purged queue go, and the log is still counted as needed for their blocks."""
    remove, queues._references.remove = queues._references.remove, _remove_nothing  # type: ignore[method-assign]
    try:
        return _remove_purged(queues, topic, queue, limit)
    finally:
        queues._references.remove = remove  # type: ignore[method-assign]


def _remove_nothing(block: BlockLocation, holder: Holder) -> None:
    pass


def _release(references: LogReferences, blocks: Sequence[BlockLocation], holder: Holder) -> None:
    for block in blocks:
        references.remove(block, holder)


def lets_go_of_halves_with_a_purge(queues: Queues, topic: Topic, queue: int) -> int:
    """A purge releases the log of undecided transactions that have a half message for the queue."""
    values = [value for _, value in queues._index.scan(keys.TRANSACTION, keys.after(keys.TRANSACTION))]
    undecided = [record for record in map(_decode_record, values) if record.state == PREPARED]
    halves = [
        half for record in undecided for half in record.batches if (half.topic, half.queue) == (topic.name, queue)
    ]
    _release(queues._references, [half.block for half in halves], Holder.TRANSACTION)
    return _purge_queue(queues, topic, queue)


def lets_go_of_timers_with_a_purge(queues: Queues, topic: Topic, queue: int) -> int:
    """A purge releases the log of messages that wait to be delivered to the queue."""
    timers = [decode_timer(value) for _, value in queues._index.scan(keys.TIMER, keys.after(keys.TIMER))]
    blocks = [timer.block for timer in timers if (timer.topic_id, timer.queue) == (topic.id, queue)]
    _release(queues._references, blocks, Holder.SCHEDULED)
    return _purge_queue(queues, topic, queue)


def counts_a_row_twice(topics: Topics, topic: Topic, queue: int, count: int, row_bytes: int) -> int:
    """The bytes of a new row count twice."""
    return _advance(topics, topic, queue, count, 2 * row_bytes)


def counts_what_was_purged(topics: Topics, topic: Topic, queue: int) -> None:
    """The bytes of purged messages go on counting for their topic."""
    before = topic.queue_bytes[queue]
    _move_start(topics, topic, queue)
    topic.add_bytes(queue, before)


def counts_older_rows_twice(queues: Queues, topic: Topic, queue: int, limit: int) -> int:
    """The bytes of rows of before the feature level count twice."""
    before = topic.queue_bytes[queue]
    rows = _count_bytes(queues, topic, queue, limit)
    topic.add_bytes(queue, topic.queue_bytes[queue] - before)
    return rows


def counts_older_rows_of_one_portion(queues: Queues, topic: Topic, queue: int, limit: int) -> int:
    """Only a first portion of the rows of before the feature level is counted, and the queue is called counted."""
    rows = _count_bytes(queues, topic, queue, min(limit, 1))
    topic.counted_from[queue] = min(topic.counted_from[queue], topic.starts[queue])
    return rows


def limits_topics_without_a_limit(rules: RetentionRules, topic: Topic) -> bool:
    """A topic without a limit in bytes keeps as little as it can."""
    return topic.kept_bytes > max(topic.retention_bytes, 0)


def shrinks_queues_that_are_not_there(topic: Topic, queues: Sequence[int]) -> list[int]:
    """The queues that the leader named are looked into, also when the topic was made anew with fewer."""
    return list(queues)


def proposes_what_the_level_does_not_know(command: Any, level: int) -> None:
    """A leader carries out commands that older nodes of the cluster could not read."""


MUTANTS = (
    mutant(15, Swap(Topics, "purge", purges_one_message_too_few)),
    mutant(15, Swap(Topics, "purge", purges_one_message_too_many)),
    mutant(15, Swap(Expiry, "purge", purges_the_queue_before_too)),
    mutant(4, Swap(Topics, "purge", begins_anew_after_a_purge)),
    mutant(15, Swap(Queues, "remove_purged", leaves_the_rows_of_a_purge)),
    mutant(15, Swap(Topics, "purge", forgets_a_purge_under_way)),
    mutant(15, Swap(Queues, "remove_purged", removes_what_came_after_the_purge)),
    mutant(15, Swap(Queues, "remove_purged", keeps_the_log_of_what_was_purged)),
    mutant(15, Swap(Queues, "purge", lets_go_of_halves_with_a_purge)),
    mutant(15, Swap(Queues, "purge", lets_go_of_timers_with_a_purge)),
    mutant(15, Swap(Topics, "advance", counts_a_row_twice)),
    mutant(15, Swap(Topics, "purge", counts_what_was_purged)),
    mutant(15, Swap(Queues, "count_bytes", counts_older_rows_twice)),
    mutant(15, Swap(Queues, "count_bytes", counts_older_rows_of_one_portion)),
    mutant(15, Swap(RetentionRules, "may_exceed", limits_topics_without_a_limit)),
    mutant(15, Swap(store.state.expiry, "_there", shrinks_queues_that_are_not_there), rare=True),
    mutant(23, Swap(raft.proposals, "require_enabled", proposes_what_the_level_does_not_know)),
)
