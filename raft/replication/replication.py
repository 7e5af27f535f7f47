"""The leader's side: it sends its entries to the others, and counts the copies that they have on disk.

Rows are those of the table in docs/safe-pysyncobj.md.
"""

import logging
from collections.abc import Sequence
from typing import Final

from raft.errors import ProtocolError
from raft.library import LEADER, now
from raft.messages import Append, AppendEntries, AppendReply, make_append
from raft.peers.lanes import Lanes
from raft.replication.catching_up import BEHIND_BYTES, CATCH_UP_BYTES
from raft.replication.chain_check import chain_append
from raft.replication.progress import Progress
from raft.replication.retention import needed_from
from raft.sender import Sender
from raft.snapshots.snapshots import Snapshots
from raft.state import RaftState
from store.log.errors import DiskFull
from store.log.record import Entry

log = logging.getLogger(__name__)

APPEND_BYTES = 4 * 1024 * 1024
"""Entries in one append_entries message; a larger entry travels alone, always whole (row 2: never in chunks)."""
_NOTHING: Final = AppendEntries(0, 0, 0, 0, ())


class Replication:
    """Invariants: a copy counts for a commit only as far as its disk has it and this leader's own disk has it (row 8),
    and only from the no-op of the present leadership on (row 17). Loop-only; on nodes that do not lead it knows of no
    peers.
    """

    def __init__(self, state: RaftState, sender: Sender, lanes: Lanes, snapshots: Snapshots) -> None:
        self._state, self._library = state, state.library
        self._sender = sender
        self._lanes = lanes
        self._snapshots = snapshots
        self._progress: dict[int, Progress] = {}
        self._answered: dict[int, bool] = {}  # peers that answered since the last step; True: wants an append anyway
        self._may_send_on = False  # a peer has answered since the last step and lacks entries
        self._prepared: tuple[tuple[int, ...], Append] = (), Append(_NOTHING, ())  # the last append with entries
        self._is_unread = False  # the last entries that were to be sent could not be read
        self._limit: int | None = None  # the commit limit, while nothing has changed that it is counted from
        self.leads_from = 0
        """Index of the no-op of the present, or last, leadership of this node."""
        # Leader: when, and where its log ended; the later one first.
        self._rounds = (float("-inf"), 0), (float("-inf"), 0)

    # --- leadership begins, changes its nodes, and ends ------------------------------------------------------------

    def begin(self) -> None:
        """Begin a leadership: the next entry of this node's log is its no-op."""
        self.leads_from = self._state.log.last_index + 1
        self._rounds = (float("-inf"), 0), (float("-inf"), 0)
        self._progress = {peer: Progress(self.leads_from) for peer in self._state.peer_ids}
        self._limit = None

    def end(self) -> None:
        """End the leadership, and drop the data that still waits to be sent."""
        for peer in self._progress:
            self._lanes.drop_waiting(peer)
        self._progress, self._answered, self._may_send_on = {}, {}, False
        self._prepared = (), Append(_NOTHING, ())

    def on_configuration(self) -> None:
        """Take the nodes of the configuration that is in force now."""
        state = self._state
        if state.role != LEADER:
            return
        known = self._progress
        for peer in known.keys() - state.peer_ids:
            self._snapshots.remove(peer)
        self._progress = {peer: known.get(peer) or Progress(state.log.last_index + 1) for peer in state.peer_ids}
        self._limit = None

    def on_peer_connected(self, peer: int, *, forgetful: bool) -> None:
        """Begin anew with a peer whose connection stands; `forgetful` says that it has another disk than before."""
        if self._state.role != LEADER or peer not in self._progress:
            return
        if forgetful:
            log.warning("node %d comes back with a new disk: its earlier acknowledgements no longer count", peer)
            self._snapshots.forget(peer, "it comes back with a new disk")
        # An acknowledgement is good for its connection: behind a new one may be a disk that was put back.
        known, self._progress[peer] = self._progress[peer], Progress(self._state.log.last_index + 1)
        if not forgetful and known.acked:
            self._progress[peer].next_index = known.acked + 1
        self._limit = None

    def on_peer_disconnected(self, peer: int) -> None:
        if self._state.role == LEADER and peer in self._progress:
            self._snapshots.forget(peer, "it is no longer connected")
            self._progress[peer].restart()

    # --- what the others have --------------------------------------------------------------------------------------

    def acked(self, peer: int) -> int:
        """Leader: index up to which that peer's fsynced log is known to equal this one; 0 on other nodes."""
        progress = self._progress.get(peer)
        return progress.acked if progress and self._state.role == LEADER else 0

    def durable_on(self, index: int) -> tuple[int, ...]:
        """Leader: node ids of the voters known to have the entry fsynced and whose copies count, this one included."""
        state = self._state
        voters = state.configuration.voters
        nodes = [peer for peer, progress in self._progress.items() if progress.counted >= index and peer in voters]
        if state.log.synced_index >= index:
            nodes.append(state.node_id)
        return tuple(sorted(nodes))

    @property
    def commit_limit(self) -> int:
        """Row 8 and docs/membership.md: as leader, the index up to which a majority of the voters in force holds the
        log durably; on other nodes the end of the log.
        """
        state = self._state
        if state.role != LEADER:
            return state.log.last_index
        if self._limit is None:
            held = {peer: progress.counted for peer, progress in self._progress.items()}
            held[state.node_id] = state.log.synced_index
            limit = state.configuration.held_by_majority(held)
            self._limit = limit if limit >= self.leads_from else 0
        return self._limit

    def counted(self, peer: int) -> int:
        """Leader: index up to which that peer's copy counts for a commit.

        Row 8: only as far as the leader's own copy is durable, since the library always counts that one. A copy that
        ends before the own no-op counts for nothing (row 17).
        """
        counted = min(self._progress[peer].counted, self._state.log.synced_index)
        return counted if counted >= self.leads_from else 0

    def is_caught_up(self, peer: int) -> bool:
        """Leader: whether the peer, which has answered lately, has all that the log held an election timeout ago, and
        its disk has all that it ever acknowledged.
        """
        progress = self._progress.get(peer)
        held_then = max(self.leads_from, self._rounds[1][1])
        return progress is not None and peer in self.answering_voters() and progress.acked >= held_then

    def answering_voters(self) -> set[int]:
        """Leader: this node, and the others that have answered lately and would vote if this one fell silent."""
        timeout_s = 2 * self._state.config.election_timeout_ms / 1000
        answering = {
            peer
            for peer, progress in self._progress.items()
            if progress.votes and self._state.connected(peer) and self._library.answered_within(peer, timeout_s)
        }
        return answering | {self._state.node_id}

    def awaits_word_of(self, commit_index: int) -> bool:
        """Leader: whether a follower has not been told that what it has is committed, as far as `commit_index`."""
        for peer, progress in self._progress.items():
            told = progress.announced_commit
            if told < commit_index and told < progress.acked and self._state.connected(peer):
                return True
        return False

    @property
    def may_send_on(self) -> bool:
        """Leader: whether a peer has answered since the last `advance` and lacks entries."""
        return self._may_send_on

    @property
    def may_commit(self) -> bool:
        """Leader: whether `advance` would commit something."""
        committed = self._state.commit_index
        return committed < self._state.log.last_index and committed < self._committable

    def needed_from(self) -> int:
        """Return the lowest index that has to stay in this log for other nodes, or for these handlers, which go by the
        entry that they know to be committed last, also where an installed state is ahead of it.
        """
        state = self._state
        acked = {peer: each.acked for peer, each in self._progress.items()} if state.role == LEADER else {}
        needed = needed_from(state.log, acked, self._snapshots.pinned_from(), state.config.retain_behind_bytes)
        return min(needed, state.commit_index + 1)

    # --- sending ---------------------------------------------------------------------------------------------------

    def send_appends(self) -> None:
        """Send new entries to the followers that have room for them."""
        for peer, progress in self._progress.items():
            if self._state.connected(peer):
                self._send_to(peer, progress, heartbeat=False)

    def send_heartbeats(self) -> None:
        """Send new entries, and a heartbeat to every follower, whether there are entries or not."""
        state = self._state
        self._library.schedule_heartbeat()
        if now() - self._rounds[0][0] >= state.config.election_timeout_ms / 1000:
            self._rounds = (now(), state.log.last_index), self._rounds[0]
        for peer, progress in self._progress.items():
            if state.connected(peer):
                progress.on_heartbeat()
                self._send_to(peer, progress, heartbeat=True)

    def send_heartbeat_to(self, peer: int) -> None:
        if self._state.role == LEADER and peer in self._progress:
            self._send_to(peer, self._progress[peer], heartbeat=True)

    def advance(self) -> None:
        """Send on to the followers that answered since the last time, and commit."""
        if self._answered:
            self._go_on_sending()
        self._commit()

    def _go_on_sending(self) -> None:
        """Once, however many answers came in: a follower that was away for a while answers hundreds at once."""
        answered, self._answered, self._may_send_on = self._answered, {}, False
        for peer, heartbeat in answered.items():
            progress = self._progress.get(peer)
            if progress is not None and self._state.connected(peer):
                self._send_to(peer, progress, heartbeat)

    def probe_again(self, peer: int) -> None:
        """Find out anew where this peer's log meets ours."""
        progress = self._progress[peer]
        progress.restart()
        if self._state.connected(peer):
            self._send_to(peer, progress, heartbeat=True)

    def _send_to(self, peer: int, progress: Progress, heartbeat: bool) -> None:
        state, lanes = self._state, self._lanes
        if self._snapshots.is_due(peer):
            if heartbeat:  # nothing of the log: what everybody has is before its first entry
                self._sender.send(peer, self._append_after(0))
            return
        if progress.next_index <= state.log.base.index:
            progress.restart(state.log.base.index + 1)
        if progress.take_restarted():
            lanes.drop_waiting(peer)
        while progress.next_index <= state.log.last_index and progress.has_room and not lanes.is_full(peer):
            try:
                catches_up = self._catches_up(peer, progress)
                if not progress.may_send(catches_up=catches_up):
                    break
                append = self._append_from(progress.next_index, CATCH_UP_BYTES if catches_up else APPEND_BYTES)
            except DiskFull as error:  # an old segment cannot be opened now; the next heartbeat tries again
                self._note_unread(error)
                break
            self._is_unread = False
            progress.announced_commit = state.commit_index
            self._sender.send(peer, append)
            entries = append.entries
            size_bytes = sum(len(entry.payload) for entry in entries)
            progress.sent(entries[-1].index, size_bytes, catches_up=catches_up)
        if heartbeat:
            self._send_heartbeat(peer, progress)

    def _note_unread(self, error: DiskFull) -> None:
        if not self._is_unread:
            log.warning("entries cannot be read for the others, and are sent later: %s", error)
        self._is_unread = True

    def _catches_up(self, peer: int, progress: Progress) -> bool:
        """Return whether the follower is far behind, and others are to be spared while it comes back: they commit
        without it, and it does come back. Raises DiskFull if an old segment cannot be opened.
        """
        log, index = self._state.log, progress.next_index
        if index >= log.last_index:
            return False
        position = log.position_of(index)
        if log.end_position - position <= BEHIND_BYTES:
            progress.is_near()
            return False
        return progress.gains(position, log.end_position) and self._others_commit_without(peer)

    def _others_commit_without(self, peer: int) -> bool:
        """Return whether a majority without that peer holds all that the log held an election timeout ago. One whose
        loop answers while its disk stands holds nothing more, and the commit index stands with it.
        """
        state = self._state
        held = {
            other: progress.counted
            for other, progress in self._progress.items()
            if other != peer and state.connected(other)
        }
        held[state.node_id] = state.log.synced_index
        return state.configuration.held_by_majority(held) >= max(state.commit_index, self._rounds[1][1])

    def _append_from(self, index: int, max_bytes: int) -> Append:
        """Return an append with entries from `index` on; the same object when another peer was sent the same last."""
        state = self._state
        of = index, state.log.last_index, state.term, state.commit_index, max_bytes
        if self._prepared[0] == of:
            return self._prepared[1]
        append = self._append_after(index - 1, state.log.entries(index, max_bytes))
        if len(append.entries[0].payload) <= APPEND_BYTES:  # a larger one is not kept in memory for this
            self._prepared = of, append
        return append

    def _send_heartbeat(self, peer: int, progress: Progress) -> None:
        """Send a heartbeat. It overtakes entries that are on their way, so it says nothing of them: it names the last
        entry that is known to be there.

        Another one follows behind the entries, when nothing else will: should they be lost, it is refused.
        """
        if not progress.is_in_flight:
            known = progress.next_index - 1
        else:
            known = progress.acked if progress.acked >= self._state.log.base.index else 0
            if not self._lanes.data_waits(peer):
                self._lanes.send_behind(peer, self._append_after(progress.next_index - 1))
        progress.announced_commit = max(progress.announced_commit, min(self._state.commit_index, known))
        self._sender.send(peer, self._append_after(known))

    def _append_after(self, prev_index: int, entries: Sequence[Entry] = ()) -> Append:
        state = self._state
        prev_term = state.log.term_at(prev_index) if prev_index else 0
        append = make_append(state.term, prev_index, prev_term, state.commit_index, entries, state.commit_term)
        if prev_index or entries:
            chain_append(state.log, append)
        return append

    # --- counting --------------------------------------------------------------------------------------------------

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        """Take a follower's answer. Raises ProtocolError when it speaks of entries that were never sent."""
        state, snapshots = self._state, self._snapshots
        if state.role != LEADER or reply.term != state.term:
            return  # row 4: an answer to an earlier leadership
        if max(reply.match_index, reply.rejected_prev, reply.hint) > state.log.last_index + 1 - reply.success:
            raise ProtocolError(f"node {peer} answers about entries that were never sent")
        self._library.heard_from(peer)
        progress = self._progress.get(peer)
        if progress is None:
            return  # it was removed
        progress.votes = reply.votes
        if snapshots.is_due(peer):
            return  # a heartbeat's, or late
        if not reply.success:
            if progress.on_reject(reply.rejected_prev, reply.hint):
                if progress.next_index <= state.log.base.index == reply.rejected_prev:
                    snapshots.want(peer)
                self._answered[peer] = self._may_send_on = True
            return
        progress.on_ack(reply.match_index, counts=reply.counts, heartbeat=reply.heartbeat)
        if progress.counted >= self.leads_from:
            state.knowledge.acknowledged(peer, state.term, progress.counted)
        snapshots.on_acked(peer, progress.acked)
        if self._limit is not None and progress.counted > self._limit:  # less changes no majority
            self._limit = None
        if progress.next_index <= state.log.last_index:
            self._answered.setdefault(peer, False)
            self._may_send_on = True

    def on_synced(self) -> None:
        """Count this node's own copy as far as it is durable now."""
        self._limit = None

    def count_all(self) -> None:
        """Tell the library up to where each peer's copy counts, before its own commit rule looks."""
        for peer in self._progress:
            self._count(peer)

    def _count(self, peer: int) -> None:
        self._library.set_match(peer, self.counted(peer))

    def _commit(self) -> None:
        """Commit every entry that this node and a majority hold durably. The first one is the own no-op, and with it
        every entry before it (row 17).
        """
        committable = self._committable
        if self._state.commit_index < committable:
            self._library.commit_index = committable

    @property
    def _committable(self) -> int:
        """Leader: index up to which this node and a majority hold the log durably; 0 before the own no-op. An entry of
        an earlier term is never committed without it, however far this node has synced.
        """
        durable = min(self.commit_limit, self._state.log.synced_index)
        return durable if durable >= self.leads_from else 0
