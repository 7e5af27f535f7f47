"""An acknowledged offset commit is kept and never goes back."""

from collections.abc import Mapping

from store.state.machine import StateMachine

from .violation import Violation


def check_offsets_kept(machine: StateMachine, group: str, acknowledged: Mapping[tuple[str, int], int]) -> None:
    """Check the committed offsets against `acknowledged`: (topic, queue) -> highest offset whose commit was
    acknowledged.
    """
    committed = {(item.topic, item.queue): item.offset for item in machine.offsets(group) or ()}
    for place, offset in acknowledged.items():
        if committed.get(place, 0) < offset:
            raise Violation("group_offsets", f"{group} committed {offset} at {place}, now it is {committed.get(place)}")
    for (topic, queue), offset in committed.items():
        if offset > machine.max_offset(topic, queue):
            raise Violation("group_offsets", f"{group} is at {offset} of {topic} {queue}, beyond its end")
