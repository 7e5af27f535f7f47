"""Kafka: three combined KRaft nodes, replication 3, acks=all, two in sync; a topic as it is, one flushed each time."""

import base64
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from deploy.broker_process import HOST
from deploy.local_nodes import free_ports
from tests.bench.peers import fetch
from tests.bench.peers.client import LoadError
from tests.bench.peers.peer import NODES, Cluster, Variant, wait_for_port

_PAUSES_MAX_MS: Final = 36_000_000
"""Longest silence of a node that the others take for a pause of all."""
_FORMAT_TIMEOUT_S: Final = 60.0
_JAVA: Final = ("java", "-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_CONFIG: Final = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
broker.session.timeout.ms={pauses}
controller.quorum.fetch.timeout.ms={pauses}
replica.lag.time.max.ms={pauses}
"""


class KafkaCluster(Cluster):
    variants: ClassVar[Sequence[Variant]] = (
        Variant("kafka", "Kafka default", "default"),
        Variant("kafka-flushed", "Kafka flush.messages=1", "flushed"),
    )
    preheat_s: ClassVar[float] = 12.0

    def fetch(self) -> None:
        jars = self.cache.jars(f"kafka-{fetch.KAFKA}", [("org.apache.kafka", "kafka_2.13", fetch.KAFKA)])
        self._server_path = f"{jars}/*"
        self._class_path = f"{self.cache.java_load('KafkaLoad', jars)}:{jars}/*"

    def launch(self) -> None:
        ports, controllers = free_ports(NODES), free_ports(NODES)
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(controllers, start=1))
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), start=1):
            config = self.directory / f"n{number}.properties"
            config.write_text(
                _CONFIG.format(
                    number=number,
                    voters=voters,
                    host=HOST,
                    port=port,
                    controller=controller,
                    data=self.directory / f"n{number}",
                    pauses=_PAUSES_MAX_MS,
                )
            )
            self._format(config, cluster_id)
            self.start_server(f"n{number}", [*_JAVA, "-cp", self._server_path, "kafka.Kafka", config])
        for port in ports:
            wait_for_port(port)
        servers = ",".join(f"{HOST}:{port}" for port in ports)
        self.start_client(["java", "-Xmx1g", "-cp", self._class_path, "KafkaLoad", servers])

    def _format(self, config: Path, cluster_id: str) -> None:
        """Prepare a node's folder, as each node of Kafka wants it."""
        tool = ["java", "-cp", self._server_path, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]
        done = subprocess.run(
            [*tool, str(config)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S
        )
        if done.returncode:
            raise LoadError(f"Kafka could not prepare its folder: {(done.stdout + done.stderr)[-300:]}")
