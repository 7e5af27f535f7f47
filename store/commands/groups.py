"""Commands of consumer groups, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase

FilterType = Literal["tags", "sql"]


class TopicFilter(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Which messages of a topic a subscription is about: tags separated by ` || `, or an SQL92 expression."""

    topic: str
    type: FilterType
    expression: str


LeaveReason = Literal["leave", "expired"]


class AssignedQueue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    queue: int


class QueueOffset(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """`offset` is the next one to read."""

    topic: str
    queue: int
    offset: int


class JoinGroup(CommandBase, frozen=True, tag=9):
    group: str
    member_id: str
    client_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    filters: tuple[TopicFilter, ...] = ()
    """At most one per topic; a topic without one is subscribed to as a whole. Nobody looks into the expressions here:
    they are the same when their text is."""


class Joined(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    member_id: str
    generation: int
    assignment: tuple[AssignedQueue, ...]
    session_timeout_ms: int


class LeaveGroup(CommandBase, frozen=True, tag=10):
    group: str
    member_id: str
    reason: LeaveReason = "leave"


class Left(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    member_id: str
    generation: int


class CommitOffsets(CommandBase, frozen=True, tag=11):
    """All offsets or none. `member_id` and `generation` are both given, or both None for a group without members."""

    group: str
    member_id: str | None
    generation: int | None
    offsets: tuple[QueueOffset, ...]
    begins: bool = False
    """Where the group has no offset yet, it begins there: what is before was not processed."""


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    offsets: tuple[QueueOffset, ...]


class ResetOffsets(CommandBase, frozen=True, tag=12):
    """Set offsets, backwards too, and move the generation on."""

    group: str
    offsets: tuple[QueueOffset, ...]


class OffsetsReset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    generation: int
    offsets: tuple[QueueOffset, ...]


class CloneOffsets(CommandBase, frozen=True, tag=20):
    """Set the offsets of a group without members to those of another: of one topic, or of all that it has read."""

    group: str
    source: str
    topic: str | None = None


class GivenBack(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message that its group could not process, and when to try again: None for the group's back-off."""

    topic: str
    queue: int
    offset: int
    reason: str = ""
    delay_ms: int | None = None


GiveBackOutcome = Literal["scheduled", "dead_lettered", "already_given_back"]


class GiveBack(CommandBase, frozen=True, tag=13):
    """All messages or none; fenced like CommitOffsets. Given back once: again changes nothing."""

    group: str
    member_id: str | None
    generation: int | None
    messages: tuple[GivenBack, ...]


class MessageGivenBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`due_at_ms` is when the group gets it again; a dead letter never is."""

    topic: str
    queue: int
    offset: int
    attempt: int
    outcome: GiveBackOutcome
    due_at_ms: int | None


class MessagesGivenBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the command's messages."""

    group: str
    generation: int
    messages: tuple[MessageGivenBack, ...]


class PutGroup(CommandBase, frozen=True, tag=18):
    """Create a group, or change the given settings of an existing one."""

    group: str
    retry_max_attempts: int | None = None
    retry_delays_ms: tuple[int, ...] | None = None
    """Of the first, second, … attempt; the last one also of all that follow."""


class GroupPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    created: bool
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]


class ReplayDeadLetters(CommandBase, frozen=True, tag=19):
    """Let the group process these of its dead letters once more, with all attempts before them. All or none."""

    group: str
    offsets: tuple[int, ...]


class DeadLetterReplayed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """When the dead letter at `offset` was made visible to its group again; `duplicate`: by an earlier command."""

    offset: int
    replayed_at_ms: int
    duplicate: bool


class DeadLettersReplayed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    messages: tuple[DeadLetterReplayed, ...]


class DeleteGroup(CommandBase, frozen=True, tag=27):
    """Remove a group that nobody uses. `operator` and `reason` are for whoever reads the log."""

    group: str
    with_dead_letters: bool = False
    operator: str = ""
    reason: str = ""


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`topics` are those of its own that went with it."""

    group: str
    topics: tuple[str, ...]
