"""A violation, described in words."""

from typing import Literal, NamedTuple

Kind = Literal["lost", "phantom", "damage", "term", "answer", "refusal", "replicas"]


class Violation(NamedTuple):
    kind: Kind
    detail: str
