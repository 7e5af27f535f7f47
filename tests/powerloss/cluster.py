"""Three nodes, each on its own disk, whose power can be cut."""

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.powerloss.damage import LiveTail, live_tail
from tests.powerloss.images import Filesystem, NodeDisk

# Outside the range of ports for outgoing connections: no program in the run's network namespace can take them.
_FIRST_PORT: Final = 7081
_OPTIONS: Final = (
    *("--election-timeout-ms", "200", "--heartbeat-ms", "40"),
    *("--check-immunity-ms", "1000", "--check-interval-ms", "1000"),
)
_STATES_OF_STOPPED: Final = frozenset("TtZX")


class PowerCluster:
    """Owns the node processes and, under each node's data directory, its disk. `options` are the nodes' options."""

    def __init__(
        self,
        directory: Path,
        filesystems: Mapping[int, Filesystem],
        options: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self.disks = {
            node_id: NodeDisk(directory, f"node{node_id}", filesystem) for node_id, filesystem in filesystems.items()
        }
        ports = range(_FIRST_PORT, _FIRST_PORT + 2 * len(filesystems))
        self.processes = ClusterProcess(
            directory, len(filesystems), options=(*_OPTIONS, *options), environment=environment, ports=ports
        )
        self.nodes = self.processes.nodes

    def make_disks(self) -> None:
        for disk in self.disks.values():
            disk.make()
            disk.mount()

    def cut_power(
        self, victims: Iterable[int], *, freeze_first: bool, flush_journal: bool, drain_s: float
    ) -> dict[int, LiveTail | None]:
        """Cut the victims' power: their disks keep their content, the processes are killed, the file systems unmounted.

        Returns the page cache's content of each victim's last segment, if the victim was frozen first. A victim that
        is not frozen runs on for `drain_s` with a disk that takes nothing.
        """
        nodes = [self.nodes[node_id] for node_id in victims]
        tails: dict[int, LiveTail | None] = {}
        if freeze_first:
            for node in nodes:
                node.pause()
            for node in nodes:
                _wait_frozen(node)
                tails[node.node_id] = live_tail(node.data_dir)
        for node in nodes:
            self.disks[node.node_id].cut_power(flush_journal=flush_journal)
        if not freeze_first:
            time.sleep(drain_s)
        for node in nodes:
            node.kill()
            self.disks[node.node_id].unmount()
        return tails

    def restore_power(self, victims: Iterable[int]) -> None:
        """Mount the victims' file systems again; the nodes are not started yet."""
        for node_id in victims:
            self.disks[node_id].mount()

    def discard(self) -> None:
        """Stop all nodes, unmount all disks, and remove the images and the nodes' logs."""
        self.processes.stop()
        for disk in self.disks.values():
            disk.discard()
        for node in self.nodes.values():
            node.log_path.unlink(missing_ok=True)

    def ask_to_stop(self, victims: Iterable[int]) -> None:
        for node_id in victims:
            self.nodes[node_id].send_signal(signal.SIGTERM)


def _wait_frozen(node: NodeProcess) -> None:
    """Wait until no thread of the node runs: a thread in the middle of an fsync finishes it first."""
    tasks = Path(f"/proc/{node.pid}/task")

    def frozen() -> bool:
        try:
            return all(
                (task / "stat").read_text().rpartition(")")[2].split()[0] in _STATES_OF_STOPPED
                for task in tasks.iterdir()
            )
        except (FileNotFoundError, ProcessLookupError):  # it has ended by itself
            return not node.running()

    wait_for(frozen, f"node {node.node_id} to be stopped")
