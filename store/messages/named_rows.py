"""Rows of the index that name the principal whose request wrote them."""

from typing import Final

import msgspec

_encode: Final = msgspec.msgpack.Encoder().encode


def encoded_with_principal(row: msgspec.Struct) -> bytes:
    """Return the value of a row whose last field is its principal. Without a principal the field is left out: nodes of
    feature level 1, where no row has one, read and write that alone.
    """
    fields = msgspec.structs.astuple(row)
    return _encode(fields if fields[-1] is not None else fields[:-1])
