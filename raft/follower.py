"""The follower's side: it takes what the leader of its term sends, and says what it has."""

import logging
from collections.abc import Callable, Sequence

from pysyncobj.transport import Transport as LibraryTransport

from raft import chain_check
from raft.config import RaftConfig
from raft.election import ElectionHandlers
from raft.errors import ProtocolError
from raft.journal import Journal
from raft.library import FOLLOWER, LEADER, now
from raft.membership import Membership, decode_configuration
from raft.messages import Append, AppendEntries, AppendReply, PreVote
from store.features import LevelOf
from store.log.differs import Difference
from store.log.errors import DiskFull
from store.log.record import KIND_CONFIG, Entry

log = logging.getLogger(__name__)

LOST_ELSEWHERE = (
    "The others went on without it: a disk of theirs was put back to an earlier state, or a majority lost its disks. "
    "Nothing was cut. Keep this node stopped, copy its data directory aside, see with 'keelmqd log dump --data-dir DIR "
    "--from-index {index}' what the others lack, and send that again; then empty the directory and start the node, "
    "which the others fill"
)
ANSWERS_PER_HEARTBEAT = 4
"""The same answer to heartbeats is given this often at most in the time between two."""


class FollowerHandlers(ElectionHandlers):
    """Invariants: an entry that is here with the leader's term stays (row 1), what is committed is never cut off, and
    no acknowledgement leaves before what it speaks of is synced (row 8).
    """

    def __init__(
        self, config: RaftConfig, journal: Journal, transport: LibraryTransport, membership: Membership
    ) -> None:
        self._known_committed = 0  # committed by the leader's word and matching here, but maybe not yet durable here
        self._asked: set[int] = set()
        self._is_full = False
        self._heartbeat_answered: tuple[int, AppendReply] | None = None
        self._heartbeat_answered_s = 0.0
        self.on_feature_level: Callable[[LevelOf], None] = lambda _: None
        """Called before a configuration is written to the log, and when one is taken back: with the level then."""
        super().__init__(config, journal, transport, membership)

    def on_append(self, peer: int, append: Append) -> None:
        message = append.message
        if message.term < self.term:
            self.send(peer, self._reply(False, 0, message.prev_index, message.prev_index))
            return
        if self.role == LEADER:
            raise ProtocolError(f"node {peer} claims to lead term {self.term}, which this node leads")
        for entry in append.entries:
            if entry.kind == KIND_CONFIG:  # one above what this build knows ends it before anything is cut or written
                decode_configuration(entry.payload)
        self.follow(peer)
        self.knowledge.told_committed(message.commit_term, message.commit_index)
        hint = self._mismatch(message)
        if hint is not None:
            self.send(peer, self._reply(False, 0, message.prev_index, hint))
            return
        match, held = self._append_missing(message.prev_index, append.entries)
        if chain_check.differs(self.log, append, match):
            match = self._on_difference(peer, append, held)
            if not match:
                self.send(peer, self._reply(True, 0, heartbeat=True))
                return
        chain_check.take_over(self.log, append, match)
        # row 3: beyond `match` this log may still differ from the leader's
        self._known_committed = max(self._known_committed, min(message.commit_index, match))
        self.commit_index = self._known_committed
        self._rejoin.follow(message.term, message.commit_index)
        if append.entries:
            self.gate.submit(peer, self._reply(True, match), match, self.log.synced_index)
        else:
            self._answer_heartbeat(peer, self._reply(True, min(match, self.log.synced_index), heartbeat=True))

    def data_arrives(self, peer: int) -> int:
        """Bytes of that peer have arrived, ARRIVED_BYTES of them, of a message that may take long. Returns the term
        to answer in. Whoever leads lives, then: nobody has to stand for election because an entry is large.
        """
        if self.role == FOLLOWER and peer == self.leader_id and not self.transfer_in_progress:
            self._leader_contact = now()
            self.postpone_election()
        return int(self.term)

    def _on_difference(self, peer: int, append: Append, held: int) -> int:
        """The logs differ, whatever indexes and terms say. Up to where they match once what has just been appended, and
        was changed on its way to the disk, is cut off; 0 if that is not it: then nothing here may be acknowledged.
        """
        changed = chain_check.first_changed(self.log, append)
        if changed is not None and changed > max(held, self.commit_index):
            log.error(
                "entry %d is not what node %d has sent: the memory of this node has changed it. It is cut off, and "
                "sent again. Look for errors of the memory in the system's log",
                changed,
                peer,
            )
            self._cut_from(changed)
            return changed - 1
        at = append.message.prev_index + len(append.entries)
        self.replicas.contradicted(peer, Difference(changed or at, changed - 1 if changed else 0, records=True))
        return 0

    def _answer_heartbeat(self, peer: int, reply: AppendReply) -> None:
        """At once: a slow disk is not a dead node. Of heartbeats that piled up while this node stood, one in a while:
        the same answer again tells the leader nothing.
        """
        again_s = self.config.heartbeat_ms / 1000 / ANSWERS_PER_HEARTBEAT
        if self._heartbeat_answered != (peer, reply) or now() - self._heartbeat_answered_s >= again_s:
            self._heartbeat_answered, self._heartbeat_answered_s = (peer, reply), now()
            self.send(peer, reply)

    def _reply(
        self, success: bool, match_index: int, rejected_prev: int = 0, hint: int = 0, *, heartbeat: bool = False
    ) -> AppendReply:
        votes = self.votes
        counts = votes or (
            not self._forgotten
            and not self.replicas.differs
            and self._is_member
            and self._rejoin.has_heard_all(self._candidates)
        )
        return AppendReply(self.term, success, match_index, rejected_prev, hint, counts, votes, heartbeat)

    @property
    def _is_member(self) -> bool:
        """Also that it knows one configuration to be committed: who was told to join begins without any, and the first
        record in its log may remove the only one who knows better.
        """
        return bool(self.membership.settled.configuration.members) and (
            self.configuration.find(self.config.node_id) is not None
        )

    @property
    def _candidates(self) -> frozenset[int]:
        """Whom a disk that this node had before may have voted for."""
        return self.membership.nodes - {self.config.node_id}

    def _vote_again(self) -> None:
        """A node whose disk was new votes as soon as it can contradict nothing that its old disk knew."""
        if (
            self.journal.voter
            or self._forgotten
            or self.replicas.differs
            or self.leader_id is None
            or not self._is_member
        ):
            return
        if not self._rejoin.has_heard_all(self._candidates):
            for peer in self._rejoin.to_ask(self._candidates):
                if peer not in self._asked:
                    self._asked.add(peer)
                    log.info("this disk is new: asking node %d for its term, before anything here counts", peer)
                self.send(peer, PreVote(self.term, self.log.last_index, self.log.last_term, False))
            return
        if not self._rejoin.holds_all(self.term, self.commit_index, self.log.term_at):
            return
        try:
            self.set_term(self.term, self.leader_id)
            self.journal.become_voter()
        except DiskFull as error:  # the next tick tries again
            log.debug("cannot note that this node has caught up: %s", error)
        else:
            what = "from now on this node votes" if self.is_voter else "this node may be promoted"
            log.info("caught up at entry %d: %s", self.commit_index, what)

    def _mismatch(self, message: AppendEntries) -> int | None:
        """None if the entry before the new ones is here with that term, else where the leader should go on (row 12)."""
        prev_index, our_log = message.prev_index, self.log
        if prev_index > our_log.last_index:
            return our_log.last_index + 1
        if prev_index < our_log.base.index or our_log.term_at(prev_index) == message.prev_term:
            return None  # what is before the base was committed and applied here
        if prev_index <= self.commit_index:
            self._distrust.contradicted(
                f"the leader of term {message.term} has another entry at {prev_index}, which is committed here. "
                + LOST_ELSEWHERE.format(index=prev_index)
            )
        conflicting_term, first = our_log.term_at(prev_index), prev_index
        while first - 1 > self.commit_index and our_log.term_at(first - 1) == conflicting_term:
            first -= 1
        return first

    def _append_missing(self, prev_index: int, entries: Sequence[Entry]) -> tuple[int, int]:
        """Row 1: entries already here with that term stay; the log is cut only at the first that differs.

        Returns up to where this log now equals the leader's, which is less than all of it when the disk is full (the
        leader sends the rest again), and up to where it held already what it holds now.
        """
        match, held = prev_index, self.log.last_index
        for entry in entries:
            if entry.index > self.log.last_index or not self._has(entry):
                held = min(held, entry.index - 1)
                try:
                    self._append(entry)
                except DiskFull as error:
                    if not self._is_full:  # once: the leader sends it again and again
                        log.warning("cannot take entry %d: %s", entry.index, error)
                    self._is_full = True
                    self.disks.on_log_full()
                    break
                self._is_full = False
            match = entry.index
        return match, held

    def _has(self, entry: Entry) -> bool:
        """Whether the entry is here; if another is in its place, that one and all after it are cut off, durably."""
        if entry.index <= self.log.base.index or self.log.term_at(entry.index) == entry.term:
            return True
        if entry.index <= max(self.commit_index, self._known_committed):
            self._distrust.contradicted(
                f"the leader of term {self.term} has another entry at {entry.index}, which is committed here. "
                + LOST_ELSEWHERE.format(index=entry.index)
            )
        log.info("cutting the log from entry %d: the leader of term %d has another", entry.index, self.term)
        self._cut_from(entry.index)
        return False

    def _cut_from(self, index: int) -> None:
        """Durable on return, with the configuration of before in force. Nothing from there on may be committed."""
        self.gate.discard()
        self.knowledge.note_cut(self.term)
        self.log.truncate_from(index)
        if self.membership.truncate_from(index):
            log.warning("the change of the cluster's nodes was not committed and is taken back")
            self.on_feature_level(self.configuration.level)
            self.on_configuration()

    def _append(self, entry: Entry) -> None:
        """A configuration is in force from here on, committed or not."""
        configuration = decode_configuration(entry.payload) if entry.kind == KIND_CONFIG else None
        if configuration is not None:
            self.on_feature_level(configuration.level)
        self.log.append(entry.index, entry.term, entry.kind, entry.payload)
        if configuration is not None:
            self.membership.append(entry.index, configuration)
            self.on_configuration()

    def on_configuration(self) -> None:
        raise NotImplementedError
