"""JSON bodies: their size is bounded first, then they are decoded, then searched for fields that appear twice.

The cost of decoding is the number of strings, not of bytes. So strings are counted first, piece by piece, by searches
that run at memory speed and end at the limit. msgspec and json both let the last of two equal fields win, which hides a
client's mistake. Comparing two numbers tells whether a body may have equal fields, and only a body in which they differ
is parsed a second time.
"""

import contextlib
import json
import re
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from cluster.http.requests import reason_of
from cluster.limits import DUPLICATES_SOUGHT_BYTES_MAX, JSON_STRINGS_MAX, REQUEST_MESSAGES_MAX
from cluster.problems import Problem

COUNTED_AT_ONCE_BYTES: Final = 256 * 1024
"""Size of the pieces in which strings are counted."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_name_end: Final = re.compile(rb'"[ \t\r\n]*+:')
_decode_any: Final = msgspec.json.Decoder().decode


class MessageCounter(msgspec.Struct):
    """Stands for one message while messages are only counted. Decoding stops when there are too many."""

    seen: ClassVar[int] = 0

    def __post_init__(self) -> None:
        MessageCounter.seen += 1
        if MessageCounter.seen > REQUEST_MESSAGES_MAX:
            raise ValueError


class _CountedRequest(msgspec.Struct):
    messages: list[MessageCounter] = []


_counting_decoder: Final = msgspec.json.Decoder(_CountedRequest)


def parse_json(decoder: "msgspec.json.Decoder[_Struct]", body: bytes) -> _Struct:
    """Decode a JSON body. Raises Problem invalid_request when the body does not match the struct or repeats a field,
    and request_too_large when it has too many strings."""
    if strings_in(body) > JSON_STRINGS_MAX:
        detail = f"the request has more than {JSON_STRINGS_MAX} names and texts, each of which is a string of JSON"
        raise Problem("request_too_large", f"{detail}; send it in parts")
    try:
        decoded = decoder.decode(body)
        if len(body) <= DUPLICATES_SOUGHT_BYTES_MAX:
            require_no_duplicates(body)
    except (ValueError, RecursionError) as error:
        raise Problem("invalid_request", reason_of(error)) from None
    return decoded


def parse_json_messages(
    decoder: "msgspec.json.Decoder[_Struct]", body: bytes, counting: "msgspec.json.Decoder[Any]" = _counting_decoder
) -> _Struct:
    """Decode a request with `messages`. Raises Problem batch_too_large when there are too many, before they are
    decoded, and otherwise as `parse_json` does.

    msgspec checks the length of a JSON array only after it has decoded the whole array. `counting` decodes each message
    of the request as a MessageCounter.
    """
    if body.count(b"{") > REQUEST_MESSAGES_MAX:  # with fewer objects there cannot be too many messages
        MessageCounter.seen = 0
        with contextlib.suppress(ValueError, RecursionError):
            counting.decode(body)
        if MessageCounter.seen > REQUEST_MESSAGES_MAX:
            raise too_many_messages()
    return parse_json(decoder, body)


def too_many_messages() -> Problem:
    return Problem("batch_too_large", f"messages: a request has at most {REQUEST_MESSAGES_MAX}")


def strings_in(body: bytes) -> int:
    """Return the approximate number of strings in a JSON text: never more than it has, never less than half of them.
    Counting stops beyond JSON_STRINGS_MAX.

    A quote after a backslash counts as part of a text. When a string ends with an escaped backslash this is wrong, and
    that string counts half.
    """
    if len(body) <= JSON_STRINGS_MAX:
        return 0  # so short a body cannot have too many strings
    quotes = 0
    for begin in range(0, len(body), COUNTED_AT_ONCE_BYTES):
        end = begin + COUNTED_AT_ONCE_BYTES
        quotes += body.count(b'"', begin, end) - body.count(b'\\"', max(begin - 1, 0), end)
        if quotes > 2 * JSON_STRINGS_MAX:
            break
    return quotes // 2


def require_no_duplicates(body: bytes) -> None:
    """Raise ValueError, which names the field, when a field appears twice in one object of a JSON text.

    No object has lost a field in decoding if all objects together have as many fields as the text has names. A colon
    follows each name: if no string contains a colon, the number of colons is the number of names. Otherwise the number
    of names is at most the number of quotes followed by a colon, without quotes after a backslash.
    """
    fields = _fields_of(_decode_any(body))
    if body.count(b":") == fields:
        return
    if len(_name_end.findall(body)) - body.count(b'\\":') + body.count(b'\\\\":') == fields:
        return
    json.loads(body, object_pairs_hook=_refuse_duplicates)


def _fields_of(value: Any) -> int:
    """Return the number of fields of all objects within a decoded value."""
    count = 0
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            count += len(current)
            current = current.values()
        elif not isinstance(current, list):
            continue
        waiting.extend([each for each in current if type(each) is dict or type(each) is list])
    return count


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the field {name!r} appears twice")
            seen.add(name)
