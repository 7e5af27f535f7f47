"""RocketMQ 5: a broker group of three, by DLedger, or as a synchronous master that flushes, with two slaves."""

from collections.abc import Sequence
from typing import ClassVar, Final

from deploy.broker_process import HOST
from deploy.local_nodes import free_ports
from tests.bench.peers import fetch
from tests.bench.peers.peer import NODES, Cluster, Variant, wait_for_port

_PAUSES_MAX_MS: Final = 36_000_000
"""Longest silence of a node that the others take for a pause of all."""
_JAVA: Final = (
    *("java", "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g"),
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
)
_NAME_SERVER: Final = """listenPort={port}
scanNotActiveBrokerInterval={pauses}
serverChannelMaxIdleTimeSeconds=36000
"""
_BROKER: Final = """brokerClusterName=peers
brokerName=peers0
brokerIP1={host}
namesrvAddr={name_server}
listenPort={port}
storePathRootDir={data}
storePathCommitLog={data}/commitlog
mappedFileSizeCommitLog=134217728
sendMessageThreadPoolNums=16
useReentrantLockWhenPutMessage=true
waitTimeMillsInSendQueue=30000
osPageCacheBusyTimeOutMills=30000
serverChannelMaxIdleTimeSeconds=36000
registerNameServerPeriod=10000
diskMaxUsedSpaceRatio=95
haListenPort={ha}
haHousekeepingInterval={pauses}
"""


class RocketCluster(Cluster):
    """The common part of both. Subclasses say how a node's role is configured."""

    preheat_s: ClassVar[float] = 30.0

    def fetch(self) -> None:
        artifacts = [("org.apache.rocketmq", f"rocketmq-{part}", fetch.ROCKETMQ) for part in _PARTS]
        jars = self.cache.jars(f"rocketmq-{fetch.ROCKETMQ}", artifacts)
        self._server_path = f"{jars}/*"
        self._class_path = f"{self.cache.java_load('RocketLoad', jars)}:{jars}/*"

    def role(self, node: int, peers: Sequence[int]) -> str:
        raise NotImplementedError

    def launch(self) -> None:
        [name_port], ports, ha, peers = free_ports(1), free_ports(NODES), free_ports(NODES), free_ports(NODES)
        name_server = f"{HOST}:{name_port}"
        home = {"ROCKETMQ_HOME": str(self.directory)}
        java = [*_JAVA, f"-Duser.home={self.directory}", "-cp", self._server_path]
        config = self.directory / "name-server.conf"
        config.write_text(_NAME_SERVER.format(port=name_port, pauses=_PAUSES_MAX_MS))
        self.start_server("name-server", [*java, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", config], home)
        wait_for_port(name_port)
        for node, port in enumerate(ports):
            data = self.directory / f"n{node}"
            config = self.directory / f"n{node}.conf"
            common = _BROKER.format(
                host=HOST, name_server=name_server, port=port, data=data, ha=ha[node], pauses=_PAUSES_MAX_MS
            )
            config.write_text(common + self.role(node, peers))
            # Brokers of one machine keep their logs and states below the home of their user.
            own = [*_JAVA, f"-Duser.home={data}", "-cp", self._server_path]
            self.start_server(f"n{node}", [*own, "org.apache.rocketmq.broker.BrokerStartup", "-c", config], home)
        for port in ports:
            wait_for_port(port)
        client = ["java", "-Xmx1g", f"-Duser.home={self.directory}", *_JAVA[6:], "-cp", self._class_path]
        self.start_client([*client, "RocketLoad", name_server])


class DledgerCluster(RocketCluster):
    variants: ClassVar[Sequence[Variant]] = (Variant("rocketmq-dledger", "RocketMQ DLedger"),)
    spent_after: ClassVar[str] = "transactions"  # its leader spins a core ever after (apache/rocketmq#10966)

    def role(self, node: int, peers: Sequence[int]) -> str:
        group = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(peers))
        lines = ("enableDLegerCommitLog=true", "dLegerGroup=bench", f"dLegerPeers={group}", f"dLegerSelfId=n{node}")
        return "\n".join((*lines, "preferredLeaderIds=n0", ""))


class RocketSyncCluster(RocketCluster):
    variants: ClassVar[Sequence[Variant]] = (Variant("rocketmq-sync", "RocketMQ SYNC_MASTER, SYNC_FLUSH"),)

    def role(self, node: int, peers: Sequence[int]) -> str:
        role = "SLAVE" if node else "SYNC_MASTER"
        return f"brokerId={node}\nbrokerRole={role}\nflushDiskType=SYNC_FLUSH\ninSyncReplicas=2\n"


_PARTS: Final = ("broker", "namesrv", "client", "tools")
