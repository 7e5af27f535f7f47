"""The doctor finds nothing in a healthy cluster, and exactly one thing where one thing is broken."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from keelmq.admin import ClusterStatus
from keelmq.cli.operations.exposition import Reading, increase, quantile
from keelmq.cli.operations.findings import findings_of
from keelmq.cli.operations.group_findings import waiting_groups
from keelmq.cli.operations.seen import Seen

PAGE: Final = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
OPERATIONS: Final = Path(__file__).parents[3] / "client" / "keelmq" / "cli" / "operations"
SOURCE: Final = "".join(path.read_text() for path in sorted(OPERATIONS.glob("*findings.py")))
NOW_S: Final = 1_700_000_000.0
HEALTHY: Final = f"""
# HELP keelmq_raft_voters Voters of the cluster
keelmq_raft_voters 3.0
keelmq_raft_quorum_margin 1.0
keelmq_raft_elections_won_recently 1.0
keelmq_index_writes_stopped 0.0
keelmq_audit_records_lost_total{{reason="not_written"}} 7.0
keelmq_transactions_discarded_age_seconds 0.0
keelmq_disk_free_bytes 5e+10
keelmq_disk_free_files 5e+06
keelmq_disk_size_bytes 1e+11
keelmq_disk_fill_bytes_per_second 1e+05
process_open_fds 200.0
process_max_fds 20000.0
keelmq_http_connections 10.0
keelmq_http_connections_limit 4096.0
keelmq_admin_connections 4.0
keelmq_admin_connections_limit 256.0
keelmq_http_connections_closed_total{{reason="idle"}} 7.0
keelmq_http_connections_closed_total{{reason="handshake"}} 7.0
keelmq_http_connections_reserved_total 7.0
keelmq_admin_connections_closed_total{{reason="idle"}} 7.0
keelmq_admin_connections_reserved_total 7.0
keelmq_index_stalls_total{{kind="stop"}} 3.0
keelmq_clock_offset_seconds{{node_id="2"}} -0.1
keelmq_peer_certificate_expires_timestamp_seconds {NOW_S + 90 * 86_400}
keelmq_http_certificate_expires_timestamp_seconds 0.0
keelmq_transactions_undecided 1.0
keelmq_transactions_undecided_age_seconds 10.0
keelmq_dead_letters{{group="g"}} 0.0
keelmq_backup_age_seconds 3600.0
keelmq_log_held_seconds{{holder="message"}} 90000.0
keelmq_log_held_seconds{{holder="transaction"}} 0.0
keelmq_consumer_lag_seconds{{group="g",queue="0",topic="t"}} 10.0
"""
FAST: Final = 'keelmq_{0}_seconds_bucket{{le="0.01"}} {1}\nkeelmq_{0}_seconds_bucket{{le="+Inf"}} {1}\n'
SLOW: Final = (
    'keelmq_{0}_seconds_bucket{{le="0.01"}} 0\nkeelmq_{0}_seconds_bucket{{le="30.0"}} {1}\n'
    'keelmq_{0}_seconds_bucket{{le="+Inf"}} {1}\n'
)
KINDS: Final = ("fsync", "commit", "loop_delay", "timer_lateness")


def status(node_id: int, **changes: Any) -> ClusterStatus:
    document = {
        "cluster_id": "shop",
        "node_id": node_id,
        "role": "leader" if node_id == 1 else "follower",
        "term": 3,
        "leader_id": 1,
        "commit_index": 100,
        "applied_index": 100,
        "durable_index": 100,
        "state_hash": "abc",
        "hash_index": 100,
        "nodes": [],
        "version": "1.0",
        **changes,
    }
    return msgspec.convert(document, ClusterStatus)


def text(count: int, slow: str = "", changes: Mapping[str, float] | None = None) -> str:
    shown = HEALTHY + "".join((SLOW if kind == slow else FAST).format(kind, count) for kind in KINDS)
    for name, value in (changes or {}).items():
        shown, found = re.subn(rf"^({name}(?:{{.*}})?) \S+$", rf"\g<1> {value}", shown, flags=re.MULTILINE)
        assert found, name
    return shown


def healthy() -> Seen:
    nodes = {node_id: status(node_id) for node_id in (1, 2, 3)}
    return Seen(
        statuses=list(nodes.values()),
        unreachable={},
        before={node_id: Reading(text(10)) for node_id in nodes},
        after={node_id: Reading(text(20)) for node_id in nodes},
        moved={node_id: (each, each) for node_id, each in nodes.items()},
        now_s=NOW_S,
        consumed={"g": True},
    )


def with_status(node_id: int, **changes: Any) -> Callable[[Seen], Seen]:
    return lambda seen: seen._replace(
        statuses=[status(node_id, **changes) if each.node_id == node_id else each for each in seen.statuses]
    )


def on_all(**changes: Any) -> Callable[[Seen], Seen]:
    return lambda seen: seen._replace(statuses=[status(each.node_id, **changes) for each in seen.statuses])


def with_metrics(**changes: float) -> Callable[[Seen], Seen]:
    return lambda seen: seen._replace(after={**seen.after, 1: Reading(text(20, changes=changes))})


def with_pause(paused_s: float, **changes: float) -> Callable[[Seen], Seen]:
    paused = f'keelmq_group_paused_seconds{{group="g"}} {paused_s}\n'
    return lambda seen: seen._replace(after={**seen.after, 1: Reading(text(20, changes=changes) + paused)})


def test_a_group_that_was_paused_a_while_ago_is_no_finding() -> None:
    assert findings_of(with_pause(3_600)(healthy())) == []


def all_show(**changes: float) -> Callable[[Seen], Seen]:
    return lambda seen: seen._replace(after={node_id: Reading(text(20, changes=changes)) for node_id in seen.after})


def without_backups(seen: Seen) -> Seen:
    shown = re.sub(r"^keelmq_backup_age.*\n", "", text(20), flags=re.MULTILINE)
    return seen._replace(after={node_id: Reading(shown) for node_id in seen.after})


def with_slow(kind: str) -> Callable[[Seen], Seen]:
    def change(seen: Seen) -> Seen:
        before, after = Reading(text(10, kind)), Reading(text(20, kind))
        return seen._replace(before={**seen.before, 1: before}, after={**seen.after, 1: after})

    return change


def behind(seen: Seen) -> Seen:
    ahead = {"commit_index": 20_000, "applied_index": 20_000, "hash_index": 20_000}
    return seen._replace(statuses=[status(1, **ahead), status(2), status(3, **ahead)])


def standing(seen: Seen) -> Seen:
    stood = status(3, applied_index=90, hash_index=90)
    first, last = status(1, commit_index=95), status(1)
    statuses = [stood if each.node_id == 3 else each for each in seen.statuses]
    moved = {**seen.moved, 1: (first, last), 3: (status(3, applied_index=90, hash_index=90), stood)}
    return seen._replace(statuses=statuses, moved=moved)


ALARM: Final = {"code": "disk_slow", "severity": "warning", "since_ms": 1, "detail": "slow", "subject": ""}
LIKE_FOLLOWERS: Final = {"role": "follower", "leader_id": None, "waits_for": "2 of 3 voters are needed"}
BROKEN: Final[list[tuple[str, Callable[[Seen], Seen]]]] = [
    ("node_unreachable", lambda seen: seen._replace(unreachable={"http://x": "no answer"})),
    ("no_leader", on_all(**LIKE_FOLLOWERS)),
    ("no_quorum", all_show(keelmq_raft_quorum_margin=-1)),
    ("quorum_margin", all_show(keelmq_raft_quorum_margin=0)),
    ("two_clusters", with_status(2, cluster_id="other")),
    ("views_differ", with_status(2, leader_id=3)),
    ("views_differ", with_status(2, term=2)),
    ("leader_changes", all_show(keelmq_raft_elections_won_recently=2)),
    ("hashes_differ", with_status(2, state_hash="def")),
    ("versions_differ", with_status(2, version="2.0")),
    ("versions_differ", with_status(2, commit="0123abc")),
    ("node_behind", behind),
    ("node_stands", standing),
    ("alarm_disk_slow", with_status(2, alarms=[ALARM])),
    ("sync_slow", with_slow("fsync")),
    ("commit_slow", with_slow("commit")),
    ("loop_late", with_slow("loop_delay")),
    ("timers_late", with_slow("timer_lateness")),
    ("disk_low", with_metrics(keelmq_disk_free_bytes=9e9)),
    ("disk_fills", with_metrics(keelmq_disk_fill_bytes_per_second=5e6)),
    ("few_inodes", with_metrics(keelmq_disk_free_files=999)),
    ("few_files", with_metrics(process_max_fds=1024)),
    ("few_files", with_metrics(process_open_fds=19_000)),
    ("few_connections", with_metrics(keelmq_http_connections=4000)),
    ("few_admin_connections", with_metrics(keelmq_admin_connections=250)),
    ("few_connections", with_metrics(keelmq_http_connections_closed_total=9)),
    ("few_connections", with_metrics(keelmq_http_connections_reserved_total=8)),
    ("few_admin_connections", with_metrics(keelmq_admin_connections_closed_total=9)),
    ("few_admin_connections", with_metrics(keelmq_admin_connections_reserved_total=8)),
    ("index_stalled", with_metrics(keelmq_index_stalls_total=4)),
    ("index_stalled", with_metrics(keelmq_index_writes_stopped=1)),
    ("clock_wrong", with_metrics(keelmq_clock_offset_seconds=-0.9)),
    ("certificate_ends", with_metrics(keelmq_peer_certificate_expires_timestamp_seconds=NOW_S + 86_400)),
    ("transactions_undecided", with_metrics(keelmq_transactions_undecided_age_seconds=400)),
    ("transactions_discarded", with_metrics(keelmq_transactions_discarded_age_seconds=1)),
    ("dead_letters", with_metrics(keelmq_dead_letters=2)),
    ("group_lags", with_metrics(keelmq_consumer_lag_seconds=400)),
    (
        "group_without_members",
        lambda seen: with_metrics(keelmq_consumer_lag_seconds=400)(seen)._replace(consumed={"g": False}),
    ),
    (
        "groups_not_examined",
        lambda seen: with_metrics(keelmq_consumer_lag_seconds=400)(seen)._replace(consumed={}),
    ),
    ("group_paused", with_pause(86_500)),
    ("group_paused", with_pause(60, keelmq_consumer_lag_seconds=400)),
    ("backup_old", all_show(keelmq_backup_age_seconds=27 * 3_600)),
    ("backup_none", without_backups),
    ("audit_incomplete", with_metrics(keelmq_audit_records_lost_total=8)),
    ("metrics_hidden", lambda seen: seen._replace(after={1: seen.after[1], 2: seen.after[2]})),
]


def test_nothing_is_found_in_a_healthy_cluster() -> None:
    assert findings_of(healthy()) == []


def test_connections_that_did_not_shake_hands_are_not_short() -> None:
    more = Reading(text(20).replace('{reason="handshake"} 7.0', '{reason="handshake"} 70.0'))
    seen = healthy()
    assert findings_of(seen._replace(after={**seen.after, 1: more})) == []


def test_a_node_that_showed_nothing_before_has_not_closed_its_connections_meanwhile() -> None:
    seen = healthy()
    assert findings_of(seen._replace(before={2: seen.before[2], 3: seen.before[3]})) == []


@pytest.mark.parametrize(("code", "breaks"), BROKEN)
def test_what_is_broken_is_found_and_nothing_else(code: str, breaks: Callable[[Seen], Seen]) -> None:
    found = findings_of(breaks(healthy()))
    assert [finding.code for finding in found] == [code]
    assert all((found[0].what, found[0].evidence, found[0].next_step))


def without_leader(node_id: int, *, voteless: bool, index: int) -> ClusterStatus:
    alarm = {"code": "disk_is_new", "severity": "critical", "since_ms": 1, "detail": "", "subject": ""}
    nodes = [
        {"node_id": each, "url": "", "peer_address": "", "membership": "voter", "connected": True, "match_index": 0}
        for each in (1, 2, 3)
    ]
    changes: dict[str, Any] = {**LIKE_FOLLOWERS, "waits_for": f"reason of {node_id}", "nodes": nodes}
    return status(node_id, alarms=[alarm] if voteless else [], durable_index=index, **changes)


def no_leader_in(statuses: list[ClusterStatus]) -> tuple[str, str]:
    (found,) = [each for each in findings_of(healthy()._replace(statuses=statuses)) if each.code == "no_leader"]
    return found.evidence, found.next_step


def test_what_all_nodes_say_of_a_missing_leader_is_put_together() -> None:
    survivor, put_back, third = (without_leader(each, voteless=each > 1, index=9 - each) for each in (1, 2, 3))
    evidence, step = no_leader_in([third, put_back, survivor])
    assert all(f"node {each}: reason of {each}" in evidence for each in (1, 2, 3))
    assert step.startswith("too few disks are left that may vote")
    assert "`keelmqd recover` at node 1" in step
    assert "docs/backup.md" in step
    _, step = no_leader_in([survivor, put_back])
    assert step.startswith("start these nodes, with their own disks: 3 (systemctl start "), (
        "they may be a majority with it"
    )
    _, step = no_leader_in([third, put_back])
    assert step.startswith("start these nodes, with their own disks: 1 (systemctl start ")
    assert "`keelmqd recover` at node 2" in step, "its log is the longest of those that answer"
    _, step = no_leader_in([without_leader(each, voteless=False, index=9) for each in (1, 2, 3)])
    assert "keelmq cluster status" in step


def test_how_long_something_may_wait_is_for_the_user_to_say() -> None:
    assert [each.code for each in findings_of(healthy()._replace(waiting_s=10.0))] == []
    found = [each.code for each in findings_of(healthy()._replace(waiting_s=9.0))]
    assert found == ["transactions_undecided", "group_lags"]


def test_the_last_backup_counts_whichever_node_it_was_read_from() -> None:
    assert findings_of(with_metrics(keelmq_backup_age_seconds=27 * 3_600)(healthy())) == []


def test_that_there_is_no_backup_is_said_when_all_nodes_say_so_and_messages_are_old() -> None:
    seen = without_backups(healthy())
    assert "backup_none" not in codes_of(seen._replace(unreachable={"http://x": "no answer"}))
    assert "backup_none" not in codes_of(seen._replace(after={1: seen.after[1], 2: seen.after[2]}))
    young = Reading("keelmq_raft_voters 3")
    assert "backup_none" not in codes_of(seen._replace(after=dict.fromkeys((1, 2, 3), young)))


def codes_of(seen: Seen) -> set[str]:
    return {finding.code for finding in findings_of(seen)}


def test_groups_that_wait_for_long_are_those_to_ask_for_members() -> None:
    assert waiting_groups(healthy()) == {}
    assert waiting_groups(with_metrics(keelmq_consumer_lag_seconds=400)(healthy())) == {"g": 400.0}


def test_every_finding_is_broken_here_and_on_the_page() -> None:
    made = set(re.findall(r"Finding\(\s*f?\"(\w+)", SOURCE)) | set(
        re.findall(r"^        \(\"(\w+)\", \"keelmq", SOURCE, re.M)
    )
    broken = {code for code, _ in BROKEN}
    assert {code for code in made if not code.startswith("alarm_")} == broken - {"alarm_disk_slow"}
    section = PAGE.split("## What the doctor finds")[1].split("\n## ")[0]
    assert broken - {"alarm_disk_slow"} <= set(re.findall(r"`(\w+)`", section))


def alarm(code: str, subject: str = "", severity: str = "warning") -> dict[str, Any]:
    return {"code": code, "severity": severity, "since_ms": 1, "detail": "why", "subject": subject}


def test_an_alarm_has_the_next_step_of_its_kind() -> None:
    (found,) = findings_of(with_status(2, alarms=[alarm("feature_level_behind")])(healthy()))
    assert found.next_step.startswith("keelmq cluster upgrade")
    (found,) = findings_of(with_status(2, alarms=[alarm("made_up_later")])(healthy()))
    assert "keelmq cluster status" in found.next_step


def test_a_hung_node_is_one_finding_and_not_one_of_each_that_misses_it() -> None:
    silent = [alarm("node_unreachable", "3")]
    nodes = [{"node_id": number, "url": f"http://n{number}:1"} for number in (1, 2, 3)]
    seen = healthy()._replace(statuses=[status(each, alarms=silent, nodes=nodes) for each in (1, 2)])
    hung = seen._replace(unreachable={"http://n3:1": "no answer"}, after={each: seen.after[each] for each in (1, 2)})
    (found,) = findings_of(hung)
    assert (found.code, found.evidence) == ("node_unreachable", "no answer; node 1, 2: why"), "only the others know why"
    elsewhere = hung._replace(unreachable={"http://x": "no answer"})
    assert [found.code for found in findings_of(elsewhere)] == ["node_unreachable", "alarm_node_unreachable"]
    cut_off = healthy()._replace(statuses=[status(1, alarms=silent), status(2, alarms=silent), status(3)])
    (found,) = findings_of(cut_off)
    assert (found.code, found.what) == ("alarm_node_unreachable", "node 3 is not heard by node 1, 2")


def test_a_missing_leader_is_one_finding_for_all_nodes() -> None:
    said = [alarm("no_leader", severity="critical")]
    assert codes_of(on_all(**LIKE_FOLLOWERS, alarms=said)(healthy())) == {"no_leader"}
    assert codes_of(with_status(2, alarms=said)(healthy())) == {"alarm_no_leader"}, "others have one"


def test_a_certificate_that_has_ended_is_critical_and_said_to_have_ended() -> None:
    name = "keelmq_peer_certificate_expires_timestamp_seconds"
    (found,) = findings_of(with_metrics(**{name: NOW_S - 3 * 86_400})(healthy()))
    assert (found.code, found.severity) == ("certificate_ends", "critical")
    assert (found.what, found.evidence) == (
        "the peer certificate of node 1 has ended",
        "it has ended 3.0 days ago",
    )
    (found,) = findings_of(with_metrics(**{name: NOW_S + 3 * 86_400})(healthy()))
    assert (found.severity, found.evidence) == ("warning", "it ends in 3.0 days")


def test_critical_findings_come_first() -> None:
    seen = with_metrics(keelmq_dead_letters=2)(healthy())._replace(unreachable={"http://x": "no answer"})
    assert [finding.severity for finding in findings_of(seen)] == ["critical", "warning"]


def test_labels_with_quotes_and_line_ends_are_read() -> None:
    reading = Reading('x{a="1\\"2\\n\\\\",b="}"} 2.5\nnonsense\nx{a="c"} NaN? \n')
    assert [(each.labels, each.value) for each in reading.all("x")] == [({"a": '1"2\n\\', "b": "}"}, 2.5)]


def test_counters_and_histograms_are_compared() -> None:
    assert increase(Reading("x_total 5"), Reading("x_total 8"), "x_total") == 3
    assert increase(Reading("x_total 5"), Reading("x_total 2"), "x_total") == 2
    before, after = Reading(FAST.format("fsync", 10)), Reading(SLOW.format("fsync", 20))
    assert quantile(before, after, "keelmq_fsync_seconds", 0.99) == 30.0
    assert quantile(after, after, "keelmq_fsync_seconds", 0.99) is None
