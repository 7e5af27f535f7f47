"""Configuration of a Raft node; frozen, and validated together with the broker's configuration."""

from typing import Final

import msgspec

MIB = 1024 * 1024
NODE_ID_MAX: Final = 1 << 31
OVERRIDE_NUMBER_MAX: Final = 1 << 31


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Mutual TLS between peers: both sides present a certificate signed by the same CA."""

    certificate_file: str
    key_file: str
    ca_file: str
    plain_too: bool = False
    """Peers may have no TLS yet, until each of them was met with it: for one rolling restart."""


class PeerAddress(msgspec.Struct, frozen=True):
    """The address at which a node listens for Raft traffic."""

    host: str
    port: int


class AddressOverride(msgspec.Struct, frozen=True):
    """Addresses and URLs of members that replace the ones in the log until the log holds override `number`
    (docs/decisions.md, 31).
    """

    number: int
    addresses: dict[int, PeerAddress]
    urls: dict[int, str]


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One node's view of its Raft group.

    `peers` are the *other* nodes that a new cluster begins with, all of them voters; an empty mapping is a single-node
    group. Once the log has a configuration, the log's configuration replaces `peers` (raft/membership.py). The
    election timeout is drawn from [election_timeout_ms, 2 * election_timeout_ms); a leader that has not heard from a
    majority for 2 * election_timeout_ms steps down.
    """

    cluster_id: str
    node_id: int
    listen: PeerAddress
    peers: dict[int, PeerAddress]
    urls: dict[int, str] = {}
    """URLs at which clients reach this node and the nodes of `peers`."""
    advertised: PeerAddress | None = None
    """The address at which the other nodes reach this node; `listen` if None."""
    joins: bool = False
    """True for an empty node that waits until a running cluster adds it; `peers` is empty then."""
    serves_peers: bool = True
    """False on a node that can never be more than a cluster of one: the node does not listen for peers."""
    election_timeout_ms: int = 1000
    heartbeat_ms: int = 100
    max_clock_skew_ms: int = 10_000
    """Limit in ms: a wall clock further away from the time that a majority agrees on is wrong
    (raft/health/clock_agreement.py).
    """
    max_entry_bytes: int = 1 * MIB
    """Waiting proposals are put into one entry up to this size in bytes; a larger proposal becomes an entry of its own.
    """
    max_entries_in_flight: int = 4
    max_in_flight_bytes: int = 64 * MIB
    """Limit of the bytes that are proposed and not yet applied; beyond it `propose` raises Overloaded."""
    retain_behind_bytes: int = 1024 * MIB
    """Maximum number of bytes of the leader's log that a lagging peer retains; a peer further behind gets a snapshot.
    """
    incarnation: str = ""
    """Identifies the data directory: another directory under the same node id has lost what was acknowledged before."""
    cluster_uid: str = ""
    """Name of the cluster that the data directory belongs to; empty if the directory knows none (raft/cluster_name.py).
    """
    peer_secrets: tuple[bytes, ...] = ()
    """Accepted secrets: an opener proves that it knows one of them; this node proves the first. Empty: no proof is
    needed.
    """
    tls: TlsConfig | None = None
    override: AddressOverride | None = None
    """Addresses for this start. With them a node whose log is blank founds no cluster: the cluster exists already."""
