"""A model of the broker's promises in plain lists and dicts. The state machine is compared with it."""

from dataclasses import dataclass, field

from store.commands.messages import BatchHeader

Content = tuple[int, int]


@dataclass
class ModelTransaction:
    batches: list[BatchHeader]
    state: str = "prepared"
    resumed: bool = False


@dataclass
class ModelTimer:
    """A batch that waits: the ordinals that will be delivered, and whether it keeps its batch id from others."""

    due_ms: int
    batch: BatchHeader
    ordinals: list[int]
    holds: bool
    topic_is_gone: bool = False

    def message_ids(self) -> list[str]:
        return [message_id_of(self.batch, ordinal) for ordinal in self.ordinals]


@dataclass
class Model:
    """The model. Each method returns None or the code of the refusal, and changes nothing when it refuses."""

    clock_ms: int = 0
    topics: dict[str, list[list[str]]] = field(default_factory=dict)
    """Identities of the visible messages in order, per topic and queue."""
    batch_ids: dict[tuple[str, str], Content] = field(default_factory=dict)
    message_ids: set[tuple[str, str]] = field(default_factory=set)
    transactions: dict[str, ModelTransaction] = field(default_factory=dict)
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    commits: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Every committed offset in order, per topic and queue."""
    timers: list[ModelTimer] = field(default_factory=list)
    """Timers in the order in which they were scheduled."""
    cancelled: set[tuple[str, str]] = field(default_factory=set)
    rejects_transactions: bool = False
    has_group: bool = False
    """True if the group that is paused exists."""
    paused_since_ms: int | None = None
    decisions: list[tuple[str, str]] = field(default_factory=list)
    """Contents of the op topic: transaction and state, in order."""

    def put_topic(self, topic: str, queues: int) -> str | None:
        existing = self.topics.setdefault(topic, [])
        if len(existing) > queues:
            return "topic_exists_with_more_queues"
        if any(key[0] == topic for key in self.committed):  # who has read the topic reads its new queues from 0
            self.committed.update({(topic, queue): 0 for queue in range(len(existing), queues)})
        existing += [[] for _ in range(queues - len(existing))]
        return None

    def delete_topic(self, topic: str) -> str | None:
        if topic not in self.topics:
            return "topic_not_found"
        del self.topics[topic]
        self.batch_ids = {key: value for key, value in self.batch_ids.items() if key[0] != topic}
        self.message_ids = {key for key in self.message_ids if key[0] != topic}
        self.committed = {key: value for key, value in self.committed.items() if key[0] != topic}
        self.commits = {key: value for key, value in self.commits.items() if key[0] != topic}
        self.cancelled = {key for key in self.cancelled if key[0] != topic}
        for timer in self._waiting(topic):
            timer.topic_is_gone = True
        return None

    def produce(self, batches: list[BatchHeader]) -> str | None:
        refused = self._refuse(batches)
        if refused is None:
            for batch in batches:
                self._deliver(batch)
        return refused

    def prepare(self, transaction_id: str, batches: list[BatchHeader]) -> str | None:
        recorded = self.transactions.get(transaction_id)
        if recorded is not None:
            same = [_shape(batch) for batch in recorded.batches] == [_shape(batch) for batch in batches]
            return None if same else "idempotency_conflict"
        if self.rejects_transactions:
            return "transactions_rejected"
        refused = self._refuse(batches)
        if refused is None:
            self.transactions[transaction_id] = ModelTransaction(batches)
        return refused

    def decide(self, transaction_id: str, state: str, *, force: bool = False) -> str | None:
        transaction = self.transactions.get(transaction_id)
        if transaction is None:
            return "transaction_not_found"
        if transaction.state not in ("prepared", state, *(("discarded",) if force else ())):
            return "transaction_conflict"
        if transaction.state == state:
            return None
        if state == "committed":
            for batch in transaction.batches:
                refused = self._refuse_queue(batch)
                if refused is not None:
                    return refused
            for batch in transaction.batches:
                self._deliver(batch)
        transaction.state = state
        self.decisions.append((transaction_id, state))
        return None

    def discard(self, transaction_id: str) -> None:
        transaction = self.transactions.get(transaction_id)
        if transaction is not None and transaction.state == "prepared":
            transaction.state = "discarded"
            self.decisions.append((transaction_id, "discarded"))

    def resume(self, transaction_id: str) -> str | None:
        transaction = self.transactions.get(transaction_id)
        if transaction is None:
            return "transaction_not_found"
        if transaction.state == "discarded":
            transaction.state = "prepared"
            transaction.resumed = True
        return None if transaction.state == "prepared" and transaction.resumed else "transaction_conflict"

    def commit_offset(self, topic: str, queue: int, offset: int) -> str | None:
        if topic not in self.topics:
            return "topic_not_found"
        if queue >= len(self.topics[topic]):
            return "queue_not_found"
        if offset > len(self.topics[topic][queue]):
            return "offset_out_of_range"
        if offset < self.committed.get((topic, queue), 0):
            return "offset_moves_back"
        self.committed[topic, queue] = offset
        self.commits.setdefault((topic, queue), []).append(offset)
        return None

    def pause(self, *, paused: bool) -> str | None:
        if not self.has_group:
            return "group_not_found"
        if paused != (self.paused_since_ms is not None):
            self.paused_since_ms = self.clock_ms if paused else None
        return None

    def fire(self, limit: int) -> None:
        due = sorted((timer for timer in self.timers if timer.due_ms <= self.clock_ms), key=lambda timer: timer.due_ms)
        for timer in due[:limit]:
            self.timers.remove(timer)
            if not timer.topic_is_gone:
                if timer.holds:
                    self.batch_ids[timer.batch.topic, timer.batch.batch_id] = _content(timer.batch)
                self._show(timer.batch, timer.ordinals)

    def cancel(self, topic: str, message_id: str) -> str | None:
        if topic not in self.topics:
            return "topic_not_found"
        for timer in self._waiting(topic):
            for ordinal in timer.ordinals:
                explicit = _explicit(timer.batch, ordinal) is not None
                if message_id_of(timer.batch, ordinal) == message_id and (explicit or timer.holds):
                    self._take_back(timer, ordinal)
                    self.cancelled.add((topic, message_id))
                    return None
        visible = (topic, message_id) in self.message_ids
        return None if (topic, message_id) in self.cancelled and not visible else "not_scheduled"

    def scheduled(self, topic: str) -> list[str]:
        """Return the ids of the messages that wait, by due time."""
        waiting = sorted(self._waiting(topic), key=lambda timer: timer.due_ms)
        return [message_id for timer in waiting for message_id in timer.message_ids()]

    def forget_ids(self) -> None:
        """Forget all ids, because the dedupe window has passed."""
        self.batch_ids.clear()
        self.message_ids.clear()
        self.cancelled.clear()

    def _waiting(self, topic: str) -> list[ModelTimer]:
        return [timer for timer in self.timers if timer.batch.topic == topic and not timer.topic_is_gone]

    def _take_back(self, timer: ModelTimer, ordinal: int) -> None:
        timer.ordinals.remove(ordinal)
        if not timer.ordinals:
            self.timers.remove(timer)
            if timer.holds:
                self.batch_ids[timer.batch.topic, timer.batch.batch_id] = _content(timer.batch)

    def _refuse(self, batches: list[BatchHeader]) -> str | None:
        for batch in batches:
            refused = self._refuse_queue(batch)
            if refused is not None:
                return refused
            if self._content_of(batch) not in (None, _content(batch)):
                return "idempotency_conflict"
        first: dict[tuple[str, str], Content] = {}
        for batch in batches:
            if first.setdefault((batch.topic, batch.batch_id), _content(batch)) != _content(batch):
                return "idempotency_conflict"
        return None

    def _refuse_queue(self, batch: BatchHeader) -> str | None:
        if batch.topic not in self.topics:
            return "topic_not_found"
        return "queue_not_found" if batch.queue >= len(self.topics[batch.topic]) else None

    def _content_of(self, batch: BatchHeader) -> Content | None:
        """Return the content sent with the batch's id, from the window or from a waiting timer; None if the id is
        unknown.
        """
        for timer in self._waiting(batch.topic):
            if timer.holds and timer.batch.batch_id == batch.batch_id:
                return _content(timer.batch)
        return self.batch_ids.get((batch.topic, batch.batch_id))

    def _deliver(self, batch: BatchHeader) -> None:
        """Show the batch, or its part that is not known, now or later."""
        known = self._content_of(batch)
        if known == _content(batch):
            return
        waiting = {message_id for timer in self._waiting(batch.topic) for message_id in _explicit_ids(timer)}
        ordinals: list[int] = []
        for ordinal in range(batch.count):
            explicit = _explicit(batch, ordinal)
            if explicit is not None:
                if explicit in waiting or (batch.topic, explicit) in self.message_ids:
                    continue
                waiting.add(explicit)
            ordinals.append(ordinal)
        due_ms = batch.deliver_at_ms if batch.delay_ms is None else self.clock_ms + batch.delay_ms
        if due_ms is not None and due_ms > self.clock_ms and ordinals:
            self.timers.append(ModelTimer(due_ms, batch, ordinals, known is None))
            return
        if known is None:
            self.batch_ids[batch.topic, batch.batch_id] = _content(batch)
        self._show(batch, ordinals)

    def _show(self, batch: BatchHeader, ordinals: list[int]) -> None:
        for ordinal in ordinals:
            explicit = _explicit(batch, ordinal)
            if explicit is not None:
                self.message_ids.add((batch.topic, explicit))
            self.topics[batch.topic][batch.queue].append(identity(batch, ordinal))


def message_id_of(batch: BatchHeader, ordinal: int) -> str:
    return _explicit(batch, ordinal) or f"{batch.batch_id}-{ordinal}"


def identity(batch: BatchHeader, ordinal: int) -> str:
    """Return a name of one message for the comparison: its id, and the CRC of the block it came in."""
    return f"{message_id_of(batch, ordinal)}/{batch.crc32c}"


def _explicit(batch: BatchHeader, ordinal: int) -> str | None:
    return batch.message_ids[ordinal] if batch.message_ids is not None else None


def _explicit_ids(timer: ModelTimer) -> list[str]:
    found = (_explicit(timer.batch, ordinal) for ordinal in timer.ordinals)
    return [each for each in found if each is not None]


def _content(batch: BatchHeader) -> Content:
    return (batch.count, batch.crc32c)


def _shape(batch: BatchHeader) -> tuple[str, int, int]:
    return (batch.topic, batch.count, batch.crc32c)
