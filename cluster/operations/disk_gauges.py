"""Metrics of this node's disk and of its index, read at every scrape."""

import shutil
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from cluster.core.core import Core
from cluster.metrics import gauge


def disk_gauges(core: Core) -> Iterator[Metric]:
    yield gauge(
        "keelmq_disk_free_bytes", "Free space where the log is, up to a second ago", core.raft.disks.report().free_bytes
    )
    yield gauge("keelmq_disk_size_bytes", "Size of the file system where the log is; 0 if unknown", _size_bytes(core))
    yield gauge("keelmq_disk_is_low", "1 while there is no room on this node's disk", core.disk_is_low)
    index = core.state.index_figures
    yield gauge("keelmq_index_file_bytes", "Bytes of the index's files", index.file_bytes)
    yield gauge("keelmq_index_memtable_bytes", "Bytes of the index that are not in a file yet", index.memtable_bytes)
    yield gauge(
        "keelmq_index_pending_compaction_bytes",
        "Estimate of the bytes of the index that compactions have to rewrite",
        index.pending_compaction_bytes,
    )
    yield gauge("keelmq_index_compactions_running", "Compactions of the index under way", index.running_compactions)
    yield gauge("keelmq_index_flushes_running", "Flushes of the index under way", index.running_flushes)
    yield gauge(
        "keelmq_index_writes_stopped",
        "1 while RocksDB stops all writes, and entries wait to be applied",
        index.is_write_stopped,
    )
    stalls = CounterMetricFamily(
        "keelmq_index_stalls",
        "How often RocksDB has stopped all writes (stop), and how often entries had to wait for it (wait)",
        labels=["kind"],
    )
    stalls.add_metric(["stop"], index.write_stops)
    stalls.add_metric(["wait"], index.write_waits)
    yield stalls


def _size_bytes(core: Core) -> int:
    try:
        return shutil.disk_usage(core.config.data_dir).total
    except OSError:
        return 0
