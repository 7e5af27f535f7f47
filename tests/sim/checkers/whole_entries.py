"""A checker of what is said and shown of the state, and cut of the log, while an entry is applied in part. The applied
index, the hash and the log go by the last whole entry, which is the one that the index has; and a decision about a
transaction is shown as a whole.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from store.index import keys
from store.index.index import Index
from store.log.base import LogBase
from store.messages.queues import _decode, _row
from store.messages.topics import SYSTEM_TOPICS
from store.state.machine import StateMachine
from tests.unit.store.references import pointers

from .violation import Violation

if TYPE_CHECKING:
    from tests.sim.replica import Replica

_END = b"\xff"


def check_said(replica: "Replica") -> None:
    """Check that the applied index and the state hash of the node, which has paused, are of one whole entry, and that
    it shows messages only of transactions that are committed.
    """
    machine, observer = replica.machine, replica.observer
    with observer.finding():
        observer.state_hash.on_applied(replica.node_id, machine.applied_index, machine.state_hash)
        _check_decided(replica.node_id, machine, observer.history.transactions.reborn)


def check_snapshot(replica: "Replica") -> None:
    """Check that a snapshot which began now, while the node has paused, would hold what the index was written with."""
    written = dict(_written(replica).scan(b"", _END))
    with replica.observer.finding():
        if {key: value for key, value in replica.index.pairs() if key < _END} != written:
            raise Violation("snapshot", f"node {replica.node_id} would send a part of an entry")


def _check_decided(node_id: int, machine: StateMachine, reborn: Collection[str]) -> None:
    """The ids `reborn` are of two transactions each: a message of the first one may be given back during the second."""
    for write in machine._index.touched:
        key, value = write[0], write[1] if len(write) == 2 else b""  # or it deletes
        is_row = key.startswith(keys.ROW) and value and not value.startswith(keys.ROW)
        if not is_row or keys.read_u32(key[1:5]) <= len(SYSTEM_TOPICS) or not _is_shown(machine, key):
            continue
        transaction_id = _row(key, _decode(value)).transaction_id
        if transaction_id is None or transaction_id in reborn:
            continue
        transaction = machine.transaction(transaction_id)
        if transaction is not None and transaction.state != "committed":
            raise Violation(
                "transaction_visibility", f"node {node_id} shows messages of {transaction_id}: {transaction.state}"
            )


def _is_shown(machine: StateMachine, key: bytes) -> bool:
    """Return whether queries see the row: its queue ends behind it."""
    topic = machine._topics.by_id(keys.read_u32(key[1:5]))
    return topic is not None and keys.row_base_offset(key) < topic.ends[int.from_bytes(key[5:7])]


def watch_cuts(replica: "Replica") -> None:
    """Check that no cut of the log removes what the index points at, were the process to end now."""
    log, drop_before = replica.log, replica.log.drop_before

    def watched(index: int) -> LogBase:
        before, base = log.base, drop_before(index)
        if base != before:
            with replica.observer.finding():
                _check_needed(replica, base)
        return base

    log.drop_before = watched  # type: ignore[method-assign]


def _check_needed(replica: "Replica", base: LogBase) -> None:
    first = min((each.position for each in pointers(_written(replica))), default=base.position)
    if first < base.position:
        raise Violation(
            "log_floor", f"node {replica.node_id} cuts its log up to {base.position}, its index points at {first}"
        )


def _written(replica: "Replica") -> Index:
    """Return the node's index without what is staged."""
    return Index(replica.index._database)
