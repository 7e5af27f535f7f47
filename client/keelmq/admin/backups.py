"""Backups of the cluster, read from one node."""

from keelmq.admin.view import View


class BackupBegun(View, frozen=True, kw_only=True):
    """A backup under way at node `node_id`: its state is that after the entry `index`."""

    backup_id: str
    node_id: int
    cluster_id: str
    cluster_uid: str
    index: int
    term: int = 0
    state_hash: str
    first_index: int = 1
    log_bytes: int = 0
    created_ms: int = 0
    idle_ms_max: int = 0
