"""The table of leases: messages handed out to pop consumers, each until the end of its lease.

    - A lease holds messages of one queue that were handed out together. Extending the lease of one of several messages
      gives that message a lease of its own (`single`), so that its handle stays valid.
    - A message is held by at most one lease. Its handle ends when the message is acknowledged or given back.
    - Acknowledged messages stay in their lease, for a while even after it holds no more messages, so that repeating an
      acknowledgement is answered alike.

The held messages of each queue are also known in memory: asking for a lag, or joining, must not scan the index.
"""

from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec

from store.index import keys
from store.index.index import Index

_NEVER: Final = keys.after(keys.LEASE_DUE)
_STALE_MAX: Final = 64
"""The heap of `_HeldOffsets` may hold this many offsets more than twice the handed-out ones before it is made anew from
those alone.
"""


class LeaseKey(NamedTuple):
    """The key of a lease: the entry that handed the messages out, and the lease's number within the entry. `single` is
    0, or the offset of the lease's only message plus 1.
    """

    group_id: int
    raft_index: int
    number: int
    single: int = 0


class Lease(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The value of a lease in the index."""

    topic_id: int
    queue: int
    held: tuple[int, ...]
    """Offsets that are neither acknowledged nor given back."""
    acked: tuple[int, ...]
    due_ms: int
    client_id: str


class HeldQueue(NamedTuple):
    group_id: int
    topic_id: int
    queue: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Lease).decode


class _HeldOffsets:
    """The handed-out offsets of one queue, in memory: their number, and the lowest one without a visit to all of them.
    The leases in the index are their source.
    """

    def __init__(self) -> None:
        self._out: set[int] = set()
        self._heap: list[int] = []
        """All offsets that are handed out, and some that were."""

    def __len__(self) -> int:
        return len(self._out)

    def change(self, before: Iterable[int], after: Iterable[int]) -> None:
        """Replace the handed-out offsets `before` by `after`."""
        self._out.difference_update(before)
        self._out.update(after)
        for offset in set(after).difference(before):
            heappush(self._heap, offset)
        if len(self._heap) > 2 * len(self._out) + _STALE_MAX:
            self._heap = list(self._out)
            heapify(self._heap)

    def first(self) -> int | None:
        while self._heap and self._heap[0] not in self._out:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


class Leases:
    def __init__(self, index: Index) -> None:
        """Load the held offsets: the number of leases is bounded by the number of messages that groups may hold."""
        self._index = index
        self._held: dict[HeldQueue, _HeldOffsets] = {}
        self._holding: dict[int, dict[int, int]] = {}
        """Number of queues with held messages, by topic id and group id."""
        self._of_group: dict[int, int] = {}
        self._count = 0
        self._first = keys.LEASE_DUE
        """No lease is due before this key. Scans begin here: RocksDB would have to visit all leases that ever were
        before it.
        """
        self._first_is_due = False
        for key, value in index.scan(keys.LEASE, keys.after(keys.LEASE)):
            self._count += 1
            lease = _decode(value)
            self._note_held(LeaseKey(*keys.lease_parts(key)), lease, (), lease.held)

    # Changes, during apply.

    def put(self, key: LeaseKey, lease: Lease) -> None:
        """Add a new lease."""
        self._index.put(keys.lease(*key), _encode(lease))
        self._put_due(lease.due_ms, key)
        self._count += 1
        self._note_held(key, lease, (), lease.held)

    def replace(self, key: LeaseKey, before: Lease, after: Lease) -> None:
        """Replace a lease's content or due time."""
        self._index.put(keys.lease(*key), _encode(after))
        if after.due_ms != before.due_ms:
            self._delete_due(before.due_ms, key)
            self._put_due(after.due_ms, key)
        self._note_held(key, after, before.held, after.held)

    def remove(self, key: LeaseKey, lease: Lease) -> None:
        self._index.delete(keys.lease(*key))
        self._delete_due(lease.due_ms, key)
        self._count -= 1
        self._note_held(key, lease, lease.held, ())

    def revoke(self, group_id: int, topic_id: int | None = None, queues: Container[int] | None = None) -> None:
        """End all leases of the group, or only the leases of one topic or of some of its queues: their handles end, and
        no message comes again. Looks at each lease of the group.
        """
        for key, lease in list(self.of_group(group_id)):
            if topic_id in (None, lease.topic_id) and (queues is None or lease.queue in queues):
                self.remove(key, lease)

    # Queries.

    def find(self, group_id: int, raft_index: int, number: int, offset: int) -> tuple[LeaseKey, Lease] | None:
        """Return the lease that holds the message, or has recorded its acknowledgement; None if there is none."""
        for key in (LeaseKey(group_id, raft_index, number), LeaseKey(group_id, raft_index, number, offset + 1)):
            value = self._index.get(keys.lease(*key))
            if value is not None:
                lease = _decode(value)
                if offset in lease.held or offset in lease.acked:
                    return key, lease
        return None

    def due(self, until_ms: int) -> Iterator[tuple[LeaseKey, Lease]]:
        """Yield the leases that are due at or before `until_ms`, the longest due first."""
        for due, _ in self._index.scan(self._first, keys.lease_due(until_ms + 1, (0, 0, 0, 0))):
            key = LeaseKey(*keys.lease_due_parts(due)[1])
            value = self._index.get(keys.lease(*key))
            if value is None:
                raise AssertionError(f"lease {key} is due and does not exist")
            yield key, _decode(value)

    def next_due_ms(self) -> int | None:
        """Return when the next lease ends; None without leases."""
        if not self._count:
            return None
        if not self._first_is_due:
            found = next(self._index.scan(self._first, _NEVER), None)
            if found is None:
                raise AssertionError(f"{self._count} leases are counted and none is there")
            self._first, self._first_is_due = found[0], True
        return keys.lease_due_parts(self._first)[0]

    def of_group(self, group_id: int) -> Iterator[tuple[LeaseKey, Lease]]:
        begin = keys.leases_of(group_id)
        for key, value in self._index.scan(begin, keys.after(begin)):
            yield LeaseKey(*keys.lease_parts(key)), _decode(value)

    def held(self, group_id: int, topic_id: int, queue: int) -> int:
        """Return the number of the queue's messages that the group has handed out."""
        return len(self._held.get(HeldQueue(group_id, topic_id, queue), ()))

    def held_by(self, group_id: int) -> int:
        """Return the number of messages that the group has handed out."""
        return self._of_group.get(group_id, 0)

    def first_held(self, group_id: int, topic_id: int, queue: int) -> int | None:
        """Return the lowest offset of the queue that the group has handed out; None if there is none."""
        held = self._held.get(HeldQueue(group_id, topic_id, queue))
        return held.first() if held is not None else None

    def groups_holding(self, topic_id: int) -> list[int]:
        """Return the ids of the groups that have handed out messages of the topic."""
        return sorted(self._holding.get(topic_id, ()))

    def _put_due(self, due_ms: int, key: LeaseKey) -> None:
        due = keys.lease_due(due_ms, key)
        self._index.put(due, b"")
        if due < self._first:
            self._first, self._first_is_due = due, True

    def _delete_due(self, due_ms: int, key: LeaseKey) -> None:
        due = keys.lease_due(due_ms, key)
        self._index.delete(due)
        if due == self._first:
            self._first_is_due = False

    def _note_held(self, key: LeaseKey, lease: Lease, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        if before == after:
            return
        place = HeldQueue(key.group_id, lease.topic_id, lease.queue)
        held = self._held.get(place)
        if held is None:
            held = self._held[place] = _HeldOffsets()
            self._note_holding(place, 1)
        held.change(before, after)
        if not held:
            del self._held[place]
            self._note_holding(place, -1)
        of_group = self._of_group.get(key.group_id, 0) + len(after) - len(before)
        if of_group:
            self._of_group[key.group_id] = of_group
        else:
            self._of_group.pop(key.group_id, None)

    def _note_holding(self, place: HeldQueue, change: int) -> None:
        groups = self._holding.setdefault(place.topic_id, {})
        groups[place.group_id] = queues = groups.get(place.group_id, 0) + change
        if not queues:
            del groups[place.group_id]
        if not groups:
            del self._holding[place.topic_id]
