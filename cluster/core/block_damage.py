"""Damaged message blocks in sound log records: a reader found a block that does not match the producer's checksum.

The block was damaged in the memory of the leader before the log computed the record's checksum, so all replicas hold
the same damaged block: no replica can repair it, and none is to be distrusted for it.
"""

import logging
from typing import Final

from cluster.problems import Problem

logger = logging.getLogger(__name__)

DAMAGES_MAX: Final = 100
"""Maximum number of damaged batches kept for the alarm. Reads of further ones are refused all the same."""


class BlockDamages:
    """Owns the list of damaged batches, from which cluster/health/block_alarm.py raises alarms. Use on the event loop
    only. The list ends with the process: the next reader of a damaged block finds it again."""

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], str] = {}
        """Ids of damaged batches, by the position of the record and the block's offset in it."""

    def note(self, position: int, block_offset: int, batch_id: str) -> Problem:
        """Note the damaged batch whose block begins at `block_offset` in the record at `position`. Return the problem
        that answers its readers."""
        if (position, block_offset) not in self.batches and len(self.batches) < DAMAGES_MAX:
            logger.error(
                "batch %s, in the log record at %d, differs from the produced one: wrong checksum", batch_id, position
            )
            self.batches[position, block_offset] = batch_id
        detail = (
            f"batch {batch_id}, in the log record at {position}, was damaged before it was stored and is lost; read on "
            "behind it"
        )
        return Problem("message_damaged", detail, {"batch_id": batch_id, "position": position})
