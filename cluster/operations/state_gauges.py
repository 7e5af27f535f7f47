"""Gauges of the replicated state, read at every scrape: undecided transactions, consumer lag, dead letters.

Every node shows its own copy of the state, so a scrape of a follower that is behind shows an earlier state. Each kind
has at most SERIES_MAX series, and one more, OTHERS, for the rest. The rest of the lag costs up to an index seek for
each queue of each group, so it is summed once in REST_MS at most.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from cluster.core.core import Core
from cluster.core.waiting import waits_since_ms
from cluster.metrics import gauge
from cluster.telemetry.topic_counters import OTHERS, SERIES_MAX
from store.commands.transactions import TransactionState
from store.commands.views import GroupOffset
from store.messages.topics import DLQ_PREFIX

SERIES_PER_STEP: Final = 100
"""Number of series after which the event loop runs other work: each series may cost an index seek."""
REST_MS: Final = 60_000
"""Milliseconds for which the sum of the lag without series of its own holds."""


class _Rest:
    """The lag of all queues of groups beyond the first SERIES_MAX."""

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.queues = self.messages = 0
        self.seconds = 0.0

    def add(self, messages: int, seconds: float) -> None:
        self.queues += 1
        self.messages += messages
        self.seconds = max(self.seconds, seconds)


class StateGauges:
    """Reads the gauges of one node's state. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rest = _Rest(-REST_MS)
        self.summed = {"consumer_lag": 0, "dead_letters": 0, "paused_groups": 0}
        """Number of queues of groups, and of groups, without a series of their own as of the last scrape."""

    def metrics(self) -> Iterator[GaugeMetricFamily | None]:
        core = self._core
        state = core.state
        base, floor = core.log.base, state.log_floor
        yield gauge("keelmq_log_base_index", "Last entry that was removed from the front of the log", base.index)
        yield gauge("keelmq_log_bytes", "Bytes of log that are kept", core.log.end_position - base.position)
        yield gauge("keelmq_log_floor_index", "First entry that any message, timer or transaction points at", floor)
        yield gauge("keelmq_topics", "Topics of clients", state.topics_of_clients)
        yield gauge("keelmq_groups", "Consumer groups", state.groups_count)
        yield gauge("keelmq_group_members", "Members of all consumer groups", state.members_count)
        yield gauge("keelmq_timers_pending", "Timers, one for each batch that waits", state.timers_pending)
        yield gauge("keelmq_messages_scheduled", "Messages that wait for their time", state.messages_scheduled)
        undecided = state.transactions_undecided
        yield gauge("keelmq_transactions_undecided", "Half transactions that are prepared", undecided)
        yield gauge(
            "keelmq_transactions_undecided_age_seconds", "Age of the oldest half transaction", self._age_s("prepared")
        )
        yield gauge(
            "keelmq_transactions_discarded_age_seconds",
            "Age of the oldest transaction that was discarded and waits for an operator; 0 without one",
            self._age_s("discarded"),
        )
        yield from self._lag()
        yield from self._dead_letters()
        yield self._pauses()

    def _pauses(self) -> GaugeMetricFamily:
        seconds = GaugeMetricFamily(
            "keelmq_group_paused_seconds",
            "How long ago the group was paused; groups that are not paused have no series; the longest of all in the "
            "series `(others)`",
            labels=["group"],
        )
        ages_s = [(name, max(self._core.now_ms() - ms, 0) / 1000) for name, ms in self._core.state.paused_groups()]
        for name, age_s in ages_s[:SERIES_MAX]:
            seconds.add_metric([name], age_s)
        rest = ages_s[SERIES_MAX:]
        if rest:
            seconds.add_metric([OTHERS], max(age_s for _, age_s in rest))
        self.summed["paused_groups"] = len(rest)
        return seconds

    def _age_s(self, state: TransactionState) -> float:
        """Return how long ago the oldest transaction in this state was prepared; 0 without one."""
        oldest = self._core.state.transactions(state=state, limit=1).transactions
        return max(self._core.now_ms() - oldest[0].prepared_at_ms, 0) / 1000 if oldest else 0.0

    def _lag(self) -> Iterator[GaugeMetricFamily | None]:
        labels = ["group", "topic", "queue"]
        messages = GaugeMetricFamily(
            "keelmq_consumer_lag_messages",
            "Messages not yet committed by the group; those of the series `(others)` are up to a minute old",
            labels=labels,
        )
        seconds = GaugeMetricFamily(
            "keelmq_consumer_lag_seconds",
            "How long ago the first message was stored that the group has not committed or acknowledged; 0 without "
            "one; the longest of all in the series `(others)`",
            labels=labels,
        )
        shown = 0
        rest: _Rest | None = None
        for found in self._offsets():
            if found is None:
                yield None
                continue
            group, offset = found
            if shown < SERIES_MAX:
                shown += 1
                series = [group, offset.topic, str(offset.queue)]
                messages.add_metric(series, offset.lag)
                seconds.add_metric(series, self._waited_s(offset))
                continue
            if rest is None:
                if self._core.steady_ms() - self._rest.began_ms < REST_MS:
                    break
                rest = _Rest(self._core.steady_ms())
            rest.add(offset.lag, self._waited_s(offset))
        else:
            self._rest = rest or _Rest(-REST_MS)
        if self._rest.queues:
            messages.add_metric([OTHERS, OTHERS, ""], self._rest.messages)
            seconds.add_metric([OTHERS, OTHERS, ""], self._rest.seconds)
        self.summed["consumer_lag"] = self._rest.queues
        yield messages
        yield seconds

    def _offsets(self) -> Iterator[tuple[str, GroupOffset] | None]:
        """Yield the offsets of all groups with the group's name, and None after each step."""
        in_step, name = 0, None
        while names := self._core.state.group_names(name, SERIES_PER_STEP):
            for name in names:
                after: tuple[str, int] | None = None
                while page := self._core.state.offsets_after(name, None, after, SERIES_PER_STEP):
                    yield from ((name, offset) for offset in page)
                    after = page[-1].topic, page[-1].queue
                    in_step += len(page)
                    if in_step >= SERIES_PER_STEP:
                        in_step = 0
                        yield None
            yield None

    def _waited_s(self, offset: GroupOffset) -> float:
        since_ms = waits_since_ms(self._core, offset)
        return 0.0 if since_ms is None else max(self._core.now_ms() - since_ms, 0) / 1000

    def _dead_letters(self) -> Iterator[GaugeMetricFamily | None]:
        letters = GaugeMetricFamily(
            "keelmq_dead_letters", "Dead letters of the group, those that were replayed included", labels=["group"]
        )
        shown, summed, others = 0, 0, 0
        for name in self._dead_letter_topics():
            if name is None:
                yield None
                continue
            kept = sum(each.max_offset - each.min_offset for each in self._core.state.queue_ranges(name))
            if shown < SERIES_MAX:
                shown += 1
                letters.add_metric([name.removeprefix(DLQ_PREFIX)], kept)
            else:
                summed, others = summed + 1, others + kept
        if summed:
            letters.add_metric([OTHERS], others)
        self.summed["dead_letters"] = summed
        yield letters

    def _dead_letter_topics(self) -> Iterator[str | None]:
        """Yield the groups' topics of dead letters, and None after each step."""
        name = DLQ_PREFIX
        while page := self._core.state.topics_after(name, SERIES_PER_STEP, system=True):
            for topic in page:
                name = topic.topic
                if not name.startswith(DLQ_PREFIX):
                    return
                if self._core.state.topic(name) is not None:  # deleted since
                    yield name
            yield None
