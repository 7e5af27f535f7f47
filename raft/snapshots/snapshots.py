"""Snapshots between the nodes of a group: which peer is sent one, which node takes one, and which log stays for it.

A peer is sent a snapshot when it lacks even the base of the leader's log, because it can never be filled from the log
alone. Meanwhile the peer gets heartbeats that carry no claim about its log, and the leader's log stays unchanged from
that base on.
"""

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from raft.library import LEADER, now
from raft.messages import (
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotMessage,
    SnapshotReject,
)
from raft.peers.lanes import Lanes
from raft.sender import Sender
from raft.snapshots.receiver import SnapshotReceiver
from raft.snapshots.sender import SnapshotSender
from raft.state import RaftState
from store.snapshots.install import SnapshotStore
from store.snapshots.snapshot import SnapshotReader

log = logging.getLogger(__name__)

RETRY_TIMEOUTS = 1
"""Election timeouts between two transfers to the same peer."""
PIN_TIMEOUTS = 60
"""Election timeouts since a peer's last progress for which the log stays for it after its snapshot."""
PROGRESS_LOG_S = 5.0
_NUMBERS = re.compile(r"\d+")
DIFFERS = "its copy differs from the others, and stays as it is until an operator has it rebuilt"


class Pin(NamedTuple):
    """Keeps the log from `first_index` on until the peer has acknowledged `until_index`, or makes no progress."""

    first_index: int
    until_index: int
    acked: int
    progress_s: float


class SnapshotCounts:
    """Counts of the snapshots that this node has sent as leader since the process started."""

    def __init__(self) -> None:
        self.begun = self.sent = self.aborted = 0
        self.bytes = 0
        self.seconds = 0.0


class Snapshots:
    """Owns the snapshot transfers of this node in both directions. Without a store (None) it sends and takes none."""

    def __init__(
        self,
        state: RaftState,
        sender: Sender,
        lanes: Lanes,
        store: SnapshotStore | None,
        on_decided: Callable[[], None],
        differs: Callable[[], bool],
    ) -> None:
        """`on_decided()` is called when a snapshot that arrived takes the place of this node's state: the node has to
        start again, and nothing may leave it any more. While `differs()`, none is taken.
        """
        self.on_leader: Callable[[int], None] = lambda _: None
        """Called with the peer that has spoken as the leader of the present term."""
        self.on_ended: Callable[[int], None] = lambda _: None
        """Called with a peer to which a transfer is over: the leader finds out, from its log's base on, how far that
        peer has the log."""
        self.counts = SnapshotCounts()
        self._state = state
        self._sender = sender
        self._lanes = lanes
        self._store = store
        self._on_decided = on_decided
        self._differs = differs
        self._senders: dict[int, SnapshotSender] = {}
        self._wanted: set[int] = set()
        self._not_before_s: dict[int, float] = {}
        self._pins: dict[int, Pin] = {}
        self._refusals: dict[int, str] = {}
        """The last word of each peer that refuses, without its numbers: it may do so each second until an operator
        helps it, and is reported once."""
        self._transfers = 0
        self._logged_s = 0.0
        self._receiver: SnapshotReceiver | None = None

    def read(self) -> SnapshotReader:
        """Return a reader of this node's state as it is now. Needs a store."""
        assert self._store is not None, "a node without a store has no backups"
        return self._store.read(self._state.log.base)

    # --- leader ------------------------------------------------------------------------------------------------

    def is_due(self, peer: int) -> bool:
        """Return whether the peer is being sent a snapshot, or is to be: appends are of no use to it."""
        return peer in self._wanted

    def want(self, peer: int) -> None:
        """Note that the peer needs a snapshot, since it has refused the entries after the log's base."""
        if self._store is not None and peer not in self._wanted:
            self._wanted.add(peer)
            self.tick()

    def forget(self, peer: int, reason: str) -> None:
        """End a transfer to the peer, whose connection or disk is gone. A new one begins when it is needed again."""
        self._wanted.discard(peer)
        self._refusals.pop(peer, None)
        if peer in self._senders:
            self._end(peer, reason)

    def remove(self, peer: int) -> None:
        """End a transfer to the peer, which was removed from the cluster, and keep no log for it."""
        self.forget(peer, "it was removed from the cluster")
        self._pins.pop(peer, None)
        self._not_before_s.pop(peer, None)

    def lose_leadership(self) -> None:
        for peer in list(self._senders):
            self.forget(peer, "this node no longer leads")
        self._wanted.clear()
        self._pins.clear()
        self._refusals.clear()

    def sending(self, peer: int) -> int | None:
        """Return the approximate percentage of the transfer to the peer; None when there is none."""
        sender = self._senders.get(peer)
        return None if sender is None else sender.percent

    def pinned_from(self) -> int | None:
        """Return the first index that stays for peers that are sent a snapshot or have just got one; None if there are
        none.
        """
        return min((pin.first_index for pin in self._pins.values()), default=None)

    def on_acked(self, peer: int, acked: int) -> None:
        """Note that the peer has acknowledged entries up to `acked` after its snapshot."""
        pin = self._pins.get(peer)
        if pin is None or acked <= pin.acked:
            return
        if acked >= pin.until_index:
            del self._pins[peer]
        else:
            self._pins[peer] = pin._replace(acked=acked, progress_s=now())

    def on_answer(self, peer: int, message: SnapshotAnswer) -> None:
        state, sender = self._state, self._senders.get(peer)
        if state.role != LEADER or message.term != state.term or sender is None or sender.transfer != message.transfer:
            return
        if isinstance(message, SnapshotReject):
            self._wanted.discard(peer)
            reason = _NUMBERS.sub("", message.reason)  # of a full disk, it names the free bytes
            level = logging.DEBUG if self._refusals.get(peer) == reason else logging.WARNING
            self._end(peer, f"it refuses: {message.reason}", level)
            self._refusals[peer] = reason
            del self._pins[peer]  # it may refuse for days, and the log would grow for as long
            self.on_ended(peer)
            return
        sender.on_ack(message)
        self._pins[peer] = self._pins[peer]._replace(progress_s=now())
        if sender.is_done:
            self._wanted.discard(peer)
            self._refusals.pop(peer, None)
            self._end(peer, None)
            self.on_ended(peer)

    def tick(self) -> None:
        """Begin wanted transfers, send lost portions again, and end transfers that stand still."""
        for peer in sorted(self._wanted - self._senders.keys()):
            if now() >= self._not_before_s.get(peer, 0.0):
                self._begin(peer)
        for peer, sender in list(self._senders.items()):
            if sender.is_stalled:
                self.forget(peer, "it does not get on")
                self.on_ended(peer)
            elif self._lanes.data_waits(peer):
                sender.on_waiting()
            else:
                sender.tick()
        if self._pins:
            self._release_pins()
        if self._senders and now() - self._logged_s > PROGRESS_LOG_S:
            self._logged_s = now()
            for peer, sender in self._senders.items():
                log.info("node %d has %d %% of the snapshot, %d bytes", peer, sender.percent, sender.bytes_acked)

    def _begin(self, peer: int) -> None:
        state, store = self._state, self._store
        assert store is not None, "otherwise none is wanted"
        base = state.log.base
        reader = store.read(base)
        self._transfers += 1
        self._logged_s = now()
        before = self._pins.get(peer)  # to begin again is no progress
        self._pins[peer] = Pin(base.index + 1, reader.index, 0, now() if before is None else before.progress_s)
        log.log(
            logging.DEBUG if peer in self._refusals else logging.INFO,
            "sending node %d the state after entry %d: it lacks entry %d, after which this log begins",
            peer,
            reader.index,
            base.index,
        )
        self.counts.begun += 1
        self._senders[peer] = SnapshotSender(
            state.term,
            self._transfers,
            reader,
            state.config.election_timeout_ms,
            lambda message: self._sender.send(peer, message),
        )

    def _end(self, peer: int, failure: str | None, level: int = logging.WARNING) -> None:
        sender, counts = self._senders.pop(peer), self.counts
        took_s = now() - sender.begun_s
        self._not_before_s[peer] = now() + RETRY_TIMEOUTS * self._state.config.election_timeout_ms / 1000
        counts.bytes += sender.bytes_acked
        counts.seconds += took_s
        if failure is None:
            counts.sent += 1
            log.info(
                "node %d has received the state after entry %d: %d bytes in %.1f s",
                peer,
                sender.reader.index,
                sender.bytes_acked,
                took_s,
            )
        else:
            counts.aborted += 1
            log.log(level, "giving up sending a snapshot to node %d at %d %%: %s", peer, sender.percent, failure)

    def _release_pins(self) -> None:
        limit_s = PIN_TIMEOUTS * self._state.config.election_timeout_ms / 1000
        for peer, pin in list(self._pins.items()):
            if peer not in self._senders and now() - pin.progress_s > limit_s:
                del self._pins[peer]

    # --- follower ----------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> int | None:
        """Approximate percentage of the snapshot that has arrived here; None while none is received."""
        return None if self._receiver is None else self._receiver.percent

    def stop_receiving(self, reason: str) -> None:
        if self._receiver is not None:
            self._receiver.abort(reason)

    def look(self) -> None:
        """Go on with a transfer to this node that waits for its disk."""
        if self._receiver is not None:
            if self._differs():
                self._receiver.abort(DIFFERS)
            else:
                self._receiver.look()

    def on_message(self, peer: int, message: SnapshotMessage) -> None:
        state = self._state
        if message.term < state.term:
            self._sender.send(peer, SnapshotReject(state.term, message.transfer, "there is a later leader"))
            return
        self.on_leader(peer)
        receiver = self._receiving_end()
        differs = self._differs()
        if receiver is None or differs:
            reason = DIFFERS if differs else "this node takes no snapshots"
            self._sender.send(peer, SnapshotReject(state.term, message.transfer, reason))
            return
        match message:
            case SnapshotBegin():
                receiver.on_begin(peer, message)
            case SnapshotChunk():
                receiver.on_chunk(peer, message)
            case SnapshotEnd():
                receiver.on_end(peer, message)

    def _receiving_end(self) -> SnapshotReceiver | None:
        if self._receiver is None and self._store is not None:
            state = self._state
            self._receiver = SnapshotReceiver(
                self._store,
                state.log,
                lambda: max(state.last_applied, state.commit_index),
                self._sender.send,
                self._on_decided,
                state.distrust,
            )
        return self._receiver
