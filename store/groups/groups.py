"""Consumer groups: members, assignment and committed offsets.

    - Membership is replicated: a failover of the broker is not a rebalance.
    - Every change of members, queues or offsets that a running member must notice increments the generation, and a
      commit from an older generation is refused.
    - A committed offset only moves forward, except by a reset.

All groups are held in memory and written through to the index.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    GiveBack,
    GroupPauseSet,
    GroupPut,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetsCommitted,
    OffsetsReset,
    PauseGroup,
    PutGroup,
    QueueOffset,
    ResetOffsets,
)
from store.commands.pops import Pop
from store.errors import (
    GROUP_HAS_MEMBERS,
    GROUP_IS_POPPED,
    INVALID_REQUEST,
    OFFSET_OUT_OF_RANGE,
    Refused,
)
from store.features import FEATURES
from store.groups.assignment import TopicQueue, assign, topic_queues
from store.groups.given_back import GivenBackMarks, GivingGroup
from store.groups.history import GroupHistory, encoded_commits
from store.groups.leases import Leases
from store.groups.pauses import event_of, turn
from store.groups.queries import GroupQueries
from store.groups.record import (
    Group,
    GroupRecord,
    Member,
    assigned_queues,
    client_of,
    encoded_group,
    fenced_member,
    moves_back,
    not_assigned,
    require_member,
)
from store.groups.resets import Resets
from store.groups.settings import check_settings
from store.groups.subscription import Subscription, check_subscription, selecting
from store.index import keys
from store.index.index import Index
from store.limits import RETRY_DELAYS_MS, RETRY_MAX_ATTEMPTS
from store.messages.outcomes import Event, Outcomes
from store.messages.placement import At
from store.messages.sorted_names import SortedNames
from store.messages.topics import RETRY_PREFIX, Topic, Topics
from store.steps import Steps

KEYS_IN_RANGE_MIN: Final = 16
"""Number of keys from which on they are deleted as a range, which costs reads of the index for ever after."""

_decode = msgspec.msgpack.Decoder(GroupRecord).decode


class Groups(GroupQueries):
    def __init__(
        self,
        index: Index,
        topics: Topics,
        marks: GivenBackMarks,
        history: GroupHistory,
        next_id: int,
        outcomes: Outcomes,
        leases: Leases,
    ) -> None:
        """Load all groups. `next_id` is the id of the next new group."""
        super().__init__(topics, history, leases)
        self._index = index
        self._marks = marks
        self._outcomes = outcomes
        self._resets = Resets(index, marks, history, outcomes, leases)
        self.next_id = next_id
        for key, value in index.scan(keys.GROUP, keys.after(keys.GROUP)):
            self._groups.add(Group(key[1:].decode(), _decode(value)))
        self._names = SortedNames(self._groups)
        for key, value in index.scan(keys.GROUP_OFFSET, keys.after(keys.GROUP_OFFSET)):
            group_id, topic_id, queue = keys.group_offset_parts(key)
            group = self._groups.by_id[group_id]
            group.offsets[topic_id, queue] = keys.read_u64(value)
            self._groups.has_read(group, topic_id)

    # Changes, during apply.

    def join(self, command: JoinGroup, clock_ms: int) -> Joined:
        topics = tuple(sorted(set(command.topics)))
        if not topics:
            raise Refused(INVALID_REQUEST, "topics: a member subscribes to at least one topic")
        for name in topics:
            self._topics.require(name)
        filters = tuple(sorted(command.filters, key=lambda item: item.topic))
        group = self._groups.get(command.group)
        if group is None:
            group = self._create(command.group)
        self._refuse_popped(group)
        record = group.record
        if record.members.keys() - {command.member_id}:  # the only member may change its subscription
            recorded = Subscription(record.topics, record.filters)
            check_subscription(group.name, record.generation, recorded, Subscription(topics, filters))
        member = record.members.get(command.member_id)
        changed = member is None or (record.topics, record.filters) != (topics, filters)
        self._groups.subscribe(group, topics, filters)
        if member is None:
            member = Member(command.client_id, command.session_timeout_ms, clock_ms, [])
            record.members[command.member_id] = member
        member.client_id = command.client_id
        member.session_timeout_ms = command.session_timeout_ms
        if changed:
            self._rebalance(group)
        self._store(group)
        return Joined(
            group.name,
            command.member_id,
            record.generation,
            assigned_queues(member),
            member.session_timeout_ms,
        )

    def leave(self, command: LeaveGroup) -> Left:
        group = self._require(command.group)
        require_member(group, command.member_id)
        del group.record.members[command.member_id]
        self._rebalance(group)
        self._store(group)
        return Left(group.name, command.member_id, group.record.generation)

    def commit(self, command: CommitOffsets, at: At) -> OffsetsCommitted:
        group, assignment = self._fence(command)
        changes: list[tuple[Topic, int, int]] = []
        for queue_offset in command.offsets:
            topic = self._check_offset(queue_offset)
            if assignment is not None and (topic.name, queue_offset.queue) not in assignment:
                raise not_assigned(command, queue_offset.topic, queue_offset.queue)
            committed = group.offsets.get((topic.id, queue_offset.queue), 0) if group is not None else 0
            if group is not None and queue_offset.offset < committed:
                raise moves_back(group, queue_offset, committed)
            changes.append((topic, queue_offset.queue, queue_offset.offset))
        if group is None:
            group = self._create(command.group)
            self._store(group)
        client = client_of(group, command.member_id)
        again, first = encoded_commits(at, command.member_id or "", client)
        for topic, queue, offset in changes:
            begin = group.offsets.get((topic.id, queue))
            place = (group.record.id, topic.id, queue)
            if command.begins and begin is None and offset:
                self._resets.note(group, topic, queue, None, offset, at)
            elif offset > (begin or 0):
                self._history.committed(place, offset, first if begin is None else again, is_first=begin is None)
                self._tell_ack(group, topic, queue, begin or 0, offset, command.member_id, at)
            self._set_offsets(group, [(topic, queue, offset)])
        return OffsetsCommitted(group.name, command.offsets)

    def give_back(self, command: GiveBack) -> GivingGroup:
        """Return the group that gives messages back; for a group that does not exist yet, `id` is None. Refused like a
        commit, and (`offset_moves_back`) for messages that are committed. Changes nothing.
        """
        group, assignment = self._fence(command)
        for item in command.messages:
            topic = self._topics.require(item.topic)
            topic.require_queue(item.queue)
            if assignment is not None and (topic.name, item.queue) not in assignment:
                raise not_assigned(command, item.topic, item.queue)
            committed = group.offsets.get((topic.id, item.queue), 0) if group is not None else 0
            if group is not None and item.offset < committed:
                raise moves_back(group, item, committed)
        if group is None:
            return GivingGroup(None, RETRY_MAX_ATTEMPTS, RETRY_DELAYS_MS, "")
        record = group.record
        client_id = client_of(group, command.member_id)
        return GivingGroup(record.id, record.retry_max_attempts, record.retry_delays_ms, client_id)

    def pop(self, command: Pop, topic: Topic, at: At) -> Group:
        """Return the group that pops, created if necessary, with an offset for each queue. Refused
        (`group_has_members`, `subscription_mismatch`) when other consumers use the group, or use it for another
        subscription.
        """
        group = self._groups.get(command.group)
        filters = () if command.filter is None else (command.filter,)
        if group is not None:
            self._check_pops(group, Subscription((topic.name,), filters))
        else:
            group = self._create(command.group)
        record = group.record
        if (record.topics, record.filters) != ((topic.name,), filters):
            self._groups.subscribe(group, (topic.name,), filters)
            self._store(group)
        for queue, end in enumerate(topic.ends):
            if (topic.id, queue) not in group.offsets:
                begin = end if command.from_end else 0
                if begin:
                    self._resets.note(group, topic, queue, None, begin, at)
                self._set_offsets(group, [(topic, queue, begin)])
        return group

    def popped(self, group: Group, topic: Topic, queue: int, offset: int, commits: tuple[bytes, bytes]) -> None:
        """Move the group's offset to `offset`: the messages before are handed out. `commits` is made by
        `encoded_commits`.
        """
        if offset > group.offsets[topic.id, queue]:
            self._history.committed((group.record.id, topic.id, queue), offset, commits[0])
            self._set_offsets(group, [(topic, queue, offset)])

    def set_pause(self, command: PauseGroup, at: At) -> GroupPauseSet:
        """Pause or resume the group. Refused (`group_not_found`)."""
        group = self._require(command.group)
        done = turn(group, command, at)
        if done.changed:
            self._store(group)
            self._groups.note_pause(group)
            self._turned[group.name] = None
            self._outcomes.add(event_of(command))
        return done

    def remove(self, name: str) -> int:
        """Remove the group with its offsets and return its id. Refused (`group_has_members`, `group_is_popped`) while
        the group is in use.
        """
        group = self._require(name)
        if group.record.members:
            detail = f"group {name} has members: stop them first"
            raise Refused(GROUP_HAS_MEMBERS, detail, {"generation": group.record.generation})
        self._refuse_popped(group)
        group_id = group.record.id
        self._index.delete(keys.group(name))
        prefix = keys.group_offsets(group_id)
        self._index.delete_range(prefix, keys.after(prefix))
        self._groups.remove(group)
        self._names.remove(name)
        self._moved[name] = None
        if group.record.pause is not None:
            self._turned[name] = None
        return group_id

    def put(self, command: PutGroup) -> GroupPut:
        check_settings(command)
        group = self._groups.get(command.group)
        created = group is None
        if group is None:
            group = self._create(command.group)
        record = group.record
        if command.retry_max_attempts is not None:
            record.retry_max_attempts = command.retry_max_attempts
        if command.retry_delays_ms is not None:
            record.retry_delays_ms = command.retry_delays_ms
        self._store(group)
        return GroupPut(group.name, created, record.retry_max_attempts, record.retry_delays_ms)

    def ensure(self, name: str) -> int:
        """Return the id of the group, which is created if it does not exist."""
        group = self._groups.get(name)
        if group is None:
            group = self._create(name)
            self._store(group)
        return group.record.id

    def retry_topic_created(self, name: str, topic: Topic) -> None:
        """Make the group read its new retry topic from the beginning, whatever the group's start position; a member
        gets the queue.
        """
        group = self._require(name)
        self._set_offsets(group, [(topic, 0, 0)])
        if group.record.members:
            self._rebalance(group)
            self._store(group)

    def reset(self, command: ResetOffsets, at: At) -> OffsetsReset:
        return self._reset(self._require(command.group), command.offsets, at)

    def clone(self, command: CloneOffsets, at: At) -> OffsetsReset:
        """Set the group's offsets to the offsets that the source has processed, except in groups' own topics. Refused
        (`group_has_members`, `group_is_popped`) while the group is in use.
        """
        target = self._groups.get(command.group)
        if target is not None and target.record.members:
            detail = f"group {target.name} has members: stop them first, they would go on from where they are"
            raise Refused(GROUP_HAS_MEMBERS, detail, {"generation": target.record.generation})
        if target is not None:
            self._refuse_popped(target)
        source = self._require(command.source)
        if command.topic is not None:
            self._topics.require(command.topic)
        offsets = tuple(self._processed(source, command.topic))
        if not offsets or command.source == command.group:
            of_topic = f" of topic {command.topic}" if command.topic is not None else ""
            detail = f"group {command.source} has committed nothing{of_topic} that {command.group} could take over"
            raise Refused(INVALID_REQUEST, detail)
        return self._reset(target if target is not None else self._create(command.group), offsets, at)

    def topic_queues_changed(self, topic: Topic) -> Steps[None]:
        """Rebalance the groups that subscribe to a topic that was created, deleted, or has more queues."""
        for group in self._groups.subscribers(topic.name):
            yield
            self._rebalance(group)
            self._store(group)

    def topic_grown(self, topic: Topic, first_new_queue: int) -> Steps[None]:
        """Make groups that have read the topic read its new queues from their beginning, whatever the groups' start
        position is for unknown topics: a group without members must not miss messages of a new queue.
        """
        new_queues = range(first_new_queue, len(topic.ends))
        beginning = keys.u64(0)
        for group in self._groups.readers(topic.id):  # no mark is before the beginning
            yield
            group.offsets.begin(topic.id, new_queues)
            prefix = keys.group_offsets_in(group.record.id, topic.id)
            self._index.put_all([(prefix + queue.to_bytes(2), beginning) for queue in new_queues])
        yield from self.topic_queues_changed(topic)

    def topic_deleted(self, topic: Topic) -> Steps[None]:
        """Remove the topic's offsets; members lose its queues, and keep the subscription for a later topic of that
        name. Costs as much as the offsets that are removed.
        """
        readers = self._groups.forget_topic(topic.id)
        for group in readers:
            yield
            self._history.forget_topic(group.record.id, topic.id)
        for group_id in self._leases.groups_holding(topic.id):
            yield
            self._leases.revoke(group_id, topic.id)
        yield from self._marks.forget_topic(topic.id)
        for group in readers:
            yield
            prefix = keys.group_offsets_in(group.record.id, topic.id)
            gone = [prefix + queue.to_bytes(2) for queue in group.offsets.remove_topic(topic.id)]
            if len(gone) < KEYS_IN_RANGE_MIN:
                self._index.delete_all(gone)
            else:
                self._index.delete_named(prefix, keys.after(prefix), gone)
        yield from self.topic_queues_changed(topic)

    def _reset(self, group: Group, offsets: tuple[QueueOffset, ...], at: At) -> OffsetsReset:
        changes = [(self._check_offset(item), item.queue, item.offset) for item in offsets]
        self._resets.carry_out(group, changes, at)
        for topic_id in {topic.id for topic, _, _ in changes}:
            self._groups.has_read(group, topic_id)
        self._move_on(group)
        self._store(group)
        return OffsetsReset(group.name, group.record.generation, offsets)

    def _tell_ack(
        self, group: Group, topic: Topic, queue: int, begin: int, end: int, member_id: str | None, at: At
    ) -> None:
        """Add the event of a commit. Messages that retention had removed before were not read, and are left out."""
        if FEATURES.knows("acks-begin-at-kept-messages", at.feature_level):
            begin = max(begin, topic.starts[queue])
        if begin < end:
            selected = selecting(group.record.filters, topic.name) if member_id is not None else None
            client, filter = client_of(group, member_id) or None, self._outcomes.filter(selected)
            ack = Event("ACK", None, topic.name, queue, begin, end, group.name, client, filter=filter)
            self._outcomes.add_ack(ack)

    def _fence(self, command: CommitOffsets | GiveBack) -> tuple[Group | None, set[TopicQueue] | None]:
        """Return the group, and the queues assigned to the member; None for the queues of a group without members,
        which need not exist.
        """
        if command.member_id is not None:
            group = self._require(command.group)
            return group, set(fenced_member(group, command.member_id, command.generation).assignment)
        found = self._groups.get(command.group)
        if found is not None and found.record.members:
            detail = f"group {found.name} has members: commit as one of them"
            raise Refused(GROUP_HAS_MEMBERS, detail, {"generation": found.record.generation})
        if found is not None:
            self._refuse_popped(found)
        return found, None

    def _refuse_popped(self, group: Group) -> None:
        held = self._leases.held_by(group.record.id)
        if held:
            detail = (
                f"pop consumers of group {group.name} hold {held} messages: stop them, and have those acknowledged, "
                "given back, or wait until their time is over"
            )
            raise Refused(GROUP_IS_POPPED, detail, {"held": held, "generation": group.record.generation})

    def _check_pops(self, group: Group, requested: Subscription) -> None:
        """Refuse when the group has members, or when its pop consumers hold messages of another subscription."""
        record = group.record
        if record.members:
            detail = f"group {group.name} has members: a group is used by members or by pop consumers, not by both"
            raise Refused(GROUP_HAS_MEMBERS, detail, {"generation": record.generation})
        if self._leases.held_by(record.id):
            check_subscription(group.name, record.generation, Subscription(record.topics, record.filters), requested)

    def _create(self, name: str) -> Group:
        group = Group(name, GroupRecord(self.next_id, 0, (), {}))
        self.next_id += 1
        self._groups.add(group)
        self._names.add(name)
        return group

    def _rebalance(self, group: Group) -> None:
        record = group.record
        queues: list[TopicQueue] = []
        for name in sorted({*record.topics, RETRY_PREFIX + group.name}):
            topic = self._topics.get(name)
            if topic is not None:
                queues.extend(topic_queues(name, len(topic.ends)))
        held = {member_id: member.assignment for member_id, member in record.members.items()}
        for member_id, assignment in assign(held, queues).items():
            record.members[member_id].assignment = assignment
        self._move_on(group)

    def _move_on(self, group: Group) -> None:
        group.record.generation += 1
        self._moved[group.name] = None

    def _check_offset(self, item: QueueOffset) -> Topic:
        topic = self._topics.require(item.topic)
        topic.require_queue(item.queue)
        if item.offset < 0:
            raise Refused(INVALID_REQUEST, f"offset {item.offset} of queue {item.queue} of {item.topic} is negative")
        end = topic.ends[item.queue]
        if item.offset > end:
            detail = f"queue {item.queue} of {item.topic} ends at {end}, offset {item.offset} is beyond it"
            raise Refused(OFFSET_OUT_OF_RANGE, detail, {"topic": item.topic, "queue": item.queue, "max_offset": end})
        return topic

    def _set_offsets(self, group: Group, changes: Iterable[tuple[Topic, int, int]]) -> None:
        for topic, queue, offset in changes:
            group.offsets[topic.id, queue] = offset
            self._groups.has_read(group, topic.id)
            self._index.put(keys.group_offset(group.record.id, topic.id, queue), keys.u64(offset))
            self._marks.forget(group.record.id, topic.id, queue, offset)

    def _store(self, group: Group) -> None:
        self._index.put(keys.group(group.name), encoded_group(group.record))
