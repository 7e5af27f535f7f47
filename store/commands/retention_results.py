"""What applying ExpireMessages, ReleaseMessages and SweepIndex answers."""

import msgspec


class ExpiredQueue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`messages` were removed; offsets from `start` on are kept."""

    topic: str
    queue: int
    start: int
    messages: int


class Expired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ExpireMessages removed. `rows` counts those of deleted topics too."""

    queues: tuple[ExpiredQueue, ...]
    rows: int
    transactions: int


class Released(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ReleaseMessages removed: rows from the fronts of these queues, and messages that waited for their time in
    deleted topics."""

    queues: tuple[ExpiredQueue, ...]
    dropped: int


class Swept(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """SweepIndex was carried out. What it found is not part of the state, and need not be the same everywhere."""
