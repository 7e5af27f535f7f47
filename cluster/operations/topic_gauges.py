"""Metrics by topic, read at every scrape: what came in, what was handed out, and what is kept."""

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.telemetry.topic_counters import OTHERS, SERIES_MAX, TopicCounters

TOPICS_PER_STEP: Final = 100
"""Number of topics after which the event loop runs other work."""
FORGET_INTERVAL_S: Final = 60.0
"""Seconds between two searches for counters of deleted topics, at a node that nobody scrapes."""


class TopicGauges:
    """Owns the counts of appended messages; the core has those of messages read. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._appended = TopicCounters()
        self.summed = {"topic_appended": 0, "topic_read": 0, "topic_kept": 0}
        """Number of topics without a series of their own as of the last scrape, by kind of metric."""
        self._task = core.background.task("topic-counters", "forget the counters of deleted topics", self._round)

    def start(self) -> None:
        """Begin to forget the counters of deleted topics, whether anybody scrapes this node or not."""
        self._task.start(FORGET_INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    def metrics(self) -> Iterator[Metric | None]:
        read = self._core.topic_reads
        yield from self._bring_up_to_date()
        yield from self._appended.families(
            "keelmq_topic_appended",
            "Messages that became visible in the topic, as this node applied it: about equal on all nodes",
            "Bytes of the blocks of these messages, as stored",
        )
        yield from read.families(
            "keelmq_topic_read",
            "Messages of the topic that this node handed to consumers",
            "Bytes of these messages, before compression",
        )
        yield from self._kept()
        self.summed["topic_appended"], self.summed["topic_read"] = self._appended.summed, read.summed

    async def _round(self) -> float:
        for _ in self._bring_up_to_date():
            await asyncio.sleep(0)
        return FORGET_INTERVAL_S

    def _bring_up_to_date(self) -> Iterator[None]:
        """Count the messages that were appended since the last time, and forget deleted topics, in steps."""
        state = self._core.state
        for number, (topic, (messages, size_bytes)) in enumerate(state.take_appended().items(), start=1):
            self._appended.add(topic, messages, size_bytes)
            if number % TOPICS_PER_STEP == 0:
                yield
        for counters in (self._appended, self._core.topic_reads):
            yield from counters.forget_deleted(lambda topic: state.topic(topic) is not None)

    def _kept(self) -> Iterator[Metric | None]:
        family = GaugeMetricFamily(
            "keelmq_topic_messages", "Messages of the topic that are kept, and have an offset", labels=["topic"]
        )
        sizes = GaugeMetricFamily(
            "keelmq_topic_bytes",
            "Bytes of the blocks of these messages, as stored; no series of a topic below feature level 2",
            labels=["topic"],
        )
        name, shown, summed, others, others_bytes = None, 0, 0, 0, 0
        while page := self._core.state.topics_after(name, TOPICS_PER_STEP):
            for topic in page:
                name = topic.topic
                if self._core.state.topic(name) is None:  # deleted since
                    continue
                kept = sum(each.max_offset - each.min_offset for each in self._core.state.queue_ranges(name))
                kept_bytes = self._core.state.kept_bytes(name).total
                if shown < SERIES_MAX:
                    shown += 1
                    family.add_metric([name], kept)
                    if kept_bytes is not None:
                        sizes.add_metric([name], kept_bytes)
                else:
                    summed, others, others_bytes = summed + 1, others + kept, others_bytes + (kept_bytes or 0)
            yield None
        if summed:
            family.add_metric([OTHERS], others)
            sizes.add_metric([OTHERS], others_bytes)
        self.summed["topic_kept"] = summed
        yield family
        yield sizes
