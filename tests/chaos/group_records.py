"""Records that members of a group write: one JSON line each, written before the member goes on, so it outlives a kill.

`at_s` is the time of the event, `sent_at_s` the time at which the request of the answer was sent, both in seconds of
the monotonic clock, which all processes of a machine share.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.reads import TopicQueue

Spot = tuple[str, int, int]
"""A topic, queue and offset."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all records. `member` is a name within the run: a member that joins again after a crash has another."""

    member: str
    at_s: float


class Started(Record, frozen=True, tag="started"):
    """A member has started. `slots` is the number of handler calls that may begin at the same time without a look at
    the clock by the event loop.
    """

    session_timeout_ms: int
    slots: int = 1


class Assigned(Record, frozen=True, tag="assigned"):
    """A join or a heartbeat was answered."""

    sent_at_s: float
    generation: int
    places: list[TopicQueue]


class SessionOver(Record, frozen=True, tag="session_over"):
    """A heartbeat was answered that the group does not know the member."""


class Committed(Record, frozen=True, tag="committed"):
    """A commit was acknowledged."""

    sent_at_s: float
    generation: int
    offsets: list[Spot]


class ReadOffsets(Record, frozen=True, tag="read_offsets"):
    """The leader answered with the group's committed offsets."""

    sent_at_s: float
    offsets: list[Spot]


class Begun(Record, frozen=True, tag="begun"):
    """A handler was called."""

    call: int
    topic: str
    queue: int
    offset: int
    message_id: str
    number: int
    """Number of the message (tests/chaos/message.py)."""
    attempt: int = 0
    origin: Spot | None = None

    @property
    def place(self) -> TopicQueue:
        return self.topic, self.queue


class Ended(Record, frozen=True, tag="ended"):
    """The handler returned (`done`), or raised."""

    call: int
    done: bool


class GivingBack(Record, frozen=True, tag="giving_back"):
    """A request that gives messages back is about to be sent."""

    spots: list[Spot]


class GaveBack(Record, frozen=True, tag="gave_back"):
    """A request that gave messages back was acknowledged."""

    spots: list[Spot]


class Stood(Record, frozen=True, tag="stood"):
    """The member's event loop stood from `from_s` until `at_s`; `stopped`: its whole process stood (SIGSTOP)."""

    from_s: float
    stopped: bool = False


AnyRecord = Started | Assigned | SessionOver | Committed | ReadOffsets | Begun | Ended | GivingBack | GaveBack | Stood

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyRecord).decode
SUFFIX: Final = ".records"


class Recorder:
    """Appends records to one file; any thread may write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: AnyRecord) -> None:
        os.write(self._file, _encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_records(directory: Path) -> list[AnyRecord]:
    """Return the records of all members in the order of time. A line that a kill cut short is ignored."""
    found: list[AnyRecord] = []
    for path in directory.glob(f"*{SUFFIX}"):
        lines = path.read_bytes().split(b"\n")[:-1]
        found += [_decode(line) for line in lines]
    return in_order(found)


def in_order(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    return sorted(records, key=lambda each: each.at_s)
