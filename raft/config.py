"""What a Raft node must be told; frozen, validated where the broker's configuration is."""

import msgspec

MIB = 1024 * 1024


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Mutual TLS between peers: both sides present a certificate signed by the same CA."""

    certificate_file: str
    key_file: str
    ca_file: str


class PeerAddress(msgspec.Struct, frozen=True):
    """Where another node listens for Raft traffic."""

    host: str
    port: int


class AddressOverride(msgspec.Struct, frozen=True):
    """Addresses and URLs that count for members of the cluster instead of those in the log, until the log has `number`
    (docs/decisions.md, 31).
    """

    number: int
    addresses: dict[int, PeerAddress]
    urls: dict[int, str]


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One node's view of its Raft group.

    `peers` are the *other* nodes that a new cluster begins with, all of them voters; an empty mapping is a single-node
    group. Once the log has a configuration, that one counts and not this (raft/membership.py). The election timeout is
    drawn from [election_timeout_ms, 2 * election_timeout_ms); a leader that has not heard from a majority for 2 *
    election_timeout_ms steps down.
    """

    cluster_id: str
    node_id: int
    listen: PeerAddress
    peers: dict[int, PeerAddress]
    urls: dict[int, str] = {}
    """Where clients reach the nodes of `peers`, and this one."""
    advertised: PeerAddress | None = None
    """Where the others reach this node; `listen` if None."""
    joins: bool = False
    """An empty node that waits until a running cluster adds it; `peers` is empty then."""
    serves_peers: bool = True
    """False on a node that can never be more than a cluster of one: it does not listen for peers."""
    election_timeout_ms: int = 1000
    heartbeat_ms: int = 100
    max_clock_skew_ms: int = 10_000
    """A wall clock that is further from the time a majority agrees on is wrong (raft/clock_agreement.py)."""
    max_entry_bytes: int = 1 * MIB
    """Proposals that wait are put into one entry up to this size; one larger proposal still becomes an entry of its
    own.
    """
    max_entries_in_flight: int = 4
    max_in_flight_bytes: int = 64 * MIB
    """Proposed and not yet applied; beyond it `propose` raises Overloaded."""
    retain_behind_bytes: int = 1024 * MIB
    """A peer holds up at most so much of the leader's log; one that lags further is sent a snapshot instead."""
    incarnation: str = ""
    """Identifies the data directory: another one under the same node id has lost what was acknowledged before."""
    cluster_uid: str = ""
    """Of the cluster that the data directory belongs to, as far as it knows (raft/membership.py)."""
    peer_secrets: tuple[bytes, ...] = ()
    """Whoever opens a connection proves that it knows one of them; this node proves the first. None: nobody has to."""
    tls: TlsConfig | None = None
    override: AddressOverride | None = None
    """With one, a node whose log is blank founds no cluster: the cluster exists."""
