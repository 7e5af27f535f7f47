"""The sweep: removes keys of the search tables once their messages are gone.

The row that expires does not lead to its ids, its keys, or the groups' events: its block would have to be read. So the
tables are walked from time to time, a few keys per entry, and keys that refer to nothing any more are removed. The
index stores the position of the walk; a walk that reached the end starts anew with the next command.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from store.features import FEATURES
from store.groups.history import Commit
from store.index import keys
from store.index.index import Index
from store.limits import RETENTION_FOREVER_MS
from store.messages.log_references import Holder
from store.messages.message_index import BatchTimer
from store.messages.placement import At
from store.messages.topics import Topics

_decode_timer = msgspec.msgpack.Decoder(BatchTimer).decode
_decode_commit = msgspec.msgpack.Decoder(Commit).decode

_BEGIN: Final = keys.MESSAGE_INDEX
_ID_BEGIN: Final = 6
"""Offset of the id in a key about an id, after the table, the kind and the topic."""


class Sweep:
    def __init__(self, index: Index, topics: Topics) -> None:
        self._index = index
        self._topics = topics
        self._of_kind: dict[bytes, Callable[[bytes, bytes, At], bool]] = {
            keys.MESSAGE_INDEX + b"\x00": self._id_is_gone,
            keys.MESSAGE_INDEX + b"\x01": self._keyed_is_gone,
            keys.MESSAGE_INDEX + b"\x02": self._event_is_gone,
        }

    def step(self, limit: int, at: At) -> None:
        """Look at the next `limit` keys and remove keys that refer to nothing any more."""
        left = limit
        begin = self._index.get(keys.SWEEP_CURSOR) or _BEGIN
        gone: list[bytes] = []
        for table in (keys.MESSAGE_INDEX, keys.GROUP_HISTORY):
            for key, value in self._index.scan(max(begin, table), keys.after(table)):
                if not left:
                    self._remove(gone)
                    self._index.put(keys.SWEEP_CURSOR, key)
                    return
                left -= 1
                if self._is_gone(key, value, at):
                    gone.append(key)
        self._remove(gone)
        self._index.delete(keys.SWEEP_CURSOR)

    def _remove(self, gone: list[bytes]) -> None:
        for key in gone:
            self._index.delete(key)

    def _is_gone(self, key: bytes, value: bytes, at: At) -> bool:
        if key.startswith(keys.GROUP_HISTORY):
            # Resets are kept: a reset begins a pass, and without its beginning a pass cannot be read.
            topic_id, queue, offset = keys.group_commit_parts(key)
            if self._start_of(topic_id, queue) < offset:
                return False
            commit = _decode_commit(value)
            return commit.reset_from is None and not self._is_of_a_trace(topic_id, commit, at)
        return self._of_kind[key[:2]](key, value, at)

    def _is_of_a_trace(self, topic_id: int, commit: Commit, at: At) -> bool:
        """Return whether a commit belongs to a trace that is still shown: rows of a retry topic are released once
        processed, but their commits are shown for the topic's retention time.
        """
        topic = self._topics.by_id(topic_id)
        own = topic is not None and topic.holder is Holder.RETRY
        return own and topic is not None and commit.at_ms + topic.retention_ms > at.clock_ms

    def _keyed_is_gone(self, key: bytes, _value: bytes, _at: At) -> bool:
        _, queue, offset = keys.keyed_message_parts(key)
        return offset < self._start_of(keys.read_u32(key[2:_ID_BEGIN]), queue)

    def _event_is_gone(self, key: bytes, _value: bytes, _at: At) -> bool:
        topic_id, queue, offset = keys.place_event_parts(key)
        return offset < self._start_of(topic_id, queue)

    def _id_is_gone(self, key: bytes, value: bytes, at: At) -> bool:
        topic_id = keys.read_u32(key[2:_ID_BEGIN])
        end = key.index(b"\x00", _ID_BEGIN)
        kind, rest = key[end + 1 : end + 2], key[end + 2 :]
        if kind == keys.ID_PLACE:
            queue, offset = keys.place_parts(rest)
            return offset < self._start_of(topic_id, queue)
        if kind == keys.ID_BATCH:
            batch_id, _ = keys.batch_of_message_parts(rest)
            return not self._knows_batch(keys.known_of_id(topic_id, batch_id), at)
        if kind == keys.ID_TRANSACTION:
            return self._index.get(keys.transaction(rest.decode())) is None
        timer_key = key[: end + 1] + keys.ID_TIMER + rest
        if kind == keys.ID_FIRED:  # removed one walk after its timer's key
            return self._index.get(timer_key) is None
        return self._timer_is_gone(key[: end + 1], topic_id, _decode_timer(value), rest, at)

    def _knows_batch(self, prefix: bytes, at: At) -> bool:
        """Return whether anything is known of the batch with the id of `prefix`. Keys of messages that have the same id
        say nothing of it.
        """
        end = keys.after(prefix)
        if not FEATURES.knows("ids-of-messages-keep-no-batch", at.feature_level):
            return self._has_key(prefix, end)
        of_messages = prefix + keys.ID_BATCH
        return self._has_key(prefix, of_messages) or self._has_key(keys.after(of_messages), end)

    def _has_key(self, begin: bytes, end: bytes) -> bool:
        return next(self._index.scan(begin, end), None) is not None

    def _timer_is_gone(self, prefix: bytes, topic_id: int, timer: BatchTimer, rest: bytes, at: At) -> bool:
        fired = self._index.get(prefix + keys.ID_FIRED + rest)
        if fired is not None:
            return keys.read_u64(fired) < self._start_of(topic_id, timer.queue)
        if self._index.get(keys.timer(timer.due_ms, keys.read_u64(rest))) is not None:
            return False
        topic = self._topics.by_id(topic_id)  # neither fired nor waiting: all of its messages were cancelled
        if topic is None:
            return True
        return topic.retention_ms != RETENTION_FOREVER_MS and timer.due_ms + topic.retention_ms <= at.clock_ms

    def _start_of(self, topic_id: int, queue: int) -> int:
        """Return the start of the queue; a value beyond every offset for a topic that is gone, and for a queue that it
        never had. The latter is of no level: nodes that do not know it end at such an entry, at each start.
        """
        topic = self._topics.by_id(topic_id)
        return topic.starts[queue] if topic is not None and queue < len(topic.starts) else 1 << 63
