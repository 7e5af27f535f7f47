"""Bad cables between nodes and the bridge: during a fault, frames pass through a relay in user space.

The node's end of the cable leaves the bridge, and a second pair of interfaces takes its place; tests/chaos/relay.py
carries frames between the two. All of it lives in the run's own namespace and ends with the run's processes.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from tests.chaos.node import REPOSITORY, die_with_parent
from tests.chaos.relay import READY, Counts, Trouble
from tests.patience import PATIENCE_S

START_TIMEOUT_S: Final = PATIENCE_S
_SIOCETHTOOL: Final = 0x8946
# Of linux/ethtool.h: checksums, segmentation by TCP and in general, and their counterpart at the receiver.
_OFFLOADS: Final = (0x17, 0x1F, 0x24, 0x2C)


def switch_offloads_off(interface: str) -> None:
    """Make frames leave this interface as on a wire from now on: whole checksums, nothing longer than the MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFFLOADS:
            value = array.array("I", [command, 0])
            address, _ = value.buffer_info()
            fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sQ16x", interface.encode(), address))


class BadCables:
    """Owns the relay in the cables of some nodes: `lay` puts it in, `remove` takes it out again."""

    def __init__(self, node_ids: Sequence[int]) -> None:
        self._node_ids = list(node_ids)
        self._process: asyncio.subprocess.Process | None = None

    async def lay(self, trouble: Trouble, seed: str) -> None:
        """Put the relay in; the trouble has begun on return. After a failure, `remove` cleans up what is half done."""
        for node_id in self._node_ids:
            relay, port = _relay(node_id), _port(node_id)
            await _ip(f"link add {relay} type veth peer name {port}")
            switch_offloads_off(port)
            switch_offloads_off(relay)
            # Nobody but the relay answers what arrives at the loose ends.
            await _ip(f"link set {relay} arp off up\nlink set {port} up\nlink set {_link(node_id)} arp off")
        pairs = [f"{_link(node_id)}:{_relay(node_id)}" for node_id in self._node_ids]
        command = [*die_with_parent(), sys.executable, "-m", "tests.chaos.relay"]
        command += ["--trouble", msgspec.json.encode(trouble).decode(), "--seed", seed, *pairs]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=REPOSITORY, stdin=asyncio.subprocess.DEVNULL, stdout=pipe
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            if (await self._process.stdout.readline()).decode().strip() != READY:
                raise RuntimeError("the relay did not start")
        await _ip(
            "\n".join(
                f"link set {_link(node_id)} nomaster\nlink set {_port(node_id)} master bridge"
                for node_id in self._node_ids
            )
        )

    async def remove(self) -> Counts:
        """Take the relay out and return the counts of frames it changed; the cables are good again on return."""
        counts = await self._end_relay()
        for node_id in self._node_ids:
            with contextlib.suppress(RuntimeError):  # it was never made
                await _ip(f"link delete {_relay(node_id)}")
        await _ip("\n".join(f"link set {_link(node_id)} arp on master bridge" for node_id in self._node_ids))
        return counts

    async def _end_relay(self) -> Counts:
        if self._process is None:
            return Counts()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        printed, _ = await self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"the relay ended with {self._process.returncode}")
        return msgspec.json.decode(printed, type=Counts)


def _link(node_id: int) -> str:
    return f"link{node_id}"


def _relay(node_id: int) -> str:
    return f"relay{node_id}"


def _port(node_id: int) -> str:
    return f"port{node_id}"


async def _ip(commands: str) -> None:
    """Run several `ip` commands by one process, so that little time passes between them."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("ip", "-batch", "-", stdin=pipe, stderr=pipe)
    _, errors = await process.communicate(commands.encode() + b"\n")
    if process.returncode:
        raise RuntimeError(f"ip {commands}: {errors.decode(errors='replace').strip()}")
