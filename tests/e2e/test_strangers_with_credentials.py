"""Strangers with credentials at every port change nothing: the short form of `make strangers`."""

import random
from pathlib import Path

import pytest

from raft.messages import Build, Hello, Proof
from raft.peers.handshake import NONCE_BYTES, PROTOCOL, opener_statement
from raft.peers.secret import prove
from store.features import FEATURES
from tests.e2e.closed_cluster import ADMINISTRATOR
from tests.strangers import http_attempts, peer_attempts
from tests.strangers.attack import Fortress, attack, fortress
from tests.strangers.loot import CLUSTER
from tests.strangers.outcome import Admitted

ATTEMPTS = 600


async def test_no_stranger_changes_anything(tmp_path: Path) -> None:
    with fortress(tmp_path) as attacked:
        found = await attack(attacked, ATTEMPTS, seed=7)
        assert found.violations == []
        assert found.attempts == ATTEMPTS
        assert found.kinds > 300
        assert found.refused > 50, "the nodes have judged credentials, and have not just hung up"
        with pytest.raises(Admitted, match="is answered 20"):
            await with_a_good_token(attacked)
        with pytest.raises(Admitted, match="answers a stranger with Welcome"):
            await as_node_2(attacked)


async def with_a_good_token(attacked: Fortress) -> None:
    """Make the same attempts with a good token, which have to be noticed."""
    loot = attacked.loot._replace(tokens=dict.fromkeys(attacked.loot.tokens, ADMINISTRATOR))
    rng = random.Random(7)
    for _ in range(100):
        await http_attempts.attempt(attacked.cluster.wait_leader(), loot, rng)


async def as_node_2(attacked: Fortress) -> None:
    """Show the certificate of node 2, and prove the secret."""
    peer = await peer_attempts.connect(attacked.cluster.nodes[1], attacked.loot.peers["of node 2"])
    build = Build("9.1.0", FEATURES.minimum, FEATURES.maximum)
    hello = Hello(CLUSTER, 2, 1, PROTOCOL, "x", "127.0.0.1:1", nonce=bytes(NONCE_BYTES), build=build)
    challenge = await peer.challenge(hello)
    peer.say(Proof(prove(attacked.loot.secret, opener_statement(hello, challenge))))
    try:
        await peer.until_closed()
    finally:
        peer.close()
