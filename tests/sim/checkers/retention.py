"""A model of retention with rules of its own. It is fed with every applied entry, once per index.

A message goes from the front of its queue, not before its retention is over by the replicated clock, unless it is one
of the oldest of a topic that keeps enough bytes without it, or was stored before the last bytes of the log that are
kept. Nothing else removes it. The model keeps removed rows, so that the final account covers every message that ever
was. The log positions that the state points at are found by looking at the whole index; the log is needed from the
first of them on.
"""

from collections import deque

from store.commands.cluster import SettingsPut
from store.commands.groups import GroupDeleted
from store.commands.retention import Expired, ExpiredQueue, ExpireMessages
from store.commands.topics import TopicPut
from store.commands.views import Row
from store.index import keys
from store.index.index import Index
from store.limits import DEFAULT_RETENTION_MS
from store.log.record import Entry
from store.state.machine import StateMachine
from tests.unit.store.references import counted, pointers

from .violation import Violation

Place = tuple[str, int]
_ROWS_MAX, _BYTES_MAX = 1_000_000, 1 << 40


class Retention:
    def __init__(self) -> None:
        self.gone: dict[Place, list[Row]] = {}
        self.own_ms = DEFAULT_RETENTION_MS
        """Retention in ms of topics that nobody can configure: system topics, and the groups' own topics."""
        self._kept: dict[Place, deque[Row]] = {}
        self._ends: dict[Place, int] = {}
        self._starts: dict[Place, int] = {}
        self._retention_ms: dict[str, int] = {}
        self._retention_bytes: dict[str, int] = {}
        self._log_retention_bytes = -1
        self._positions: dict[int, int] = {}
        """Log position of each entry, by its index."""
        self._position = 0
        self._removed: list[tuple[str, Row, bool]] = []
        """What the present entry removes from clients' topics, and whether it is for its bytes alone."""

    def begin_entry(self, entry: Entry) -> None:
        """Note that an entry is applied; its commands come next."""
        self._positions[entry.index] = self._position = entry.position
        self._removed.clear()

    def put_settings(self, result: object) -> None:
        assert isinstance(result, SettingsPut)
        self._log_retention_bytes = result.settings.log_retention_bytes

    def put_topic(self, result: TopicPut) -> None:
        topic = result.topic
        self._retention_bytes[topic.topic] = topic.retention_bytes
        self._retention_ms[topic.topic] = topic.retention_ms
        for queue in range(topic.queues):
            self._ends.setdefault((topic.topic, queue), 0)

    def start(self, place: Place) -> int:
        """Return the first offset of the queue that is not gone."""
        return self._starts.get(place, 0)

    def ever_in(self, machine: StateMachine, topic: str) -> list[Row]:
        """Return everything that was ever in the one queue of a group's own topic, gone messages included."""
        left = machine.rows(topic, 0, 0, _ROWS_MAX, _BYTES_MAX) if machine.topic(topic) is not None else []
        return [*self.gone.get((topic, 0), ()), *left]

    def delete_group(self, result: object) -> None:
        """Forget the deleted group's own topics, which are gone. Those of a new group of this name begin anew."""
        for topic in result.topics if isinstance(result, GroupDeleted) else ():
            for known in (self.gone, self._kept, self._ends, self._starts):
                known.pop((topic, 0), None)

    def expire(self, command: ExpireMessages, result: object, clock_ms: int) -> None:
        assert isinstance(result, Expired)
        for expired in result.queues:
            retention_ms = self._retention_ms.get(expired.topic, self.own_ms)
            for row in self.remove(expired):
                over_ms = row.stored_at_ms + retention_ms
                is_over = retention_ms >= 0 and over_ms <= clock_ms
                if expired.topic in self._retention_ms:
                    is_over = is_over or self._is_cut(row)
                    self._removed.append((expired.topic, row, not is_over))
                    is_over = is_over or self._retention_bytes[expired.topic] >= 0
                if not is_over:
                    raise Violation(
                        "retention", f"{row} of {expired} goes at {clock_ms}, its time is over at {over_ms}"
                    )

    def _is_cut(self, row: Row) -> bool:
        """Return whether the row was stored before the last bytes of the log that are kept."""
        limit = self._log_retention_bytes
        return limit >= 0 and self._positions[row.raft_index] < self._position - limit

    def _check_sizes(self) -> None:
        """Check that the rows that went for their bytes were the oldest of topics that keep enough without them."""
        for topic in {topic for topic, _, for_bytes in self._removed if for_bytes}:
            kept = [row for place, rows in self._kept.items() if place[0] == topic for row in rows]
            left = sum(row.block_length for row in kept)
            other = sum(row.block_length for name, row, for_bytes in self._removed if name == topic and not for_bytes)
            if left + other < self._retention_bytes[topic]:
                raise Violation("retention", f"{left} bytes of {topic} are left of {self._retention_bytes[topic]}")
            latest = max(row.stored_at_ms for name, row, for_bytes in self._removed if name == topic and for_bytes)
            oldest = min((row.stored_at_ms for row in kept), default=latest)
            if latest > oldest:
                raise Violation("retention", f"a message of {topic}, of {latest}, goes before one of {oldest}")

    def too_large(self, machine: StateMachine) -> str | None:
        """Return in words which topic keeps more bytes than it should, which no healed cluster does; None: no topic."""
        for topic, limit in self._retention_bytes.items():
            kept = sorted(
                (row.stored_at_ms, place[1], row.base_offset, row.block_length)
                for place, rows in self._kept.items()
                if place[0] == topic
                for row in rows
            )
            total = sum(each[3] for each in kept)
            if machine.kept_bytes(topic).total != total:
                raise Violation("retention", f"{topic} has {total} bytes and counts {machine.kept_bytes(topic)}")
            if 0 <= limit <= total - (kept[0][3] if kept else 0):
                return f"{topic} has {total} bytes, of which it should keep {limit}"
        return None

    def remove(self, expired: ExpiredQueue) -> list[Row]:
        """Remove the expired rows from the front of the queue and return them."""
        place = (expired.topic, expired.queue)
        if place not in self._ends:
            raise Violation("retention", f"{place} was never heard of, and loses {expired}")
        kept, gone = self._kept[place], list[Row]()
        while kept and kept[0].base_offset < expired.start:
            gone.append(kept.popleft())
        self.gone.setdefault(place, []).extend(gone)
        self._starts[place] = kept[0].base_offset if kept else self._ends[place]
        messages = sum(row.count for row in gone)
        if (expired.start, expired.messages) != (self._starts[place], messages):
            raise Violation("retention", f"{messages} messages of {place} are gone, and it is said: {expired}")
        return gone

    def on_applied(self, machine: StateMachine) -> None:
        """Take in the rows that an entry made visible, and check that no other rows are gone."""
        for topic in machine.topics(system=True):
            if topic.system:
                self._ends.setdefault((topic.topic, 0), 0)
        for place, end in self._ends.items():
            new_end = machine.max_offset(*place)
            if new_end != end:
                rows = machine.rows(*place, end, _ROWS_MAX, _BYTES_MAX)
                self._kept.setdefault(place, deque()).extend(rows)
                self._ends[place] = new_end
            if machine.min_offset(*place) != self._starts.get(place, 0):
                raise Violation(
                    "retention", f"{place} begins at {machine.min_offset(*place)}, not at {self._starts.get(place, 0)}"
                )

        self._check_sizes()

    def check_replica(self, node_id: int, machine: StateMachine, index: Index, position_of_floor: int) -> None:
        """Check that the node has exactly the messages that are left, and needs no more of the log than it says;
        `position_of_floor` is the log position from which it needs the log.
        """
        for place in self._ends:
            start = self._starts.get(place, 0)
            if machine.min_offset(*place) != start:
                raise Violation(
                    "retention", f"node {node_id}: {place} begins at {machine.min_offset(*place)}, not at {start}"
                )
        places = [each.position for each in pointers(index)]
        first = min(places, default=None)
        if first is not None and first < position_of_floor:
            raise Violation(
                "log_floor",
                f"node {node_id} needs the log from {first} on, and would let it go up to {position_of_floor}",
            )
        if sum(counted(index).values()) != len(places):
            raise Violation(
                "log_floor", f"node {node_id}: {len(places)} blocks are pointed at, and counted {counted(index)}"
            )
        if any(key[:2] == keys.DROPPED_TOPICS for key, _ in index.scan(keys.DROPPED_TOPICS, keys.DECIDED)):
            raise Violation("retention", f"node {node_id} has rows of topics that nobody deleted")
