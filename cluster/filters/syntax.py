"""The tree of a parsed expression. It says what is asked; only the parser makes one, so it is always meaningful."""

from typing import Literal

import msgspec

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
Search = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Node(msgspec.Struct, frozen=True):
    """Base of everything in the tree."""


class Property(Node, frozen=True):
    """A property of the message; TAGS and KEYS are its tag and its keys."""

    name: str


class Number(Node, frozen=True):
    value: int | float


class Text(Node, frozen=True):
    value: str


class Boolean(Node, frozen=True):
    """TRUE or FALSE; an operand, and a condition too."""

    value: bool


Operand = Property | Number | Text | Boolean


class Comparison(Node, frozen=True):
    """Ordering is between numbers and properties only. A property alone is compared with TRUE."""

    left: Operand
    operator: Operator
    right: Operand


class Between(Node, frozen=True):
    """low <= value <= high."""

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
    """The text is somewhere in the property, at its beginning or at its end."""

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
