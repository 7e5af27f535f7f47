"""Answers to changes of the cluster: its settings, its nodes and its feature level."""

from keelmq.admin.view import View


class ClusterSettings(View, frozen=True, kw_only=True):
    """The settings of the whole cluster. With `reject_transactions`, new half transactions are refused. Messages of
    before the last `log_retention_bytes` of the log are removed; -1: there is no such limit.
    """

    reject_transactions: bool
    log_retention_bytes: int = -1


class ClusterMember(View, frozen=True, kw_only=True):
    """A node of the configuration. Nodes reach it at `peer_address`, clients at `http_address`.

    `membership` is `voter` or `learner`.
    """

    node_id: int
    peer_address: str
    http_address: str
    membership: str


class ClusterMembers(View, frozen=True, kw_only=True):
    """The nodes after a change, and texts that warn of the result.

    `configuration_index` is the log entry with the change.
    """

    configuration_index: int = 0
    members: tuple[ClusterMember, ...]
    warnings: tuple[str, ...] = ()


class JoinToken(View, frozen=True, kw_only=True):
    """A join token that was just made. No other answer shows `token` again."""

    token: str
    node_id: int
    expires_at_ms: int


class RebuildStarted(View, frozen=True, kw_only=True):
    """The durable decision to rebuild a node, and the nodes that hold the data to fill it."""

    node_id: int
    filled_by: tuple[int, ...]


class NodeBuild(View, frozen=True, kw_only=True):
    """The version of a node, the commit that it was built from, and the feature levels that it knows; None while the
    node is not connected, the commit also of a build that names none.
    """

    node_id: int
    version: str | None = None
    commit: str | None = None
    feature_level_min: int | None = None
    feature_level_max: int | None = None


class FeatureLevel(View, frozen=True, kw_only=True):
    """The feature level in force. `raised` is true when this call has raised it."""

    feature_level: int
    raised: bool
    nodes: tuple[NodeBuild, ...]
