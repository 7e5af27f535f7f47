"""Retention: what is older than its topic keeps it goes, by the replicated clock, from the front of each queue.

- Nothing else removes messages, consumed or not, but the deletion of their topic. Offsets are never used again.
- The leader says where to look; what goes is decided here, by the clock of the entry: at most so many rows per entry.
- A transaction goes when it was decided, or discarded, that long ago; one that is undecided stays.
- What entries did is forgotten when the log need not keep the entries themselves.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from store.command import ExpireMessages, SweepIndex
from store.errors import INVALID_REQUEST, Refused
from store.given_back import GivenBackMarks
from store.groups import Groups
from store.index import Index
from store.limits import EXPIRED_QUEUES_MAX, EXPIRED_ROWS_MAX, SWEPT_KEYS_MAX, TRANSACTION_RETENTION_MS
from store.log_references import LogReferences
from store.message_index import MessageIndex
from store.placement import At
from store.queues import Queues
from store.retention_results import Expired, ExpiredQueue, Swept
from store.sweep import Sweep
from store.topics import DLQ_PREFIX, Topic, Topics, group_of
from store.transaction_table import TransactionTable

OUTCOMES_REMOVED_MIN: Final = 256
"""Rows of what entries did are removed for so many entries at once: each removal costs every later read a little."""


class Expiry:
    def __init__(
        self,
        index: Index,
        topics: Topics,
        queues: Queues,
        table: TransactionTable,
        groups: Groups,
        marks: GivenBackMarks,
        messages: MessageIndex,
        references: LogReferences,
        forget_outcomes: Callable[[int], None],
    ) -> None:
        """`forget_outcomes(before)` forgets what the entries before an index did."""
        self._topics = topics
        self._queues = queues
        self._table = table
        self._groups = groups
        self._marks = marks
        self._messages = messages
        self._references = references
        self._forget_outcomes = forget_outcomes
        self._sweep = Sweep(index, topics)

    def expire(self, command: ExpireMessages, at: At) -> Expired:
        if not 1 <= command.limit <= EXPIRED_ROWS_MAX or len(command.queues) > EXPIRED_QUEUES_MAX:
            detail = f"limit must be 1 to {EXPIRED_ROWS_MAX}, for at most {EXPIRED_QUEUES_MAX} queues"
            raise Refused(INVALID_REQUEST, detail)
        rows = self._remove_dropped(command.limit)
        expired: list[ExpiredQueue] = []
        for name, queue in command.queues:
            topic = self._topics.get(name)
            if topic is None or not 0 <= queue < len(topic.ends):
                continue  # deleted since the leader looked
            removed = self._expire_queue(topic, queue, at.clock_ms, command.limit - rows)
            if removed:
                rows += removed[0]
                expired.append(ExpiredQueue(name, queue, topic.starts[queue], removed[1]))
        transactions = self._table.expire(at.clock_ms - TRANSACTION_RETENTION_MS, command.limit)
        self._forget_outcomes(self._references.floor(at.raft_index - 1))  # what this entry does is kept
        return Expired(tuple(expired), rows, transactions)

    def sweep_index(self, command: SweepIndex, at: At) -> Swept:
        if not 1 <= command.limit <= SWEPT_KEYS_MAX:
            raise Refused(INVALID_REQUEST, f"limit must be 1 to {SWEPT_KEYS_MAX}, not {command.limit}")
        self._sweep.step(command.limit, at.clock_ms)
        return Swept()

    def _remove_dropped(self, limit: int) -> int:
        rows = 0
        for topic_id in tuple(self._topics.dropped):
            rows += self._queues.remove_dropped(topic_id, limit - rows)
            if rows >= limit:
                break
            self._topics.forget_dropped(topic_id)
        return rows

    def _expire_queue(self, topic: Topic, queue: int, clock_ms: int, limit: int) -> tuple[int, int] | None:
        """How many rows and messages went; None when none did."""
        until_ms = topic.expires_until_ms(clock_ms)
        if until_ms is None or limit <= 0:
            return None
        removed = self._queues.expire(topic, queue, until_ms, limit)
        if not removed:
            return None
        for row in removed:
            self._messages.forget_batch(topic.id, queue, row.base_offset, row.batch_id)
        start = topic.starts[queue]
        self._marks.expire(topic.id, queue, start)
        if topic.name.startswith(DLQ_PREFIX):
            with contextlib.suppress(Refused):  # dead letters may outlive their group
                self._marks.forget_replayed(self._groups.id_of(group_of(topic.name)), topic.id, start)
        return len(removed), sum(row.messages for row in removed)
