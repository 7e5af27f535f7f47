"""The times of a group member's session."""

from dataclasses import dataclass
from typing import Final

from keelmq.limits import check_range

COMMIT_INTERVAL_MS: Final = 100
CLOSE_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS_MAX: Final = 3_000
CALL_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True)
class SessionTimes:
    """Raises InvalidRequest for a time out of its range."""

    session_timeout_ms: int
    """Time without a heartbeat after which the broker ends the session."""
    commit_interval_ms: int = COMMIT_INTERVAL_MS
    """Time between two commits of processed offsets."""
    close_timeout_ms: int = CLOSE_TIMEOUT_MS
    """Time that running handler calls have to end when their queue, or the consumer, is closed."""
    call_timeout_ms_max: int = CALL_TIMEOUT_MS

    def __post_init__(self) -> None:
        check_range("session_timeout_ms", self.session_timeout_ms, 1_000, 1_800_000)
        check_range("commit_interval_ms", self.commit_interval_ms, 0, 60_000)
        check_range("close_timeout_ms", self.close_timeout_ms, 0, 3_600_000)

    @property
    def call_timeout_ms(self) -> int:
        """Time for a call of the group's API: after a session's timeout its answer would be of no use."""
        return min(self.call_timeout_ms_max, self.session_timeout_ms)

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats; two may get lost without an end of the session."""
        return min(self.session_timeout_ms / 3, HEARTBEAT_MS_MAX) / 1000
