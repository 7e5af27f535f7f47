"""Grafana's dashboards, written from the short descriptions below: `python -m deploy.monitoring.dashboards`.

A panel is a title, a unit and queries. Everything else is the same for all panels, so the JSON files are generated. A
test compares them with this file, and every query with what a running node shows.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

DIRECTORY: Final = Path(__file__).parent / "grafana"
WIDTH: Final = 24
HEIGHT: Final = 8
PER_ROW: Final = 3
SCHEMA_VERSION: Final = 39
RATE: Final = "$__rate_interval"
SELECTED: Final = 'job=~"$job", instance=~"$instance"'
LEADER: Final = 'and on (job, instance) (keelmq_raft_is_leader{job=~"$job"} == 1)'


class Panel(NamedTuple):
    """One diagram. `queries` are pairs of a PromQL expression and the legend of its series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    kind: str = "timeseries"


class Dashboard(NamedTuple):
    name: str
    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "") -> str:
    """Return the rate of a counter, summed over everything but the labels `by`."""
    return (
        f"sum by ({by}) (rate({metric}{{{SELECTED}}}[{RATE}]))" if by else f"sum(rate({metric}{{{SELECTED}}}[{RATE}]))"
    )


def gauge(metric: str) -> str:
    return f"{metric}{{{SELECTED}}}"


def of_leader(metric: str, by: str) -> str:
    """Return the values of the replicated state as the leader has them, the largest per value of the labels `by`."""
    return f'max by ({by}) ({metric}{{job=~"$job"}} {LEADER})'


def quantiles(metric: str, by: str = "instance") -> tuple[tuple[str, str], ...]:
    """Return queries for the median and the 99th percentile of a histogram."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return tuple(
        (f"histogram_quantile({share}, {rate(f'{metric}_bucket', f'{by}, le')})", f"p{share * 100:.0f} {legend}")
        for share in (0.5, 0.99)
    )


CLUSTER: Final = Dashboard(
    "cluster",
    "KeelMQ cluster",
    (
        Panel("Nodes that answer", "none", (('sum(up{job=~"$job"})', "nodes"),), kind="stat"),
        Panel(
            "Voters that may fail",
            "none",
            (('max(keelmq_raft_quorum_margin{job=~"$job"})', "margin"),),
            "0: the next failure stops writes. Negative: there is no majority.",
            kind="stat",
        ),
        Panel(
            "Active alarms", "none", ((f"max by (code, severity) ({gauge('keelmq_alarm')})", "{{code}} {{severity}}"),)
        ),
        Panel("Leader", "none", ((gauge("keelmq_raft_is_leader"), "{{instance}}"),)),
        Panel("Term", "none", ((gauge("keelmq_raft_term"), "{{instance}}"),)),
        Panel("Elections", "none", ((rate("keelmq_raft_elections_total", "instance"), "{{instance}}"),)),
        Panel("Messages in", "msgs", ((rate("keelmq_produced_messages_total", "instance"), "{{instance}}"),)),
        Panel("Messages out", "msgs", ((rate("keelmq_pulled_messages_total", "instance"), "{{instance}}"),)),
        Panel(
            "Bytes in and out",
            "Bps",
            (
                (rate("keelmq_produced_bytes_total"), "in"),
                (rate("keelmq_pulled_bytes_total"), "out"),
            ),
        ),
        Panel("Commit", "s", quantiles("keelmq_commit_seconds"), "From proposing a write to its being on a majority."),
        Panel("Sync", "s", quantiles("keelmq_fsync_seconds")),
        Panel("Entries that followers lack", "none", ((gauge("keelmq_peer_lag_entries"), "node {{node_id}}"),)),
        Panel(
            "Age of a peer's last message", "s", ((gauge("keelmq_peer_silent_seconds"), "{{instance}} of {{node_id}}"),)
        ),
        Panel("Refused proposals", "ops", ((rate("keelmq_proposals_refused_total", "code"), "{{code}}"),)),
        Panel("Clocks", "s", ((gauge("keelmq_clock_offset_seconds"), "node {{node_id}} by {{instance}}"),)),
        Panel(
            "Certificates end in",
            "s",
            tuple(
                (
                    f"({gauge(f'keelmq_{kind}_certificate_expires_timestamp_seconds')} > 0) - time()",
                    f"{kind} {{{{instance}}}}",
                )
                for kind in ("peer", "http")
            ),
            "Empty without TLS.",
        ),
        Panel(
            "Age of the last backup",
            "s",
            (('min by (job) (keelmq_backup_age_seconds{job=~"$job"})', "{{job}}"),),
            "Empty while no node knows of one.",
        ),
    ),
)
TOPICS: Final = Dashboard(
    "topics",
    "KeelMQ topics",
    (
        Panel("Topics", "none", (('max(keelmq_topics{job=~"$job"})', "topics"),), kind="stat"),
        Panel(
            "Topics without a series of their own",
            "none",
            (('max by (kind) (keelmq_series_summed{job=~"$job"})', "{{kind}}"),),
        ),
        Panel("Kept log", "bytes", ((gauge("keelmq_log_bytes"), "{{instance}}"),)),
        Panel(
            "Messages in, top 20",
            "msgs",
            (
                (
                    f"topk(20, max by (topic) (rate(keelmq_topic_appended_messages_total{{{SELECTED}}}[{RATE}])))",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Bytes in, top 20",
            "Bps",
            (
                (
                    f"topk(20, max by (topic) (rate(keelmq_topic_appended_bytes_total{{{SELECTED}}}[{RATE}])))",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Kept messages, top 20",
            "none",
            ((f"topk(20, {of_leader('keelmq_topic_messages', 'topic')})", "{{topic}}"),),
        ),
        Panel(
            "Kept bytes, top 20",
            "bytes",
            ((f"topk(20, {of_leader('keelmq_topic_bytes', 'topic')})", "{{topic}}"),),
            "As stored. Topics have no series below feature level 2.",
        ),
        Panel(
            "Messages out, top 20",
            "msgs",
            ((f"topk(20, {rate('keelmq_topic_read_messages_total', 'topic')})", "{{topic}}"),),
        ),
        Panel(
            "Bytes out, top 20", "Bps", ((f"topk(20, {rate('keelmq_topic_read_bytes_total', 'topic')})", "{{topic}}"),)
        ),
        Panel("Log held by", "bytes", ((gauge("keelmq_log_held_bytes"), "{{holder}} {{instance}}"),)),
        Panel("Delayed messages", "none", ((of_leader("keelmq_messages_scheduled", "job"), "waiting"),)),
        Panel("Lateness of delayed messages", "s", quantiles("keelmq_timer_lateness_seconds")),
        Panel("Expired messages", "msgs", ((rate("keelmq_messages_expired_total"), "expired"),)),
    ),
)
GROUPS: Final = Dashboard(
    "groups",
    "KeelMQ groups",
    (
        Panel("Groups", "none", ((of_leader("keelmq_groups", "job"), "groups"),), kind="stat"),
        Panel("Members", "none", ((of_leader("keelmq_group_members", "job"), "members"),), kind="stat"),
        Panel("Sessions that ended silently", "ops", ((rate("keelmq_group_members_expired_total"), "members"),)),
        Panel(
            "Lag in seconds, top 20",
            "s",
            ((f"topk(20, {of_leader('keelmq_consumer_lag_seconds', 'group, topic')})", "{{group}} {{topic}}"),),
        ),
        Panel(
            "Lag in messages, top 20",
            "none",
            (
                (
                    f'topk(20, sum by (group, topic) (keelmq_consumer_lag_messages{{job=~"$job"}} {LEADER}))',
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Dead letters, top 20", "none", ((f"topk(20, {of_leader('keelmq_dead_letters', 'group')})", "{{group}}"),)
        ),
        Panel("Given back", "msgs", ((rate("keelmq_messages_given_back_total", "outcome"), "{{outcome}}"),)),
        Panel("Replayed dead letters", "msgs", ((rate("keelmq_dead_letters_replayed_total"), "replayed"),)),
        Panel(
            "Popped and acknowledged",
            "msgs",
            (
                (rate("keelmq_popped_messages_total"), "popped"),
                (rate("keelmq_pop_acks_total", "outcome"), "{{outcome}}"),
            ),
        ),
        Panel("Long polls that wait", "none", ((gauge("keelmq_waiting_pulls"), "{{instance}}"),)),
    ),
)
TRANSACTIONS: Final = Dashboard(
    "transactions",
    "KeelMQ transactions",
    (
        Panel("Undecided", "none", ((of_leader("keelmq_transactions_undecided", "job"), "undecided"),)),
        Panel("Age of the oldest", "s", ((of_leader("keelmq_transactions_undecided_age_seconds", "job"), "oldest"),)),
        Panel("Prepared", "ops", ((rate("keelmq_transactions_prepared_total"), "prepared"),)),
        Panel("Decided", "ops", ((rate("keelmq_transactions_decided_total", "state"), "{{state}}"),)),
        Panel("Checks", "ops", ((rate("keelmq_checks_total", "outcome"), "{{outcome}}"),)),
        Panel(
            "Log held by transactions",
            "bytes",
            ((f'keelmq_log_held_bytes{{{SELECTED}, holder="transaction"}}', "{{instance}}"),),
        ),
    ),
)
NODE: Final = Dashboard(
    "node",
    "KeelMQ node",
    (
        Panel("Version", "none", ((gauge("keelmq_build_info"), "{{instance}} {{version}}"),), kind="stat"),
        Panel("Processor", "percentunit", ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),)),
        Panel("Resident memory", "bytes", ((gauge("process_resident_memory_bytes"), "{{instance}}"),)),
        Panel("Lateness of the event loop", "s", quantiles("keelmq_loop_delay_seconds")),
        Panel("Garbage collections", "s", quantiles("keelmq_gc_pause_seconds", "instance, generation")),
        Panel("Stalls of the event loop", "none", ((rate("keelmq_loop_stalls_total", "instance"), "{{instance}}"),)),
        Panel("Requests", "reqps", ((rate("keelmq_http_requests_total", "route, status"), "{{route}} {{status}}"),)),
        Panel(
            "Duration of requests, p99",
            "s",
            (
                (
                    f"histogram_quantile(0.99, {rate('keelmq_http_request_seconds_bucket', 'method, route, le')})",
                    "{{method}} {{route}}",
                ),
            ),
            "A long poll's wait is part of it.",
        ),
        Panel(
            "Requests in flight",
            "none",
            ((f"sum by (route) ({gauge('keelmq_http_requests_in_flight')})", "{{route}}"),),
        ),
        Panel("Errors", "reqps", ((rate("keelmq_http_refusals_total", "code"), "{{code}}"),)),
        Panel(
            "Records of the audit",
            "ops",
            (
                (rate("keelmq_audit_records_total", "stream"), "{{stream}}"),
                (rate("keelmq_audit_records_lost_total", "reason"), "lost: {{reason}}"),
            ),
        ),
        Panel(
            "Connections",
            "none",
            (
                (gauge("keelmq_http_connections"), "{{instance}}"),
                (gauge("keelmq_http_connections_limit"), "limit {{instance}}"),
            ),
        ),
        Panel("Connections closed", "ops", ((rate("keelmq_http_connections_closed_total", "reason"), "{{reason}}"),)),
        Panel(
            "Connections of administration",
            "none",
            (
                (gauge("keelmq_admin_connections"), "{{instance}}"),
                (gauge("keelmq_admin_connections_limit"), "limit {{instance}}"),
            ),
            "At admin_listen; 0 on nodes without that listener.",
        ),
        Panel(
            "Connections of administration closed",
            "ops",
            ((rate("keelmq_admin_connections_closed_total", "reason"), "{{reason}}"),),
        ),
        Panel("Free space", "bytes", ((gauge("keelmq_disk_free_bytes"), "{{instance}}"),)),
        Panel(
            "Index",
            "bytes",
            (
                (gauge("keelmq_index_file_bytes"), "files {{instance}}"),
                (gauge("keelmq_index_memtable_bytes"), "memory {{instance}}"),
                (gauge("keelmq_index_pending_compaction_bytes"), "to compact {{instance}}"),
            ),
        ),
        Panel(
            "Index stalls",
            "ops",
            ((rate("keelmq_index_stalls_total", "instance, kind"), "{{kind}} {{instance}}"),),
            "stop: RocksDB has stopped all writes. wait: entries had to wait for it.",
        ),
        Panel(
            "Compactions",
            "none",
            (
                (gauge("keelmq_index_compactions_running"), "compactions {{instance}}"),
                (gauge("keelmq_index_flushes_running"), "flushes {{instance}}"),
            ),
            "Under way at the moment of the scrape.",
        ),
        Panel(
            "Memory that clients hold",
            "bytes",
            (
                (gauge("keelmq_request_bytes"), "requests {{instance}}"),
                (gauge("keelmq_unread_response_bytes"), "responses {{instance}}"),
                (gauge("keelmq_in_flight_bytes"), "writes {{instance}}"),
            ),
        ),
        Panel(
            "Open files",
            "none",
            (
                (gauge("process_open_fds"), "{{instance}}"),
                (gauge("process_max_fds"), "limit {{instance}}"),
            ),
        ),
        Panel("Reads of old log", "Bps", ((rate("keelmq_log_read_bytes_total", "instance"), "{{instance}}"),)),
        Panel(
            "Background work that failed",
            "ops",
            ((rate("keelmq_background_failures_total", "task, kind"), "{{task}} {{kind}}"),),
        ),
    ),
)
DASHBOARDS: Final = (CLUSTER, TOPICS, GROUPS, TRANSACTIONS, NODE)
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
LINK: Final = {
    "type": "dashboards",
    "tags": ["keelmq"],
    "title": "KeelMQ",
    "icon": "external link",
    "tooltip": "",
    "asDropdown": True,
    "keepTime": True,
    "includeVars": True,
    "targetBlank": False,
}
OPTIONS: Final = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "textMode": "value_and_name",
        "graphMode": "none",
        "colorMode": "value",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "showPercentChange": False,
        "wideLayout": True,
    },
}
"""Options by kind of panel: all that Grafana's schema requires, so that nothing depends on what a version adds."""


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": f"keelmq-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["keelmq"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
                _variable("job", "Cluster", "label_values(keelmq_build_info, job)"),
                _variable("instance", "Node", 'label_values(keelmq_build_info{job=~"$job"}, instance)'),
            ]
        },
        "links": [LINK],
        "annotations": {"list": []},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width = WIDTH // PER_ROW
    return {
        "id": number + 1,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"x": number % PER_ROW * width, "y": number // PER_ROW * HEIGHT, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {}}, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def text_of(dashboard: Dashboard) -> str:
    """Return the content of the dashboard's file."""
    return json.dumps(document(dashboard), indent=1) + "\n"


def main() -> None:
    """Write all files."""
    DIRECTORY.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (DIRECTORY / f"{dashboard.name}.json").write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
