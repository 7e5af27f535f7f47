"""KeelMQ itself: three nodes of this tree with their defaults, and the SDK."""

import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from deploy.local_nodes import LocalNode, nodes_on_free_ports, wait_ready
from tests.bench.peers.peer import NODES, Cluster, Variant
from tests.bench.peers.processes import ROOT

KEELMQ: Final = "keelmq"


class KeelmqCluster(Cluster):
    variants: ClassVar[Sequence[Variant]] = (Variant(KEELMQ, "KeelMQ"),)

    _nodes: Sequence[LocalNode] = ()

    def launch(self) -> None:
        self._nodes = nodes = nodes_on_free_ports(self.directory, NODES)
        for node in nodes:
            node.start()
            self.adopt_server(node.pid)
        wait_ready(nodes)
        urls = ",".join(node.url for node in nodes)
        self.start_client([sys.executable, "-m", "tests.bench.peers.keelmq_load", urls], {"PYTHONPATH": str(ROOT)})

    def end(self) -> None:
        super().end()
        for node in self._nodes:
            node.kill()
