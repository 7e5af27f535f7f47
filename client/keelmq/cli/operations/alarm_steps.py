"""Next step for each alarm of a node, as `keelmq doctor` says it. docs/metrics.md explains the alarms; a test compares
the codes, and looks that the commands exist.
"""

from collections.abc import Mapping
from typing import Final

STATUS: Final = "keelmq cluster status"
LOOK_AT_LOG: Final = "read the end of the node's log"
OTHER: Final = "keelmq cluster status prints the alarm; docs/metrics.md, Alarms"
"""Step for an alarm of a node that is newer than this program."""
STEPS: Final[Mapping[str, str]] = {
    "loop_stalled": 'the node\'s log has the place after "the event loop has stood"; then top on that machine',
    "clock_skew": "timedatectl on that machine: make NTP run, and set the clock",
    "clock_in_doubt": "timedatectl on all machines: set the clocks; then start the nodes that are down",
    "clock_ahead": "give delays as delay_ms until the clocks have caught up; docs/invariants.md, Time",
    "disk_filling": "keelmq topic list shows what is large; then keelmq topic alter NAME --retention-ms TIME",
    "disk_low": "df -h and df -i on that machine; docs/retention.md, A disk that fills up, has the order of steps",
    "descriptors_low": "ls -l /proc/PID/fd shows what is open; raise LimitNOFILE, or fs.file-max of the system",
    "disk_slow": "iostat -x 1 on that machine: replace the drive, or stop what else uses it",
    "node_behind": "df -h on that machine, then the end of the node's log: does it catch up?",
    "node_unreachable": "start that node, or mend the network to it; for good: keelmq cluster remove-node NODE",
    "no_leader": "start the nodes that are silent, with their own disks",
    "disk_is_new": "wait until a leader has filled it; find out who put the disk back (docs/reliability.md)",
    "committed_entry_missing": "start the nodes that are down; docs/reliability.md, Going on without committed entries",
    "address_differs": "keelmq cluster set-address with what the alarm names, or start the node at its old address",
    "certificate_ends": "keelmq cert node DIR --cluster-id ID --node-id N --renew; then replace the files",
    "quotas_refused": "correct the section of the quota file that the alarm names; the node reads it by itself",
    "certificate_refused": "keelmq cert show FILE; put the right files in place, the node reads them by itself",
    "webhook_secret_refused": "correct the file that the alarm names; the node reads it by itself",
    "oidc_keys_not_renewed": "curl the URL of the keys from that machine; docs/security.md, People",
    "address_override_refused": "correct --peer on all nodes, so that no two have one place; then start them again",
    "feature_level_behind": "keelmq cluster upgrade, once the new version shall stay",
    "node_drained": "keelmq node undrain NODE, when the work on it is done",
    "log_held": "decide, consume or end what the alarm names; docs/retention.md, The holders",
    "replica_differs": "keep a copy of the node's directory; then keelmq cluster rebuild NODE",
    "insecure": "docs/security.md says how to close the cluster; or keep everybody else away from its network",
    "message_damaged": "check the memory of the node that led; send the messages again, then keelmq group reset GROUP",
    "record_damaged": "dmesg on that machine; replace the failing part; then keelmq cluster rebuild NODE",
    "background_task_failing": "the node's log has the trace: report it, and restart the node",
}
