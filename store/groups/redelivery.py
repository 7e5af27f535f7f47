"""Messages that a group could not process: given back, redelivered after a backoff, and dead letters in the end.

- A group has two topics of its own, with one queue each: `%RETRY%<group>`, which its members read beside their
  subscription, and `%DLQ%<group>`. Each is created with its first message.
- A message is never copied: its new row points at the same block and shows only that message. It keeps its id.
- A message's original place and each attempt go with it from row to row.
- A message given back twice is given back once (store/groups/given_back.py), and a dead letter is replayed once.
"""

from typing import NamedTuple

import msgspec

from store.commands.groups import (
    DeadLetterReplayed,
    DeadLettersReplayed,
    GiveBack,
    GiveBackOutcome,
    GivenBack,
    MessageGivenBack,
    MessagesGivenBack,
    ReplayDeadLetters,
)
from store.commands.views import Attempt, Redelivery, Row
from store.errors import INVALID_REQUEST, OFFSET_OUT_OF_RANGE, Refused
from store.groups.given_back import REPLAYED, GivenBackMarks, GivingGroup, Mark
from store.groups.groups import Groups
from store.limits import DELAY_MAX_MS, GIVE_BACK_HISTORY_MAX, GIVE_BACK_REASON_BYTES_MAX
from store.messages.block_location import BlockLocation
from store.messages.message_index import Place, RedeliveryEvent
from store.messages.outcomes import EventType, Outcomes, message_events, messages_of
from store.messages.placement import At, Placement
from store.messages.queues import Queues
from store.messages.timers import Timer, Timers
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, Topic, Topics
from store.steps import Steps


class _Found(NamedTuple):
    """A message that is to be given back or replayed."""

    topic: Topic
    item: GivenBack
    row: Row


class Redeliveries:
    def __init__(
        self,
        topics: Topics,
        queues: Queues,
        timers: Timers,
        groups: Groups,
        marks: GivenBackMarks,
        placement: Placement,
        outcomes: Outcomes,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._timers = timers
        self._groups = groups
        self._marks = marks
        self._placement = placement
        self._outcomes = outcomes

    def give_back(self, command: GiveBack, at: At) -> Steps[MessagesGivenBack]:
        """Schedule each message for its group again, or append it to the dead letters, one in each step."""
        group = self._groups.give_back(command)
        found = [self._find(item) for item in command.messages]
        if any(topic.name == DLQ_PREFIX + command.group for topic, _, _ in found):
            raise Refused(INVALID_REQUEST, "messages: a group's own dead letters are replayed, not given back")
        if not found:
            raise Refused(INVALID_REQUEST, "messages: there is none to give back")
        group_id = self._groups.ensure(command.group) if group.id is None else group.id
        results: list[MessageGivenBack] = []
        for topic, item, row in found:
            if results:
                yield
            mark = self._marks.get(group_id, topic.id, item.queue, item.offset)
            outcome: GiveBackOutcome = "already_given_back"
            if mark is None:
                mark = self._give_back_one(command, group, _Found(topic, item, row), at)
                self._marks.put(group_id, topic.id, item.queue, item.offset, mark)
                outcome = "scheduled" if mark.due_at_ms is not None else "dead_lettered"
            results.append(MessageGivenBack(item.topic, item.queue, item.offset, mark.attempt, outcome, mark.due_at_ms))
        return MessagesGivenBack(command.group, self._groups.generation(command.group), tuple(results))

    def give_back_popped(self, group: str, giving: GivingGroup, item: GivenBack, at: At) -> Mark | None:
        """Give back a message that pop consumers held; None if the message is gone. Its lease ensures that this happens
        once.
        """
        try:
            found = self._find(item)
        except Refused:
            return None
        return self._give_back_one(GiveBack(group, None, None, ()), giving, found, at)

    def replay(self, command: ReplayDeadLetters, at: At) -> Steps[DeadLettersReplayed]:
        """Append dead letters to the group's retry topic, visible at once and with their attempts counted from zero."""
        group_id = self._groups.id_of(command.group)
        name = DLQ_PREFIX + command.group
        found = [self._find(GivenBack(name, 0, offset)) for offset in command.offsets]
        if not found:
            raise Refused(INVALID_REQUEST, "offsets: there is none to replay")
        results: list[DeadLetterReplayed] = []
        for topic, item, row in found:
            if results:
                yield
            mark = self._marks.get(group_id, topic.id, 0, item.offset)
            duplicate = mark is not None
            if mark is None:
                redelivery = _redelivery(row, item, 0, _history(row))
                retry = self._retry_topic(command.group, at)
                self._note("RETRY", command.group, "", row, redelivery)
                replayed = RedeliveryEvent(at.clock_ms, command.group, 0, principal=at.principal)
                block = BlockLocation.of_row(row)
                origin = self._placement.origin(redelivery, block, at)
                self._placement.note(origin, retry, "replayed", replayed, at)
                self._placement.redeliver(retry, block, redelivery, at, row.transaction_id, origin)
                mark = Mark(0, REPLAYED, at.clock_ms)
                self._marks.put(group_id, topic.id, 0, item.offset, mark)
            assert mark.due_at_ms is not None
            results.append(DeadLetterReplayed(item.offset, mark.due_at_ms, duplicate))
        return DeadLettersReplayed(command.group, tuple(results))

    def _find(self, item: GivenBack) -> _Found:
        topic = self._topics.require(item.topic)
        topic.require_queue(item.queue)
        if len(item.reason.encode()) > GIVE_BACK_REASON_BYTES_MAX:
            raise Refused(INVALID_REQUEST, f"reason: more than {GIVE_BACK_REASON_BYTES_MAX} bytes")
        if item.offset < 0 or not 0 <= (item.delay_ms or 0) <= DELAY_MAX_MS:
            raise Refused(INVALID_REQUEST, f"offset {item.offset}: at least 0, delay_ms 0 to {DELAY_MAX_MS}")
        end = topic.ends[item.queue]
        row = self._queues.row_at(topic, item.queue, item.offset) if item.offset < end else None
        if row is None or item.offset >= row.next_offset:
            detail = f"queue {item.queue} of {item.topic} has no message at {item.offset}, it ends at {end}"
            extra = {"topic": item.topic, "queue": item.queue, "max_offset": end}
            raise Refused(OFFSET_OUT_OF_RANGE, detail, extra)
        return _Found(topic, item, row)

    def _give_back_one(self, command: GiveBack, group: GivingGroup, found: _Found, at: At) -> Mark:
        topic, item, row = found
        again = row.redelivery is not None and topic.name == RETRY_PREFIX + command.group
        attempt = row.redelivery.attempt + 1 if row.redelivery is not None and again else 1
        entry = Attempt(attempt, at.clock_ms, item.reason, command.member_id or "", group.client_id)
        history = (*(_history(row) if again else ()), entry)[-GIVE_BACK_HISTORY_MAX:]
        redelivery = _redelivery(row, item, attempt, history, again=again)
        block = BlockLocation.of_row(row)
        origin = self._placement.origin(redelivery, block, at) if again else Place(topic.id, item.queue, item.offset)
        given_back = RedeliveryEvent(
            at.clock_ms, command.group, attempt, None, None, item.reason, entry.member_id, entry.client_id
        )
        dies = attempt > group.max_attempts
        self._note("DLQ" if dies else "RETRY", command.group, group.client_id, row, redelivery)
        if dies:
            dead = self._topics.get(DLQ_PREFIX + command.group)
            if dead is None:
                dead = self._topics.create_of_group(DLQ_PREFIX + command.group, at.clock_ms)
            self._placement.note(origin, dead, "given_back", given_back, at)
            self._placement.redeliver(dead, block, redelivery, at, row.transaction_id, origin)
            return Mark(attempt, "dead_lettered", None)
        retry = self._retry_topic(command.group, at)
        delay_ms = item.delay_ms
        if delay_ms is None:
            delay_ms = group.delays_ms[min(attempt, len(group.delays_ms)) - 1]
        given_back = msgspec.structs.replace(given_back, due_at_ms=at.clock_ms + delay_ms)
        self._placement.note(origin, retry, "given_back", given_back, at)
        if delay_ms == 0:
            self._placement.redeliver(retry, block, redelivery, at, row.transaction_id, origin)
        else:
            self._timers.schedule(at.clock_ms + delay_ms, _timer(retry, block, redelivery, at, row.transaction_id))
        return Mark(attempt, "scheduled", at.clock_ms + delay_ms)

    def _note(self, type: EventType, group: str, client_id: str, row: Row, redelivery: Redelivery) -> None:
        block = BlockLocation.of_row(row)
        self._outcomes.add(
            message_events(
                type,
                redelivery.topic,
                redelivery.queue,
                redelivery.offset,
                block,
                messages_of(block, 1, only=redelivery.only),
                attempt=redelivery.attempt,
                group=group,
                client=client_id or None,
                transaction_id=row.transaction_id,
            )
        )

    def _retry_topic(self, group: str, at: At) -> Topic:
        topic = self._topics.get(RETRY_PREFIX + group)
        if topic is None:
            topic = self._topics.create_of_group(RETRY_PREFIX + group, at.clock_ms)
            self._groups.retry_topic_created(group, topic)
        return topic


def _history(row: Row) -> tuple[Attempt, ...]:
    return row.redelivery.history if row.redelivery is not None else ()


def _redelivery(
    row: Row, item: GivenBack, attempt: int, history: tuple[Attempt, ...], *, again: bool = True
) -> Redelivery:
    """Return the redelivery of one message of `row`. `again` says that the row is in one of the group's own topics and
    names the message's original place.
    """
    only = row.ordinals()[item.offset - row.base_offset]
    block_count = row.count + len(row.skip)
    topic, queue, offset = item.topic, item.queue, item.offset
    if row.redelivery is not None:
        block_count = row.redelivery.block_count
        if again:
            topic, queue, offset = row.redelivery.topic, row.redelivery.queue, row.redelivery.offset
    return Redelivery(only, block_count, topic, queue, offset, attempt, history)


def _timer(topic: Topic, block: BlockLocation, redelivery: Redelivery, at: At, transaction_id: str | None) -> Timer:
    return Timer(
        topic.id,
        0,
        block,
        redelivery.block_count,
        1,
        (),
        None,
        reserves=False,
        scheduled_at_ms=at.clock_ms,
        raft_index=at.raft_index,
        transaction_id=transaction_id,
        redelivery=redelivery,
    )
