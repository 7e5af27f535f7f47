"""The server of the tests leaves no connection behind, however it ends."""

import asyncio
import gc
import warnings

import pytest

from tests.stream_server import stream_server


async def wait_for_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize("turns", range(6))
def test_no_connection_is_left_when_the_loop_ends(turns: int) -> None:
    """Connections are accepted, or are about to be, when the server ends."""

    async def whole() -> None:
        async with stream_server(wait_for_more) as server:
            for _ in range(4):
                protocol = asyncio.Protocol
                port = server.sockets[0].getsockname()[1]
                transport, _ = await asyncio.get_running_loop().create_connection(protocol, "127.0.0.1", port)
                transport.close()
            for _ in range(turns):
                await asyncio.sleep(0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(whole())
        gc.collect()


async def test_an_error_of_the_server_is_raised() -> None:
    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise LookupError("a bug of the test")

    async def whole() -> None:
        async with stream_server(fails) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.close()
            await reader.read()

    with pytest.raises(ExceptionGroup, match="the server of the test failed"):
        await whole()
