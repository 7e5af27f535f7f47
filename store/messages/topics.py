"""Topics and the ends of their queues.

All topics are held in memory (their number does not grow with traffic) and written through to the index. A topic's id
is never used again: data stored for a deleted topic can never be taken for data of a later topic with the same name.
"""

from operator import le
from typing import Final

import msgspec

from store.commands.topics import DeleteTopic, PutTopic, TopicInfo, TopicType
from store.errors import (
    INVALID_REQUEST,
    QUEUE_NOT_FOUND,
    SYSTEM_TOPIC,
    TOPIC_EXISTS_WITH_MORE_QUEUES,
    TOPIC_NOT_FOUND,
    TOPIC_TYPE_MISMATCH,
    Refused,
)
from store.index import keys, retention_keys
from store.index.index import Index
from store.limits import (
    DEFAULT_QUEUES,
    DEFAULT_RETENTION_MS,
    QUEUES_MAX,
    RETENTION_FOREVER_MS,
    RETENTION_UNLIMITED_BYTES,
)
from store.messages.log_references import Holder
from store.messages.sorted_names import SortedNames

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SYSTEM_TOPICS: Final = (HALF_TOPIC, OP_HALF_TOPIC, DISCARDED_TOPIC)
"""The system topics, present in every index from the start, with the ids 1, 2 and 3 and one queue each."""

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
"""Prefixes of a group's own topics: one for its retries, one for its dead letters. Each is created with its first
message.
"""

FIRST_TOPIC_ID: Final = len(SYSTEM_TOPICS) + 1


# Kinds of messages, each with the topic types that take the kind.
_PLAIN: Final = ("plain message", ("normal", "fifo", "any"))
_DELAYED: Final = ("delayed message", ("delay", "any"))
_HALF: Final = ("message of a transaction", ("transaction", "any"))


class _Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The value of a topic in the index."""

    id: int
    queues: int
    retention_ms: int
    type: TopicType
    created_at_ms: int
    retention_bytes: int = RETENTION_UNLIMITED_BYTES


class Topic:
    """A topic, with the first kept offset and the next offset of each of its queues."""

    __slots__ = (
        "counted_from",
        "created_at_ms",
        "ends",
        "first_stored_at_ms",
        "holder",
        "id",
        "kept_bytes",
        "name",
        "oldest_ms",
        "queue_bytes",
        "retention_bytes",
        "retention_ms",
        "starts",
        "system",
        "type",
    )

    def __init__(self, name: str, record: _Record) -> None:
        self.name = name
        self.id = record.id
        self.retention_ms = record.retention_ms
        self.retention_bytes = record.retention_bytes
        self.type: TopicType = record.type
        self.system = record.id < FIRST_TOPIC_ID or is_of_group(name)
        self.holder = holder_of(name)
        """The kind of holder as which the topic's rows point at the log."""
        self.created_at_ms = record.created_at_ms
        self.oldest_ms = -1
        """No kept message was stored before this time, as of the last walk; -1 before the first walk. Not part of the
        state.
        """
        self.first_stored_at_ms: dict[int, int] = {}
        """`stored_at_ms` of the first rows that were looked up, by queue. Not part of the state."""
        self.ends = [0] * record.queues
        self.starts = [0] * record.queues
        self.queue_bytes = [0] * record.queues
        """Bytes, by queue, of the blocks of the kept rows from `counted_from` on."""
        self.counted_from = [0] * record.queues
        """By queue, the offset before which the bytes of kept rows are not counted."""
        self.kept_bytes = 0
        """The sum of `queue_bytes`."""

    def expires_until_ms(self, clock_ms: int) -> int | None:
        """Return the time at or before which stored messages are expired at `clock_ms`; None if they never expire."""
        return None if self.retention_ms == RETENTION_FOREVER_MS else clock_ms - self.retention_ms

    def info(self) -> TopicInfo:
        return TopicInfo(
            self.name,
            len(self.ends),
            self.type,
            self.retention_ms,
            self.system,
            self.created_at_ms,
            self.retention_bytes,
        )

    def grow(self, queues: int) -> None:
        """Add empty queues up to this number."""
        for each in (self.starts, self.ends, self.queue_bytes, self.counted_from):
            each.extend([0] * (queues - len(each)))

    def add_bytes(self, queue: int, count: int) -> None:
        self.queue_bytes[queue] += count
        self.kept_bytes += count

    def is_uncounted(self, queue: int) -> bool:
        """Return whether the bytes of some kept rows of the queue are not counted."""
        return self.counted_from[queue] > self.starts[queue]

    def is_counted(self) -> bool:
        """Return whether the bytes of all kept rows are counted."""
        return all(map(le, self.counted_from, self.starts))

    def require_queue(self, queue: int) -> None:
        if not 0 <= queue < len(self.ends):
            detail = f"topic {self.name} has the queues 0 to {len(self.ends) - 1}, not {queue}"
            raise Refused(QUEUE_NOT_FOUND, detail, {"topic": self.name, "queue": queue})


_decode = msgspec.msgpack.Decoder(_Record).decode
_encode_value = msgspec.msgpack.Encoder().encode


def _encode(record: _Record) -> bytes:
    fields = msgspec.structs.astuple(record)
    # Without a limit as before there were limits: nodes of feature level 1 read and write that alone.
    return _encode_value(fields[:-1] if record.retention_bytes == RETENTION_UNLIMITED_BYTES else fields)


class Topics:
    def __init__(self, index: Index, next_id: int) -> None:
        """Load all topics. `next_id` is the id of the next new topic."""
        self._index = index
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._names = SortedNames()
        self._user_names = SortedNames()
        self._own_names = SortedNames()
        """Names of the system's and the groups' own topics, whose rows may go before their retention is over."""
        self.next_id = next_id
        self.of_clients = 0
        """Number of topics that are neither system topics nor groups' own."""
        for key, value in index.scan(keys.TOPIC, keys.after(keys.TOPIC)):
            topic = Topic(key[1:].decode(), _decode(value))
            for queue in range(len(topic.ends)):
                end = index.get(keys.queue_end(topic.id, queue))
                if end is not None:
                    topic.ends[queue], kept_bytes, topic.counted_from[queue] = retention_keys.read_queue_end(end)
                    topic.add_bytes(queue, kept_bytes)
            self._add(topic)
        for key, value in index.scan(keys.QUEUE_STARTS, keys.after(keys.QUEUE_STARTS)):
            self._by_id[keys.read_u32(key[2:6])].starts[int.from_bytes(key[6:8])] = keys.read_u64(value)
        dropped = index.scan(keys.DROPPED_TOPICS, keys.DECIDED)
        self.dropped = {keys.read_u32(key[2:6]): Holder(value[0] if value else 0) for key, value in dropped}
        """Deleted topics that still have rows: by topic id, the kind of holder as which the rows point at the log."""
        timers = index.scan(keys.DROPPED_TIMERS, keys.after(keys.DROPPED_TIMERS))
        self.dropped_timers = {keys.read_u32(key[2:6]) for key, _ in timers}
        """Ids of deleted topics that may still have timers."""
        purged = index.scan(retention_keys.PURGED_QUEUES, keys.after(retention_keys.PURGED_QUEUES))
        self.purged = {retention_keys.purged_queue_parts(key): keys.read_u64(value) for key, value in purged}
        """Purged queues that still have rows before their start: by topic id and queue, the first offset of them."""
        self.counts_bytes = False
        """Whether appended rows are counted, as they are from feature level 2 on."""
        self._moved: dict[tuple[int, int], Topic] = {}
        """Queues, by topic id and number, whose end or bytes the entry under way has changed."""

    def create_system_topics(self) -> None:
        """Put the system topics into a new index."""
        for topic_id, name in enumerate(SYSTEM_TOPICS, start=1):
            record = _Record(topic_id, 1, DEFAULT_RETENTION_MS, "any", 0)
            self._index.put(keys.topic(name), _encode(record))
            self._add(Topic(name, record))

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        return self._by_id.get(topic_id)

    def require(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(TOPIC_NOT_FOUND, f"topic {name} does not exist: create it first", {"topic": name})
        return topic

    def all(self) -> list[Topic]:
        """Return all topics in the order of their names."""
        return [self._topics[name] for name in self._names]

    def after(self, name: str | None, limit: int) -> list[Topic]:
        """Return at most `limit` topics after `name`, in the order of their names."""
        return [self._topics[each] for each in self._names.after(name, limit)]

    def users_after(self, name: str | None, limit: int) -> list[Topic]:
        """Return topics like `after`, without system topics."""
        return [self._topics[each] for each in self._user_names.after(name, limit)]

    def own_after(self, name: str | None, limit: int) -> list[Topic]:
        """Return topics like `after`, but only the system's topics and the groups' own."""
        return [self._topics[each] for each in self._own_names.after(name, limit)]

    def put(self, command: PutTopic, clock_ms: int) -> tuple[Topic, bool]:
        """Create or change a topic; return the topic, and whether it is new."""
        self._check(command)
        topic = self._topics.get(command.topic)
        created = topic is None
        if topic is None:
            queues = DEFAULT_QUEUES if command.queues is None else command.queues
            topic = Topic(command.topic, _Record(self.next_id, queues, DEFAULT_RETENTION_MS, "any", clock_ms))
            self.next_id += 1
            self._add(topic)
        elif command.queues is not None:
            topic.grow(command.queues)
        if command.retention_ms is not None:
            topic.retention_ms = command.retention_ms
        if command.retention_bytes is not None:
            topic.retention_bytes = command.retention_bytes
        if command.type is not None:
            topic.type = command.type
        record = _Record(
            topic.id, len(topic.ends), topic.retention_ms, topic.type, topic.created_at_ms, topic.retention_bytes
        )
        self._index.put(keys.topic(topic.name), _encode(record))
        return topic, created

    def create_of_group(self, name: str, clock_ms: int) -> Topic:
        """Create a group's own topic, which must not exist yet, with one queue."""
        record = _Record(self.next_id, 1, DEFAULT_RETENTION_MS, "any", clock_ms)
        self.next_id += 1
        topic = Topic(name, record)
        self._add(topic)
        self._index.put(keys.topic(name), _encode(record))
        return topic

    def delete(self, command: DeleteTopic) -> Topic:
        """Remove a client's topic; its rows, dedupe ids and timers are removed later, in portions. Refused for system
        topics.
        """
        topic = self.require(command.topic)
        refuse_system_topic(topic)
        self.remove(topic)
        return topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic as `delete` does, but of any kind."""
        self._index.delete(keys.topic(topic.name))
        for prefix in (keys.queue_ends(topic.id), keys.queue_starts(topic.id)):
            self._index.delete_range(prefix, keys.after(prefix))
        self._forget_purged(topic)
        by_time = keys.topic_timers_by_time(topic.id)
        if next(self._index.scan(by_time, keys.after(by_time)), None) is not None:
            self.dropped_timers.add(topic.id)
            self._index.put(keys.dropped_timers(topic.id), b"")
        # The listing by time stays: Delivery finds the timers in it, and removes them in portions.
        self._index.delete_range(keys.after(by_time), keys.after(keys.topic_timers(topic.id)))
        if any(topic.ends):
            self.dropped[topic.id] = topic.holder
            self._index.put(keys.dropped_topic(topic.id), bytes((topic.holder,)))
        del self._topics[topic.name]
        del self._by_id[topic.id]
        self.of_clients -= not topic.system
        self._names.remove(topic.name)
        self._names_of(topic).remove(topic.name)

    def advance(self, topic: Topic, queue: int, count: int, row_bytes: int) -> int:
        """Take `count` offsets of the queue for a row whose block has `row_bytes`; return the first one."""
        base_offset = topic.ends[queue]
        topic.ends[queue] = end = base_offset + count
        if self.counts_bytes:
            topic.add_bytes(queue, row_bytes)
            self.store_end(topic, queue)
        else:
            topic.counted_from[queue] = end
            self._index.put(keys.queue_end(topic.id, queue), keys.u64(end))
        return base_offset

    def store_end(self, topic: Topic, queue: int) -> None:
        """Write the queue's end with the bytes that are counted, once the entry is carried out: an entry has many
        messages of one queue.
        """
        self._moved[topic.id, queue] = topic

    def end_entry(self) -> None:
        """Close the entry: write the ends that it moved, in the order in which they were first moved."""
        for (topic_id, queue), topic in self._moved.items():
            if topic_id in self._by_id:  # or it was deleted by the same entry
                end, counted_from = topic.ends[queue], topic.counted_from[queue]
                value = retention_keys.queue_end_value(end, topic.queue_bytes[queue], counted_from)
                self._index.put(keys.queue_end(topic_id, queue), value)
        self._moved.clear()

    def set_start(self, topic: Topic, queue: int, start: int) -> None:
        """Move the start of the queue: messages before `start` are gone."""
        topic.starts[queue] = start
        self._index.put(keys.queue_start(topic.id, queue), keys.u64(start))

    def purge(self, topic: Topic, queue: int) -> None:
        """Move the start of the queue to its end. The rows are removed later, in portions."""
        first = self.purged.get((topic.id, queue), topic.starts[queue])
        self.set_purged(topic, queue, first)
        topic.add_bytes(queue, -topic.queue_bytes[queue])
        topic.counted_from[queue] = topic.ends[queue]
        self.store_end(topic, queue)
        self.set_start(topic, queue, topic.ends[queue])

    def set_purged(self, topic: Topic, queue: int, first: int | None) -> None:
        """Note the first offset of the purged rows that the queue still has; None: it has none."""
        if first is None:
            del self.purged[topic.id, queue]
            self._index.delete(retention_keys.purged_queue(topic.id, queue))
        else:
            self.purged[topic.id, queue] = first
            self._index.put(retention_keys.purged_queue(topic.id, queue), keys.u64(first))

    def _forget_purged(self, topic: Topic) -> None:
        """Forget the purged queues of a topic whose rows go with the topic."""
        for queue in range(len(topic.ends)) if self.purged else ():
            if (topic.id, queue) in self.purged:
                self.set_purged(topic, queue, None)

    def forget_dropped(self, topic_id: int) -> None:
        """Note that the deleted topic has no rows any more."""
        del self.dropped[topic_id]
        self._index.delete(keys.dropped_topic(topic_id))

    def forget_dropped_timers(self, topic_id: int) -> None:
        """Note that the deleted topic has no timers any more."""
        self.dropped_timers.remove(topic_id)
        self._index.delete(keys.dropped_timers(topic_id))

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self.of_clients += not topic.system
        self._names.add(topic.name)
        self._names_of(topic).add(topic.name)

    def _names_of(self, topic: Topic) -> SortedNames:
        return self._own_names if topic.system else self._user_names

    def _check(self, command: PutTopic) -> None:
        if command.queues is not None and not 1 <= command.queues <= QUEUES_MAX:
            raise Refused(INVALID_REQUEST, f"queues must be 1 to {QUEUES_MAX}, not {command.queues}")
        retention_ms = command.retention_ms
        if retention_ms is not None and retention_ms < 1 and retention_ms != RETENTION_FOREVER_MS:
            raise Refused(INVALID_REQUEST, f"retention_ms must be at least 1, or -1 for ever, not {retention_ms}")
        limit = command.retention_bytes
        if limit is not None and limit < 1 and limit != RETENTION_UNLIMITED_BYTES:
            raise Refused(INVALID_REQUEST, f"retention_bytes must be at least 1, or -1 for no limit, not {limit}")
        topic = self._topics.get(command.topic)
        if topic is None:
            if is_of_group(command.topic):
                raise _system_topic(command.topic)
            return
        refuse_system_topic(topic)
        if command.queues is not None and command.queues < len(topic.ends):
            detail = f"topic {topic.name} has {len(topic.ends)} queues; their number can only grow"
            raise Refused(TOPIC_EXISTS_WITH_MORE_QUEUES, detail, {"topic": topic.name, "queues": len(topic.ends)})


def topic_id_of(value: bytes) -> int:
    """Return the id of a topic from its value in the index."""
    return _decode(value).id


def holder_of(name: str) -> Holder:
    """Return the kind of holder as which a row of the topic points at the log."""
    if name.startswith(RETRY_PREFIX):
        return Holder.RETRY
    if name.startswith(DLQ_PREFIX):
        return Holder.DEAD_LETTER
    return {HALF_TOPIC: Holder.VIEW, DISCARDED_TOPIC: Holder.TRANSACTION}.get(name, Holder.MESSAGE)


def is_of_group(name: str) -> bool:
    """Return whether `name` is the name of a group's own topic."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def group_of(name: str) -> str:
    """Return the group that owns the topic `name`."""
    return name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)


def refuse_system_topic(topic: Topic) -> None:
    if topic.system:
        raise _system_topic(topic.name)


def _system_topic(name: str) -> Refused:
    return Refused(SYSTEM_TOPIC, f"{name} is a system topic: it can only be read", {"topic": name})


def require_writable(topic: Topic, *, transactional: bool, delayed: bool) -> None:
    """Refuse (`system_topic`, `topic_type_mismatch`) a kind of message that the topic does not take: `normal` and
    `fifo` take plain messages without a delay, `delay` only delayed ones, `transaction` only half messages with or
    without a delay, `any` takes all.
    """
    refuse_system_topic(topic)
    kind, types = _DELAYED if delayed else _PLAIN
    if transactional:
        kind, types = _HALF
    if topic.type not in types:
        raise Refused(
            TOPIC_TYPE_MISMATCH,
            f"topic {topic.name} has the type {topic.type}, which takes no {kind}",
            {"topic": topic.name, "type": topic.type},
        )
