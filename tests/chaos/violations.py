"""The broken promises. One list for the whole run; its length decides the exit code."""

import enum
from collections import Counter
from typing import Final, NamedTuple

DETAILS_PER_KIND_MAX: Final = 20


class Kind(enum.StrEnum):
    """The promise that was broken."""

    LOST = "lost"
    """The message was acknowledged or committed, and is missing."""
    PHANTOM = "phantom"
    """The message is there, although no worker sent it."""
    DAMAGED = "damaged"
    """The message has another body than the one that was sent."""
    DUPLICATED = "duplicated"
    """The message is there twice with the same id."""
    FAILED_BUT_STORED = "failed_but_stored"
    """The message is there, although the caller was told that certainly nothing was stored."""
    EARLY = "early"
    """The message was delivered before the time that its acknowledgement named."""
    TAKEN_BACK = "taken_back"
    """The message was delivered, although it was acknowledged that it never will be."""
    RETURNED = "returned"
    """The message was given back by its group, and neither processed later nor a dead letter; or it is a dead letter
    wrongly.
    """
    MOVED = "moved"
    """The message is at another place than its acknowledgement said."""
    CONFLICTING_READ = "conflicting_read"
    """Two reads of one offset saw different messages."""
    EXPIRED = "expired"
    """The message was removed before its time was over, or came back, or is not on every node."""
    GAP = "gap"
    """Offsets of a queue are not dense."""
    REORDERED = "reordered"
    """Acknowledged messages of one sharding key are in another order than they were sent."""
    TRANSACTION = "transaction"
    """A transaction was delivered without a commit or in part, or decided against the recorded decision."""
    UNRESOLVED = "unresolved"
    """A decided transaction was not finished by the checks."""
    GROUP_SKIP = "group_skip"
    """A group's committed offset passed a message that nobody processed."""
    OFFSET_WENT_BACK = "offset_went_back"
    """A group's committed offset is lower than one that was acknowledged before."""
    HANDLED_AGAIN = "handled_again"
    """A message was committed before a member was assigned the queue, and handled by that member."""
    NOT_OWNER = "not_owner"
    """A queue had two owners, or a member handled or committed a queue that it did not own."""
    POPPED_TWICE = "popped_twice"
    """A message was handed out while another pop consumer held it."""
    INBOX = "inbox"
    """The effect of a message is missing from the database, or there twice."""
    NOT_DRAINED = "not_drained"
    """Consumers did not reach the end of a queue."""
    TWO_LEADERS = "two_leaders"
    TERM_WENT_BACK = "term_went_back"
    STATE_DIFFERS = "state_differs"
    LOG_DIFFERS = "log_differs"
    LOG_DAMAGED = "log_damaged"
    UNEXPECTED_EXIT = "unexpected_exit"
    SYNC_ERROR_IGNORED = "sync_error_ignored"
    NODE_ERROR = "node_error"
    """A node logged a trace that no injected fault explains."""
    NO_PROGRESS = "no_progress"
    """No write succeeded in time although every fault was healed."""
    CONTRACT = "contract"
    """An answer was given that the HTTP API or the SDK does not allow."""


class Violation(NamedTuple):
    kind: Kind
    detail: str


class Violations:
    """Counts all violations, keeps the first details of each kind: a broken broker breaks a promise a million times."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.kept: list[Violation] = []

    def add(self, kind: Kind, detail: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= DETAILS_PER_KIND_MAX:
            self.kept.append(Violation(kind, detail))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __bool__(self) -> bool:
        return self.total > 0
