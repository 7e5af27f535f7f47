"""Open messages of the state. Several may have one id, and thus one node, because half messages do not reserve theirs.

The key is the node id for the one that was there first, or that was scheduled, and has the transaction besides for the
other half messages.
"""

from typing import Final

from keelmq_spark.folding.fold_state import NodeRow, key_of
from keelmq_spark.tables.schema import COMMITTED, DISCARDED, HALF, SCHEDULED

Messages = dict[str, NodeRow]

_HALVES: Final = (HALF, DISCARDED, COMMITTED)
"""States of a half message; it is committed until the events of its commit have been folded."""


def free_key(messages: Messages, node_id: str, transaction_id: str) -> str:
    """Return the key of a half message that is not there yet."""
    return key_of(node_id, transaction_id) if node_id in messages else node_id


def half_key(messages: Messages, node_id: str, transaction_id: str) -> str | None:
    """Return the key of the half message of the transaction; None when there is none."""
    known = messages.get(node_id)
    if known is None or known.transaction_id != transaction_id or known.state not in _HALVES:
        key = key_of(node_id, transaction_id)
        known = messages.get(key)
        return key if known is not None and known.state in _HALVES else None
    return node_id


def comes_from(messages: Messages, node_id: str, transaction_id: str | None) -> str | None:
    """Return the key of the open message that is published or scheduled now; None for one without earlier events."""
    key = half_key(messages, node_id, transaction_id) if transaction_id else None
    if key is None and node_id in messages and messages[node_id].state == SCHEDULED:
        key = node_id
    return key


def make_way(messages: Messages, node_id: str) -> None:
    """Have the node id free as a key, for a message that is scheduled."""
    known = messages.pop(node_id, None)
    if known is not None:
        messages[key_of(node_id, known.transaction_id)] = known
