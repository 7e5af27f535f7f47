"""The messages that their topic need not keep any longer: by their age, by the bytes of the topic, and by the bytes
of the log.

- **Age:** a message goes when its topic's `retention_ms` is over.
- **Bytes of the topic:** the oldest messages of a topic go, whichever queue they are in, as long as `retention_bytes`
  of younger ones are left. Of messages of one millisecond those of the lowest queue count as the oldest.
- **Bytes of the log:** a message goes when it was stored before the last `log_retention_bytes` of the log were written.
  This is a limit in time, too: store/messages/log_times.py knows when that was. It concerns clients' topics alone, also
  those that keep messages for ever.

All follows from the entries: their clocks, their positions, and the settings in them.
"""

from heapq import nsmallest

from store.commands.views import Row
from store.limits import RETENTION_UNLIMITED_BYTES
from store.messages.log_times import LogTimes
from store.messages.queues import Queues
from store.messages.topics import Topic
from store.transactions.settings import ClusterSettings


class RetentionRules:
    def __init__(self, settings: ClusterSettings, log_times: LogTimes, queues: Queues) -> None:
        self._settings = settings
        self._log_times = log_times
        self._queues = queues
        self.log_position = 0
        """Position of the last entry that was applied; 0 when this process has applied none."""

    def over_until_ms(self, topic: Topic, clock_ms: int) -> int | None:
        """Return the time at or before which stored messages are over at `clock_ms`; None if none are."""
        by_age, by_log = topic.expires_until_ms(clock_ms), self._log_cut_ms(topic)
        return by_age if by_log is None else by_log if by_age is None else max(by_age, by_log)

    def _log_cut_ms(self, topic: Topic) -> int | None:
        """Return the time at or before which messages lie before the last `log_retention_bytes` of the log."""
        limit = self._settings.current.log_retention_bytes
        if limit == RETENTION_UNLIMITED_BYTES or topic.system:
            return None
        return self._log_times.stored_until_ms(self.log_position - limit)

    def may_exceed(self, topic: Topic) -> bool:
        """Return whether the topic has more bytes than it keeps, be it by less than its oldest row."""
        return topic.retention_bytes != RETENTION_UNLIMITED_BYTES and topic.kept_bytes > topic.retention_bytes

    def exceeds(self, topic: Topic) -> bool:
        """Return whether the oldest row of the topic goes, because enough bytes are left without it."""
        first = self._oldest_row(topic) if self.may_exceed(topic) else None
        return first is not None and topic.kept_bytes - first.block_length >= topic.retention_bytes

    def oldest_queues(self, topic: Topic, limit: int) -> list[int]:
        """Return at most `limit` queues of the topic, those with the oldest first messages, the oldest first: the
        topic's `limit` oldest rows are in them.
        """
        stored = ((self._queues.first_stored_at_ms(topic, queue), queue) for queue in range(len(topic.ends)))
        return [queue for _, queue in nsmallest(limit, ((ms, queue) for ms, queue in stored if ms is not None))]

    def _oldest_row(self, topic: Topic) -> Row | None:
        oldest = self.oldest_queues(topic, 1)
        return self._queues.first_row(topic, oldest[0]) if oldest else None
