"""JSON bodies: bounded before they are decoded, then decoded, then searched for fields that appear twice.

What decoding costs is the number of strings, not of bytes, so strings are counted first, piece by piece, by searches
that run at the speed of memory and end with the first string too many. msgspec and json both let the last of two equal
fields win, which hides a client's mistake: whether there are any is told by comparing two numbers, and only a body in
which they differ is parsed a second time.
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
"""Strings are counted in pieces of this size."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_name_end: Final = re.compile(rb'"[ \t\r\n]*+:')
_decode_any: Final = msgspec.json.Decoder().decode


class MessageCounter(msgspec.Struct):
    """An object of which nothing is looked at: decoding stops with the first one too many."""

    seen: ClassVar[int] = 0

    def __post_init__(self) -> None:
        MessageCounter.seen += 1
        if MessageCounter.seen > REQUEST_MESSAGES_MAX:
            raise ValueError


class _CountedRequest(msgspec.Struct):
    messages: list[MessageCounter] = []


_counting_decoder: Final = msgspec.json.Decoder(_CountedRequest)


def parse_json(decoder: "msgspec.json.Decoder[_Struct]", body: bytes) -> _Struct:
    """A JSON body; Problem invalid_request when it is not exactly what the struct describes, request_too_large when
    it has too many strings."""
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
    """Like parse_json, of a request with `messages`; Problem batch_too_large before they are decoded in vain.

    msgspec looks at the length of a JSON array only after it has decoded all of it. `counting` finds a MessageCounter
    where the request has a message.
    """
    if body.count(b"{") > REQUEST_MESSAGES_MAX:  # only then are so many messages possible
        MessageCounter.seen = 0
        with contextlib.suppress(ValueError, RecursionError):
            counting.decode(body)
        if MessageCounter.seen > REQUEST_MESSAGES_MAX:
            raise too_many_messages()
    return parse_json(decoder, body)


def too_many_messages() -> Problem:
    return Problem("batch_too_large", f"messages: a request has at most {REQUEST_MESSAGES_MAX}")


def strings_in(body: bytes) -> int:
    """About how many strings a JSON text has: never more than there are, and never less than half of them. Stops
    counting when they are more than JSON_STRINGS_MAX.

    A quote behind a backslash counts as part of a text. At the end of a string that ends with a backslash it is not,
    and that string counts half.
    """
    if len(body) <= JSON_STRINGS_MAX:
        return 0  # it cannot have too many
    quotes = 0
    for begin in range(0, len(body), COUNTED_AT_ONCE_BYTES):
        end = begin + COUNTED_AT_ONCE_BYTES
        quotes += body.count(b'"', begin, end) - body.count(b'\\"', max(begin - 1, 0), end)
        if quotes > 2 * JSON_STRINGS_MAX:
            break
    return quotes // 2


def require_no_duplicates(body: bytes) -> None:
    """ValueError names a field that appears twice in one object of a JSON text.

    No object has lost a field in decoding if all of them together have as many as the text has names. A colon follows
    each name: as long as texts have none, that is the number. Else it is at most the number of quotes that a colon
    follows, without those behind a backslash.
    """
    fields = _fields_of(_decode_any(body))
    if body.count(b":") == fields:
        return
    if len(_name_end.findall(body)) - body.count(b'\\":') + body.count(b'\\\\":') == fields:
        return
    json.loads(body, object_pairs_hook=_refuse_duplicates)


def _fields_of(value: Any) -> int:
    """Fields of all objects within a decoded value."""
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
