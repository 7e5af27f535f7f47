"""Placement: gives batches their offsets, once.

Plain produce, the commit of a transaction and a timer that is due all end here, so a message is delivered once per
queue position, by whichever path and however often it arrives:

    - A batch id that is known with the same content is not appended again; the answer is the place of the first batch.
    - Of a batch with explicit message ids, only messages with unknown ids are appended; the ordinals of the others are
      in the row's `skip`, and the offsets stay dense.
    - A batch id that is known with *other* content is refused at produce and at prepare. If the id was used otherwise
      between prepare and commit, the commit appends the batch all the same: it was promised, and other content is
      another message. The window keeps the first use.
    - A batch that waits for its time reserves its ids meanwhile, and hands them to the window when it is delivered. So
      delivery looks nothing up: every scheduled message is delivered.
"""

from collections.abc import Sequence
from typing import NamedTuple

from store.commands.messages import BatchHeader, BatchPlaced, MessagePlaced, Produced
from store.commands.transactions import Prepared
from store.commands.views import Redelivery, Row
from store.errors import IDEMPOTENCY_CONFLICT, INVALID_REQUEST, Refused
from store.features import FEATURES, FIRST_LEVEL
from store.messages.block_location import BlockLocation
from store.messages.dedupe import DedupeWindow, KnownMessage, SeenBatch, SeenMessage
from store.messages.message_index import KEY_HASH_BYTES, MessageIndex, Place, RedeliveryEvent, RedeliveryEventName
from store.messages.outcomes import Event, MessagesOf, Outcomes, message_events, messages_of
from store.messages.queues import OfTransaction, Queues
from store.messages.timers import Timer, TimerKey, Timers, check_delay, due_ms_of
from store.messages.topics import DLQ_PREFIX, Topic, Topics, group_of, require_writable
from store.steps import ITEMS_PER_STEP, Steps, finish, portions


class At(NamedTuple):
    """The entry that is being applied. `clock_ms` is the replicated clock: the entry's time, made monotonic."""

    raft_index: int
    term: int
    position: int
    clock_ms: int
    feature_level: int = FIRST_LEVEL
    """The feature level in force at this entry; behaviour that a later level changes depends on this value."""
    principal: str | None = None
    """The principal whose request the command under way is; None without one, and below its feature level."""


class CheckedBatch(NamedTuple):
    """A batch that may be appended to its topic."""

    topic: Topic
    header: BatchHeader
    seen: SeenBatch | None


class CarriedOut(NamedTuple):
    """The result of a command that an earlier entry has applied, as a duplicate. Entry `index` made the result visible;
    the record at `position` holds the messages: another one if they were delayed, or part of a transaction.
    """

    result: Produced | Prepared
    index: int  # type: ignore[assignment]  # hides tuple.index
    position: int
    timestamp_ms: int


class Placement:
    def __init__(
        self,
        topics: Topics,
        queues: Queues,
        dedupe: DedupeWindow,
        timers: Timers,
        messages: MessageIndex,
        outcomes: Outcomes,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._dedupe = dedupe
        self._timers = timers
        self._messages = messages
        self._outcomes = outcomes

    def check(self, headers: Sequence[BatchHeader], *, transactional: bool, clock_ms: int) -> list[CheckedBatch]:
        """Look up every batch and refuse batches that cannot be appended; changes nothing."""
        if not headers:
            raise Refused(INVALID_REQUEST, "there is no batch in the request")
        checked: list[CheckedBatch] = []
        topic: Topic | None = None
        was_delayed: bool | None = None
        for header in headers:  # the batches of a send are of one topic
            delayed = header.is_delayed
            if topic is None or topic.name != header.topic or delayed is not was_delayed:
                topic, was_delayed = self._topics.require(header.topic), delayed
                require_writable(topic, transactional=transactional, delayed=delayed)
            if not 0 <= header.queue < len(topic.ends):
                topic.require_queue(header.queue)
            if header.count < 1 or header.message_ids is not None or header.keys is not None:
                _check_counts(header)
            if delayed:
                check_delay(header, clock_ms)
            seen = self.seen(topic, header.batch_id)
            if seen is not None and not seen.is_of(header):
                raise _conflict(header)
            checked.append(CheckedBatch(topic, header, seen))
        if has_repeated_batches(headers):
            _check_repeated(headers)
        return checked

    def seen(self, topic: Topic, batch_id: str) -> SeenBatch | None:
        """Return the known batch with this id, placed or waiting; None if the id is unknown."""
        return self._dedupe.batch(topic.id, batch_id) or self._timers.batch(topic.id, batch_id)

    def placed_before(self, headers: Sequence[BatchHeader]) -> CarriedOut | None:
        """Return the places of these batches if one entry brought all of them with this content, and no part of them
        was known before it; None otherwise, and also for batches that wait for their time or have expired. Changes
        nothing.
        """
        placed: list[BatchPlaced] = []
        first: Row | None = None
        for header in headers:
            topic = self._topics.get(header.topic)
            seen = self.seen(topic, header.batch_id) if topic is not None else None
            if topic is None or seen is None or seen.known or seen.offset is None or not seen.is_of(header):
                return None
            if seen.offset >= topic.ends[seen.queue]:  # its transaction is being committed
                return None
            row = self._queues.row_at(topic, seen.queue, seen.offset)
            first = first or row
            if first is None or row is None or row.batch_id != header.batch_id or row.position != first.position:
                return None
            placed.append(_placed(topic, header, seen, duplicate=True))
        if first is None:
            return None
        return CarriedOut(Produced(tuple(placed)), first.raft_index, first.position, first.stored_at_ms)

    def place(
        self, batch: CheckedBatch, block: BlockLocation, at: At, transaction: OfTransaction | None = None
    ) -> BatchPlaced:
        """Append the unknown messages of a batch, or schedule them. `batch.seen` must be up to date."""
        topic, header, seen = batch
        if header.message_ids is not None:
            return finish(self.place_in_steps(batch, block, at, transaction))
        if seen is not None and seen.is_of(header):
            return _placed(topic, header, seen, duplicate=True)
        return _placed(topic, header, self._place(batch, (), block, at, transaction), duplicate=False)

    def place_in_steps(
        self, batch: CheckedBatch, block: BlockLocation, at: At, transaction: OfTransaction | None = None
    ) -> Steps[BatchPlaced]:
        """Place a batch as `place` does, its explicit ids in portions. They are found by the time that the messages are
        visible.
        """
        topic, header, seen = batch
        message_ids = header.message_ids
        if message_ids is None:
            return self.place(batch, block, at, transaction)
        if seen is not None and seen.is_of(header):
            return _placed(topic, header, seen, duplicate=True)
        end = topic.ends[header.queue] if transaction is None else transaction.unshown.end(topic, header.queue)
        known = yield from self._known_messages(topic, header, due_ms_of(header, at.clock_ms), end)
        yield from self._messages.add_ids(topic.id, header.batch_id, message_ids, (each.ordinal for each in known))
        placed = self._place(batch, known, block, at, transaction)
        if placed.appended and placed.offset is not None:
            yield from self._remember_messages(topic, message_ids, placed)
        return _placed(topic, header, placed, duplicate=not placed.appended)

    def _place(
        self,
        batch: CheckedBatch,
        known: tuple[KnownMessage, ...],
        block: BlockLocation,
        at: At,
        transaction: OfTransaction | None,
    ) -> SeenBatch:
        """Append the messages of a batch, or schedule them, without the known ones."""
        topic, header, seen = batch
        due_ms = due_ms_of(header, at.clock_ms)
        appended = header.count - len(known)
        transaction_id = transaction.transaction_id if transaction is not None else None
        if not appended:
            first = known[0]
            placed = _seen(header, first.queue, first.offset, 0, known, first.deliver_at_ms)
            if seen is None:
                self._dedupe.remember_batch(topic.id, header.batch_id, placed)
        elif due_ms is not None:
            timer = Timer(
                topic.id,
                header.queue,
                block,
                header.count,
                appended,
                known,
                header.message_ids,
                reserves=True,
                holds_batch_id=seen is None,
                scheduled_at_ms=at.clock_ms,
                raft_index=at.raft_index,
                transaction_id=transaction_id,
                position=transaction.position if transaction is not None else None,
                keys=header.keys,
            )
            self._messages.add_timer(self._timers.schedule(due_ms, timer), timer)
            placed = timer.seen(due_ms)
            waiting = messages_of(block, appended, timer.skip)
            self._outcomes.add(message_events("SCHEDULE", topic.name, header.queue, None, block, waiting))
        else:
            offset = self._append(topic, header.queue, block, appended, known, header.keys, at, transaction)
            placed = _seen(header, header.queue, offset, appended, known)
            if seen is None:
                self._dedupe.remember_batch(topic.id, header.batch_id, placed)
        return placed

    def deliver(self, topic: Topic, key: TimerKey, timer: Timer, at: At) -> int:
        """Append the messages of a timer that was just removed; return the offset of the first message. The caller goes
        on with `remember_delivered`.
        """
        block = timer.block
        if timer.redelivery is not None:
            origin = self.origin(timer.redelivery, block, at)
            return self.redeliver(topic, block, timer.redelivery, at, timer.transaction_id, origin)
        offset = self._append(topic, timer.queue, block, timer.count, timer.known, timer.keys, at, timer)
        self._messages.timer_fired(key, timer, offset)
        if timer.holds_batch_id:
            self._dedupe.remember_batch(topic.id, block.batch_id, _delivered(timer, offset))
        return offset

    def remember_delivered(self, topic: Topic, timer: Timer, offset: int) -> Steps[None]:
        """Remember the explicit ids of messages that were delivered at `offset`."""
        if timer.redelivery is None and timer.reserves:
            yield from self._remember_messages(topic, timer.message_ids or (), _delivered(timer, offset))

    def redeliver(
        self,
        topic: Topic,
        block: BlockLocation,
        redelivery: Redelivery,
        at: At,
        transaction_id: str | None,
        origin: Place | None,
    ) -> int:
        """Append one message of a block to the only queue of a group's own topic; return its offset there. `origin` is
        the message's own place.
        """
        offset = self._queues.append(
            topic,
            0,
            block,
            1,
            stored_at_ms=at.clock_ms,
            raft_index=at.raft_index,
            transaction_id=transaction_id,
            redelivery=redelivery,
        )
        self._outcomes.add(
            message_events(
                "PUBLISH",
                topic.name,
                0,
                offset,
                block,
                messages_of(block, 1, only=redelivery.only),
                attempt=redelivery.attempt,
                transaction_id=transaction_id,
            )
        )
        name: RedeliveryEventName = "dead_lettered" if topic.name.startswith(DLQ_PREFIX) else "given_again"
        event = RedeliveryEvent(at.clock_ms, group_of(topic.name), redelivery.attempt, offset)
        self.note(origin, topic, name, event, at)
        return offset

    def note(
        self, origin: Place | None, topic: Topic, name: RedeliveryEventName, event: RedeliveryEvent, at: At
    ) -> None:
        """Record an action of a group on the message at `origin`, for the message's trace; nothing without a place.
        `topic` is the group's own.
        """
        if origin is not None:
            self._messages.add_event(origin, at.raft_index, topic.id, name, event)

    def origin(self, redelivery: Redelivery, block: BlockLocation, at: At) -> Place | None:
        """Return the own place of a redelivered message of `block`; None when its topic is gone, also if there is a
        later one of the name (feature level 2).
        """
        topic = self._topics.get(redelivery.topic)
        exact = FEATURES.knows("redeliveries-note-only-their-own-message", at.feature_level)
        if topic is None or (exact and not self._is_origin(topic, redelivery, block)):
            return None
        return Place(topic.id, redelivery.queue, redelivery.offset)

    def _is_origin(self, topic: Topic, redelivery: Redelivery, block: BlockLocation) -> bool:
        """Return whether the message comes from this topic, and not from a former one of the same name. A place before
        the start of its queue tells nothing and has no message: it passes for the origin.
        """
        queue, offset = redelivery.queue, redelivery.offset
        if queue >= len(topic.ends):
            return False
        if offset < topic.starts[queue]:
            return True
        row = self._queues.row_at(topic, queue, offset)
        return row is not None and (row.position, row.block_offset) == (block.position, block.offset)

    def recheck(self, batch: CheckedBatch) -> CheckedBatch:
        """Return the batch with its `seen` looked up again: for a batch id that is repeated within a command."""
        return batch._replace(seen=self.seen(batch.topic, batch.header.batch_id))

    def _append(
        self,
        topic: Topic,
        queue: int,
        block: BlockLocation,
        count: int,
        known: tuple[KnownMessage, ...],
        hashes: tuple[bytes, ...] | None,
        at: At,
        of: OfTransaction | Timer | None,
    ) -> int:
        skip = tuple(message.ordinal for message in known) if known else ()
        offset = self._queues.append(
            topic,
            queue,
            block,
            count,
            stored_at_ms=at.clock_ms,
            raft_index=at.raft_index,
            transaction_id=None if of is None else of.transaction_id,
            skip=skip,
            unshown=of.unshown if isinstance(of, OfTransaction) else None,
        )
        self._messages.add_batch(topic.id, queue, offset, block.batch_id)
        if hashes is not None:
            self._messages.add_keys(topic.id, queue, offset, hashes, skip, at.clock_ms)
        # Built without message_events: every message takes this path.
        messages = MessagesOf(block.position, block.offset, count, skip)
        self._outcomes.add(Event("PUBLISH", None, topic.name, queue, offset, messages=messages))
        return offset

    def _known_messages(
        self, topic: Topic, header: BatchHeader, due_ms: int | None, next_offset: int
    ) -> Steps[tuple[KnownMessage, ...]]:
        """Return the messages whose explicit id is known, or repeated within the batch, which begins at `next_offset`
        of its queue.
        """
        message_ids = header.message_ids or ()
        placed: dict[str, SeenMessage] = {}
        for number, portion in enumerate(portions(message_ids)):
            if number:
                yield
            placed.update(self._dedupe.messages(topic.id, portion))
        if not placed and not self._timers.counters.reserving and not _has_repeated(message_ids):
            return ()
        known: list[KnownMessage] = []
        in_batch: dict[str, int | None] = {}
        queues: dict[TimerKey, int] = {}
        for ordinal, message_id in enumerate(message_ids):
            if ordinal and not ordinal % ITEMS_PER_STEP:
                yield
            if message_id is not None:
                if message_id in in_batch:
                    known.append(KnownMessage(ordinal, header.queue, in_batch[message_id], due_ms))
                    continue
                seen = placed.get(message_id)
                if seen is not None:
                    known.append(KnownMessage(ordinal, seen.queue, seen.offset))
                    continue
                waiting = self._timers.message(topic.id, message_id, ordinal, queues)
                if waiting is not None:
                    known.append(waiting)
                    continue
                in_batch[message_id] = next_offset if due_ms is None else None
            next_offset += 1
        return tuple(known)

    def _remember_messages(self, topic: Topic, message_ids: Sequence[str | None], placed: SeenBatch) -> Steps[None]:
        """Remember the explicit ids of the appended messages."""
        skipped = {message.ordinal for message in placed.known}
        assert placed.offset is not None
        appended = [each for ordinal, each in enumerate(message_ids) if ordinal not in skipped]
        explicit = [(each, offset) for offset, each in enumerate(appended, placed.offset) if each is not None]
        for number, portion in enumerate(portions(explicit)):
            if number:
                yield
            seen = [(message_id, SeenMessage(placed.queue, offset)) for message_id, offset in portion]
            self._dedupe.remember_messages(topic.id, seen)


def _delivered(timer: Timer, offset: int) -> SeenBatch:
    block = timer.block
    return SeenBatch(timer.block_count, block.crc32c, block.length, timer.queue, offset, timer.count, timer.known)


def has_repeated_batches(headers: Sequence[BatchHeader]) -> bool:
    """Return whether two of the batches have one id."""
    return len(headers) > 1 and len({(header.topic, header.batch_id) for header in headers}) < len(headers)


def _has_repeated(message_ids: Sequence[str | None]) -> bool:
    explicit = [each for each in message_ids if each is not None]
    return len(set(explicit)) != len(explicit)


def _seen(
    header: BatchHeader,
    queue: int,
    offset: int | None,
    appended: int,
    known: tuple[KnownMessage, ...],
    deliver_at_ms: int | None = None,
) -> SeenBatch:
    return SeenBatch(header.count, header.crc32c, header.length, queue, offset, appended, known, deliver_at_ms)


def _placed(topic: Topic, header: BatchHeader, seen: SeenBatch, *, duplicate: bool) -> BatchPlaced:
    messages: tuple[MessagePlaced, ...] | None = None
    if seen.known:
        known = {message.ordinal: message for message in seen.known}
        listed: list[MessagePlaced] = []
        next_offset = seen.offset
        for ordinal in range(header.count):
            explicit = header.message_ids[ordinal] if header.message_ids is not None else None
            message_id = explicit if explicit is not None else f"{header.batch_id}-{ordinal}"
            other = known.get(ordinal)
            if other is not None:
                listed.append(MessagePlaced(message_id, other.queue, other.offset, True, other.deliver_at_ms))
                continue
            listed.append(MessagePlaced(message_id, seen.queue, next_offset, duplicate, seen.deliver_at_ms))
            next_offset = next_offset + 1 if next_offset is not None else None
        messages = tuple(listed)
    return BatchPlaced(topic.name, seen.queue, seen.offset, seen.appended, duplicate, messages, seen.deliver_at_ms)


def _check_counts(header: BatchHeader) -> None:
    if header.count < 1 or (header.message_ids is not None and len(header.message_ids) != header.count):
        raise Refused(INVALID_REQUEST, f"batch {header.batch_id}: count and message ids disagree, or it is empty")
    if header.keys is not None and (
        len(header.keys) != header.count or any(len(joined) % KEY_HASH_BYTES for joined in header.keys)
    ):
        raise Refused(INVALID_REQUEST, f"batch {header.batch_id}: count and hashes of keys disagree")


def _check_repeated(headers: Sequence[BatchHeader]) -> None:
    first_use: dict[tuple[str, str], BatchHeader] = {}
    for header in headers:
        first = first_use.setdefault((header.topic, header.batch_id), header)
        if (first.count, first.crc32c, first.length) != (header.count, header.crc32c, header.length):
            raise _conflict(header)


def _conflict(header: BatchHeader) -> Refused:
    detail = f"batch id {header.batch_id} was used for other content on topic {header.topic}: take a new id"
    return Refused(IDEMPOTENCY_CONFLICT, detail, {"topic": header.topic, "batch_id": header.batch_id})
