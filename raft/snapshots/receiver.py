"""Receives a snapshot: writes it beside the follower's index, and in the end decides to replace log and state with it.

Why the own log may be thrown away (docs/safe-pysyncobj.md): the base of the snapshot is committed, and this log does
not hold it, so nothing in this log at or behind that place is, or can ever be, committed. Both conditions are checked
when the transfer begins, and again at the moment of the decision, whatever has happened meanwhile.
"""

import logging
from collections.abc import Callable

from raft.distrust import LOST_ELSEWHERE, Distrust
from raft.errors import ProtocolError
from raft.library import now
from raft.messages import SnapshotAck, SnapshotAnswer, SnapshotBegin, SnapshotChunk, SnapshotEnd, SnapshotReject
from store.errors import IndexDamaged, IndexUnreadable
from store.index.index import FORMAT, Index
from store.log.base import LogBase
from store.log.commit_log import CommitLog
from store.log.errors import DiskError, DiskFull
from store.snapshots.install import Decision, SnapshotStore
from store.snapshots.snapshot import SnapshotRefused, SnapshotWriter

log = logging.getLogger(__name__)

PROGRESS_LOG_S = 5.0
REASON_MAX = 200


class _Incoming:
    """A transfer under way, and the index it is written to."""

    def __init__(self, peer: int, begin: SnapshotBegin, index: Index) -> None:
        self.peer, self.begin, self.index = peer, begin, index
        self.base = LogBase(begin.base_position, begin.base_index, begin.base_term)
        self.writer = SnapshotWriter(index)
        self.received = 1  # number of messages, including SnapshotBegin
        self.end: SnapshotEnd | None = None  # which has come, and waits for the disk
        self.begun_s = self.logged_s = now()

    @property
    def percent(self) -> int:
        return min(99, 100 * self.writer.pairs_written // max(1, self.begin.estimated_pairs))


class SnapshotReceiver:
    """Owns the transfer that this node receives. The caller makes sure that messages come from the leader of the
    present term. Use it only on the event loop.

    `committed_index()` is the last entry known here to be committed, applied or not. `on_decided()` is called when the
    node has to start again: from then on the node must not promise anything. `distrust` counts the contradictions.
    """

    def __init__(
        self,
        store: SnapshotStore,
        commit_log: CommitLog,
        committed_index: Callable[[], int],
        send: Callable[[int, SnapshotAnswer], None],
        on_decided: Callable[[], None],
        distrust: Distrust,
    ) -> None:
        self._store = store
        self._log = commit_log
        self._committed_index = committed_index
        self._send = send
        self._on_decided = on_decided
        self._distrust = distrust
        self._incoming: _Incoming | None = None

    @property
    def percent(self) -> int | None:
        """Approximate percentage of the snapshot that has arrived; None while none is received."""
        return None if self._incoming is None else self._incoming.percent

    def abort(self, reason: str) -> None:
        """Throw the received part away, in the background, and log the reason. Does nothing while none is received."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            return
        log.warning("giving up the snapshot of node %d at %d %%: %s", incoming.peer, incoming.percent, reason)
        self._store.discard_incoming(incoming.index)

    def on_begin(self, peer: int, message: SnapshotBegin) -> None:
        incoming = self._incoming
        if incoming is not None and incoming.begin == message and incoming.peer == peer:
            self._acknowledge(incoming)
            return
        self.abort("another one begins")
        objection = self._objection(message)
        if objection is None:
            try:
                index = self._store.open_incoming()
            except (IndexDamaged, IndexUnreadable, DiskError) as error:
                objection = f"it cannot be stored: {error}"
        if objection is not None:
            self._reject(peer, message, objection)
            return
        log.info(
            "receiving the state after entry %d from node %d: its log begins after entry %d, this one ends at entry %d",
            message.index,
            peer,
            message.base_index,
            self._log.last_index,
        )
        self._incoming = _Incoming(peer, message, index)
        self._acknowledge(self._incoming)

    def on_chunk(self, peer: int, message: SnapshotChunk) -> None:
        incoming = self._expected(peer, message)
        if incoming is None:
            return
        if message.number == incoming.received:
            try:
                if not incoming.writer.is_written():
                    return  # the disk does not keep up; the leader sends it again
                self._store.require_room()
                incoming.writer.add(message.data)
            except SnapshotRefused as error:
                self.abort(str(error))
                raise ProtocolError(f"node {peer} sends an invalid snapshot: {error}") from error
            except Exception as error:  # RocksDB raises no narrower type; own state untouched
                self._give_up(incoming, f"it cannot be stored: {error}")
                return
            incoming.received += 1
            self._tell_progress(incoming)
        self._acknowledge(incoming)

    def on_end(self, peer: int, message: SnapshotEnd) -> None:
        incoming = self._expected(peer, message)
        if incoming is None:
            return
        if message.number != incoming.received:
            self._acknowledge(incoming)
            return
        incoming.end = message
        self._end(incoming, message)

    def look(self) -> None:
        """Go on with a transfer that has ended and waits for the disk, which the loop does not."""
        incoming = self._incoming
        if incoming is not None and incoming.end is not None:
            try:
                self._end(incoming, incoming.end)
            except ProtocolError as error:  # no message brought this up, and the peer's connection may be another one
                self._give_up(incoming, str(error))

    def _end(self, incoming: _Incoming, message: SnapshotEnd) -> None:
        begin = incoming.begin
        objection = self._objection(begin)
        if objection is not None:
            self._give_up(incoming, objection)
            return
        try:
            incoming.writer.check(message.pairs, message.checksum, begin.index, begin.state_hash)
            is_durable = incoming.writer.is_durable()
        except Exception as error:  # SnapshotRefused, or what RocksDB raises
            self._give_up(incoming, f"it is not whole: {error}")
            return
        if is_durable:
            self._decide(incoming)

    def _decide(self, incoming: _Incoming) -> None:
        begin, writer = incoming.begin, incoming.writer
        took_s = now() - incoming.begun_s
        decision = Decision(
            incoming.base, begin.index, begin.state_hash, writer.bytes_written, received_ms=int(took_s * 1000)
        )
        try:
            self._store.decide(incoming.index, decision)
        except DiskFull as error:
            self._incoming = None  # the store has removed its index
            self._reject(incoming.peer, begin, f"no room to decide for it: {error}")
            return
        incoming.received += 1
        log.info(
            "received the state after entry %d: %d pairs, %d bytes in %.1f s; starting again with it",
            begin.index,
            writer.pairs_written,
            writer.bytes_written,
            took_s,
        )
        self._acknowledge(incoming)
        self._incoming = None
        self._on_decided()

    def _objection(self, message: SnapshotBegin) -> str | None:
        """Return why the announced snapshot must not replace the own log and state, or None. Raises ProtocolError when
        the snapshot's base contradicts a committed entry, or SafetyViolation (raft/distrust.py).
        """
        own, committed_index = self._log, self._committed_index()
        if message.format != FORMAT.decode():
            return f"its format is {message.format!r}, this version reads {FORMAT.decode()!r}"
        if message.index < message.base_index or not message.base_index:
            return "it does not reach the beginning of its log"
        if message.index < committed_index:
            return f"it ends at entry {message.index}, {committed_index} are committed here"
        base_index = message.base_index
        if own.base.index <= base_index <= own.last_index and own.term_at(base_index) != message.base_term:
            if base_index <= committed_index:
                self._distrust.contradicted(
                    f"entry {base_index} is committed here, and the leader of term {message.term} has committed "
                    "another. " + LOST_ELSEWHERE.format(index=base_index)
                )
            return None
        return None if base_index > own.last_index else f"entry {base_index} is here"

    def _expected(self, peer: int, message: SnapshotChunk | SnapshotEnd) -> _Incoming | None:
        """Return the transfer of the message; None if it is not under way, which the sender is told."""
        incoming = self._incoming
        if incoming is None or (incoming.peer, incoming.begin.transfer, incoming.begin.term) != (
            peer,
            message.transfer,
            message.term,
        ):
            self._reject(peer, message, "it is not under way here")
            return None
        return incoming

    def _acknowledge(self, incoming: _Incoming) -> None:
        begin = incoming.begin
        self._send(incoming.peer, SnapshotAck(begin.term, begin.transfer, incoming.received))

    def _give_up(self, incoming: _Incoming, reason: str) -> None:
        self.abort(reason)
        self._reject(incoming.peer, incoming.begin, reason)

    def _reject(self, peer: int, message: SnapshotBegin | SnapshotChunk | SnapshotEnd, reason: str) -> None:
        self._send(peer, SnapshotReject(message.term, message.transfer, reason[:REASON_MAX]))

    @staticmethod
    def _tell_progress(incoming: _Incoming) -> None:
        if now() - incoming.logged_s > PROGRESS_LOG_S:
            incoming.logged_s = now()
            log.info("%d %% of the snapshot received, %d bytes", incoming.percent, incoming.writer.bytes_written)
