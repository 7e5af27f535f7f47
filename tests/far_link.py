"""A far link between real processes, in user space: a TCP relay whose bytes arrive a fixed time after they were sent.

It runs in a process of its own, so that it takes no turn of the loops at its ends. Nothing is lost and the bandwidth is
that of loopback.
"""

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self, cast

import uvloop

READY = b"ready\n"


class FarLink:
    """A context manager: while it is entered, connections to one of the ports reach the port that it stands for.

    `targets` are ports of loopback by the ports of loopback to listen on; `one_way_ms` passes in each direction.
    """

    def __init__(self, targets: Mapping[int, int], one_way_ms: float) -> None:
        pairs = [f"{port}={target}" for port, target in targets.items()]
        self._command = [sys.executable, "-m", "tests.far_link", str(one_way_ms), *pairs]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != READY:
            raise RuntimeError("the far link did not start")
        return self

    @property
    def pid(self) -> int:
        """Process id of the entered link."""
        assert self._process is not None
        return self._process.pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.communicate()  # it ends when its standard input does


class _End(asyncio.Protocol):
    """One end of a relayed connection. Received bytes leave at the other end `one_way_s` later."""

    def __init__(self, one_way_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._one_way_s = one_way_s
        self._under_way: deque[bytes | None] = deque()  # None is the end of the connection
        self._late = 0
        """Number of those under way that are due, and wait for the other end."""
        self._other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def join(self, other: "_End") -> None:
        """Relay to `other` from now on, and at once what is due."""
        self._other = other
        late, self._late = self._late, 0
        for _ in range(late):
            self._arrive()

    def data_received(self, data: bytes) -> None:
        self._send(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._send(None)

    def _send(self, data: bytes | None) -> None:
        self._under_way.append(data)  # timers of one moment may run in any order: each takes what is next
        self._loop.call_later(self._one_way_s, self._arrive)

    def _arrive(self) -> None:
        if self._other is None:
            self._late += 1
            return
        data = self._under_way.popleft()
        if self._other.transport is None or self._other.transport.is_closing():
            return
        if data is None:
            self._other.transport.close()
        else:
            self._other.transport.write(data)


class _NearEnd(_End):
    """The end that the client sees. It connects to the target; what is due there meanwhile waits. (Not in the socket:
    uvloop reads after `connection_made`, even if that has paused reading.)
    """

    def __init__(self, one_way_s: float, target_port: int) -> None:
        super().__init__(one_way_s)
        self._target_port = target_port
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        try:
            _, far = await self._loop.create_connection(lambda: _End(self._one_way_s), "127.0.0.1", self._target_port)
        except OSError:
            self.transport.abort()
            return
        self.join(far)
        far.join(self)


async def _relay(one_way_s: float, targets: Mapping[int, int]) -> None:
    loop = asyncio.get_running_loop()
    for port, target in targets.items():
        await loop.create_server(lambda target=target: _NearEnd(one_way_s, target), "127.0.0.1", port)  # type: ignore[misc]
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    await asyncio.to_thread(sys.stdin.buffer.read)


def main() -> None:
    one_way_ms, *pairs = sys.argv[1:]
    targets = {int(port): int(target) for port, _, target in (pair.partition("=") for pair in pairs)}
    uvloop.run(_relay(float(one_way_ms) / 1000, targets))


if __name__ == "__main__":
    main()
