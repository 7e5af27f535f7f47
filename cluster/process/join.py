"""Implements `--join`: a new node asks a running cluster for its id before it opens its data directory."""

import http.client
import logging
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster.process.addresses import ConfigError, parse_url
from cluster.process.config import NodeConfig
from cluster.process.data_directory import IDENTITY_FILE
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.http_tls import trusting
from cluster.process.join_token import use_up
from cluster.process.trust import administrator_tokens, join_token

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S: Final = 60
"""Seconds for which a node tries to reach the cluster that it shall join."""
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
    """The node that was asked does not know yet whether the cluster's nodes are settled."""


def joined(config: NodeConfig) -> NodeConfig:
    """Return the configuration with the id of the cluster to join; without `join`, return it unchanged. If the node was
    started before, the id is read from the data directory.

    Raises StartupError when no node of the cluster answers, when the cluster has another id than the given one, or when
    its log cannot tell this node the members of the cluster.
    """
    if config.join is None:
        return config
    stored = _stored(config)
    try:
        token = None if stored is not None else join_token(config)
    except ConfigError as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    cluster_id = stored or _ask(config, config.join)
    if config.cluster_id not in (cluster_id, NodeConfig().cluster_id):
        raise StartupError(
            ExitCode.BAD_CONFIG,
            f"join: {config.join} is of cluster {cluster_id!r}, not {config.cluster_id!r}; correct one of them",
        )
    if token is not None:
        use_up(config, config.join, token, _opener(config.http_ca))
    return msgspec.structs.replace(config, cluster_id=cluster_id)


def _stored(config: NodeConfig) -> str | None:
    try:
        identity = (Path(config.data_dir) / IDENTITY_FILE).read_bytes()
        return msgspec.json.decode(identity, type=_Cluster).cluster_id
    except (OSError, ValueError):
        return None  # a new directory, or a damaged one, which DataDirectory refuses later


def _ask(config: NodeConfig, url: str) -> str:
    """Return the id of the cluster of the node at `url`. Raises StartupError after JOIN_TIMEOUT_S without an answer."""
    deadline_s = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            return _id_of(_get(config, url), config.node_id)
        except (OSError, http.client.HTTPException, ValueError, _Unsettled) as error:
            if time.monotonic() > deadline_s:
                raise StartupError(
                    ExitCode.BAD_CONFIG, f"join: {url} does not answer as a node of a cluster: {error}"
                ) from None
            logger.warning("%s does not say yet which cluster it belongs to, and is asked again: %s", url, error)
        time.sleep(ASK_AGAIN_S)


def _get(config: NodeConfig, url: str) -> _Cluster:
    """Return what the node says to the built-in administrator, if this node has its token. Raises StartupError when the
    certificate of the node cannot be verified.
    """
    http_ca = config.http_ca
    request = urllib.request.Request(f"{parse_url(url, 'join')}/v1/cluster")  # noqa: S310 - parse_url allows http(s)
    own = join_token(config)
    for token in [own] if own is not None else [each.decode() for each in administrator_tokens(config)[:1]]:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with _opener(http_ca).open(request, timeout=ASK_TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(ANSWER_BYTES_MAX), type=_Cluster)
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        trusted = "http_ca" if http_ca is None else f"http_ca {http_ca}"
        raise StartupError(
            ExitCode.BAD_CONFIG,
            f"join: the certificate of {url} cannot be verified: {error.reason.verify_message}; give the authority "
            f"that signed it with {trusted}, and the URL by a name that the certificate has",
        ) from None


def _opener(http_ca: str | None) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting(http_ca)), _StaysSecure
    )


class _StaysSecure(urllib.request.HTTPRedirectHandler):
    """Follows no redirect from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.startswith("https://"):
            raise ValueError(f"{req.full_url} redirects to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _id_of(cluster: _Cluster, node_id: int) -> str:
    """Return the id of the cluster if its log can tell the node the members.

    The log does not name the nodes that a cluster began with until they change for the first time: raises StartupError
    before. Raises _Unsettled while a change is not committed, because it may still be cut off.
    """
    if node_id in [node.node_id for node in cluster.nodes]:
        if cluster.configuration_index == 0:
            raise StartupError(
                ExitCode.BAD_CONFIG,
                f"join: node {node_id} is one of the nodes with which cluster {cluster.cluster_id!r} began, and they "
                "have not changed since: start it with the same --peer options as the others",
            )
        if cluster.configuration_index > cluster.commit_index:
            raise _Unsettled("the last change of its nodes is not known to be committed there")
    return cluster.cluster_id
