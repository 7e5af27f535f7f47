"""Logs that are cut early: entries whose effects the index has on disk go from the front far sooner than retention
would have them go.

So nodes that were away for a moment are behind the kept log. Payloads that the state still points at come from an
archive then: retention, which would keep them, is not tested here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from store.log.commit_log import CommitLog
from store.log.errors import DiskFull
from store.log.record import Entry

from .checkers import Violation

if TYPE_CHECKING:
    from .replica import Replica

Note = Callable[[str], None]


@dataclass(frozen=True)
class CutSettings:
    """The pause between cuts of the log, and the amounts that stay although they might go."""

    pause_us: int
    keep_entries: int
    retain_behind_bytes: int
    portion_bytes: int
    window_messages: int


def draw_cuts(random: Random) -> CutSettings | None:
    """Draw settings for the cuts of the log; None in some seeds, because the faults that need a long log need seeds
    too.
    """
    if random.random() < 0.55:
        return None
    return CutSettings(
        pause_us=random.choice((20_000, 100_000, 400_000)),
        keep_entries=random.choice((0, 0, 5, 40)),
        retain_behind_bytes=random.choice((1, 4 * 1024, 64 * 1024)),
        portion_bytes=random.choice((2 * 1024, 16 * 1024, 128 * 1024)),
        window_messages=random.choice((1, 3, 8)),
    )


class Archive:
    """An archive of every payload applied anywhere, by log position. Positions are the same on all replicas."""

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}

    def keep(self, entry: Entry) -> None:
        self._payloads[entry.position] = entry.payload

    def reader(self, log: CommitLog) -> Callable[[int], bytes]:
        """Return a reader of payloads by position: from `log`, and from here what lies before its base."""

        def payload_at(position: int) -> bytes:
            if position < log.base.position:
                return self.payload(position)
            return log.entry(log.index_at(position)).payload

        return payload_at

    def payload(self, position: int) -> bytes:
        return self._payloads[position]


def cut(replica: "Replica", settings: CutSettings, note: Note) -> None:
    """Remove the entries that this node has applied durably and that nobody needs. Runs as the node."""
    log, node = replica.log, replica.node
    if node.is_catching_up or log.base.index >= replica.machine.applied_index:
        return
    flushed = replica.machine.flushed_index
    if flushed < replica.machine.applied_index:
        replica.machine.begin_flush()
    lowest = min(flushed - settings.keep_entries, replica.raft.replication.needed_from())
    before = log.base
    if lowest <= before.index + 1:
        return
    sending = [sender.reader.base.index for sender in replica.raft.snapshots._senders.values()]
    try:
        after = CommitLog.drop_before(log, lowest)  # unwatched: payloads that the state points at may go
    except DiskFull:  # no file descriptor is left; the next cut tries again
        return
    if after == before:
        return
    note("log: cut")
    replica.world.trace("cut", replica.node_id, after.index)
    if sending and after.index > min(sending):
        raise Violation("pinned", f"node {replica.node_id} drops up to {after.index}, which a snapshot under way needs")
