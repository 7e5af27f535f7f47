"""A model of the rows that go before their retention is over: exactly the rows that nobody needs.

A retry goes when its group has processed it, and a dead letter some time after it was replayed. The list of discarded
transactions loses a transaction when it is decided, and the view of a half message goes when nothing else needs the log
before it. In a healed cluster no such row is left, so that nothing holds the log for ever.
"""

from collections.abc import Iterator

from store.commands.retention import Released, ReleaseMessages
from store.commands.views import Row
from store.index.index import Index
from store.limits import REPLAYED_KEPT_MS
from store.messages.log_references import Holder
from store.messages.topics import DISCARDED_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, group_of
from store.state.machine import StateMachine
from tests.unit.store.references import pointers

from .group_model import GroupModel, KnownGroup
from .pop_model import PopModel, PoppedGroup
from .redelivery_model import RedeliveryModel
from .retention import Retention
from .transaction_model import TransactionModel
from .violation import Violation


class Releases:
    def __init__(
        self,
        groups: GroupModel,
        pops: PopModel,
        redeliveries: RedeliveryModel,
        transactions: TransactionModel,
        retention: Retention,
    ) -> None:
        self.replayed_kept_ms = REPLAYED_KEPT_MS
        self._groups = groups
        self._pops = pops
        self._redeliveries = redeliveries
        self._transactions = transactions
        self._retention = retention

    def release(self, command: ReleaseMessages, result: object, clock_ms: int) -> None:
        assert isinstance(result, Released)
        for each in result.queues:
            for row in self._retention.remove(each):
                if not self._may_go(each.topic, row, clock_ms):
                    raise Violation("released", f"{row} of {each.topic} goes at {clock_ms}, and is still needed")

    def unreleased(self, machine: StateMachine, index: Index, range_bytes: int) -> str | None:
        """Return a description of a row or pointer that nobody needs and that is still there; None if there is none."""
        for topic, row in self._first_rows(machine):
            if topic != HALF_TOPIC and self._may_go(topic, row, machine.clock_ms):
                return f"{topic} begins with {row}"
        found = pointers(index)
        first = min((each.position // range_bytes for each in found if each.holder is not Holder.VIEW), default=None)
        for each in found:
            if first is None or each.position // range_bytes < first:
                return f"{each} holds the log alone"
        return None

    def _first_rows(self, machine: StateMachine) -> Iterator[tuple[str, Row]]:
        for topic in machine.topics(system=True):
            if topic.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or topic.topic == DISCARDED_TOPIC:
                for row in machine.rows(topic.topic, 0, 0, 1, 1):
                    yield topic.topic, row

    def _may_go(self, topic: str, row: Row, clock_ms: int) -> bool:
        if topic.startswith(RETRY_PREFIX):
            return row.next_offset <= self._processed(group_of(topic))
        if topic.startswith(DLQ_PREFIX):
            replayed_at_ms = self._redeliveries.replayed_at_ms(group_of(topic), row.base_offset)
            return replayed_at_ms is not None and replayed_at_ms + self.replayed_kept_ms <= clock_ms
        if topic in (HALF_TOPIC, DISCARDED_TOPIC):
            known = self._transactions.known.get(row.transaction_id or "")
            is_another = row.transaction_id in self._transactions.reborn
            return known is None or is_another or known.state in ("committed", "rolled_back")
        return False

    def _processed(self, group: str) -> int:
        place = (RETRY_PREFIX + group, 0)
        held = [offset for spot, offset in self._pops.known.get(group, PoppedGroup()).held if spot == place]
        return min((self._groups.known.get(group, KnownGroup()).offsets.get(place, 0), *held))
