"""Administration of a cluster: `Admin`, and the structs that it returns."""

from keelmq.admin.admin import PAGE_MAX, Admin, ResetTo
from keelmq.admin.backups import BackupBegun
from keelmq.admin.changes import ClusterMember, ClusterMembers, ClusterSettings, FeatureLevel, NodeBuild, RebuildStarted
from keelmq.admin.cluster import (
    Alarm,
    ClusterStatus,
    ComparedReplica,
    IndexRebuild,
    LogHolder,
    NodeStatus,
    ReplicaStatus,
)
from keelmq.admin.groups import (
    AssignedQueue,
    CommittedOffset,
    CommittedOffsets,
    GroupDetail,
    GroupMember,
    GroupOffset,
    GroupSettings,
)
from keelmq.admin.messages import (
    DeadLetter,
    DeadLetterPage,
    FoundMessage,
    GiveBack,
    MessagePage,
    ReplayedLetter,
    ReplayResult,
    ScheduledMessage,
    ScheduledPage,
    StoredMessage,
)
from keelmq.admin.quotas import QuotaUsage, QuotaUsages
from keelmq.admin.topics import QueueInfo, TopicInfo
from keelmq.admin.traces import MessageTrace, TraceEvent
from keelmq.admin.transactions import (
    CommittedBatch,
    DecidedTransaction,
    HalfMessages,
    ResumedTransaction,
    TimelineEvent,
    TransactionDetail,
    TransactionInfo,
    TransactionPage,
)
from keelmq.admin.users import NewToken, PrincipalInfo, Rule, TokenInfo, UserInfo, Users, Verdict
from keelmq.admin.view import View

__all__ = [
    "PAGE_MAX",
    "Admin",
    "Alarm",
    "AssignedQueue",
    "BackupBegun",
    "ClusterMember",
    "ClusterMembers",
    "ClusterSettings",
    "ClusterStatus",
    "CommittedBatch",
    "CommittedOffset",
    "CommittedOffsets",
    "ComparedReplica",
    "DeadLetter",
    "DeadLetterPage",
    "DecidedTransaction",
    "FeatureLevel",
    "FoundMessage",
    "GiveBack",
    "GroupDetail",
    "GroupMember",
    "GroupOffset",
    "GroupSettings",
    "HalfMessages",
    "IndexRebuild",
    "LogHolder",
    "MessagePage",
    "MessageTrace",
    "NewToken",
    "NodeBuild",
    "NodeStatus",
    "PrincipalInfo",
    "QueueInfo",
    "QuotaUsage",
    "QuotaUsages",
    "RebuildStarted",
    "ReplayResult",
    "ReplayedLetter",
    "ReplicaStatus",
    "ResetTo",
    "ResumedTransaction",
    "Rule",
    "ScheduledMessage",
    "ScheduledPage",
    "StoredMessage",
    "TimelineEvent",
    "TokenInfo",
    "TopicInfo",
    "TraceEvent",
    "TransactionDetail",
    "TransactionInfo",
    "TransactionPage",
    "UserInfo",
    "Users",
    "Verdict",
    "View",
]
