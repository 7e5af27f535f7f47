"""The cost of a JSON body: strings are counted before they are decoded, and duplicate fields are found cheaply."""

import json
import random
from typing import Any

import msgspec
import pytest

from cluster.http import json_bodies
from cluster.http.json_bodies import parse_json, require_no_duplicates, strings_in
from cluster.limits import JSON_STRINGS_MAX
from cluster.messages.produce import JsonProduce
from cluster.problems import Problem

decoder = msgspec.json.Decoder(JsonProduce)


def refused(body: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        parse_json(decoder, body)
    return caught.value


def properties(count: int, more: str = "") -> bytes:
    named = ",".join(f'"{number:06x}":""' for number in range(count))
    return f'{{"messages":[{{"body":"x","properties":{{{named}{more}}}}}]}}'.encode()


def test_a_field_that_appears_twice_among_thousands_is_looked_for_once_per_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names were compared with each other once: 7,900 of them took the loop for 0.8 s."""
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    real = json_bodies._refuse_duplicates
    monkeypatch.setattr(
        json_bodies, "_refuse_duplicates", lambda pairs: real([(Name(name), value) for name, value in pairs])
    )
    body = properties(4_500, ',"001193":""')
    assert "'001193' appears twice" in refused(body).detail
    assert compared < 100


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":{"a":2,"c":[{"a":1},{"a":"x:y"}]}}',
        '{"url":"http://h:1/","at":"12:30"}',
        json.dumps({"body": json.dumps({"a": {"b": "c:d"}, "e": [1, 2]})}),
        '{"a" : 1, "b"\t:\n2}',
        '{"":1,"\\\\":2,"\\"":3}',
        '[[[]],{"a":{}}]',
    ],
)
def test_usual_bodies_are_not_parsed_twice(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("parsed a second time")

    monkeypatch.setattr(json, "loads", never)
    require_no_duplicates(text.encode())


def test_whether_a_field_appears_twice_is_told_exactly() -> None:
    """Compare with a parser that keeps all fields, over texts made of everything that looks like a name's end."""
    random.seed(33)
    pieces = ["a", "b", "\\\\", '\\"', ":", " :", '\\":', "{", "}", ",", "\\u0022", ""]

    def text() -> str:
        return '"' + "".join(random.choices(pieces, k=random.randrange(4))) + '"'

    def value(depth: int) -> str:
        kind = random.randrange(4 if depth < 3 else 1)
        if kind == 1:
            return "[" + ",".join(value(depth + 1) for _ in range(random.randrange(3))) + "]"
        if kind >= 2:
            fields = (f"{text()}{random.choice(['', ' '])}:{value(depth + 1)}" for _ in range(random.randrange(4)))
            return "{" + ",".join(fields) + "}"
        return text()

    def has_twice(body: str) -> bool:
        found = False

        def look(pairs: list[tuple[str, Any]]) -> None:
            nonlocal found
            found = found or len({name for name, _ in pairs}) < len(pairs)

        json.loads(body, object_pairs_hook=look)
        return found

    outcomes = set()
    for _ in range(4_000):
        body = value(0)
        expected = has_twice(body)
        outcomes.add(expected)
        try:
            require_no_duplicates(body.encode())
        except ValueError:
            assert expected, body
        else:
            assert not expected, body
    assert outcomes == {True, False}


def test_strings_are_counted_before_anything_is_decoded() -> None:
    assert parse_json(decoder, properties(8_192)).messages[0].body == "x"
    body = properties(JSON_STRINGS_MAX // 2) + b"this was never looked at"
    assert refused(body).code == "request_too_large"


def test_quotes_within_a_text_are_no_strings() -> None:
    body = json.dumps({"messages": [{"body": json.dumps({"a": "b"}) * 150_000}]}).encode()
    assert body.count(b'"') > 2 * JSON_STRINGS_MAX
    assert len(parse_json(decoder, body).messages) == 1


@pytest.mark.parametrize("text", ["", "x", "\\\\", "\\\\\\\\", '\\"', "\\\\x"])
def test_never_more_strings_are_counted_than_there_are_nor_less_than_half(text: str) -> None:
    count = JSON_STRINGS_MAX // 2
    body = ("[" + ",".join([f'"{text}"'] * count) + "]").encode()
    assert count / 2 <= strings_in(body) <= count
