"""Administration of a cluster: `Admin`, and the structs that it returns.

Names are imported when they are first used, so that the `keelmq` command starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelmq.admin.admin import PAGE_MAX as PAGE_MAX
    from keelmq.admin.admin import Admin as Admin
    from keelmq.admin.admin import ResetTo as ResetTo
    from keelmq.admin.audit import AuditFilter as AuditFilter
    from keelmq.admin.audit import AuditPage as AuditPage
    from keelmq.admin.audit import AuditRecord as AuditRecord
    from keelmq.admin.backups import BackupBegun as BackupBegun
    from keelmq.admin.changes import ClusterMember as ClusterMember
    from keelmq.admin.changes import ClusterMembers as ClusterMembers
    from keelmq.admin.changes import ClusterSettings as ClusterSettings
    from keelmq.admin.changes import FeatureLevel as FeatureLevel
    from keelmq.admin.changes import JoinToken as JoinToken
    from keelmq.admin.changes import NodeBuild as NodeBuild
    from keelmq.admin.changes import RebuildStarted as RebuildStarted
    from keelmq.admin.cluster import Alarm as Alarm
    from keelmq.admin.cluster import ClusterStatus as ClusterStatus
    from keelmq.admin.cluster import ComparedReplica as ComparedReplica
    from keelmq.admin.cluster import IndexRebuild as IndexRebuild
    from keelmq.admin.cluster import LogHolder as LogHolder
    from keelmq.admin.cluster import NodeStatus as NodeStatus
    from keelmq.admin.cluster import ReplicaStatus as ReplicaStatus
    from keelmq.admin.definition_plans import ClusterDefinitions as ClusterDefinitions
    from keelmq.admin.definition_plans import ImportStep as ImportStep
    from keelmq.admin.definition_plans import PlannedChange as PlannedChange
    from keelmq.admin.definitions import Definitions as Definitions
    from keelmq.admin.definitions import decode_definitions as decode_definitions
    from keelmq.admin.definitions import encode_definitions as encode_definitions
    from keelmq.admin.groups import AssignedQueue as AssignedQueue
    from keelmq.admin.groups import CommittedOffset as CommittedOffset
    from keelmq.admin.groups import CommittedOffsets as CommittedOffsets
    from keelmq.admin.groups import GroupDetail as GroupDetail
    from keelmq.admin.groups import GroupMember as GroupMember
    from keelmq.admin.groups import GroupOffset as GroupOffset
    from keelmq.admin.groups import GroupPause as GroupPause
    from keelmq.admin.groups import GroupPauseResult as GroupPauseResult
    from keelmq.admin.groups import GroupSettings as GroupSettings
    from keelmq.admin.messages import DeadLetter as DeadLetter
    from keelmq.admin.messages import DeadLetterPage as DeadLetterPage
    from keelmq.admin.messages import FoundMessage as FoundMessage
    from keelmq.admin.messages import GiveBack as GiveBack
    from keelmq.admin.messages import MessagePage as MessagePage
    from keelmq.admin.messages import ReplayedLetter as ReplayedLetter
    from keelmq.admin.messages import ReplayResult as ReplayResult
    from keelmq.admin.messages import ScheduledMessage as ScheduledMessage
    from keelmq.admin.messages import ScheduledPage as ScheduledPage
    from keelmq.admin.messages import StoredMessage as StoredMessage
    from keelmq.admin.nodes import ConnectedClient as ConnectedClient
    from keelmq.admin.nodes import ConsumedGroup as ConsumedGroup
    from keelmq.admin.nodes import LogLevel as LogLevel
    from keelmq.admin.nodes import NodeCalls as NodeCalls
    from keelmq.admin.nodes import NodeConfig as NodeConfig
    from keelmq.admin.nodes import NodeDrain as NodeDrain
    from keelmq.admin.nodes import NodeOption as NodeOption
    from keelmq.admin.producer_groups import ProducerGroup as ProducerGroup
    from keelmq.admin.producer_groups import ProducerGroups as ProducerGroups
    from keelmq.admin.quotas import QuotaUsage as QuotaUsage
    from keelmq.admin.quotas import QuotaUsages as QuotaUsages
    from keelmq.admin.topics import PurgedQueue as PurgedQueue
    from keelmq.admin.topics import PurgedTopic as PurgedTopic
    from keelmq.admin.topics import QueueInfo as QueueInfo
    from keelmq.admin.topics import TopicInfo as TopicInfo
    from keelmq.admin.traces import CausedMessage as CausedMessage
    from keelmq.admin.traces import CausedPage as CausedPage
    from keelmq.admin.traces import MessageTrace as MessageTrace
    from keelmq.admin.traces import TraceEvent as TraceEvent
    from keelmq.admin.transactions import CommittedBatch as CommittedBatch
    from keelmq.admin.transactions import DecidedTransaction as DecidedTransaction
    from keelmq.admin.transactions import HalfMessages as HalfMessages
    from keelmq.admin.transactions import ResumedTransaction as ResumedTransaction
    from keelmq.admin.transactions import TimelineEvent as TimelineEvent
    from keelmq.admin.transactions import TransactionDetail as TransactionDetail
    from keelmq.admin.transactions import TransactionInfo as TransactionInfo
    from keelmq.admin.transactions import TransactionPage as TransactionPage
    from keelmq.admin.users import NewToken as NewToken
    from keelmq.admin.users import PrincipalInfo as PrincipalInfo
    from keelmq.admin.users import Rule as Rule
    from keelmq.admin.users import TokenInfo as TokenInfo
    from keelmq.admin.users import UserInfo as UserInfo
    from keelmq.admin.users import Users as Users
    from keelmq.admin.users import Verdict as Verdict
    from keelmq.admin.view import View as View

_MODULES = {
    "Admin": "admin",
    "Alarm": "cluster",
    "AssignedQueue": "groups",
    "AuditFilter": "audit",
    "AuditPage": "audit",
    "AuditRecord": "audit",
    "BackupBegun": "backups",
    "CausedMessage": "traces",
    "CausedPage": "traces",
    "ClusterDefinitions": "definition_plans",
    "ClusterMember": "changes",
    "ClusterMembers": "changes",
    "ClusterSettings": "changes",
    "ClusterStatus": "cluster",
    "CommittedBatch": "transactions",
    "CommittedOffset": "groups",
    "CommittedOffsets": "groups",
    "ComparedReplica": "cluster",
    "ConnectedClient": "nodes",
    "ConsumedGroup": "nodes",
    "DeadLetter": "messages",
    "DeadLetterPage": "messages",
    "DecidedTransaction": "transactions",
    "Definitions": "definitions",
    "FeatureLevel": "changes",
    "FoundMessage": "messages",
    "GiveBack": "messages",
    "GroupDetail": "groups",
    "GroupMember": "groups",
    "GroupOffset": "groups",
    "GroupPause": "groups",
    "GroupPauseResult": "groups",
    "GroupSettings": "groups",
    "HalfMessages": "transactions",
    "ImportStep": "definition_plans",
    "IndexRebuild": "cluster",
    "JoinToken": "changes",
    "LogHolder": "cluster",
    "LogLevel": "nodes",
    "NodeConfig": "nodes",
    "NodeDrain": "nodes",
    "NodeOption": "nodes",
    "MessagePage": "messages",
    "MessageTrace": "traces",
    "NewToken": "users",
    "NodeBuild": "changes",
    "NodeCalls": "nodes",
    "NodeStatus": "cluster",
    "PAGE_MAX": "admin",
    "PlannedChange": "definition_plans",
    "PrincipalInfo": "users",
    "ProducerGroup": "producer_groups",
    "ProducerGroups": "producer_groups",
    "PurgedQueue": "topics",
    "PurgedTopic": "topics",
    "QueueInfo": "topics",
    "QuotaUsage": "quotas",
    "QuotaUsages": "quotas",
    "RebuildStarted": "changes",
    "ReplayResult": "messages",
    "ReplayedLetter": "messages",
    "ReplicaStatus": "cluster",
    "ResetTo": "admin",
    "ResumedTransaction": "transactions",
    "Rule": "users",
    "ScheduledMessage": "messages",
    "ScheduledPage": "messages",
    "StoredMessage": "messages",
    "TimelineEvent": "transactions",
    "TokenInfo": "users",
    "TopicInfo": "topics",
    "TraceEvent": "traces",
    "TransactionDetail": "transactions",
    "TransactionInfo": "transactions",
    "TransactionPage": "transactions",
    "UserInfo": "users",
    "Users": "users",
    "Verdict": "users",
    "View": "view",
    "decode_definitions": "definitions",
    "encode_definitions": "definitions",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"keelmq.admin.{module}"), name)
    return value
