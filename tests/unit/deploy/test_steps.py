"""Every finding of the doctor, and every alarm, has a command as its next step, and these commands exist."""

import re
from collections.abc import Callable
from typing import Final

import pytest

from deploy.rollout.__main__ import VERBS
from keelmq.cli.operations.alarm_steps import OTHER, STEPS
from keelmq.cli.operations.findings import findings_of
from keelmq.cli.operations.seen import Seen
from tests.requirements import REPOSITORY
from tests.unit.client.test_doctor import BROKEN, healthy, status
from tests.unit.deploy.test_monitoring import wrong_words

PROGRAMS: Final = "timedatectl|df -|iostat -|ls -|dmesg|top |curl |prlimit --|systemctl [a-z]+ |journalctl -u "
COMMAND: Final = re.compile(rf"(?:^|[\s(`])(?:keelmq(?:d|-deploy)? [a-z]|{PROGRAMS})")
KEELMQ: Final = re.compile(r"\bkeelmq [a-z][^;,:()`?]*")
DEPLOY: Final = re.compile(r"keelmq-deploy ([a-z]+)")
UNITS: Final = re.compile(r"(?:-u|systemctl [a-z]+) (\S+@)")
PAGE: Final = re.compile(r"docs/\w+\.md")


def test_a_step_without_a_command_is_noticed() -> None:
    assert not COMMAND.search("start the other nodes")
    assert not COMMAND.search("docs/retention.md, The holders")
    assert COMMAND.search("see keelmq group list")


def check(step: str) -> None:
    assert COMMAND.search(step), step
    assert [wrong for found in KEELMQ.findall(step) for wrong in wrong_words(found)] == []
    verbs = set(DEPLOY.findall(step))
    assert verbs <= set(VERBS), step
    assert all((REPOSITORY / "deploy" / "systemd" / f"{unit}.service").exists() for unit in UNITS.findall(step)), step
    assert [page for page in PAGE.findall(step) if not (REPOSITORY / page).exists()] == []


@pytest.mark.parametrize(("code", "breaks"), BROKEN)
def test_every_finding_has_a_command(code: str, breaks: Callable[[Seen], Seen]) -> None:
    for found in findings_of(breaks(healthy())):
        check(found.next_step)


@pytest.mark.parametrize("code", STEPS)
def test_every_alarm_has_a_command(code: str) -> None:
    check(STEPS[code])


def test_an_unknown_alarm_has_a_command() -> None:
    check(OTHER)


def test_a_missing_leader_has_a_command_whatever_the_nodes_say() -> None:
    nodes = [{"node_id": each, "url": "", "peer_address": "", "membership": "voter"} for each in (1, 2, 3)]
    for alarms, ids in (((), (1, 2, 3)), (("disk_is_new",), (1, 2)), (("committed_entry_missing",), (1, 2, 3))):
        said = [{"code": code, "severity": "critical", "since_ms": 1, "detail": "", "subject": ""} for code in alarms]
        seen = [status(each, role="follower", leader_id=None, nodes=nodes, alarms=said) for each in ids]
        found = {each.code: each for each in findings_of(healthy()._replace(statuses=seen))}
        check(found["no_leader"].next_step)
