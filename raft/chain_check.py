"""The chain of records (store/log/record_chain.py) on both ends of an append."""

from crc32c import crc32c
from msgspec import structs

from raft.errors import SafetyViolation
from raft.messages import Append
from store.log.commit_log import CommitLog
from store.log.record_chain import Link, chained


def chain_append(log: CommitLog, append: Append) -> None:
    """Adds the leader's chain behind the entries. SafetyViolation when they are not what the log was given: the memory
    of this node has changed them, and they must not be passed on.
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
    """Where the log of a follower ends where the append does, and its chain is of another origin or not known, it goes
    on with the leader's.
    """
    theirs = append.message.chain
    if theirs is None or match != log.last_index or match != append.message.prev_index + len(append.entries):
        return
    own = log.chain.last
    if own is None or own[:2] != theirs[:2]:
        log.chain.begin(Link(*theirs))


def differs(log: CommitLog, append: Append, match: int) -> bool:
    """Whether the logs of follower and leader are known to differ behind the last entry of the append, all of which are
    here.
    """
    theirs = append.message.chain
    if theirs is None or match != append.message.prev_index + len(append.entries) or match < log.base.index:
        return False
    own = log.chain.at(match)
    return own is not None and own.differs(Link(*theirs))


def first_changed(log: CommitLog, append: Append) -> int | None:
    """The first of the entries that is not here as it was sent, by its CRC; None if they all are."""
    for header in append.message.headers:
        if header.index > log.base.index and log.chain.crc_of(header.index) != header.crc:
            return header.index
    return None
