"""A model of retention with rules of its own. It is fed with every applied entry, once per index.

A message goes from the front of its queue, not before its retention is over by the replicated clock, unless it is one
of the oldest of a topic that keeps enough bytes without it, or was stored before the last bytes of the log that are
kept. A purge takes all messages that its queues have at that moment, those of earlier commands of its own entry
included, and a deleted topic takes its messages along. Nothing else removes a message. The model keeps removed rows, so
that the final account covers every message that ever was. The log positions that the state points at are found by
looking at the whole index; the log is needed from the first of them on.
"""

from collections import deque
from collections.abc import Sequence

from store.commands.cluster import SettingsPut
from store.commands.groups import GroupDeleted
from store.commands.retention import Expired, ExpiredQueue, ExpireMessages
from store.commands.topics import PurgeTopic, TopicDeleted, TopicPurged, TopicPut
from store.commands.views import Row
from store.errors import Refused
from store.index import keys, retention_keys
from store.index.index import Index
from store.limits import DEFAULT_RETENTION_MS
from store.log.record import Entry
from store.state.machine import StateMachine
from tests.unit.store.references import counted, pointers

from .violation import Violation

Place = tuple[str, int]
_ROWS_MAX, _BYTES_MAX = 1_000_000, 1 << 40
_TO_REMOVE = (keys.DROPPED_TOPICS, retention_keys.PURGED_QUEUES)
COUNTING_LEVEL = 2
"""The feature level from which on the bytes of topics are counted, and topics are purged."""


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
        self._stored: dict[Place, list[Row]] = {}
        """Rows that the present entry has made visible."""
        self._counts_from: int | None = None
        """Index of the first entry whose rows are counted when they are stored; None before there is one."""
        self.ever: dict[str, set[str]] = {}
        """The ids of all batches that were ever stored, by topic."""

    def begin_entry(self, entry: Entry, feature_level: int) -> None:
        """Note that an entry is applied at a feature level; its commands come next."""
        if self._counts_from is None and feature_level >= COUNTING_LEVEL:
            self._counts_from = entry.index
        self._positions[entry.index] = self._position = entry.position
        self._stored.clear()

    def store(self, rows: Sequence[tuple[Place, Row]]) -> None:
        """Take in the rows that a command has made visible, at the place where its queue ends."""
        for place, row in rows:
            if row.base_offset != self._ends.get(place, 0):
                raise Violation("retention", f"{row} of {place} is stored behind {self._ends.get(place, 0)}")
            self._ends[place] = row.next_offset
            self._kept.setdefault(place, deque()).append(row)
            self._stored.setdefault(place, []).append(row)
            self.ever.setdefault(place[0], set()).add(row.batch_id)

    def put_settings(self, result: object) -> None:
        assert isinstance(result, SettingsPut)
        self._log_retention_bytes = result.settings.log_retention_bytes

    def put_topic(self, result: TopicPut) -> None:
        topic = result.topic
        self._retention_bytes[topic.topic] = topic.retention_bytes
        self._retention_ms[topic.topic] = topic.retention_ms
        for queue in range(topic.queues):
            self._ends.setdefault((topic.topic, queue), 0)

    def delete_topic(self, result: object) -> None:
        """Forget a deleted topic. A new topic of this name begins anew."""
        if isinstance(result, TopicDeleted):
            self._retention_ms.pop(result.topic)
            self._retention_bytes.pop(result.topic)
            for place in [place for place in self._ends if place[0] == result.topic]:
                self._forget(place)

    def exists(self, place: Place) -> bool:
        """Return whether a topic has the queue."""
        return place in self._ends

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
            self._forget((topic, 0))

    def _forget(self, place: Place) -> None:
        for known in (self.gone, self._kept, self._ends, self._starts, self._stored):
            known.pop(place, None)

    def expire(self, command: ExpireMessages, result: object, clock_ms: int) -> None:
        assert isinstance(result, Expired)
        for_bytes: dict[str, list[Row]] = {}
        for expired in result.queues:
            retention_ms = self._retention_ms.get(expired.topic, self.own_ms)
            for row in self.remove(expired):
                over_ms = row.stored_at_ms + retention_ms
                is_over = retention_ms >= 0 and over_ms <= clock_ms
                if expired.topic in self._retention_ms and not is_over and not self._is_cut(row):
                    is_over = self._retention_bytes[expired.topic] >= 0
                    for_bytes.setdefault(expired.topic, []).append(row)
                elif not is_over:
                    is_over = expired.topic in self._retention_ms
                if not is_over:
                    raise Violation(
                        "retention", f"{row} of {expired} goes at {clock_ms}, its time is over at {over_ms}"
                    )
        for topic, rows in for_bytes.items():
            self._check_sizes(topic, rows)

    def purge(self, command: PurgeTopic, result: object) -> None:
        """Remove all messages that the queues have at this command."""
        places = [place for place in self._ends if place[0] == command.topic and command.queue in (None, place[1])]
        if not isinstance(result, TopicPurged):
            if not isinstance(result, Refused) or (places and command.topic in self._retention_ms):
                raise Violation("purged", f"{command} is refused: {result}")
            return
        full = sorted(queue for topic, queue in places if self._kept.get((topic, queue)))
        if [each.queue for each in result.queues] != full:
            raise Violation("purged", f"the queues {full} of {command.topic} have messages; it is said: {result}")
        for each in result.queues:
            place, kept = (each.topic, each.queue), self._kept[each.topic, each.queue]
            if each.start != self._ends[place]:
                raise Violation("purged", f"{place} ends at {self._ends[place]}; {command} gives {each}")
            self.remove(each)
            if kept:
                raise Violation("purged", f"{command} leaves {kept} in {place}")

    def _is_cut(self, row: Row) -> bool:
        """Return whether the row was stored before the last bytes of the log that are kept."""
        limit = self._log_retention_bytes
        return limit >= 0 and self._positions[row.raft_index] < self._position - limit

    def _check_sizes(self, topic: str, removed: Sequence[Row]) -> None:
        """Check that the rows that went for their bytes were the oldest of a topic that keeps enough without them."""
        kept = self._kept_of(topic)
        left = sum(row.block_length for row in kept)
        if left < self._retention_bytes[topic]:
            raise Violation("retention", f"{left} bytes of {topic} are left of {self._retention_bytes[topic]}")
        latest = max(row.stored_at_ms for row in removed)
        oldest = min((row.stored_at_ms for row in kept), default=latest)
        if latest > oldest:
            raise Violation("retention", f"a message of {topic}, of {latest}, goes before one of {oldest}")

    def _kept_of(self, topic: str) -> list[Row]:
        """Return the topic's rows, the oldest first: of the same millisecond, the one of the lowest queue."""
        places = sorted(place for place in self._kept if place[0] == topic)
        return sorted((row for place in places for row in self._kept[place]), key=lambda row: row.stored_at_ms)

    def unremoved(self, machine: StateMachine, index: Index, true_ms: int) -> str | None:
        """Return in words what retention has yet to do at the time `true_ms`, as a healed cluster does; None if there
        is nothing: a topic that keeps more bytes than it should or does not know them all, a message whose time is
        over, or rows of deleted topics or purged queues.
        """
        for (topic, queue), rows in self._kept.items():
            retention_ms = self._retention_ms.get(topic, self.own_ms)
            if rows and 0 <= retention_ms <= true_ms - rows[0].stored_at_ms:
                return f"the time of {rows[0]} of {topic} {queue} is over, it is kept for {retention_ms} ms"
        for topic, limit in self._retention_bytes.items():
            kept = self._kept_of(topic)
            total = sum(row.block_length for row in kept)
            if machine.kept_bytes(topic).total is None:
                return f"the bytes of {topic} are not all counted"
            if 0 <= limit <= total - (kept[0].block_length if kept else 0):
                return f"{topic} has {total} bytes, of which it should keep {limit}"
        if any(True for prefix in _TO_REMOVE for _ in index.scan(prefix, keys.after(prefix))):
            return "there are rows of deleted topics or purged queues"
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
        """Check, after an entry, that its rows can be read, that no other rows are gone, and the counted bytes."""
        for topic in machine.topics(system=True):
            if topic.system:
                self._ends.setdefault((topic.topic, 0), 0)
        for place, end in self._ends.items():
            start = self._starts.get(place, 0)
            if (machine.min_offset(*place), machine.max_offset(*place)) != (start, end):
                found = f"begins at {machine.min_offset(*place)} and ends at {machine.max_offset(*place)}"
                raise Violation("retention", f"{place} {found}, not at {start} and {end}")
        for place, rows in self._stored.items():
            stored = [row for row in rows if row.base_offset >= self._starts.get(place, 0)]
            begin = min((row.base_offset for row in stored), default=self._ends.get(place, 0))
            if place in self._ends and machine.rows(*place, begin, _ROWS_MAX, _BYTES_MAX) != stored:
                raise Violation("retention", f"{place} has not the rows {stored} from {begin} on")
        self._check_bytes("the first node", machine)

    def _check_bytes(self, node: str, machine: StateMachine) -> None:
        """Check that the counted bytes are those of the rows. They are not known for queues with rows of before bytes
        were counted, as long as these were not counted later.
        """
        for topic in self._retention_ms:
            for queue, told in enumerate(machine.kept_bytes(topic).queues):
                kept = self._kept.get((topic, queue), deque())
                total = sum(row.block_length for row in kept)
                is_old = bool(kept) and (self._counts_from is None or kept[0].raft_index < self._counts_from)
                if told != total and not (told is None and is_old):
                    raise Violation("counted", f"{node}: queue {queue} of {topic} has {total} bytes, counted: {told}")

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
        self._check_bytes(f"node {node_id}", machine)
        rows = sum(1 for _ in index.scan(keys.ROW, keys.after(keys.ROW)))
        kept = sum(map(len, self._kept.values()))
        if rows != kept:
            raise Violation("retention", f"node {node_id} has {rows} rows in its index, {kept} are left")
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
