"""Async SDK for the KeelMQ broker.

    async with Producer("http://127.0.0.1:7081,http://127.0.0.1:7082") as producer:
        result = await producer.send("orders", b"hello", keys=["order-1"])

Names are imported when they are first used, so that the `keelmq` command starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelmq.admin import Admin as Admin
    from keelmq.consuming.consumer import Consumer as Consumer
    from keelmq.consuming.pop_consumer import PopConsumer as PopConsumer
    from keelmq.consuming.redelivery import RetryLater as RetryLater
    from keelmq.errors import KeelMQError as KeelMQError
    from keelmq.message import BatchResult as BatchResult
    from keelmq.message import Message as Message
    from keelmq.message import Origin as Origin
    from keelmq.message import Receipt as Receipt
    from keelmq.message import ReceivedMessage as ReceivedMessage
    from keelmq.message import SendResult as SendResult
    from keelmq.producing.producer import Producer as Producer
    from keelmq.producing.queue_selectors import RoundRobin as RoundRobin
    from keelmq.producing.queue_selectors import by_hash as by_hash
    from keelmq.producing.queue_selectors import random_queue as random_queue
    from keelmq.transactions.decision import Decision as Decision
    from keelmq.transactions.decision import RollbackTransaction as RollbackTransaction
    from keelmq.transactions.decision import Transaction as Transaction
    from keelmq.transactions.transaction import Outcome as Outcome
    from keelmq.transactions.transaction import TransactionProducer as TransactionProducer
    from keelmq.transactions.transaction import TransactionResult as TransactionResult
    from keelmq.transport.connection import Connection as Connection
    from keelmq.transport.tls import Tls as Tls

_MODULES = {
    "Admin": "admin",
    "BatchResult": "message",
    "Connection": "transport.connection",
    "Consumer": "consuming.consumer",
    "Decision": "transactions.decision",
    "KeelMQError": "errors",
    "Message": "message",
    "Origin": "message",
    "Outcome": "transactions.transaction",
    "PopConsumer": "consuming.pop_consumer",
    "Producer": "producing.producer",
    "Receipt": "message",
    "ReceivedMessage": "message",
    "RetryLater": "consuming.redelivery",
    "RollbackTransaction": "transactions.decision",
    "RoundRobin": "producing.queue_selectors",
    "SendResult": "message",
    "Tls": "transport.tls",
    "Transaction": "transactions.decision",
    "TransactionProducer": "transactions.transaction",
    "TransactionResult": "transactions.transaction",
    "by_hash": "producing.queue_selectors",
    "random_queue": "producing.queue_selectors",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"keelmq.{module}"), name)
    return value
