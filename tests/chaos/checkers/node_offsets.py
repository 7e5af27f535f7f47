"""Reads a group's offsets from a stopped node's index: each node's own value, where the API has only the leader's."""

from pathlib import Path

from store.index.index import Index
from store.state.machine import StateMachine
from tests.chaos.reads import TopicQueue


def committed_in(data_dir: Path, group: str, last_index: int) -> dict[TopicQueue, int] | None:
    """Return the group's committed offsets; None when the index lacks entries up to `last_index`, which a start would
    replay (the node's disk was too full to flush the index).
    """
    index = Index.open(str(data_dir / "index"))
    try:
        machine = StateMachine(index)
        if machine.applied_index < last_index:
            return None
        return {(each.topic, each.queue): each.offset for each in machine.offsets(group) or ()}
    finally:
        index.close()
