"""A short part of `make monitoring-test`: real faults raise their alerts in a real Prometheus, and the doctor finds
them.
"""

import subprocess
import sys

import pytest

from deploy.reporting.result import result_of
from tests.patience import PATIENCE_S, RUN_PATIENCE_S
from tests.requirements import PROMETHEUS, REPOSITORY

pytestmark = pytest.mark.process

FAULTS = {"lag": {"KeelMQConsumerLag"}, "one-down": {"KeelMQNodeDown", "KeelMQPeerSilent"}}
FINDINGS = {"lag": {"group_without_members"}, "one-down": {"node_unreachable", "quorum_margin"}}
WITHOUT_EVENTS = {
    "cluster: Active alarms",
    "groups: Dead letters, top 20",
    "cluster: Refused proposals",
    "node: Errors",
    "cluster: Certificates end in",
    "cluster: Age of the last backup",
}
"""Panels that may be empty: nothing of their kind has happened yet, or is there."""


def test_faults_raise_their_alerts_and_dashboards_show_something() -> None:
    PROMETHEUS.require()
    command = [sys.executable, "-m", "tests.monitoring", "--goal-s", str(PATIENCE_S)]
    command += [part for name in FAULTS for part in ("--fault", name)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_of(done.stdout)
    assert result["missing"] == []
    for fault, alerts in FAULTS.items():
        assert alerts <= result["raised_s"][fault].keys()
        assert result["found_s"][fault].keys() == FINDINGS[fault]
    assert set(result["panels_without_series"]) <= WITHOUT_EVENTS
