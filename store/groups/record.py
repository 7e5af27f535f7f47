"""A consumer group as it is stored, and the views of it."""

import msgspec

from store.commands.groups import (
    AssignedQueue,
    CommitOffsets,
    GiveBack,
    GivenBack,
    GroupPause,
    QueueOffset,
    TopicFilter,
)
from store.commands.views import GroupView, MemberView
from store.errors import MEMBER_NOT_FOUND, NOT_ASSIGNED, OFFSET_MOVES_BACK, STALE_GENERATION, Refused
from store.groups.assignment import TopicQueue
from store.groups.offsets import Offsets
from store.limits import RETRY_DELAYS_MS, RETRY_MAX_ATTEMPTS


class Member(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    client_id: str
    session_timeout_ms: int
    joined_at_ms: int
    assignment: list[TopicQueue]


class GroupRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The value of a group in the index; the group's offsets have keys of their own."""

    id: int
    generation: int
    topics: tuple[str, ...]
    members: dict[str, Member]
    filters: tuple[TopicFilter, ...] = ()
    retry_max_attempts: int = RETRY_MAX_ATTEMPTS
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS
    pause: GroupPause | None = None


_encode = msgspec.msgpack.Encoder().encode


def encoded_group(record: GroupRecord) -> bytes:
    """Return the value of a group in the index. Without a pause the field is left out: nodes of feature level 1, where
    no group is paused, read and write the others alone.
    """
    fields = msgspec.structs.astuple(record)
    return _encode(fields[:-1] if record.pause is None else fields)


class Group:
    __slots__ = ("name", "offsets", "record")

    def __init__(self, name: str, record: GroupRecord) -> None:
        self.name = name
        self.record = record
        self.offsets = Offsets()
        """Committed offsets by topic id and queue."""


def client_of(group: Group, member_id: str | None) -> str:
    """Return the client id of a member; empty for a group without members."""
    member = group.record.members.get(member_id) if member_id is not None else None
    return member.client_id if member is not None else ""


def moves_back(group: Group, item: QueueOffset | GivenBack, committed: int) -> Refused:
    detail = f"{committed} is committed for queue {item.queue} of {item.topic}: only a reset goes back"
    extra = {"topic": item.topic, "queue": item.queue, "committed": committed, "generation": group.record.generation}
    return Refused(OFFSET_MOVES_BACK, detail, extra)


def not_assigned(command: CommitOffsets | GiveBack, topic: str, queue: int) -> Refused:
    detail = f"queue {queue} of {topic} is not assigned to member {command.member_id}"
    return Refused(NOT_ASSIGNED, detail, {"topic": topic, "queue": queue, "generation": command.generation})


def assigned_queues(member: Member) -> tuple[AssignedQueue, ...]:
    return tuple(AssignedQueue(topic, queue) for topic, queue in member.assignment)


def member_view(member_id: str, member: Member) -> MemberView:
    queues = assigned_queues(member)
    return MemberView(member_id, member.client_id, member.session_timeout_ms, member.joined_at_ms, queues)


def view_of(group: Group, *, with_members: bool = True) -> GroupView:
    record = group.record
    members = tuple(member_view(*each) for each in sorted(record.members.items())) if with_members else ()
    return GroupView(
        group.name,
        record.generation,
        record.topics,
        members,
        record.filters,
        record.retry_max_attempts,
        record.retry_delays_ms,
        record.pause,
    )


def require_member(group: Group, member_id: str) -> Member:
    member = group.record.members.get(member_id)
    if member is None:
        detail = f"member {member_id} is not in group {group.name}: join again"
        raise Refused(MEMBER_NOT_FOUND, detail, {"generation": group.record.generation})
    return member


def fenced_member(group: Group, member_id: str, generation: int | None) -> Member:
    member = require_member(group, member_id)
    current = group.record.generation
    if generation != current:
        detail = f"group {group.name} is at generation {current}, not {generation}: look at the assignment again"
        raise Refused(STALE_GENERATION, detail, {"generation": current})
    return member
