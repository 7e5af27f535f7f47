"""Commands of consumer groups, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase

FilterType = Literal["tags", "sql"]


class TopicFilter(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Selects messages of a subscribed topic: by tags separated by ` || `, or by an SQL92 expression."""

    topic: str
    type: FilterType
    expression: str


LeaveReason = Literal["leave", "expired"]


class AssignedQueue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    queue: int


class QueueOffset(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A queue and an offset in it; `offset` is the next offset to read."""

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
    """Filters, at most one per topic; a topic without a filter is subscribed to as a whole. The store does not parse
    the expressions: two filters are equal when their texts are.
    """


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
    """Commit all offsets or none. `member_id` and `generation` are both given, or both None for a group without
    members.
    """

    group: str
    member_id: str | None
    generation: int | None
    offsets: tuple[QueueOffset, ...]
    begins: bool = False
    """True makes each offset the start position of a queue for which the group has no offset: messages before it count
    as skipped, not as processed.
    """


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    offsets: tuple[QueueOffset, ...]


class ResetOffsets(CommandBase, frozen=True, tag=12):
    """Set offsets, backwards too, and increment the generation."""

    group: str
    offsets: tuple[QueueOffset, ...]


class OffsetsReset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    generation: int
    offsets: tuple[QueueOffset, ...]


class CloneOffsets(CommandBase, frozen=True, tag=20):
    """Set the offsets of a group without members to those of another group: of one topic, or of all topics the other
    group has read.
    """

    group: str
    source: str
    topic: str | None = None


class GivenBack(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message that its group could not process. `delay_ms` is the time until the next try; None uses the group's
    backoff.
    """

    topic: str
    queue: int
    offset: int
    reason: str = ""
    delay_ms: int | None = None


GiveBackOutcome = Literal["scheduled", "dead_lettered", "already_given_back"]


class GiveBack(CommandBase, frozen=True, tag=13):
    """Give back all messages or none; fenced like CommitOffsets. Giving back the same message again changes nothing."""

    group: str
    member_id: str | None
    generation: int | None
    messages: tuple[GivenBack, ...]


class MessageGivenBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The outcome for one message. `due_at_ms` is the time at which the group gets the message again; None for a dead
    letter.
    """

    topic: str
    queue: int
    offset: int
    attempt: int
    outcome: GiveBackOutcome
    due_at_ms: int | None


class MessagesGivenBack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The outcomes, in the order of the command's messages."""

    group: str
    generation: int
    messages: tuple[MessageGivenBack, ...]


class PutGroup(CommandBase, frozen=True, tag=18):
    """Create a group, or change the given settings of an existing one."""

    group: str
    retry_max_attempts: int | None = None
    retry_delays_ms: tuple[int, ...] | None = None
    """Backoff of the first, second, ... attempt; the last value also applies to all later attempts."""


class GroupPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    created: bool
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]


class ReplayDeadLetters(CommandBase, frozen=True, tag=19):
    """Deliver dead letters of a group to the group once more, with all retry attempts available again. All or none."""

    group: str
    offsets: tuple[int, ...]


class DeadLetterReplayed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The time at which the dead letter at `offset` became visible to its group again; `duplicate` when an earlier
    command had replayed it.
    """

    offset: int
    replayed_at_ms: int
    duplicate: bool


class DeadLettersReplayed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    messages: tuple[DeadLetterReplayed, ...]


class GroupPause(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a group is handed out nothing: since when by the replicated clock, by whom, and for which reason. `principal`
    is the authenticated one, `operator` whoever the request named.
    """

    since_ms: int
    operator: str = ""
    reason: str = ""
    principal: str | None = None


class PauseGroup(CommandBase, frozen=True, tag=33):
    """Hand out nothing to a group until it is resumed, or resume it (`paused` False). A group that is paused already
    keeps its first pause.
    """

    group: str
    paused: bool
    operator: str = ""
    reason: str = ""


class GroupPauseSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The pause in force, None for a group that is not paused, and whether the command has changed that."""

    group: str
    pause: GroupPause | None
    changed: bool


class DeleteGroup(CommandBase, frozen=True, tag=27):
    """Remove a group that nobody uses. `operator` and `reason` are informational, for readers of the log."""

    group: str
    with_dead_letters: bool = False
    operator: str = ""
    reason: str = ""


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of DeleteGroup; `topics` are the group's own topics that were removed with it."""

    group: str
    topics: tuple[str, ...]
