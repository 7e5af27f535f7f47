"""An alert that fires for another group, or with another code, is not taken for that of a fault."""

from types import SimpleNamespace
from typing import Any

from tests.monitoring.__main__ import JOB, Trial
from tests.monitoring.faults import GROUP, TOPIC
from tests.monitoring.planted import FAULTS


def trial_with(*firing: dict[str, str]) -> Trial:
    prometheus: Any = SimpleNamespace(firing=lambda: [{"job": JOB, **each} for each in firing])
    cluster: Any = SimpleNamespace(servers="http://127.0.0.1:1")
    report: Any = None
    return Trial(report, prometheus, cluster)


def test_labels_of_a_fault_have_to_be_those_of_the_alert() -> None:
    (lag,) = [fault for fault in FAULTS if fault.name == "lag"]
    alert = {"alertname": "KeelMQConsumerLag", "group": GROUP, "topic": TOPIC}
    assert trial_with(alert).firing(labels=lag.labels) == {"KeelMQConsumerLag"}
    assert trial_with({**alert, "group": "another"}).firing(labels=lag.labels) == set()
    assert trial_with({**alert, "group": "another"}).firing() == {"KeelMQConsumerLag"}


def test_every_alert_with_a_code_or_a_group_is_looked_at() -> None:
    with_labels = {"KeelMQConsumerLag", "KeelMQWritesRefused", "KeelMQCriticalAlarm", "KeelMQWarningAlarm"}
    with_labels |= {"KeelMQReplicaUnsound"}
    for fault in FAULTS:
        assert with_labels & set(fault.alerts) == fault.labels.keys(), fault.name
