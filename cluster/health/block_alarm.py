"""The alarm for message blocks that were damaged before they were stored (cluster/core/block_damage.py)."""

from collections.abc import Iterator

from cluster.core.core import Core
from cluster.health.alarms import Condition


class BlockAlarm:
    def __init__(self, core: Core) -> None:
        self._damages = core.reads.damages

    def conditions(self) -> Iterator[Condition]:
        """Yield one alarm per damaged batch."""
        for (position, _), batch_id in self._damages.batches.items():
            yield Condition(
                "message_damaged",
                "critical",
                f"batch {batch_id}, in the log record at {position}, was damaged before it was stored, on every node: "
                "the memory of the then leader is not to be trusted. Consumers stop before the batch: send its "
                "messages again, and reset the groups to an offset after the batch",
                batch_id,
            )
