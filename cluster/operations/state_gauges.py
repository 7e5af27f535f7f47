"""Gauges of the replicated state, read at every scrape: undecided transactions, consumer lag, dead letters.

Every node shows its own copy of the state, so a scrape of a follower that is behind shows an earlier state. The cost of
a scrape does not grow with the cluster's use: each kind has at most SERIES_MAX series.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from cluster.core.core import Core
from cluster.metrics import gauge
from store.commands.views import GroupOffset
from store.messages.topics import DLQ_PREFIX

SERIES_MAX: Final = 1_000
SERIES_PER_STEP: Final = 100
"""Number of series after which the event loop runs other work: each series may cost an index seek."""


def state_gauges(core: Core) -> Iterator[GaugeMetricFamily | None]:
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
    yield gauge("keelmq_transactions_undecided", "Half transactions that are prepared", state.transactions_undecided)
    oldest = state.transactions(state="prepared", limit=1).transactions
    age_s = max(core.now_ms() - oldest[0].prepared_at_ms, 0) / 1000 if oldest else 0.0
    yield gauge("keelmq_transactions_undecided_age_seconds", "Age of the oldest half transaction", age_s)
    yield from _lag(core)
    yield from _dead_letters(core)


def _lag(core: Core) -> Iterator[GaugeMetricFamily | None]:
    labels = ["group", "topic", "queue"]
    messages = GaugeMetricFamily(
        "keelmq_consumer_lag_messages", "Messages not yet committed by the group", labels=labels
    )
    seconds = GaugeMetricFamily(
        "keelmq_consumer_lag_seconds",
        "How long ago the first message was stored that the group has not committed or acknowledged; 0 without one",
        labels=labels,
    )
    for found in _offsets(core):
        if found is None:
            yield None
            continue
        group, offset = found
        series = [group, offset.topic, str(offset.queue)]
        messages.add_metric(series, offset.lag)
        seconds.add_metric(series, _waited_s(core, offset))
    yield messages
    yield seconds


def _offsets(core: Core) -> Iterator[tuple[str, GroupOffset] | None]:
    """Yield the offsets of all groups with the group's name, SERIES_MAX at most, and None after each step."""
    left, in_step, name = SERIES_MAX, 0, None
    while names := core.state.group_names(name, SERIES_PER_STEP):
        for name in names:
            after: tuple[str, int] | None = None
            while page := core.state.offsets_after(name, None, after, min(left, SERIES_PER_STEP)):
                yield from ((name, offset) for offset in page)
                after = page[-1].topic, page[-1].queue
                left, in_step = left - len(page), in_step + len(page)
                if in_step >= SERIES_PER_STEP:
                    in_step = 0
                    yield None
            if not left:
                return
        yield None


def _waited_s(core: Core, offset: GroupOffset) -> float:
    if not offset.lag:
        return 0.0
    rows = core.state.rows(offset.topic, offset.queue, offset.processed, 1, 1)
    return max(core.now_ms() - rows[0].stored_at_ms, 0) / 1000 if rows else 0.0


def _dead_letters(core: Core) -> Iterator[GaugeMetricFamily | None]:
    letters = GaugeMetricFamily(
        "keelmq_dead_letters", "Dead letters of the group, those that were replayed included", labels=["group"]
    )
    for number, name in enumerate(core.state.topics_starting(DLQ_PREFIX, SERIES_MAX), start=1):
        if core.state.topic(name) is not None:  # deleted since
            kept = sum(each.max_offset - each.min_offset for each in core.state.queue_ranges(name))
            letters.add_metric([name.removeprefix(DLQ_PREFIX)], kept)
        if number % SERIES_PER_STEP == 0:
            yield None
    yield letters
