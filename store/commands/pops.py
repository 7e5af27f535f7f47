"""Commands of pop consumers, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase
from store.commands.groups import TopicFilter


class PopPick(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Messages of a queue that were looked at, `begin` to before `end`, and which of them are wanted."""

    queue: int
    begin: int
    end: int
    offsets: tuple[int, ...]


class PopHandle(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One handing out of one message: of the entry at `raft_index`, its lease `number`."""

    raft_index: int
    number: int
    offset: int


class PoppedMessages(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages of one queue that were handed out together, by lease `number` of the entry at `raft_index`."""

    topic: str
    queue: int
    raft_index: int
    number: int
    offsets: tuple[int, ...]

    def handle(self, offset: int) -> PopHandle:
        return PopHandle(self.raft_index, self.number, offset)


AckOutcome = Literal["acked", "handle_expired"]
InvisibleOutcome = Literal["held", "scheduled", "dead_lettered", "gone"]


class Pop(CommandBase, frozen=True, tag=23):
    """Hand out what comes next in the topic's queues and in the group's retries, each message for `invisible_ms`."""

    group: str
    topic: str
    client_id: str
    max_messages: int
    invisible_ms: int
    from_end: bool = False
    """Where the group has no offset yet, it begins at the end."""
    filter: TopicFilter | None = None
    picks: tuple[PopPick, ...] = ()
    """With a filter, what of the topic matches it. A pick that does not begin at the group's offset is left alone."""


class Popped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`messages` may be empty: somebody else was first."""

    group: str
    messages: tuple[PoppedMessages, ...]
    due_ms: int
    """Until then they are this consumer's."""


class AckPopped(CommandBase, frozen=True, tag=24):
    """These messages are processed; each for itself."""

    group: str
    handles: tuple[PopHandle, ...]


class PopsAcked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the command's handles."""

    group: str
    outcomes: tuple[AckOutcome, ...]


class ChangeInvisible(CommandBase, frozen=True, tag=25):
    """Hold a message for so long from now on; 0 gives it back for at once, None by the group's back-off."""

    group: str
    handle: PopHandle
    invisible_ms: int | None
    reason: str = ""


class InvisibleChanged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`due_ms` is when the message comes again; None for a dead letter. `held`: the handle goes on until then. `gone`:
    the message was removed meanwhile."""

    group: str
    outcome: InvisibleOutcome
    due_ms: int | None


class ExpirePopped(CommandBase, frozen=True, tag=26):
    """Give back what was not acknowledged in its time, by the clock of this entry: `limit` messages, or one lease."""

    limit: int


class PopsExpired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was given back, with its group: `scheduled` of the messages come again, `dead_lettered` do not; others were
    removed meanwhile. `leases` are those that are over, acknowledged or not."""

    messages: tuple[tuple[str, PoppedMessages], ...]
    scheduled: int
    dead_lettered: int
    leases: int
