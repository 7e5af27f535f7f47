"""Measures the process: what the kernel says of it, and the garbage collections of Python, which stop the loop."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from cluster.measures import Durations

BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
GENERATIONS: Final = 3


def register_process(registry: CollectorRegistry) -> None:
    """Add the metrics `process_…`, `python_gc_…` and `python_info` of the client library to the registry."""
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    PlatformCollector(registry=registry)


class GcPauses:
    """Measures each garbage collection. Call `start` and `stop` once each, on the event loop."""

    def __init__(self, steady_s: Callable[[], float] = time.perf_counter) -> None:
        self._steady_s = steady_s
        self._pauses = [Durations(BOUNDS_S) for _ in range(GENERATIONS)]
        self._begun_s = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_s = self._steady_s()
        else:
            self._pauses[about["generation"]].observe(self._steady_s() - self._begun_s)

    def metrics(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "keelmq_gc_pause_seconds", "Garbage collections, each of which stops the loop", labels=["generation"]
        )
        for generation, pauses in enumerate(self._pauses):
            pauses.add_to(family, [str(generation)])
        yield family
