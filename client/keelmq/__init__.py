"""Async SDK for the KeelMQ broker.

    async with Producer("http://127.0.0.1:7081,http://127.0.0.1:7082") as producer:
        result = await producer.send("orders", b"hello", keys=["order-1"])

Names are imported when they are first used, so that the `keelmq` command starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelmq.admin import Admin as Admin
    from keelmq.connection import Connection as Connection
    from keelmq.consumer import Consumer as Consumer
    from keelmq.decision import Decision as Decision
    from keelmq.decision import RollbackTransaction as RollbackTransaction
    from keelmq.decision import Transaction as Transaction
    from keelmq.errors import KeelMQError as KeelMQError
    from keelmq.message import BatchResult as BatchResult
    from keelmq.message import Message as Message
    from keelmq.message import Origin as Origin
    from keelmq.message import Receipt as Receipt
    from keelmq.message import ReceivedMessage as ReceivedMessage
    from keelmq.message import SendResult as SendResult
    from keelmq.pop_consumer import PopConsumer as PopConsumer
    from keelmq.producer import Producer as Producer
    from keelmq.redelivery import RetryLater as RetryLater
    from keelmq.selectors import RoundRobin as RoundRobin
    from keelmq.selectors import by_hash as by_hash
    from keelmq.selectors import random_queue as random_queue
    from keelmq.transaction import Outcome as Outcome
    from keelmq.transaction import TransactionProducer as TransactionProducer
    from keelmq.transaction import TransactionResult as TransactionResult

_MODULES = {
    "Admin": "admin",
    "BatchResult": "message",
    "Connection": "connection",
    "Consumer": "consumer",
    "Decision": "decision",
    "KeelMQError": "errors",
    "Message": "message",
    "Origin": "message",
    "Outcome": "transaction",
    "PopConsumer": "pop_consumer",
    "Producer": "producer",
    "Receipt": "message",
    "ReceivedMessage": "message",
    "RetryLater": "redelivery",
    "RollbackTransaction": "decision",
    "RoundRobin": "selectors",
    "SendResult": "message",
    "Transaction": "decision",
    "TransactionProducer": "transaction",
    "TransactionResult": "transaction",
    "by_hash": "selectors",
    "random_queue": "selectors",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"keelmq.{module}"), name)
    return value
