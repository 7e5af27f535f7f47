"""Deliberately broken brokers and clients: chaos that finds them innocent would miss the same mistake made by accident.

Each defect is one that process, network, clock or disk faults bring to light within minutes. Acknowledging before the
sync is not among them: a killed process leaves its page cache behind. `make powerloss` and the simulation find that
one, and the simulation those that need an unlikely order of messages.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

BROKEN_VARIABLE = "CHAOS_BROKEN"
"""Names the defect of a node that tests/chaos/broken_node.py starts."""


class Defect(NamedTuple):
    """`install` patches the process it is called in: a node, or the clients'."""

    what: str
    install: Callable[[], None]
    in_client: bool = False


def acks_alone() -> None:
    from raft.handlers import SafeSyncObj

    def count_acknowledged(self: Any, peer: int) -> None:
        self.set_match(peer, self.log.synced_index)

    def durable_on(self: Any, index: int) -> tuple[int, ...]:
        return tuple(sorted([*self.peer_ids, self.config.node_id]))

    def commit_limit(self: Any) -> int:
        return int(self.log.synced_index)

    _replace(SafeSyncObj, "_count_acknowledged", count_acknowledged)
    _replace(SafeSyncObj, "commit_limit", property(commit_limit))
    _replace(SafeSyncObj, "durable_on", durable_on)


def forgets_term() -> None:
    from raft.handlers import SafeSyncObj
    from store.hard_state import HardState

    initialise, load = SafeSyncObj.__init__, HardState._load

    def load_without_term(self: Any) -> tuple[int, int | None, bool]:
        return 0, None, load(self)[2]

    def begin_in_term_0(self: Any, *arguments: Any) -> None:
        initialise(self, *arguments)
        self._SyncObj__raftCurrentTerm = 0  # the library takes at least the term of the last entry

    _replace(HardState, "_load", load_without_term)
    _replace(SafeSyncObj, "__init__", begin_in_term_0)


def votes_for_any_log() -> None:
    from raft.handlers import SafeSyncObj

    def at_least_as_complete(self: Any, last_index: int, last_term: int) -> bool:
        return True

    _replace(SafeSyncObj, "_at_least_as_complete", at_least_as_complete)


def forgets_ids() -> None:
    from store import keys
    from store.dedupe import DedupeWindow

    mine: set[bytes] = set()  # of this process: an earlier one's are forgotten
    remember, look_up_batch, look_up_message = DedupeWindow._remember, DedupeWindow.batch, DedupeWindow.message

    def remember_in_memory(self: Any, key: bytes, value: bytes) -> None:
        mine.add(key)
        remember(self, key, value)

    def batch(self: Any, topic_id: int, batch_id: str) -> Any:
        return look_up_batch(self, topic_id, batch_id) if keys.batch_id(topic_id, batch_id) in mine else None

    def message(self: Any, topic_id: int, message_id: str) -> Any:
        return look_up_message(self, topic_id, message_id) if keys.message_id(topic_id, message_id) in mine else None

    _replace(DedupeWindow, "_remember", remember_in_memory)
    _replace(DedupeWindow, "batch", batch)
    _replace(DedupeWindow, "message", message)


def delivers_rolled_back() -> None:
    from store.transaction_table import PREPARED
    from store.transactions import Transactions

    decide = Transactions.decide

    def make_visible_and_decide(self: Any, command: Any, at: Any) -> Any:
        record = self.table.get(command.transaction_id)
        if command.decision == "rollback" and record is not None and record.state == PREPARED:
            self._make_visible(command.transaction_id, record, at)
        return decide(self, command, at)

    _replace(Transactions, "decide", make_visible_and_decide)


def forgets_checks() -> None:
    from cluster.check_service import CheckService

    scan = CheckService._scan

    def scan_in_first_term(self: Any) -> None:
        if self._core.raft.term == 1:
            scan(self)

    _replace(CheckService, "_scan", scan_in_first_term)


def survives_failed_sync() -> None:
    from store.disk import PosixDisk, PosixFile
    from store.log_errors import DiskError

    def sync_or_not(sync: Callable[..., None]) -> Callable[..., None]:
        def sync_and_forget(*arguments: Any) -> None:
            with contextlib.suppress(DiskError):
                sync(*arguments)

        return sync_and_forget

    _replace(PosixFile, "fdatasync", sync_or_not(PosixFile.fdatasync))
    _replace(PosixDisk, "sync_directory", sync_or_not(PosixDisk.sync_directory))


def commits_unprocessed() -> None:
    from keelmq.queue_reader import QueueReader

    _replace(QueueReader, "position", property(lambda self: self._fetch_offset))


def expires_early() -> None:
    from store.topics import Topic

    until_ms = Topic.expires_until_ms

    def a_minute_early(self: Any, clock_ms: int) -> int | None:
        return until_ms(self, clock_ms + 60_000)

    _replace(Topic, "expires_until_ms", a_minute_early)


DEFECTS = {
    "acks-alone": Defect("the leader answers when only its own disk has the entry", acks_alone),
    "forgets-term": Defect("term and vote do not survive a restart", forgets_term),
    "votes-for-any-log": Defect("a candidate may lack what the voter has", votes_for_any_log),
    "forgets-ids": Defect("message and batch ids do not survive a restart", forgets_ids),
    "delivers-rolled-back": Defect("a rolled-back transaction is delivered", delivers_rolled_back),
    "forgets-checks": Defect("only the first leader of a cluster asks for open transactions", forgets_checks),
    "survives-failed-sync": Defect("a failed fdatasync is taken for a good one", survives_failed_sync),
    "expires-early": Defect("messages go a minute before their retention is over", expires_early),
    "commits-unprocessed": Defect("a consumer commits what it fetched", commits_unprocessed, in_client=True),
}


def _replace(owner: type, name: str, value: object) -> None:
    """A defect that patches what is not there would be found innocent for the wrong reason."""
    if name not in vars(owner) and not hasattr(owner, name):
        raise AttributeError(f"{owner.__name__} has no {name} to break")
    setattr(owner, name, value)
