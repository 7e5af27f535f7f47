"""What all responses share: their base, the receipt, and how they are encoded.

A handler's own responses are structs beside it, which /openapi.json describes.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from raft.proposals import Applied


class Response(msgspec.Struct, kw_only=True, frozen=True):
    """Base of everything that clients are answered. A field that is UNSET is left out."""


class Receipt(Response, kw_only=True, frozen=True):
    """Proof of a write: `durable_on` are the nodes known to have it fsynced when the answer left."""

    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


def receipt_of(applied: Applied) -> Receipt:
    return Receipt(
        term=applied.term, index=applied.index, timestamp_ms=applied.timestamp_ms, durable_on=applied.durable_on
    )


class ProblemDocument(Response, kw_only=True, frozen=True):
    """An error as application/problem+json; further members depend on `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str


def or_unset(value: int | None) -> int | UnsetType:
    """None is left out of the answer."""
    return UNSET if value is None else value


def json_body(response: Response) -> bytes:
    return _json_encoder.encode(response)


def msgpack_body(response: Response) -> bytes:
    return _msgpack_encoder.encode(response)


def as_view(kind: type[Any], value: Any) -> Any:
    """The response struct of a store value with the same field names."""
    return msgspec.convert(value, kind, from_attributes=True)


_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
