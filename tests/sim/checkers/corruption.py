"""Corruption of synced data is noticed and named, and a node never stops for corruption that is not there."""

import re
from collections.abc import Sequence
from typing import Protocol

from .violation import Violation

_LOG = re.compile(
    r"commit log is corrupt \((?P<case>\w+)\): .* \[segment \S+, position (?P<position>\d+)(, index (?P<index>\d+))?\]"
)
_HARD_STATE = re.compile(r"hard state \S+ is damaged")
HARD_STATE_CASE = "hard_state_damaged"
_CASES = {
    "payload": {"corrupt_synced_record"},
    "header": {"corrupt_synced_record"},
    "segment_lost": {"missing_segment"},
    "segment_cut": {"missing_segment", "segment_shorter_than_expected"},
    "segment_grown": {"segment_longer_than_expected"},
    "tail_lost": {"synced_tail_lost", "corrupt_synced_record"},
    "hard_state": {HARD_STATE_CASE},
}


class Damaged(Protocol):
    @property
    def what(self) -> str: ...
    @property
    def position(self) -> int | None: ...
    @property
    def index(self) -> int | None: ...


def corruption_case(reason: str) -> str | None:
    """Return the name of the damage in a node's reason to stop; None if it stops for another reason."""
    if found := _LOG.search(reason):
        return found["case"]
    return HARD_STATE_CASE if _HARD_STATE.search(reason) else None


def check_corruption(node_id: int, reason: str, damages: Sequence[Damaged]) -> None:
    """Check the reason of a node that stops for corruption: it must name one of `damages`, those that its disk has at
    this moment.
    """
    case, found = corruption_case(reason), _LOG.search(reason)
    for damage in damages:
        if case not in _CASES.get(damage.what, ()):
            continue
        if found is None or damage.position is None:
            return
        if damage.position == int(found["position"]) and found["index"] in (None, str(damage.index)):
            return
    raise Violation("corruption", f"node {node_id} stops with {reason!r}; its disk is damaged at {list(damages)}")
