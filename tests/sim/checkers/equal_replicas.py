"""Replicas are equal unless memory or disks change them, which nothing here does. A node that finds a difference has
found a defect, or the effect of a mutant.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .violation import Violation

if TYPE_CHECKING:
    from tests.sim.replica import Replica


def check_equal(replica: "Replica") -> None:
    """Check that the node has found no difference between its state and another node's."""
    replicas = replica.raft.replicas
    if replicas.differs:
        raise Violation("replica_differs", f"node {replica.node_id}: {replicas.difference}")
    for doubt in replicas.doubts():
        raise Violation("replica_differs", f"nodes {replica.node_id} and {doubt.node_id}: {doubt.difference}")


def watch_appends(replica: "Replica", finding: Callable[[], AbstractContextManager[None]]) -> None:
    """Check that the entries a follower takes are the entries it was sent."""
    handlers = replica.raft
    on_difference = handlers.follower._on_difference

    def watched(peer: int, append: Any, held: int) -> int:
        match = on_difference(peer, append, held)
        with finding():
            _accuse(replica.node_id, peer)
        return match

    handlers.follower._on_difference = watched  # type: ignore[method-assign]


def _accuse(node_id: int, peer: int) -> None:
    raise Violation("append_differs", f"node {node_id} has other bytes than node {peer} sent")
