"""The handlers of the commands: each carries one command out on the tables, or refuses it with nothing changed."""

from collections.abc import Callable, Sequence
from typing import Any

from store.commands.cluster import PutSettings
from store.commands.entry import Command, Result
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    JoinGroup,
    LeaveGroup,
    PauseGroup,
    PutGroup,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import BatchPlaced, CancelScheduled, FireTimers, Produce, Produced
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages, SweepIndex
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic, TopicDeleted, TopicPut
from store.commands.transactions import (
    CheckUrlSet,
    Decide,
    Discard,
    Prepare,
    RecordChecks,
    ResumeTransaction,
    SetCheckUrl,
)
from store.commands.users import DeleteUser, PutUser
from store.features import FEATURES
from store.groups.pops import Pops
from store.groups.redelivery import Redeliveries
from store.groups.removal import GroupRemoval
from store.index import keys
from store.messages.block_location import BlockLocation
from store.messages.outcomes import Event
from store.messages.placement import At, CheckedBatch, has_repeated_batches
from store.state.delivery import Delivery
from store.state.expiry import Expiry
from store.state.release import Releases
from store.state.tables import Tables
from store.steps import Steps
from store.transactions.transactions import Transactions

Handler = Callable[[Any, At, tuple[int, ...]], Result | Steps[Result]]
"""Carries out a command at its place in the log, with the offsets of its blocks in the entry; in steps what takes long.
Raises Refused.
"""


class Handlers:
    """Has the handler of every command in `by_type`. Owned by the thread that applies."""

    def __init__(
        self,
        tables: Tables,
        redeliveries: Redeliveries,
        pops: Pops,
        releases: Releases,
        forget_outcomes: Callable[[int], None],
    ) -> None:
        """Set up; `forget_outcomes` is described at Expiry."""
        topics, groups, settings = tables.topics, tables.groups, tables.settings
        self._index, self._topics, self._groups = tables.index, topics, groups
        self._messages, self._placement, self._outcomes = tables.messages, tables.placement, tables.outcomes
        self.transactions = transactions = Transactions(
            tables.transactions, topics, tables.queues, tables.placement, tables.messages, settings, tables.outcomes
        )
        delivery = Delivery(tables)
        expiry = Expiry(tables, releases, delivery, forget_outcomes)
        removal = GroupRemoval(topics, groups, tables.marks, tables.history, tables.leases, tables.messages)
        self.by_type: dict[type[Command], Handler] = {
            PutTopic: self._put_topic,
            DeleteTopic: self._delete_topic,
            Produce: self._produce,
            Prepare: transactions.prepare,
            Decide: lambda command, at, _: transactions.decide(command, at),
            RecordChecks: lambda command, at, _: transactions.record_checks(command, at),
            Discard: lambda command, at, _: transactions.discard(command, at),
            SetCheckUrl: self._set_check_url,
            JoinGroup: lambda command, at, _: groups.join(command, at.clock_ms),
            LeaveGroup: lambda command, _at, _: groups.leave(command),
            CommitOffsets: lambda command, at, _: groups.commit(command, at),
            ResetOffsets: lambda command, at, _: groups.reset(command, at),
            CloneOffsets: lambda command, at, _: groups.clone(command, at),
            FireTimers: lambda command, at, _: delivery.fire(command, at),
            CancelScheduled: lambda command, at, _: delivery.cancel(command, at),
            GiveBack: lambda command, at, _: redeliveries.give_back(command, at),
            PutGroup: lambda command, _at, _: groups.put(command),
            ReplayDeadLetters: lambda command, at, _: redeliveries.replay(command, at),
            ResumeTransaction: lambda command, at, _: transactions.resume(command, at),
            PutSettings: lambda command, _at, _: settings.put(command),
            ExpireMessages: lambda command, at, _: expiry.expire(command, at),
            ReleaseMessages: lambda command, at, _: expiry.release(command, at),
            SweepIndex: lambda command, at, _: expiry.sweep_index(command, at),
            Pop: lambda command, at, _: pops.pop(command, at),
            AckPopped: lambda command, at, _: pops.ack(command, at),
            ChangeInvisible: lambda command, at, _: pops.change_invisible(command, at),
            ExpirePopped: lambda command, at, _: pops.expire(command, at),
            PauseGroup: lambda command, at, _: groups.set_pause(command, at),
            DeleteGroup: lambda command, _at, _: removal.delete(command),
            PutUser: lambda command, at, _: tables.users.put(command, at.raft_index),
            DeleteUser: lambda command, _at, _: tables.users.delete(command),
            PurgeTopic: lambda command, _at, _: expiry.purge(command),
            CountBytes: lambda command, _at, _: expiry.count_bytes(command),
        }

    def _put_topic(self, command: PutTopic, at: At, _: tuple[int, ...]) -> Steps[TopicPut]:
        known = self._topics.get(command.topic)
        queues = len(known.ends) if known is not None else 0
        topic, created = self._topics.put(command, at.clock_ms)
        if len(topic.ends) != queues:
            yield from self._groups.topic_grown(topic, queues)
        return TopicPut(topic.info(), created)

    def _delete_topic(self, command: DeleteTopic, at: At, _: tuple[int, ...]) -> Steps[TopicDeleted]:
        topic = self._topics.delete(command)
        if FEATURES.knows("Event.type.TOPIC_DELETE", at.feature_level):
            self._outcomes.add(Event("TOPIC_DELETE", None, topic.name))
        yield from self._groups.topic_deleted(topic)
        self._messages.forget_topic(topic.id)
        return TopicDeleted(topic.name)

    def _produce(self, command: Produce, at: At, block_offsets: tuple[int, ...]) -> Produced | Steps[Produced]:
        """Check all batches, and then place them: one alone at once, several or one with explicit ids in steps."""
        checked = self._placement.check(command.batches, transactional=False, clock_ms=at.clock_ms)
        if len(checked) > 1 or checked[0].header.message_ids is not None:
            return self._place(checked, at, block_offsets)
        block = BlockLocation.of(checked[0].header, at.position, block_offsets[0])
        return Produced((self._placement.place(checked[0], block, at),))

    def _place(self, checked: Sequence[CheckedBatch], at: At, block_offsets: tuple[int, ...]) -> Steps[Produced]:
        repeats = has_repeated_batches([batch.header for batch in checked])
        placed: list[BatchPlaced] = []
        for batch, offset in zip(checked, block_offsets, strict=True):
            if placed:
                yield
            block = BlockLocation.of(batch.header, at.position, offset)
            now = self._placement.recheck(batch) if repeats and placed else batch
            if batch.header.message_ids is None:
                placed.append(self._placement.place(now, block, at))
            else:
                placed.append((yield from self._placement.place_in_steps(now, block, at)))
        return Produced(tuple(placed))

    def _set_check_url(self, command: SetCheckUrl, _at: At, _: tuple[int, ...]) -> CheckUrlSet:
        key = keys.check_url(command.producer_group)
        if command.url is None:
            self._index.delete(key)
        else:
            self._index.put(key, command.url.encode())
        return CheckUrlSet(command.producer_group, command.url)
