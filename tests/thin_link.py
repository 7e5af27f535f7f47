"""Slow links between real processes, in user space: a TCP relay that passes `bytes_per_s` at most to its target.

All connections share the rate, as they would share a cable; the way back is quick. Little is buffered on the way, so
whoever sends too much keeps it.
"""

import asyncio
import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

from tests.stream_server import stream_server

CHUNK_BYTES: Final = 8 * 1024
BUFFER_BYTES: Final = 32 * 1024


class ThinLink:
    """A context manager: while it is entered, connections to `port` of loopback reach `target_port`."""

    def __init__(self, port: int, target_port: int, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        """May be changed at any time."""
        self.carried_bytes = 0
        self._port, self._target_port = port, target_port
        self._free_at_s = 0.0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listening = socket.create_server(("127.0.0.1", self._port))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        async with stream_server(self._on_connection, sock=listening, limit=CHUNK_BYTES):
            self._ready.set()
            await self._stop.wait()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, target_writer, thin=True)),
            asyncio.create_task(self._pump(target_reader, writer, thin=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, target_writer):
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, thin: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if thin:
                    await self._pass(len(data))
                writer.write(data)
                await writer.drain()

    async def _pass(self, size_bytes: int) -> None:
        """Return when the cable has carried so much more."""
        now_s = self._loop.time()
        self._free_at_s = max(now_s, self._free_at_s) + size_bytes / self.bytes_per_s
        await asyncio.sleep(self._free_at_s - now_s)
        self.carried_bytes += size_bytes
