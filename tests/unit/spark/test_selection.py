"""Tests what nodes are asked for: never less than a query wants."""

import re

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, IsNotNull, Not, StringContains, StringStartsWith

from keelmq.limits import LOG_TOPICS_MAX
from keelmq_spark.log_reader import EVERYTHING, Select
from keelmq_spark.options import SourceOptions
from keelmq_spark.selection import Selection, is_wanted_of, names_of_pattern

TOPIC, TYPE = ("topic",), ("type",)
NAMES = ("a", "ab", "abc", "abbb", "orders", "orders-eu", "bills", "%RETRY%g", "x|y", "A")


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"servers": "http://127.0.0.1:1", **given})


def events(*filters: Filter, **given: str) -> Select:
    return Selection.of(options(view="events", **given)).narrowed(filters, has_types=True).select()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", ("orders",)),
        ("^orders-.*$", ("orders-*",)),
        ("orders|bills-[0-9]|orders", None),
        ("orders|bills-.*|orders", ("orders", "bills-*")),
        ("ab+", ("ab*",)),
        ("ab*", ("a*",)),
        ("ab?c", ("a*",)),
        ("ab{0,2}", ("a*",)),
        ("(?i)a", None),
        ("orders(?#x)*", None),
        ("a(?:)?b", None),
        ("(a|b)", None),
        ("x(a)|b", None),
        (r"x\|y", None),
        (r"x\|y|a", None),
        (r"orders\-eu", ("orders*",)),
        (".*", None),
        ("orders|", None),
        ("a?|b", None),
        ("[ab].*", None),
        ("a[|]b", None),
    ],
)
def test_names_cover_what_a_pattern_matches(pattern: str, names: tuple[str, ...] | None) -> None:
    assert names_of_pattern(pattern) == names
    matched = [name for name in NAMES if re.fullmatch(pattern, name)]
    if names is not None:
        exact = [name for name in names if not name.endswith("*")]
        begins = tuple(name[:-1] for name in names if name.endswith("*"))
        assert [name for name in matched if name not in exact and not name.startswith(begins)] == []


def test_the_view_messages_wants_messages_that_became_visible() -> None:
    assert Selection.of(options(subscribe="a,b")).select() == Select(("a", "b"), ("PUBLISH",))
    assert Selection.of(options(subscribePattern=".*")).select() == Select((), ("PUBLISH",))
    assert Selection.of(options(view="events")).select() == EVERYTHING


def test_filters_of_spark_narrow_the_topics_of_the_options() -> None:
    assert events(EqualTo(TOPIC, "a")) == Select(("a",))
    assert events(EqualNullSafe(TOPIC, "a"), IsNotNull(TOPIC)) == Select(("a",))
    assert events(In(TOPIC, ("a", "b")), In(TOPIC, ("b", "c"))) == Select(("b",))
    assert events(StringStartsWith(TOPIC, "ord")) == Select(("ord*",))
    assert events(StringStartsWith(TOPIC, "ord"), subscribe="orders,bills") == Select(("orders",))
    assert events(StringStartsWith(TOPIC, "orders-"), subscribePattern="ord.*|b.*") == Select(("orders-*",))
    assert events(EqualTo(TYPE, "ACK"), EqualTo(TOPIC, "a")) == Select(("a",), ("ACK",))
    other = Selection.of(options(subscribe="a")).narrowed([EqualTo(TOPIC, "b")], has_types=False)
    assert other.is_empty
    assert not Selection.of(options(view="events")).is_empty


@pytest.mark.parametrize(
    "filter",
    [
        EqualTo(TOPIC, "no topic"),
        EqualTo(TOPIC, None),
        EqualTo(("attrs", "topic"), "a"),
        EqualTo(("queue",), 1),
        In(TOPIC, ("a", None)),
        Not(EqualTo(TOPIC, "a")),
        StringContains(TOPIC, "a"),
        StringStartsWith(TOPIC, ""),
        StringStartsWith(TOPIC, "a*"),
        EqualTo(TYPE, "OF_A_LATER_VERSION"),
        StringStartsWith(TYPE, "AC"),
    ],
)
def test_other_filters_are_left_to_spark(filter: Filter) -> None:
    assert events(filter) == EVERYTHING


def test_topics_that_do_not_fit_a_request_are_not_asked_for() -> None:
    fits = ",".join(f"t{n}" for n in range(LOG_TOPICS_MAX))
    assert len(events(subscribe=fits).topics) == LOG_TOPICS_MAX
    assert events(subscribe=f"{fits},more") == EVERYTHING
    assert events(subscribe=",".join(f"{n:0100}" for n in range(20))) == EVERYTHING


def test_a_pattern_does_not_match_topics_of_groups() -> None:
    is_wanted = is_wanted_of(options(subscribePattern="%?[A-Z].*|orders"))
    assert is_wanted is not None
    assert [name for name in NAMES if is_wanted(name)] == ["orders", "A"]
    assert is_wanted_of(options(view="events")) is None
