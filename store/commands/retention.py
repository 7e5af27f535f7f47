"""Commands that remove data that is no longer needed, each with its result."""

import msgspec

from store.commands.base import CommandBase


class ExpiredQueue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The removals from one queue: `messages` were removed; offsets from `start` on are kept."""

    topic: str
    queue: int
    start: int
    messages: int


class ExpireMessages(CommandBase, frozen=True, tag=21):
    """Remove data older than its retention by the clock of this entry: at most `limit` rows, of deleted topics and from
    the starts of these queues, and at most `limit` transactions that were decided or discarded long ago.
    """

    queues: tuple[tuple[str, int], ...]
    limit: int
    by_bytes_before: int = 0
    """Remove the oldest messages of topics with more bytes than they keep, too, as far as entries before this index
    stored them. The queues of such a topic are those with its oldest messages when that entry was the next to apply: a
    queue that is not among them may have got messages since, which are older than others. 0: not by bytes."""


class Expired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The removals of ExpireMessages. `rows` includes rows of deleted topics."""

    queues: tuple[ExpiredQueue, ...]
    rows: int
    transactions: int


class ReleaseMessages(CommandBase, frozen=True, tag=28):
    """Remove data that nobody needs although its retention is not over, at most `limit` rows and timers: timers of
    deleted topics, and, from the starts of these system topics, rows that store/state/release.py allows to go.
    """

    topics: tuple[str, ...]
    limit: int


class CountBytes(CommandBase, frozen=True, tag=32):
    """Count the bytes of the next `limit` rows of these queues that were stored before bytes were counted."""

    queues: tuple[tuple[str, int], ...]
    limit: int


class BytesCounted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    rows: int


class Released(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The removals of ReleaseMessages: rows from the fronts of these queues, and `dropped` messages that were scheduled
    in deleted topics.
    """

    queues: tuple[ExpiredQueue, ...]
    dropped: int


class SweepIndex(CommandBase, frozen=True, tag=22):
    """Look at the next `limit` keys of the search tables, and remove keys that no longer refer to anything."""

    limit: int


class Swept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """SweepIndex was carried out. Its findings are not part of the state, and may differ between replicas."""
