"""A client that goes away while its answer is written causes no report: there is nobody to tell."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from cluster.http.app import make_application
from cluster.http.routes import TEXT, Route
from cluster.security.access import PUBLIC
from tests.unit.cluster.conftest import Node


async def test_writing_to_a_client_that_is_gone_leaves_no_trace(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Found by chaos (seed 11): a check was handed over at the moment its producer died."""
    over = asyncio.Event()

    async def write_too_late(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        response = web.Response(body=b"too late")
        try:
            await response.prepare(request)
            await response.write_eof()
        finally:
            over.set()
        return response

    route = Route("GET", "/late", write_too_late, "late", {200: {TEXT: None}}, PUBLIC)
    runner = web.AppRunner(make_application(node.core, [route]))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{host}:{port}/late")
        await over.wait()
    finally:
        await runner.cleanup()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
