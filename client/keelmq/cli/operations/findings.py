"""Findings of `keelmq doctor`: each check looks at what all nodes say, and yields its findings."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from keelmq.cli.operations.alarm_steps import OTHER, STEPS
from keelmq.cli.operations.exposition import Reading, increase, quantile
from keelmq.cli.operations.seen import Finding, Seen, Severity

if TYPE_CHECKING:
    from keelmq.admin import ClusterStatus

BEHIND_ENTRIES: Final = 10_000
SYNC_S: Final = 0.1
COMMIT_S: Final = 0.5
LOOP_S: Final = 0.1
TIMER_S: Final = 5.0
FREE_SHARE: Final = 0.1
FULL_S: Final = 4 * 3_600.0
USED_SHARE: Final = 0.8
FILES_MIN: Final = 4_096
INODES_MIN: Final = 1_000
CLOCK_S: Final = 0.5
CERTIFICATE_S: Final = 14 * 86_400.0
CHANGES_MAX: Final = 4
"""Changes of leader in a quarter of an hour that need no reason."""
BACKUP_S: Final = 26 * 3_600.0
"""A day, and the time that a backup may take."""
UNSAVED_S: Final = 86_400.0
"""Age of the oldest message from which on somebody should have made a backup."""
PAUSED_S: Final = 86_400.0
OTHERS: Final = "(others)"
STATUS: Final = "keelmq cluster status"
LOOK_AT_LOG: Final = "read the end of the node's log"


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
            "node_unreachable", "critical", f"{url} does not answer", evidence, f"start the node, or {LOOK_AT_LOG}"
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
        steps.append(f"start these nodes, with their own disks: {', '.join(map(str, silent))}")
    if voters and len(voting) + len(silent) <= len(voters) // 2:
        longest = max(voting or seen.members, key=lambda status: status.durable_index)
        steps.append(
            f"too few disks are left that may vote: stop the nodes, run `keelmqd recover` at node {longest.node_id}, "
            "whose log is the longest, and add the others with empty directories and `--join` (docs/backup.md, "
            "Recovery from a survivor)"
        )
    elif not silent and any(alarm.code == "committed_entry_missing" for each in voting for alarm in each.alarms):
        steps.append("docs/reliability.md, Going on without committed entries")
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
        step = "start the other nodes" if seen.leader or not seen.members else _way_to_a_leader(seen)
        yield Finding("no_quorum", "critical", "no majority of the voters is there", evidence, step)
    elif margin == 0 and voters > 1:
        yield Finding(
            "quorum_margin", "warning", "one more node that fails stops all writes", evidence, "start the other nodes"
        )


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
        step = 'the logs say why: "stepping down" or "handing over"; docs/runbooks.md, KeelMQLeaderChangesOften'
        yield Finding("leader_changes", "warning", "the nodes change their leader often", evidence, step)


def differing_hashes(seen: Seen) -> Iterator[Finding]:
    hashes: dict[int, dict[str, list[int]]] = {}
    for status in seen.members:
        if status.state_hash:
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


def alarms(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each alarm of a node, unless another finding tells of the same cause: that no node leads, or
    that a node does not answer, which has their details. Who does not hear any other node is one finding.
    """
    is_leaderless = bool(seen.members) and seen.leader is None
    unheard: dict[str, dict[int, str]] = {}
    for status in seen.statuses:
        for alarm in status.alarms:
            if alarm.code == "node_unreachable":
                if seen.silent_url(alarm.subject) is None:
                    unheard.setdefault(alarm.subject, {})[status.node_id] = alarm.detail
                continue
            if alarm.code == "no_leader" and is_leaderless:
                continue
            severity: Severity = "critical" if alarm.severity == "critical" else "warning"
            what = f"node {status.node_id} has the alarm {alarm.code}"
            step = STEPS.get(alarm.code, OTHER)
            yield Finding(f"alarm_{alarm.code}", severity, what, alarm.detail or "(hidden)", step)
    for subject, details in unheard.items():
        what = f"node {subject} is not heard by node {', '.join(map(str, details))}"
        evidence = "; ".join(dict.fromkeys(filter(None, details.values()))) or "(hidden)"
        yield Finding("alarm_node_unreachable", "warning", what, evidence, STEPS["node_unreachable"])


def nodes_behind(seen: Seen) -> Iterator[Finding]:
    committed = max((status.commit_index for status in seen.members), default=0)
    for status in seen.members:
        left = committed - status.applied_index
        first, last = seen.moved.get(status.node_id, (status, status))
        leads_on = any(later.commit_index > sooner.commit_index for sooner, later in seen.moved.values())
        if left > BEHIND_ENTRIES:
            yield Finding(
                "node_behind", "critical", f"node {status.node_id} is behind", f"it lacks {left} entries", LOOK_AT_LOG
            )
        elif left and leads_on and first is not last and first.applied_index == last.applied_index:
            evidence = f"it applied nothing after entry {last.applied_index}, while others committed up to {committed}"
            yield Finding("node_stands", "critical", f"node {status.node_id} does not move", evidence, LOOK_AT_LOG)


def slow_nodes(seen: Seen) -> Iterator[Finding]:
    limits = (
        ("sync_slow", "keelmq_fsync_seconds", 0.99, SYNC_S, "syncs its log slowly", "iostat -x 1 on that machine"),
        ("commit_slow", "keelmq_commit_seconds", 0.99, COMMIT_S, "commits slowly", STATUS),
        ("loop_late", "keelmq_loop_delay_seconds", 0.9, LOOP_S, "has a late event loop", "top on that machine"),
        ("timers_late", "keelmq_timer_lateness_seconds", 0.99, TIMER_S, "delivers delayed messages late", STATUS),
    )
    for node_id, after in seen.after.items():
        for code, name, share, limit_s, what, step in limits:
            found_s = quantile(seen.before.get(node_id, Reading()), after, name, share)
            if found_s is not None and found_s > limit_s:
                evidence = f"{share:.0%} of what {name} counted meanwhile took up to {found_s:g} s"
                yield Finding(code, "warning", f"node {node_id} {what}", evidence, step)


def short_resources(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        free, size = shown.value("keelmq_disk_free_bytes"), shown.value("keelmq_disk_size_bytes")
        if size and free / size < FREE_SHARE:
            evidence = f"{free / 1e9:.1f} of {size / 1e9:.1f} GB are free"
            yield Finding("disk_low", "warning", f"the disk of node {node_id} is nearly full", evidence, STATUS)
        pace = shown.value("keelmq_disk_fill_bytes_per_second")
        if pace > 0 and free / pace < FULL_S:
            evidence = f"{free / 1e9:.1f} GB are free, and {pace / 1e6:.1f} MB fewer each second, over the last hour"
            what = f"the disk of node {node_id} is full in {free / pace / 3_600:.1f} h at its present pace"
            step = "keelmq topic list shows what is large: lower its retention, or enlarge the file system"
            yield Finding("disk_fills", "warning", what, evidence, step)
        inodes = shown.value("keelmq_disk_free_files")
        if 0 < inodes < INODES_MIN:  # 0 where it is not known, too: the node raises an alarm long before
            evidence = f"{inodes:.0f} inodes are free"
            step = "df -i on that machine: remove small files of others, or make the file system anew with more inodes"
            yield Finding("few_inodes", "warning", f"node {node_id} can create few files", evidence, step)
        files, files_max = shown.value("process_open_fds"), shown.value("process_max_fds")
        if files_max and (files_max < FILES_MIN or files / files_max > USED_SHARE):
            evidence = f"{files:.0f} of {files_max:.0f} files are open"
            step = f"raise the limit of open files (ulimit -n) to {FILES_MIN} or more"
            yield Finding("few_files", "warning", f"node {node_id} may open few files", evidence, step)
        yield from _short_connections(node_id, seen.before.get(node_id), shown)
        stalls = increase(seen.before.get(node_id, shown), shown, "keelmq_index_stalls_total")
        is_stopped = shown.value("keelmq_index_writes_stopped")
        if stalls or is_stopped:
            evidence = f"{shown.value('keelmq_index_pending_compaction_bytes') / 1e6:.0f} MB wait for compaction"
            if is_stopped:
                evidence += ", and all writes are stopped"
            step = "iostat -x 1 on that machine"
            yield Finding("index_stalled", "warning", f"RocksDB holds the writes of node {node_id}", evidence, step)


def _short_connections(node_id: int, before: Reading | None, after: Reading) -> Iterator[Finding]:
    keep = "let clients keep their connections, or raise max_connections"
    move = "keelmq client list shows whose they are; let clients send at http_listen"
    kinds = (
        ("few_connections", "keelmq_http_connections", "http_listen", "connections", keep),
        ("few_admin_connections", "keelmq_admin_connections", "admin_listen", "connections for administration", move),
    )
    for code, name, listener, what, step in kinds:
        used, limit = after.value(name), after.value(f"{name}_limit")
        without_room = 0.0 if before is None else _without_room(before, after, name)
        if limit and (used / limit > USED_SHARE or without_room):
            evidence = f"{used:.0f} of {limit:.0f} connections are open at {listener}"
            if without_room:
                evidence += f", and {without_room:.0f} new ones found no room meanwhile"
            yield Finding(code, "warning", f"node {node_id} is short of {what}", evidence, step)


def _without_room(before: Reading, after: Reading, name: str) -> float:
    """Return how many connections found no room, because all are open or their address has its share."""
    closed = sum(increase(before, after, f"{name}_closed_total", reason=reason) for reason in ("idle", "crowded"))
    return closed + increase(before, after, f"{name}_reserved_total")


def clocks(seen: Seen) -> Iterator[Finding]:
    apart: dict[str, float] = {}
    for shown in seen.after.values():
        for each in shown.all("keelmq_clock_offset_seconds"):
            node_id = each.labels["node_id"]
            apart[node_id] = max(apart.get(node_id, 0.0), each.value, key=abs)
    for node_id, offset_s in sorted(apart.items()):
        if abs(offset_s) > CLOCK_S:
            evidence = f"it is {offset_s:+.1f} s from that of a majority"
            step = "timedatectl on that machine: make NTP run"
            yield Finding("clock_wrong", "warning", f"the clock of node {node_id} is wrong", evidence, step)


def certificates(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        for kind in ("peer", "http"):
            ends_s = shown.value(f"keelmq_{kind}_certificate_expires_timestamp_seconds")
            if ends_s and ends_s - seen.now_s < CERTIFICATE_S:
                evidence = f"it ends in {(ends_s - seen.now_s) / 86_400:.1f} days"
                what = f"the {kind} certificate of node {node_id} ends soon"
                yield Finding("certificate_ends", "warning", what, evidence, "keelmq cert show FILE; then replace it")


def waiting_messages(seen: Seen) -> Iterator[Finding]:
    shown = seen.of_leader()
    undecided_s = shown.value("keelmq_transactions_undecided_age_seconds")
    if undecided_s > seen.waiting_s:
        evidence = f"{shown.value('keelmq_transactions_undecided'):.0f} are, the oldest for {undecided_s:.0f} s"
        step = "keelmq transaction list --state prepared --older-than 5m"
        yield Finding("transactions_undecided", "warning", "transactions are undecided", evidence, step)
    discarded_s = shown.value("keelmq_transactions_discarded_age_seconds")
    if discarded_s:
        evidence = f"nobody answered their checks; the oldest is {discarded_s:.0f} s old"
        step = "keelmq transaction list --state discarded; then resume, commit or rollback each"
        yield Finding("transactions_discarded", "warning", "transactions were given up", evidence, step)
    for each in shown.all("keelmq_dead_letters"):
        group = each.labels["group"]
        if each.value:
            step = "keelmq group list" if group == OTHERS else f"keelmq dlq list {group}"
            evidence = f"{each.value:.0f}, those that were replayed included"
            yield Finding("dead_letters", "warning", f"group {group} has dead letters", evidence, step)


def waiting_groups(seen: Seen) -> dict[str, float]:
    """Return for how many seconds the oldest message of a group waits, by group, where that is long."""
    longest: dict[str, float] = {}
    for each in seen.of_leader().all("keelmq_consumer_lag_seconds"):
        longest[each.labels["group"]] = max(longest.get(each.labels["group"], 0.0), each.value)
    return {group: lag_s for group, lag_s in longest.items() if lag_s > seen.waiting_s}


def paused_groups(seen: Seen) -> dict[str, float]:
    """Return for how many seconds each paused group is paused."""
    return {each.labels["group"]: each.value for each in seen.of_leader().all("keelmq_group_paused_seconds")}


def forgotten_pauses(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each group that is paused for long, or whose messages wait for long because it is paused."""
    waiting = waiting_groups(seen)
    for group, paused_s in paused_groups(seen).items():
        if paused_s > PAUSED_S or group in waiting:
            behind = f", and {waiting[group]:.0f} s behind" if group in waiting else ""
            step = (
                "keelmq group list"
                if group == OTHERS
                else f"keelmq group show {group}; then keelmq group resume {group}"
            )
            evidence = f"for {paused_s:.0f} s{behind}"
            yield Finding("group_paused", "warning", f"group {group} is paused", evidence, step)


def lagging_groups(seen: Seen) -> Iterator[Finding]:
    paused = paused_groups(seen)
    for group, lag_s in waiting_groups(seen).items():
        if group in paused and group != OTHERS:
            continue  # that is why
        evidence = f"{lag_s:.0f} s behind"
        if group in seen.memberless:
            step = f"start its consumers; if nobody needs it any more: keelmq group delete {group}"
            yield Finding("group_without_members", "warning", f"group {group} has no members", evidence, step)
        else:
            step = "keelmq group list" if group == OTHERS else f"keelmq group show {group}"
            yield Finding("group_lags", "warning", f"group {group} does not keep up", evidence, step)


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


def incomplete_audits(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        lost = increase(seen.before.get(node_id, shown), shown, "keelmq_audit_records_lost_total")
        if lost:
            evidence = f"{lost:.0f} records were left out meanwhile"
            step = "docs/runbooks.md, KeelMQAuditIncomplete: the reason is a label of keelmq_audit_records_lost_total"
            yield Finding("audit_incomplete", "warning", f"the audit of node {node_id} lacks records", evidence, step)


def hidden_metrics(seen: Seen) -> Iterator[Finding]:
    hidden = [str(status.node_id) for status in seen.members if status.node_id not in seen.after]
    if hidden:
        step = "use a token of a user who may describe the cluster"
        what = f"no metrics of node {', '.join(hidden)}: half of the checks were left out"
        yield Finding("metrics_hidden", "warning", what, "GET /metrics was refused or failed", step)


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
    """Return all findings, the critical ones first."""
    found = [finding for check in CHECKS for finding in check(seen)]
    return sorted(found, key=lambda finding: finding.severity != "critical")
