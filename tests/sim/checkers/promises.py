"""Nothing unfsynced is promised: every message that leaves a node is compared with the data its disk has synced."""

from typing import Any

from raft.messages import Append, AppendReply, Comparison, RequestVote, Vitals, VoteReply

from .durable_log import DurableLog
from .violation import Violation


def check_promise(node_id: int, peer: int, message: Any, durable: DurableLog) -> None:
    """Check invariant 2 for votes, vote requests and append acknowledgements, and the term of every message."""
    if isinstance(message, Vitals | Comparison):
        return  # they have no term
    term = message.message.term if isinstance(message, Append) else message.term
    durable_term, vote = durable.hard_state
    if term > durable_term:
        _fail(node_id, message, f"its disk knows term {durable_term} only")
    match message:
        case VoteReply(granted=True) if term == durable_term and vote != peer:
            _fail(node_id, message, f"the vote on its disk is {vote}")
        case RequestVote():
            if term == durable_term and vote != node_id:
                _fail(node_id, message, f"the vote on its disk is {vote}")
            if durable.term_at(message.last_index) != message.last_term:
                _fail(node_id, message, f"its synced log ends at {durable.last_index}")
        case AppendReply(success=True) if message.match_index > durable.last_index:
            _fail(node_id, message, f"its synced log ends at {durable.last_index}")
        case AppendReply(success=True) if term < durable_term and vote != node_id:
            _fail(node_id, message, f"others have led it on to term {durable_term}, where its log may be cut")
        case _:
            pass


def _fail(node_id: int, message: Any, found: str) -> None:
    raise Violation("nothing_unsynced_promised", f"node {node_id} says {message}, but {found}")
