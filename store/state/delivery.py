"""Delivery of timers that are due, and cancelling of messages before they are due.

- A timer whose topic is gone is dropped. A timer whose topic exists is always delivered: its messages were accepted,
  and queues are never taken away.
- A cancelled message stays cancelled: its batch sent again is answered as before, and delivers nothing. Its explicit id
  is free, for the same message at another time.
- Cancelling the same message twice gives the same answer, within the dedupe window.
"""

from collections.abc import Sequence

from store.commands.messages import Cancelled, CancelScheduled, Fired, FireTimers, Position
from store.errors import NOT_SCHEDULED, Refused
from store.features import FEATURES
from store.limits import FIRED_IDS_MAX
from store.messages.message_index import TakenBack
from store.messages.outcomes import message_events, messages_of
from store.messages.placement import At
from store.messages.timers import Timer, TimerKey, left_out
from store.state.tables import Tables
from store.steps import Steps


class Delivery:
    def __init__(self, tables: Tables) -> None:
        self._topics = tables.topics
        self._timers = tables.timers
        self._dedupe = tables.dedupe
        self._placement = tables.placement
        self._transactions = tables.transactions
        self._messages = tables.messages
        self._outcomes = tables.outcomes

    def fire(self, command: FireTimers, at: At) -> Steps[Fired]:
        """Deliver the messages that are due by the clock of this entry."""
        positions: list[Position] = []
        dropped = 0
        for number, (key, timer) in enumerate(self._timers.due(at.clock_ms, command.limit, FIRED_IDS_MAX)):
            if number:
                yield
            self._timers.remove(key, timer)
            position = yield from self._deliver(key, timer, at)
            if position is None:
                dropped += timer.count
                self._note_dropped(timer)
            else:
                positions.append(position)
        return Fired(tuple(positions), dropped)

    def cancel(self, command: CancelScheduled, at: At) -> Cancelled:
        """Cancel one message.

        Refused (`not_scheduled`) when the message does not wait: delivered, or never scheduled.
        """
        topic = self._topics.require(command.topic)
        message_id = command.message_id
        found = self._timers.find(topic.id, message_id)
        if found is not None:
            block, only = found.timer.block, found.ordinal
            taken = messages_of(block, 1, only=only)
            self._outcomes.add(message_events("CANCEL", topic.name, found.timer.queue, None, block, taken))
            without = left_out(found)
            taken_back = TakenBack(found.ordinal, at.clock_ms, at.raft_index, at.principal)
            self._messages.taken_back(found.key, found.timer, taken_back, at.feature_level)
            if without.count:
                self._timers.leave_out(found)
            else:
                self._timers.remove(found.key, found.timer)
                if without.holds_batch_id:
                    self._dedupe.remember_batch(topic.id, without.block.batch_id, without.seen(found.key.due_ms))
            again = self._dedupe.is_cancelled(topic.id, message_id)
            if not again or FEATURES.knows("cancelled-again-is-remembered-anew", at.feature_level):
                self._dedupe.remember_cancelled(topic.id, message_id, again=again)
        elif self._dedupe.message(topic.id, message_id) or not self._dedupe.is_cancelled(topic.id, message_id):
            detail = (
                f"message {message_id} of topic {topic.name} is not waiting: it is delivered, or was never scheduled"
            )
            raise Refused(NOT_SCHEDULED, detail, {"topic": topic.name, "message_id": message_id})
        return Cancelled(topic.name, message_id)

    def drop(self, topic_ids: Sequence[int], limit: int) -> tuple[int, int]:
        """Remove timers of deleted topics, at most `limit`. Return how much of the limit is left, and how many messages
        the timers held.
        """
        dropped = 0
        for topic_id in topic_ids:
            timers = self._timers.of_topic(topic_id, limit)
            for key, timer in timers:
                self._timers.remove(key, timer)
                self._note_dropped(timer)
                dropped += timer.count
            limit -= len(timers)
            if not limit:
                break
            self._topics.forget_dropped_timers(topic_id)
        return limit, dropped

    def _note_dropped(self, timer: Timer) -> None:
        """Note dropped messages. The topic is gone, and its name with it: the record of the block has the messages'
        topic.
        """
        only = timer.redelivery.only if timer.redelivery is not None else None
        messages = messages_of(timer.block, timer.count, timer.skip, only)
        self._outcomes.add(message_events("EXPIRE", None, None, None, timer.block, messages))

    def _deliver(self, key: TimerKey, timer: Timer, at: At) -> Steps[Position | None]:
        topic = self._topics.by_id(timer.topic_id)
        if topic is None:
            return None
        offset = self._placement.deliver(topic, key, timer, at)
        position = Position(topic.name, timer.queue, offset, timer.count, key.due_ms)
        if timer.transaction_id is not None and timer.position is not None:
            exact = FEATURES.knows("timers-note-only-their-own-transaction", at.feature_level)
            decided_index = timer.raft_index if exact else None
            self._transactions.set_position(timer.transaction_id, timer.position, position, decided_index)
        yield from self._placement.remember_delivered(topic, timer, offset)
        return position
