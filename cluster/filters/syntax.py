"""The tree of a parsed expression. Only the parser builds trees, so every tree is valid."""

from typing import Literal

import msgspec

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
Search = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Node(msgspec.Struct, frozen=True):
    """Base class of all nodes in the tree."""


class Property(Node, frozen=True):
    """A property of the message. TAGS and KEYS name the message's tag and keys."""

    name: str


class Number(Node, frozen=True):
    value: int | float


class Text(Node, frozen=True):
    value: str


class Boolean(Node, frozen=True):
    """The constant TRUE or FALSE, which is both an operand and a condition."""

    value: bool


Operand = Property | Number | Text | Boolean


class Comparison(Node, frozen=True):
    """Compares two operands. Ordering operators take numbers and properties only. The parser compares a property that
    stands alone with TRUE.
    """

    left: Operand
    operator: Operator
    right: Operand


class Between(Node, frozen=True):
    """Tests low <= value <= high."""

    value: Property | Number
    low: Property | Number
    high: Property | Number
    negated: bool = False


class InList(Node, frozen=True):
    property: Property
    items: tuple[Number | Text, ...]
    negated: bool = False


class Like(Node, frozen=True):
    property: Property
    pattern: str
    escape: str | None = None
    negated: bool = False


class Find(Node, frozen=True):
    """Searches the text in the property: anywhere, at its beginning or at its end."""

    property: Property
    search: Search
    text: str
    negated: bool = False


class IsNull(Node, frozen=True):
    property: Property
    negated: bool = False


class Not(Node, frozen=True):
    condition: "Condition"


class And(Node, frozen=True):
    parts: tuple["Condition", ...]


class Or(Node, frozen=True):
    parts: tuple["Condition", ...]


Condition = Boolean | Comparison | Between | InList | Like | Find | IsNull | Not | And | Or
