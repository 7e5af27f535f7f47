"""A stranger, which is no node of the cluster, speaks to the nodes' peer ports: noise, frames that lie about their
length, silent connections, Hellos of other clusters, of unknown nodes and in the name of members. After them it sends
what only members may send: vote requests in terms beyond all others, appends of a leader, calls to stand for election.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from raft.messages import (
    FRAME,
    MAX_FRAME_BYTES,
    Hello,
    Message,
    PreVote,
    Proof,
    RequestVote,
    SnapshotBegin,
    TimeoutNow,
    VoteReply,
    encode,
    make_append,
)
from raft.peers.handshake import NONCE_BYTES, PROTOCOL
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry
from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import FaultKind
from tests.chaos.node import ChaosNode
from tests.chaos.violations import Kind

STRANGERS: Final = 4
CONNECT_TIMEOUT_S: Final = 0.5
PAUSE_S: Final = (0.0, 0.05)
HOLD_S: Final = (0.0, 0.5)
SILENT_CONNECTIONS: Final = 30
NOISE_BYTES_MAX: Final = 64 << 10
SHORT_BYTES: Final = 60
PROOF_BYTES: Final = 32
HUGE: Final = 1 << 62
TERM_MAX: Final = 1 << 31
"""A term that no run reaches by itself."""

Attack = Callable[[ChaosNode, ChaosCluster, random.Random], bytes]


def noise(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, NOISE_BYTES_MAX))


def short_frame(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    """Return a frame of the announced length with content that cannot be decoded."""
    return FRAME.pack(SHORT_BYTES, rng.randint(0, SHORT_BYTES), rng.getrandbits(32)) + rng.randbytes(SHORT_BYTES)


def long_frame(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    """Return the beginning of a frame that announces more than a node may be made to keep."""
    length = rng.choice((MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, (1 << 32) - 1, 5_000))
    return FRAME.pack(length, min(length, rng.getrandbits(24)), 0) + bytes(rng.randint(0, NOISE_BYTES_MAX))


def no_hello(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    return joined_frames(lies(rng))


def foreign_hello(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    """Return a Hello of another cluster, or meant for another node, or in the name of its receiver."""
    which = rng.randrange(3)
    name = "another" if which == 0 else "chaos"
    target = node.node_id + 1 if which == 1 else node.node_id
    return joined_frames([hello(node, cluster, rng, name, sender=node.node_id, target=target), *lies(rng)])


def silence(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    return b""


def as_a_member(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    """Return a Hello with the cluster's name and nodes, known to anybody who saw a packet or asked /v1/cluster."""
    others = [other for other in cluster.nodes if other != node.node_id]
    said = hello(node, cluster, rng, "chaos", rng.choice(others), node.node_id)
    return joined_frames([said, *guess(rng), *lies(rng)])


def as_a_later_member(node: ChaosNode, cluster: ChaosCluster, rng: random.Random) -> bytes:
    """Return a Hello of an unknown node that claims to know a later configuration."""
    said = hello(node, cluster, rng, "chaos", rng.randint(50, 99), node.node_id, HUGE)
    return joined_frames([said, *guess(rng), *lies(rng)])


def guess(rng: random.Random) -> list[Message | bytes]:
    """Return a proof of an unknown secret; or none, as if the stranger had been admitted."""
    return [Proof(rng.randbytes(PROOF_BYTES))] if rng.random() < 0.7 else []


def hello(
    node: ChaosNode,
    cluster: ChaosCluster,
    rng: random.Random,
    name: str,
    sender: int,
    target: int,
    configuration_index: int = 0,
) -> Hello:
    return Hello(
        cluster_id=name,
        node_id=sender,
        target_node_id=target,
        protocol=PROTOCOL,
        incarnation=rng.randbytes(8).hex(),
        address=f"{cluster.client_host}:{rng.randint(1, 65535)}",
        configuration_index=configuration_index,
        nonce=rng.randbytes(NONCE_BYTES),
    )


def lies(rng: random.Random) -> list[Message | bytes]:
    """Return messages of a leader or a candidate, in terms that would end every other leadership for ever."""
    entry = Entry(b"\x93\x01\x90", rng.choice((2, 10, 1_000)), HUGE, KIND_ENTRY, 0)
    members = Entry(b"\x92\x91\x95\x63\xa1h\x01\xa8http://h\xc3\xa0", 3, HUGE, KIND_CONFIG, 0)
    said: list[Message | bytes] = [
        PreVote(HUGE, HUGE, HUGE, False),
        RequestVote(HUGE, HUGE, HUGE, rng.random() < 0.5),
        VoteReply(HUGE, True),
        TimeoutNow(rng.choice((1, HUGE))),
        SnapshotBegin(HUGE, 1, 0, HUGE, HUGE, HUGE, "", "", 0),
        b"".join(encode(make_append(HUGE, entry.index - 1, 1, HUGE, [entry]))),
        b"".join(encode(make_append(HUGE, 2, 1, HUGE, [members]))),
    ]
    return rng.sample(said, rng.randint(1, len(said)))


def joined_frames(messages: Sequence[Message | bytes]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else b"".join(encode(each)) for each in messages)


class Stranger:
    """Strangers speak until they are healed. They must not end a node, make a term leap, or lose acknowledged data."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._tasks: list[asyncio.Task[None]] = []
        self._said: Counter[str] = Counter()

    async def start(self) -> str:
        for _ in range(STRANGERS):
            self._tasks.append(asyncio.create_task(self._molest(random.Random(self._rng.random()))))
        return f"{STRANGERS} strangers speak to the nodes"

    async def heal(self) -> str:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for node_id in self._cluster.nodes:
            view = await self._cluster.ask(node_id)
            if view is not None and view["term"] > TERM_MAX:
                self._cluster.violations.add(
                    Kind.CONTRACT, f"a stranger has brought node {node_id} into term {view['term']}"
                )
        said = ", ".join(f"{name} {count}" for name, count in sorted(self._said.items()))
        return f"the strangers are gone: {said or 'no node answered'}"

    async def _molest(self, rng: random.Random) -> None:
        while True:
            node = self._cluster.nodes[rng.choice(self._cluster.ids())]
            attack = rng.choice(ATTACKS)
            with contextlib.suppress(OSError, TimeoutError):
                await self._speak(node, attack, rng)
            await asyncio.sleep(rng.uniform(*PAUSE_S))

    async def _speak(self, node: ChaosNode, attack: Attack, rng: random.Random) -> None:
        count = SILENT_CONNECTIONS if attack is silence else 1
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(count):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(node.host, node.peer_port)
                stack.callback(writer.close)
                writer.write(attack(node, self._cluster, rng))
            self._said[attack.__name__] += 1
            await asyncio.sleep(rng.uniform(*HOLD_S))


ATTACKS: Final[tuple[Attack, ...]] = (
    *(noise, short_frame, long_frame, no_hello, foreign_hello, silence),
    *(as_a_member, as_a_later_member),
)
KINDS = (FaultKind("stranger", "stranger", Stranger),)
