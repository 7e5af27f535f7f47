"""Answers about consumer groups."""

import msgspec

from keelmq.admin.view import View


class AssignedQueue(View, frozen=True, kw_only=True):
    """A queue that a member owns."""

    topic: str
    queue: int


class GroupMember(View, frozen=True, kw_only=True):
    """A member of a group, with the queues that it owns."""

    member_id: str
    client_id: str = ""
    session_timeout_ms: int = 0
    joined_at_ms: int
    assignment: tuple[AssignedQueue, ...]


class GroupOffset(View, frozen=True, kw_only=True):
    """The committed offset of a group in one queue.

    `lag` is the number of messages from there to `max_offset`, `held` the number of messages that pop consumers hold.
    """

    topic: str
    queue: int
    offset: int
    max_offset: int
    lag: int
    held: int = 0


class GroupPause(View, frozen=True, kw_only=True):
    """Why the broker hands out nothing to a group: since when, by whom and for which reason. `principal` is the
    authenticated one, `operator` the one that was named.
    """

    since_ms: int
    operator: str = ""
    reason: str = ""
    principal: str | None = None


class GroupPauseResult(View, frozen=True, kw_only=True):
    """The pause in force after a pause or a resume, None without one. `changed` is False when the group was as wanted
    already; a group that was paused before keeps its first pause.
    """

    group: str
    paused: GroupPause | None = None
    changed: bool


class GroupDetail(View, frozen=True, kw_only=True):
    """A consumer group: its members, its committed offsets and its settings.

    `tags` and `filters` hold the selection of each topic that has one. `members_next` and `offsets_next` are None
    unless a list (`Admin.groups`) has cut the members or the offsets; `Admin.group` returns all of them. `paused` is
    None unless the group is paused.
    """

    group: str
    generation: int
    topics: tuple[str, ...] = ()
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    filters: dict[str, str] = msgspec.field(default_factory=dict)
    members: tuple[GroupMember, ...]
    members_next: str | None = None
    offsets: tuple[GroupOffset, ...]
    offsets_next: str | None = None
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]
    paused: GroupPause | None = None


class GroupSettings(View, frozen=True, kw_only=True):
    """The settings of a group: how often a message is redelivered, and the delay before each redelivery in ms."""

    group: str
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]


class CommittedOffset(View, frozen=True, kw_only=True):
    """The committed offset of a group in one queue, which is the next offset that it reads."""

    topic: str
    queue: int
    offset: int


class CommittedOffsets(View, frozen=True, kw_only=True):
    """The offsets that a reset or a clone has set, and the generation of the group after it."""

    offsets: tuple[CommittedOffset, ...]
    generation: int
