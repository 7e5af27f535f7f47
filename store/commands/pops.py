"""Commands of pop consumers, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase
from store.commands.groups import TopicFilter


class PopPick(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Offsets `begin` <= o < `end` of a queue that a filter has looked at, and the `offsets` among them that match."""

    queue: int
    begin: int
    end: int
    offsets: tuple[int, ...]


class PopHandle(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Identifies one lease of one message: `number` is the lease's number within the entry at `raft_index`."""

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
    """Hand out the next messages of the topic's queues and the group's retries, with a lease of `invisible_ms` each."""

    group: str
    topic: str
    client_id: str
    max_messages: int
    invisible_ms: int
    from_end: bool = False
    """True starts the group at the end of every queue for which the group has no offset."""
    filter: TopicFilter | None = None
    picks: tuple[PopPick, ...] = ()
    """The messages of the topic that match the filter. A pick that does not begin at the group's offset is ignored."""


class Popped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The messages handed out; `messages` is empty when other consumers were first."""

    group: str
    messages: tuple[PoppedMessages, ...]
    due_ms: int
    """End of the leases: until this time the messages belong to the consumer."""


class AckPopped(CommandBase, frozen=True, tag=24):
    """Acknowledge messages as processed; each handle succeeds or fails on its own."""

    group: str
    handles: tuple[PopHandle, ...]


class PopsAcked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The outcomes, in the order of the command's handles."""

    group: str
    outcomes: tuple[AckOutcome, ...]


class ChangeInvisible(CommandBase, frozen=True, tag=25):
    """Extend a message's lease to `invisible_ms` from now; 0 gives the message back at once, None by the group's
    backoff.
    """

    group: str
    handle: PopHandle
    invisible_ms: int | None
    reason: str = ""


class InvisibleChanged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The outcome of ChangeInvisible. `due_ms` is the time at which the message comes again; None for a dead letter.
    `held` means that the lease runs until then, `gone` that the message was removed meanwhile.
    """

    group: str
    outcome: InvisibleOutcome
    due_ms: int | None


class ExpirePopped(CommandBase, frozen=True, tag=26):
    """Give back messages whose lease has expired by the clock of this entry: at most `limit` messages, but at least one
    lease.
    """

    limit: int


class PopsExpired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The messages that were given back, each set with its group: `scheduled` counts messages that come again,
    `dead_lettered` those that do not; the remaining ones were removed meanwhile. `leases` counts the leases that ended,
    acknowledged or not.
    """

    messages: tuple[tuple[str, PoppedMessages], ...]
    scheduled: int
    dead_lettered: int
    leases: int
