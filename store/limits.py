"""Limits and defaults of the replicated state.

They decide what apply does, so every replica must run with the same values: they are constants, not configuration.
Changing one changes what an old log replays to.
"""

from typing import Final

DEFAULT_QUEUES: Final = 4
DEFAULT_RETENTION_MS: Final = 259_200_000
RETENTION_FOREVER_MS: Final = -1
"""A topic with this retention keeps its messages for ever."""

TRANSACTION_RETENTION_MS: Final = DEFAULT_RETENTION_MS
"""A transaction is known for so long after it was decided or discarded."""

EXPIRED_ROWS_MAX: Final = 1_000
"""Rows, and transactions, that one ExpireMessages removes at most."""

REPLAYED_KEPT_MS: Final = 15 * 60_000
"""A dead letter that was replayed is kept this long, so that the same replay again is answered alike."""

EXPIRED_QUEUES_MAX: Final = 1_000
"""Queues that one ExpireMessages is about at most."""

SWEPT_KEYS_MAX: Final = 4_000
"""Keys that one SweepIndex looks at at most."""

QUEUES_MAX: Final = 1_024
"""Queues of one topic. Queue numbers are 16 bits wide in the index."""

CHECK_IMMUNITY_MS: Final = 6_000
"""A half transaction is not asked about before this age, unless it names its own `check_after_ms`."""

CHECK_AFTER_MAX_MS: Final = 7 * 24 * 3_600_000
"""The longest `check_after_ms`, and the longest time to the next check."""

TIMELINE_EVENTS_MAX: Final = 256
"""Checks and `unknown` answers kept per transaction; later ones are counted, not kept. What operators do always is."""

OPERATOR_BYTES_MAX: Final = 255
"""Name of who steps in by hand, in UTF-8."""

REASON_BYTES_MAX: Final = 255
"""Why an operator did it, in UTF-8."""

DEDUPE_WINDOW_MS: Final = 15 * 60_000
"""Batch and message ids are remembered for this long, by the replicated clock ..."""

DEDUPE_MAX_ENTRIES: Final = 1_000_000
"""... unless there are more of them than this: then the oldest go first."""

DEDUPE_MIN_ENTRIES: Final = 50_000
"""The youngest ids are remembered however old they are: a leader whose clock leaps ahead must not make the cluster
forget what was sent a moment ago."""

DELAY_MAX_MS: Final = 40 * 24 * 3_600_000
"""The longest a message waits before it becomes visible."""

RETRY_DELAYS_MS: Final = tuple(
    1_000 * seconds for seconds in (10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
)
"""How long a message that was given back waits, unless its group has other delays: those of RocketMQ."""

RETRY_MAX_ATTEMPTS: Final = 16
"""A message is given to its group so many times again, unless the group has another limit; then it is dead."""

RETRY_MAX_ATTEMPTS_MAX: Final = 1_000
"""The highest limit a group may have."""

RETRY_DELAYS_MAX: Final = 64
"""Delays a group may have."""

GIVE_BACK_REASON_BYTES_MAX: Final = 255
"""Of the reason for which a message is given back, in UTF-8."""

GIVE_BACK_HISTORY_MAX: Final = 64
"""Attempts that a message carries with it; of more than that, the first are forgotten."""

FIRED_IDS_MAX: Final = 10_000
"""Explicit message ids, and timers, that one FireTimers brings into the dedupe window: what a request may bring."""

POP_MESSAGES_MAX: Final = 32
"""Messages of one pop."""

POP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one pop: a batch beyond the first is not begun when the blocks, unpacked, would take more than this."""

POP_INVISIBLE_MS_MAX: Final = 12 * 3_600_000
"""The longest that a popped message is held before it has to be acknowledged, or held on to again."""

POP_HELD_MAX: Final = 20_000
"""Messages of one group that are handed out and not acknowledged."""

POP_ACK_KEPT_MS: Final = 60_000
"""How long an acknowledged handle is remembered, at least: acknowledged again, it is answered alike."""

POP_ACK_SWEPT_MS: Final = 5_000
"""What is acknowledged is forgotten at full multiples of this, many at a time."""
