"""NATS JetStream: streams with three replicas on disk, which are synced every two minutes or with each message."""

from collections.abc import Sequence
from typing import ClassVar

from deploy.broker_process import HOST
from deploy.local_nodes import free_ports
from tests.bench.peers.peer import NODES, Cluster, Variant, wait_for_port

_CONFIG = """server_name: n{number}
listen: "{host}:{port}"
jetstream {{ store_dir: "{store}", max_memory_store: 1GB, max_file_store: 16GB{sync} }}
cluster {{ name: bench, listen: "{host}:{peer}", routes: [{routes}] }}
"""


class NatsCluster(Cluster):
    variants: ClassVar[Sequence[Variant]] = (Variant("nats", "NATS default"),)
    sync: ClassVar[str] = ""

    def fetch(self) -> None:
        self._server = self.cache.nats_server()
        self._load = self.cache.nats_load()

    def launch(self) -> None:
        ports, peers = free_ports(NODES), free_ports(NODES)
        routes = ", ".join(f'"nats-route://{HOST}:{peer}"' for peer in peers)
        for number, (port, peer) in enumerate(zip(ports, peers, strict=True), start=1):
            config = self.directory / f"n{number}.conf"
            config.write_text(
                _CONFIG.format(
                    number=number,
                    host=HOST,
                    port=port,
                    peer=peer,
                    store=self.directory / f"n{number}",
                    sync=self.sync,
                    routes=routes,
                )
            )
            self.start_server(f"n{number}", [self._server, "-c", config])
        for port in ports:
            wait_for_port(port)
        self.start_client([self._load, ",".join(f"nats://{HOST}:{port}" for port in ports)])


class NatsAlwaysCluster(NatsCluster):
    variants: ClassVar[Sequence[Variant]] = (Variant("nats-always", "NATS sync always"),)
    sync: ClassVar[str] = ", sync_interval: always"
