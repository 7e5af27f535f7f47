"""Runs members of a consumer group in a process of their own: `python -m tests.bench.member URLS …`.

With `--trace`, each handler call prints a line: the queue and the Unix time in ms.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence

import keelmq
from tests.bench.load import CONSUMER_BATCH


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", help="URLs of all nodes, separated by commas")
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--session-timeout-ms", type=int, default=30_000)
    parser.add_argument("--trace", action="store_true")
    settings = parser.parse_args()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def handle(messages: Sequence[keelmq.ReceivedMessage]) -> None:
        if settings.trace:
            sys.stdout.write(f"{messages[0].queue} {time.time_ns() // 1_000_000}\n")
            sys.stdout.flush()

    consumers = [
        keelmq.Consumer(
            settings.urls,
            settings.group,
            settings.topic,
            batch_handler=handle,
            max_messages=CONSUMER_BATCH,
            start="earliest",
            concurrency=4,
            session_timeout_ms=settings.session_timeout_ms,
        )
        for _ in range(settings.members)
    ]
    for consumer in consumers:
        await consumer.start()
    await stop.wait()
    await asyncio.gather(*(consumer.close() for consumer in consumers))


if __name__ == "__main__":
    asyncio.run(main())
