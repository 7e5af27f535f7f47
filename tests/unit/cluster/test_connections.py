"""More connections than a node may hold: the ones it has go on, further ones end at once, and room comes back."""

import asyncio

from cluster.connections import ConnectionLimit
from tests.patience import PATIENCE_S


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def test_connections_beyond_the_limit_are_closed_and_room_comes_back() -> None:
    limit = ConnectionLimit(Echo, 2)
    server = await asyncio.get_running_loop().create_server(limit, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def echoes() -> asyncio.StreamWriter | None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"x")
            if await reader.read(1) == b"x":
                return writer
        except ConnectionError:
            pass
        writer.close()
        return None

    async with server, asyncio.timeout(PATIENCE_S):
        first, second = await echoes(), await echoes()
        assert first is not None
        assert second is not None
        assert await echoes() is None
        assert limit.open == 2
        first.close()
        while limit.open == 2:
            await asyncio.sleep(0)
        again = await echoes()
        assert again is not None
        again.close()
        second.close()
