"""The account service: takes 100 yuan for an order and sends a message to the points service, as one atomic step.

    python -m examples.shop.account_service --nodes http://127.0.0.1:7081 --topic shop-orders --database account.db

It is safe because `outbox.record` is part of the database transaction that takes the money. If this process dies after
its COMMIT, before the broker knows, the broker asks `outbox.checker`, which finds the record and answers "commit".
"""

import argparse
import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, create_engine, text

from examples.shop.crash_point import crash_point
from keelmq import Decision, KeelMQError, Message, RollbackTransaction, Transaction, TransactionProducer, outbox
from keelmq.printable import one_line

GROUP = "account-service"
ORDERS_AT_ONCE = 16
IDLE_S = 0.05

NEW_ORDERS = text("SELECT id, account, yuan FROM orders WHERE state = 'new' ORDER BY id LIMIT :limit")
SET_STATE = text("UPDATE orders SET state = :state WHERE id = :id AND state = 'new'")
TAKE_MONEY = text("UPDATE accounts SET balance = balance - :yuan WHERE id = :account AND balance >= :yuan")

log = logging.getLogger("account-service")


class Order(NamedTuple):
    id: str
    account: str
    yuan: int


class NotEnoughMoney(Exception):
    """Raised when the account cannot pay the order."""


async def serve(engine: Engine, nodes: list[str], topic: str, stop: asyncio.Event) -> None:
    """Pay new orders until `stop` is set."""
    async with TransactionProducer(nodes, GROUP, check=outbox.checker(engine)) as producer:
        while not stop.is_set():
            orders = await asyncio.to_thread(new_orders, engine)
            await asyncio.gather(*(pay(producer, engine, topic, order) for order in orders))
            if not orders:
                await asyncio.sleep(IDLE_S)


async def pay(producer: TransactionProducer, engine: Engine, topic: str, order: Order) -> None:
    message = Message(
        topic=topic,
        body=json.dumps({"order_id": order.id, "account": order.account, "yuan": order.yuan}).encode(),
        keys=[order.id],
        sharding_key=order.account,  # an account's points are added in the order of its payments
    )

    async def local_transaction(transaction: Transaction) -> Decision:
        try:
            await asyncio.to_thread(take_money, engine, order, transaction.id)
        except NotEnoughMoney:
            await asyncio.to_thread(refuse, engine, order)
            return Decision.ROLLBACK
        crash_point("debit-committed")
        return Decision.COMMIT

    try:
        result = await producer.execute(message, local_transaction)
        log.info("%s: %s", order.id, result.outcome)
    except KeelMQError as error:
        # If no money was taken the order is still new, and the next round pays it in a transaction of its own.
        log.warning("%s: %s", order.id, one_line(str(error)))


def take_money(engine: Engine, order: Order, transaction_id: str) -> None:
    """Record the transaction, mark the order as paid and take the money, all in one database transaction."""
    with engine.begin() as db:
        outbox.record(db, transaction_id)
        if db.execute(SET_STATE, {"id": order.id, "state": "paid"}).rowcount == 0:
            raise RollbackTransaction(f"{order.id} was decided already")
        if db.execute(TAKE_MONEY, {"yuan": order.yuan, "account": order.account}).rowcount == 0:
            raise NotEnoughMoney


def refuse(engine: Engine, order: Order) -> None:
    with engine.begin() as db:
        db.execute(SET_STATE, {"id": order.id, "state": "refused"})


def new_orders(engine: Engine) -> list[Order]:
    with engine.connect() as db:
        return [Order(*row) for row in db.execute(NEW_ORDERS, {"limit": ORDERS_AT_ONCE})]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", required=True, help="URLs of the broker's nodes, separated by commas")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", required=True, type=Path)
    settings = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine = create_engine(f"sqlite:///{settings.database}", connect_args={"timeout": 30})
    outbox.create_tables(engine)
    await serve(engine, settings.nodes.split(","), settings.topic, stop)


if __name__ == "__main__":
    asyncio.run(main())
