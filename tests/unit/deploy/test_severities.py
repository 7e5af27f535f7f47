"""A fault is as grave for the doctor as for the alert that tells of it, and as for the node's alarm."""

import re
from collections.abc import Callable
from typing import Final

import pytest

from keelmq.cli.operations.findings import findings_of
from keelmq.cli.operations.seen import Seen
from tests.requirements import REPOSITORY
from tests.unit.client.test_doctor import ALARM, BROKEN, healthy, with_status
from tests.unit.deploy.test_monitoring import METRICS, RULES

SEVERITY: Final = dict(
    re.findall(r"- alert: (\w+)\n(?:(?! +- alert).*\n)*? +severity: (\w+)$", RULES, re.MULTILINE),
)
ALERTS: Final = {
    "node_unreachable": "KeelMQNodeDown",
    "no_leader": "KeelMQNoQuorum",
    "no_quorum": "KeelMQNoQuorum",
    "quorum_margin": "KeelMQOneFailureFromNoQuorum",
    "leader_changes": "KeelMQLeaderChangesOften",
    "hashes_differ": "KeelMQReplicaUnsound",
    "versions_differ": "KeelMQVersionsDiffer",
    "node_behind": "KeelMQNodeBehind",
    "node_stands": "KeelMQNodeBehind",
    "alarm_disk_slow": "KeelMQWarningAlarm",
    "sync_slow": "KeelMQSyncSlow",
    "commit_slow": "KeelMQCommitSlow",
    "loop_late": "KeelMQLoopSaturated",
    "timers_late": "KeelMQTimersLate",
    "disk_low": "KeelMQDiskLow",
    "disk_fills": "KeelMQDiskFillsSoon",
    "few_files": "KeelMQConnectionsExhausted",
    "few_connections": "KeelMQConnectionsExhausted",
    "few_admin_connections": "KeelMQAdminConnectionsExhausted",
    "index_stalled": "KeelMQIndexStalled",
    "clock_wrong": "KeelMQClocksApart",
    "certificate_ends": "KeelMQPeerCertificateEnds",
    "transactions_undecided": "KeelMQTransactionsUndecided",
    "transactions_discarded": "KeelMQTransactionsDiscarded",
    "dead_letters": "KeelMQDeadLetters",
    "group_lags": "KeelMQConsumerLag",
    "group_without_members": "KeelMQConsumerLag",
    "groups_not_examined": "KeelMQConsumerLag",
    "group_paused": "KeelMQConsumerLag",
    "backup_old": "KeelMQBackupOld",
    "audit_incomplete": "KeelMQAuditIncomplete",
}
WITHOUT_ALERT: Final = {"two_clusters", "views_differ", "few_inodes", "backup_none", "metrics_hidden"}
"""Findings of what no metric of a single node tells, or what an alarm tells once it is grave."""
ROWS: Final = re.findall(r"^\| `(\w+)` \| (critical|warning) \|", METRICS.split("\n## Alarms\n")[1], re.MULTILINE)


def test_every_finding_has_an_alert_or_a_reason_to_have_none() -> None:
    assert {code for code, _ in BROKEN} == ALERTS.keys() | WITHOUT_ALERT
    assert set(ALERTS.values()) <= SEVERITY.keys()
    assert len(SEVERITY) == RULES.count("- alert: ")


@pytest.mark.parametrize(("code", "breaks"), [each for each in BROKEN if each[0] in ALERTS])
def test_the_doctor_finds_a_fault_as_grave_as_its_alert(code: str, breaks: Callable[[Seen], Seen]) -> None:
    (found,) = findings_of(breaks(healthy()))
    assert found.severity == SEVERITY[ALERTS[code]]


def test_an_alarm_is_as_grave_for_the_doctor_as_for_the_node() -> None:
    assert len(ROWS) > 20
    for code, severity in ROWS:
        if code == "node_unreachable":
            assert severity == SEVERITY["KeelMQPeerSilent"]
        (found,) = findings_of(with_status(2, alarms=[{**ALARM, "code": code, "severity": severity}])(healthy()))
        assert (code, found.severity) == (code, severity)


def test_an_alert_on_alarms_is_as_grave_as_these() -> None:
    """Critical alarms raise a critical alert: their own, or that of all critical alarms."""
    assert SEVERITY["KeelMQCriticalAlarm"] == "critical"
    assert SEVERITY["KeelMQWarningAlarm"] == "warning"
    critical, warning = ({code for code, severity in ROWS if severity == each} for each in ("critical", "warning"))
    unsound = re.search(r"- alert: KeelMQReplicaUnsound\n(?:.*\n){2} +keelmq_alarm\{code=~\"([^\"]+)\"", RULES)
    assert unsound is not None
    assert set(unsound[1].split("|")) <= critical - warning
    assert SEVERITY["KeelMQReplicaUnsound"] == "critical"
    assert ("log_held" in warning - critical, SEVERITY["KeelMQLogHeld"]) == (True, "warning")


def test_the_page_gives_the_findings_their_severity() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text().split("## What the doctor finds")[1].split("\n## ")[0]
    said = {
        code: severity
        for codes, severity in re.findall(r"^\| (`.*`) \| (critical|warning) \|", page, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    broken = [(code, breaks(healthy())) for code, breaks in BROKEN if not code.startswith("alarm_")]
    assert {code: said.get(code) for code, _ in broken} == {
        code: findings_of(seen)[0].severity for code, seen in broken
    }
