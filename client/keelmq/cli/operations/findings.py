"""Findings of `keelmq doctor`: each check looks at what all nodes say, and yields its findings.

Those about the cluster as a whole are here.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from keelmq.cli.operations.alarm_findings import alarms, told_once
from keelmq.cli.operations.alarm_steps import LOG, LOOK_AT_LOG, START, STATUS
from keelmq.cli.operations.group_findings import forgotten_pauses, lagging_groups, waiting_messages
from keelmq.cli.operations.node_findings import (
    certificates,
    clocks,
    incomplete_audits,
    nodes_behind,
    short_resources,
    slow_nodes,
)
from keelmq.cli.operations.seen import Finding, Seen

if TYPE_CHECKING:
    from keelmq.admin import ClusterStatus

CHANGES_MAX: Final = 4
"""Changes of leader in a quarter of an hour that need no reason."""
BACKUP_S: Final = 26 * 3_600.0
"""A day, and the time that a backup may take."""
UNSAVED_S: Final = 86_400.0
"""Age of the oldest message from which on somebody should have made a backup."""


START_OTHERS: Final = f"start the other nodes: {START}"
Check = Callable[[Seen], Iterator[Finding]]


def unreachable_nodes(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each node that does not answer, with what the others say of it: only they may know why."""
    for url, error in seen.unreachable.items():
        told: dict[str, list[str]] = {}
        for status in seen.statuses:
            for alarm in status.alarms:
                if alarm.code == "node_unreachable" and alarm.detail and seen.silent_url(alarm.subject) == url:
                    told.setdefault(alarm.detail, []).append(str(status.node_id))
        evidence = "; ".join([error, *(f"node {', '.join(nodes)}: {detail}" for detail, nodes in told.items())])
        yield Finding(
            "node_unreachable",
            "critical",
            f"{url} does not answer",
            evidence,
            f"start the node: {START}; or {LOOK_AT_LOG}",
        )


def missing_leader(seen: Seen) -> Iterator[Finding]:
    if seen.members and seen.leader is None:
        said = [f"node {each.node_id}: {each.waits_for}" for each in seen.members if each.waits_for]
        waits = ". ".join(said) or "an election is under way"
        what = "no node leads, so nothing can be written"
        yield Finding("no_leader", "critical", what, waits, _way_to_a_leader(seen))


def _way_to_a_leader(seen: Seen) -> str:
    """Return the next step by what all nodes say together: one node cannot know what another's disk is worth."""
    newest = max(seen.members, key=lambda status: status.configuration_index)
    voters = {node.node_id for node in newest.nodes if node.membership == "voter"}
    voting = [each for each in seen.members if each.node_id in voters and not _is_voteless(each)]
    silent = sorted(voters - {each.node_id for each in seen.members})
    steps = []
    if silent:
        steps.append(f"start these nodes, with their own disks: {', '.join(map(str, silent))} ({START})")
    if voters and len(voting) + len(silent) <= len(voters) // 2:
        longest = max(voting or seen.members, key=lambda status: status.durable_index)
        steps.append(
            f"too few disks are left that may vote: stop the nodes, run `keelmqd recover` at node {longest.node_id}, "
            "whose log is the longest, and add the others with empty directories and `--join` (docs/backup.md, "
            "Recovery from a survivor)"
        )
    elif not silent and any(alarm.code == "committed_entry_missing" for each in voting for alarm in each.alarms):
        steps.append(f"{STATUS} names the entry; docs/reliability.md, Going on without committed entries")
    return "; ".join(steps) or f"{STATUS}: see that the nodes reach each other; {LOOK_AT_LOG}"


def _is_voteless(status: "ClusterStatus") -> bool:
    differs = status.replica is not None and status.replica.differs
    return differs or any(alarm.code == "disk_is_new" for alarm in status.alarms)


def quorum_margin(seen: Seen) -> Iterator[Finding]:
    readings = [each for each in seen.after.values() if each.all("keelmq_raft_quorum_margin")]
    if not readings:
        return
    margin = max(each.value("keelmq_raft_quorum_margin") for each in readings)
    voters = max(each.value("keelmq_raft_voters") for each in readings)
    evidence = f"{margin:.0f} of {voters:.0f} voters may fall silent, as the node that hears most says"
    if margin < 0:
        step = START_OTHERS if seen.leader or not seen.members else _way_to_a_leader(seen)
        yield Finding("no_quorum", "critical", "no majority of the voters is there", evidence, step)
    elif margin == 0 and voters > 1:
        yield Finding("quorum_margin", "warning", "one more node that fails stops all writes", evidence, START_OTHERS)


def differing_views(seen: Seen) -> Iterator[Finding]:
    clusters = {status.cluster_id for status in seen.statuses}
    if len(clusters) > 1:
        yield Finding(
            "two_clusters", "critical", "the nodes are of different clusters", ", ".join(sorted(clusters)), STATUS
        )
        return
    newest = max((status.term for status in seen.members), default=0)
    views = {status.node_id: status.leader_id for status in seen.members if status.term == newest}
    if len(set(views.values())) > 1 or any(status.term != newest for status in seen.members):
        evidence = ", ".join(f"node {each.node_id}: {each.leader_id} in term {each.term}" for each in seen.members)
        yield Finding("views_differ", "warning", "the nodes do not agree on who leads", evidence, STATUS)


def leader_changes(seen: Seen) -> Iterator[Finding]:
    changes = sum(each.value("keelmq_raft_elections_won_recently") for each in seen.after.values())
    if changes > CHANGES_MAX:
        evidence = f"{changes:.0f} elections were won in the last 15 minutes"
        why = 'says why: "stepping down" or "handing over"; docs/runbooks.md, KeelMQLeaderChangesOften'
        step = f"{LOG} {why}"
        yield Finding("leader_changes", "warning", "the nodes change their leader often", evidence, step)


def differing_hashes(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each entry after which states differ, leaving out nodes that an alarm says to be wrong."""
    known = (alarm for status in seen.statuses for alarm in status.alarms if alarm.code == "replica_differs")
    differing = {int(alarm.subject) for alarm in known if alarm.subject.isdecimal()}
    hashes: dict[int, dict[str, list[int]]] = {}
    for status in seen.members:
        if status.state_hash and status.node_id not in differing:
            hashes.setdefault(status.hash_index, {}).setdefault(status.state_hash, []).append(status.node_id)
    for index, found in hashes.items():
        if len(found) > 1:
            evidence = "; ".join(f"{each[:12]} on {', '.join(map(str, nodes))}" for each, nodes in found.items())
            yield Finding(
                "hashes_differ",
                "critical",
                f"the states of the nodes differ after entry {index}",
                evidence,
                "keelmq cluster rebuild NODE, the one that differs from the majority",
            )


def differing_versions(seen: Seen) -> Iterator[Finding]:
    builds = {status.node_id: (status.version, status.commit) for status in seen.members if status.version}
    if len(set(builds.values())) > 1:
        evidence = ", ".join(
            f"node {node_id}: {version}" + f" of commit {commit}" * bool(commit)
            for node_id, (version, commit) in sorted(builds.items())
        )
        yield Finding(
            "versions_differ", "warning", "the nodes run different versions", evidence, "keelmq cluster upgrade, later"
        )


def old_backups(seen: Seen) -> Iterator[Finding]:
    """Yield a finding where the last backup is old, or messages are and no node knows of one."""
    ages = [each.value for shown in seen.after.values() for each in shown.all("keelmq_backup_age_seconds")]
    if ages and min(ages) > BACKUP_S:
        evidence = f"the last one that was stored is {min(ages) / 3_600:.0f} h old"
        step = "keelmq backup list shows those of a directory; look why the one that was due failed"
        yield Finding("backup_old", "warning", "the last backup is old", evidence, step)
    if ages or seen.unreachable or any(status.node_id not in seen.after for status in seen.members):
        return  # a node that says nothing may know of one
    oldest_s = seen.of_leader().value("keelmq_log_held_seconds", holder="message")
    if oldest_s > UNSAVED_S:
        evidence = f"the oldest message is {oldest_s / 3_600:.0f} h old; a node that was removed may have known of one"
        step = "keelmq backup create DIR; docs/backup.md, From a timer"
        yield Finding("backup_none", "warning", "no node knows of a backup", evidence, step)


def hidden_metrics(seen: Seen) -> Iterator[Finding]:
    hidden = [str(status.node_id) for status in seen.members if status.node_id not in seen.after]
    if hidden:
        step = "keelmq auth acl allow USER describe cluster, then use a token of this user"
        what = f"no metrics of node {', '.join(hidden)}: half of the checks were left out"
        yield Finding("metrics_hidden", "warning", what, "GET /metrics was refused or failed", step)


OF_ANY_CLUSTER: Final[tuple[Check, ...]] = (unreachable_nodes, differing_views)
"""Checks that make sense for nodes of several clusters, which have states and ids of their own."""
CHECKS: Final[tuple[Check, ...]] = (
    unreachable_nodes,
    missing_leader,
    quorum_margin,
    differing_views,
    leader_changes,
    differing_hashes,
    differing_versions,
    nodes_behind,
    alarms,
    slow_nodes,
    short_resources,
    clocks,
    certificates,
    waiting_messages,
    forgotten_pauses,
    lagging_groups,
    old_backups,
    incomplete_audits,
    hidden_metrics,
)


def findings_of(seen: Seen) -> list[Finding]:
    """Return all findings, one for each cause, the critical ones first. Nodes of several clusters are not compared."""
    checks = CHECKS if len({status.cluster_id for status in seen.statuses}) <= 1 else OF_ANY_CLUSTER
    found = told_once([finding for check in checks for finding in check(seen)])
    return sorted(found, key=lambda finding: finding.severity != "critical")
