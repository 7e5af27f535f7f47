"""Nothing acknowledged is lost: at the end, with all nodes up and healed, every acknowledged entry is there once."""

from collections import Counter
from collections.abc import Iterable

from .violation import Violation


def check_acknowledged_kept(acknowledged: Iterable[bytes], surviving: Iterable[bytes]) -> None:
    """Check the log that the cluster ends with; `surviving` are its payloads."""
    present = Counter(surviving)
    wanted = sorted(set(acknowledged))
    lost = [payload for payload in wanted if present[payload] == 0]
    if lost:
        raise Violation("acknowledged_lost", f"{len(lost)} acknowledged entries are gone, first {lost[0]!r}")
    doubled = [payload for payload in wanted if present[payload] > 1]
    if doubled:
        raise Violation("acknowledged_doubled", f"{len(doubled)} entries are there twice, first {doubled[0]!r}")
