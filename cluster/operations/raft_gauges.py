"""Metrics of the Raft group as this node sees it, read at every scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.metrics import gauge


def raft_gauges(core: Core) -> Iterator[Metric]:
    raft = core.raft
    yield gauge("keelmq_raft_term", "Current term", raft.term)
    yield gauge("keelmq_raft_is_leader", "1 while this node leads", raft.role == "leader")
    yield gauge("keelmq_raft_has_leader", "1 while a leader is known", raft.leader_id is not None)
    yield gauge("keelmq_raft_commit_index", "Highest index known committed", raft.commit_index)
    yield gauge("keelmq_raft_applied_index", "Highest index applied", raft.applied_index)
    yield gauge("keelmq_raft_durable_index", "Highest index fsynced here", raft.durable_index)
    yield CounterMetricFamily("keelmq_raft_elections", "Elections for which this node stood", value=raft.election.stood)
    yield CounterMetricFamily("keelmq_raft_elections_won", "Elections that this node won", value=raft.election.won)
    yield gauge(
        "keelmq_raft_elections_won_recently",
        "Elections that this node won in the last 15 minutes, 1,000 at most",
        raft.election.won_recently(),
    )
    yield gauge("keelmq_raft_voters", "Voters of the cluster", len(raft.configuration.voters))
    yield gauge(
        "keelmq_raft_quorum_margin",
        "How many voters may fall silent, as this node sees it, before no majority is left; negative without one",
        raft.leadership.quorum_margin(),
    )
    yield from _peers(core)


def _peers(core: Core) -> Iterator[Metric]:
    raft = core.raft
    connected = GaugeMetricFamily("keelmq_peer_connected", "1 while the peer is heard", labels=["node_id"])
    silent = GaugeMetricFamily(
        "keelmq_peer_silent_seconds", "Age of the last message of the peer; absent before the first", labels=["node_id"]
    )
    lag = GaugeMetricFamily(
        "keelmq_peer_lag_entries",
        "On the leader: entries that the peer has not acknowledged as being on its disk",
        labels=["node_id"],
    )
    for node_id, peer in raft.peers.items():
        connected.add_metric([str(node_id)], peer.connected)
        silent_s = raft.presence.silent_s(node_id)
        if silent_s is not None:
            silent.add_metric([str(node_id)], silent_s)
        if raft.role == "leader":
            lag.add_metric([str(node_id)], max(0, core.log.last_index - peer.match_index))
    yield connected
    yield silent
    yield lag
