"""The network of a run: a namespace per node, joined by a bridge; the clients are on the bridge's side.

Addresses are 10.213.0.N for node N and 10.213.0.254 for the clients; they exist only in the run's own namespaces. A
fault is a set of packet filter rules at the receiver, a queueing discipline on a node's link, a link that is down, or
a relay in its place (tests/chaos/cable.py). `unshare --mount --net python -m tests.chaos.network` tries whether all of
it works on this machine.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.cable import switch_offloads_off

CLIENT_HOST: Final = "10.213.0.254"
_NETNS: Final = Path("/run/netns")
_BRIDGE_ADDRESS: Final = "02:4b:4d:51:00:fe"
_TABLE: Final = "inet keelmq_chaos"


def host_of(node_id: int) -> str:
    return f"10.213.0.{node_id}"


class Network:
    """Owns the network. Make it inside the run's own namespaces (tests/chaos/isolation.py)."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self.node_ids = list(node_ids)
        self._rules: dict[str, dict[int, list[str]]] = {}  # by fault, by node
        self._locks = {node_id: asyncio.Lock() for node_id in node_ids}
        # `ip netns` needs a directory; a file system of our own, so that no name is left behind.
        _NETNS.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(_NETNS))
        _run("ip", "link", "set", "lo", "up")
        # A bridge without an address of its own would take the lowest of its ports', which come and go.
        _run("ip", "link", "add", "bridge", "address", _BRIDGE_ADDRESS, "type", "bridge")
        _run("ip", "address", "add", f"{CLIENT_HOST}/24", "dev", "bridge")
        _run("ip", "link", "set", "bridge", "up")
        for node_id in node_ids:
            space, link = f"node{node_id}", f"link{node_id}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", f"end{node_id}")
            switch_offloads_off(f"end{node_id}")  # a relay can carry only whole packets (tests/chaos/cable.py)
            _run("ip", "link", "set", f"end{node_id}", "netns", space, "name", "eth0")
            _run("ip", "link", "set", link, "master", "bridge", "up")
            _run("ip", "-n", space, "address", "add", f"{host_of(node_id)}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def prefix(self, node_id: int) -> list[str]:
        """Return a command prefix that runs a program in the namespace of node `node_id`."""
        return ["nsenter", f"--net={_NETNS}/node{node_id}"]

    async def drop(self, fault: str, at: int, sources: Collection[str]) -> None:
        """Drop all packets from these hosts at node `at`, until the fault is removed."""
        await self.rules(fault, at, [f"ip saddr {{ {', '.join(sorted(sources))} }} drop"])

    async def rules(self, fault: str, at: int, rules: list[str]) -> None:
        """Add input rules at one node; they belong to `fault`."""
        self._rules.setdefault(fault, {}).setdefault(at, []).extend(rules)
        await self._load(at)

    async def remove(self, fault: str) -> None:
        """Take back all rules of a fault, everywhere."""
        for node_id in self._rules.pop(fault, {}):
            await self._load(node_id)

    async def link(self, node_id: int, up: bool) -> None:
        await _run_async("ip", "link", "set", f"link{node_id}", "up" if up else "down")

    async def slow(self, node_id: int, kbit_per_s: int, queue_ms: int) -> None:
        """Put a bottleneck before the node: this rate and at most this queue delay; excess packets are lost."""
        shape = ("tbf", "rate", f"{kbit_per_s}kbit", "burst", "16kb", "latency", f"{queue_ms}ms")
        await _run_async("tc", "qdisc", "replace", "dev", f"link{node_id}", "root", *shape)

    async def fast(self, node_id: int) -> None:
        await _run_async("tc", "qdisc", "delete", "dev", f"link{node_id}", "root")

    async def _load(self, node_id: int) -> None:
        async with self._locks[node_id]:
            rules = [rule for by_node in self._rules.values() for rule in by_node.get(node_id, ())]
            # One transaction: there is no moment with half of the rules.
            chain = ["type filter hook input priority 0; policy accept;", *rules]
            script = f"table {_TABLE} {{}}\ndelete table {_TABLE}\n"
            script += f"table {_TABLE} {{\nchain input {{\n{chr(10).join(chain)}\n}}\n}}\n"
            await _run_async(*self.prefix(node_id), "nft", "-f", "-", text=script)


async def rehearse() -> None:
    """Try once everything that a run may ask of the machine. Raises RuntimeError with what does not work."""
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()  # for relays
    network = Network([1])
    await network.drop("rehearsal", 1, [CLIENT_HOST])
    await network.remove("rehearsal")
    await network.slow(1, kbit_per_s=1_000, queue_ms=100)
    await network.fast(1)
    await network.link(1, up=False)


def _run(*command: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command)}: {found.stderr.strip()}")


async def _run_async(*command: str, text: str | None = None) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL if text is None else pipe,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=pipe,
    )
    _, errors = await process.communicate(None if text is None else text.encode())
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors.decode(errors='replace').strip()}")


if __name__ == "__main__":
    try:
        asyncio.run(rehearse())
    except (RuntimeError, OSError) as error:
        sys.exit(str(error))
