"""A checker of the group's offsets that members are told. A leader's answer includes every commit that was acknowledged
before the question, so no member begins before an offset that an earlier session has committed. Only a reset takes a
commit back.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from .group_model import Place
from .violation import Violation


class Asked(NamedTuple):
    """The resets and the acknowledged commits that were known when a question, or a commit, left."""

    resets: dict[Place, int]
    acknowledged: dict[Place, int]


class OffsetReads:
    """Check the offsets that one group's members are told. The asker keeps what `asked` returns until the answer is
    there.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._resets: Counter[Place] = Counter()
        self._acknowledged: dict[Place, int] = {}

    def on_reset(self, places: Collection[Place]) -> None:
        """Record a reset that some node has applied."""
        for place in places:
            self._resets[place] += 1
            self._acknowledged.pop(place, None)

    def asked(self) -> Asked:
        return Asked(dict(self._resets), dict(self._acknowledged))

    def committed(self, asked: Asked, offsets: Mapping[Place, int]) -> None:
        """Record an acknowledged commit. A reset since it left may have come before or after it."""
        for place, offset in offsets.items():
            if self._resets[place] == asked.resets.get(place, 0):
                self._acknowledged[place] = max(offset, self._acknowledged.get(place, 0))

    def answered(self, asked: Asked, offsets: Mapping[Place, int], node_id: int) -> None:
        """Check a node's answer about the group's committed offsets."""
        for place, acknowledged in asked.acknowledged.items():
            if self._resets[place] == asked.resets.get(place, 0) and offsets.get(place, 0) < acknowledged:
                raise Violation(
                    "offset_read",
                    f"group {self._group}: {acknowledged} of {place} was acknowledged before node {node_id} was asked, "
                    f"which says {offsets.get(place)}",
                )
