"""Retention: messages that their topic need not keep any longer (store/state/retention_rules.py) are removed from the
front of each queue.

- Messages, consumed or not, are removed only by their retention, with their topic, or by a purge. Offsets are never
  used again.
- The leader says where to look; apply decides what is removed, by the clock and the place of the entry: a bounded
  number of rows per entry.
- A transaction is removed when its decision or discard is as old; undecided transactions stay.
- The outcomes of entries are forgotten when the log need not keep the entries themselves.
- Rows that nobody needs any more are removed earlier (store/state/release.py), by a command of its own: an old log
  replays unchanged.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from store.commands.retention import (
    BytesCounted,
    CountBytes,
    Expired,
    ExpiredQueue,
    ExpireMessages,
    Released,
    ReleaseMessages,
    SweepIndex,
    Swept,
)
from store.commands.topics import PurgeTopic, TopicPurged
from store.errors import INVALID_REQUEST, Refused
from store.limits import EXPIRED_QUEUES_MAX, EXPIRED_ROWS_MAX, SWEPT_KEYS_MAX, TRANSACTION_RETENTION_MS
from store.messages.outcomes import Event
from store.messages.placement import At
from store.messages.queues import RemovedRow
from store.messages.topics import DLQ_PREFIX, Topic, group_of, refuse_system_topic
from store.state.delivery import Delivery
from store.state.release import Releases
from store.state.sweep import Sweep
from store.state.tables import Tables

OUTCOMES_REMOVED_MIN: Final = 256
"""Outcome rows are removed for at least this many entries at once: each removal costs every later read a little."""


_ANY_TIME_MS: Final = 1 << 63


class Expiry:
    def __init__(
        self, tables: Tables, releases: Releases, delivery: Delivery, forget_outcomes: Callable[[int], None]
    ) -> None:
        """Set up; `forget_outcomes(before)` removes the outcome rows of the entries before an index."""
        self._topics = tables.topics
        self._queues = tables.queues
        self._table = tables.transactions
        self._groups = tables.groups
        self._marks = tables.marks
        self._messages = tables.messages
        self._references = tables.references
        self._outcomes = tables.outcomes
        self._releases = releases
        self._delivery = delivery
        self._forget_outcomes = forget_outcomes
        self._rules = tables.rules
        self._log_times = tables.log_times
        self._sweep = Sweep(tables.index, tables.topics)

    def expire(self, command: ExpireMessages, at: At) -> Expired:
        if not 1 <= command.limit <= EXPIRED_ROWS_MAX or len(command.queues) > EXPIRED_QUEUES_MAX:
            detail = f"limit must be 1 to {EXPIRED_ROWS_MAX}, for at most {EXPIRED_QUEUES_MAX} queues"
            raise Refused(INVALID_REQUEST, detail)
        rows = self._remove_dropped(command.limit)
        rows += self._remove_purged(command.limit - rows)
        expired: list[ExpiredQueue] = []
        for name, queue in command.queues:
            topic = self._topics.get(name)
            if topic is None or not 0 <= queue < len(topic.ends):
                continue  # deleted since the leader looked
            removed = self._expire_queue(topic, queue, at.clock_ms, command.limit - rows)
            if removed:
                rows += removed[0]
                expired.append(ExpiredQueue(name, queue, topic.starts[queue], removed[1]))
        for name, queues in _by_topic(command.queues).items() if command.by_bytes_before else ():
            topic = self._topics.get(name)
            if topic is not None and self._rules.may_exceed(topic):
                before = min(command.by_bytes_before, at.raft_index)
                removed_rows = self._shrink(topic, _there(topic, queues), before, command.limit - rows)
                for queue, of_queue in removed_rows.items():
                    rows += len(of_queue)
                    messages = self._forget(topic, queue, of_queue)
                    expired.append(ExpiredQueue(name, queue, topic.starts[queue], messages))
        transactions = self._table.expire(at.clock_ms - TRANSACTION_RETENTION_MS, command.limit)
        self._forget_outcomes(self._references.needed(at.raft_index - 1))  # the outcome of this entry is kept
        needed = self._references.needed_position()
        self._log_times.forget_before(at.position if needed is None else needed)
        return Expired(tuple(expired), rows, transactions)

    def release(self, command: ReleaseMessages, at: At) -> Released:
        """Remove rows that may go before their retention is over; topics without such rows are skipped."""
        if not 1 <= command.limit <= EXPIRED_ROWS_MAX or len(command.topics) > EXPIRED_QUEUES_MAX:
            detail = f"limit must be 1 to {EXPIRED_ROWS_MAX}, for at most {EXPIRED_QUEUES_MAX} topics"
            raise Refused(INVALID_REQUEST, detail)
        left, dropped = self._delivery.drop(tuple(sorted(self._topics.dropped_timers)), command.limit)
        released: list[ExpiredQueue] = []
        for name in command.topics:
            topic = self._topics.get(name)
            may_go = self._releases.rule(topic, at.clock_ms) if topic is not None else None
            if topic is None or may_go is None:
                continue
            removed = self._queues.release(topic, may_go, left)
            left -= len(removed)
            if removed:
                messages = self._forget(topic, 0, removed)
                released.append(ExpiredQueue(name, 0, topic.starts[0], messages))
        self._forget_outcomes(self._references.needed(at.raft_index - 1))
        return Released(tuple(released), dropped)

    def sweep_index(self, command: SweepIndex, at: At) -> Swept:
        if not 1 <= command.limit <= SWEPT_KEYS_MAX:
            raise Refused(INVALID_REQUEST, f"limit must be 1 to {SWEPT_KEYS_MAX}, not {command.limit}")
        self._sweep.step(command.limit, at)
        return Swept()

    def _remove_dropped(self, limit: int) -> int:
        rows = 0
        for topic_id, holder in sorted(self._topics.dropped.items()):
            rows += self._queues.remove_dropped(topic_id, holder, limit - rows)
            if rows >= limit:
                break
            self._topics.forget_dropped(topic_id)
        return rows

    def _remove_purged(self, limit: int) -> int:
        rows = 0
        for topic_id, queue in sorted(self._topics.purged):
            if rows >= limit:
                break
            topic = self._topics.by_id(topic_id)
            assert topic is not None, "a deleted topic has no purged queues"
            removed = self._queues.remove_purged(topic, queue, limit - rows)
            self._forget(topic, queue, removed)
            rows += len(removed)
        return rows

    def _shrink(
        self, topic: Topic, queues: Collection[int], before_index: int, limit: int
    ) -> dict[int, list[RemovedRow]]:
        """Remove the oldest rows of these queues, of entries before `before_index`, as long as the topic keeps its
        `retention_bytes` without them; return them by queue.
        """
        removed: dict[int, list[RemovedRow]] = {}
        firsts = [(ms, queue) for queue in queues if (ms := self._queues.first_stored_at_ms(topic, queue)) is not None]
        heapify(firsts)
        while firsts and limit > 0:
            _, queue = heappop(firsts)
            until_ms = firsts[0][0] if firsts else _ANY_TIME_MS
            rows = self._queues.shrink(topic, queue, until_ms, before_index, limit)
            if not rows:
                break
            removed.setdefault(queue, []).extend(rows)
            limit -= len(rows)
            first_ms = self._queues.first_stored_at_ms(topic, queue)
            if first_ms is not None:
                heappush(firsts, (first_ms, queue))
        return removed

    def count_bytes(self, command: CountBytes) -> BytesCounted:
        if not 1 <= command.limit <= EXPIRED_ROWS_MAX or len(command.queues) > EXPIRED_QUEUES_MAX:
            detail = f"limit must be 1 to {EXPIRED_ROWS_MAX}, for at most {EXPIRED_QUEUES_MAX} queues"
            raise Refused(INVALID_REQUEST, detail)
        rows = 0
        for name, queue in command.queues:
            topic = self._topics.get(name)
            if topic is not None and 0 <= queue < len(topic.ends):
                rows += self._queues.count_bytes(topic, queue, command.limit - rows)
        return BytesCounted(rows)

    def purge(self, command: PurgeTopic) -> TopicPurged:
        """Move the starts of the queues to their ends. Their rows are removed by ExpireMessages, in portions."""
        topic = self._topics.require(command.topic)
        refuse_system_topic(topic)
        if command.queue is not None:
            topic.require_queue(command.queue)
        queues = range(len(topic.ends)) if command.queue is None else (command.queue,)
        purged: list[ExpiredQueue] = []
        for queue in queues:
            messages, start = self._queues.purge(topic, queue), topic.starts[queue]
            if messages:
                purged.append(ExpiredQueue(topic.name, queue, start, messages))
                self._outcomes.add(Event("PURGE", None, topic.name, queue, start - messages, start))
        return TopicPurged(tuple(purged))

    def _expire_queue(self, topic: Topic, queue: int, clock_ms: int, limit: int) -> tuple[int, int] | None:
        """Return how many rows and messages were removed from the queue; None when there were none."""
        until_ms = self._rules.over_until_ms(topic, clock_ms)
        if until_ms is None or limit <= 0:
            return None
        removed = self._queues.expire(topic, queue, until_ms, limit)
        return (len(removed), self._forget(topic, queue, removed)) if removed else None

    def _forget(self, topic: Topic, queue: int, removed: Sequence[RemovedRow]) -> int:
        """Remove the data kept about rows that were removed from the front of the queue; return the number of their
        messages.
        """
        for row in removed:
            self._messages.forget_batch(topic.id, queue, row.base_offset, row.batch_id)
        start = topic.starts[queue]
        self._marks.expire(topic.id, queue, start)
        if topic.name.startswith(DLQ_PREFIX):
            with contextlib.suppress(Refused):  # dead letters may outlive their group
                self._marks.forget_replayed(self._groups.id_of(group_of(topic.name)), topic.id, start)
        return sum(row.messages for row in removed)


def _there(topic: Topic, queues: Sequence[int]) -> list[int]:
    """Return the queues that the topic has: it may have been made anew with fewer since the leader looked."""
    return [queue for queue in queues if 0 <= queue < len(topic.ends)]


def _by_topic(queues: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the queues by topic, each once, in the order of their first mention; a topic has 1,000 at most."""
    found: dict[str, dict[int, None]] = {}
    for name, queue in queues:
        found.setdefault(name, {})[queue] = None
    return {name: list(numbers) for name, numbers in found.items()}
