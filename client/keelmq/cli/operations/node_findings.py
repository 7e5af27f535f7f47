"""Findings of `keelmq doctor` about single nodes: their progress, speed, resources, clocks, certificates, audit."""

from collections.abc import Iterator
from typing import Final

from keelmq.cli.operations.alarm_steps import LOOK_AT_LOG, STATUS
from keelmq.cli.operations.exposition import Reading, increase, quantile
from keelmq.cli.operations.seen import Finding, Seen, place_of

BEHIND_ENTRIES: Final = 10_000
SYNC_S: Final = 0.1
COMMIT_S: Final = 0.5
LOOP_S: Final = 0.1
TIMER_S: Final = 5.0
FREE_SHARE: Final = 0.1
FULL_S: Final = 4 * 3_600.0
USED_SHARE: Final = 0.8
FILES_MIN: Final = 4_096
ENOUGH_FILES: Final = 65_536
"""Limit of open files that the unit of systemd has."""
INODES_MIN: Final = 1_000
CLOCK_S: Final = 0.5
CERTIFICATE_S: Final = 14 * 86_400.0


def nodes_behind(seen: Seen) -> Iterator[Finding]:
    committed = max((status.commit_index for status in seen.members), default=0)
    for status in seen.members:
        left = committed - status.applied_index
        first, last = seen.moved.get(status.node_id, (status, status))
        leads_on = any(later.commit_index > sooner.commit_index for sooner, later in seen.moved.values())
        if left > BEHIND_ENTRIES:
            what, evidence = f"node {status.node_id} is behind", f"it lacks {left} entries"
            yield Finding("node_behind", "critical", what, evidence, LOOK_AT_LOG, str(status.node_id))
        elif left and leads_on and first is not last and first.applied_index == last.applied_index:
            evidence = f"it applied nothing after entry {last.applied_index}, while others committed up to {committed}"
            what = f"node {status.node_id} does not move"
            yield Finding("node_stands", "critical", what, evidence, LOOK_AT_LOG, str(status.node_id))


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
                yield Finding(code, "warning", f"node {node_id} {what}", evidence, step, str(node_id))


def short_resources(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        free, size = shown.value("keelmq_disk_free_bytes"), shown.value("keelmq_disk_size_bytes")
        if size and free / size < FREE_SHARE:
            evidence = f"{free / 1e9:.1f} of {size / 1e9:.1f} GB are free"
            what = f"the disk of node {node_id} is nearly full"
            step = f"{STATUS} says what the log is kept for; docs/retention.md, A disk that fills up"
            yield Finding("disk_low", "critical", what, evidence, step, str(node_id))
        pace = shown.value("keelmq_disk_fill_bytes_per_second")
        if pace > 0 and free / pace < FULL_S:
            evidence = f"{free / 1e9:.1f} GB are free, and {pace / 1e6:.1f} MB fewer each second, over the last hour"
            what = f"the disk of node {node_id} is full in {free / pace / 3_600:.1f} h at its present pace"
            step = "keelmq topic list shows what is large: lower its retention, or enlarge the file system"
            yield Finding("disk_fills", "warning", what, evidence, step, str(node_id))
        inodes = shown.value("keelmq_disk_free_files")
        if 0 < inodes < INODES_MIN:  # 0 where it is not known, too: the node raises an alarm long before
            evidence = f"{inodes:.0f} inodes are free"
            step = "df -i on that machine: remove small files of others, or make the file system anew with more inodes"
            yield Finding("few_inodes", "warning", f"node {node_id} can create few files", evidence, step, str(node_id))
        files, files_max = shown.value("process_open_fds"), shown.value("process_max_fds")
        if files_max and (files_max < FILES_MIN or files / files_max > USED_SHARE):
            evidence = f"{files:.0f} of {files_max:.0f} files are open"
            step = f"prlimit --pid PID --nofile={ENOUGH_FILES} there; for good: LimitNOFILE of the unit, or ulimit -n"
            yield Finding("few_files", "warning", f"node {node_id} may open few files", evidence, step, str(node_id))
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
    keep = "keelmq client list shows whose they are; let clients keep their connections, or raise max_connections"
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
            yield Finding("clock_wrong", "warning", f"the clock of node {node_id} is wrong", evidence, step, node_id)


def certificates(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        for kind, subject in (("peer", ""), ("http", "clients")):
            ends_s = shown.value(f"keelmq_{kind}_certificate_expires_timestamp_seconds")
            if ends_s and ends_s - seen.now_s < CERTIFICATE_S:
                left_days, whose = (ends_s - seen.now_s) / 86_400, f"the {kind} certificate of node {node_id}"
                about = place_of(node_id, subject)
                step = "keelmq cert show FILE; then keelmq cert node DIR --renew, or your authority; replace the files"
                if left_days <= 0:
                    evidence = f"it has ended {-left_days:.1f} days ago"
                    yield Finding("certificate_ends", "critical", f"{whose} has ended", evidence, step, about)
                else:
                    evidence = f"it ends in {left_days:.1f} days"
                    yield Finding("certificate_ends", "warning", f"{whose} ends soon", evidence, step, about)


def incomplete_audits(seen: Seen) -> Iterator[Finding]:
    for node_id, shown in seen.after.items():
        lost = increase(seen.before.get(node_id, shown), shown, "keelmq_audit_records_lost_total")
        if lost:
            evidence = f"{lost:.0f} records were left out meanwhile"
            step = "keelmq audit list --outcome denied shows who was denied; docs/runbooks.md, KeelMQAuditIncomplete"
            yield Finding("audit_incomplete", "warning", f"the audit of node {node_id} lacks records", evidence, step)
