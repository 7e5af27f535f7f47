"""The follower's side: it takes the entries that the leader of its term sends, and says how far it has them.

Rows are those of the table in docs/safe-pysyncobj.md.
"""

import logging
from collections.abc import Callable, Sequence

from raft.copies.new_disk import NewDisk
from raft.copies.own_copy import OwnCopy
from raft.distrust import LOST_ELSEWHERE
from raft.election.election import Election
from raft.entries.log_writer import LogWriter
from raft.health.disk_health import DiskHealth
from raft.library import FOLLOWER, now
from raft.membership import decode_configuration
from raft.messages import Append, AppendEntries, AppendReply
from raft.replication import chain_check
from raft.sender import Sender
from raft.state import RaftState
from store.log.differs import Difference
from store.log.errors import DiskFull
from store.log.record import GENESIS_INDEX, KIND_CONFIG, Entry

log = logging.getLogger(__name__)

ANSWERS_PER_HEARTBEAT = 4
"""The same answer to heartbeats is given this often at most in the time between two."""


class Follower:
    """Invariants: an entry that is here with the leader's term stays (row 1), a committed entry is never cut off, and
    no acknowledgement leaves before the entries that it speaks of are synced (row 8). Loop-only.
    """

    def __init__(
        self,
        state: RaftState,
        sender: Sender,
        election: Election,
        log_writer: LogWriter,
        own_copy: OwnCopy,
        new_disk: NewDisk,
        disks: DiskHealth,
    ) -> None:
        self._state = state
        self._sender = sender
        self._election = election
        self._log_writer = log_writer
        self._own_copy = own_copy
        self._new_disk = new_disk
        self._disks = disks
        self.on_written: Callable[[], None] = lambda: None
        """Called when the new entries of a message are written: their sync begins while they are checked."""
        self._known_committed = 0  # committed by the leader's word and matching here, but maybe not yet durable here
        self._is_full = False
        self._heartbeat_answered: tuple[int, AppendReply] | None = None
        self._heartbeat_answered_s = 0.0

    def on_append(self, peer: int, append: Append) -> None:
        """Take entries, or a heartbeat, from `peer`. Raises ProtocolError for a message that no leader of this term can
        send."""
        state, message = self._state, append.message
        if message.term < state.term:
            self._sender.send(peer, self._reply(False, 0, message.prev_index, message.prev_index))
            return
        for entry in append.entries:
            if entry.kind == KIND_CONFIG:  # one above what this build knows ends it before anything is cut or written
                decode_configuration(entry.payload)
        self._election.follow(peer)
        state.knowledge.told_committed(message.commit_term, message.commit_index)
        hint = self._mismatch(message)
        if hint is not None:
            self._sender.send(peer, self._reply(False, 0, message.prev_index, hint))
            return
        match, held = self._append_missing(message.prev_index, append.entries)
        if chain_check.differs(state.log, append, match):
            match = self._on_difference(peer, append, held)
            if not match:
                self._sender.send(peer, self._reply(True, 0, heartbeat=True))
                return
        chain_check.take_over(state.log, append, match)
        # row 3: beyond `match` this log may still differ from the leader's
        self._known_committed = max(self._known_committed, min(message.commit_index, match))
        self.commit_synced()
        self._new_disk.follow(message.term, message.commit_index)
        if append.entries:
            self._sender.send_promise(peer, self._reply(True, match), match)
        else:
            self._answer_heartbeat(peer, self._reply(True, min(match, state.log.synced_index), heartbeat=True))

    def commit_synced(self) -> None:
        """Raise the commit index to the entries known to be committed, as far as they are synced here."""
        self._state.library.commit_index = self._known_committed

    def take_over_commits(self) -> None:
        """Remember the entries that this node committed itself while it led, until now."""
        self._known_committed = max(self._known_committed, self._state.commit_index)

    def data_arrives(self, peer: int) -> int:
        """Note that ARRIVED_BYTES more of a message of that peer have come, and return the term to answer in.

        Whoever sends them lives: nobody has to stand for election because an entry is large.
        """
        state = self._state
        if state.role == FOLLOWER and peer == state.leader_id and not state.library.transfer_in_progress:
            self._election.hear_from_leader()
        return state.term

    def _on_difference(self, peer: int, append: Append, held: int) -> int:
        """Act on logs that differ although indexes and terms are equal; return up to where they match afterwards.

        An entry that has just been appended, and was changed on its way to the disk, is cut off. If that is not it, the
        result is 0: then nothing here may be acknowledged.
        """
        state = self._state
        changed = chain_check.first_changed(state.log, append)
        if changed is not None and changed > max(held, state.commit_index):
            log.error(
                "entry %d is not as node %d has sent it: the memory of this node has changed it. The entry is cut off, "
                "and sent again. Look for errors of the memory in the system's log",
                changed,
                peer,
            )
            self._log_writer.cut_from(changed)
            return changed - 1
        at = append.message.prev_index + len(append.entries)
        self._own_copy.contradicted(peer, Difference(changed or at, changed - 1 if changed else 0, records=True))
        return 0

    def _answer_heartbeat(self, peer: int, reply: AppendReply) -> None:
        """Answer at once: a slow disk is not a dead node.

        Of heartbeats that piled up while this node stood, one in a while is answered: the same answer again tells the
        leader nothing.
        """
        again_s = self._state.config.heartbeat_ms / 1000 / ANSWERS_PER_HEARTBEAT
        if self._heartbeat_answered != (peer, reply) or now() - self._heartbeat_answered_s >= again_s:
            self._heartbeat_answered, self._heartbeat_answered_s = (peer, reply), now()
            self._sender.send(peer, reply)

    def _reply(
        self, success: bool, match_index: int, rejected_prev: int = 0, hint: int = 0, *, heartbeat: bool = False
    ) -> AppendReply:
        votes = self._own_copy.votes
        counts = votes or self._new_disk.may_count
        return AppendReply(self._state.term, success, match_index, rejected_prev, hint, counts, votes, heartbeat)

    def _mismatch(self, message: AppendEntries) -> int | None:
        """Return None if the entry before the new ones is here with that term, else the index at which the leader
        should go on (row 12).
        """
        prev_index, our_log, commit_index = message.prev_index, self._state.log, self._state.commit_index
        if prev_index > our_log.last_index:
            return our_log.last_index + 1
        if prev_index < our_log.base.index or our_log.term_at(prev_index) == message.prev_term:
            return None  # what is before the base was committed and applied here
        if prev_index <= commit_index:
            self._refuse_to_cut(prev_index, message.term)
        conflicting_term, first = our_log.term_at(prev_index), prev_index
        while first - 1 > commit_index and our_log.term_at(first - 1) == conflicting_term:
            first -= 1
        return first

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        """Append the entries that are not here; entries already here with that term stay (row 1), and the log is cut
        only at the first that differs.

        Returns the index up to which this log now equals the leader's, which is less than all of it when the disk is
        full (the leader sends the rest again), and the index up to which it held already what it holds now.
        """
        our_log = self._state.log
        match, held = prev_index, our_log.last_index
        for entry in entries:
            if entry.index > our_log.last_index or not self._has(entry):
                held = min(held, entry.index - 1)
                try:
                    self._log_writer.append(entry)
                except DiskFull as error:
                    if not self._is_full:  # once: the leader sends it again and again
                        log.warning("cannot take entry %d, which the leader sends again: %s", entry.index, error)
                    self._is_full = True
                    self._disks.on_log_full()
                    break
                self._is_full = False
            match = entry.index
        if held < our_log.last_index:
            self.on_written()
        return match, held

    def _has(self, entry: Entry) -> bool:
        """Return whether the entry is here; if another is in its place, that one and all after it are cut off."""
        state = self._state
        if entry.index <= state.log.base.index or state.log.term_at(entry.index) == entry.term:
            return True
        if entry.index <= max(state.commit_index, self._known_committed, GENESIS_INDEX):
            self._refuse_to_cut(entry.index, state.term)
        log.info(
            "cutting the log from entry %d: the leader of term %d has another entry there", entry.index, state.term
        )
        self._log_writer.cut_from(entry.index)
        return False

    def _refuse_to_cut(self, index: int, term: int) -> None:
        """Raise ProtocolError, or SafetyViolation when it goes on (raft/distrust.py)."""
        self._state.distrust.contradicted(
            f"the leader of term {term} has another entry at {index}, which is committed here. "
            + LOST_ELSEWHERE.format(index=index)
        )
