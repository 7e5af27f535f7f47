"""How two nodes find out that they mean each other, before a word of Raft (docs/decisions.md, 26).

    opener                            acceptor
    Hello: who I am, whom I mean  ->
                                  <-  Challenge: a number nobody has seen before
    Proof: of the secret          ->
                                  <-  Welcome: proof of the secret, or why not

Both proofs are over everything that was said, so none fits another connection, another pair of nodes, other disks or
another direction. A cluster without a secret (on loopback) says the same, with the empty secret. Until it has proven
something, an opener learns nothing but the number of the protocol.
"""

import secrets
from typing import Final

import msgspec

from raft.config import RaftConfig
from raft.errors import ProtocolError
from raft.feature_levels import own_build, refusal_of_build
from raft.lanes import CONTROL, DATA
from raft.membership import Membership
from raft.messages import Build, Challenge, Hello, Proof, Welcome
from raft.peer_secret import find_secret, prove
from store.features import FEATURES, LevelOf

PROTOCOL: Final = 3
"""Of the handshake and the frames; what is said in them depends on feature levels."""
NONCE_BYTES: Final = 16
HANDSHAKE_FRAME_BYTES: Final = 4096
"""What a stranger may make a node keep before it has said who it is."""
LANES: Final = (CONTROL, DATA)
NO_SECRET: Final = (b"",)

_encoder = msgspec.msgpack.Encoder()


def make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def keys_of(config: RaftConfig) -> tuple[bytes, ...]:
    """What proofs are made with; the first is the own one."""
    return config.peer_secrets or NO_SECRET


def opener_statement(hello: Hello, challenge: Challenge) -> bytes:
    """What the opener's proof is over."""
    return _encoder.encode(
        (
            "opener",
            *(hello.cluster_id, hello.cluster_uid, hello.node_id, hello.target_node_id, hello.incarnation),
            *(hello.address, hello.configuration_index, hello.lane, hello.nonce, challenge.nonce),
            *_of_build(hello.build),
        )
    )


def acceptor_statement(hello: Hello, challenge: Challenge, welcome: Welcome) -> bytes:
    """What the acceptor's proof is over."""
    answer = (welcome.node_id, welcome.refusal, welcome.incarnation, welcome.removed)
    levels = (welcome.feature_level, welcome.feature_version, *_of_build(welcome.build))
    return _encoder.encode(("acceptor", opener_statement(hello, challenge), *answer, *levels))


def _of_build(build: Build) -> tuple[str, int, int]:
    """Never more than this: builds that say more prove the same."""
    return build.version, build.level_min, build.level_max


class Opening:
    """The opener's side of one handshake."""

    def __init__(self, config: RaftConfig, hello: Hello) -> None:
        self._config = config
        self._hello = hello
        self._challenge: Challenge | None = None

    def prove(self, challenge: Challenge) -> Proof:
        if self._challenge is not None or len(challenge.nonce) != NONCE_BYTES:
            raise ProtocolError("a second challenge, or one without a number")
        self._challenge = challenge
        return Proof(prove(keys_of(self._config)[0], opener_statement(self._hello, challenge)))

    def is_proven(self, welcome: Welcome) -> bool:
        """Whether it comes from somebody who knows the secret, also if it is a refusal."""
        if self._challenge is None:
            return False
        said = acceptor_statement(self._hello, self._challenge, welcome)
        return find_secret(keys_of(self._config), said, welcome.proof) is not None

    def accept(self, welcome: Welcome) -> None:
        """ProtocolError when it is a refusal, or comes from somebody who proves nothing. UnknownFeatureLevel when this
        build does not work at the level of the cluster: it has to end.
        """
        proven = self.is_proven(welcome)
        if proven:
            FEATURES.require_supported(LevelOf(welcome.feature_level, welcome.feature_version), "this cluster")
        if welcome.refusal:
            raise Refusal(welcome.refusal, removed=welcome.removed and proven)
        if not proven:
            raise ProtocolError("who answers there does not know the peer secret")
        if welcome.node_id != self._hello.target_node_id:
            raise ProtocolError(f"node {welcome.node_id} answers there")


class Refusal(ProtocolError):
    """The other side does not want this connection, and says why."""

    def __init__(self, reason: str, *, removed: bool) -> None:
        super().__init__(f"refused: {reason}")
        self.removed = removed


class Admission:
    """The acceptor's side of one handshake."""

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
        """Whether the opener is let in is in the answer's `refusal`."""
        keys = keys_of(self._config)
        secret = find_secret(keys, opener_statement(self.hello, self.challenge), proof.proof)
        if secret is None:
            return Welcome(0, "the proof does not fit: the nodes have different peer secrets", "")
        refusal = refusal_of(self._config, membership, uid, self.hello)
        removed = bool(refusal) and was_removed(self._config, membership, self.hello)
        incarnation = "" if refusal else self._config.incarnation
        welcome = Welcome(self._config.node_id, refusal, incarnation, removed, build=own_build())
        if not is_foreign(self._config, uid, self.hello):  # the level of another cluster is nothing to end for
            level = membership.settled.configuration.level
            welcome = msgspec.structs.replace(welcome, feature_level=level.level, feature_version=level.version)
        said = acceptor_statement(self.hello, self.challenge, welcome)
        return msgspec.structs.replace(welcome, proof=prove(secret, said))


def is_foreign(config: RaftConfig, uid: str, hello: Hello) -> bool:
    """Whether that node is of another cluster, by its name or by `uid`."""
    return hello.cluster_id != config.cluster_id or bool(uid and hello.cluster_uid and uid != hello.cluster_uid)


def refusal_of(config: RaftConfig, membership: Membership, uid: str, hello: Hello) -> str:
    """Why that node is not heard; empty if it is. `uid`: of this node's cluster, empty if it knows none."""
    if hello.cluster_id != config.cluster_id:
        return f"this is cluster {config.cluster_id!r}, not {hello.cluster_id!r}"
    if hello.target_node_id != config.node_id:
        return f"this is node {config.node_id}, not {hello.target_node_id}"
    if hello.lane not in LANES:
        return f"there is no lane {hello.lane}"
    if uid and hello.cluster_uid and uid != hello.cluster_uid:
        return (
            f"nodes {config.node_id} and {hello.node_id} are of two clusters named {config.cluster_id!r}, {uid} and "
            f"{hello.cluster_uid}: one of them has the disk of another cluster, or began anew on an empty one; give it "
            "its own data directory, or empty it and start it with --join"
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
    """The last reason why a node is not heard: all else fits."""
    return f"node {node_id} is not a configured peer"


def was_removed(config: RaftConfig, membership: Membership, hello: Hello) -> bool:
    """By a configuration that is committed and that the opener does not know."""
    return (
        (hello.cluster_id, hello.target_node_id) == (config.cluster_id, config.node_id)
        and hello.node_id != config.node_id
        and membership.is_stranger(hello.node_id, hello.configuration_index)
        and hello.configuration_index < membership.settled.index
    )
