"""Findings of `keelmq doctor` that come from the alarms of the nodes, and the rule that a cause is told once."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from keelmq.cli.operations.alarm_steps import OTHER, STEPS
from keelmq.cli.operations.seen import Finding, Seen, Severity, place_of

if TYPE_CHECKING:
    from keelmq.admin import Alarm

OF_NODES: Final = frozenset({"clock_skew", "disk_low", "disk_slow", "node_behind", "replica_differs"})
"""Alarms whose subject is the id of the node that they are about, unless it is the one that has the alarm."""
OF_THE_CLUSTER: Final = frozenset({"clock_in_doubt", "clock_ahead", "committed_entry_missing", "feature_level_behind"})
"""Alarms that are not about a single node, whoever has them."""
CAUSES: Final = (
    ("clock_wrong", "alarm_clock_skew"),
    ("certificate_ends", "alarm_certificate_ends"),
    ("alarm_disk_low", "few_inodes"),
    ("alarm_disk_low", "disk_low", "alarm_disk_filling"),
    ("disk_fills", "alarm_disk_filling"),
    ("node_behind", "alarm_node_behind"),
    ("node_stands", "alarm_node_behind"),
    ("alarm_loop_stalled", "loop_late"),
    ("sync_slow", "alarm_disk_slow"),
    ("alarm_descriptors_low", "few_files"),
)
"""Codes of findings that have one cause if they are about one node; the first that is there tells it."""
DOUBT: Final = "alarm_clock_in_doubt"
CLOCKS: Final = ("clock_wrong", "alarm_clock_skew")
"""Codes of findings that have the cause of `DOUBT`, whichever node they are about."""


def alarms(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each alarm, whichever nodes have it, unless another finding has its details: that no node
    leads, or that a node does not answer. Who does not hear any other node is one finding.
    """
    is_leaderless = bool(seen.members) and seen.leader is None
    unheard: dict[str, dict[int, str]] = {}
    told: dict[tuple[str, str], list[tuple[int, Alarm]]] = {}
    for status in seen.statuses:
        for alarm in status.alarms:
            if alarm.code == "node_unreachable":
                if seen.silent_url(alarm.subject) is None:
                    unheard.setdefault(alarm.subject, {})[status.node_id] = alarm.detail
            elif not (alarm.code == "no_leader" and is_leaderless):
                told.setdefault((alarm.code, _place_of(status.node_id, alarm)), []).append((status.node_id, alarm))
    for (code, about), of_nodes in told.items():
        yield _finding_of(code, about, of_nodes)
    for subject, details in unheard.items():
        what = f"node {subject} is not heard by node {', '.join(map(str, details))}"
        evidence = "; ".join(dict.fromkeys(filter(None, details.values()))) or "(hidden)"
        yield Finding("alarm_node_unreachable", "warning", what, evidence, STEPS["node_unreachable"], subject)


def _place_of(node_id: int, alarm: "Alarm") -> str:
    if alarm.code in OF_THE_CLUSTER:
        return ""
    if alarm.code in OF_NODES:
        return place_of(alarm.subject or node_id)
    return place_of(node_id, alarm.subject)


def _finding_of(code: str, about: str, told: "Sequence[tuple[int, Alarm]]") -> Finding:
    """Return the finding of an alarm and the nodes that have it, some several times: who may not describe the cluster
    is told no subjects. What a node says of itself counts before what others do.
    """
    node_id = about.split("/")[0]
    tellers = ", ".join(map(str, dict.fromkeys(teller for teller, _ in told)))
    all_of_it = [alarm for _, alarm in told]
    own = [alarm for teller, alarm in told if str(teller) == node_id]
    if own or not about:
        what = f"node {node_id or tellers} has the alarm {code}"
    else:
        what = f"node {node_id} has the alarm {code}, says node {tellers}"
    severity: Severity = "critical" if any(each.severity == "critical" for each in all_of_it) else "warning"
    details = dict.fromkeys(alarm.detail for alarm in own or all_of_it if alarm.detail)
    return Finding(f"alarm_{code}", severity, what, "; ".join(details) or "(hidden)", STEPS.get(code, OTHER), about)


def told_once(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings with those of one cause as one, which is as grave as the gravest and has all evidence."""
    left = list(found)
    for finding in found:
        if finding.code == DOUBT:
            left = _with_others(left, finding, [each for each in left if each.code in CLOCKS])
    for first, *others in CAUSES:
        for place in dict.fromkeys(each.about for each in left):
            of_cause = [each for code in (first, *others) for each in left if (each.code, each.about) == (code, place)]
            if len(of_cause) > 1:
                left = _with_others(left, of_cause[0], of_cause[1:])
    return left


def _with_others(found: Sequence[Finding], kept: Finding, others: Sequence[Finding]) -> list[Finding]:
    evidence = [each.evidence for each in (kept, *others) if each.evidence != "(hidden)"]
    severity: Severity = "critical" if any(each.severity == "critical" for each in (kept, *others)) else kept.severity
    whole = kept._replace(severity=severity, evidence="; ".join(dict.fromkeys(evidence)) or kept.evidence)
    return [whole if each is kept else each for each in found if not any(each is other for other in others)]
