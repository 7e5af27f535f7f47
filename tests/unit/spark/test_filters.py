"""The filters of the lineage select what the broker's select."""

import msgspec
import pytest
from hypothesis import given, settings

from cluster.filters.selection import by_expression
from cluster.filters.syntax import Condition
from cluster.messages.blocks import BlockMessage
from keelmq_spark.folding.filters import Attributes, selection
from store.commands.groups import TopicFilter
from store.groups.subscription import selecting
from tests.unit.cluster.filter_reference import Attributes as BrokerAttributes
from tests.unit.cluster.filter_reference import printed
from tests.unit.cluster.test_filters import conditions, messages


def attributes(message: BrokerAttributes) -> Attributes:
    properties = msgspec.json.encode(message.properties).decode() if message.properties else None
    return Attributes(message.tag, " ".join(message.keys) or None, properties)


@settings(max_examples=1_500)
@given(conditions, messages)
def test_a_filter_selects_what_the_broker_sends(condition: Condition, message: BrokerAttributes) -> None:
    expression = printed(condition)
    selects = by_expression(expression)
    assert selection(expression)(attributes(message)) is selects(BlockMessage(b"", *_rest(message)))


def _rest(message: BrokerAttributes) -> tuple[str | None, tuple[str, ...], dict[str, str]]:
    return message.tag, message.keys, dict(message.properties)


@pytest.mark.parametrize(
    ("expression", "properties", "selected"),
    [
        ("a = 5L and not b", {"a": "5", "b": "no"}, True),
        ('"a" != -5. OR TRUE', {}, True),
        ("(a) = '5'", {"a": "5"}, True),
        ("a LIKE 'x!%%' ESCAPE '!'", {"a": "x%y\nz"}, True),
        ("a LIKE '%ab%ba'", {"a": "aba"}, False),
        ("a NOT IN ('b', 3)", {"a": "3.0"}, False),
        ("a IS NOT NULL", {"a": ""}, True),
    ],
)
def test_ways_to_write_it(expression: str, properties: dict[str, str], selected: bool) -> None:
    assert by_expression(expression)(BlockMessage(b"", properties=properties)) is selected
    assert selection(expression)(attributes(BrokerAttributes(properties))) is selected


def test_a_like_of_the_worst_kind_ends_soon() -> None:
    expression = "a LIKE '" + "%a_" * 80 + "b'"
    assert not selection(expression)(attributes(BrokerAttributes({"a": "a" * 32_767})))


def test_tags_are_a_filter_too() -> None:
    expression = selecting((TopicFilter("orders", "tags", "a || b's"),), "orders")
    assert expression == "TAGS IN ('a', 'b''s')"
    assert [selection(expression)(Attributes(tag, None, None)) for tag in ("a", "b's", "b", None)] == [
        True,
        True,
        False,
        False,
    ]
    assert selecting((TopicFilter("orders", "sql", "a = 1"),), "points") is None
