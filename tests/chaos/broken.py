"""Deliberately broken brokers and clients: a chaos run that finds no fault in them would also miss the same mistake
made by accident.

Process, network, clock or disk faults bring each of these defects to light within minutes. Acknowledging before the
sync is not among them, since a killed process leaves its page cache behind: `make powerloss` and the simulation find
that defect. Defects that need an unlikely order of messages are found by the simulation.
"""

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

BROKEN_VARIABLE = "CHAOS_BROKEN"
"""Environment variable that names the defect of a node (tests/chaos/broken_node.py) or of a member
(tests/chaos/group_member.py).
"""
FORGOTTEN_EVERY: Final = 3
"""Every entry whose index is a multiple of this number loses its commits."""


class Defect(NamedTuple):
    """A defect with its description. `install` patches the process it is called in: a node, or the clients'."""

    what: str
    install: Callable[[], None]
    in_client: bool = False


def acks_alone() -> None:
    from raft.handlers import SafeRaft
    from raft.replication.replication import Replication

    tick = SafeRaft.on_tick

    def count(self: Any, peer: int) -> None:
        self._library.set_match(peer, self._state.log.synced_index)
        # Else it steps down once it is cut off, which on a busy machine is before it has answered anybody.
        self._library.heard_from(peer)

    def durable_on(self: Any, index: int) -> tuple[int, ...]:
        return tuple(sorted([*self._state.peer_ids, self._state.node_id]))

    def commit_limit(self: Any) -> int:
        return int(self.state.log.synced_index)

    def on_tick(self: Any) -> None:
        self.replication.count_all()  # not only when another node answers, which a node that is cut off hears no more
        tick(self)

    _replace(Replication, "_count", count)
    _replace(Replication, "durable_on", durable_on)
    _replace(SafeRaft, "commit_limit", property(commit_limit))
    _replace(SafeRaft, "on_tick", on_tick)


def forgets_term() -> None:
    from raft.library import PinnedSyncObj
    from store.log.hard_state import HardState

    initialise, load = PinnedSyncObj.__init__, HardState._load

    def load_without_term(self: Any) -> tuple[int, int | None, bool]:
        return 0, None, load(self)[2]

    def begin_in_term_0(self: Any, *arguments: Any) -> None:
        initialise(self, *arguments)
        self._SyncObj__raftCurrentTerm = 0  # the library takes at least the term of the last entry

    _replace(HardState, "_load", load_without_term)
    _replace(PinnedSyncObj, "__init__", begin_in_term_0)


def votes_for_any_log() -> None:
    from raft.election.election import Election

    def at_least_as_complete(self: Any, last_index: int, last_term: int) -> bool:
        return True

    _replace(Election, "_at_least_as_complete", at_least_as_complete)


def forgets_ids() -> None:
    from store.index import keys
    from store.messages.dedupe import DedupeWindow

    mine: set[bytes] = set()  # ids of this process; those of an earlier one are forgotten
    remember, look_up_batch = DedupeWindow._remember, DedupeWindow.batch
    remember_messages, look_up_messages = DedupeWindow.remember_messages, DedupeWindow.messages

    def remember_in_memory(self: Any, key: bytes, value: bytes) -> None:
        mine.add(key)
        remember(self, key, value)

    def batch(self: Any, topic_id: int, batch_id: str) -> Any:
        return look_up_batch(self, topic_id, batch_id) if keys.batch_id(topic_id, batch_id) in mine else None

    def remember_messages_in_memory(self: Any, topic_id: int, seen: Any) -> None:
        seen = list(seen)
        mine.update(keys.message_id(topic_id, message_id) for message_id, _ in seen)
        remember_messages(self, topic_id, seen)

    def messages(self: Any, topic_id: int, message_ids: Any) -> Any:
        found = look_up_messages(self, topic_id, message_ids)
        return {each: place for each, place in found.items() if keys.message_id(topic_id, each) in mine}

    _replace(DedupeWindow, "_remember", remember_in_memory)
    _replace(DedupeWindow, "remember_messages", remember_messages_in_memory)
    _replace(DedupeWindow, "batch", batch)
    _replace(DedupeWindow, "messages", messages)


def delivers_rolled_back() -> None:
    from store.messages.queues import Unshown
    from store.steps import finish
    from store.transactions.table import PREPARED
    from store.transactions.transactions import Transactions

    decide = Transactions.decide

    def make_visible_and_decide(self: Any, command: Any, at: Any) -> Any:
        record = self.table.get(command.transaction_id)
        if command.decision == "rollback" and record is not None and record.state == PREPARED:
            unshown = Unshown()
            finish(self._place(command.transaction_id, record, at, unshown))
            self._queues.show(unshown)
        return decide(self, command, at)

    _replace(Transactions, "decide", make_visible_and_decide)


def forgets_checks() -> None:
    from cluster.transactions.check_service import CheckService

    scan = CheckService._scan

    def scan_in_first_term(self: Any) -> None:
        if self._core.raft.term == 1:
            scan(self)

    _replace(CheckService, "_scan", scan_in_first_term)


def survives_failed_sync() -> None:
    from raft.syncing.kernel_sync import KernelSync
    from store.log.disk import PosixDisk, PosixFile
    from store.log.errors import DiskError

    def not_here(*_arguments: Any) -> None:
        raise OSError("every sync goes the way that is broken")

    def sync_or_not(sync: Callable[..., None]) -> Callable[..., None]:
        def sync_and_forget(*arguments: Any) -> None:
            with contextlib.suppress(DiskError):
                sync(*arguments)

        return sync_and_forget

    _replace(PosixFile, "fdatasync", sync_or_not(PosixFile.fdatasync))
    _replace(KernelSync, "__init__", not_here)
    _replace(PosixDisk, "sync_directory", sync_or_not(PosixDisk.sync_directory))


def commits_unprocessed() -> None:
    from keelmq.consuming.queue_reader import QueueReader

    _replace(QueueReader, "position", property(lambda self: self._fetch_offset))


def expires_early() -> None:
    from store.messages.topics import Topic

    until_ms = Topic.expires_until_ms

    def a_minute_early(self: Any, clock_ms: int) -> int | None:
        return until_ms(self, clock_ms + 60_000)

    _replace(Topic, "expires_until_ms", a_minute_early)


def forgets_commits() -> None:
    from store.commands.groups import OffsetsCommitted
    from store.groups.groups import Groups

    commit = Groups.commit

    def commit_or_not(self: Any, command: Any, at: Any) -> OffsetsCommitted:
        if at.raft_index % FORGOTTEN_EVERY == 0 and command.member_id is not None and not command.begins:
            self._fence(command)
            return OffsetsCommitted(command.group, command.offsets)
        return commit(self, command, at)

    _replace(Groups, "commit", commit_or_not)


def takes_any_generation() -> None:
    from store.groups.groups import Groups
    from store.groups.record import require_member

    fence = Groups._fence

    def fence_strangers_only(self: Any, command: Any) -> Any:
        if command.member_id is None:
            return fence(self, command)
        group = self._require(command.group)
        require_member(group, command.member_id)
        return group, None

    _replace(Groups, "_fence", fence_strangers_only)


def miscounts_attempts() -> None:
    import store.groups.redelivery as redelivery

    make = redelivery._redelivery

    def make_and_forget(row: Any, item: Any, attempt: int, *more: Any, **options: Any) -> Any:
        forgotten = attempt > 1 and item.offset % 4 == 0 and item.topic.endswith("-recorded")
        return make(row, item, attempt - forgotten, *more, **options)

    _replace(redelivery, "_redelivery", make_and_forget)


def ends_leases_early() -> None:
    from store.groups.leases import Leases

    due = Leases.due

    def due_early(self: Any, until_ms: int) -> Any:
        return due(self, until_ms + 1_500)

    _replace(Leases, "due", due_early)


def goes_on_without_a_session() -> None:
    from keelmq.consuming.session_watch import SessionWatch

    _replace(SessionWatch, "over", property(lambda self: False))


def keeps_lost_queues() -> None:
    from keelmq.consuming.assigned_queues import AssignedQueues

    release = AssignedQueues.release

    def release_what_was_moved(self: Any, place: Any, why: str, *more: Any) -> None:
        if "another member" not in why:
            release(self, place, why, *more)

    _replace(AssignedQueues, "release", release_what_was_moved)


def applies_again() -> None:
    from keelmq import inbox

    first_time = inbox.first_time

    def always(*arguments: Any) -> bool:
        first_time(*arguments)
        return True

    _replace(inbox, "first_time", always)


DEFECTS = {
    "acks-alone": Defect("the leader answers when only its own disk has the entry", acks_alone),
    "forgets-term": Defect("term and vote do not survive a restart", forgets_term),
    "votes-for-any-log": Defect("a candidate may lack what the voter has", votes_for_any_log),
    "forgets-ids": Defect("message and batch ids do not survive a restart", forgets_ids),
    "delivers-rolled-back": Defect("a rolled-back transaction is delivered", delivers_rolled_back),
    "forgets-checks": Defect("only the first leader of a cluster asks for open transactions", forgets_checks),
    "survives-failed-sync": Defect("a failed fdatasync is taken for a good one", survives_failed_sync),
    "expires-early": Defect("messages go a minute before their retention is over", expires_early),
    "forgets-commits": Defect("now and then an acknowledged commit of offsets is not carried out", forgets_commits),
    "takes-any-generation": Defect("members commit what was theirs before a rebalance", takes_any_generation),
    "miscounts-attempts": Defect("now and then an attempt of a group's members does not count", miscounts_attempts),
    "ends-leases-early": Defect("a popped message is others' up to 1.5 s before its time", ends_leases_early),
    "commits-unprocessed": Defect("a consumer commits what it fetched", commits_unprocessed, in_client=True),
    "goes-on-without-a-session": Defect(
        "a consumer never takes its session for over by its own clock", goes_on_without_a_session, in_client=True
    ),
    "keeps-lost-queues": Defect("a consumer reads on what is another member's", keeps_lost_queues, in_client=True),
    "applies-again": Defect("the inbox lets an effect be applied again", applies_again, in_client=True),
}


def _replace(owner: type | ModuleType, name: str, value: object) -> None:
    """Replace an attribute. Raises AttributeError if it does not exist: the defect would be found innocent for the
    wrong reason.
    """
    if name not in vars(owner) and not hasattr(owner, name):
        raise AttributeError(f"{owner.__name__} has no {name} to break")
    setattr(owner, name, value)
