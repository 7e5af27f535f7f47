"""Orders and shipments with SQLAlchemy's ORM: the outbox on one side, the inbox for whole batches on the other.

    python -m examples.sqlalchemy_orm place --nodes http://127.0.0.1:7081 --database sqlite:///orders.db --orders 100
    python -m examples.sqlalchemy_orm ship --nodes http://127.0.0.1:7081 --database sqlite:///shipments.db

`place` takes articles from the stock and publishes the order in one step; it may be killed and started again, and
places each order once. `ship` writes the shipments of up to 100 orders in one database transaction, exactly once each,
even if the orders are delivered repeatedly. Databases may be PostgreSQL as well (`postgresql+psycopg://…`).
"""

import argparse
import asyncio
import json
import logging
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from keelmq import (
    Admin,
    Consumer,
    KeelMQError,
    Message,
    Outcome,
    ReceivedMessage,
    RollbackTransaction,
    Transaction,
    TransactionProducer,
    inbox,
    outbox,
    sql,
)
from keelmq import Connection as Broker
from keelmq.errors import TransactionConflict
from keelmq.printable import one_line

TOPIC: Final = "orders"
GROUP: Final = "shipping"
ARTICLES: Final = ("book", "pen", "lamp")
STOCK: Final = 50
"""Initial stock of each article."""

ORDERS_AT_ONCE: Final = 8
BATCH_MESSAGES: Final = 100
SESSION_TIMEOUT_MS: Final = 6_000
"""Time without a heartbeat after which the queues of a killed process go to other members."""

log = logging.getLogger("orders")


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "article"
    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Base):
    __tablename__ = "order"
    id: Mapped[str] = mapped_column(primary_key=True)
    article: Mapped[str]
    quantity: Mapped[int]


class Shipment(Base):
    """A shipped order. `order_id` is not unique: only the inbox keeps an order from being shipped twice."""

    __tablename__ = "shipment"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    quantity: Mapped[int]


def take_from_stock(order: dict[str, Any], connection: Connection, transaction: Transaction) -> None:
    """Place the order as the local transaction. `outbox.execute` has recorded it in the same database transaction."""
    with Session(connection) as session:
        article = session.get(Article, order["article"], with_for_update=True)
        if article is None or article.stock < order["quantity"]:
            raise RollbackTransaction(f"{order['article']} is sold out")  # the message is rolled back as well
        article.stock -= order["quantity"]
        session.add(Order(**order))
        session.commit()  # ends only the session's work: outbox.execute commits the database transaction


async def place(producer: TransactionProducer, engine: Engine, number: int) -> Outcome:
    """Place order `number`. A repetition by this or another process places the same order."""
    order_id, article = f"order-{number}", ARTICLES[number % len(ARTICLES)]
    order = {"id": order_id, "article": article, "quantity": 1 + number % 2}
    message = Message(topic=TOPIC, body=json.dumps(order).encode(), keys=[order_id], sharding_key=article)
    while True:
        try:
            result = await outbox.execute(
                producer, engine, message, partial(take_from_stock, order), transaction_id=order_id
            )
        except TransactionConflict as decided:  # an earlier run decided the transaction
            return Outcome(decided.state)
        except KeelMQError as error:
            if not error.retryable:
                raise
            log.warning("%s: %s", order_id, one_line(str(error)))
            await asyncio.sleep(0.2)
        else:
            return result.outcome


async def place_orders(nodes: list[str], engine: Engine, count: int) -> None:
    with Session(engine) as session:
        if session.get(Article, ARTICLES[0]) is None:
            session.add_all(Article(name=name, stock=STOCK) for name in ARTICLES)
            session.commit()
    slots = asyncio.Semaphore(ORDERS_AT_ONCE)
    async with TransactionProducer(nodes, "orders", check=outbox.checker(engine)) as producer:

        async def place_one(number: int) -> Outcome:
            async with slots:
                return await place(producer, engine, number)

        outcomes = await asyncio.gather(*(place_one(number) for number in range(count)))
    for outcome in sorted(set(outcomes)):
        print(f"{outcome}: {outcomes.count(outcome)}")


def ship(messages: Sequence[ReceivedMessage], connection: Connection) -> None:
    """Ship a batch in one database transaction: all messages are remembered and shipped, or none."""
    new = inbox.first_times(connection, GROUP, messages)
    orders = [json.loads(message.body) for message in new]
    with Session(connection) as session:
        session.add_all(Shipment(order_id=order["id"], quantity=order["quantity"]) for order in orders)
        session.commit()
    log.info("%d shipped, %d were shipped before", len(new), len(messages) - len(new))


async def ship_orders(nodes: list[str], engine: Engine) -> None:
    """Ship orders until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        await sql.run(engine, partial(ship, messages))

    async with Consumer(
        nodes,
        GROUP,
        TOPIC,
        batch_handler=handle,
        max_messages=BATCH_MESSAGES,
        start="earliest",
        concurrency=4,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    ):
        await stop.wait()


async def create_topic(nodes: list[str]) -> None:
    broker = Broker(nodes)
    await Admin(broker).put_topic(TOPIC, queues=4, type="transaction")
    broker.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["place", "ship"])
    parser.add_argument("--nodes", required=True, help="URLs of the broker's nodes, separated by commas")
    parser.add_argument("--database", required=True, help="SQLAlchemy URL for SQLite or PostgreSQL")
    parser.add_argument("--orders", type=int, default=100, help="number of orders to place (default 100)")
    settings = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")

    timeout = {"connect_args": {"timeout": 30}} if settings.database.startswith("sqlite") else {}
    engine = create_engine(settings.database, **timeout)
    Base.metadata.create_all(engine)
    outbox.create_tables(engine)
    inbox.create_tables(engine)
    nodes = settings.nodes.split(",")
    await create_topic(nodes)
    if settings.role == "place":
        await place_orders(nodes, engine, settings.orders)
    else:
        await ship_orders(nodes, engine)


if __name__ == "__main__":
    asyncio.run(main())
