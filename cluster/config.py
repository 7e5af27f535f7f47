"""The configuration of one node: a frozen struct, three sources, one place that validates.

    TOML file  <  environment (KEELMQ_<OPTION>)  <  command line (--option)

Every option is a field of `NodeConfig`; its description is what `keelmqd --help` and docs/configuration.md print. Units
are the last word of a name: `*_ms`, `*_bytes`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from raft.membership import NODE_ID_MAX
from store.segment import SEGMENT_BYTES_MAX

ENVIRONMENT_PREFIX: Final = "KEELMQ_"
CLIENT_VARIABLES: Final = frozenset({"KEELMQ_SERVERS"})
"""Read by the SDK and the `keelmq` command, so not a misspelt option of this node."""

DEFAULT_HTTP_PORT: Final = 7081
DEFAULT_PEER_PORT: Final = 7091
HEARTBEATS_PER_ELECTION_TIMEOUT_MIN: Final = 3
"""It takes more than that many; PySyncObj asserts the same."""
DIGITS_MAX: Final = 10
HOST_LENGTH_MAX: Final = 253

_NOT_IN_URL: Final = re.compile(r"[^!-~]|[?#@\\]")
"""Also what urlsplit takes out in silence: white space and control characters."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class ConfigError(Exception):
    """The configuration cannot be used; the message names the option and its source."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer(NamedTuple):
    """One node of the cluster: where it speaks Raft and where clients reach its HTTP API."""

    node_id: int
    address: Address
    url: str


Port = Annotated[int, Meta(ge=1, le=65535)]
Identifier = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")]
PositiveMs = Annotated[int, Meta(ge=1)]


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a node is told at its start. Build it with `load`, which validates."""

    cluster_id: Annotated[
        Identifier, Meta(description="Name of the cluster; nodes of another cluster are refused.")
    ] = "keelmq"
    node_id: Annotated[
        int,
        Meta(
            ge=1,
            le=NODE_ID_MAX,
            description=f"Number of this node, 1 to {NODE_ID_MAX}, unique in the cluster, never reused.",
        ),
    ] = 1
    data_dir: Annotated[
        str, Meta(min_length=1, description="Directory of the commit log, the hard state and the index.")
    ] = "keelmq-data"
    peers: Annotated[
        tuple[str, ...],
        Meta(
            description="All nodes of the cluster, this one included, each as ID=HOST:PORT=URL (Raft address, then the "
            "URL clients use). Without peers the node is a cluster of one, for development."
        ),
    ] = ()
    join: Annotated[
        str | None,
        Meta(
            description="URL of any node of a running cluster that this node, which is new, shall become part of; "
            "instead of peers. It waits until `keelmq cluster add-node` adds it."
        ),
    ] = None
    http_listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT the HTTP API listens on. Default: host and port of this node's URL in peers, "
            f"or 127.0.0.1:{DEFAULT_HTTP_PORT}."
        ),
    ] = None
    http_url: Annotated[
        str | None,
        Meta(
            description="URL clients reach this node at, used in redirects. Default: the one in peers, "
            "or http:// and http_listen."
        ),
    ] = None
    peer_listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT the Raft transport listens on. Default: this node's address in peers, "
            f"or 127.0.0.1:{DEFAULT_PEER_PORT}."
        ),
    ] = None
    tls_cert: Annotated[str | None, Meta(description="PEM certificate of this node for peer connections.")] = None
    tls_key: Annotated[str | None, Meta(description="PEM key of tls_cert.")] = None
    tls_ca: Annotated[
        str | None,
        Meta(description="PEM authority that peers' certificates must be signed by; with it peers use mutual TLS."),
    ] = None
    election_timeout_ms: Annotated[
        PositiveMs,
        Meta(
            description="A follower that hears no leader for this long (up to twice, at random) stands; "
            f"more than {HEARTBEATS_PER_ELECTION_TIMEOUT_MIN} heartbeats."
        ),
    ] = 1000
    heartbeat_ms: Annotated[PositiveMs, Meta(description="Interval of the leader's heartbeats.")] = 100
    max_clock_skew_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=3_600_000,
            description="A wall clock that is further than this from the time a majority of the nodes agrees on is "
            "wrong: that node says so and lets others lead; 100 ms to an hour, the same on all nodes.",
        ),
    ] = 10_000
    segment_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            le=SEGMENT_BYTES_MAX,
            description="Size of a commit log segment file, preallocated; 64 KiB to 2 GiB.",
        ),
    ] = 128 << 20
    retention_check_ms: Annotated[
        PositiveMs, Meta(description="How often messages whose retention is over, and log segments, are looked for.")
    ] = 10_000
    retain_behind_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Log that the leader keeps for a node that lags; 64 KiB at least. A node that lags further is "
            "sent the state instead, as a snapshot.",
        ),
    ] = 1 << 30
    log_held_alarm_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="An alarm is raised when anything but messages within their retention holds more of the log "
            "than this, alone.",
        ),
    ] = 1 << 30
    cache_bytes: Annotated[
        int, Meta(ge=1 << 16, description="Memory for the newest log entries, from which peers and consumers are fed.")
    ] = 32 << 20
    min_free_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="With less free disk space than this, writes are refused and reads go on. Leave room for a "
            "segment and 32 MiB, which a node keeps for itself.",
        ),
    ] = 256 << 20
    max_request_bytes: Annotated[
        int, Meta(ge=1024, le=64 << 20, description="Largest HTTP request body; larger ones get 413.")
    ] = 16 << 20
    max_in_flight_bytes: Annotated[
        int, Meta(ge=1 << 16, description="Bytes of writes waiting for their commit; beyond it writes get 429.")
    ] = 64 << 20
    request_timeout_ms: Annotated[
        PositiveMs,
        Meta(
            description="A client must send its request within this time (408), and a write must be committed within "
            "it (503 unknown_outcome)."
        ),
    ] = 10_000
    check_immunity_ms: Annotated[
        int, Meta(ge=0, description="A half transaction is not checked before this age; a transaction may override it.")
    ] = 6_000
    check_interval_ms: Annotated[
        PositiveMs, Meta(description="Time between two checks of one transaction, and for a check's answer.")
    ] = 30_000
    check_max: Annotated[
        int, Meta(ge=1, le=1000, description="A transaction is discarded after this many delivered checks.")
    ] = 15
    checks_per_second: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="So many checks are handed out at most; many undecided transactions would slow producers else.",
        ),
    ] = 100
    check_webhook_timeout_ms: Annotated[
        PositiveMs, Meta(description="A check's webhook must answer within this; else it is asked again, uncounted.")
    ] = 5_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severity that is logged: debug, info, warning or error."),
    ] = "info"
    log_format: Annotated[Literal["plain", "json"], Meta(description="Form of the log lines: plain or json.")] = "plain"

    def nodes(self) -> dict[int, Peer]:
        """Every node of the cluster by id, this one included."""
        found = {peer.node_id: peer for peer in map(parse_peer, self.peers)}
        if not found:
            listen = parse_address(self.http_listen or f"127.0.0.1:{DEFAULT_HTTP_PORT}", "http_listen")
            peer_address = parse_address(self.peer_listen or f"127.0.0.1:{DEFAULT_PEER_PORT}", "peer_listen")
            found[self.node_id] = Peer(self.node_id, peer_address, self.http_url or f"http://{listen}")
        return found

    def http_address(self) -> Address:
        if self.http_listen is not None:
            return parse_address(self.http_listen, "http_listen")
        parts = urlsplit(self.nodes()[self.node_id].url)
        return Address(parts.hostname or "127.0.0.1", parts.port or 80)

    def peer_address(self) -> Address:
        if self.peer_listen is not None:
            return parse_address(self.peer_listen, "peer_listen")
        return self.nodes()[self.node_id].address

    def advertised_url(self) -> str:
        return self.http_url or self.nodes()[self.node_id].url


class Option(NamedTuple):
    """One field of NodeConfig, as help and documentation show it."""

    name: str
    type: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        # One --peer per node reads better than one long list.
        return "--peer" if self.name == "peers" else "--" + self.name.replace("_", "-")


def options() -> list[Option]:
    """Every option, in the order of the struct."""
    hints = get_type_hints(NodeConfig, include_extras=True)
    found = []
    for field in msgspec.structs.fields(NodeConfig):
        metas = [meta for meta in getattr(hints[field.name], "__metadata__", ()) if isinstance(meta, Meta)]
        description = next(meta.description for meta in reversed(metas) if meta.description)
        found.append(Option(field.name, hints[field.name], field.default, description))
    return found


def parse_address(text: str, option: str) -> Address:
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = _number(port)
    if not separator or not _is_host(host) or number is None or not 1 <= number <= 65535:
        raise ConfigError(f"{option}: {text!r} is not HOST:PORT")
    return Address(host, number)


def _number(text: str) -> int | None:
    """Of plain digits; int() would take signs and other alphabets too, and raise for thousands of digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def parse_url(text: str, option: str) -> str:
    """The URL without a trailing slash; it must be http(s)://host[:port]."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        valid = False
    else:
        valid = valid and parts.path in ("", "/") and not _NOT_IN_URL.search(text)
    if not valid:
        raise ConfigError(f"{option}: {text!r} is not a URL of the form http://host:port")
    return text.rstrip("/")


def is_unspecified(host: str) -> bool:
    """Whether it stands for all addresses of whoever uses it: one can listen there, and not be reached."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_unspecified


def _is_host(text: str) -> bool:
    """An IP address, or a name that a resolver takes; what ends in a number it may take for an address."""
    if _NOT_IN_URL.search(text):
        return False
    try:
        ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        named = len(text) <= HOST_LENGTH_MAX and all(_LABEL.fullmatch(label) for label in labels)
        return named and not _NUMBER.fullmatch(labels[-1])
    return True


def parse_peer(text: str) -> Peer:
    """`ID=HOST:PORT=URL`; ConfigError says what is wrong with it."""
    parts = text.split("=", 2)
    node_id = _number(parts[0])
    if len(parts) != 3 or not node_id or node_id > NODE_ID_MAX:
        raise ConfigError(
            f"peers: {text!r} is not ID=HOST:PORT=URL with an ID from 1 to {NODE_ID_MAX}, "
            "as in 1=10.0.0.1:7091=http://10.0.0.1:7081"
        )
    return Peer(node_id, parse_address(parts[1], "peers"), parse_url(parts[2], "peers"))


def load(file: str | None, environment: Mapping[str, str], flags: Mapping[str, str | Sequence[str]]) -> NodeConfig:
    """The configuration of the three sources, validated. ConfigError names the option and where it came from."""
    values: dict[str, Any] = {}
    known = {option.name: option for option in options()}
    if file is not None:
        for key, value in _read_file(file).items():
            if key not in known:
                raise ConfigError(f"{file}: unknown option {key!r}; keelmqd --help lists them")
            values[key] = _convert(value, known[key], f"{file}: {key}", strict=True)
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key not in known or variable != variable.upper():
            raise ConfigError(f"environment: unknown option {variable!r}; keelmqd --help lists them")
        raw = [part.strip() for part in text.split(",") if part.strip()] if key == "peers" else text
        values[key] = _convert(raw, known[key], variable, strict=False)
    for key, flag in flags.items():
        values[key] = _convert(flag, known[key], known[key].flag, strict=False)
    return validate(NodeConfig(**values))


def validate(config: NodeConfig) -> NodeConfig:
    """Check what no single option can tell; returns the same configuration or raises ConfigError."""
    peers = [parse_peer(text) for text in config.peers]
    for what, seen in (
        ("node id", [str(peer.node_id) for peer in peers]),
        ("address", [str(peer.address) for peer in peers]),
        ("URL", [peer.url for peer in peers]),
    ):
        twice = next((item for item in seen if seen.count(item) > 1), None)
        if twice is not None:
            raise ConfigError(f"peers: {what} {twice} appears twice")
    if peers and config.node_id not in {peer.node_id for peer in peers}:
        raise ConfigError(f"peers: node_id {config.node_id} is not among them; list every node, this one included")
    if config.join is not None:
        parse_url(config.join, "join")
        if peers:
            raise ConfigError("join: given together with peers; a node begins a new cluster or joins a running one")
    if config.http_url is not None:
        parse_url(config.http_url, "http_url")
    config.http_address()
    config.peer_address()
    if config.election_timeout_ms <= HEARTBEATS_PER_ELECTION_TIMEOUT_MIN * config.heartbeat_ms:
        raise ConfigError(
            f"election_timeout_ms: {config.election_timeout_ms} is not more than "
            f"{HEARTBEATS_PER_ELECTION_TIMEOUT_MIN} heartbeats of {config.heartbeat_ms} ms"
        )
    if config.max_in_flight_bytes < config.max_request_bytes:
        raise ConfigError("max_in_flight_bytes: less than max_request_bytes, so the largest request could never pass")
    tls = {"tls_cert": config.tls_cert, "tls_key": config.tls_key, "tls_ca": config.tls_ca}
    missing = [name for name, path in tls.items() if path is None]
    if missing and len(missing) < len(tls):
        raise ConfigError(f"{missing[0]}: tls_cert, tls_key and tls_ca are given together or not at all")
    for name, path in tls.items():
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{name}: {path} is not a file")
    return config


def _read_file(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _convert(value: Any, option: Option, source: str, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, option.type, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}. {option.description}") from None
