"""What the commands of pop consumers answer, and the removal of a group."""

from typing import Literal

import msgspec

from store.commands.command import PopHandle

InvisibleOutcome = Literal["held", "scheduled", "dead_lettered", "gone"]
AckOutcome = Literal["acked", "handle_expired"]


class PoppedMessages(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages of one queue that were handed out together, by lease `number` of the entry at `raft_index`."""

    topic: str
    queue: int
    raft_index: int
    number: int
    offsets: tuple[int, ...]

    def handle(self, offset: int) -> PopHandle:
        return PopHandle(self.raft_index, self.number, offset)


class Popped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`messages` may be empty: somebody else was first."""

    group: str
    messages: tuple[PoppedMessages, ...]
    due_ms: int
    """Until then they are this consumer's."""


class PopsAcked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the command's handles."""

    group: str
    outcomes: tuple[AckOutcome, ...]


class InvisibleChanged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`due_ms` is when the message comes again; None for a dead letter. `held`: the handle goes on until then. `gone`:
    the message was removed meanwhile."""

    group: str
    outcome: InvisibleOutcome
    due_ms: int | None


class PopsExpired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was given back, with its group: `scheduled` of the messages come again, `dead_lettered` do not; others were
    removed meanwhile. `leases` are those that are over, acknowledged or not."""

    messages: tuple[tuple[str, PoppedMessages], ...]
    scheduled: int
    dead_lettered: int
    leases: int


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`topics` are those of its own that went with it."""

    group: str
    topics: tuple[str, ...]
