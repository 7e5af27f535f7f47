"""Limits and defaults of the replicated state.

The values decide what apply does, so every replica must run with the same ones: they are constants, not configuration.
Changing a value changes the state that an old log replays to.
"""

from typing import Final

DEFAULT_QUEUES: Final = 4
DEFAULT_RETENTION_MS: Final = 259_200_000
RETENTION_FOREVER_MS: Final = -1
"""Retention of a topic that keeps its messages for ever."""

RETENTION_UNLIMITED_BYTES: Final = -1
"""Retention in bytes of a topic, or of the log, that has no such limit."""

TRANSACTION_RETENTION_MS: Final = DEFAULT_RETENTION_MS
"""A transaction's record is kept this long after the transaction was decided or discarded."""

EXPIRED_ROWS_MAX: Final = 1_000
"""Maximum number of rows, and of transactions, that one ExpireMessages removes."""

REPLAYED_KEPT_MS: Final = 15 * 60_000
"""The record of a replayed dead letter is kept this long, so that repeating the replay is answered alike."""

LOG_TIMES_FORGOTTEN_MAX: Final = 256
"""Maximum number of ranges of the log whose times one ExpireMessages forgets."""

EXPIRED_QUEUES_MAX: Final = 1_000
"""Maximum number of queues that one ExpireMessages names."""

SWEPT_KEYS_MAX: Final = 4_000
"""Maximum number of keys that one SweepIndex looks at."""

QUEUES_MAX: Final = 1_024
"""Maximum number of queues of one topic. Queue numbers are 16 bits wide in the index."""

CHECK_IMMUNITY_MS: Final = 6_000
"""A half transaction gets no check-back before this age, unless it names its own `check_after_ms`."""

CHECK_AFTER_MAX_MS: Final = 7 * 24 * 3_600_000
"""Maximum `check_after_ms`, and maximum time to the next check."""

TIMELINE_EVENTS_MAX: Final = 256
"""Maximum number of checks and `unknown` answers kept per transaction; later ones are only counted. Operators' actions
are always kept.
"""

OPERATOR_BYTES_MAX: Final = 255
"""Maximum length, in UTF-8 bytes, of the name of an operator who intervenes by hand."""

REASON_BYTES_MAX: Final = 255
"""Maximum length, in UTF-8 bytes, of the reason an operator gives."""

PRINCIPAL_CHARACTERS_MAX: Final = 255
"""Maximum length of the name of a principal in an entry; names are ASCII. No credential has a longer one."""

DEDUPE_WINDOW_MS: Final = 15 * 60_000
"""Batch and message ids are remembered for this long, by the replicated clock ..."""

DEDUPE_MAX_ENTRIES: Final = 1_000_000
"""... unless there are more ids than this: then the oldest ids are forgotten first."""

DEDUPE_MIN_ENTRIES: Final = 50_000
"""The youngest ids, up to this number, are remembered at any age: a leader whose clock leaps ahead must not make the
cluster forget messages that were sent a moment ago.
"""

DELAY_MAX_MS: Final = 40 * 24 * 3_600_000
"""Maximum time that a message waits before it becomes visible."""

RETRY_DELAYS_MS: Final = tuple(
    1_000 * seconds for seconds in (10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
)
"""Backoff of a message that was given back, by attempt, unless its group has other delays. The values are RocketMQ's.
"""

RETRY_MAX_ATTEMPTS: Final = 16
"""A message is redelivered to its group up to this many times, unless the group has another limit; then it is a dead
letter.
"""

RETRY_MAX_ATTEMPTS_MAX: Final = 1_000
"""The highest limit a group may have."""

RETRY_DELAYS_MAX: Final = 64
"""Maximum number of backoff delays of a group."""

GIVE_BACK_REASON_BYTES_MAX: Final = 255
"""Maximum length, in UTF-8 bytes, of the reason for which a message is given back."""

GIVE_BACK_HISTORY_MAX: Final = 64
"""Maximum number of attempts recorded with a message; beyond this number the first attempts are forgotten."""

FIRED_IDS_MAX: Final = 10_000
"""Maximum number of explicit message ids, and of timers, that one FireTimers brings into the dedupe window. A request
may bring as many.
"""

POP_MESSAGES_MAX: Final = 32
"""Maximum number of messages of one pop."""

POP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Byte limit of one pop: a batch after the first is not begun if the unpacked blocks would exceed this size."""

POP_INVISIBLE_MS_MAX: Final = 12 * 3_600_000
"""Maximum time that a popped message is held before its consumer must acknowledge it or extend the lease."""

POP_HELD_MAX: Final = 20_000
"""Maximum number of messages of one group that are handed out and not acknowledged."""

POP_ACK_KEPT_MS: Final = 60_000
"""An acknowledged handle is remembered at least this long, so that acknowledging it again is answered alike."""

POP_ACK_SWEPT_MS: Final = 5_000
"""Acknowledged handles are forgotten at full multiples of this time, many at once."""
