"""RabbitMQ: quorum queues on three nodes, with publisher confirms."""

import os
from collections.abc import Sequence
from typing import ClassVar, Final

from deploy.broker_process import HOST
from deploy.local_nodes import free_ports
from tests.bench.peers import fetch
from tests.bench.peers.peer import NODES, Cluster, Variant, wait_for_port

_PAUSES_MAX_S: Final = 36_000
"""Longest silence of a node that the others take for a pause of all."""
_CONFIG: Final = """listeners.tcp.1 = {host}:{port}
cluster_formation.peer_discovery_backend = classic_config
{nodes}
cluster_partition_handling = ignore
disk_free_limit.absolute = 500MB
heartbeat = 0
log.file.level = warning
"""


class RabbitCluster(Cluster):
    variants: ClassVar[Sequence[Variant]] = (Variant("rabbitmq", "RabbitMQ quorum queues"),)
    preheat_s: ClassVar[float] = 8.0

    def fetch(self) -> None:
        self._unpacked = self.cache.rabbitmq()
        jars = self.cache.jars(f"perf-test-{fetch.PERF_TEST}", [("com.rabbitmq", "perf-test", fetch.PERF_TEST)])
        self._class_path = f"{self.cache.java_load('RabbitLoad', jars)}:{jars}/*"

    def launch(self) -> None:
        ports, distribution, [epmd] = free_ports(NODES), free_ports(NODES), free_ports(1)
        programs = self._unpacked / "bin"
        names = [f"bench{number}@localhost" for number in range(1, NODES + 1)]
        nodes = "\n".join(f"cluster_formation.classic_config.nodes.{n} = {name}" for n, name in enumerate(names, 1))
        common = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": HOST,
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then becomes the server instead of watching it
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel net_ticktime {_PAUSES_MAX_S}",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "none"),
        }
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text("BENCH")
        cookie.chmod(0o400)
        self.start_server("epmd", [programs / "epmd", "-port", str(epmd), "-address", HOST])
        wait_for_port(epmd)
        server = fetch.rabbitmq_home(self._unpacked) / "sbin/rabbitmq-server"
        for name, port, peer in zip(names, ports, distribution, strict=True):
            short = name.partition("@")[0]
            config = self.directory / f"{short}.conf"
            config.write_text(_CONFIG.format(host=HOST, port=port, nodes=nodes))
            own = {
                "RABBITMQ_NODENAME": name,
                "RABBITMQ_NODE_PORT": str(port),
                "RABBITMQ_DIST_PORT": str(peer),
                "RABBITMQ_MNESIA_BASE": str(self.directory / short),
                "RABBITMQ_LOG_BASE": str(self.directory / short),
                "RABBITMQ_PID_FILE": str(self.directory / f"{short}.pid"),
                "RABBITMQ_CONFIG_FILE": str(config),
            }
            self.start_server(short, [server], common | own)
        for port in ports:
            wait_for_port(port)
        self.start_client(["java", "-Xmx1g", "-cp", self._class_path, "RabbitLoad", *map(str, ports)])
