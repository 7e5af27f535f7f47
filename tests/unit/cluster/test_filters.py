"""The meaning of filters: tables of expressions and messages, and a second implementation to compare every tree
with.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.filters.evaluation import compile_condition
from cluster.filters.like import escape_error, like
from cluster.filters.numeric import number_of
from cluster.filters.parser import parse
from cluster.filters.selection import by_expression, by_tags, tag_set
from cluster.filters.syntax import (
    And,
    Between,
    Boolean,
    Comparison,
    Condition,
    Find,
    InList,
    IsNull,
    Like,
    Not,
    Number,
    Or,
    Property,
    Text,
)
from cluster.limits import FILTER_IN_ITEMS_MAX, FILTER_LIKES_MAX
from tests.unit.cluster.filter_reference import Attributes, evaluated, is_like, printed

T, F, U = True, False, None

MESSAGE = Attributes(
    {
        "price": "7",
        "exact": "12345678901234567890123",
        "decimal": "5.0",
        "negative": "-3.5",
        "region": "eu",
        "name": "a%b_c'd",
        "word": "true",
        "shout": "TRUE",
        "empty": "",
        "blank": " 7 ",
        "ten": "10",
        "and": "keyword",
        "order-type": "quick",
    },
    "created",
    ("k1", "k2"),
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("price = 7", T),
        ("price = 7.0", T),
        ("price = 70e-1", T),
        ("price = 7L", T),
        ("price <> 7", F),
        ("price != 8", T),
        ("price > 6 AND price >= 7 AND price < 8 AND price <= 7", T),
        ("8 > price", T),
        ("7 <> price", F),
        ("price > -1", T),
        ("negative < - 3", T),
        ("negative = -3.5 AND negative > -.4e1", T),
        ("price = + 7", T),
        ("price = '7'", T),
        ("price = '7.0'", F),
        ("decimal = 5", T),
        ("decimal = '5'", F),
        ("price < ten", T),  # as texts it would not be
        ("price < '10'", T),
        ("price = ten", F),
        ("region = 5", U),
        ("region > 5", U),
        ("region <> 5", U),
        ("blank = 7", U),
        ("empty = 0", U),
        ("exact = 12345678901234567890123", T),
        ("exact = 12345678901234567890124", F),
        ("exact > 12345678901234567890122", T),
        ("region = 'eu'", T),
        ("'eu' = region", T),
        ("region <> 'us'", T),
        ("region = 'EU'", F),
        ("Region = 'eu'", U),
        ("name = 'a%b_c''d'", T),
        ("region = region", T),
        ("region = missing", U),
        ("missing = missing", U),
        ("region > price", U),
        ("word = TRUE", T),
        ("shout = TRUE", T),
        ("region = FALSE", T),
        ("region <> TRUE", T),
        ("missing = FALSE", U),
        ("TRUE = word", T),
        ("word", T),
        ("NOT word", F),
        ("region", F),
        ("missing", U),
        ("word AND price = 7", T),
        ("1 = 1", T),
        ("1 > 2", F),
        ("1 = 1.0", T),
        ("'a' <> 'b'", T),
        ("'a' = 'b'", F),
        ("TRUE = FALSE", F),
        ("TRUE", T),
        ("FALSE OR TRUE", T),
        ("price BETWEEN 7 AND 7", T),
        ("price BETWEEN 1 AND 6.9", F),
        ("price NOT BETWEEN 1 AND 6.9", T),
        ("price BETWEEN '1' AND ten", T),
        ("ten BETWEEN price AND 20", T),
        ("5 BETWEEN negative AND price", T),
        ("region BETWEEN 1 AND 2", U),
        ("region NOT BETWEEN 1 AND 2", U),
        ("price BETWEEN 8 AND missing", F),
        ("price BETWEEN 7 AND missing", U),
        ("price NOT BETWEEN 8 AND missing", T),
        ("region IN ('eu', 'us')", T),
        ("region IN ('us')", F),
        ("region NOT IN ('us')", T),
        ("missing IN ('us')", U),
        ("missing NOT IN ('us')", U),
        ("price IN (1, 7.0)", T),
        ("price IN (-1, '7')", T),
        ("decimal IN ('5')", F),
        ("region IN ('eu', 7)", T),
        ("region IN ('us', 7)", U),
        ("region NOT IN ('us', 7)", U),
        ("region IN ('(', ')', ',')", F),
        ("region LIKE 'eu'", T),
        ("region LIKE 'e'", F),
        ("region LIKE 'e%'", T),
        ("region LIKE '%u'", T),
        ("region LIKE '_u'", T),
        ("region LIKE '__'", T),
        ("region LIKE '___'", F),
        ("region LIKE '_'", F),
        ("region LIKE '%'", T),
        ("region LIKE 'E%'", F),
        ("region NOT LIKE 'e%'", F),
        ("empty LIKE ''", T),
        ("empty LIKE '%'", T),
        ("empty LIKE '_%'", F),
        ("missing LIKE '%'", U),
        ("missing NOT LIKE 'x'", U),
        ("name LIKE 'a!%b!_c''_' ESCAPE '!'", T),
        ("name LIKE 'a!%c%' ESCAPE '!'", F),
        ("name LIKE 'a%%b_%'", T),
        ("name LIKE '%''d'", T),
        ("region CONTAINS ''", T),
        ("name contains '%b'", T),
        ("region STARTSWITH 'e' AND region ENDSWITH 'u'", T),
        ("region NOT STARTSWITH 'u'", T),
        ("region ENDSWITH 'eeu'", F),
        ("missing NOT CONTAINS 'x'", U),
        ("price IS NULL", F),
        ("price IS NOT NULL", T),
        ("missing is null", T),
        ("missing IS NOT NULL", F),
        ("empty IS NULL", F),
        ("NOT missing = 1", U),
        ("missing = 1 AND FALSE", F),
        ("missing = 1 AND TRUE", U),
        ("missing = 1 OR TRUE", T),
        ("missing = 1 OR FALSE", U),
        ("NOT (missing = 1 AND FALSE)", T),
        ("NOT NOT price = 7", T),
        ("NOT price = 8 AND region = 'eu'", T),
        ("NOT (price = 8 AND region = 'eu')", T),
        ("price = 7 OR region = 'x' AND FALSE", T),
        ("(price = 7 OR region = 'x') AND FALSE", F),
        ("((price)) = (7)", T),
        ("((price) > (6))", T),
        ("TAGS = 'created'", T),
        ("TAGS IN ('created', 'paid')", T),
        ("\"TAGS\" = 'created'", T),
        ("KEYS = 'k1 k2'", T),
        ("KEYS LIKE '%k2%'", T),
        ("\"and\" = 'keyword'", T),
        ("\"order-type\" = 'quick'", T),
        ("price=7 and region='eu'or FALSE", T),
        ("\t price\r\n=\f7 ", T),
    ],
)
def test_what_an_expression_says_of_a_message(expression: str, value: bool | None) -> None:
    condition = parse(expression)
    assert compile_condition(condition)(MESSAGE) is value
    assert evaluated(condition, MESSAGE) is value, "the second opinion"
    assert by_expression(expression)(MESSAGE) is (value is True)


def test_without_tag_and_keys_they_are_null() -> None:
    bare = Attributes({"TAGS": "not this one", "KEYS": "nor this one"})
    assert by_expression("TAGS IS NULL AND KEYS IS NULL")(bare)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("007", 7),
        ("+7", 7),
        ("-7", -7),
        ("9" * 40, int("9" * 40)),
        ("9" * 41, None),
        ("5.", 5.0),
        (".5", 0.5),
        ("-1.5E+3", -1500.0),
        ("1e999", None),
        ("", None),
        (".", None),
        ("e5", None),
        ("1e", None),
        ("--5", None),
        ("+", None),
        ("- 5", None),
        (" 5", None),
        ("5\n", None),
        ("5L", None),
        ("1_000", None),
        ("0x10", None),
        ("nan", None),
        ("inf", None),
        ("٣", None),
        ("²", None),
    ],
)
def test_which_texts_are_numbers(text: str, value: int | float | None) -> None:
    found = number_of(text)
    assert found == value
    assert type(found) is type(value)


# --- every tree ------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "TAGS", "KEYS", "and", "x y", 'q"q')
TEXTS = ("", "1", "1.0", "-2", "5e0", "true", "False", "a", "ab", "b%", "a_b", "''", "k")

texts = st.sampled_from(TEXTS) | st.text("ab%_!'", max_size=5)
properties = st.sampled_from(NAMES).map(Property)
numbers = (st.integers(-6, 6) | st.sampled_from((0.5, -2.0, 1e16, 1e-7, 10**30))).map(Number)
sizes = properties | numbers


def _kinds(pair: tuple[Any, Any]) -> bool:
    first, second = pair
    return type(first) is type(second) or isinstance(first, Property) or isinstance(second, Property)


def _in_order(pair: tuple[Any, Any]) -> bool:
    low, high = pair
    return not (isinstance(low, Number) and isinstance(high, Number) and low.value > high.value)


operands = properties | numbers | texts.map(Text) | st.booleans().map(Boolean)
equalities = st.tuples(operands, operands).filter(_kinds)
predicates: st.SearchStrategy[Condition] = st.one_of(
    st.booleans().map(Boolean),
    st.builds(lambda pair, operator: Comparison(pair[0], operator, pair[1]), equalities, st.sampled_from(("=", "<>"))),
    st.builds(Comparison, sizes, st.sampled_from(("<", "<=", ">", ">=")), sizes),
    st.builds(
        lambda value, bounds, negated: Between(value, bounds[0], bounds[1], negated),
        sizes,
        st.tuples(sizes, sizes).filter(_in_order),
        st.booleans(),
    ),
    st.builds(
        InList, properties, st.lists(numbers | texts.map(Text), min_size=1, max_size=4).map(tuple), st.booleans()
    ),
    st.builds(Like, properties, texts, st.sampled_from((None, "!", "%", "_", "a")), st.booleans()).filter(
        lambda each: escape_error(each.pattern, each.escape) is None
    ),
    st.builds(Find, properties, st.sampled_from(("CONTAINS", "STARTSWITH", "ENDSWITH")), texts, st.booleans()),
    st.builds(IsNull, properties, st.booleans()),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    predicates,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
    ),
    max_leaves=6,
)
messages = st.builds(
    Attributes,
    st.dictionaries(st.sampled_from(NAMES), texts),
    st.none() | texts,
    st.lists(st.sampled_from(("k", "1")), max_size=2).map(tuple),
)


@settings(max_examples=500)
@given(conditions)
def test_a_printed_tree_reads_back_as_the_same(condition: Condition) -> None:
    assert parse(printed(condition)) == condition


@settings(max_examples=1_500)
@given(conditions, messages)
def test_closures_agree_with_the_second_opinion(condition: Condition, message: Attributes) -> None:
    assert compile_condition(condition)(message) is evaluated(condition, message)


@settings(max_examples=1_000)
@given(st.text("ab%_", max_size=8), st.text("abc", max_size=10))
def test_like_agrees_with_the_second_opinion(pattern: str, text: str) -> None:
    assert like(pattern, None)(text) is is_like(text, pattern, None)


def test_pieces_of_a_pattern_do_not_overlap() -> None:
    for text, pattern in (("aba", "ab%ba"), ("aba", "%ab%ba"), ("ab", "ab%b"), ("aa", "%aa%a%"), ("aba", "ab%_a")):
        assert not like(pattern, None)(text), pattern
        assert like(pattern, None)(text + text), pattern


def test_like_takes_every_character() -> None:
    assert like("_\n%", None)("é\n\x00😀")
    assert like("__", None)("😀\ud800")
    assert not like("_", None)("é" + "\u0301")


def test_like_takes_a_step_per_character_whatever_the_pattern() -> None:
    """A matcher that goes back to try again needs years for the first of these."""
    text = "a" * 32_000
    for pattern in ("%a" * 60 + "%b", "%_a" * 60 + "b", "%a_" * 40 + "%b%", "_%" * 100 + "b", "%" * 200 + "b"):
        matches = like(pattern, None)
        assert not matches(text)
        assert matches(text + "b")


def test_the_largest_expressions_are_taken() -> None:
    many = ",".join(str(number) for number in range(FILTER_IN_ITEMS_MAX))
    assert by_expression(f"a IN ({many})")(Attributes({"a": "255"}))
    likes = " OR ".join(["a LIKE '_'"] * FILTER_LIKES_MAX)
    assert by_expression(likes)(Attributes({"a": "x"}))
    deep = "(" * 16 + "NOT " * 16 + "a" + ")" * 16
    assert by_expression(deep)(Attributes({"a": "true"}))


def test_a_compiled_expression_is_kept() -> None:
    assert by_expression("kept = 1") is by_expression("kept = 1")


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("A", {"A"}),
        (" A || B||C ", {"A", "B", "C"}),
        ("A || A", {"A"}),
        ("A | B", {"A | B"}),
        ("*", None),
        (" * ", None),
        ("A || *", {"A", "*"}),
    ],
)
def test_tags(text: str, tags: set[str] | None) -> None:
    assert tag_set(text) == tags


@pytest.mark.parametrize("text", ["", " ", "A ||", "|| A", "A || || B"])
def test_empty_tags_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="separated by"):
        tag_set(text)


def test_tags_select() -> None:
    selects = by_tags(frozenset({"A", "B"}))
    assert [selects(Attributes({}, tag)) for tag in ("A", "B", "C", None)] == [True, True, False, False]
