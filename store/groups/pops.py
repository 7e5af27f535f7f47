"""Pop consumers: messages are handed out one by one, to any consumer that asks, and each is acknowledged on its own.

- Handing out is an entry: it moves the group's offset past the messages and puts them into a lease
  (store/groups/leases.py). Messages handed out by one leader stay held under the next one.
- A message that is not acknowledged in time is given back as any message is (store/groups/redelivery.py): it comes
  again by way of `%RETRY%<group>`, with one attempt more, or is a dead letter.
- A handle is good until its message is given back: a message acknowledged a little late, but before that, is processed.
- An acknowledgement is remembered for POP_ACK_KEPT_MS: a consumer that repeats it, for want of an answer, must not hear
  that it came too late and undo its work.
- The queue from which a pop takes first rotates, so that neither a queue nor the retries starve.
"""

from collections.abc import Collection, Sequence

import msgspec

from store.commands.groups import GivenBack
from store.commands.pops import (
    AckOutcome,
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    Popped,
    PoppedMessages,
    PopPick,
    PopsAcked,
    PopsExpired,
)
from store.errors import HANDLE_EXPIRED, INVALID_REQUEST, TOO_MANY_HELD, Refused
from store.groups.given_back import Mark
from store.groups.groups import Groups
from store.groups.history import encoded_commits
from store.groups.leases import Lease, LeaseKey, Leases
from store.groups.record import Group
from store.groups.redelivery import Redeliveries
from store.limits import (
    GIVE_BACK_REASON_BYTES_MAX,
    POP_ACK_KEPT_MS,
    POP_ACK_SWEPT_MS,
    POP_BYTES_MAX,
    POP_HELD_MAX,
    POP_INVISIBLE_MS_MAX,
    POP_MESSAGES_MAX,
)
from store.messages.outcomes import Event, Outcomes
from store.messages.placement import At
from store.messages.queues import Queues
from store.messages.topics import RETRY_PREFIX, Topic, Topics, is_of_group

TIMED_OUT = "not acknowledged in time"


class _Taken:
    """The remaining limits of one pop, across its queues."""

    def __init__(self, messages_max: int) -> None:
        self.messages_left = messages_max
        self.bytes_left = POP_BYTES_MAX
        self.any = False


class Pops:
    """Carries out the commands of pop consumers. Owned by the thread that applies."""

    def __init__(
        self,
        topics: Topics,
        queues: Queues,
        groups: Groups,
        leases: Leases,
        redeliveries: Redeliveries,
        outcomes: Outcomes,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._leases = leases
        self._redeliveries = redeliveries
        self._outcomes = outcomes
        self._entry = 0
        self._number = 0
        """Number of leases that the entry being applied has made so far."""

    def pop(self, command: Pop, at: At) -> Popped:
        """Hand messages out: one lease for the messages of each queue, and the group's offset moves past them. None is
        handed out for a paused group. Refused (`too_many_held`), and as Groups.pop does.
        """
        topic = self._checked_topic(command)
        room = POP_HELD_MAX - self._groups.held(command.group)
        if room <= 0:
            detail = f"pop consumers of group {command.group} hold {POP_HELD_MAX} messages: acknowledge some first"
            raise Refused(TOO_MANY_HELD, detail, {"held_max": POP_HELD_MAX})
        group = self._groups.pop(command, topic, at)
        group_id = group.record.id
        due_ms = at.clock_ms + command.invisible_ms
        if self._groups.pause(group.name) is not None:  # it has begun, so that nothing is passed by on resume
            return Popped(group.name, (), due_ms)
        taken = _Taken(min(command.max_messages, room))
        commits = encoded_commits(at, "", command.client_id, popped=True)
        found: list[PoppedMessages] = []
        for source, queue in self._sources(group, topic, at):
            if not taken.messages_left:
                break
            if command.filter is not None and source is topic:
                offsets, end = self._take_picked(group, source, queue, command.picks, taken)
            else:
                offsets, end = self._take(group, source, queue, taken)
            self._groups.popped(group, source, queue, end, commits)
            if offsets:
                number = self._next_number(at)
                lease = Lease(source.id, queue, offsets, (), due_ms, command.client_id)
                self._leases.put(LeaseKey(group_id, at.raft_index, number), lease)
                found.append(PoppedMessages(source.name, queue, at.raft_index, number, offsets))
        return Popped(group.name, tuple(found), due_ms)

    def ack(self, command: AckPopped, at: At) -> PopsAcked:
        """Take the messages out of their leases, and remember their acknowledgements in them."""
        group_id = self._groups.id_of(command.group)
        outcomes: list[AckOutcome] = []
        for raft_index, number, offsets in _by_lease(command):
            acked: dict[LeaseKey, tuple[Lease, list[int]]] = {}
            for offset in offsets:
                found = self._leases.find(group_id, raft_index, number, offset)
                outcomes.append("acked" if found is not None else "handle_expired")
                if found is not None:
                    key, lease = found
                    acked.setdefault(key, (lease, []))[1].append(offset)
            for key, (lease, those) in acked.items():
                self._ack(command.group, key, lease, those, at)
        return PopsAcked(command.group, tuple(outcomes))

    def change_invisible(self, command: ChangeInvisible, at: At) -> InvisibleChanged:
        """Extend the lease of a message, or give the message back. Refused (`handle_expired`) when it is not held."""
        invisible_ms = command.invisible_ms
        if invisible_ms is not None and not 0 <= invisible_ms <= POP_INVISIBLE_MS_MAX:
            raise Refused(INVALID_REQUEST, f"invisible_ms must be 0 to {POP_INVISIBLE_MS_MAX}, not {invisible_ms}")
        if len(command.reason.encode()) > GIVE_BACK_REASON_BYTES_MAX:
            raise Refused(INVALID_REQUEST, f"reason: more than {GIVE_BACK_REASON_BYTES_MAX} bytes")
        handle = command.handle
        group_id = self._groups.id_of(command.group)
        found = self._leases.find(group_id, handle.raft_index, handle.number, handle.offset)
        if found is None or handle.offset not in found[1].held:
            detail = "the message is acknowledged, or was given back: it is not this consumer's any more"
            raise Refused(HANDLE_EXPIRED, detail, {"group": command.group})
        key, lease = found
        if invisible_ms:
            self._extend(key, lease, handle.offset, at.clock_ms + invisible_ms, at)
            return InvisibleChanged(command.group, "held", at.clock_ms + invisible_ms)
        self._shrink(key, lease, {handle.offset}, at)
        mark = self._give_back(command.group, lease, handle.offset, invisible_ms, command.reason, at)
        if mark is None:
            return InvisibleChanged(command.group, "gone", None)
        return InvisibleChanged(
            command.group, "dead_lettered" if mark.due_at_ms is None else "scheduled", mark.due_at_ms
        )

    def expire(self, command: ExpirePopped, at: At) -> PopsExpired:
        """Give back the messages whose lease is over, and forget acknowledgements that were kept for long enough."""
        due: list[tuple[LeaseKey, Lease]] = []
        messages = 0
        for key, lease in self._leases.due(at.clock_ms):
            messages += max(1, len(lease.held))
            if due and messages > command.limit:
                break
            due.append((key, lease))
        given: list[tuple[str, PoppedMessages]] = []
        scheduled = dead = 0
        for key, lease in due:
            if lease.held:
                self._shrink(key, lease, lease.held, at)
            else:
                self._leases.remove(key, lease)
            name = self._groups.name_of(key.group_id) if lease.held else None
            topic = self._topics.by_id(lease.topic_id)
            if name is None or topic is None:
                continue
            given.append((name, PoppedMessages(topic.name, lease.queue, key.raft_index, key.number, lease.held)))
            for offset in lease.held:
                mark = self._give_back(name, lease, offset, 0, TIMED_OUT, at)
                scheduled += mark is not None and mark.due_at_ms is not None
                dead += mark is not None and mark.due_at_ms is None
        return PopsExpired(tuple(given), scheduled, dead, len(due))

    def poppable(self, name: str, topic_name: str) -> int | None:
        """Return how many messages a pop could look at; None when the pop must be applied even without messages,
        because a group or queue is new, or because the pop will be refused.
        """
        topic, group = self._topics.get(topic_name), self._groups.head(name)
        if topic is None or group is None or self._groups.member_ids(name) or group.topics != (topic.name,):
            return None
        offsets = self._groups.places(name)
        if any((topic.id, queue) not in offsets for queue in range(len(topic.ends))):
            return None
        retries = self._topics.get(RETRY_PREFIX + name)
        waiting = sum(_waiting(topic, queue, offsets[topic.id, queue]) for queue in range(len(topic.ends)))
        return waiting + (_waiting(retries, 0, offsets.get((retries.id, 0), 0)) if retries is not None else 0)

    def _checked_topic(self, command: Pop) -> Topic:
        topic = self._topics.require(command.topic)
        if is_of_group(topic.name):
            raise Refused(INVALID_REQUEST, "topic: what a group is given again comes with the topic it came from")
        if not 1 <= command.max_messages <= POP_MESSAGES_MAX:
            raise Refused(INVALID_REQUEST, f"max_messages must be 1 to {POP_MESSAGES_MAX}, not {command.max_messages}")
        if not 1 <= command.invisible_ms <= POP_INVISIBLE_MS_MAX:
            detail = f"invisible_ms must be 1 to {POP_INVISIBLE_MS_MAX}, not {command.invisible_ms}"
            raise Refused(INVALID_REQUEST, detail)
        return topic

    def _sources(self, group: Group, topic: Topic, at: At) -> list[tuple[Topic, int]]:
        """Return the queues with waiting messages, starting at another queue each time."""
        sources = [(topic, queue) for queue in range(len(topic.ends))]
        retries = self._topics.get(RETRY_PREFIX + group.name)
        if retries is not None:
            sources.append((retries, 0))
        turn = (at.raft_index + (self._number if self._entry == at.raft_index else 0)) % len(sources)
        return [
            (source, queue)
            for source, queue in (*sources[turn:], *sources[:turn])
            if _waiting(source, queue, group.offsets.get((source.id, queue), 0))
        ]

    def _take(self, group: Group, topic: Topic, queue: int, taken: _Taken) -> tuple[tuple[int, ...], int]:
        """Return the offsets of the next messages of a queue, and the group's new offset."""
        begin = group.offsets[topic.id, queue]
        rows = self._queues.rows(topic, queue, begin, taken.messages_left, max(1, taken.bytes_left))
        offsets: list[int] = []
        for row in rows:
            if taken.any and row.unpacked_bytes > taken.bytes_left:
                break
            first = max(begin, row.base_offset)
            offsets.extend(range(first, min(row.next_offset, first + taken.messages_left - len(offsets))))
            taken.bytes_left -= row.unpacked_bytes
            taken.any = True
            if len(offsets) == taken.messages_left:
                break
        taken.messages_left -= len(offsets)
        if offsets:
            return tuple(offsets), offsets[-1] + 1
        return (), begin if rows else topic.ends[queue]

    def _take_picked(
        self, group: Group, topic: Topic, queue: int, picks: Sequence[PopPick], taken: _Taken
    ) -> tuple[tuple[int, ...], int]:
        """Return the picked offsets that are still kept, and the group's new offset; none if other consumers have
        popped from the queue since the filter looked at it.
        """
        begin = group.offsets[topic.id, queue]
        pick = next((each for each in picks if each.queue == queue), None)
        if pick is None or pick.begin != begin or not begin <= pick.end <= topic.ends[queue]:
            return (), begin
        kept = max(begin, topic.starts[queue])
        wanted = [offset for offset in sorted(set(pick.offsets)) if kept <= offset < pick.end]
        offsets = wanted[: taken.messages_left]
        taken.messages_left -= len(offsets)
        taken.any = taken.any or bool(offsets)
        return tuple(offsets), pick.end if len(offsets) == len(wanted) else offsets[-1] + 1

    def _ack(self, group: str, key: LeaseKey, lease: Lease, offsets: list[int], at: At) -> None:
        newly = sorted(set(offsets) & set(lease.held))
        if not newly:
            return
        self._shrink(key, msgspec.structs.replace(lease, acked=(*lease.acked, *newly)), newly, at)
        topic = self._topics.by_id(lease.topic_id)
        assert topic is not None, "what is held of a topic is revoked with it"
        client = lease.client_id or None
        for begin, end in _runs(newly):
            self._outcomes.add_ack(Event("ACK", None, topic.name, lease.queue, begin, end, group, client))

    def _extend(self, key: LeaseKey, lease: Lease, offset: int, due_ms: int, at: At) -> None:
        """Extend the lease of one message to `due_ms`. The message gets a lease of its own if its lease has other
        messages, even acknowledged ones.
        """
        if lease.held == (offset,) and not lease.acked:
            self._leases.replace(key, lease, msgspec.structs.replace(lease, due_ms=due_ms))
            return
        self._shrink(key, lease, (offset,), at)
        alone = msgspec.structs.replace(lease, held=(offset,), acked=(), due_ms=due_ms)
        self._leases.put(key._replace(single=offset + 1), alone)

    def _shrink(self, key: LeaseKey, lease: Lease, without: Collection[int], at: At) -> None:
        """Take messages out of the lease.

        The lease stays while it holds messages, and then for its acknowledged ones.
        """
        held = tuple(offset for offset in lease.held if offset not in without)
        due_ms = lease.due_ms
        if not held:
            due_ms = -(-(at.clock_ms + POP_ACK_KEPT_MS) // POP_ACK_SWEPT_MS) * POP_ACK_SWEPT_MS
        if held or lease.acked:
            self._leases.replace(key, lease, msgspec.structs.replace(lease, held=held, due_ms=due_ms))
        else:
            self._leases.remove(key, lease)

    def _give_back(
        self, group: str, lease: Lease, offset: int, delay_ms: int | None, reason: str, at: At
    ) -> Mark | None:
        topic = self._topics.by_id(lease.topic_id)
        if topic is None:
            return None
        giving = self._groups.giving(group, lease.client_id)
        item = GivenBack(topic.name, lease.queue, offset, reason, delay_ms)
        return self._redeliveries.give_back_popped(group, giving, item, at)

    def _next_number(self, at: At) -> int:
        if self._entry != at.raft_index:
            self._entry, self._number = at.raft_index, 0
        self._number += 1
        return self._number - 1


def _waiting(topic: Topic, queue: int, offset: int) -> int:
    """Return the number of kept messages from the offset on."""
    return topic.ends[queue] - max(offset, topic.starts[queue])


def _by_lease(command: AckPopped) -> list[tuple[int, int, list[int]]]:
    """Return the handles' offsets, grouped by runs of handles of the same lease."""
    found: list[tuple[int, int, list[int]]] = []
    for handle in command.handles:
        if not found or found[-1][:2] != (handle.raft_index, handle.number):
            found.append((handle.raft_index, handle.number, []))
        found[-1][2].append(handle.offset)
    return found


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted offsets as ranges."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
