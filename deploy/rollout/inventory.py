"""The inventory of a deployment, `cluster.toml`: which nodes there are, where each runs, and with which options.

[cluster]
id = "shop"
root = "/srv/keelmq"

[[node]]
id = 1
ssh = "deploy@10.0.0.1"
peer = "10.0.0.1:7091"
url = "http://10.0.0.1:7081"
"""

import json
import re
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

NODES_MAX: Final = 9
FILE_BYTES_MAX: Final = 1 << 20
OWN_OPTIONS: Final = ("cluster_id", "node_id", "data_dir", "peers")
"""Options of keelmqd that follow from the inventory, so that its `options` may not have them."""
_PATH: Final = re.compile(r"/[A-Za-z0-9_.+/-]*[A-Za-z0-9_+-]")
_STORE_PLACE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/(?:[A-Za-z0-9_.=+-]+/)*")
_SSH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*")

SECRET_END: Final = ".secret"  # noqa: S105
"""End of the name of the file beside the inventory with the peer secret that the tool makes."""
CERTIFICATES_END: Final = ".pki"
"""End of the name of the directory beside the inventory with the authority and all keys."""
TLS_FILES: Final = {"ca.crt": 0o644, "node.crt": 0o644, "node.key": 0o600}
"""Names and modes of what `certs` brings to the `etc` of a node."""

PYTHON: Final = "python3"
"""Python on hosts of which the inventory names none."""

STORE: Final = "s3://"
"""Beginning of the name of a backup in an object store."""

OptionValue = str | int | bool | list[str]


class InventoryError(Exception):
    """The inventory cannot be used; the text names the file and the mistake."""


class ClusterTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    id: str
    root: str = "/srv/keelmq"
    """Directory on each host that the tool owns: programs, configuration, log and data."""
    program: str = ""
    """Path of a keelmqd that is on the hosts already; without it, a bundle has to be installed."""
    tls: Literal["", "peers", "all"] = ""
    """Tells whether `certs` makes certificates: for connections between nodes, or for those of clients too."""
    supervised: bool = False
    """Tells whether each node has a supervisor (`keelmqd supervise`), which starts it anew and limits its log."""
    python: str = PYTHON
    token_file: str = ""
    ca_file: str = ""
    ssh_options: list[str] = []


class NodeTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    id: int
    peer: str
    url: str
    host: str = ""
    ssh: str = ""
    """Destination for ssh; empty for a process on this machine."""
    zone: str = ""
    root: str = ""
    options: dict[str, OptionValue] = {}


class ContainersTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The options of `render` for containers, beside the nodes."""

    image: str = ""
    """Reference of the image that deploy/Containerfile makes, best with its digest."""
    cpus: Annotated[float, msgspec.Meta(ge=0.1, le=1024)] = 2.0
    memory_bytes: Annotated[int, msgspec.Meta(ge=256 << 20)] = 2 << 30
    storage_bytes: Annotated[int, msgspec.Meta(ge=1 << 30)] = 20 << 30
    """Size of the volume that Kubernetes is asked for."""
    storage_class: str = ""
    """Class of that volume; empty for the default of the Kubernetes cluster."""


class BackupTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The options of scheduled backups, which `render` makes for Kubernetes and Ansible."""

    target: str = ""
    """Directory or s3://BUCKET/PREFIX/; empty for no scheduled backups."""
    every: Literal["hourly", "daily"] = "hourly"
    """Time between two of them: the alert about old backups comes after 26 hours."""
    keep_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 30
    """Age after which a backup in a directory is removed; in a store that is a rule of the bucket."""
    token_file: str = ""
    """File of this machine with the token of a user with `admin` on the cluster."""
    node: int = 0
    """Id of the node on whose host a timer of systemd runs; 0 for the first one."""
    image: str = ""
    """Reference of the image of the CronJob; empty for that of the nodes, which writes to directories alone."""
    storage_bytes: Annotated[int, msgspec.Meta(ge=1 << 30)] = 20 << 30
    """Size of the volume that Kubernetes is asked for where the target is a directory."""
    endpoint_url: str = ""
    """Address of the object store, if that is not Amazon's."""
    store_secret: str = ""
    """Name of a Secret of Kubernetes with the variables AWS_… for the object store."""


class InventoryFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    cluster: ClusterTable
    node: list[NodeTable]
    options: dict[str, OptionValue] = {}
    containers: ContainersTable = ContainersTable()
    backup: BackupTable = BackupTable()


class Node(msgspec.Struct, kw_only=True, frozen=True):
    """One node as it is to be deployed."""

    id: int
    host: str
    ssh: str
    url: str
    zone: str
    root: str
    config: str
    """Content of its configuration file."""
    peer: str
    names: tuple[str, ...]
    """Further names under which clients reach it (`allowed_hosts`)."""
    admin_url: str
    """URL of its listener for administration, as keelmqd derives it; empty without one."""
    joining_configs: tuple[str, ...]
    """The same for a node with an empty disk that joins a running cluster, at each of the other nodes."""

    @property
    def administered_at(self) -> tuple[str, ...]:
        """URLs at which this machine administers the node, the best one first: its listener for administration, unless
        that is at a loopback address of another host, and its URL, in case the node does not run with it yet.
        """
        # A URL of a loopback address says that the host is this machine, or that a tunnel leads to it.
        is_elsewhere = bool(self.ssh) and _is_own(self.admin_url) and not _is_own(self.url)
        return (self.admin_url, self.url) if self.admin_url and not is_elsewhere else (self.url,)


class Inventory(msgspec.Struct, kw_only=True, frozen=True):
    path: Path
    cluster: ClusterTable
    nodes: list[Node]
    makes_secret: bool
    """Tells whether the tool makes the peer secret and brings it to the hosts."""
    file: InventoryFile

    @property
    def majority(self) -> int:
        return len(self.nodes) // 2 + 1

    def beside(self, end: str) -> Path:
        """Return the path of a file of the tool beside the inventory."""
        return self.path.with_name(self.path.name + end)

    def options(self, node_id: int, data_dir: str, etc: str) -> dict[str, OptionValue]:
        """Return the options of the node, with its data and what the tool brings in the given directories."""
        node = next(node for node in self.file.node if node.id == node_id)
        return _options(self.file, node, self.makes_secret, data_dir, etc)


def read_inventory(path: Path) -> Inventory:
    """Return the inventory in the file. Raises InventoryError and changes nothing."""
    try:
        with path.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise InventoryError(f"{path}: longer than {FILE_BYTES_MAX} bytes")
        file = msgspec.convert(tomllib.loads(content.decode()), InventoryFile)
        _check(file)
    except (OSError, ValueError) as error:
        raise InventoryError(f"{path}: {error}") from None
    makes_secret = not any("peer_secret_file" in each for each in (file.options, *(node.options for node in file.node)))
    nodes = [_node(file, each, makes_secret) for each in sorted(file.node, key=lambda node: node.id)]
    return Inventory(path=path.absolute(), cluster=file.cluster, nodes=nodes, makes_secret=makes_secret, file=file)


def _check(file: InventoryFile) -> None:
    """Raise ValueError for what the types cannot say; keelmqd checks addresses and options itself (--check-config)."""
    if not 1 <= len(file.node) <= NODES_MAX:
        raise ValueError(f"{len(file.node)} nodes are not between 1 and {NODES_MAX}")
    for what in ("id", "peer", "url"):
        values = [getattr(node, what) for node in file.node]
        if len(set(values)) != len(values):
            raise ValueError(f"two nodes have the same {what}")
    places = [(node.ssh, node.root or f"{file.cluster.root}/node{node.id}") for node in file.node]
    if len(set(places)) != len(places):
        raise ValueError("two nodes of one host have the same root")
    for path in (file.cluster.root, *(node.root for node in file.node if node.root)):
        if not _PATH.fullmatch(path) or ".." in path.split("/") or path.count("/") < 2:
            raise ValueError(f"root {path!r} is no absolute path of at least two plain names")
    _check_nodes(file)
    _check_backup(file)


def _check_backup(file: InventoryFile) -> None:
    backup = file.backup
    if backup != BackupTable() and not backup.target:
        raise ValueError("backup.target is missing: a directory, or s3://BUCKET/PREFIX/")
    is_place = _PATH.fullmatch(backup.target.rstrip("/")) and ".." not in backup.target.split("/")
    if backup.target and not (is_place or _STORE_PLACE.fullmatch(backup.target)):
        raise ValueError(
            f"backup.target {backup.target!r} is no absolute path of plain names and no s3://BUCKET/PREFIX/"
        )
    if backup.node and all(node.id != backup.node for node in file.node):
        raise ValueError(f"backup.node {backup.node} is no node")


def _check_nodes(file: InventoryFile) -> None:
    for node in file.node:
        if node.ssh and not _SSH.fullmatch(node.ssh):
            raise ValueError(f"node {node.id}: ssh {node.ssh!r} is no destination of ssh")
        if not node.url.startswith(("http://", "https://")):
            raise ValueError(f"node {node.id}: url {node.url!r} is no http or https URL")
    for options in (file.options, *(node.options for node in file.node)):
        for name in OWN_OPTIONS:
            if name in options:
                raise ValueError(f"option {name} follows from the nodes and cannot be given")


def _options(
    file: InventoryFile, node: NodeTable, makes_secret: bool, data_dir: str, etc: str
) -> dict[str, OptionValue]:
    options: dict[str, OptionValue] = {
        "cluster_id": file.cluster.id,
        "node_id": node.id,
        "data_dir": data_dir,
        "peers": [f"{each.id}={each.peer}={each.url}" for each in file.node],
    }
    if makes_secret:
        options["peer_secret_file"] = f"{etc}/peer_secret"
    if file.cluster.tls:
        options |= {"tls_ca": f"{etc}/ca.crt", "tls_cert": f"{etc}/node.crt", "tls_key": f"{etc}/node.key"}
    if file.cluster.tls == "all":
        options |= {"http_tls_cert": f"{etc}/node.crt", "http_tls_key": f"{etc}/node.key"}
        options["http_ca"] = f"{etc}/ca.crt"
    return options | file.options | node.options


def _node(file: InventoryFile, node: NodeTable, makes_secret: bool) -> Node:
    root = node.root or f"{file.cluster.root}/node{node.id}"
    options = _options(file, node, makes_secret, f"{root}/data", f"{root}/etc")
    host = node.host or node.ssh or "this machine"
    # keelmqd takes no peers beside join: they follow from the cluster, and the node says itself where it is.
    joining = {name: value for name, value in options.items() if name != "peers"}
    joining = {"peer_listen": node.peer, "http_listen": urlsplit(node.url).netloc, "http_url": node.url, **joining}
    others = [each.url.rstrip("/") for each in file.node if each.id != node.id]
    return Node(
        id=node.id,
        host=host,
        ssh=node.ssh,
        url=node.url.rstrip("/"),
        zone=node.zone,
        root=root,
        config=toml(options),
        peer=node.peer,
        names=_names(options),
        admin_url=_admin_url(node, options),
        joining_configs=tuple(toml({**joining, "join": url}) for url in others),
    )


def _admin_url(node: NodeTable, options: Mapping[str, OptionValue]) -> str:
    listen, given = str(options.get("admin_listen", "")), str(options.get("admin_url", ""))
    if given or not listen:
        return given.rstrip("/")
    host, _, port = listen.rpartition(":")
    parts = urlsplit(str(options.get("http_url", node.url)))
    if not is_loopback(host.strip("[]")):
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}:{port}"


def _is_own(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def is_loopback(host: str) -> bool:
    """Return whether only the machine itself reaches the host, which is an IP address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(options: Mapping[str, OptionValue]) -> tuple[str, ...]:
    names = options.get("allowed_hosts", [])
    return tuple(each for each in names if each != "*") if isinstance(names, list) else ()


def toml(options: Mapping[str, Any]) -> str:
    """Return the options as TOML: a string or list of strings in JSON is the same in TOML."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in sorted(options.items()))
