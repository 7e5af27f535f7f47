"""Findings of `keelmq doctor` that come from the alarms of the nodes."""

from collections.abc import Iterator

from keelmq.cli.operations.alarm_steps import OTHER, STEPS
from keelmq.cli.operations.seen import Finding, Seen, Severity


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
