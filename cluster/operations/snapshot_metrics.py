"""Metrics of sent snapshots, read at every scrape. cluster/metrics.py counts the received ones."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.metrics import gauge
from raft.node import RaftNode


def snapshot_metrics(raft: RaftNode) -> Iterator[Metric]:
    """Yield the metrics of snapshots that this process has sent, and of snapshots under way."""
    counts = raft.snapshot_counts
    sending = sum(peer.snapshot_percent is not None for peer in raft.peers.values())
    receiving = raft.receiving_percent is not None
    yield _counter("keelmq_snapshots_sent", "Snapshots that a peer has taken from this node", counts.sent)
    yield _counter("keelmq_snapshots_aborted", "Snapshots whose sending ended before they were whole", counts.aborted)
    yield _counter("keelmq_snapshot_sent_bytes", "Bytes of snapshots that peers acknowledged", counts.bytes)
    yield _counter("keelmq_snapshot_sent_seconds", "How long snapshots were being sent", counts.seconds)
    yield gauge("keelmq_snapshots_being_sent", "Nodes that this node is sending a snapshot", sending)
    yield gauge("keelmq_snapshot_being_received", "1 while this node is being sent a snapshot", receiving)
    yield gauge("keelmq_log_catching_up", "1 while the log is behind the snapshot it started with", raft.is_catching_up)


def _counter(name: str, description: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, description, value=value)
