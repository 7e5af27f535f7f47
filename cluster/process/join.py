"""`--join`: what a new node asks of the cluster that it shall become part of before it opens its data directory."""

import http.client
import logging
import time
import urllib.request
from pathlib import Path
from typing import Final

import msgspec

from cluster.process.config import NodeConfig, parse_url
from cluster.process.data_directory import IDENTITY_FILE
from cluster.process.exit_codes import ExitCode, StartupError

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S: Final = 60
"""How long a node looks for the cluster it shall join."""
ASK_TIMEOUT_S: Final = 5
ASK_AGAIN_S: Final = 1
ANSWER_BYTES_MAX: Final = 1024 * 1024


class _Node(msgspec.Struct):
    node_id: int


class _Cluster(msgspec.Struct):
    cluster_id: str
    configuration_index: int = 0
    commit_index: int = 0
    nodes: tuple[_Node, ...] = ()


class _Unsettled(Exception):
    """The node that was asked cannot say yet who is in the cluster."""


def joined(config: NodeConfig) -> NodeConfig:
    """The configuration with the id of the cluster that it joins, which the data directory knows once it was started
    before; as it is without `join`.

    StartupError when no node of the cluster answers, when it has another id than the one that was given, or when its
    log cannot tell this node who is in it.
    """
    if config.join is None:
        return config
    cluster_id = _stored(config) or _ask(config, config.join)
    if config.cluster_id not in (cluster_id, NodeConfig().cluster_id):
        raise StartupError(
            ExitCode.BAD_CONFIG, f"join: {config.join} is of cluster {cluster_id!r}, not {config.cluster_id!r}"
        )
    return msgspec.structs.replace(config, cluster_id=cluster_id)


def _stored(config: NodeConfig) -> str | None:
    try:
        identity = (Path(config.data_dir) / IDENTITY_FILE).read_bytes()
        return msgspec.json.decode(identity, type=_Cluster).cluster_id
    except (OSError, ValueError):
        return None  # new, or for the data directory to complain about


def _ask(config: NodeConfig, url: str) -> str:
    """The id of the cluster that the node at `url` belongs to."""
    deadline_s = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            return _id_of(_get(url), config.node_id)
        except (OSError, http.client.HTTPException, ValueError, _Unsettled) as error:
            if time.monotonic() > deadline_s:
                raise StartupError(
                    ExitCode.BAD_CONFIG, f"join: {url} does not answer as a node of a cluster: {error}"
                ) from None
            logger.warning("%s does not say which cluster it is of: %s", url, error)
        time.sleep(ASK_AGAIN_S)


def _get(url: str) -> _Cluster:
    with urllib.request.urlopen(f"{parse_url(url, 'join')}/v1/cluster", timeout=ASK_TIMEOUT_S) as response:  # noqa: S310
        return msgspec.json.decode(response.read(ANSWER_BYTES_MAX), type=_Cluster)


def _id_of(cluster: _Cluster, node_id: int) -> str:
    """As long as the nodes that a cluster began with have never changed, its log says nothing of them. A first change
    that is not committed may still be cut off, and the log would say nothing again: _Unsettled.
    """
    if node_id in [node.node_id for node in cluster.nodes]:
        if cluster.configuration_index == 0:
            raise StartupError(
                ExitCode.BAD_CONFIG,
                f"join: node {node_id} is one of those that cluster {cluster.cluster_id!r} began with, and they are "
                "the same since: start it with the same --peer options as the others",
            )
        if cluster.configuration_index > cluster.commit_index:
            raise _Unsettled("the last change of its nodes is not known to be committed there")
    return cluster.cluster_id
