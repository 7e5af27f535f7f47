"""Answers about the state of the cluster, as one node sees it."""

from keelmq.admin.view import View


class NodeStatus(View, frozen=True, kw_only=True):
    """A node of the cluster. `membership` is `voter`, or `learner`: a node that receives the log and does not vote.

    `connected` means that the answering node has heard it within two election timeouts. `match_index` is the last entry
    known to be on its disk, and is current at the leader only. A field is None while its value is unknown.
    """

    node_id: int
    url: str
    connected: bool = False
    drained: bool = False
    match_index: int = 0
    snapshot_percent: int | None = None
    peer_address: str = ""
    membership: str = "voter"
    disk_free_bytes: int | None = None
    disk_is_low: bool | None = None
    sync_ms: int | None = None
    version: str | None = None
    commit: str | None = None
    feature_level_min: int | None = None
    feature_level_max: int | None = None


class IndexRebuild(View, frozen=True, kw_only=True):
    """Progress of a node that rebuilds its index from the log."""

    applied_index: int
    last_index: int
    percent: int
    entries_per_second: int = 0
    seconds_left: int | None = None


class ComparedReplica(View, frozen=True, kw_only=True):
    """The comparison with another node: `agrees` is true when both states were equal at the entry `raft_index`."""

    node_id: int
    raft_index: int
    agrees: bool


class ReplicaStatus(View, frozen=True, kw_only=True):
    """The comparison of the answering node with the others.

    `differs` is true when the node differs from a majority, from the entry `first_index` on. Unless `exact`, earlier
    entries may differ as well.
    """

    differs: bool = False
    first_index: int | None = None
    exact: bool = False
    compared: tuple[ComparedReplica, ...] = ()


class LogHolder(View, frozen=True, kw_only=True):
    """An object that needs the last `bytes` of the log, from the entry at `raft_index` on.

    `kind` is `message`, `retry`, `dead_letter`, `scheduled`, `transaction` or `peer`; `subject` is its topic, group,
    transaction id or node id, if known.
    """

    kind: str
    subject: str | None = None
    raft_index: int
    since_ms: int | None = None
    bytes: int


class LogReaderStatus(View, frozen=True, kw_only=True):
    """A query that reads the log at the answering node, from `address`: it has read the entries before `next_index`,
    the node has `lag` more, and `silent_ms` have passed since the query asked for more.
    """

    reader: str
    address: str = ""
    principal: str | None = None
    next_index: int
    lag: int
    silent_ms: int = 0


class Alarm(View, frozen=True, kw_only=True):
    """An active alarm since `since_ms` (wall time). `severity` is `critical` when data or the service is in danger."""

    code: str
    severity: str
    since_ms: int = 0
    detail: str = ""
    subject: str = ""


class ClusterStatus(View, frozen=True, kw_only=True):
    """The cluster as one node sees it. `node_id` and `role` (`leader`, `follower` or `candidate`) are of that node.

    `leader_id` and `leader_url` are None while it knows no leader. `state_hash` covers all entries up to `hash_index`
    and is equal on every node that has applied the same entries. `known_committed_index` is the last entry that a
    leader called committed, even if the node does not have it yet. `removed` is true when other nodes report that the
    node is no longer in the cluster. `waits_for` says why nobody leads, as far as the node knows;
    `index_rebuild` is the progress while the index is rebuilt. `log_holders` lists the objects for which the node's log
    is kept, the largest holder first, `log_readers` the queries that read it there. `feature_level` is the level in
    force. `admin_url` is the URL of the node's listener for administration. Readers and this URL are for principals who
    may describe the cluster; `admin_url` is None without such a listener.
    """

    cluster_id: str
    node_id: int
    role: str
    term: int
    leader_id: int | None = None
    leader_url: str | None = None
    commit_index: int
    applied_index: int
    durable_index: int
    known_committed_index: int = 0
    state_hash: str = ""
    hash_index: int = 0
    configuration_index: int = 0
    removed: bool = False
    waits_for: str | None = None
    index_rebuild: IndexRebuild | None = None
    replica: ReplicaStatus | None = None
    nodes: tuple[NodeStatus, ...]
    log_holders: tuple[LogHolder, ...] = ()
    log_readers: tuple[LogReaderStatus, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    version: str | None = None
    commit: str | None = None
    feature_level: int | None = None
    admin_url: str | None = None
