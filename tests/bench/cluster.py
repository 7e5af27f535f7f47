"""The benchmark's cluster: three keelmqd processes, their memory and the size of their logs."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from deploy.local_nodes import LocalNode, nodes_on_free_ports, wait_ready

NODES: Final = 3
MEMORY_SAMPLE_S: Final = 0.25
READY_POLL_S: Final = 0.01
MIB: Final = 1 << 20


class BenchCluster:
    def __init__(self, directory: Path, options: Mapping[str, str] | None = None) -> None:
        self.nodes = nodes_on_free_ports(directory, NODES, options)
        self.urls = [node.url for node in self.nodes]

    def start(self) -> None:
        """Start the nodes; they are ready on return."""
        for node in self.nodes:
            node.start()
        wait_ready(self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

    async def call(self, http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the first node; return the answer. Redirects are followed."""
        async with http.request(method, self.urls[0] + path, json=body) as response:
            return await response.json()

    def resident_mib(self) -> float:
        """Resident memory of the largest node now."""
        return max(resident_bytes(node) for node in self.nodes) / MIB

    @contextlib.asynccontextmanager
    async def watch_memory(self) -> AsyncIterator[list[float]]:
        """Yield a list that grows by samples of `resident_mib` within the block."""
        samples: list[float] = [self.resident_mib()]

        async def sample() -> None:
            while True:
                await asyncio.sleep(MEMORY_SAMPLE_S)
                samples.append(self.resident_mib())

        sampler = asyncio.create_task(sample())
        try:
            yield samples
        finally:
            sampler.cancel()

    def log_bytes(self) -> int:
        """Return the length of the shortest node's log, to the beginning of its newest segment (its name)."""
        return min(max(int(segment.stem) for segment in (node.data_dir / "log").glob("*.log")) for node in self.nodes)

    def restart_s(self, node: LocalNode) -> float:
        """Kill the node with SIGKILL and start it; return the seconds from the start until it is ready."""
        node.kill()
        started = time.perf_counter()
        node.start()
        while node.not_ready() is not None:
            time.sleep(READY_POLL_S)
        return time.perf_counter() - started


def resident_bytes(node: LocalNode) -> int:
    for line in Path(f"/proc/{node.running_pid()}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"node {node.node_id} has no resident memory: it ended")


def processor_s(node: LocalNode) -> float:
    """Return the processor time in seconds of the node's process until now."""
    fields = Path(f"/proc/{node.running_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
