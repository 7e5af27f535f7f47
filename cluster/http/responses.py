"""Common parts of all responses: their base, the receipt, and their encoding.

The responses of a handler are structs in its module, which /openapi.json describes.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from raft.proposals import Applied


class Response(msgspec.Struct, kw_only=True, frozen=True):
    """Base class of all responses. A field that is UNSET is left out."""


Item = TypeVar("Item", bound=Response)


class Receipt(Response, kw_only=True, frozen=True):
    """Proof of a write. `durable_on` lists the nodes known to have fsynced the entry when the answer was sent."""

    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


def receipt_of(applied: Applied) -> Receipt:
    return Receipt(
        term=applied.term, index=applied.index, timestamp_ms=applied.timestamp_ms, durable_on=applied.durable_on
    )


class ProblemDocument(Response, kw_only=True, frozen=True):
    """An error as application/problem+json. Further members depend on `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str


def or_unset(value: int | None) -> int | UnsetType:
    """Return UNSET for None, so that the field is left out of the answer, and any other value unchanged."""
    return UNSET if value is None else value


def json_body(response: Response) -> bytes:
    return _json_encoder.encode(response)


def json_items(responses: Sequence[Response]) -> bytes:
    """Return the responses as they stand in an array, without its brackets: long answers are encoded in steps."""
    return _json_encoder.encode(responses)[1:-1]


def as_encoded(kind: type[Item], items: Sequence[bytes]) -> list[Item]:
    """Return what stands for a list of `kind` in a response, made of parts that json_items returned. It can only be
    encoded.
    """
    return cast(list[Item], msgspec.Raw(b"[" + b",".join(items) + b"]"))


def msgpack_body(response: Response) -> bytes:
    return _msgpack_encoder.encode(response)


def as_view(kind: type[Any], value: Any) -> Any:
    """Return the response struct of `kind` with the fields of a store value, which have the same names."""
    return msgspec.convert(value, kind, from_attributes=True)


_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
