"""Parses the text into a tree by recursive descent. It finds every error in an expression, with its column.

condition   = conjunction {OR conjunction}
conjunction = negation {AND negation}
negation    = NOT negation | predicate
predicate   = primary [("=" | "<>" | "!=" | "<" | "<=" | ">" | ">=") primary]
            | primary [NOT] BETWEEN primary AND primary
            | primary [NOT] IN "(" literal {"," literal} ")"
            | primary [NOT] LIKE string [ESCAPE string]
            | primary [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string
            | primary IS [NOT] NULL
primary     = property | literal | TRUE | FALSE | "(" condition ")"
literal     = string | ["+" | "-"] number
"""

from typing import Final, NamedTuple, NoReturn

from cluster.filters.errors import InvalidFilter
from cluster.filters.like import escape_error
from cluster.filters.numeric import number_of
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
    Node,
    Not,
    Number,
    Operator,
    Or,
    Property,
    Search,
    Text,
)
from cluster.filters.tokens import Token, tokenize
from cluster.limits import (
    FILTER_BYTES_MAX,
    FILTER_DEPTH_MAX,
    FILTER_IN_ITEMS_MAX,
    FILTER_LIKES_MAX,
    FILTER_PATTERN_LENGTH_MAX,
)

_OPERATORS: Final[dict[str, Operator]] = {
    "=": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_SEARCHES: Final[dict[str, Search]] = {
    "CONTAINS": "CONTAINS",
    "STARTSWITH": "STARTSWITH",
    "ENDSWITH": "ENDSWITH",
}
_OPERAND: Final = "a property or a value"


class _Found(NamedTuple):
    """A parsed node, which may be an operand or a condition, and its first token."""

    node: Node
    token: Token


def parse(expression: str) -> Condition:
    """Parse the expression and return its condition. Raises InvalidFilter, which names the first wrong place."""
    encoded = expression.encode(errors="surrogatepass")
    if len(encoded) > FILTER_BYTES_MAX:
        fits = len(encoded[:FILTER_BYTES_MAX].decode(errors="ignore"))
        raise InvalidFilter(expression, fits + 1, f"the end after {FILTER_BYTES_MAX} bytes", f"{len(encoded)} bytes")
    return _Parser(expression).parse()


def _what_may_follow(node: Node, end: str) -> str:
    if isinstance(node, Property | Boolean):
        return f"an operator, AND, OR or {end}"
    return f"AND, OR or {end}" if isinstance(node, Condition) else f"an operator or {end}"


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._at = 0
        self._depth = 0
        self._likes = 0

    def parse(self) -> Condition:
        found = self._disjunction()
        if self._next.kind != "end":
            self._refuse(self._next, _what_may_follow(found.node, "the end"))
        return self._condition(found)

    # Conditions.

    def _disjunction(self) -> _Found:
        first = self._conjunction()
        if not self._is_keyword("OR"):
            return first
        parts = [self._condition(first)]
        while self._take_keyword("OR"):
            parts.append(self._condition(self._conjunction()))
        return _Found(Or(tuple(parts)), first.token)

    def _conjunction(self) -> _Found:
        first = self._negation()
        if not self._is_keyword("AND"):
            return first
        parts = [self._condition(first)]
        while self._take_keyword("AND"):
            parts.append(self._condition(self._negation()))
        return _Found(And(tuple(parts)), first.token)

    def _negation(self) -> _Found:
        token = self._next
        if not self._take_keyword("NOT"):
            return self._predicate()
        self._deeper(token)
        condition = self._condition(self._negation())
        self._depth -= 1
        return _Found(Not(condition), token)

    def _predicate(self) -> _Found:
        left = self._primary(f"{_OPERAND}, NOT or (")
        token = self._next
        if token.kind == "symbol" and token.text in _OPERATORS:
            self._at += 1
            return _Found(self._comparison(left, _OPERATORS[token.text], self._primary()), left.token)
        if self._take_keyword("IS"):
            negated = self._take_keyword("NOT")
            self._expect("keyword", "NULL", "NULL" if negated else "NULL or NOT NULL")
            return _Found(IsNull(self._property(left), negated), left.token)
        negated = self._take_keyword("NOT")
        token = self._next
        if self._take_keyword("BETWEEN"):
            return _Found(self._between(left, negated), left.token)
        if self._take_keyword("IN"):
            return _Found(self._in_list(left, negated), left.token)
        if self._take_keyword("LIKE"):
            return _Found(self._like(left, negated, token), left.token)
        if token.kind == "keyword" and token.text in _SEARCHES:
            self._at += 1
            node = Find(self._property(left), _SEARCHES[token.text], self._string("a string"), negated)
            return _Found(node, left.token)
        if negated:
            self._refuse(token, "BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH")
        return left

    def _comparison(self, left: _Found, operator: Operator, right: _Found) -> Comparison:
        if operator in ("=", "<>"):
            first, second = self._operand(left, _OPERAND), self._operand(right, _OPERAND)
            if type(first) is not type(second) and not isinstance(first, Property) and not isinstance(second, Property):
                self._refuse(right.token, "a property, or a value of the same kind as the other one")
            return Comparison(first, operator, second)
        return Comparison(self._orderable(left), operator, self._orderable(right))

    def _between(self, value: _Found, negated: bool) -> Between:
        low = self._orderable(self._primary())
        self._expect("keyword", "AND", "AND")
        found = self._primary()
        high = self._orderable(found)
        if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
            self._refuse(found.token, f"a number that is not below {low.value}")
        return Between(self._orderable(value), low, high, negated)

    def _in_list(self, left: _Found, negated: bool) -> InList:
        self._expect("symbol", "(", "(")
        items: list[Number | Text] = []
        while True:
            token = self._next
            if len(items) == FILTER_IN_ITEMS_MAX:
                self._refuse(token, f"at most {FILTER_IN_ITEMS_MAX} values")
            item = self._primary().node if token.kind != "symbol" or token.text != "(" else None
            if not isinstance(item, Number | Text):
                self._refuse(token, "a string or a number")
            items.append(item)
            if not self._take_symbol(","):
                break
        self._expect("symbol", ")", ", or )")
        return InList(self._property(left), tuple(items), negated)

    def _like(self, left: _Found, negated: bool, like: Token) -> Like:
        self._likes += 1
        if self._likes > FILTER_LIKES_MAX:
            self._refuse(like, f"at most {FILTER_LIKES_MAX} LIKE")
        token = self._next
        pattern = self._string("a string as the pattern")
        if len(pattern) > FILTER_PATTERN_LENGTH_MAX:
            self._refuse(token, f"a pattern of at most {FILTER_PATTERN_LENGTH_MAX} characters")
        escape = None
        if self._take_keyword("ESCAPE"):
            escape_token = self._next
            escape = self._string("a string of one character")
            if len(escape) != 1:
                self._refuse(escape_token, "a string of one character")
        expected = escape_error(pattern, escape)
        if expected is not None:
            self._refuse(token, expected)
        return Like(self._property(left), pattern, escape, negated)

    # Operands.

    def _primary(self, expected: str = _OPERAND) -> _Found:
        token = self._next
        if token.kind == "symbol" and token.text in ("+", "-"):
            self._at += 1
            if self._next.kind != "number":
                self._refuse(self._next, "a number")
            value = self._take().number
            return _Found(Number(-value if token.text == "-" else value), token)
        if self._take_symbol("("):
            self._deeper(token)
            inside = self._disjunction()
            self._expect("symbol", ")", _what_may_follow(inside.node, ")"))
            self._depth -= 1
            return _Found(inside.node, token)
        node: Node
        if token.kind == "name":
            node = Property(token.text)
        elif token.kind == "number":
            node = Number(token.number)
        elif token.kind == "string":
            node = Text(token.text)
        elif token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            node = Boolean(token.text == "TRUE")
        elif token.kind == "keyword" and token.text == "NULL":
            self._refuse(token, f"{_OPERAND}; test a missing property with IS NULL")
        else:
            self._refuse(token, expected)
        self._at += 1
        return _Found(node, token)

    def _condition(self, found: _Found) -> Condition:
        if isinstance(found.node, Property):
            return Comparison(found.node, "=", Boolean(True))
        if not isinstance(found.node, Condition):
            self._refuse(found.token, "a condition, not a value alone")
        return found.node

    def _operand(self, found: _Found, expected: str) -> Property | Number | Text | Boolean:
        if not isinstance(found.node, Property | Number | Text | Boolean):
            self._refuse(found.token, expected, "a condition")
        return found.node

    def _orderable(self, found: _Found) -> Property | Number:
        """Return the operand as a property or a number. A string literal is accepted if its text is a number."""
        node = self._operand(found, "a number or a property")
        if isinstance(node, Text):
            value = number_of(node.value)
            if value is not None:
                return Number(value)
        if not isinstance(node, Property | Number):
            self._refuse(found.token, "a number or a property")
        return node

    def _property(self, found: _Found) -> Property:
        if not isinstance(found.node, Property):
            self._refuse(found.token, "a property")
        return found.node

    def _string(self, expected: str) -> str:
        if self._next.kind != "string":
            self._refuse(self._next, expected)
        return self._take().text

    # Tokens.

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is_keyword(self, word: str) -> bool:
        return self._next.kind == "keyword" and self._next.text == word

    def _take_keyword(self, word: str) -> bool:
        taken = self._is_keyword(word)
        self._at += taken
        return taken

    def _take_symbol(self, symbol: str) -> bool:
        taken = self._next.kind == "symbol" and self._next.text == symbol
        self._at += taken
        return taken

    def _expect(self, kind: str, text: str, expected: str) -> None:
        if self._next.kind != kind or self._next.text != text:
            self._refuse(self._next, expected)
        self._at += 1

    def _deeper(self, token: Token) -> None:
        self._depth += 1
        if self._depth > FILTER_DEPTH_MAX:
            self._refuse(token, f"at most {FILTER_DEPTH_MAX} parentheses and NOTs within each other")

    def _refuse(self, token: Token, expected: str, found: str | None = None) -> NoReturn:
        raise InvalidFilter(self._expression, token.position, expected, token.shown if found is None else found)
