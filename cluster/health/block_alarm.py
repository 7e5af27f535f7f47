"""The alarm for message blocks that were damaged before they were stored (cluster/core/block_damage.py)."""

from collections.abc import Iterator

from cluster.core.core import Core
from cluster.health.alarms import Condition


class BlockAlarm:
    def __init__(self, core: Core) -> None:
        self._damages = core.reads.damages

    def conditions(self) -> Iterator[Condition]:
        """For the alarms of the node."""
        for (position, _), batch_id in self._damages.batches.items():
            yield Condition(
                "message_damaged",
                "critical",
                f"batch {batch_id}, in the log record at {position}, was damaged before it was stored, on every node: "
                "the memory of the node that led then is not to be trusted. Consumers stop in front of it: send its "
                "messages again, and reset their groups behind it",
                batch_id,
            )
