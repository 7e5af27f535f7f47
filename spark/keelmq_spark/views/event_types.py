"""The types of events, for those who need no schema of Spark."""

from typing import Final

HALF: Final = "HALF"
"""A half message was stored; it is invisible until its transaction is committed."""
COMMIT: Final = "COMMIT"
"""A transaction was committed. Its messages are PUBLISH or SCHEDULE rows of the same entry."""
ROLLBACK: Final = "ROLLBACK"
CHECK: Final = "CHECK"
"""The broker asked a producer for the outcome of a transaction."""
DISCARD: Final = "DISCARD"
"""The broker discarded a transaction, because no producer answered its checks."""
RESUME: Final = "RESUME"
"""An operator turned a discarded transaction back into a prepared one."""
PUBLISH: Final = "PUBLISH"
"""A message received its offset."""
SCHEDULE: Final = "SCHEDULE"
"""A message was accepted and waits for its delivery time; PUBLISH follows."""
CANCEL: Final = "CANCEL"
"""A scheduled message was cancelled."""
ACK: Final = "ACK"
"""A group's committed offset moved over [offset, offset_end)."""
RETRY: Final = "RETRY"
"""A group gave a message back for redelivery."""
DLQ: Final = "DLQ"
"""A group gave a message back for the last time: it became a dead letter."""
EXPIRE: Final = "EXPIRE"
"""A scheduled message was dropped because its topic no longer exists."""
RESET: Final = "RESET"
"""A group's committed offset was set from `offset` to `offset_end`; without `offset` the group begins there."""
PURGE: Final = "PURGE"
"""The messages [offset, offset_end) of a queue were removed by a purge."""
TOPIC_DELETE: Final = "TOPIC_DELETE"
"""A topic was deleted, with the offsets of groups in it. One of its name that is made later begins anew."""
GROUP_PAUSE: Final = "GROUP_PAUSE"
"""An operator paused a group: it was handed out nothing until GROUP_RESUME."""
GROUP_RESUME: Final = "GROUP_RESUME"

TYPES: Final = frozenset(
    {
        *(HALF, COMMIT, ROLLBACK, CHECK, DISCARD, RESUME),
        *(PUBLISH, SCHEDULE, CANCEL, ACK, RETRY, DLQ, EXPIRE, RESET, PURGE),
        *(TOPIC_DELETE, GROUP_PAUSE, GROUP_RESUME),
    }
)

OF_CONSUMERS: Final = (ACK, RETRY, DLQ, RESET, GROUP_PAUSE, GROUP_RESUME)
"""Types whose group is a consumer group."""
