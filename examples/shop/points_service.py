"""The points service: adds a point per yuan for every paid order, exactly once.

    python -m examples.shop.points_service --nodes http://127.0.0.1:7081 --topic shop-orders --database points.db

It is safe because `inbox.first_time` is part of the database transaction that adds the points. If this process dies
before it commits the offset of a processed message, the message is redelivered, and the inbox recognizes it.
"""

import argparse
import asyncio
import json
import logging
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, text

from examples.shop.crash_point import crash_point
from keelmq import Consumer, ReceivedMessage, inbox, sql

GROUP = "points-service"
SESSION_TIMEOUT_MS = 6_000  # time without a heartbeat after which the queues of a dead process go to others
SCHEMA = Path(__file__).with_name("points.sql")
ADD_POINTS = text(
    "INSERT INTO points (account, points) VALUES (:account, :yuan) "
    "ON CONFLICT (account) DO UPDATE SET points = points + :yuan"
)
NOTE_IN_LEDGER = text("INSERT INTO ledger (order_id, account, points) VALUES (:order_id, :account, :yuan)")

log = logging.getLogger("points-service")


async def serve(engine: Engine, nodes: list[str], topic: str, stop: asyncio.Event) -> None:
    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        for number, message in enumerate(messages):
            crash_point("message", when=number > 0)
            await sql.run(engine, partial(add_points, message))

    # "earliest": points for orders that were paid before this group ever ran are due as well.
    async with Consumer(
        nodes, GROUP, topic, batch_handler=handle, start="earliest", session_timeout_ms=SESSION_TIMEOUT_MS
    ):
        await stop.wait()


def add_points(message: ReceivedMessage, db: Connection) -> None:
    """Remember the message and add its points in one database transaction."""
    if not inbox.first_time(db, GROUP, message):
        log.info("%s came again", message.message_id)
        return
    order = json.loads(message.body)
    db.execute(ADD_POINTS, order)
    db.execute(NOTE_IN_LEDGER, order)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", required=True, help="URLs of the broker's nodes, separated by commas")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", required=True, type=Path)
    settings = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with closing(sqlite3.connect(settings.database)) as db:
        db.executescript(SCHEMA.read_text())
    engine = create_engine(f"sqlite:///{settings.database}", connect_args={"timeout": 30})
    inbox.create_tables(engine)
    await serve(engine, settings.nodes.split(","), settings.topic, stop)


if __name__ == "__main__":
    asyncio.run(main())
