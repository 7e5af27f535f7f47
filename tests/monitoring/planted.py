"""All faults of the three nodes, in the order in which they are provoked, with what has to notice each."""

from typing import Final

from tests.monitoring.data_faults import broken_quotas, differs, old_backup, put_back
from tests.monitoring.faults import GROUP, TOPIC, Fault, Faults
from tests.requirements import SMALL_DISK, TRACING


def unsound(code: str) -> dict[str, dict[str, str]]:
    return {"KeelMQReplicaUnsound": {"code": code}}


FAULTS: Final[tuple[Fault[Faults], ...]] = (
    Fault("log-held", ("KeelMQLogHeld",), ("alarm_log_held",), Faults.log_held),
    Fault(
        "lag",
        ("KeelMQConsumerLag",),
        ("group_without_members",),
        Faults.lag,
        labels={"KeelMQConsumerLag": {"group": GROUP, "topic": TOPIC}},
    ),
    Fault("dead-letter", ("KeelMQDeadLetters",), ("dead_letters",), Faults.dead_letter),
    Fault("undecided", ("KeelMQTransactionsUndecided",), ("transactions_undecided",), Faults.undecided),
    Fault("discarded", ("KeelMQTransactionsDiscarded",), ("transactions_discarded",), Faults.discarded),
    Fault(
        "no-space",
        ("KeelMQWritesRefused", "KeelMQRequestsFail"),
        ("alarm_disk_low",),
        Faults.no_space,
        SMALL_DISK,
        labels={"KeelMQWritesRefused": {"code": "disk_full"}},
    ),
    Fault("clock", ("KeelMQClocksApart",), ("clock_wrong",), Faults.wrong_clock),
    Fault(
        "low-disk",
        ("KeelMQDiskLow", "KeelMQCriticalAlarm"),
        ("alarm_disk_low",),
        Faults.low_disk,
        SMALL_DISK,
        labels={"KeelMQCriticalAlarm": {"code": "disk_low"}},
    ),
    Fault(
        "broken-quotas",
        ("KeelMQWarningAlarm",),
        ("alarm_quotas_refused",),
        broken_quotas,
        labels={"KeelMQWarningAlarm": {"code": "quotas_refused"}},
    ),
    Fault(
        "filling-disk", ("KeelMQDiskFillsSoon",), ("disk_fills",), Faults.filling_disk, SMALL_DISK, Faults.send_large
    ),
    Fault("slow-sync", ("KeelMQSyncSlow",), ("sync_slow",), Faults.slow_sync, TRACING, Faults.send),
    Fault("slow-commits", ("KeelMQCommitSlow",), ("commit_slow",), Faults.slow_commits, TRACING, Faults.send),
    Fault("hanging-sync", ("KeelMQNodeBehind",), ("node_stands",), Faults.hanging_sync, TRACING, Faults.send),
    Fault("stalled-index", ("KeelMQIndexStalled",), ("index_stalled",), Faults.stalled_index, TRACING),
    Fault(
        "late-timers", ("KeelMQTimersLate",), ("timers_late",), Faults.late_timers, stir=Faults.have_late, look_s=12.0
    ),
    Fault("other-version", ("KeelMQVersionsDiffer",), ("versions_differ",), Faults.other_version),
    Fault("stalled-loop", ("KeelMQLoopSaturated",), ("loop_late",), Faults.stalled_loop, stir=Faults.stall),
    Fault(
        "leader-changes", ("KeelMQLeaderChangesOften",), ("leader_changes",), Faults.leader_changes, stir=Faults.change
    ),
    Fault(
        "new-disk", ("KeelMQReplicaUnsound",), ("alarm_disk_is_new",), Faults.new_disk, labels=unsound("disk_is_new")
    ),
    Fault("put-back", ("KeelMQReplicaUnsound",), ("alarm_disk_is_new",), put_back, labels=unsound("disk_is_new")),
    Fault("differs", ("KeelMQReplicaUnsound",), ("alarm_replica_differs",), differs, labels=unsound("replica_differs")),
    Fault("backup-old", ("KeelMQBackupOld",), ("backup_old",), old_backup),
    Fault(
        "one-down",
        ("KeelMQNodeDown", "KeelMQPeerSilent", "KeelMQOneFailureFromNoQuorum"),
        ("node_unreachable", "quorum_margin"),
        Faults.one_down,
    ),
    Fault("two-down", ("KeelMQNoQuorum",), ("no_quorum", "no_leader"), Faults.two_down),
    Fault("all-down", ("KeelMQAllNodesDown",), ("node_unreachable",), Faults.all_down),
)
