"""A cause is told once by the doctor, whoever notices it: the nodes' alarms and the checks of their metrics."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from keelmq.cli.operations.findings import findings_of
from keelmq.cli.operations.seen import Finding, Seen
from tests.unit.client.test_doctor import (
    NOW_S,
    alarm,
    behind,
    healthy,
    standing,
    status,
    with_metrics,
    with_slow,
)

Alarms = dict[int, list[dict[str, Any]]]
PEER = "keelmq_peer_certificate_expires_timestamp_seconds"
CERTIFICATE = {PEER: NOW_S + 86_400}
FEW = {"keelmq_disk_free_bytes": 9e9}


def with_alarms(said: Alarms) -> Callable[[Seen], Seen]:
    """Return a change that gives nodes alarms, whatever else they say."""

    def change(seen: Seen) -> Seen:
        told = [_with(each, said.get(each.node_id, ())) for each in seen.statuses]
        return seen._replace(statuses=told)

    return change


def _with(each: Any, alarms: Sequence[dict[str, Any]]) -> Any:
    known = ("role", "commit_index", "applied_index", "hash_index", "state_hash")
    return status(each.node_id, alarms=list(alarms), **{name: getattr(each, name) for name in known})


ONCE = [
    (
        "clock_wrong",
        "critical",
        with_metrics(keelmq_clock_offset_seconds=-9),
        {2: [alarm("clock_skew", severity="critical")], 1: [alarm("clock_skew", "2")], 3: [alarm("clock_skew", "2")]},
    ),
    ("certificate_ends", "warning", with_metrics(**CERTIFICATE), {1: [alarm("certificate_ends")]}),
    (
        "alarm_disk_low",
        "critical",
        with_metrics(**FEW),
        {1: [alarm("disk_low", severity="critical")], 2: [alarm("disk_low", "1")], 3: [alarm("disk_low", "1")]},
    ),
    (
        "alarm_disk_low",
        "critical",
        with_metrics(keelmq_disk_free_files=9),
        {1: [alarm("disk_low", severity="critical")]},
    ),
    ("disk_low", "critical", with_metrics(**FEW), {1: [alarm("disk_filling")]}),
    ("disk_fills", "warning", with_metrics(keelmq_disk_fill_bytes_per_second=5e6), {1: [alarm("disk_filling")]}),
    (
        "node_behind",
        "critical",
        behind,
        {2: [alarm("node_behind", severity="critical")], 1: [alarm("node_behind", "2")]},
    ),
    ("node_stands", "critical", standing, {3: [alarm("node_behind", severity="critical")]}),
    ("alarm_loop_stalled", "warning", with_slow("loop_delay"), {1: [alarm("loop_stalled")]}),
    ("sync_slow", "warning", with_slow("fsync"), {1: [alarm("disk_slow")], 2: [alarm("disk_slow", "1")]}),
    (
        "alarm_descriptors_low",
        "critical",
        with_metrics(process_open_fds=19_900),
        {1: [alarm("descriptors_low", severity="critical")]},
    ),
    (
        "alarm_clock_in_doubt",
        "critical",
        with_metrics(keelmq_clock_offset_seconds=-9),
        {
            1: [alarm("clock_in_doubt", severity="critical"), alarm("clock_skew", "2")],
            3: [alarm("clock_in_doubt", severity="critical")],
        },
    ),
]


@pytest.mark.parametrize(("code", "severity", "breaks", "said"), ONCE)
def test_a_cause_is_one_finding_with_all_evidence(
    code: str, severity: str, breaks: Callable[[Seen], Seen], said: Alarms
) -> None:
    (without,) = findings_of(breaks(healthy()))
    (found,) = findings_of(with_alarms(said)(breaks(healthy())))
    assert (found.code, found.severity) == (code, severity)
    assert without.evidence in found.evidence
    assert found.evidence.count("why") == 1, "what several nodes say alike is said once"


def codes_of(found: list[Finding]) -> list[str]:
    return sorted(finding.code for finding in found)


def test_what_concerns_another_node_or_another_certificate_is_told_beside() -> None:
    low = with_alarms({2: [alarm("disk_low", severity="critical")]})(with_metrics(**FEW)(healthy()))
    assert codes_of(findings_of(low)) == ["alarm_disk_low", "disk_low"]
    ends = with_alarms({1: [alarm("certificate_ends", "clients")]})(with_metrics(**CERTIFICATE)(healthy()))
    assert codes_of(findings_of(ends)) == ["alarm_certificate_ends", "certificate_ends"]


def test_an_alarm_about_a_node_is_one_finding_whoever_has_it() -> None:
    said = [alarm("replica_differs", "3", severity="critical")]
    (found,) = findings_of(with_alarms({1: said, 2: said, 3: said})(healthy()))
    assert (found.code, found.what) == ("alarm_replica_differs", "node 3 has the alarm replica_differs")
    (found,) = findings_of(with_alarms({1: said, 2: said})(healthy()))
    assert found.what == "node 3 has the alarm replica_differs, says node 1, 2"
    (found,) = findings_of(with_alarms({1: [alarm("clock_ahead")], 2: [alarm("clock_ahead")]})(healthy()))
    assert found.what == "node 1, 2 has the alarm clock_ahead"
    several = [alarm("background_task_failing", "a"), alarm("background_task_failing", "b")]
    assert len(findings_of(with_alarms({1: several})(healthy()))) == 2


def test_states_that_differ_are_told_by_the_alarm_that_names_the_node() -> None:
    seen = healthy()
    differing = [status(1), status(2), status(3, state_hash="other")]
    assert codes_of(findings_of(seen._replace(statuses=differing))) == ["hashes_differ"]
    said = [alarm("replica_differs", "3", severity="critical")]
    differing = [status(1, alarms=said), status(2, alarms=said), status(3, state_hash="other", alarms=said)]
    assert codes_of(findings_of(seen._replace(statuses=differing))) == ["alarm_replica_differs"]
    elsewhere = [status(1, state_hash="x"), status(2), status(3, alarms=said, hash_index=1)]
    assert codes_of(findings_of(seen._replace(statuses=elsewhere))) == ["alarm_replica_differs", "hashes_differ"]


def test_a_lack_of_space_and_one_of_inodes_are_two_causes() -> None:
    lacks_both = with_metrics(keelmq_disk_free_files=9, **FEW)(healthy())
    assert codes_of(findings_of(lacks_both)) == ["disk_low", "few_inodes"]
    lacks_files = with_alarms({1: [alarm("disk_filling")]})(with_metrics(keelmq_disk_free_files=9)(healthy()))
    assert codes_of(findings_of(lacks_files)) == ["alarm_disk_filling", "few_inodes"]


@pytest.mark.parametrize("turn", [1, -1])
def test_a_critical_alarm_counts_though_its_subject_is_hidden(turn: int) -> None:
    """The token is told no subjects, by which alone two alarms of a node differ."""
    hidden = [alarm("certificate_ends", severity="critical"), alarm("certificate_ends")][::turn]
    (found,) = findings_of(with_alarms({1: [each | {"detail": ""} for each in hidden]})(healthy()))
    assert (found.code, found.severity) == ("alarm_certificate_ends", "critical")


def test_a_replica_that_is_known_to_differ_hides_no_other() -> None:
    seen = with_alarms({1: [alarm("replica_differs", "3", severity="critical")]})(healthy())
    others = [each if each.node_id == 1 else _with_hash(each, f"other-{each.node_id}") for each in seen.statuses]
    found = {each.code: each.evidence for each in findings_of(seen._replace(statuses=others))}
    assert set(found) == {"alarm_replica_differs", "hashes_differ"}
    assert "3" not in found["hashes_differ"].replace("other-3", "")
    alone = [each if each.node_id != 3 else _with_hash(each, "other") for each in seen.statuses]
    assert codes_of(findings_of(seen._replace(statuses=alone))) == ["alarm_replica_differs"]


def test_nodes_of_two_clusters_are_not_compared() -> None:
    """Ids of nodes are the same in both, and their states have nothing to do with each other."""
    seen = with_alarms({1: [alarm("disk_filling")]})(healthy())
    foreign = [msgspec.structs.replace(_with_hash(each, "other"), cluster_id="other") for each in seen.statuses]
    assert codes_of(findings_of(seen._replace(statuses=[*seen.statuses, *foreign]))) == ["two_clusters"]


def _with_hash(status: Any, state_hash: str) -> Any:
    return msgspec.structs.replace(status, state_hash=state_hash)
