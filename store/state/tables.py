"""The tables of the index, opened together: what the queries and commands of the state machine go by."""

from dataclasses import dataclass
from typing import Self

from store.groups.given_back import GivenBackMarks
from store.groups.groups import Groups
from store.groups.history import GroupHistory
from store.groups.leases import Leases
from store.index.index import Index
from store.messages.dedupe import DedupeCounters, DedupeWindow
from store.messages.log_references import LogReferences
from store.messages.log_times import LogTimes
from store.messages.message_index import MessageIndex
from store.messages.outcomes import Outcomes
from store.messages.placement import Placement
from store.messages.queues import Queues
from store.messages.timers import TimerCounters, Timers
from store.messages.topics import Topics
from store.state.retention_rules import RetentionRules
from store.transactions.settings import ClusterSettings
from store.transactions.table import TransactionTable
from store.users.users import Users


@dataclass(frozen=True)
class Tables:
    """Each table owns its rows of the index: nothing else writes them. Owned by one thread."""

    index: Index
    topics: Topics
    queues: Queues
    references: LogReferences
    dedupe: DedupeWindow
    timers: Timers
    messages: MessageIndex
    outcomes: Outcomes
    placement: Placement
    settings: ClusterSettings
    transactions: TransactionTable
    marks: GivenBackMarks
    leases: Leases
    history: GroupHistory
    groups: Groups
    users: Users
    rules: RetentionRules
    log_times: LogTimes

    @classmethod
    def open(
        cls,
        index: Index,
        *,
        next_topic_id: int,
        next_group_id: int,
        dedupe: DedupeCounters,
        timers: TimerCounters,
        dedupe_min_entries: int,
        log_range_bytes: int,
    ) -> Self:
        """Load the tables from the index, with the counters that are stored beside the applied index."""
        topics = Topics(index, next_topic_id)
        references = LogReferences(index, log_range_bytes)
        queues = Queues(index, topics, references)
        window = DedupeWindow(index, dedupe, min_entries=dedupe_min_entries)
        waiting = Timers(index, timers, references)
        messages, outcomes = MessageIndex(index), Outcomes(index)
        settings, log_times = ClusterSettings(index), LogTimes(index, log_range_bytes)
        marks, leases, history = GivenBackMarks(index), Leases(index), GroupHistory(index)
        return cls(
            index=index,
            topics=topics,
            queues=queues,
            references=references,
            dedupe=window,
            timers=waiting,
            messages=messages,
            outcomes=outcomes,
            placement=Placement(topics, queues, window, waiting, messages, outcomes),
            settings=settings,
            transactions=TransactionTable(index, references),
            marks=marks,
            leases=leases,
            history=history,
            groups=Groups(index, topics, marks, history, next_group_id, outcomes, leases),
            users=Users(index),
            rules=RetentionRules(settings, log_times, queues),
            log_times=log_times,
        )
