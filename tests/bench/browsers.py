"""Browsers on a view of the console: they ask for what the page asks for, when the page asks for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from deploy.local_nodes import LocalNode
from tests.bench.cluster import processor_s

DRAWN_S: Final = 5.0
"""Time after which the page draws a view anew (cluster/console/page/main.js)."""
TAKEN: Final = "Cache-Control: max-age=2\r\n"
"""The page takes answers that are so old when it draws a view anew."""
ANEW: Final = ""
"""A page that wants each answer made for it sends nothing."""
TOPIC, GROUP = "bench-consoles", "bench-consoles-group"
VIEWS: Final[Mapping[str, Sequence[str]]] = {
    "overview": ("/v1/cluster", "/v1/cluster/counters", "/v1/lags?order=lag&limit=10"),
    "topic": (
        f"/v1/topics/{TOPIC}",
        f"/v1/principal?resource=topic%3A{TOPIC}",
        f"/v1/lags?topic={TOPIC}&limit=20",
        f"/v1/topics/{TOPIC}/scheduled?limit=50",
    ),
    "group": (
        f"/v1/groups/{GROUP}",
        f"/v1/principal?resource=group%3A{GROUP}",
        f"/v1/groups/{GROUP}/offsets?waits=true",
        f"/v1/groups/{GROUP}/dead-letters?limit=50",
    ),
    "transactions": ("/v1/transactions?state=prepared&limit=100",),
    "audit": ("/v1/audit?limit=100", "/v1/cluster"),
}
"""Requests of each view that is drawn anew by itself."""


class Browser:
    """One connection that is kept, as a browser keeps it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Browser":
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    def close(self) -> None:
        self._writer.close()

    async def draw(self, view: str, taken: str = TAKEN) -> None:
        """Ask for all that the view shows; `taken` are headers. Raises RuntimeError for an answer that is an error."""
        for path in VIEWS[view]:
            self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{taken}\r\n".encode())
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            await self._reader.readexactly(int(fields.get(b"content-length", b"0")))
            if status != 200:
                raise RuntimeError(f"{path} was answered with {status}")


@contextlib.asynccontextmanager
async def browsers(url: str, count: int, view: str, taken: str = TAKEN) -> AsyncIterator[None]:
    """Have so many browsers show the view within the block, each from another moment on."""

    async def show(number: int) -> None:
        browser = await Browser.open(url)
        try:
            await asyncio.sleep(DRAWN_S * number / count)
            while True:
                await browser.draw(view, taken)
                await asyncio.sleep(DRAWN_S)
        finally:
            browser.close()

    tasks = [asyncio.create_task(show(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, asyncio.CancelledError):
                raise ended


async def cost_ms(node: LocalNode, view: str, draws: int, taken: str) -> float:
    """Return milliseconds of the node's processor for drawing the view once."""
    browser = await Browser.open(node.url)
    try:
        await browser.draw(view, taken)
        begun_s = processor_s(node)
        for _ in range(draws):
            await browser.draw(view, taken)
        return 1_000 * (processor_s(node) - begun_s) / draws
    finally:
        browser.close()
