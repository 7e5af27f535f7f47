"""The configuration of one node: a frozen struct, which `config_loading.load` fills and validates.

Every option is a field of `NodeConfig`. `keelmqd --help` and docs/configuration.md show its description. The last word
of a name is its unit: `*_ms`, `*_bytes`.
"""

from typing import Annotated, Final, Literal, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from cluster.limits import ADDRESS_SHARE_PERCENT, HTTP_CONNECTIONS_MAX, REQUEST_BYTES_MAX
from cluster.process.addresses import Address, Peer, parse_address, parse_peer, url_beside
from cluster.process.credential_options import CredentialOptions
from cluster.process.logging_setup import Level
from cluster.process.option import Option
from raft.config import NODE_ID_MAX, OVERRIDE_NUMBER_MAX
from store.log.segment import SEGMENT_BYTES_MAX

DEFAULT_HTTP_PORT: Final = 7081
DEFAULT_PEER_PORT: Final = 7091
HEARTBEATS_PER_ELECTION_TIMEOUT_MIN: Final = 3
"""Number of heartbeats that an election timeout must exceed; PySyncObj asserts the same."""
Identifier = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$(?!\n)")]
Positive = Annotated[int, Meta(ge=1)]
Percent = Annotated[int, Meta(ge=1, le=100)]


class NodeConfig(CredentialOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of a node. Build it with `config_loading.load`, which validates."""

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
            "URL for clients). Without peers the node is a cluster of one, for development."
        ),
    ] = ()
    join: Annotated[
        str | None,
        Meta(
            description="URL of any node of a running cluster which this new node shall join; given instead of peers. "
            "The node waits until `keelmq cluster add-node` adds it."
        ),
    ] = None
    override_addresses: Annotated[
        int,
        Meta(
            ge=0,
            le=OVERRIDE_NUMBER_MAX,
            description="0, or for a cluster that was moved while it was stopped, a number larger than the last "
            "one: the addresses and URLs in peers replace the ones in the log, until they are written there. The "
            "members of the cluster do not change, and a node with an empty directory founds no cluster.",
        ),
    ] = 0
    http_listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT on which the HTTP API listens. Default: host and port of this node's URL in peers, "
            f"or 127.0.0.1:{DEFAULT_HTTP_PORT}."
        ),
    ] = None
    http_url: Annotated[
        str | None,
        Meta(
            description="URL at which clients reach this node, used in redirects. Default: the URL in peers, "
            "or http:// and http_listen, https:// with http_tls_cert."
        ),
    ] = None
    admin_listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT of a listener of its own for administration, metrics and the console, which "
            "http_listen then does not serve. Default: http_listen serves everything."
        ),
    ] = None
    admin_url: Annotated[
        str | None,
        Meta(
            description="URL at which administrators reach admin_listen, used in redirects. Default: scheme and host "
            "of this node's URL, or a loopback host of admin_listen, with its port."
        ),
    ] = None
    http_tls_cert: Annotated[
        str | None,
        Meta(
            description="PEM file with the certificate that clients see, which names the host of this node's URL, and "
            "intermediate certificates behind it; the HTTP API is served over TLS then. Read again when it changes."
        ),
    ] = None
    http_tls_key: Annotated[
        str | None,
        Meta(description="PEM file with the key of http_tls_cert, not encrypted. Read again when it changes."),
    ] = None
    http_tls_client_ca: Annotated[
        str | None,
        Meta(
            description="PEM file with the authorities of clients' certificates. A client may show one, and is refused "
            "with a certificate of another authority. Read again when it changes."
        ),
    ] = None
    http_ca: Annotated[
        str | None,
        Meta(
            description="PEM file with the authorities of https URLs that this node calls: join (default: those of the "
            "system), webhooks and oidc_keys (besides those of the system). Read at the start."
        ),
    ] = None
    peer_listen: Annotated[
        str | None,
        Meta(
            description="HOST:PORT on which the Raft transport listens. Default: this node's address in peers, "
            f"or 127.0.0.1:{DEFAULT_PEER_PORT}."
        ),
    ] = None
    peer_secret_file: Annotated[
        str | None,
        Meta(
            description="File with the secrets that all nodes of the cluster share, readable by its owner only, one "
            "per line: the node sends proof of the first and accepts any. Required unless peer_listen is a loopback "
            "address or tls_cert is given."
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        Meta(
            description="PEM file with this node's certificate for peer connections, which names the node as "
            "URI:keelmq://CLUSTER_ID/node/NODE_ID, and intermediate certificates behind it. Read again when it changes."
        ),
    ] = None
    tls_key: Annotated[
        str | None, Meta(description="PEM file with the key of tls_cert, not encrypted. Read again when it changes.")
    ] = None
    tls_ca: Annotated[
        str | None,
        Meta(
            description="PEM file with the authorities of which one must have signed each peer's certificate; enables "
            "mutual TLS 1.3. Read again when it changes."
        ),
    ] = None
    insecure_peers: Annotated[
        bool,
        Meta(
            description="Start without TLS although other machines can reach the Raft transport: whoever is between "
            "the nodes reads and changes everything. Without it such a node requires tls_cert."
        ),
    ] = False
    auth: Annotated[
        Literal["off", "permissive", "enforce"],
        Meta(
            description="Users of the HTTP API: everybody (off), users by their permissions (enforce), or "
            "everybody, with a log line and a count of all that enforce would refuse (permissive)."
        ),
    ] = "off"
    admin_token_file: Annotated[
        str | None,
        Meta(
            description="File with the tokens of the built-in administrator, one per line, readable by its owner only, "
            "the same on all nodes. A new node shows the first one to the cluster that it joins."
        ),
    ] = None
    quota_file: Annotated[
        str | None,
        Meta(
            description="TOML file with the requests, bytes of requests and bytes of answers that each user, and each "
            "client address without credentials, may ask of this node in a second or hold. Read again when it changes."
        ),
    ] = None
    insecure_http: Annotated[
        bool,
        Meta(
            description="Start without TLS and without enforced permissions although other machines can reach the HTTP "
            "API: whoever reaches it reads and changes everything. Without it such a node requires http_tls_cert and "
            "auth enforce."
        ),
    ] = False
    election_timeout_ms: Annotated[
        Positive,
        Meta(
            description="Time without a leader (up to twice, at random) after which a follower stands for election; "
            f"more than {HEARTBEATS_PER_ELECTION_TIMEOUT_MIN} heartbeats."
        ),
    ] = 1000
    heartbeat_ms: Annotated[Positive, Meta(description="Interval of the leader's heartbeats.")] = 100
    max_clock_skew_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=3_600_000,
            description="Maximum difference of a wall clock from the time on which a majority of the nodes agrees; a "
            "node beyond it raises an alarm and lets others lead. 100 ms to an hour, the same on all nodes.",
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
        Positive, Meta(description="Time between two searches for expired messages and for log segments to remove.")
    ] = 10_000
    retain_behind_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Log that the leader keeps for a node that lags; 64 KiB at least. A node that lags further "
            "gets the state as a snapshot instead.",
        ),
    ] = 1 << 30
    log_held_alarm_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of the log from which on an alarm is raised when anything but messages within their "
            "retention alone holds them.",
        ),
    ] = 1 << 30
    log_sync: Annotated[
        Literal["auto", "thread"],
        Meta(
            description="The way to sync the log: with auto by the kernel in the background (Linux AIO) where it can, "
            "and by a thread of the node elsewhere; with thread always by the thread."
        ),
    ] = "auto"
    scrub_bytes_per_s: Annotated[
        int,
        Meta(
            ge=0,
            description="Rate at which old segments are read in the background to find damage; 0: they are not read.",
        ),
    ] = 4 << 20
    scrub_interval_ms: Annotated[
        Positive, Meta(description="Time between the end of a pass over all old segments and the next pass.")
    ] = 3_600_000
    cache_bytes: Annotated[
        int, Meta(ge=1 << 16, description="Memory for the newest log entries, from which peers and consumers are fed.")
    ] = 32 << 20
    cold_read_bytes_per_s: Annotated[
        int,
        Meta(
            ge=0,
            description="Total rate for all readers of entries that are no longer in memory while producers are at "
            "work, at least twice the rate of the producers. 0: no limit.",
        ),
    ] = 32 << 20
    min_free_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Free disk space below which another node leads. Writes are refused while no majority has "
            "more; reads go on. Leave room for a segment and 32 MiB, which a node keeps for itself.",
        ),
    ] = 256 << 20
    warn_free_bytes: Annotated[
        int, Meta(ge=0, description="Free disk space below which the alarm disk_filling warns; 0: no warning.")
    ] = 1 << 30
    max_request_bytes: Annotated[
        int, Meta(ge=1024, le=REQUEST_BYTES_MAX, description="Largest HTTP request body; larger ones get 413.")
    ] = 16 << 20
    max_in_flight_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="Maximum bytes of writes that wait for their commit; further writes get 429. One sender, a "
            "principal or else an address, gets it when it would have more than three times what stays free.",
        ),
    ] = 64 << 20
    max_topics: Annotated[
        Positive, Meta(description="Maximum number of topics of clients; creating a further one gets 409.")
    ] = 20_000
    max_groups: Annotated[Positive, Meta(description="Maximum number of consumer groups; a further one gets 409.")] = (
        20_000
    )
    max_group_members: Annotated[
        Positive, Meta(description="Maximum number of members of one group; a further join gets 409.")
    ] = 2_000
    max_check_urls: Annotated[
        int,
        Meta(
            ge=1, le=10_000, description="Maximum number of producer groups with a check URL; a further one gets 409."
        ),
    ] = 1_000
    max_users: Annotated[Positive, Meta(description="Maximum number of users; creating a further one gets 409.")] = (
        10_000
    )
    max_undecided_transactions: Annotated[
        Positive,
        Meta(description="Maximum number of undecided transactions; a further half transaction gets 429."),
    ] = 1_000_000
    max_timers: Annotated[
        Positive, Meta(description="Maximum number of delayed batches that are pending; a further one gets 429.")
    ] = 10_000_000
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of HTTP connections, fewer if the limit of open files is lower. At the limit "
            "idle connections are closed for new ones.",
        ),
    ] = HTTP_CONNECTIONS_MAX
    address_share_percent: Annotated[
        Percent,
        Meta(
            description="Share that one client address may hold of the connections, bytes of requests and bytes of "
            "unread responses which other addresses leave free. Use 100 when all clients come through one proxy."
        ),
    ] = ADDRESS_SHARE_PERCENT
    address_time_percent: Annotated[
        Percent, Meta(description="Share of time for costly requests of one address while others wait; 100: no limit.")
    ] = 6
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Further names under which clients reach this node. A Host header is refused (421) unless it "
            "is one of them, an IP address, a loopback name, or the host of http_listen or the node's URL. * allows "
            "every name, also those of web pages that someone points at this node."
        ),
    ] = ()
    request_timeout_ms: Annotated[
        Positive,
        Meta(
            description="Time in which a client must send its request (408) and read its response, and in which a "
            "write must be committed (503 unknown_outcome)."
        ),
    ] = 10_000
    check_immunity_ms: Annotated[
        int, Meta(ge=0, description="Age before which a half is not checked; a half may name another. 7d at most.")
    ] = 6_000
    check_interval_ms: Annotated[
        Positive, Meta(description="Time between two checks of a transaction, and for a check's answer; 7d at most.")
    ] = 30_000
    check_max: Annotated[
        int, Meta(ge=1, le=1000, description="Number of delivered checks after which a transaction is discarded.")
    ] = 15
    checks_per_second: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Maximum checks per second; without a limit, many undecided transactions would slow producers.",
        ),
    ] = 100
    check_webhook_timeout_ms: Annotated[
        Positive, Meta(description="Time in which a webhook must answer a check; a late check is repeated, uncounted.")
    ] = 5_000
    webhook_allow: Annotated[
        tuple[str, ...],
        Meta(
            description="URLs to which checks may be sent, the same on all nodes: https://host:port/path allows this "
            "URL and all below it, * all but those of loopback and other special addresses. Without it, a node whose "
            "http_listen is a loopback address allows URLs of its own machine, any other node none."
        ),
    ] = ()
    webhook_secret_file: Annotated[
        str | None,
        Meta(
            description="File with one or two secrets that sign checks to webhooks, one per line, readable by its "
            "owner only, the same on all nodes. Read again when it changes."
        ),
    ] = None
    loop_step_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="For tests: the event loop measures its steps, which makes it several times slower, and logs "
            "each step with more processor time than this. 0: it does not.",
        ),
    ] = 0
    log_level: Annotated[Level, Meta(description="Lowest severity that is logged: debug, info, warning or error.")] = (
        "info"
    )
    slow_request_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="Time to an answer from which a request is logged as slow, without the time that a long poll "
            "waits. 0: none is.",
        ),
    ] = 1_000
    log_format: Annotated[Literal["plain", "json"], Meta(description="Form of the log lines: plain or json.")] = "plain"

    def nodes(self) -> dict[int, Peer]:
        """Return every node of the cluster by id, this one included."""
        found = {peer.node_id: peer for peer in map(parse_peer, self.peers)}
        if not found:
            listen = parse_address(self.http_listen or f"127.0.0.1:{DEFAULT_HTTP_PORT}", "http_listen")
            peer_address = parse_address(self.peer_listen or f"127.0.0.1:{DEFAULT_PEER_PORT}", "peer_listen")
            scheme = "http" if self.http_tls_cert is None else "https"
            found[self.node_id] = Peer(self.node_id, peer_address, self.http_url or f"{scheme}://{listen}")
        return found

    def http_address(self) -> Address:
        if self.http_listen is not None:
            return parse_address(self.http_listen, "http_listen")
        parts = urlsplit(self.nodes()[self.node_id].url)
        return Address(parts.hostname or "127.0.0.1", parts.port or (80 if self.http_tls_cert is None else 443))

    def peer_address(self) -> Address:
        if self.peer_listen is not None:
            return parse_address(self.peer_listen, "peer_listen")
        return self.nodes()[self.node_id].address

    def admin_address(self) -> Address | None:
        """Return the address of the listener of administration; None when there is none."""
        return None if self.admin_listen is None else parse_address(self.admin_listen, "admin_listen")

    def serves_peers(self) -> bool:
        """Return False for a node that can only ever be a cluster of one, otherwise True."""
        return bool(self.peers or self.peer_listen or self.join)

    def advertised_url(self) -> str:
        return self.http_url or self.nodes()[self.node_id].url

    def advertised_admin_url(self) -> str | None:
        """Return the URL of the listener of administration, for redirects; None when there is none."""
        address = self.admin_address()
        return None if address is None else self.admin_url or url_beside(self.advertised_url(), address)


def options() -> list[Option]:
    """Return every option in the order of the struct, those about credentials of others last."""
    hints = get_type_hints(NodeConfig, include_extras=True)
    found = []
    inherited = CredentialOptions.__struct_fields__
    for field in sorted(msgspec.structs.fields(NodeConfig), key=lambda field: field.name in inherited):
        metas = [meta for meta in getattr(hints[field.name], "__metadata__", ()) if isinstance(meta, Meta)]
        description = next(meta.description for meta in reversed(metas) if meta.description)
        found.append(Option(field.name, hints[field.name], field.default, description))
    return found
