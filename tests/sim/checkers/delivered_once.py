"""An acknowledged batch is there exactly once, where it was said to be; nothing is there that nobody sent."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from store.commands.views import Row

from .violation import Violation

Key = TypeVar("Key")
Contents = Mapping[tuple[str, int], Sequence[Row]]
"""All rows of all queues of one node: (topic, queue) -> rows."""


def places_of(contents: Contents) -> dict[tuple[str, str], list[tuple[str, int, int]]]:
    """Return a map (topic, batch id) -> every (topic, queue, offset) where the batch is."""
    places: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for (topic, queue), rows in contents.items():
        for row in rows:
            places.setdefault((topic, row.batch_id), []).append((topic, queue, row.base_offset))
    return places


def check_delivered_once(
    places: Mapping[Key, Sequence[tuple[str, int, int]]], sent: Mapping[Key, tuple[str, tuple[int, int] | None]]
) -> None:
    """Check the delivered batches against `sent`: batch -> its topic, and (queue, offset) if it was acknowledged
    there.
    """
    for batch_id, found in places.items():
        if batch_id not in sent:
            raise Violation("phantom", f"batch {batch_id} at {found} was never sent")
        if len(found) > 1:
            raise Violation("delivered_once", f"batch {batch_id} is there {len(found)} times: {found}")
    for batch_id, (topic, placed) in sent.items():
        if placed is None:
            continue
        at = list(places.get(batch_id, ()))
        if at != [(topic, *placed)]:
            raise Violation(
                "acknowledged_lost", f"batch {batch_id}, acknowledged at {topic} {placed}, is at {at or 'no place'}"
            )
