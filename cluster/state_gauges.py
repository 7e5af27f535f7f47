"""Gauges of the replicated state, read at every scrape: undecided transactions, consumer lag, dead letters.

Every node shows its own copy, so a scrape of a follower that is behind shows what was true there. What a scrape costs
does not grow with the cluster's use: each kind has at most SERIES_MAX series.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from cluster.core import Core
from cluster.metrics import gauge
from store.results import GroupOffset
from store.topics import DLQ_PREFIX

SERIES_MAX: Final = 1_000


def state_gauges(core: Core) -> Iterator[GaugeMetricFamily]:
    state = core.state
    base, floor = core.log.base, state.log_floor
    yield gauge("keelmq_log_base_index", "Last entry that was removed from the front of the log", base.index)
    yield gauge("keelmq_log_bytes", "Bytes of log that are kept", core.log.end_position - base.position)
    yield gauge("keelmq_log_floor_index", "First entry that any message, timer or transaction points at", floor)
    yield gauge("keelmq_timers_pending", "Timers, one for each batch that waits", state.timers_pending)
    yield gauge("keelmq_messages_scheduled", "Messages that wait for their time", state.messages_scheduled)
    yield gauge("keelmq_transactions_undecided", "Half transactions that are prepared", state.transactions_undecided)
    oldest = state.transactions(state="prepared", limit=1).transactions
    age_s = max(core.now_ms() - oldest[0].prepared_at_ms, 0) / 1000 if oldest else 0.0
    yield gauge("keelmq_transactions_undecided_age_seconds", "Age of the oldest half transaction", age_s)
    yield from _lag(core)
    yield _dead_letters(core)


def _lag(core: Core) -> Iterator[GaugeMetricFamily]:
    labels = ["group", "topic", "queue"]
    messages = GaugeMetricFamily(
        "keelmq_consumer_lag_messages", "Messages not yet committed by the group", labels=labels
    )
    seconds = GaugeMetricFamily(
        "keelmq_consumer_lag_seconds",
        "How long ago the first message was stored that the group has not committed or acknowledged; 0 without one",
        labels=labels,
    )
    for group, offset in _offsets(core):
        series = [group, offset.topic, str(offset.queue)]
        messages.add_metric(series, offset.lag)
        seconds.add_metric(series, _waited_s(core, offset))
    yield messages
    yield seconds


def _offsets(core: Core) -> Iterator[tuple[str, GroupOffset]]:
    """Of all groups, SERIES_MAX at most."""
    left = SERIES_MAX
    for group in core.state.groups():
        for offset in core.state.offsets(group.group) or ():
            if not left:
                return
            left -= 1
            yield group.group, offset


def _waited_s(core: Core, offset: GroupOffset) -> float:
    if not offset.lag:
        return 0.0
    rows = core.state.rows(offset.topic, offset.queue, offset.processed, 1, 1)
    return max(core.now_ms() - rows[0].stored_at_ms, 0) / 1000 if rows else 0.0


def _dead_letters(core: Core) -> GaugeMetricFamily:
    letters = GaugeMetricFamily(
        "keelmq_dead_letters", "Dead letters of the group, those that were replayed included", labels=["group"]
    )
    names = [topic.topic for topic in core.state.topics(system=True) if topic.topic.startswith(DLQ_PREFIX)]
    for name in names[:SERIES_MAX]:
        kept = sum(each.max_offset - each.min_offset for each in core.state.queue_ranges(name))
        letters.add_metric([name.removeprefix(DLQ_PREFIX)], kept)
    return letters
