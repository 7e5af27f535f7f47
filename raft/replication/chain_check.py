"""Checks the chain of records (store/log/record_chain.py) at both ends of an append."""

from crc32c import crc32c
from msgspec import structs

from raft.errors import SafetyViolation
from raft.messages import Append
from store.log.commit_log import CommitLog
from store.log.record_chain import Link, chained


def chain_append(log: CommitLog, append: Append) -> None:
    """Add the leader's chain link to the append. Raises SafetyViolation when the entries differ from the records that
    the log wrote: the memory of this node has changed them, and they must not be sent to other nodes.
    """
    message, entries = append.message, append.entries
    if message.prev_index < log.base.index:
        return
    before = log.chain.at(message.prev_index)
    after = log.chain.at(message.prev_index + len(entries)) if entries else before
    structs.force_setattr(message, "chain", after)
    if before is None or after is None or before[:2] != after[:2]:
        return
    value = before.value
    for entry, header in zip(entries, message.headers, strict=True):
        value = crc32c(
            chained(header.kind, header.length, header.crc, header.index, header.term, entry.position), value
        )
    if value != after.value:
        raise SafetyViolation(
            f"the entries {entries[0].index} to {entries[-1].index} are not what this node has written: its memory "
            "has changed them. Look for errors of the memory in the system's log, and test it before going on"
        )


def take_over(log: CommitLog, append: Append, match: int) -> None:
    """Continue the follower's chain with the leader's link if the follower's log ends where the append ends and its own
    chain has another origin or is unknown.
    """
    theirs = append.message.chain
    if theirs is None or match != log.last_index or match != append.message.prev_index + len(append.entries):
        return
    own = log.chain.last
    if own is None or own[:2] != theirs[:2]:
        log.chain.begin(Link(*theirs))


def differs(log: CommitLog, append: Append, match: int) -> bool:
    """Return whether the logs of follower and leader are known to differ up to the last entry of the append. False is
    also returned when the follower does not hold all entries of the append.
    """
    theirs = append.message.chain
    if theirs is None or match != append.message.prev_index + len(append.entries) or match < log.base.index:
        return False
    own = log.chain.at(match)
    return own is not None and own.differs(Link(*theirs))


def first_changed(log: CommitLog, append: Append) -> int | None:
    """Return the index of the first entry whose CRC in this log differs from the one that was sent; None if all are
    equal.
    """
    for header in append.message.headers:
        if header.index > log.base.index and log.chain.crc_of(header.index) != header.crc:
            return header.index
    return None
