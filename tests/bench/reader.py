"""A consumer that reads a topic from its start, again and again: `python -m tests.bench.reader URL TOPIC QUEUES LOGS…`.

In a process of its own, and as cheap as can be: it looks into nothing it reads. Before each round over the topic what
the operating system remembers of the segments in the directories LOGS is dropped, so that they come from the disk. It
prints a line when it begins to read, and on SIGTERM how many bytes it got in how many seconds.
"""

import argparse
import http.client
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

PULL_BYTES: Final = 4 * 1024 * 1024
"""What a consumer of the SDK asks for at a time."""
PULL_MESSAGES: Final = 10_000


class Place(msgspec.Struct):
    """What of a page is looked at."""

    next_offset: int
    max_offset: int


_decode = msgspec.msgpack.Decoder(Place).decode


def forget_pages(logs: list[Path]) -> None:
    """Drop what the operating system holds of the segments in memory."""
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
    """The bytes of each page of the queue, to its end."""
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


class Stopped(Exception):
    """SIGTERM."""


def stop(*_: object) -> None:
    raise Stopped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("topic")
    parser.add_argument("queues", type=int)
    parser.add_argument("logs", type=Path, nargs="*")
    settings = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    size_bytes = 0
    forget_pages(settings.logs)
    print("reading", flush=True)
    begun_s = time.perf_counter()
    try:
        while True:
            for queue in range(settings.queues):
                for page_bytes in pages(settings.url, settings.topic, queue):
                    size_bytes += page_bytes
            forget_pages(settings.logs)
    except Stopped:
        print(size_bytes, time.perf_counter() - begun_s)
        sys.exit(0)


if __name__ == "__main__":
    main()
