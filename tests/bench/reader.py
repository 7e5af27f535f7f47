"""Consumes a topic from its start, again and again: `python -m tests.bench.reader URL TOPIC QUEUES LOGS…`.

The reader runs in a process of its own and is as cheap as possible: it does not decode the messages. With `--sdk` it
reads as the SDK's consumers do, messages and all, at `followers` or at the `leader`; URL then names all nodes,
separated by commas. Before each round over the topic it drops the operating system's cache of the segments in the
directories LOGS, so that they come from the disk. It prints a line when it begins to read, and on SIGTERM the number
of bytes and of seconds.
"""

import argparse
import asyncio
import http.client
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from keelmq.consuming.queue_pages import QueuePages
from keelmq.consuming.selection import EVERYTHING
from keelmq.transport.connection import Connection

PULL_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a consumer of the SDK asks for at a time."""
PULL_MESSAGES: Final = 10_000


class Place(msgspec.Struct):
    """The decoded fields of a page."""

    next_offset: int
    max_offset: int


_decode = msgspec.msgpack.Decoder(Place).decode


def forget_pages(logs: list[Path]) -> None:
    """Drop the segments from the operating system's cache."""
    for path in (segment for log in logs for segment in log.glob("*.log")):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # removed meanwhile
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def pages(url: str, topic: str, queue: int) -> Iterator[int]:
    """Yield the bytes of each page of the queue, to its end."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    offset = 0
    while True:
        connection.request(
            "GET",
            f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages={PULL_MESSAGES}"
            f"&max_bytes={PULL_BYTES}",
            headers={"Accept": "application/msgpack"},
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {body[:200]!r}")
        place = _decode(body)
        yield len(body)
        offset = place.next_offset
        if offset >= place.max_offset:
            break
    connection.close()


async def sdk_pages(urls: str, topic: str, queue: int, *, follower_reads: bool) -> AsyncIterator[int]:
    """Yield the bytes of the messages of each page of the queue, to its end; the SDK chooses the node of each page."""
    connection = Connection(urls)
    pages, offset = QueuePages(connection, (topic, queue), follower_reads=follower_reads), 0
    try:
        while True:
            pulled = await pages.next(
                offset, max_messages=PULL_MESSAGES, max_bytes=PULL_BYTES, wait_ms=0, selection=EVERYTHING
            )
            yield sum(len(message.body) for message in pulled.messages)
            if not pulled.messages:
                break
            offset = pulled.next_offset
    finally:
        connection.close()


def sizes(loop: asyncio.AbstractEventLoop, settings: argparse.Namespace) -> Iterator[int]:
    """Yield the bytes of one page after the other, for ever."""
    while True:
        for queue in range(settings.queues):
            place = (settings.url, settings.topic, queue)
            if not settings.sdk:
                yield from pages(*place)
                continue
            of_sdk = sdk_pages(*place, follower_reads=settings.sdk == "followers")
            while (size_bytes := loop.run_until_complete(anext(of_sdk, None))) is not None:
                yield size_bytes
        forget_pages(settings.logs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("queues", type=int)
    parser.add_argument("logs", type=Path, nargs="*")
    parser.add_argument("--sdk", choices=("followers", "leader"))
    settings = parser.parse_args()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    forget_pages(settings.logs)
    print("reading", flush=True)
    size_bytes, begun_s = 0, time.perf_counter()
    for page_bytes in sizes(asyncio.new_event_loop(), settings):
        size_bytes += page_bytes
        if stopped.is_set():
            break
    print(size_bytes, time.perf_counter() - begun_s)


if __name__ == "__main__":
    main()
