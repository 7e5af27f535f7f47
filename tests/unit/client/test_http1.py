"""The HTTP client against real sockets: framing, reuse, and every way in which a peer can fail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from keelmq.transport import http1
from keelmq.transport.http1 import ConnectFailed, ExchangeFailed, HttpClient, HttpResponse, Origin
from tests.patience import PATIENCE_S
from tests.stream_server import Serve, stream_server

AGENT = http1.USER_AGENT.encode()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nok"


class Peer:
    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.connections = 0
        self.heads: list[bytes] = []
        self.client = HttpClient(connect_timeout_ms=1_000)

    async def get(self, timeout_s: float = 5.0, body: bytes = b"", method: str = "GET") -> HttpResponse:
        return await self.client.request(self.origin, method, "/x?a=1", "Accept: a/b\r\n", body, timeout_s)


@asynccontextmanager
async def peer(*answers: bytes | Serve) -> AsyncIterator[Peer]:
    """Run a server that gives `answers` in order on each connection (bytes are written after one request was read)."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            made.heads.append(head)
            if b"Content-Length: " in head:
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        await reader.read()

    async with stream_server(serve) as server:
        port = server.sockets[0].getsockname()[1]
        made = Peer(Origin.parse(f"http://127.0.0.1:{port}"))
        try:
            yield made
        finally:
            made.client.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_a_connection_is_used_again() -> None:
    async with peer(OK, OK, OK) as server:
        for _ in range(3):
            response = await server.get(body=b"abc", method="POST")
            assert response == HttpResponse(200, {"content-length": "2", "x-a": "1"}, b"ok")
        assert server.connections == 1
    host = server.origin.url.removeprefix("http://").encode()
    assert server.heads[0] == (
        b"POST /x?a=1 HTTP/1.1\r\nHost: " + host + b"\r\n" + AGENT + b"Accept: a/b\r\nContent-Length: 3\r\n\r\n"
    )


async def test_chunked_and_empty_and_early_hint_responses() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with peer(chunked, empty, hint + OK) as server:
        assert (await server.get()).body == b"abcde"
        assert await server.get() == HttpResponse(204, {}, b"")
        assert (await server.get()).body == b"ok"
        assert server.connections == 1


async def test_a_response_in_pieces() -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for position in range(len(OK)):
            writer.write(OK[position : position + 1])
            await writer.drain()

    async with peer(slowly) as server:
        assert (await server.get()).body == b"ok"


async def test_connection_close_is_respected() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    async with peer(closing) as server:
        await server.get()
        await server.get()
        assert server.connections == 2


async def test_an_answer_that_comes_too_late_is_never_taken_for_the_next_one() -> None:
    released = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")

    async with peer(late) as server:
        with pytest.raises(ExchangeFailed, match="no answer within"):
            await server.get(timeout_s=0.05)
        released.set()
        await server.get()
        assert server.connections == 2


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with peer(say_nothing) as server:
        request = asyncio.create_task(server.get())
        while not server.heads:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert not server.client._idle[server.origin]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (hang_up, "closed by the server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Big: " + b"a" * 70_000 + b"\r\n\r\n", "headers exceed"),
    ],
)
async def test_answers_that_are_no_answers(answer: bytes | Serve, reason: str) -> None:
    async with peer(answer) as server:
        with pytest.raises(ExchangeFailed, match=reason):
            await server.get()


async def test_a_response_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_RESPONSE_BYTES", 10)
    async with peer(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + b"x" * 11) as server:
        with pytest.raises(ExchangeFailed, match="exceeds 10 bytes"):
            await server.get()


async def test_half_an_answer_and_then_the_end() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK[:-1])
        writer.close()

    async with peer(half) as server:
        with pytest.raises(ExchangeFailed):
            await server.get()


@pytest.mark.parametrize("more", [OK, OK[:20], b"x"])
async def test_data_behind_an_answer_closes_the_connection(more: bytes) -> None:
    """The surplus bytes would otherwise be taken for the answer to the next request."""
    async with peer(OK + more) as server:
        assert (await server.get()).body == b"ok"
        assert (await server.get()).body == b"ok"
        assert server.connections == 2


async def test_data_on_an_idle_connection_closes_it() -> None:
    answered = asyncio.Event()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await answered.wait()
        writer.write(OK[:20])

    async with peer(chatty) as server:
        await server.get()
        (connection,) = server.client._idle[server.origin]
        answered.set()
        async with asyncio.timeout(PATIENCE_S):
            while connection.reusable:
                await asyncio.sleep(0)
        await server.get()
        assert server.connections == 2


@pytest.mark.parametrize("body", [b"", b"abc"])
async def test_nothing_is_sent_on_a_connection_that_is_closing(body: bytes) -> None:
    """The end of the stream was read, and `connection_lost` is still to be called."""
    async with peer(OK) as server:
        await server.get()
        (connection,) = server.client._idle[server.origin]
        assert connection._transport is not None
        connection._transport.close()
        assert (await server.get(body=body)).body == b"ok"
        assert server.connections == 2
        with pytest.raises(ExchangeFailed, match="closed by the server"):
            await connection.exchange(b"GET / HTTP/1.1\r\n\r\n", body, PATIENCE_S)


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    origin = Origin.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    server.close()
    await server.wait_closed()
    client = HttpClient(connect_timeout_ms=500)
    with pytest.raises(ConnectFailed, match=r"refused|Connect call failed"):
        await client.request(origin, "GET", "/", "", b"", 5.0)
    client.close()


async def test_forget_closes_idle_connections() -> None:
    async with peer(OK) as server:
        await server.get()
        server.client.forget(server.origin)
        await server.get()
        assert server.connections == 2
