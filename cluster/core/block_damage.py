"""Message blocks that are not what was produced, although the log's records are what was written: found by readers.

They were damaged in the memory of the node that led, before its log knew their checksum, so all replicas have them
alike: no replica can repair them, and none is to be distrusted for it.
"""

import logging
from typing import Final

from cluster.problems import Problem

logger = logging.getLogger(__name__)

DAMAGES_MAX: Final = 100
"""Kept for the alarm; each further one is refused and logged all the same."""


class BlockDamages:
    """Loop-only; cluster/health/block_alarm.py tells of them. Nothing of it is kept beyond the process: whoever reads
    such a block again finds it again."""

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], str] = {}
        """Ids of the damaged ones, by the position of the record and the block's offset in it."""

    def note(self, position: int, block_offset: int, batch_id: str) -> Problem:
        """The batch whose block lies in the record at `position`, from `block_offset` on, is damaged; what its readers
        are told."""
        if (position, block_offset) not in self.batches and len(self.batches) < DAMAGES_MAX:
            logger.error(
                "batch %s, in the log record at %d, is not what was produced: its checksum differs", batch_id, position
            )
            self.batches[position, block_offset] = batch_id
        detail = f"batch {batch_id}, in the log record at {position}, was damaged before it was stored: it is lost"
        return Problem("message_damaged", detail, {"batch_id": batch_id, "position": position})
