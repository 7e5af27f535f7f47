"""Addresses of nodes, which the simulated network does not need. The runs check that no record which changes addresses
changes anything else, and that no override at a start brings a node into the cluster or gives it a vote.
"""

from typing import TYPE_CHECKING

from raft.config import AddressOverride, PeerAddress

if TYPE_CHECKING:
    from .replica import Replica

PLACES = 100
"""A node with the id n is reached at every port n + PLACES * k."""
PLACES_MAX = 9
OVERRIDE_PROBABILITY = 0.2
OVERRIDE_MAX = 20


def peer_address(node_id: int, place: int = 0) -> PeerAddress:
    return PeerAddress("simulated", node_id + PLACES * place)


def url(node_id: int, place: int = 0) -> str:
    return f"http://node-{node_id}" + (f":{place}" if place else "")


def draw_override(replica: "Replica") -> AddressOverride | None:
    """Draw an address override for one start of the replica; None when it starts without one. The override names every
    node, also nodes outside the cluster. Its number may have been used already.
    """
    random = replica.world.random_of(f"override {replica.node_id} {replica.life}")
    if not replica.settings.spare_count or replica.log.last_index == 1 or random.random() > OVERRIDE_PROBABILITY:
        return None
    place = random.randint(0, PLACES_MAX)
    replica.observer.met["nodes: started with an override"] += 1
    return AddressOverride(
        random.randint(1, OVERRIDE_MAX),
        {peer: peer_address(peer, place) for peer in replica.network.node_ids},
        {peer: url(peer, place) for peer in replica.network.node_ids},
    )
