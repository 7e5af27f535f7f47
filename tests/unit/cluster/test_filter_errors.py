"""A filter error names the column, the expected token, and the token that was found."""

from pathlib import Path

import pytest

from cluster import limits
from cluster.filters.errors import SHOWN_CHARACTERS, InvalidFilter
from cluster.filters.parser import parse
from cluster.filters.selection import by_expression
from cluster.limits import (
    FILTER_BYTES_MAX,
    FILTER_DEPTH_MAX,
    FILTER_IN_ITEMS_MAX,
    FILTER_LIKES_MAX,
    FILTER_NUMBER_LENGTH_MAX,
    FILTER_PATTERN_LENGTH_MAX,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "filters.md"


def refusal(expression: str) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse(expression)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "position", "expected", "found"),
    [
        ("", 1, "a property or a value, NOT or (", "the end"),
        ("   ", 4, "a property or a value, NOT or (", "the end"),
        ("price >", 8, "a property or a value", "the end"),
        ("price > > 3", 9, "a property or a value", ">"),
        ('price "a\nb"', 7, "an operator, AND, OR or the end", "a b"),
        ('price "\ud800"', 7, "an operator, AND, OR or the end", " "),
        ("price > 3 AND", 14, "a property or a value, NOT or (", "the end"),
        ("price > 3 AND OR x", 15, "a property or a value, NOT or (", "OR"),
        ("AND price > 3", 1, "a property or a value, NOT or (", "AND"),
        ("price > 3 region = 'eu'", 11, "AND, OR or the end", "region"),
        ("price = 3 = 4", 11, "AND, OR or the end", "="),
        ("price 3", 7, "an operator, AND, OR or the end", "3"),
        ("price == 3", 8, "a property or a value", "="),
        ("price > 'abc'", 9, "a number or a property", "'abc'"),
        ("'abc' <= price", 1, "a number or a property", "'abc'"),
        ("price < TRUE", 9, "a number or a property", "TRUE"),
        ("price = (a > 3)", 9, "a property or a value", "a condition"),
        ("(a > 3) < 5", 1, "a number or a property", "a condition"),
        ("5 = 'a'", 5, "a property, or a value of the same kind as the other one", "'a'"),
        ("TRUE = 5", 8, "a property, or a value of the same kind as the other one", "5"),
        ("price = NULL", 9, "a property or a value; test a missing property with IS NULL", "NULL"),
        ("price IS 5", 10, "NULL or NOT NULL", "5"),
        ("price IS NOT 5", 14, "NULL", "5"),
        ("5 IS NULL", 1, "a property", "5"),
        ("5", 1, "a condition, not a value alone", "5"),
        ("price > 3 AND 'x'", 15, "a condition, not a value alone", "'x'"),
        ("NOT 5", 5, "a condition, not a value alone", "5"),
        ("(price > 3", 11, "AND, OR or )", "the end"),
        ("(price", 7, "an operator, AND, OR or )", "the end"),
        ("(5", 3, "an operator or )", "the end"),
        ("price > 3)", 10, "AND, OR or the end", ")"),
        ("()", 2, "a property or a value, NOT or (", ")"),
        ("a BETWEEN 1", 12, "AND", "the end"),
        ("a BETWEEN 1 OR 2", 13, "AND", "OR"),
        ("a BETWEEN 5 AND 1", 17, "a number that is not below 5", "1"),
        ("a NOT BETWEEN 5 AND 1", 21, "a number that is not below 5", "1"),
        ("a BETWEEN 'x' AND 1", 11, "a number or a property", "'x'"),
        ("'x' BETWEEN 1 AND 2", 1, "a number or a property", "'x'"),
        ("a NOT = 5", 7, "BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH", "="),
        ("a IN 5", 6, "(", "5"),
        ("a IN ()", 7, "a property or a value", ")"),
        ("a IN (b)", 7, "a string or a number", "b"),
        ("a IN (1, TRUE)", 10, "a string or a number", "TRUE"),
        ("a IN (1, (2))", 10, "a string or a number", "("),
        ("a IN (1 2)", 9, ", or )", "2"),
        ("a IN (1,", 9, "a property or a value", "the end"),
        ("5 IN (5)", 1, "a property", "5"),
        ("a LIKE 5", 8, "a string as the pattern", "5"),
        ("a LIKE b", 8, "a string as the pattern", "b"),
        ("5 LIKE 'x'", 1, "a property", "5"),
        ("a LIKE 'x' ESCAPE ''", 19, "a string of one character", "''"),
        ("a LIKE 'x' ESCAPE '!!'", 19, "a string of one character", "'!!'"),
        ("a LIKE 'x' ESCAPE 5", 19, "a string of one character", "5"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "%, _ or ! behind every ! of the pattern", "'x!'"),
        ("a LIKE '!!!x' ESCAPE '!'", 8, "%, _ or ! behind every ! of the pattern", "'!!!x'"),
        ("a CONTAINS 5", 12, "a string", "5"),
        ("a = -b", 6, "a number", "b"),
        ("a = - -5", 7, "a number", "-"),
        ("a = +", 6, "a number", "the end"),
        ("a = 'x", 5, "a string that ends with '", "one that does not end"),
        ("a = 'it''s", 5, "a string that ends with '", "one that does not end"),
        ('"a = 5', 1, 'a quoted name that ends with "', "one that does not end"),
        ('a = 1 AND "" = 5', 11, "a property name between the quotes", "nothing"),
        ("a # 5", 3, "a property, a value, an operator or a parenthesis", "'#'"),
        ("größe > 5", 3, "a property, a value, an operator or a parenthesis", "'\\xf6'"),
        ("a.b = 5", 2, "a property, a value, an operator or a parenthesis", "'.'"),
        ("a ! = 5", 3, "a property, a value, an operator or a parenthesis", "'!'"),
        ("a = 5x", 6, "the end of the number", "x"),
        ("a = 1.2.3", 8, "the end of the number", "."),
        ("a = 1e", 6, "the end of the number", "e"),
        ("a = 1.5L", 8, "the end of the number", "L"),
        ("a = 5LL", 7, "the end of the number", "L"),
        (
            "a = 1e999",
            5,
            f"a number that a double can hold, in at most {FILTER_NUMBER_LENGTH_MAX} characters",
            "1e999",
        ),
    ],
)
def test_where_and_what(expression: str, position: int, expected: str, found: str) -> None:
    error = refusal(expression)
    assert (error.position, error.expected, error.found) == (position, expected, found)
    assert error.expression == expression


def test_the_caret_is_under_the_column() -> None:
    assert refusal("price >> 3").detail == ("column 8: expected a property or a value, found >\nprice >> 3\n       ^")
    assert str(refusal("price >\n> 3")).splitlines()[1:] == ["price > > 3", "        ^"], "one line, whatever it had"


def test_a_long_expression_is_cut_around_the_error() -> None:
    before, after = "a = 1 AND " * 20, " AND b = 1" * 20
    error = refusal(f"{before}? = 5{after}")
    assert error.position == len(before) + 1
    _, line, caret = error.detail.splitlines()
    assert line[caret.index("^")] == "?"
    assert len(line) <= 2 * SHOWN_CHARACTERS + 2
    assert (line[0], line[-1]) == ("…", "…")


def test_a_long_token_is_cut_in_the_error() -> None:
    assert refusal("a < '" + "x" * 500 + "'").found == "'" + "x" * 24 + "…'".replace("…", "\\u2026")


@pytest.mark.parametrize("text", ["a = '\ud800", "\ud800", "a = 1 \x00", "a = '\x1b[31m' 5"])
def test_the_error_is_text_that_can_be_sent_and_shown(text: str) -> None:
    detail = refusal(text).detail
    assert detail.encode()
    assert all(line.isprintable() for line in detail.splitlines())


# --- limits ----------------------------------------------------------------------------------------------------------


def padded(expression: str, length: int) -> str:
    return expression + " " * (length - len(expression.encode()))


def test_length_is_limited_in_bytes() -> None:
    parse(padded("a = 'é'", FILTER_BYTES_MAX))
    error = refusal(padded("a = 'é'", FILTER_BYTES_MAX + 1))
    assert (error.position, error.found) == (FILTER_BYTES_MAX, f"{FILTER_BYTES_MAX + 1} bytes")


@pytest.mark.parametrize("word", ["(", "NOT "])
def test_depth_is_limited(word: str) -> None:
    closing = ")" if word == "(" else ""
    parse(word * FILTER_DEPTH_MAX + "a" + closing * FILTER_DEPTH_MAX)
    error = refusal(word * (FILTER_DEPTH_MAX + 1) + "a" + closing * (FILTER_DEPTH_MAX + 1))
    assert error.position == FILTER_DEPTH_MAX * len(word) + 1
    assert str(FILTER_DEPTH_MAX) in error.expected
    parse(" AND ".join([f"{word}a{closing}"] * (2 * FILTER_DEPTH_MAX)))


def test_values_of_an_in_are_limited() -> None:
    parse(f"a IN ({','.join(['1'] * FILTER_IN_ITEMS_MAX)})")
    error = refusal(f"a IN ({','.join(['1'] * (FILTER_IN_ITEMS_MAX + 1))})")
    assert error.position == len("a IN (") + 2 * FILTER_IN_ITEMS_MAX + 1
    assert str(FILTER_IN_ITEMS_MAX) in error.expected


def test_likes_and_their_patterns_are_limited() -> None:
    one = "a LIKE '_' OR "
    parse(one * (FILTER_LIKES_MAX - 1) + "a LIKE '_'")
    error = refusal(one * FILTER_LIKES_MAX + "a LIKE '_'")
    assert error.position == len(one) * FILTER_LIKES_MAX + 3
    assert str(FILTER_LIKES_MAX) in error.expected
    parse(f"a LIKE '{'x' * FILTER_PATTERN_LENGTH_MAX}'")
    error = refusal(f"a LIKE '{'x' * (FILTER_PATTERN_LENGTH_MAX + 1)}'")
    assert (error.position, str(FILTER_PATTERN_LENGTH_MAX) in error.expected) == (8, True)


def test_the_length_of_a_number_is_limited() -> None:
    parse("a = " + "9" * FILTER_NUMBER_LENGTH_MAX)
    assert refusal("a = " + "9" * (FILTER_NUMBER_LENGTH_MAX + 1)).position == 5


def test_a_refusal_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(InvalidFilter):
            by_expression("a =")


def test_the_limits_are_the_documented_ones() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    for phrase in (
        f"at most {limits.FILTER_BYTES_MAX:,} bytes",
        f"nest {limits.FILTER_DEPTH_MAX} deep",
        f"at most {limits.FILTER_IN_ITEMS_MAX} values",
        f"at most {limits.FILTER_LIKES_MAX} `LIKE`",
        f"at most {limits.FILTER_PATTERN_LENGTH_MAX} characters",
        f"at most {limits.FILTER_NUMBER_LENGTH_MAX} characters",
    ):
        assert phrase in text, f"docs/filters.md does not say: {phrase}"
