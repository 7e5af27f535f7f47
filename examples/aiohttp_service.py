"""A web service that publishes transactionally: an order is in its database if and only if its message is published.

    python -m examples.aiohttp_service --nodes http://127.0.0.1:7081 --database sqlite+aiosqlite:///orders.db
    curl -i -X PUT http://127.0.0.1:8080/orders/17 -d '{"account": "ann", "yuan": 30}'

The order's number is the transaction's id, so a client without an answer repeats its request: the order is placed once.
`--database` is an async URL of SQLAlchemy: `sqlite+aiosqlite:///…` or `postgresql+psycopg://…`.
"""

import argparse
import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from aiohttp import web
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from keelmq import Admin, KeelMQError, Message, Outcome, RollbackTransaction, Transaction, TransactionProducer, outbox
from keelmq import Connection as Broker
from keelmq.errors import IdempotencyConflict, TransactionConflict

TOPIC: Final = "web-orders"
CREDIT: Final = 1_000
"""Maximum amount that an account may spend, in yuan."""

ORDER_ID: Final = re.compile(r"[A-Za-z0-9-]{1,32}")
STATUS: Final = {
    Outcome.COMMITTED: 201,
    Outcome.COMMIT_PENDING: 202,  # the order is in the database; the broker will check and publish
    Outcome.ROLLED_BACK: 409,
    Outcome.ROLLBACK_PENDING: 409,
    Outcome.UNKNOWN: 503,
}

CREATE: Final = text(
    'CREATE TABLE IF NOT EXISTS "order" (id TEXT PRIMARY KEY, account TEXT NOT NULL, yuan INT NOT NULL)'
)
SPENT: Final = text('SELECT coalesce(sum(yuan), 0) FROM "order" WHERE account = :account')
INSERT: Final = text('INSERT INTO "order" (id, account, yuan) VALUES (:id, :account, :yuan)')
SELECT: Final = text('SELECT id, account, yuan FROM "order" ORDER BY id')


class Service:
    def __init__(self, nodes: list[str], database: str) -> None:
        self._nodes = nodes
        self._engine: AsyncEngine = create_async_engine(database)
        self._producer = TransactionProducer(nodes, "web-orders", check=outbox.checker(self._engine))

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_put("/orders/{id}", self.place)
        application.router.add_get("/orders", self.orders)
        application.cleanup_ctx.append(self._running)
        return application

    async def _running(self, application: web.Application) -> AsyncIterator[None]:
        async with self._engine.begin() as connection:
            await connection.run_sync(outbox.create_tables)
            await connection.execute(CREATE)
        broker = Broker(self._nodes)
        await Admin(broker).put_topic(TOPIC, queues=4, type="transaction")
        broker.close()
        async with self._producer:  # answers checks as long as the service runs
            yield
        await self._engine.dispose()

    async def place(self, request: web.Request) -> web.Response:
        order = await order_of(request)
        message = Message(topic=TOPIC, body=json.dumps(order).encode(), keys=[order["id"]])
        try:
            result = await outbox.execute(
                self._producer, self._engine, message, partial(spend, order), transaction_id=f"order-{order['id']}"
            )
        except TransactionConflict as conflict:  # an earlier request was refused
            return web.json_response({"order": order["id"], "state": conflict.state}, status=409)
        except IdempotencyConflict:
            return web.json_response({"order": order["id"], "error": "another order has this number"}, status=409)
        except KeelMQError as error:  # repeating the request finds out whether the order is placed
            return web.json_response({"error": str(error)}, status=503, headers={"Retry-After": "1"})
        return web.json_response({"order": order["id"], "state": result.outcome}, status=STATUS[result.outcome])

    async def orders(self, request: web.Request) -> web.Response:
        async with self._engine.connect() as connection:
            rows = await connection.execute(SELECT)
            return web.json_response([dict(row) for row in rows.mappings()])


def spend(order: dict[str, Any], connection: Connection, transaction: Transaction) -> None:
    """Insert the order as the local transaction; the outbox records `transaction` in the same database transaction."""
    connection.execute(INSERT, order)  # with PostgreSQL, lock the account here: two orders may run at a time
    if connection.execute(SPENT, {"account": order["account"]}).scalar_one() > CREDIT:
        raise RollbackTransaction(f"{order['account']} has no more credit")


async def order_of(request: web.Request) -> dict[str, Any]:
    order_id = request.match_info["id"]
    try:
        given = json.loads(await request.text())
        order = {"id": order_id, "account": str(given["account"]), "yuan": (yuan := int(given["yuan"]))}
    except (ValueError, TypeError, KeyError) as error:
        raise web.HTTPBadRequest(text=f"an order has an account and yuan: {error}") from None
    if not ORDER_ID.fullmatch(order_id) or yuan <= 0:
        raise web.HTTPBadRequest(text="a number of A-Z a-z 0-9 -, at most 32 characters, and yuan above 0")
    return order


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", required=True, help="URLs of the broker's nodes, separated by commas")
    parser.add_argument("--database", required=True, help="async SQLAlchemy URL for SQLite or PostgreSQL")
    parser.add_argument("--port", type=int, default=8080, help="port; 0 chooses a free one (default 8080)")
    settings = parser.parse_args()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(Service(settings.nodes.split(","), settings.database).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", settings.port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
