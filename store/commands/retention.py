"""Commands that remove what nobody needs any more, each with its result."""

import msgspec

from store.commands.base import CommandBase


class ExpiredQueue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`messages` were removed; offsets from `start` on are kept."""

    topic: str
    queue: int
    start: int
    messages: int


class ExpireMessages(CommandBase, frozen=True, tag=21):
    """Remove what is older than its retention by the clock of this entry, at most `limit` rows: of deleted topics, of
    these queues from their starts on, and transactions that were decided long ago."""

    queues: tuple[tuple[str, int], ...]
    limit: int


class Expired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ExpireMessages removed. `rows` counts those of deleted topics too."""

    queues: tuple[ExpiredQueue, ...]
    rows: int
    transactions: int


class ReleaseMessages(CommandBase, frozen=True, tag=28):
    """Remove what nobody needs although its retention is not over, at most `limit` rows and timers: timers of deleted
    topics, and from the starts of these system topics on, rows that store/state/release.py lets go."""

    topics: tuple[str, ...]
    limit: int


class Released(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ReleaseMessages removed: rows from the fronts of these queues, and messages that waited for their time in
    deleted topics."""

    queues: tuple[ExpiredQueue, ...]
    dropped: int


class SweepIndex(CommandBase, frozen=True, tag=22):
    """Look at the next `limit` keys of what is kept for those who search, and remove what is about nothing any more."""

    limit: int


class Swept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """SweepIndex was carried out. What it found is not part of the state, and need not be the same everywhere."""
