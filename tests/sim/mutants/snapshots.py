"""Broken ways to bring a node up to date that is behind the kept log."""

from collections.abc import Iterator
from typing import Any

import msgspec

import store.snapshots.install
from raft.handlers import SafeRaft
from raft.library import LEADER
from raft.messages import AppendReply, PreVote, RequestVote, SnapshotBegin, SnapshotChunk
from raft.replication.replication import Replication
from raft.sender import Sender
from raft.snapshots.receiver import SnapshotReceiver
from raft.snapshots.snapshots import Snapshots
from store.index.index import Index
from store.log.base import StoredBase
from store.log.disk import Disk
from store.snapshots.install import IndexPlaces
from store.snapshots.snapshot import SnapshotWriter
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, mutant

END = b"\xff"


def keeps_the_old_log(disk: Disk, directory: str, stored: StoredBase) -> None:
    """The state is exchanged, and the log that it was not made of stays."""


def forgets_what_it_decided(disk: Disk, data_directory: str, places: IndexPlaces) -> None:
    """A snapshot that the node has decided for is thrown away like one that never became whole."""
    places.remove_incoming()
    path = f"{data_directory}/{store.snapshots.install.DECISION_FILE}"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_directory(data_directory)


def takes_chunks_as_they_come(self: SnapshotReceiver, peer: int, message: SnapshotChunk) -> None:
    """Portions are taken in whatever order, and as often as, they come."""
    incoming = self._incoming
    if incoming is None or incoming.begin.transfer != message.transfer:
        return
    incoming.writer._rest = b""
    incoming.writer.add(message.data)
    incoming.received = max(incoming.received, message.number + 1)
    self._acknowledge(incoming)


def believes_what_arrived(self: SnapshotWriter, pairs: int, checksum: bytes, index: int, state_hash: str) -> None:
    """The portions that arrived are taken for the whole state."""


class AcknowledgesTheEntriesOfItsSnapshot(Sender):
    """A follower acknowledges entries that are in its state and not, or not yet, in its log."""

    def send(self, peer: int, message: Any) -> None:
        if getattr(message, "success", False) and message.match_index:
            message = msgspec.structs.replace(message, match_index=max(message.match_index, self._state.last_applied))
        super().send(peer, message)


class AppliesFromTheBaseOn(SafeRaft):
    """All entries of the log are applied after a snapshot, also those that its state was made of."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        state = self.state
        if state.log.last_index < state.last_applied:
            state.library.last_applied = state.log.last_index


def holds_nothing_up(self: Snapshots) -> None:
    """The log is cut while a snapshot is under way to a node that will go on from its base."""


def reads_a_state_that_moves(self: Index) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a snapshot are read as they are when it is their turn, not as they were when it began."""
    key = b""
    while (pair := next(self.rows.first_from(key), None)) is not None and pair[0] < END:
        yield pair
        key = pair[0] + b"\0"


class StandsWithItsState(Sender):
    """A node that has just got a snapshot asks for votes as if its log held what its state was made of."""

    def send(self, peer: int, message: Any) -> None:
        super().send(peer, self._boast(message))

    def send_promise(self, peer: int, message: Any, needs_index: int | None = None) -> None:
        super().send_promise(peer, self._boast(message), needs_index)

    def _boast(self, message: Any) -> Any:
        last_applied = self._state.last_applied
        if isinstance(message, PreVote | RequestVote) and self._state.log.last_index < last_applied:
            return msgspec.structs.replace(message, last_index=last_applied)
        return message


def takes_whatever_is_offered(self: SnapshotReceiver, message: SnapshotBegin) -> None:
    """Snapshots are offered without need, and taken without a look at the own log and state."""


class OffersWithoutNeed(Replication):
    """A leader that offers snapshots without need. Alone this is harmless: each follower decides for itself."""

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, reply)
        state = self._state
        if state.role == LEADER and reply.term == state.term and not reply.success and state.log.base.index:
            self._snapshots.want(peer)


MUTANTS = (
    mutant(16, Swap(store.snapshots.install, "write_base", keeps_the_old_log)),
    mutant(0, Swap(store.snapshots.install, "finish_install", forgets_what_it_decided)),
    mutant(
        16,
        Swap(SnapshotReceiver, "on_chunk", takes_chunks_as_they_come),
        Swap(SnapshotWriter, "check", believes_what_arrived),
    ),
    mutant(1, swap_part(AcknowledgesTheEntriesOfItsSnapshot)),
    mutant(16, swap_part(AppliesFromTheBaseOn)),
    mutant(16, Swap(Snapshots, "pinned_from", holds_nothing_up)),
    mutant(16, Swap(Index, "pairs", reads_a_state_that_moves), rare=True),
    mutant(16, swap_part(StandsWithItsState), rare=True),
    mutant(
        16,
        Swap(SnapshotReceiver, "_objection", takes_whatever_is_offered),
        swap_part(OffersWithoutNeed),
        rare=True,
    ),
)
