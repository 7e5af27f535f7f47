"""The handshake by which two nodes verify each other before the first Raft message (docs/decisions.md, 26).

    opener                            acceptor
    Hello: who I am, whom I mean  ->
                                  <-  Challenge: a number nobody has seen before
    Proof: of the secret          ->
                                  <-  Welcome: proof of the secret, or why not

Both proofs cover all fields of the handshake, so neither is valid for another connection, another pair of nodes, other
disks or the other direction. A cluster without a secret (on loopback) uses the same messages with the empty secret.
Until an opener has proven its knowledge of the secret, it learns nothing but the number of the protocol.
"""

import secrets
from typing import Final

import msgspec

from raft.config import RaftConfig
from raft.errors import ProtocolError
from raft.feature_levels import own_build, refusal_of_build
from raft.membership import Membership
from raft.messages import Build, Challenge, Hello, Proof, Welcome
from raft.peers.lanes import CONTROL, DATA
from raft.peers.secret import find_secret, prove
from store.features import FEATURES, LevelOf

PROTOCOL: Final = 3
"""Version of the handshake and the frames; the content of the messages depends on feature levels."""
NONCE_BYTES: Final = 16
HANDSHAKE_FRAME_BYTES: Final = 4096
"""Maximum size of a frame during the handshake: it limits the memory that an unknown peer can occupy."""
LANES: Final = (CONTROL, DATA)
NO_SECRET: Final = (b"",)

_encoder = msgspec.msgpack.Encoder()


def make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def keys_of(config: RaftConfig) -> tuple[bytes, ...]:
    """Return the accepted secrets; this node's own proofs use the first."""
    return config.peer_secrets or NO_SECRET


def opener_statement(hello: Hello, challenge: Challenge) -> bytes:
    """Return the bytes that the opener's proof covers."""
    return _encoder.encode(
        (
            "opener",
            *(hello.cluster_id, hello.cluster_uid, hello.node_id, hello.target_node_id, hello.incarnation),
            *(hello.address, hello.configuration_index, hello.lane, hello.nonce, challenge.nonce),
            *_of_build(hello.build),
            *_of_protocol(hello.protocol),
        )
    )


def acceptor_statement(hello: Hello, challenge: Challenge, welcome: Welcome) -> bytes:
    """Return the bytes that the acceptor's proof covers."""
    answer = (welcome.node_id, welcome.refusal, welcome.incarnation, welcome.removed)
    levels = (welcome.feature_level, welcome.feature_version, *_of_build(welcome.build))
    return _encoder.encode(("acceptor", opener_statement(hello, challenge), *answer, *levels))


def _of_protocol(protocol: int) -> tuple[int, ...]:
    """Return what proofs cover of a later protocol than this one, so that nobody on the way changes the number. The
    proofs of this one name no number: 0.2.0 has it and computes them so.
    """
    return () if protocol == PROTOCOL else (protocol,)


def _of_build(build: Build) -> tuple[str, int, int]:
    """Return the fields of a build that proofs cover. The set stays fixed: builds that say more prove the same."""
    return build.version, build.level_min, build.level_max


class Opening:
    """Runs the opener's side of one handshake."""

    def __init__(self, config: RaftConfig, hello: Hello) -> None:
        self._config = config
        self._hello = hello
        self._challenge: Challenge | None = None

    def prove(self, challenge: Challenge) -> Proof:
        if self._challenge is not None or len(challenge.nonce) != NONCE_BYTES:
            raise ProtocolError(f"the peer sent a second challenge, or one whose number has not {NONCE_BYTES} bytes")
        self._challenge = challenge
        return Proof(prove(keys_of(self._config)[0], opener_statement(self._hello, challenge)))

    def is_proven(self, welcome: Welcome) -> bool:
        """Return whether the sender of `welcome` has proven to know the secret; a refusal can be proven as well."""
        if self._challenge is None:
            return False
        said = acceptor_statement(self._hello, self._challenge, welcome)
        return find_secret(keys_of(self._config), said, welcome.proof) is not None

    def accept(self, welcome: Welcome) -> None:
        """Accept the welcome. Raises ProtocolError when it is a refusal (Refusal), proves nothing or names another
        node; UnknownFeatureLevel when this build does not work at the level of the cluster: the process has to end
        then.
        """
        proven = self.is_proven(welcome)
        if proven:
            FEATURES.require_supported(LevelOf(welcome.feature_level, welcome.feature_version), "this cluster")
        if welcome.refusal:
            raise Refusal(welcome.refusal, removed=welcome.removed and proven)
        if not proven:
            raise ProtocolError("the process that answers there does not know the peer secret")
        if welcome.node_id != self._hello.target_node_id:
            raise ProtocolError(f"node {welcome.node_id} answers there, not node {self._hello.target_node_id}")


class Refusal(ProtocolError):
    """The other side refuses this connection, and says why."""

    def __init__(self, reason: str, *, removed: bool) -> None:
        super().__init__(f"refused: {reason}")
        self.removed = removed


class Admission:
    """Runs the acceptor's side of one handshake."""

    def __init__(self, config: RaftConfig, hello: Hello) -> None:
        self._config = config
        self.hello = hello
        self.challenge = Challenge(make_nonce())

    @property
    def is_understood(self) -> bool:
        return self.hello.protocol >= PROTOCOL and len(self.hello.nonce) == NONCE_BYTES

    def refuse_version(self) -> Welcome:
        if self.hello.protocol < PROTOCOL:
            refusal = (
                f"node {self.hello.node_id} runs KeelMQ 0.1.0 or an earlier one (peer protocol {self.hello.protocol}), "
                f"this is KeelMQ {FEATURES.version} ({PROTOCOL}): they form no cluster. Stop all nodes, and start "
                f"{FEATURES.version} on all; their logs are read as they are (docs/upgrading.md)"
            )
        else:
            refusal = "a handshake without a number of its own"
        return Welcome(0, refusal, "")

    def answer(self, proof: Proof, membership: Membership, uid: str) -> Welcome:
        """Return the answer to `proof`; its `refusal` is empty when the opener is admitted."""
        keys = keys_of(self._config)
        secret = find_secret(keys, opener_statement(self.hello, self.challenge), proof.proof)
        if secret is None:
            return Welcome(0, "the proof does not fit: the nodes have different peer secrets", "")
        refusal = refusal_of(self._config, membership, uid, self.hello)
        foreign = is_foreign(self._config, uid, self.hello)
        removed = bool(refusal) and not foreign and was_removed(self._config, membership, self.hello)
        incarnation = "" if refusal else self._config.incarnation
        welcome = Welcome(self._config.node_id, refusal, incarnation, removed, build=own_build())
        if not foreign:  # no process ends because of another cluster's level
            level = membership.settled.configuration.level
            welcome = msgspec.structs.replace(welcome, feature_level=level.level, feature_version=level.version)
        said = acceptor_statement(self.hello, self.challenge, welcome)
        return msgspec.structs.replace(welcome, proof=prove(secret, said))


def is_foreign(config: RaftConfig, uid: str, hello: Hello) -> bool:
    """Return whether the opener belongs to another cluster, by its name or by `uid`."""
    return hello.cluster_id != config.cluster_id or bool(uid and hello.cluster_uid and uid != hello.cluster_uid)


def refusal_of(config: RaftConfig, membership: Membership, uid: str, hello: Hello) -> str:
    """Return why the opener is not admitted, or ''. `uid` names this node's cluster; it is empty if the node knows
    none.
    """
    if hello.cluster_id != config.cluster_id:
        return f"this is cluster {config.cluster_id!r}, not {hello.cluster_id!r}"
    if hello.target_node_id != config.node_id:
        return f"this is node {config.node_id}, not {hello.target_node_id}"
    if hello.lane not in LANES:
        return f"there is no lane {hello.lane}"
    if uid and hello.cluster_uid and uid != hello.cluster_uid:
        return (
            f"nodes {config.node_id} and {hello.node_id} are of two clusters named {config.cluster_id!r}, {uid} and "
            f"{hello.cluster_uid}: one of them has the disk of another cluster, began anew on an empty one, or was "
            "restored with another --restore-id, backup or --peer list than the others; give it its own data "
            "directory, or empty it and start it with --join, or restore it once more as the others were"
        )
    unfit = refusal_of_build(hello.build, membership.settled.configuration.level, hello.node_id)
    if unfit:
        return unfit
    if hello.node_id == config.node_id or membership.is_stranger(hello.node_id, hello.configuration_index):
        if was_removed(config, membership, hello):
            return f"node {hello.node_id} was removed from the cluster"
        return no_peer(hello.node_id)
    return ""


def no_peer(node_id: int) -> str:
    """Return the refusal for a node that is not in the configuration; it is given only when nothing else is wrong."""
    return f"node {node_id} is not a configured peer"


def was_removed(config: RaftConfig, membership: Membership, hello: Hello) -> bool:
    """Return whether a committed configuration that the opener does not know removed the opener."""
    return (
        (hello.cluster_id, hello.target_node_id) == (config.cluster_id, config.node_id)
        and hello.node_id != config.node_id
        and membership.is_stranger(hello.node_id, hello.configuration_index)
        and hello.configuration_index < membership.settled.index
    )
