"""The library looks at the clock by itself: it may stand only in a step in which this node has decided to."""

import random

import pytest
from pysyncobj import syncobj as library
from pysyncobj.transport import Transport

from raft.config import PeerAddress, RaftConfig
from raft.election.leadership import PATIENCE_TIMEOUTS
from raft.handlers import SafeRaft
from raft.health.clock import Clock
from raft.health.clock_agreement import ClockAgreement
from raft.journal import Journal
from raft.library import FOLLOWER
from raft.messages import PreVote, Vitals
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.simdisk import SimDisk
from tests.single_lane import SingleLane


class SilentTransport(SingleLane, Transport):  # type: ignore[misc]  # the library is untyped
    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.sent: list[object] = []

    def send(self, peer: int, message: object) -> bool:
        self.sent.append(message)
        return True

    def destroy(self) -> None:
        """Do nothing, because there is nothing to release."""


def test_deadline_that_passes_between_two_looks_starts_no_election(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in review: a half-filled wiped node could ask for votes without pre-vote and without a vote of its own."""
    time = {"now": 0.0, "step": 0.0}

    def moving_clock() -> float:
        time["now"] += time["step"]
        return time["now"]

    monkeypatch.setattr(library, "monotonicTime", moving_clock)
    disk = SimDisk(random.Random(1))
    disk.make_directory("/d")
    log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
    log.append(2, 1, KIND_ENTRY, b"half filled")
    log.sync()
    hard_state = HardState(disk, "/d/hard_state")
    hard_state.set(1, None)
    peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
    config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
    transport = SilentTransport()
    node = SafeRaft(
        config,
        Journal(log, hard_state, 0, Watermarks.open(disk, "/d")),
        transport,
        lambda entries, _: [[] for _ in entries],
        0,
        founded(config),
    )
    for peer in node.state.library._nodes.values():
        transport._onNodeConnected(peer)
    transport.sent.clear()
    for microseconds in range(1, 60):  # wherever in the step the deadline passes
        time["step"] = 0.0
        node.state.library.election_deadline = time["now"] + microseconds * 1e-6
        time["step"] = 1e-6
        node.step()
    assert (node.state.role, node.state.term, hard_state.voter) == (FOLLOWER, 1, False)
    assert [message for message in transport.sent if not isinstance(message, Vitals)] == []


def test_a_node_that_starts_asks_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-votes are refused while a leader is alive, so that only a cluster without one is sooner at work."""
    monkeypatch.setattr(library, "monotonicTime", lambda: 1_000.0)
    disk = SimDisk(random.Random(1))
    disk.make_directory("/d")
    log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
    peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
    config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
    journal = Journal(log, HardState(disk, "/d/hard_state"), 0, Watermarks.open(disk, "/d"))
    node = SafeRaft(config, journal, SilentTransport(), lambda entries, _: [[] for _ in entries], 0, founded(config))
    first_wait_s = node.state.library.election_deadline - 1_000.0
    node.state.library.postpone_election()
    least_wait_s = config.election_timeout_ms / 1000
    assert 0 < first_wait_s < least_wait_s <= node.state.library.election_deadline - 1_000.0


def test_a_node_whose_clock_is_wrong_lets_the_others_stand_first(monkeypatch: pytest.MonkeyPatch) -> None:
    time = {"s": 1_000.0, "wall_ms": 5_000_000_000}
    monkeypatch.setattr(library, "monotonicTime", lambda: time["s"])
    disk = SimDisk(random.Random(1))
    disk.make_directory("/d")
    log = CommitLog.open(disk, "/d/log", segment_bytes=1 << 16, cache_bytes=1 << 16)
    peers = {peer: PeerAddress("127.0.0.1", peer) for peer in (2, 3)}
    config = RaftConfig(cluster_id="c", node_id=1, listen=PeerAddress("127.0.0.1", 1), peers=peers)
    hard_state = HardState(disk, "/d/hard_state")
    hard_state.become_voter()
    journal, transport = Journal(log, hard_state, 0, Watermarks.open(disk, "/d")), SilentTransport()
    clock = Clock(lambda: int(time["wall_ms"]), lambda: time["s"])
    clocks = ClockAgreement(1, clock, lambda: {1, 2, 3}, max_skew_ms=1_000, interval_ms=10_000)
    node = SafeRaft(
        config, journal, transport, lambda entries, _: [[] for _ in entries], 0, founded(config), clocks=clocks
    )
    for peer in node.state.library._nodes.values():
        transport._onNodeConnected(peer)

    def asks_within(timeouts: int) -> bool:
        transport.sent.clear()
        for _ in range(10 * timeouts):
            time["s"] += config.election_timeout_ms / 10_000
            for peer in (2, 3):
                node.on_message(peer, Vitals(4_000_000, int(time["s"] * 1000)))
            node.step()
        return any(isinstance(message, PreVote) for message in transport.sent)

    for peer in (2, 3):
        node.on_message(peer, Vitals(4_000_000, int(time["s"] * 1000)))
    assert node.clocks.is_in_doubt
    assert not asks_within(PATIENCE_TIMEOUTS - 1)
    assert asks_within(5), "nobody else has stood"
