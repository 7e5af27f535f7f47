"""A server that does as little as a server can: `python -m tests.bench.sink` prints its port, and ends with its input.

Attacked instead of a node, it says what the attacker alone costs a machine that the nodes share with it. It takes
everything, answers a `POST` once its body is there, and nothing else.
"""

import asyncio
import re
import sys
from typing import Final

import uvloop

CONTENT_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BACKLOG: Final = 1_024


class Sink(asyncio.Protocol):
    def __init__(self) -> None:
        self._left_bytes = 0
        """Of a body that is under way."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._left_bytes:
            self._left_bytes -= len(data)
        elif data.startswith(b"POST ") and (length := CONTENT_LENGTH.search(data)):
            self._left_bytes = int(length[1]) - (len(data) - data.index(b"\r\n\r\n") - 4)
        else:
            return
        if self._left_bytes <= 0:
            self._left_bytes = 0
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
