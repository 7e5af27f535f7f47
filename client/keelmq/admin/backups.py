"""Backups of the cluster, read from one node."""

from keelmq.admin.view import View


class BackupBegun(View, frozen=True, kw_only=True):
    """A backup under way at node `node_id`: its state is that after the entry `index`. `leader_id` is the leader that
    the node knew then; without one it may lack what others have.
    """

    backup_id: str
    node_id: int
    leader_id: int | None = None
    cluster_id: str
    cluster_uid: str
    index: int
    term: int = 0
    state_hash: str
    first_index: int = 1
    log_bytes: int = 0
    created_ms: int = 0
    idle_ms_max: int = 0
