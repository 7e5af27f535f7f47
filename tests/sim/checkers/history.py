"""The history of all applied commands and their results, once per index. It feeds the models that predict the
results.
"""

from collections.abc import Callable, Sequence
from typing import Any

from store.commands.cluster import PutSettings
from store.commands.entry import IRREVERSIBLE, Command, Result, decode_entry
from store.commands.groups import (
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GroupDeleted,
    JoinGroup,
    LeaveGroup,
    OffsetsCommitted,
    OffsetsReset,
    PauseGroup,
    PutGroup,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic, TopicDeleted, TopicPut
from store.commands.transactions import Decide, Discard, Prepare, RecordChecks, ResumeTransaction
from store.errors import Refused
from store.log.record import KIND_ENTRY, Entry
from store.messages.topics import RETRY_PREFIX
from store.state.machine import StateMachine
from tests.whole_state import groups_of

from .delays import Delays
from .events import EntryEvents
from .founding_level import FoundingLevel
from .group_model import GroupModel
from .offset_reads import OffsetReads
from .pop_model import PopModel
from .redelivery_model import RedeliveryModel
from .refusals import Refusals
from .releases import Releases
from .retention import COUNTING_LEVEL, Retention
from .sessions import SessionChecker
from .stored_rows import StoredRows, Write, WritesByCommand
from .transaction_model import TransactionModel
from .violation import Violation

Handler = Callable[[Any, Result | Refused, int], None]

_GROUPS_CHANGE = JoinGroup | LeaveGroup | ResetOffsets | PutTopic | GiveBack


class History:
    def __init__(self) -> None:
        self.founding_level = FoundingLevel()
        self.transactions = TransactionModel()
        self.delays = Delays()
        self.retention = Retention()
        self.groups = GroupModel(self.retention)
        self.redeliveries = RedeliveryModel(self.groups, self.retention)
        self.pops = PopModel(self.groups, self.retention)
        self.releases = Releases(self.groups, self.pops, self.redeliveries, self.transactions, self.retention)
        self.sessions = SessionChecker()
        self.refusals = Refusals()
        self.offset_reads: dict[str, OffsetReads] = {}
        """The checker of each group's offsets, by group."""
        self._index = 0
        self._queues: dict[str, int] = {}
        self._stored_rows = StoredRows()
        groups, transactions, redeliveries = self.groups, self.transactions, self.redeliveries
        transactions.exists = self.retention.exists
        self._handlers: dict[type[Command], Handler] = {
            Prepare: transactions.prepare,
            Decide: transactions.decide,
            RecordChecks: transactions.record,
            Discard: transactions.discard,
            ResumeTransaction: transactions.resume,
            PutSettings: self._on_settings,
            PutTopic: self._on_topic,
            DeleteTopic: self._on_topic_deleted,
            PurgeTopic: lambda command, result, _: self.retention.purge(command, result),
            JoinGroup: self._on_join,
            Pop: self.pops.pop,
            AckPopped: self.pops.ack,
            ChangeInvisible: self.pops.change,
            ExpirePopped: self.pops.expire,
            DeleteGroup: self._on_delete,
            PauseGroup: lambda command, result, _: self.pops.pause(command, result),
            LeaveGroup: lambda command, result, _: groups.leave(command, result),
            PutGroup: self._on_put,
            CommitOffsets: self._on_commit,
            ResetOffsets: self._on_reset,
            GiveBack: lambda command, result, _: redeliveries.give_back(command, result),
            ExpireMessages: self._on_expire,
            ReleaseMessages: self.releases.release,
            ReplayDeadLetters: lambda command, result, _: redeliveries.replay(command, result),
        }

    def on_applied(
        self, machine: StateMachine, entry: Entry, results: Sequence[Result | Refused], writes: WritesByCommand
    ) -> None:
        """Feed the entry to the models when the first node has applied it. The state hash checks that the other nodes
        agree with the first. `writes` are those of the entry.
        """
        if entry.index <= self._index:
            return
        self._index = entry.index
        self.founding_level.on_applied(entry)
        if entry.kind != KIND_ENTRY:
            return
        self.retention.begin_entry(entry, machine.feature_level)
        decoded = decode_entry(entry.payload)
        commands = decoded.commands
        events = EntryEvents(entry.index)
        writes_by_command = iter(writes.take())
        for command, result in zip(commands, results, strict=True):
            if decoded.in_doubt and isinstance(command, IRREVERSIBLE):
                if not isinstance(result, Refused):
                    raise Violation("doubt", f"entry {entry.index} was stamped in doubt of the time, and does {result}")
                continue
            self._on_command(machine, command, result, next(writes_by_command), events)
        events.check(machine.outcomes(entry.index, entry.index, 1), results)
        self.retention.on_applied(machine)
        self.transactions.check_gone(machine)
        for command, result in zip(commands, results, strict=True):
            if isinstance(command, DeleteGroup) and isinstance(result, GroupDeleted):
                self.pops.check_deleted(command, machine)
        if any(isinstance(command, _GROUPS_CHANGE) for command in commands):
            for view in groups_of(machine):
                names = (*view.topics, RETRY_PREFIX + view.group)
                topics = [topic for name in names if (topic := machine.topic(name)) is not None]
                self.groups.check_view(view, {topic.topic: topic.queues for topic in topics})

    def _on_command(
        self,
        machine: StateMachine,
        command: Command,
        result: Result | Refused,
        writes: Sequence[Write],
        events: EntryEvents,
    ) -> None:
        """Feed a command of an entry, with what it has written, to the models."""
        if isinstance(command, PurgeTopic | CountBytes | PauseGroup) and machine.feature_level < COUNTING_LEVEL:
            raise Violation("feature_level", f"{command} is carried out at level {machine.feature_level}")
        if isinstance(result, Refused) and writes:
            raise Violation("refused_changed", f"{command} is refused with {result!r}, and writes {writes}")
        rows = self._stored_rows.read(writes)
        before = self.transactions.state_of(command.transaction_id) if isinstance(command, Decide) else None
        handler = self._handlers.get(type(command))
        if handler is not None:
            handler(command, result, machine.clock_ms)
        self.retention.store(rows)
        self.delays.on_applied(command, result, machine.clock_ms, rows)
        events.on_command(result, before, rows)

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """Check that a node which has applied everything has the state that the log says."""
        self.transactions.check_replica(node_id, machine)
        self.delays.check_all_delivered()
        self.groups.check_replica(node_id, machine)
        self.redeliveries.check_replica(node_id, machine)
        self.pops.check_replica(node_id, machine)

    def _on_delete(self, command: DeleteGroup, result: Result | Refused, clock_ms: int) -> None:
        self.pops.delete(command, result)
        self.retention.delete_group(result)

    def _on_expire(self, command: ExpireMessages, result: Result | Refused, clock_ms: int) -> None:
        self.retention.expire(command, result, clock_ms)
        self.transactions.expire(command, result, clock_ms)

    def _on_settings(self, command: PutSettings, result: Result | Refused, clock_ms: int) -> None:
        self.transactions.put_settings(command, result)
        self.retention.put_settings(result)

    def _on_put(self, command: PutGroup, result: Result | Refused, clock_ms: int) -> None:
        self.groups.put(command, result)
        self.pops.put(command, result)
        self.redeliveries.put(command, result)

    def _on_join(self, command: JoinGroup, result: Result | Refused, clock_ms: int) -> None:
        self.groups.join(command, result)
        self.pops.join(command.group, result)

    def _on_topic(self, command: PutTopic, result: Result | Refused, clock_ms: int) -> None:
        if isinstance(result, TopicPut):
            self.retention.put_topic(result)
        if isinstance(result, TopicPut) and result.topic.queues != self._queues.get(result.topic.topic):
            self._queues[result.topic.topic] = result.topic.queues
            self.groups.topic_grown(result.topic.topic)

    def _on_topic_deleted(self, command: DeleteTopic, result: Result | Refused, clock_ms: int) -> None:
        if isinstance(result, TopicDeleted):
            self.retention.delete_topic(result)
            self.groups.delete_topic(command.topic)
            self.delays.delete_topic(command.topic)
            self._queues.pop(command.topic, None)

    def _on_commit(self, command: CommitOffsets, result: Result | Refused, clock_ms: int) -> None:
        self.groups.commit(command, result)
        if isinstance(result, OffsetsCommitted):
            for item in command.offsets:
                self.redeliveries.on_committed(command.group, (item.topic, item.queue), item.offset)

    def _on_reset(self, command: ResetOffsets, result: Result | Refused, clock_ms: int) -> None:
        self.groups.reset(command, result)
        self.pops.reset(command, result)
        if isinstance(result, OffsetsReset):
            for item in command.offsets:
                self.redeliveries.on_reset(command.group, (item.topic, item.queue))
            if command.group in self.offset_reads:
                self.offset_reads[command.group].on_reset([(item.topic, item.queue) for item in command.offsets])
