"""Checks that expensive requests cause no long steps of a node's event loop, as the nodes measure them.

Steps are measured in processor time without garbage collections, so a busy machine makes none longer. The bound is
twice the 20 ms that a step may take, to allow for the cost of measuring.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from tests.e2e.cluster_process import ClusterProcess, NodeProcess

STEP_MS_MAX: Final = 40
OPTIONS: Final = ("--loop-step-ms-max", str(STEP_MS_MAX))
LOGGED: Final = "a step of the event loop took"


def metric(node: NodeProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", node.request("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found is not None, f"node {node.node_id} shows no {name}"
    return float(found[1])


@contextlib.contextmanager
def no_long_steps(cluster: ClusterProcess) -> Iterator[None]:
    """Fail when a node of the cluster, which was started with OPTIONS, has a long step within the block."""
    before = {node.node_id: metric(node, "keelmq_loop_long_steps_total") for node in cluster.alive()}
    begins = {node.node_id: len(node.output()) for node in cluster.alive()}
    yield
    for node in cluster.alive():
        logged = node.output()[begins.get(node.node_id, 0) :]
        long_steps = metric(node, "keelmq_loop_long_steps_total") - before.get(node.node_id, 0)
        assert not long_steps, f"node {node.node_id}: {logged[logged.find(LOGGED) :][:4000]}"
