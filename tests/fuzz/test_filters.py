"""Fuzzes filters and messages of strangers: an answer or InvalidFilter, quickly, and within the limits."""

from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from cluster.filters.errors import SHOWN_CHARACTERS, InvalidFilter
from cluster.filters.evaluation import compile_condition
from cluster.filters.like import escape_error, like
from cluster.filters.parser import parse
from cluster.limits import FILTER_BYTES_MAX, FILTER_PATTERN_LENGTH_MAX
from cluster.messages.blocks import BlockMessage
from cluster.problems import problem_of
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged

REQUEST_LINE_BYTES_MAX = 8_190
SAMPLES = (
    "price > 3 AND region = 'eu' OR NOT (tag IN ('a', 'b''c', -5.5e3) AND name LIKE 'x!_%' ESCAPE '!')",
    'a BETWEEN 1 AND 2 OR b NOT BETWEEN -1 AND c OR d IS NOT NULL AND "e ""f" CONTAINS \'x\' OR TRUE',
)
WORDS = (
    *("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH"),
    *("a", "b", "TAGS", '"', "'", "''", "'a'", "'_%'", "''''", "(", ")", ",", "=", "<>", "!=", "<=", ">", "-", "+"),
    *("1", "0", ".5", "1e9", "1e400", "9" * 50, "1.", "L", "é", "\x00", "\ud800", "\n", "--", "/*", ";", "\\"),
)

texts = st.text(max_size=40) | st.sampled_from(("", "1", "-1.5", "true", "a" * 32_000, "_" * 300, "%%", "1" * 5_000))
messages = st.builds(
    BlockMessage,
    st.just(b"x"),
    st.none() | texts,
    st.lists(texts, max_size=2).map(tuple),
    st.dictionaries(st.sampled_from(("a", "b", "price", "region", "name")), texts, max_size=3),
)


def expressions() -> st.SearchStrategy[str]:
    nearly = st.sampled_from(SAMPLES).map(str.encode).flatmap(damaged).map(lambda data: data.decode("utf-8", "replace"))
    words = st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)
    glued = st.lists(st.sampled_from(WORDS), max_size=60).map("".join)
    noise = st.binary(max_size=200).map(lambda data: data.decode("latin-1"))
    repeated = st.tuples(st.sampled_from(WORDS), st.integers(1, 3_000)).map(lambda drawn: (drawn[0] + " ") * drawn[1])
    return nearly | words | glued | noise | repeated | st.text(max_size=100)


@fuzz(1_500)
@given(expressions(), messages)
@example("(" * FILTER_BYTES_MAX, BlockMessage(b"x"))
@example("NOT " * 500 + "a", BlockMessage(b"x"))
@example("'" * FILTER_BYTES_MAX, BlockMessage(b"x"))
@example("'" + "''" * 1_000, BlockMessage(b"x"))
@example('"' + '""' * 1_000, BlockMessage(b"x"))
@example("1" * FILTER_BYTES_MAX, BlockMessage(b"x"))
@example(" " * FILTER_BYTES_MAX, BlockMessage(b"x"))
@example(" OR ".join(["a LIKE '%_%'"] * 32), BlockMessage(b"x", properties={"a": "a" * 32_767}))
@example("a LIKE '" + "%a_" * 80 + "b'", BlockMessage(b"x", properties={"a": "a" * 32_767}))
@example("a LIKE '" + "%aa" * 80 + "b'", BlockMessage(b"x", properties={"a": "a" * 32_767}))
@example("a = 1", BlockMessage(b"x", properties={"a": "1" * 32_767}))
@example('TRUE " \ud800 "', BlockMessage(b"x"))
@example('0"\n"', BlockMessage(b"x"))
def test_an_expression_is_a_condition_or_refused_with_its_place(expression: str, message: BlockMessage) -> None:
    try:
        condition = parse(expression)
    except InvalidFilter as error:
        check_refusal(error, expression)
        return
    assert len(expression.encode(errors="surrogatepass")) <= FILTER_BYTES_MAX
    assert compile_condition(condition)(message) in (True, False, None)


def check_refusal(error: InvalidFilter, expression: str) -> None:
    assert 1 <= error.position <= len(expression) + 1
    problem = problem_of(error)
    assert problem is not None
    assert problem.code == "invalid_filter"
    assert problem.response().status == 400, "it can be said in JSON"
    message_line, shown, caret = error.detail.split("\n")
    assert message_line.startswith(f"column {error.position}: expected ")
    assert caret.strip(" ") == "^"
    assert len(caret) <= len(shown) + 1 <= 2 * SHOWN_CHARACTERS + 3


@fuzz(500)
@given(
    st.text("ab%_", max_size=FILTER_PATTERN_LENGTH_MAX) | st.text(max_size=20),
    st.sampled_from((None, "%", "_", "a", "!")),
    st.text("ab", max_size=300) | st.sampled_from(("a" * 32_767, "ab" * 16_000)),
)
def test_like_ends_soon(pattern: str, escape: str | None, text: str) -> None:
    if escape_error(pattern, escape) is None:
        assert like(pattern, escape)(text) in (True, False)


@fuzz(50)
@given(st.text("aé😀 '%", min_size=FILTER_BYTES_MAX // 4, max_size=FILTER_BYTES_MAX))
def test_every_expression_within_the_limit_fits_a_request_line(text: str) -> None:
    fits = text.encode()[:FILTER_BYTES_MAX].decode("utf-8", "ignore")
    path = f"/v1/topics/{'%25' * 127}/queues/1023/messages?offset={1 << 63}&max_messages=10000&max_bytes=16777216"
    line = f"GET {path}&wait_ms=30000&filter={quote(fits, safe='')} HTTP/1.1"
    assert len(line) <= REQUEST_LINE_BYTES_MAX
