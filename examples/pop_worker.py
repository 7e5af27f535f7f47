"""A stateless worker: run as many of them as there is work, whatever the number of queues.

    python -m examples.pop_worker orders shippers --servers http://127.0.0.1:7081

Run it several times. Messages are handed out one by one; a killed worker loses nothing, because its messages are
redelivered to another worker. SIGTERM lets running handlers end.
"""

import argparse
import asyncio

from keelmq import PopConsumer, ReceivedMessage
from keelmq.printable import one_line


async def ship(message: ReceivedMessage) -> None:
    """Process a message. Raising an exception gives it back for redelivery after the group's backoff."""
    again = f", attempt {message.attempt}" if message.attempt else ""
    print(f"shipped {one_line(message.body.decode())}{again}", flush=True)  # no body controls the terminal


async def main(topic: str, group: str, servers: str) -> None:
    worker = PopConsumer(ship, topic=topic, group=group, servers=servers, concurrency=16)
    await worker.run()  # SIGTERM and Ctrl-C close it


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take messages as a pop consumer.")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--servers", default="http://127.0.0.1:7081")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.topic, arguments.group, arguments.servers))
