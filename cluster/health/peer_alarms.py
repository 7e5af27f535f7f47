"""Alarms about other nodes that are unreachable or far behind, and about the nodes that an election waits for."""

from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.health.readiness import STUCK_S
from raft.health.vital_signs import BACKLOG_ENTRIES

GRACE_TIMEOUTS: Final = 4
"""Number of election timeouts after a start, or the loss of a leader, during which no alarm is raised."""


class PeerAlarms:
    """Raises alarms about other nodes. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._led_at_s = core.steady_ms() / 1000
        self._awaited: dict[int, float] = {}  # nodes never heard, and the time since which this node waits for each
        self._matched: dict[int, tuple[int, float]] = {}

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for a missing leader, for unreachable nodes and for nodes that are behind."""
        raft, now_s = self._core.raft, self._core.steady_ms() / 1000
        grace_s = GRACE_TIMEOUTS * self._core.config.election_timeout_ms / 1000
        if raft.leader_id is not None:
            self._led_at_s = now_s
        waits_for = raft.vacancy.waits_for()
        if waits_for is not None and now_s - self._led_at_s >= grace_s:
            yield Condition(
                "no_leader",
                "critical",
                f"{waits_for}. Nothing is written until then: {raft.vacancy.next_step()}",
            )
        yield from self._unreachable(now_s, grace_s)
        yield from self._behind(now_s)

    def _unreachable(self, now_s: float, grace_s: float) -> Iterator[Condition]:
        raft = self._core.raft
        peers = raft.peers
        silent = {peer: raft.presence.silent_s(peer) for peer, status in peers.items() if not status.connected}
        self._awaited = {peer: self._awaited.get(peer, now_s) for peer, since_s in silent.items() if since_s is None}
        for peer, silent_s in silent.items():
            if silent_s is not None or now_s - self._awaited[peer] >= grace_s:
                since = "since this node has known it" if silent_s is None else f"for {silent_s:.0f} s"
                why = raft.why_unconnected(peer)
                yield Condition(
                    "node_unreachable",
                    "warning",
                    f"nothing was heard of node {peer} {since}{f' ({why})' if why else ''}: start it, check its "
                    "machine and the network, or remove it for good with "
                    f"`keelmq cluster remove-node {peer}`",
                    str(peer),
                )

    def _behind(self, now_s: float) -> Iterator[Condition]:
        """Yield alarms for nodes that are far behind or stuck; only the leader knows them."""
        raft = self._core.raft
        if raft.role != "leader":
            self._matched.clear()
            return
        for peer, status in raft.peers.items():
            match_index, missing = status.match_index, raft.commit_index - status.match_index
            before = self._matched.get(peer)
            if before is None or before[0] != match_index or missing <= 0:
                self._matched[peer] = match_index, now_s
            stuck_s = now_s - self._matched[peer][1]
            if status.connected and (missing > BACKLOG_ENTRIES or stuck_s >= STUCK_S):
                sent = (
                    "" if status.snapshot_percent is None else f", and is sent a snapshot: {status.snapshot_percent} %"
                )
                yield Condition(
                    "node_behind",
                    "warning",
                    f"node {peer} lacks {missing} committed entries{sent}. Check that its disk has room and is fast "
                    "enough, and read its log",
                    str(peer),
                )
