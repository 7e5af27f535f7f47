"""Transactions: prepared -> committed | rolled_back | discarded.

- The first final decision wins and stays. Repeating it returns the recorded outcome; another decision is refused with
  the recorded outcome. `unknown` only adds to the timeline.
- A half message is only in the half topic's queue until it is committed. The commit writes rows that point at the
  half message's own place in the commit log: the body exists once.
- Ids are looked up in the dedupe window at the commit, when the messages get their offsets, not at prepare: an
  undecided half must neither swallow a plain message with the same id (the half may be rolled back) nor be delivered
  beside it. Prepare itself is idempotent by its transaction id.
- A commit to a topic that was deleted meanwhile is refused and changes nothing: create the topic again, and commit.
- Only an operator, who gives a name and a reason, gets a transaction out of `discarded`: by resuming it, or by a forced
  decision. The timeline keeps the discard and who undid it. Committed and rolled back are final.
"""

from collections.abc import Sequence

from store.commands.messages import BatchHeader, Position
from store.commands.transactions import (
    ChecksRecorded,
    Decide,
    Decided,
    Discard,
    Discarded,
    Prepare,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
)
from store.commands.views import TimelineEvent
from store.errors import (
    IDEMPOTENCY_CONFLICT,
    INVALID_REQUEST,
    PRODUCER_GROUP_MISMATCH,
    TRANSACTION_CONFLICT,
    TRANSACTION_NOT_FOUND,
    Refused,
)
from store.limits import CHECK_AFTER_MAX_MS, CHECK_IMMUNITY_MS, OPERATOR_BYTES_MAX, REASON_BYTES_MAX
from store.messages.block_location import BlockLocation
from store.messages.message_index import MessageIndex
from store.messages.outcomes import Event, EventType, Outcomes, message_events, messages_of
from store.messages.placement import At, CarriedOut, CheckedBatch, Placement
from store.messages.queues import OfTransaction, Queues, Unshown
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC, Topics
from store.steps import Steps
from store.transactions.op_messages import append_decision
from store.transactions.settings import ClusterSettings
from store.transactions.table import (
    COMMITTED,
    DISCARDED,
    PREPARED,
    ROLLED_BACK,
    STATES,
    HalfBatch,
    TransactionRecord,
    TransactionTable,
)


class Transactions:
    """Carries out the commands about transactions. Owned by the thread that applies."""

    def __init__(
        self,
        table: TransactionTable,
        topics: Topics,
        queues: Queues,
        placement: Placement,
        messages: MessageIndex,
        settings: ClusterSettings,
        outcomes: Outcomes,
    ) -> None:
        self.table = table
        self._topics = topics
        self._queues = queues
        self._placement = placement
        self._messages = messages
        self._settings = settings
        self._outcomes = outcomes

    def prepare(self, command: Prepare, at: At, block_offsets: Sequence[int]) -> Steps[Prepared]:
        """Store a half transaction: its record with the due time of its first check, and rows in the half topic."""
        transaction_id = command.transaction_id
        recorded = self.table.get(transaction_id)
        if recorded is not None:
            return _prepared_again(command, recorded)
        self._settings.require_transactions()
        check_after_ms = CHECK_IMMUNITY_MS if command.check_after_ms is None else command.check_after_ms
        _require_check_after("check_after_ms", check_after_ms)
        self._placement.check(command.batches, transactional=True, clock_ms=at.clock_ms)
        batches = tuple(
            _half_batch(header, at.position, offset)
            for header, offset in zip(command.batches, block_offsets, strict=True)
        )
        record = TransactionRecord(
            state=PREPARED,
            producer_group=command.producer_group,
            client_id=command.client_id,
            prepared_at_ms=at.clock_ms,
            prepared_index=at.raft_index,
            batches=batches,
            next_check_at_ms=at.clock_ms + check_after_ms,
        )
        self.table.add(transaction_id, record, command.batches)
        self._copy_to_system_topic(HALF_TOPIC, transaction_id, record, at)
        for number, header in enumerate(command.batches):
            if number:
                yield
            topic_id = self._topics.require(header.topic).id
            self._messages.add_half(topic_id, header.batch_id, transaction_id)
            if header.message_ids is not None:
                yield from self._messages.add_ids(topic_id, header.batch_id, header.message_ids)
        self._outcomes.add_all(
            message_events("HALF", half.topic, half.queue, None, half.block, messages_of(half.block, half.count))
            for half in batches
        )
        return Prepared(transaction_id, "prepared", False, at.clock_ms)

    def prepared_before(self, command: Prepare) -> CarriedOut | None:
        """Return the result of a transaction that is known already; None if it is unknown. Refused
        (`idempotency_conflict`) when it has other content.
        """
        recorded = self.table.get(command.transaction_id)
        if recorded is None:
            return None
        position = recorded.batches[0].block.position
        again = _prepared_again(command, recorded)
        return CarriedOut(again, recorded.prepared_index, position, recorded.prepared_at_ms)

    def decide(self, command: Decide, at: At) -> Decided | Steps[Decided]:
        """Commit or roll back, or note the answer `unknown`. Refused (`transaction_conflict`) after another decision,
        (`producer_group_mismatch`) for another producer group than that of the transaction.
        """
        transaction_id = command.transaction_id
        _check_audit(command)
        record = self._require(transaction_id)
        if command.producer_group is not None and command.producer_group != record.producer_group:
            detail = f"transaction {transaction_id} belongs to producer group {record.producer_group}"
            raise Refused(PRODUCER_GROUP_MISMATCH, detail, {"producer_group": record.producer_group})
        if command.decision == "unknown":
            return self._answer_unknown(command, record, at)
        wanted = COMMITTED if command.decision == "commit" else ROLLED_BACK
        decidable = (PREPARED, DISCARDED) if command.force else (PREPARED,)
        if record.state in decidable:
            return self._carry_out(command, record, wanted, at)
        if record.state != wanted:
            raise _conflict(transaction_id, record)
        return Decided(transaction_id, STATES[record.state], record.positions)

    def resume(self, command: ResumeTransaction, at: At) -> Resumed:
        """Resume a discarded transaction. Until the transaction is decided, a repetition by the same operator for the
        same reason returns the recorded result.
        """
        transaction_id = command.transaction_id
        _require_audit(command.operator, command.reason)
        _require_check_after("next_check_after_ms", command.next_check_after_ms)
        record = self._require(transaction_id)
        if record.state == DISCARDED:
            self.table.reopen_timeline(transaction_id, record)
            record.operator = command.operator
            record.reason = command.reason
            record.principal = at.principal
            event = TimelineEvent(
                at.clock_ms,
                "resumed",
                at.raft_index,
                source="operator",
                operator=command.operator,
                reason=command.reason,
                principal=at.principal,
            )
            self.table.add_event(transaction_id, record, event, audit=True)
            self.table.resume(transaction_id, record, at.clock_ms + command.next_check_after_ms)
            self._note("RESUME", transaction_id, record)
        elif record.state != PREPARED or (record.operator, record.reason) != (command.operator, command.reason):
            raise _conflict(transaction_id, record)
        return Resumed(transaction_id, STATES[record.state], record.next_check_at_ms)

    def record_checks(self, command: RecordChecks, at: At) -> ChecksRecorded:
        """Count a delivered check of each transaction, and set the due time of the next one."""
        _require_check_after("next_check_after_ms", command.next_check_after_ms)
        checked: list[str] = []
        for transaction_id, record in self._still_prepared(command.transaction_ids):
            record.check_times += 1
            event = TimelineEvent(at.clock_ms, "check", at.raft_index, command.client_id, via=command.via)
            self.table.add_event(transaction_id, record, event)
            self.table.set_next_check(transaction_id, record, at.clock_ms + command.next_check_after_ms)
            self.table.update(transaction_id, record)
            self._note("CHECK", transaction_id, record, command.client_id, record.check_times)
            checked.append(transaction_id)
        return ChecksRecorded(tuple(checked))

    def discard(self, command: Discard, at: At) -> Discarded:
        """Discard transactions. Their message ids are kept: a discarded transaction can still be delivered."""
        discarded: list[str] = []
        seen = dict(zip(command.transaction_ids, command.check_times, strict=False))
        for transaction_id, record in self._still_prepared(command.transaction_ids):
            if record.check_times < seen.get(transaction_id, 0):
                continue  # resumed meanwhile: its checks begin anew
            record.decided_at_ms = at.clock_ms
            record.decided_index = at.raft_index
            self.table.decide(transaction_id, record, DISCARDED)
            self._copy_to_system_topic(DISCARDED_TOPIC, transaction_id, record, at)
            append_decision(self._queues, self._topics, transaction_id, record, at)
            self._note("DISCARD", transaction_id, record)
            discarded.append(transaction_id)
        return Discarded(tuple(discarded))

    def _require(self, transaction_id: str) -> TransactionRecord:
        record = self.table.get(transaction_id)
        if record is None:
            detail = f"transaction {transaction_id} does not exist"
            raise Refused(TRANSACTION_NOT_FOUND, detail, {"transaction_id": transaction_id})
        return record

    def _carry_out(self, command: Decide, record: TransactionRecord, wanted: int, at: At) -> Steps[Decided]:
        """Carry a decision out: all that it shows, and the state, at once, after what may take long."""
        transaction_id = command.transaction_id
        self._note("COMMIT" if wanted == COMMITTED else "ROLLBACK", transaction_id, record, command.client_id)
        unshown = Unshown()
        if wanted == COMMITTED:
            record.positions = yield from self._place(transaction_id, record, at, unshown)
        self._queues.show(unshown)
        self.table.reopen_timeline(transaction_id, record)
        record.decided_at_ms = at.clock_ms
        record.decided_index = at.raft_index
        record.decided_source = command.source
        record.decided_client_id = command.client_id
        record.principal = at.principal
        if command.source == "operator":
            record.forced = command.force
            record.operator = command.operator or None
            record.reason = command.reason or None
        self.table.decide(transaction_id, record, wanted)
        append_decision(self._queues, self._topics, transaction_id, record, at)
        if len(record.batches) > 1:
            yield
        self.table.forget_message_ids(transaction_id, record)
        return Decided(transaction_id, STATES[record.state], record.positions)

    def _answer_unknown(self, command: Decide, record: TransactionRecord, at: At) -> Decided:
        if record.state == PREPARED:
            event = TimelineEvent(
                at.clock_ms,
                "answer",
                at.raft_index,
                command.client_id,
                answer="unknown",
                source=command.source,
                principal=at.principal,
            )
            self.table.add_event(command.transaction_id, record, event)
            self.table.update(command.transaction_id, record)
        return Decided(command.transaction_id, STATES[record.state], record.positions)

    def _place(
        self, transaction_id: str, record: TransactionRecord, at: At, unshown: Unshown
    ) -> Steps[tuple[Position, ...]]:
        """Give the batches their offsets, in their order, and rows, which are seen when `unshown` is shown.

        Refused, with nothing changed, if a topic or queue is gone.
        """
        for batch in record.batches:
            self._topics.require(batch.topic).require_queue(batch.queue)
        positions: list[Position] = []
        for number, batch in enumerate(record.batches):
            if number:
                yield
            ids = self.table.message_ids(transaction_id, number) if batch.has_message_ids else None
            hashes = self.table.key_hashes(transaction_id, number) if batch.has_keys else None
            topic = self._topics.require(batch.topic)
            seen = self._placement.seen(topic, batch.block.batch_id)
            checked = CheckedBatch(topic, batch.header(ids, hashes), seen)
            transaction = OfTransaction(transaction_id, len(positions), unshown)
            if ids is None:
                placed = self._placement.place(checked, batch.block, at, transaction)
            else:
                placed = yield from self._placement.place_in_steps(checked, batch.block, at, transaction)
            if placed.count:
                where = Position(placed.topic, placed.queue, placed.offset, placed.count, placed.deliver_at_ms)
                positions.append(where)
        return tuple(positions)

    def _note(
        self, type: EventType, transaction_id: str, record: TransactionRecord, client_id: str = "", times: int = 0
    ) -> None:
        group, client = record.producer_group, client_id or None
        self._outcomes.add(Event(type, transaction_id, group=group, client=client, attempt=times or None))

    def _copy_to_system_topic(self, name: str, transaction_id: str, record: TransactionRecord, at: At) -> None:
        """Append rows for the half messages to a system topic; the bodies stay where they are."""
        topic = self._topics.require(name)
        for batch in record.batches:
            self._queues.append(
                topic,
                0,
                batch.block,
                batch.count,
                stored_at_ms=at.clock_ms,
                raft_index=at.raft_index,
                transaction_id=transaction_id,
            )

    def _still_prepared(self, transaction_ids: Sequence[str]) -> list[tuple[str, TransactionRecord]]:
        """Return each prepared transaction once, in the given order. Decided and unknown ones are left out: their
        decisions raced with the command.
        """
        found: list[tuple[str, TransactionRecord]] = []
        for transaction_id in dict.fromkeys(transaction_ids):
            record = self.table.get(transaction_id)
            if record is not None and record.state == PREPARED:
                found.append((transaction_id, record))
        return found


def _half_batch(header: BatchHeader, position: int, offset: int) -> HalfBatch:
    block = BlockLocation.of(header, position, offset)
    return HalfBatch(
        header.topic,
        header.queue,
        header.count,
        block,
        header.message_ids is not None,
        header.deliver_at_ms,
        header.delay_ms,
        header.keys is not None,
    )


def _prepared_again(command: Prepare, recorded: TransactionRecord) -> Prepared:
    """Return the result of a repeated prepare; refuse (`idempotency_conflict`) other content. Queues and generated
    batch ids may differ: the broker chooses them anew.
    """
    new = [(header.topic, header.count, header.crc32c, header.length) for header in command.batches]
    old = [(batch.topic, batch.count, batch.block.crc32c, batch.block.length) for batch in recorded.batches]
    if new != old or command.producer_group != recorded.producer_group:
        detail = f"transaction id {command.transaction_id} was used for other content: take a new id"
        raise Refused(IDEMPOTENCY_CONFLICT, detail, {"transaction_id": command.transaction_id})
    return Prepared(command.transaction_id, STATES[recorded.state], True, recorded.prepared_at_ms)


def _require_check_after(name: str, duration_ms: int) -> None:
    if not 0 <= duration_ms <= CHECK_AFTER_MAX_MS:
        raise Refused(INVALID_REQUEST, f"{name} must be 0 to {CHECK_AFTER_MAX_MS}, not {duration_ms}")


def _check_audit(command: Decide) -> None:
    """Refuse (`invalid_request`) a forced decision that is not an operator's, or that lacks the operator's name and
    reason.
    """
    if command.source != "operator" or command.decision == "unknown":
        if command.force or command.operator or command.reason:
            detail = "force, operator and reason are for a commit or rollback by source operator"
            raise Refused(INVALID_REQUEST, detail)
    elif command.force:
        _require_audit(command.operator, command.reason)
    else:
        _require_short(command.operator, command.reason)


def _require_audit(operator: str, reason: str) -> None:
    if not operator or not reason:
        raise Refused(INVALID_REQUEST, "operator and reason: say who does this, and why")
    _require_short(operator, reason)


def _require_short(operator: str, reason: str) -> None:
    for name, text, bytes_max in (("operator", operator, OPERATOR_BYTES_MAX), ("reason", reason, REASON_BYTES_MAX)):
        if len(text.encode()) > bytes_max:
            raise Refused(INVALID_REQUEST, f"{name}: at most {bytes_max} bytes")


def _conflict(transaction_id: str, record: TransactionRecord) -> Refused:
    state = STATES[record.state]
    extra = {"transaction_id": transaction_id, "state": state, "decided_at_ms": record.decided_at_ms}
    return Refused(TRANSACTION_CONFLICT, f"transaction {transaction_id} is {state} already", extra)
