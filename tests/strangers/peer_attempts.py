"""Attempts at the port of peers: raw, forged, replayed, reordered and oversized, with certificates of others."""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from raft.errors import ProtocolError
from raft.messages import (
    FRAME,
    MAX_FRAME_BYTES,
    Append,
    Build,
    Challenge,
    Hello,
    Message,
    PreVote,
    Proof,
    RequestVote,
    TimeoutNow,
    Welcome,
    decode,
    encode,
    make_append,
)
from raft.peers.handshake import HANDSHAKE_FRAME_BYTES, NONCE_BYTES, PROTOCOL, opener_statement
from raft.peers.secret import prove
from store.features import FEATURES
from store.log.record import KIND_ENTRY, Entry
from tests.e2e.cluster_process import NodeProcess
from tests.strangers.loot import CLUSTER, FOREIGN_CLUSTER, Loot
from tests.strangers.outcome import Admitted

ANSWER_TIMEOUT_S: Final = 5.0
FAR: Final = 1 << 40
TERM_MAX: Final = (1 << 63) - 1
WRONG_SECRET: Final = b"w" * 32


class Peer:
    """One connection of a stranger to the port of peers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, *messages: Message | Append | bytes) -> None:
        for each in messages:
            self._writer.write(each if isinstance(each, bytes) else b"".join(encode(each)))

    async def hear(self) -> Message | Append:
        """Return the next message. Raises ConnectionError or IncompleteReadError when there is none."""
        head = await self._reader.readexactly(FRAME.size)
        body_length, header_length, header_crc = FRAME.unpack(head)
        body = await self._reader.readexactly(body_length)
        try:
            return decode(memoryview(body), header_length, header_crc)
        except ProtocolError as error:
            raise ConnectionError(f"no frame: {error}") from None

    async def challenge(self, hello: Hello) -> Challenge:
        self.say(hello)
        heard = await self.hear()
        if not isinstance(heard, Challenge):
            raise ConnectionError(f"refused: {heard}")
        return heard

    async def until_closed(self) -> None:
        """Read until the node closes the connection. Raises Admitted when it says anything that a peer alone hears."""
        while True:
            heard = await self.hear()
            if not isinstance(heard, Challenge) and not (isinstance(heard, Welcome) and heard.refusal):
                raise Admitted(f"the node answers a stranger with {type(heard).__name__}")

    def close(self) -> None:
        self._writer.close()


async def connect(node: NodeProcess, context: ssl.SSLContext | None) -> Peer:
    return Peer(*await asyncio.open_connection("127.0.0.1", node.peer_port, ssl=context))


def hello(rng: random.Random, node: NodeProcess, sender: int | None = None) -> Hello:
    """Return a Hello in the name of another node, of an unknown one or of the node itself, as known as it gets."""
    sender = sender or rng.choice((*(each for each in (1, 2, 3) if each != node.node_id), node.node_id, 9))
    return Hello(
        CLUSTER if rng.random() < 0.8 else FOREIGN_CLUSTER,
        sender,
        node.node_id,
        PROTOCOL,
        rng.randbytes(8).hex(),
        f"127.0.0.1:{rng.randint(1, 65_535)}",
        rng.choice((0, FAR)),
        nonce=rng.randbytes(NONCE_BYTES),
        build=Build("9.1.0", FEATURES.minimum, FEATURES.maximum),
    )


def lies(rng: random.Random) -> list[Message | Append]:
    forged = Entry(b"forged", rng.choice((3, 1_000)), FAR, KIND_ENTRY, -1)
    said: list[Message | Append] = [
        PreVote(TERM_MAX, FAR, TERM_MAX, False),
        RequestVote(TERM_MAX, FAR, TERM_MAX, True),
        TimeoutNow(TERM_MAX),
        make_append(TERM_MAX, 0, 0, 0, ()),
        make_append(FAR, forged.index - 1, 1, FAR, [forged]),
    ]
    return rng.sample(said, rng.randint(1, len(said)))


async def raw(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    peer.say(rng.randbytes(rng.randint(1, 4_096)))


async def forged(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    """Prove a secret that is not the cluster's, and go on as if that had been enough."""
    said = hello(rng, node)
    challenge = await peer.challenge(said)
    peer.say(Proof(prove(WRONG_SECRET, opener_statement(said, challenge))), *lies(rng))


async def unproven(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    peer.say(hello(rng, node), Proof(rng.randbytes(32)), *lies(rng))


async def reordered(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    """Send the messages of a handshake, and of a leader, in an order that no peer has."""
    said: list[Message | Append] = [hello(rng, node), Proof(rng.randbytes(32)), hello(rng, node), *lies(rng)]
    rng.shuffle(said)
    peer.say(*said)


async def replayed(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    """Show a proof that was good on another connection, for another challenge."""
    said = hello(rng, node, 2 if node.node_id != 2 else 3)
    seen = Challenge(rng.randbytes(NONCE_BYTES))
    proof = Proof(prove(loot.secret, opener_statement(said, seen)))
    await peer.challenge(said)
    peer.say(proof, *lies(rng))


async def oversized(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    size = rng.choice((HANDSHAKE_FRAME_BYTES + 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, (1 << 32) - 1))
    peer.say(FRAME.pack(size, min(size, 64), 0), bytes(rng.randint(0, HANDSHAKE_FRAME_BYTES)))


async def mistaken(peer: Peer, node: NodeProcess, loot: Loot, rng: random.Random) -> None:
    """Speak HTTP."""
    peer.say(b"DELETE /v1/topics/kept HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


Attempt = Callable[[Peer, NodeProcess, Loot, random.Random], Awaitable[None]]
ATTEMPTS: Final[tuple[Attempt, ...]] = (raw, forged, unproven, reordered, replayed, oversized, mistaken)


async def attempt(node: NodeProcess, loot: Loot, rng: random.Random) -> str:
    """Make one attempt, and return its kind. Raises Admitted when it succeeds."""
    kind = rng.choice(ATTEMPTS)
    certificate = rng.choice((*loot.peers, "without TLS"))
    name = f"peer: {kind.__name__}, certificate {certificate}"
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            peer = await connect(node, loot.peers.get(certificate))
            try:
                await kind(peer, node, loot, rng)
                await peer.until_closed()
            finally:
                peer.close()
    except (OSError, EOFError, TimeoutError):
        return name  # cut off, or left alone: nobody heard it
    return name
