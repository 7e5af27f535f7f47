"""Next step for each alarm of a node, as `keelmq doctor` says it. docs/metrics.md explains the alarms; a test compares
the codes, looks that each step has a command, and that the commands exist. NAME of a unit is that of the node's
configuration in /etc/keelmq (docs/deploy.md, systemd).
"""

from collections.abc import Mapping
from typing import Final

STATUS: Final = "keelmq cluster status"
LOG: Final = "journalctl -u keelmqd@NAME there, or keelmq-deploy logs,"
LOOK_AT_LOG: Final = "read the end of the node's log: journalctl -u keelmqd@NAME there, or keelmq-deploy logs"
START: Final = "systemctl start keelmqd@NAME there, or keelmq-deploy bootstrap"
OTHER: Final = "keelmq cluster status prints the alarm; docs/metrics.md, Alarms"
"""Step for an alarm of a node that is newer than this program."""
STEPS: Final[Mapping[str, str]] = {
    "loop_stalled": f'{LOG} has the place after "the event loop has stood"; then top on that machine',
    "clock_skew": "timedatectl on that machine: make NTP run, and set the clock",
    "clock_in_doubt": "timedatectl on all machines: set the clocks; then start the nodes that are down",
    "clock_ahead": "keelmq cluster status says by how much: until then, give delays as delay_ms; docs/invariants.md",
    "disk_filling": "keelmq topic list shows what is large; then keelmq topic alter NAME --retention-ms TIME",
    "disk_low": "df -h and df -i on that machine; docs/retention.md, A disk that fills up, has the order of steps",
    "descriptors_low": "ls -l /proc/PID/fd shows what is open; raise LimitNOFILE, or fs.file-max of the system",
    "disk_slow": "iostat -x 1 on that machine: replace the drive, or stop what else uses it",
    "node_behind": f"df -h on that machine; does it catch up? {LOOK_AT_LOG}",
    "node_unreachable": f"start that node: {START}; or mend the network; for good: keelmq cluster remove-node NODE",
    "no_leader": f"start the nodes that are silent, with their own disks: {START}",
    "disk_is_new": "keelmq cluster status, until a leader has filled it; docs/reliability.md: who put it back?",
    "committed_entry_missing": f"start those that are down: {START}; docs/reliability.md has the rest",
    "address_differs": "keelmq cluster set-address with what the alarm names, or start the node at its old address",
    "certificate_ends": "keelmq cert node DIR --cluster-id ID --node-id N --renew; then replace the files",
    "quotas_refused": "keelmq cluster status names the section of the file: correct it, the node reads it by itself",
    "certificate_refused": "keelmq cert show FILE; put the right files in place, the node reads them by itself",
    "webhook_secret_refused": "keelmq cluster status names the file: correct it, the node reads it by itself",
    "oidc_keys_not_renewed": "curl the URL of the keys from that machine; docs/security.md, People",
    "address_override_refused": "correct --peer: no two nodes may have one place; then systemctl restart keelmqd@NAME",
    "feature_level_behind": "keelmq cluster upgrade, once the new version shall stay",
    "node_drained": "keelmq node undrain NODE, when the work on it is done",
    "log_held": "keelmq cluster status names the holders: decide, consume or end them; docs/retention.md",
    "replica_differs": "keep a copy of the node's directory; then keelmq cluster rebuild NODE",
    "insecure": "keelmq config show names the options; docs/security.md, or keep everybody else away from its network",
    "message_damaged": "check the memory of the node that led; send the messages again, then keelmq group reset GROUP",
    "record_damaged": "dmesg on that machine; replace the failing part; then keelmq cluster rebuild NODE",
    "background_task_failing": f"{LOG} has the trace: report it, then systemctl restart keelmqd@NAME",
}
